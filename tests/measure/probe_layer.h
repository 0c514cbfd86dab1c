// A layer of attention for the tests of what a probe gathers.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <map>

#include "measure/probe_gatherer.h"
#include "kernels/support.h"

namespace longreach::test {

// A single attention layer without a model; its outputs are means of keys. One channel per query of sixteen in a row: query i takes channel
// i % 16 of every key, so the sixteen queries of a bin have scores of their own.
struct Layer {
    static constexpr int64_t channels = 16;
    std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 2});
    AttentionSpec spec;
    Floats q, k, v, o, lse, factor, gain, bias, statistics, rows, projected, projection, input;
    Ints watched, tokens;
    bool has_tokens = false;
    std::map<std::string, std::vector<double>> values;  // by statistic, one per head, of one bin

    Layer(int64_t batch, int64_t length, int64_t heads)
        : q(batch * length, heads * channels),
          k(normal(batch * length, heads * channels, 5)),
          v(normal(batch * length, heads * channels, 6)),
          o(batch * length, heads * channels),
          lse(heads, batch * length),
          factor(1, batch * length),
          gain(1, length),
          bias(1, length),
          statistics(row_statistics * heads, batch * length),
          rows(batch * length, heads * channels),
          projected(batch * length, heads * channels),
          projection(2, heads * channels),
          input(batch * length, heads * channels),
          watched(watched_keys, batch * length),
          tokens(1, batch * length) {
        spec.batch = batch;
        spec.length = length;
        spec.heads = spec.kv_heads = heads;
        spec.head_dim = channels;
        for (int64_t n = 0; n < batch * length; ++n)
            for (int64_t h = 0; h < heads; ++h) q.at(n, h * channels + n % length % channels) = 1;
    }
    // f(n) of every query; n = i + 1.
    void scale_rows(const std::function<double(double)>& f) {
        for (int64_t n = 0; n < factor.count(); ++n)
            factor[n] = static_cast<float>(f(double(n % spec.length) + 1));
        spec.row_factor = factor.tensor();
    }
    void by_distance(const std::function<double(double)>& gain_of,
                     const std::function<double(double)>& bias_of) {
        for (int64_t t = 0; t < spec.length; ++t) {
            gain[spec.length - 1 - t] = static_cast<float>(gain_of(double(t)));
            bias[spec.length - 1 - t] = static_cast<float>(bias_of(double(t)));
        }
        spec.distance_gain = gain.tensor();
        spec.distance_bias = bias.tensor();
    }
    // What is gathered from `batches` batches of the same sequences.
    std::vector<measure::ProbeRow> probe(int64_t batches = 1) {
        const auto of_keys = [&](const Tensor& x) { return x.col_range(0, spec.kv_heads * channels); };
        ops->attention(o.tensor(), lse.tensor(), Tensor(), q.tensor(), of_keys(k.tensor()),
                       of_keys(k.tensor()), spec);
        measure::Gatherer gatherer({statistics.vector(), watched.vector(), rows.vector(), projected.vector()},
                                   1, 7, spec.batch * spec.length);
        const model::Masks masks;
        const int64_t sequences = spec.batch / batches, n = sequences * spec.length;
        for (int64_t b = 0; b < batches; ++b) {
            const auto part = [&](Floats& x) { return x.tensor().row_range(b * n, n); };
            AttentionSpec scores = spec;
            scores.batch = sequences;
            if (spec.row_factor) scores.row_factor = spec.row_factor.col_range(b * n, n);
            const model::Batch batch{sequences, spec.length,
                                     has_tokens ? tokens.vector().range(b * n, n) : Tensor(), Tensor(),
                                     Tensor()};
            gatherer.begin(b * sequences);
            const model::StepContext run{*ops, {}, {}, batch, masks, false, nullptr};
            gatherer.attention(
                run, {0, part(input), part(q), of_keys(part(k)), part(o), lse.tensor().col_range(b * n, n),
                      scores, Tensor(), part(o), projection.tensor(), of_keys(part(v))});
            gatherer.block(run, 0, part(input));
            gatherer.add(spec.length, gatherer.take());
        }
        std::vector<measure::ProbeRow> all;
        measure::append_rows(all, gatherer.lengths().at(spec.length).at(0), spec.length, 0);
        return all;
    }
    void measure(int64_t bin) {
        for (const measure::ProbeRow& r : probe())
            if (r.bin == bin && r.head >= 0) values[r.statistic].push_back(r.value);
    }
};

// What a layer gives, by head, statistic and bin.
using ProbeKey = std::tuple<int64_t, std::string, int64_t>;
inline std::map<ProbeKey, measure::ProbeRow> rows_of(Layer& layer) {
    std::map<ProbeKey, measure::ProbeRow> rows;
    for (const measure::ProbeRow& r : layer.probe()) rows[{r.head, r.statistic, r.bin}] = r;
    return rows;
}

}  // namespace longreach::test
