// longreach bench-attention: the cost of every score variant in tiled attention, forward and backward.
#include <algorithm>
#include <cmath>

#include "base/contention.h"
#include "base/units.h"
#include "commands/commands.h"
#include "commands/yardsticks.h"
#include "io/file.h"
#include "io/result_file.h"
#include "law/library.h"
#include "model/arena.h"
#include "mixers/score_law.h"
#include "train/device.h"

namespace longreach::commands {

namespace {

struct AttentionBenchOptions {
    std::vector<int64_t> lengths{512, 4096, 16384}, head_dims{64, 128};
    int64_t rounds = 5, width = 0, tokens = 0;
    std::string json;
    bool replace = false;
    train::SystemConfig system;
};

// H heads of d over N tokens in sequences of T.
struct Shape {
    int64_t length = 0, head_dim = 0, heads = 0, tokens = 0;

    // One operand is a sixty-fourth of a copy that exceeds all caches: 4 MiB on a CPU;
    // on a GPU 128 MiB of bfloat16, so that the four operands of a forward pass exceed
    // L2 many times and no call finds them there. A longer sequence takes what it needs.
    static Shape of(Ops& ops, const AttentionBenchOptions& options, int64_t length, int64_t head_dim) {
        const int64_t elements = ops.traits().copy_bytes / 64;
        const int64_t width = options.width ? options.width : elements < (int64_t{1} << 24) ? 256 : 2048;
        const int64_t tokens = options.tokens ? options.tokens : elements / width;
        return {length, head_dim, std::max<int64_t>(1, width / head_dim),
                std::max<int64_t>(1, tokens / length) * length};
    }
    // Of the forward pass over visible pairs; the backward pass has 2.5 times as many.
    double flops() const {
        return static_cast<double>(tokens * heads) * static_cast<double>(length + 1) / 2 * 4 *
               static_cast<double>(head_dim);
    }
};

// A law whose parameters learn, as a layer runs it: its tables are evaluated before attention, and its parameters get
// their gradients from those of the tables.
class LearnedLaw {
  public:
    LearnedLaw(Ops& ops, const Shape& shape)
        : ops_(ops),
          model_(model_of(shape)),
          law_(parameters_, model_, 0, model::layer_score(model_, 0)),
          tables_(model_, shape.length),
          tokens_(shape.tokens) {}
    void plan(model::Arena& arena) {
        tables_.plan(arena);
        saved_ = law_.plan(arena, "law", tokens_, tables_.score_rows(0));
        buffers_ = law_.plan_buffers(arena, tokens_, model_.train_context, tables_.score_rows(0), true);
        weights_ = model::plan_weights(arena, parameters_);
        gradients_ = model::plan_weights(arena, parameters_);
    }
    void prepare() {
        tables_.fill(ops_);
        std::vector<float> first;
        model::initialise(parameters_, 1, first);
        ops_.upload(weights_.flat, first.data());
        ops_.zero(gradients_.flat);
    }
    AttentionGradients gradients() const { return law_.gradients(buffers_, tokens_); }
    AttentionSpec evaluated(AttentionSpec spec) const {
        model::StepContext run = context();
        law_.apply(spec, run, tables_.layer(0).score, {saved_, buffers_, {}}, 0, true);
        return spec;
    }
    void backward() const {
        model::StepContext run = context();
        law_.backward(run, tables_.layer(0).score, saved_, buffers_, gradients(), Tensor());
    }

  private:
    static model::ModelConfig model_of(const Shape& shape) {
        model::ModelConfig m;
        m.layers = 1;
        m.train_context = shape.length;
        m.attention.heads = shape.heads;
        m.attention.head_dim = shape.head_dim;
        m.attention.angle = "nope";
        m.attention.score = "scale_invariant";
        for (const char* learned : {"tau", "c"}) m.attention.params[learned].learn = model::Learning::layer;
        return m;
    }
    model::StepContext context() const {
        model::Batch batch;
        batch.sequences = tokens_ / model_.train_context;
        batch.length = model_.train_context;
        return {ops_, weights_, gradients_, batch, masks_};
    }

    Ops& ops_;
    model::ModelConfig model_;
    model::ParamTable parameters_;
    model::ScoreLaw law_;
    model::Tables tables_;
    model::Masks masks_;
    int64_t tokens_;
    model::ScoreLaw::Saved saved_;
    model::ScoreLaw::Buffers buffers_;
    model::FlatParams weights_, gradients_;
};

class AttentionBench {
  public:
    AttentionBench(Ops& ops, const Shape& shape) : ops_(ops), arena_(ops), shape_(shape), law_(ops, shape) {
        plan();
    }

    // Empty if it fits; otherwise the required and the free memory.
    std::string too_large() const {
        const int64_t free = ops_.free_bytes();
        if (arena_.bytes() < free / 10 * 9) return "";
        return fmt::format("needs {} of {} free", human_bytes(arena_.bytes()), human_bytes(free));
    }
    void prepare() {
        arena_.commit();
        uint64_t seed = 1;
        for (const Tensor& t : {q_, k_, v_, dout_, far_q_, far_k_}) fill_random(ops_, t, seed++);
        fill_random(ops_, row_factor_, seed, Random::near_one);
        const law::NamedLaw& named = *law::find_law("scale_invariant");
        int64_t stage = 0;
        const law::BoundLaw law(law::stages_of({named.formula}, named.parameters.size()), named.parameters,
                                {}, stage);
        const std::vector<double> gains = law.gain(0, shape_.length), biases = law.bias(0, shape_.length);
        const std::vector<float> gain(gains.rbegin(), gains.rend()), bias(biases.rbegin(), biases.rend());
        ops_.upload(gain_, gain.data());
        ops_.upload(bias_, bias.data());
        ops_.zero(sink_);
        std::vector<double> sums;
        for (int64_t i = 0; i < forget_.count(); ++i) sums.push_back(-0.01 * static_cast<double>(i));
        ops_.upload(forget_, sums.data());
        law_.prepare();
        ops_.row_starts(window_, Tensor(), shape_.length, std::max<int64_t>(1, shape_.length / 4), 0);
    }

    struct Variant {
        const char* name;
        AttentionSpec spec;
        AttentionGradients gradients;
        bool maxima = false, backward = true, law = false;
        std::vector<double> forward_times{}, backward_times{};  // seconds of one call
        int64_t forward_calls = 1, backward_calls = 1;          // per measurement
    };
    std::vector<Variant> variants() const {
        const int64_t length = shape_.length, d = shape_.head_dim;
        const AttentionSpec plain{.batch = shape_.tokens / length,
                                  .length = length,
                                  .heads = shape_.heads,
                                  .kv_heads = shape_.heads,
                                  .head_dim = d,
                                  .scale = static_cast<float>(1 / std::sqrt(static_cast<double>(d)))};
        AttentionSpec factor = plain, distance = plain, gains = plain, softcap = plain, sink = plain,
                      window = plain, far = plain, forget = plain, top = plain, top_distance, top_blocks;
        factor.row_factor = row_factor_;
        distance.distance_gain = gain_;
        distance.distance_bias = bias_;
        gains = distance;
        gains.bias_of_gain = -1;
        softcap.softcap = 30;
        sink.sink = sink_;
        forget.forget = forget_;
        window.row_start = window_;
        top.top_k = 256;
        top_distance = distance;
        top_distance.top_k = 256;
        top_blocks = top;
        top_blocks.top_k_block = 64;
        far.far_queries = far_q_;
        far.far_keys = far_k_;
        far.far_from = std::max<int64_t>(1, length / 16);
        AttentionGradients factor_gradient, table_gradient, sink_gradient, forget_gradient;
        factor_gradient.row_factor = dfactor_;
        table_gradient.distance_gain = dgain_;
        table_gradient.distance_bias = dbias_;
        sink_gradient.sink = dsink_;
        forget_gradient.forget = dforget_;
        std::vector<Variant> all = {
            {"plain causal", plain, {}},
            {"per-query scale", factor, {}},
            {"per-query scale, learned", factor, factor_gradient},
            {"distance (scale-invariant, ALiBi, log bias)", distance, {}},
            {"distance, learned (tau, decay, KERPLE)", distance, table_gradient},
            {"the same, with its formula", plain, law_.gradients(), false, true, true},
            {"forget gates", forget, forget_gradient},
            {"softcap", softcap, {}},
            {"sink, learned", sink, sink_gradient},
            {"score maxima (QK-clip)", plain, {}, true},
            {"ReRoPE, window T/16 (evaluation)", far, {}, false, false},
            {"sliding window T/4", window, {}}};
        if (ops_.traits().activations == DType::f32) {  // a CPU: no GPU has it
            all.push_back({"the 256 largest scores (evaluation)", top, {}, false, false});
            all.push_back({"the same, scale-invariant", top_distance, {}, false, false});
            all.push_back({"the 4 blocks of 64 with the largest means", top_blocks, {}, false, false});
        }
        if (ops_.traits().activations == DType::bf16)  // a GPU: what reads one table there reads two on a CPU
            all.push_back({"scale-invariant, biases from gains", gains, {}});
        return all;
    }

    // Also decides the number of calls per measurement.
    void warm_up(Variant& v) {
        forward(v, 1);
        v.forward_calls = calls_for(forward(v, 1));
        if (!v.backward) return;
        backward(v, 1);
        v.backward_calls = calls_for(backward(v, 1));
    }
    void time(Variant& v) {
        v.forward_times.push_back(forward(v, v.forward_calls));
        if (v.backward) v.backward_times.push_back(backward(v, v.backward_calls));
    }

  private:
    void plan() {
        const int64_t width = shape_.heads * shape_.head_dim;
        for (Tensor* t : {&q_, &k_, &v_, &o_, &dout_, &dq_, &dk_, &dv_, &far_q_, &far_k_})
            *t = arena_.activation("bench", {shape_.tokens, width});
        const auto rows = [&](int64_t n, int64_t c) { return arena_.reserve("bench", DType::f32, {n, c}); };
        for (Tensor* t : {&lse_, &maxima_, &row_factor_, &dfactor_, &dforget_})
            *t = rows(shape_.heads, shape_.tokens);
        forget_ = arena_.reserve("bench", DType::f64, {shape_.heads, shape_.tokens});
        for (Tensor* t : {&gain_, &bias_, &dgain_, &dbias_}) *t = rows(1, shape_.length);
        sink_ = arena_.reserve("bench", DType::f32, {shape_.heads});
        dsink_ = arena_.reserve("bench", DType::f32, {shape_.heads});
        window_ = arena_.reserve("bench", DType::i32, {shape_.tokens});
        law_.plan(arena_);
        int64_t bytes = 0;
        for (const Variant& v : variants())
            bytes = std::max(bytes, ops_.attention_workspace(v.spec, v.gradients));
        workspace_ = arena_.reserve("bench", DType::f32, {bytes / 4 + 1});
    }
    // Enough calls to hide launches and the clock: ten
    // milliseconds of them, at most fifty. On a CPU one is enough.
    int64_t calls_for(double seconds) const {
        if (ops_.traits().activations == DType::f32) return 1;
        return std::clamp<int64_t>(static_cast<int64_t>(0.01 / std::max(seconds, 1e-6)), 1, 50);
    }
    double forward(const Variant& v, int64_t calls) {
        const Tensor maxima = v.maxima ? maxima_ : Tensor();
        return ops_.seconds_of([&] {
            for (int64_t i = 0; i < calls; ++i)
                ops_.attention(o_, lse_, maxima, q_, k_, v_, v.law ? law_.evaluated(v.spec) : v.spec);
        }) / static_cast<double>(calls);
    }
    double backward(const Variant& v, int64_t calls) {
        return ops_.seconds_of([&] {
            for (int64_t i = 0; i < calls; ++i) {
                ops_.attention_backward(dq_, dk_, dv_, v.gradients, workspace_, dout_, o_, lse_, q_, k_, v_,
                                        v.law ? law_.evaluated(v.spec) : v.spec);
                if (v.law) law_.backward();
            }
        }) / static_cast<double>(calls);
    }

    Ops& ops_;
    model::Arena arena_;
    Shape shape_;
    Tensor q_, k_, v_, o_, dout_, dq_, dk_, dv_, far_q_, far_k_;
    Tensor lse_, maxima_, row_factor_, dfactor_, gain_, bias_, dgain_, dbias_, sink_, dsink_, window_,
        workspace_, forget_, dforget_;
    LearnedLaw law_;
};

// Milliseconds, rate, share of the rate of a matrix product, and the median over
// the rounds of (time of plain) / (time of the variant): a busy machine slows both.
std::string cells(const std::vector<double>& times, const std::vector<double>& plain, double flops,
                  double peak) {
    if (times.empty()) return " | | |";
    std::vector<double> ratios;
    for (size_t i = 0; i < times.size(); ++i) ratios.push_back(plain[i] / times[i]);
    const double seconds = median(times);
    return fmt::format(" {:.3f} | {:.0f}, {:.0f}% | {:.0f}% |", 1e3 * seconds, flops / seconds / 1e9,
                       100 * flops / seconds / peak, 100 * median(ratios));
}

// One JSON object per line, for comparisons with other programs.
void append_json(std::string& lines, const AttentionBench::Variant& v, const Shape& s, double peak) {
    const auto add = [&](const char* pass, const std::vector<double>& times) {
        if (times.empty()) return;
        lines += fmt::format(
            "{{\"program\": \"longreach\", \"variant\": \"{}\", \"pass\": \"{}\", \"head_dim\": {}, "
            "\"heads\": {}, \"length\": {}, \"batch\": {}, \"ms\": {:.6g}, \"peak_tflops\": {:.6g}}}\n",
            v.name, pass, s.head_dim, s.heads, s.length, s.tokens / s.length, 1e3 * median(times),
            peak / 1e12);
    };
    add("forward", v.forward_times);
    add("backward", v.backward_times);
}

void bench_shape(Ops& ops, const Shape& shape, int64_t rounds, std::string& json) {
    fmt::print("\nhead size {}, length {}, {} heads, {} sequences\n\n", shape.head_dim, shape.length,
               shape.heads, shape.tokens / shape.length);
    const ContentionMeter meter;
    std::vector<double> peaks;
    std::vector<AttentionBench::Variant> variants;
    {
        AttentionBench bench(ops, shape);
        if (const std::string reason = bench.too_large(); !reason.empty()) {
            fmt::print("left out: {}\n", reason);
            return;
        }
        bench.prepare();
        variants = bench.variants();
        for (AttentionBench::Variant& v : variants) bench.warm_up(v);
        for (int64_t r = 0; r < rounds; ++r) {
            peaks.push_back(train::measure_peak(ops));
            for (AttentionBench::Variant& v : variants) bench.time(v);
        }
    }
    const Contention contention = meter.seen();
    const double peak = median(peaks);
    const AttentionBench::Variant plain = variants[0];
    fmt::print(
        "| variant | forward ms | GFLOP/s, of {:.0f} | of plain | backward ms | GFLOP/s | of plain |\n"
        "|---|---:|---:|---:|---:|---:|---:|\n",
        peak / 1e9);
    for (const AttentionBench::Variant& v : variants) {
        fmt::print("| {} |{}{}\n", v.name, cells(v.forward_times, plain.forward_times, shape.flops(), peak),
                   cells(v.backward_times, plain.backward_times, 2.5 * shape.flops(), peak));
        append_json(json, v, shape, peak);
    }
    fmt::print("\ncontention: {}\n", describe(contention));
}

ExitCode bench_attention(const AttentionBenchOptions& options) {
    std::string note, json;
    const std::unique_ptr<Ops> ops = train::open_device(options.system, note);
    fmt::print(
        "{}\nMedian of {} rounds. FLOPs are those of a causal pass without a window, even if a window skips "
        "some;\nthe share is of a matrix product measured between rounds; \"of plain\" is the speed as a "
        "share of plain\ncausal attention in the same round.\n",
        note, options.rounds);
    for (int64_t d : options.head_dims)
        for (int64_t length : options.lengths)
            bench_shape(*ops, Shape::of(*ops, options, length, d), options.rounds, json);
    if (!options.json.empty()) io::write_result(options.json, json, options.replace);
    return ExitCode::ok;
}

}  // namespace

void add_bench_attention_command(Command& program) {
    auto options = std::make_shared<AttentionBenchOptions>();
    auto device = std::make_shared<std::string>("auto");
    Command command = program.add("bench-attention", "Time attention, variant by variant");
    command.option("--lengths", options->lengths, "Sequence lengths").comma_list();
    command.option("--head-dims", options->head_dims, "Head sizes").comma_list();
    command.option("--rounds", options->rounds, "Timed rounds").positive();
    command.option("--width", options->width, "Heads times head size; 0: enough for the device");
    command.option("--tokens", options->tokens, "Minimum number of tokens; 0: more than fits caches");
    command.option("--json", options->json, "Also write the times here, a JSON object per line");
    add_replace_flag(command, options->replace);
    command.option("--device", *device, "auto, cpu or cuda").one_of({"auto", "cpu", "cuda"});
    command.run([options, device] {
        options->system.device = *device == "cpu"    ? train::Device::cpu
                                 : *device == "cuda" ? train::Device::cuda
                                                     : train::Device::automatic;
        return bench_attention(*options);
    });
}

}  // namespace longreach::commands
