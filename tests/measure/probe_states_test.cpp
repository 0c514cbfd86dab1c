// What a probe measures of the states of the delta rule: against states that are known, and against the recurrence.
#include <doctest/doctest.h>

#include <cmath>

#include "measure/probe_states.h"
#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t heads = 2, d = 8, e = 12;

// The inputs of the rule, and what is gathered from them.
struct Rule {
    int64_t sequences, length;
    std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 2});
    Floats q, k, v, decay, beta, scratch, state;
    Ints starts;
    bool documents = false;

    Rule(int64_t of_sequences, int64_t of_length, int64_t decays)
        : sequences(of_sequences),
          length(of_length),
          q(normal(rows(), heads * d, 1)),
          k(normal(rows(), heads * d, 2)),
          v(normal(rows(), heads * e, 3)),
          decay(rows(), decays),
          beta(rows(), heads),
          scratch(rows(), heads * e),
          state(heads, d * e),
          starts(1, rows()) {}
    int64_t rows() const { return sequences * length; }

    std::vector<measure::StateSums> gather() {
        DeltaSpec spec;
        spec.batch = sequences;
        spec.length = length;
        spec.heads = heads;
        spec.key_dim = d;
        spec.value_dim = e;
        Floats workspace(1, ops->delta_workspace(spec, false) / 4 + 1);
        const model::Batch batch{sequences, length, Tensor(), Tensor(),
                                 documents ? starts.vector() : Tensor()};
        const model::Masks masks;
        const model::StepContext run{*ops, {}, {}, batch, masks, false, nullptr};
        std::vector<float> host(static_cast<size_t>(decay.count()));
        for (int64_t i = 0; i < decay.count(); ++i) host[static_cast<size_t>(i)] = decay[i];
        std::vector<measure::StateSums> sums;
        measure::add_states(run,
                            {0, q.tensor(), k.tensor(), v.tensor(), decay.tensor(), beta.tensor(), spec,
                             workspace.vector(), scratch.tensor()},
                            state.vector(), host, sums);
        return sums;
    }
    std::map<std::pair<std::string, int64_t>, double> values(int64_t head) {
        measure::LayerSums layer;
        layer.states = gather();
        std::vector<measure::ProbeRow> all;
        measure::append_rows(all, layer, length, 0);
        std::map<std::pair<std::string, int64_t>, double> out;
        for (const measure::ProbeRow& r : all)
            if (r.head == head) out[{r.statistic, r.bin}] = r.value;
        return out;
    }
};

}  // namespace

TEST_CASE("states: orthogonal keys that are never forgotten add a direction each") {
    Rule rule(2, 8, heads);
    for (int64_t n = 0; n < rule.rows(); ++n)
        for (int64_t h = 0; h < heads; ++h) {
            for (int64_t c = 0; c < d; ++c) rule.k.at(n, h * d + c) = c == n % 8 ? 1.0f : 0.0f;
            for (int64_t c = 0; c < e; ++c) rule.v.at(n, h * e + c) = c == n % 8 ? 3.0f : 0.0f;
            rule.beta.at(n, h) = 1;
            rule.decay.at(n, h) = 0;
        }
    auto values = rule.values(1);
    CHECK(values.at({"state_norm", 1}) == doctest::Approx(3));
    CHECK(values.at({"state_rank", 1}) == doctest::Approx(1));
    CHECK(values.at({"state_norm", 2}) == doctest::Approx(3 * (std::sqrt(2) + std::sqrt(3)) / 2));
    CHECK(values.at({"state_rank", 4}) == doctest::Approx(5.5));  // of 4, 5, 6 and 7 positions
    CHECK(values.at({"state_rank", 8}) == doctest::Approx(8));
    CHECK(values.count({"half_life", 0}) == 0);
    CHECK(values.count({"longest_half_life", 0}) == 0);
    // Each position halves what is there: of the first key's share 1/8 is left after four.
    for (int64_t i = 0; i < rule.decay.count(); ++i) rule.decay[i] = static_cast<float>(-std::log(2));
    values = rule.values(0);
    CHECK(values.at({"half_life", 0}) == doctest::Approx(1));
    CHECK(values.at({"half_life", 4}) == doctest::Approx(1));
    CHECK(values.at({"state_norm", 2}) ==
          doctest::Approx(3 * (std::sqrt(1.25) + std::sqrt(1.25 / 4 + 1)) / 2));
    // One direction, written again and again.
    for (int64_t n = 0; n < rule.rows(); ++n) {
        for (int64_t c = 0; c < d; ++c) rule.k.at(n, c) = c == 2 ? 1.0f : 0.0f;
        rule.decay.at(n, 0) = 0;
    }
    values = rule.values(0);
    CHECK(values.at({"state_rank", 8}) == doctest::Approx(1));
    CHECK(values.at({"state_norm", 8}) == doctest::Approx(3));
}

TEST_CASE("states: norm, rank and half-life are those of the recurrence, document by document") {
    for (const bool by_channel : {false, true})
        for (const bool documents : {false, true}) {
            CAPTURE(by_channel);
            CAPTURE(documents);
            const int64_t width = by_channel ? d : 1, length = 150;
            Rule rule(2, length, heads * width);
            const Rng rng(5, Purpose::test);
            for (int64_t i = 0; i < rule.decay.count(); ++i)
                rule.decay[i] = static_cast<float>(-0.2 * rng.uniform(static_cast<uint64_t>(i)));
            for (int64_t i = 0; i < rule.k.count(); ++i) rule.k[i] *= 0.3f;
            for (int64_t i = 0; i < rule.beta.count(); ++i)
                rule.beta[i] = static_cast<float>(rng.uniform(static_cast<uint64_t>(10000 + i)));
            rule.documents = documents;
            for (int64_t n = 0; n < rule.rows(); ++n)
                rule.starts[n] = static_cast<int32_t>(n % length < 71 ? 0 : n % length < 72 ? 71 : 72);

            // S by S for head 1, and the means over the positions that are read.
            std::map<int64_t, measure::StateBin> bins;
            std::vector<double> S(d * e), lost(static_cast<size_t>(width));
            for (int64_t n = 0; n < rule.rows(); ++n) {
                const int64_t start = documents ? rule.starts[n] : 0, seen = n % length - start + 1;
                if (seen == 1) std::fill(S.begin(), S.end(), 0.0);
                std::vector<double> u(e);
                for (int64_t a = 0; a < d; ++a)
                    for (int64_t c = 0; c < e; ++c)
                        S[a * e + c] *= std::exp(double{rule.decay.at(n, width + (by_channel ? a : 0))});
                for (int64_t c = 0; c < e; ++c) {
                    u[c] = rule.v.at(n, e + c);
                    for (int64_t a = 0; a < d; ++a) u[c] -= S[a * e + c] * rule.k.at(n, d + a);
                    u[c] *= rule.beta.at(n, 1);
                }
                double squares = 0, fourths = 0;
                for (int64_t a = 0; a < d; ++a)
                    for (int64_t c = 0; c < e; ++c) S[a * e + c] += rule.k.at(n, d + a) * u[c];
                for (int64_t a = 0; a < e; ++a)  // S^T S here, S S^T there
                    for (int64_t b = 0; b < e; ++b) {
                        double product = 0;
                        for (int64_t r = 0; r < d; ++r) product += S[r * e + a] * S[r * e + b];
                        squares += a == b ? product : 0;
                        fourths += product * product;
                    }
                int64_t bin = 1;
                while (2 * bin <= seen) bin *= 2;
                for (int64_t c = 0; c < width; ++c) {
                    bins[bin].decay.add(-double{rule.decay.at(n, width + c)});
                    lost[static_cast<size_t>(c)] -= double{rule.decay.at(n, width + c)};
                }
                if (bin > 4 && seen % (bin / 4) != 0) continue;
                bins[bin].norm.add(std::sqrt(squares));
                bins[bin].rank.add(squares * squares / fourths);
            }
            const auto mean = [](const measure::Mean& m) { return m.sum / static_cast<double>(m.count); };
            auto values = rule.values(1);
            for (const auto& [bin, expected] : bins) {
                CAPTURE(bin);
                CHECK(values.at({"state_norm", bin}) == doctest::Approx(mean(expected.norm)).epsilon(1e-5));
                CHECK(values.at({"state_rank", bin}) == doctest::Approx(mean(expected.rank)).epsilon(1e-5));
                CHECK(values.at({"half_life", bin}) ==
                      doctest::Approx(std::log(2) / mean(expected.decay)).epsilon(1e-9));
            }
            CHECK(values.count({"longest_half_life", 0}) == (by_channel ? 1 : 0));
            if (by_channel)
                CHECK(values.at({"longest_half_life", 0}) ==
                      doctest::Approx(std::log(2) * static_cast<double>(rule.rows()) /
                                      *std::min_element(lost.begin(), lost.end())));
        }
}
