// longreach bench-attention: what every way of scoring costs in the tiled attention, forward and backward.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/rng.h"
#include "commands/commands.h"
#include "model/arena.h"
#include "model/distance_law.h"
#include "train/device.h"

namespace longreach {

namespace {

using Clock = std::chrono::steady_clock;

struct AttentionBenchOptions {
    std::vector<int64_t> lengths{512, 4096, 16384}, head_dims{64, 128};
    int64_t rounds = 5;
};

// One shape: H heads of d over N tokens in sequences of T.
class AttentionBench {
  public:
    AttentionBench(Ops& ops, int64_t length, int64_t head_dim)
        : ops_(ops),
          arena_(ops),
          length_(length),
          d_(head_dim),
          heads_(std::max<int64_t>(1, 256 / head_dim)),
          tokens_(std::max<int64_t>(1, 4096 / length) * length) {
        plan();
        arena_.commit();
        plan();
        const Rng rng(1, Purpose::test);
        uint64_t drawn = 0;
        for (const Tensor& t : {q_, k_, v_, dout_, far_q_, far_k_})
            fill(t, [&] { return rng.normal(drawn++); });
        fill(row_factor_, [&] { return 0.5 + rng.uniform(drawn++); });
        DistanceConfig si;
        si.kind = DistanceKind::scale_invariant;
        std::vector<float> gain, bias;
        for (int64_t t = length_ - 1; t >= 0; --t) {
            const GainBias g = distance_transform(si, t, 0, 1);
            gain.push_back(static_cast<float>(g.gain));
            bias.push_back(static_cast<float>(g.bias));
        }
        ops_.upload(gain_, gain.data());
        ops_.upload(bias_, bias.data());
        ops_.zero(sink_);
        ops_.row_starts(window_, Tensor(), length_, std::max<int64_t>(1, length_ / 4), 0);
        const double pairs = static_cast<double>(tokens_ * heads_) * static_cast<double>(length_ + 1) / 2;
        flops_ = pairs * 4 * static_cast<double>(d_);
    }

    struct Variant {
        const char* name;
        AttentionSpec spec;
        AttentionGradients gradients;
        bool maxima = false, backward = true;
        std::vector<double> forward_times{}, backward_times{};
    };
    std::vector<Variant> variants() const {
        const AttentionSpec plain{.batch = tokens_ / length_,
                                  .length = length_,
                                  .heads = heads_,
                                  .kv_heads = heads_,
                                  .head_dim = d_,
                                  .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d_)))};
        AttentionSpec factor = plain, distance = plain, softcap = plain, sink = plain, window = plain,
                      far = plain;
        factor.row_factor = row_factor_;
        distance.distance_gain = gain_;
        distance.distance_bias = bias_;
        softcap.softcap = 30;
        sink.sink = sink_;
        window.row_start = window_;
        far.far_queries = far_q_;
        far.far_keys = far_k_;
        far.far_from = std::max<int64_t>(1, length_ / 16);
        AttentionGradients factor_gradient, table_gradient, sink_gradient;
        factor_gradient.row_factor = dfactor_;
        table_gradient.distance_gain = dgain_;
        table_gradient.distance_bias = dbias_;
        sink_gradient.sink = dsink_;
        return {{"plain causal", plain, {}},
                {"per-query scale", factor, {}},
                {"per-query scale, learned", factor, factor_gradient},
                {"distance (scale-invariant, ALiBi, log bias)", distance, {}},
                {"distance, learned (tau, decay, KERPLE)", distance, table_gradient},
                {"softcap", softcap, {}},
                {"sink, learned", sink, sink_gradient},
                {"score maxima (QK-clip)", plain, {}, true},
                {"ReRoPE, window T/16 (evaluation)", far, {}, false, false},
                {"sliding window T/4", window, {}}};
    }

    void time(Variant& v) {
        const Tensor maxima = v.maxima ? maxima_ : Tensor();
        v.forward_times.push_back(seconds([&] { ops_.attention(o_, lse_, maxima, q_, k_, v_, v.spec); }));
        if (!v.backward) return;
        v.backward_times.push_back(seconds([&] {
            ops_.attention_backward(dq_, dk_, dv_, v.gradients, workspace_, dout_, o_, lse_, q_, k_, v_,
                                    v.spec);
        }));
    }
    double flops() const { return flops_; }  // of the forward pass; backward 2.5 times as many

  private:
    void plan() {
        const auto rows = [&](int64_t n, int64_t c) { return arena_.reserve("bench", DType::f32, {n, c}); };
        const int64_t width = heads_ * d_;
        for (Tensor* t : {&q_, &k_, &v_, &o_, &dout_, &dq_, &dk_, &dv_, &far_q_, &far_k_})
            *t = rows(tokens_, width);
        for (Tensor* t : {&lse_, &maxima_, &row_factor_, &dfactor_}) *t = rows(heads_, tokens_);
        for (Tensor* t : {&gain_, &bias_, &dgain_, &dbias_}) *t = rows(1, length_);
        sink_ = arena_.reserve("bench", DType::f32, {heads_});
        dsink_ = arena_.reserve("bench", DType::f32, {heads_});
        window_ = arena_.reserve("bench", DType::i32, {tokens_});
        int64_t bytes = 0;
        for (const Variant& v : variants())
            bytes = std::max(bytes, ops_.attention_workspace(v.spec, v.gradients));
        workspace_ = arena_.reserve("bench", DType::f32, {bytes / 4 + 1});
    }
    template <class Draw>
    void fill(const Tensor& t, Draw draw) {
        std::vector<float> host(static_cast<size_t>(t.count()));
        for (float& x : host) x = static_cast<float>(draw());
        ops_.upload(t, host.data());
    }
    template <class Body>
    double seconds(Body body) {
        const Clock::time_point begin = Clock::now();
        body();
        ops_.synchronize();
        return std::chrono::duration<double>(Clock::now() - begin).count();
    }

    Ops& ops_;
    Arena arena_;
    int64_t length_, d_, heads_, tokens_;
    double flops_ = 0;
    Tensor q_, k_, v_, o_, dout_, dq_, dk_, dv_, far_q_, far_k_;
    Tensor lse_, maxima_, row_factor_, dfactor_, gain_, bias_, dgain_, dbias_, sink_, dsink_, window_,
        workspace_;
};

double median(std::vector<double> x) {
    std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
    return x[x.size() / 2];
}

// Median over the rounds of (time of plain) / (time of the variant): a busy moment slows both.
std::string speed(const std::vector<double>& plain, const std::vector<double>& times) {
    if (times.empty()) return "";
    std::vector<double> ratios;
    for (size_t i = 0; i < times.size(); ++i) ratios.push_back(plain[i] / times[i]);
    return fmt::format("{:.0f}%", 100 * median(ratios));
}

ExitCode bench_attention(const AttentionBenchOptions& options) {
    std::string note;
    const std::unique_ptr<Ops> ops = open_device(SystemConfig(), note);
    fmt::print(
        "{}\nSpeed of each variant as a share of plain causal attention in the same round, median of {} "
        "rounds;\nfor plain itself GFLOP/s and share of the matrix product rate measured between rounds.\n",
        note, options.rounds);
    for (int64_t d : options.head_dims)
        for (int64_t length : options.lengths) {
            AttentionBench bench(*ops, length, d);
            std::vector<AttentionBench::Variant> variants = bench.variants();
            for (AttentionBench::Variant& v : variants) bench.time(v);  // warm up
            for (AttentionBench::Variant& v : variants) v.forward_times.clear(), v.backward_times.clear();
            std::vector<double> peaks;
            for (int64_t r = 0; r < options.rounds; ++r) {
                peaks.push_back(measure_peak(*ops));
                for (AttentionBench::Variant& v : variants) bench.time(v);
            }
            const double peak = median(peaks);
            const AttentionBench::Variant& plain = variants[0];
            const double forward = bench.flops() / median(plain.forward_times);
            const double backward = 2.5 * bench.flops() / median(plain.backward_times);
            fmt::print("\nhead size {}, length {}\n\n| variant | forward | backward |\n|---|---:|---:|\n", d,
                       length);
            fmt::print("| plain causal | {:.0f} GFLOP/s, {:.0f}% | {:.0f} GFLOP/s, {:.0f}% |\n",
                       forward / 1e9, 100 * forward / peak, backward / 1e9, 100 * backward / peak);
            for (size_t i = 1; i < variants.size(); ++i)
                fmt::print("| {} | {} | {} |\n", variants[i].name,
                           speed(plain.forward_times, variants[i].forward_times),
                           speed(plain.backward_times, variants[i].backward_times));
        }
    return ExitCode::ok;
}

}  // namespace

void add_bench_attention_command(CLI::App& app, Action& action) {
    auto options = std::make_shared<AttentionBenchOptions>();
    CLI::App* command = app.add_subcommand("bench-attention", "Time attention, variant by variant");
    command->add_option("--lengths", options->lengths, "Sequence lengths")->delimiter(',');
    command->add_option("--head-dims", options->head_dims, "Head sizes")->delimiter(',');
    command->add_option("--rounds", options->rounds, "Timed rounds")->check(CLI::PositiveNumber);
    command->callback([options, &action] { action = [options] { return bench_attention(*options); }; });
}

}  // namespace longreach
