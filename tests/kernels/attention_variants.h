// Attention with everything AttentionSpec can ask for: random problems and a reference of
// plain loops in double.
//
// Bounds, with u half an ulp of 1, roundings(n) = n u / (1 - n u), M = sum over channels of |q||k|. Per pair:
//     e_z  = roundings(d + 6) scale M        the product; scale, log2(e) and f rounded into the query
//     e_c  = e_z + 4e-7 |z'|             a softcap: its slope is at most 1, tanh is good to 4e-7 relative
//     e_s  = |f| (e_c + 4 u |z'|)        s = f z', the cap's own factors rounded
//     e_y  = gain (e_s + 4 u |s|) + 4 u (|y| + |bias| + |w|/2) + e_f
//            + 2 u |k| (gain^2 + 1)          gain (s + k gain) - k in place of gain s + bias
//            + scale sum |q||k| (3 e_exp + (3 |dC| + 8) u)    of each channel's factor, with sums by channel: in e_z
//     e_f  = 2^-22 |c_i - c_j| + 2^-45 max |c|   forget sums (attention_spec.h): each is split into two f32 with
//                                            2^-48 |c| left, high parts differ by c_i - c_j, low ones by 2^-23 |c|
// A probability is off by the relative e_p = 2 max e_y + 4 u (max |y| + |lse|) + e_exp (once for y, once for
// the lse; the subtraction; the exponential), the denominator further by one rescaling per tile of keys and
// by its additions. Products of such factors follow to first order; the factor 2 in `safety` covers the
// second. `floor` covers exponentials below 2^-126, which may become 0.
//
// Where inputs of products are rounded by the relative `input` (bf16 on a CPU), both factors of every product of q, k,
// P, v, dout and dS carry one rounding more: 2 input |a||b|. The denominators, delta and the sums of the gradients
// of tables, factors with a softcap and forget sums take values before that rounding.
//
// Attention to the largest scores: a row whose last kept and first left score, or mean score of a block, differ by less than
// twice their errors has no bound. A mean is off by the e_y of its scores and roundings(keys + d + 8) of what is summed,
// score by score or channel by channel: gain |f| scale M + |y|.
//
// The gradients of storage with fewer bits, whose roundings are off by the relative `narrow`: one rounding of
// o in delta, of P and dS before their products, of the results.
#pragma once

#include "kernels/attention_problem.h"

namespace longreach::test {
inline int64_t first_visible(const Problem& p, int64_t b, int64_t i) {
    int64_t first = 0;
    if (p.c.window > 0) first = std::max(first, i - p.c.window + 1);
    if (p.c.chunk > 0) first = std::max(first, i / p.c.chunk * p.c.chunk);
    if (p.c.documents) first = std::max<int64_t>(first, p.doc_start.at(b, i));
    return first;
}

// exp(C_i - C_j) of one channel of a head, 1 without sums by channel; n, m: among all tokens. In f32 it is a product of three
// exponentials, whose exponents are rounded and together are that of the whole.
struct Fading {
    double factor = 1, error = 0;  // relative
    Fading(const Problem& p, const ExactInputs& in, int64_t channel, int64_t n, int64_t m) {
        if (!p.c.channels) return;
        const auto sum = [&](int64_t i) {
            return in.channel[static_cast<size_t>(channel * p.c.tokens() + i)];
        };
        const double fallen = sum(m) - sum(n);
        factor = std::exp(-fallen);
        error = 3 * e_exp + (3 * fallen + 8) * unit;
    }
};

// One pair of a query and a key.
struct ScoredPair {
    double magnitude;  // M
    double z;          // scale <q, k>
    double capped;     // z': after the softcap
    double slope;      // of the softcap, and its error
    double score;      // s = f z'
    double gain, y;
    double e_z, e_capped, e_slope, e_score, e_y;
};
inline ScoredPair pair_of(const Problem& p, const ExactInputs& in, int64_t b, int64_t h, int64_t i,
                          int64_t j) {
    const Variant& c = p.c;
    const auto at = [](const std::vector<double>& from, int64_t index) {
        return from[static_cast<size_t>(index)];
    };
    const int64_t d = c.head_dim, n = b * c.length + i, m = b * c.length + j, g = h / (c.heads / c.kv_heads);
    const int64_t q_at = h * d, k_at = p.query_cols + g * d;
    const double scale = static_cast<float>(1 / std::sqrt(double(d)));
    const double softcap = static_cast<float>(c.softcap);
    const double f = c.factor_rows ? at(in.factor, (c.factor_rows == 1 ? 0 : h) * c.tokens() + n) : 1;
    const double w = c.row_square ? at(in.square, n) : 0;
    const auto entry = [&](int64_t rows) {
        return (rows == 1 ? 0 : h) * p.entries + p.entries - 1 - (i - j);
    };
    ScoredPair x{};
    const bool far = c.far && i - j >= c.far_from;
    const std::vector<double>& rows = far ? in.far : in.qkv;
    const int64_t columns = far ? p.query_cols + p.kv_cols : p.dqkv.cols();
    for (int64_t l = 0; l < d; ++l) {
        const Fading fading(p, in, h * d + l, n, m);
        const double product =
            at(rows, n * columns + q_at + l) * at(rows, m * columns + k_at + l) * fading.factor;
        x.z += scale * product;
        x.magnitude += std::abs(product);
        x.e_z += fading.error * scale * std::abs(product);
    }
    x.e_z += (roundings(double(d) + 6) + 2 * c.input) * scale * x.magnitude;
    const double tangent = softcap > 0 ? std::tanh(x.z / softcap) : 0;
    x.capped = softcap > 0 ? softcap * tangent : x.z;
    x.slope = 1 - tangent * tangent;
    x.e_capped = x.e_z + (softcap > 0 ? e_tanh * std::abs(x.capped) : 0);
    x.e_slope = softcap > 0 ? 2 * std::abs(tangent) * x.e_capped / softcap + 3 * unit : 0;
    x.score = f * x.capped;
    x.e_score = std::abs(f) * (x.e_capped + 4 * unit * std::abs(x.capped));
    x.gain = c.tables() ? at(in.gain, entry(c.gain_rows)) : 1;
    const double bias = c.tables() ? at(in.bias, entry(c.bias_rows)) : 0;
    if (c.row_square) x.gain = std::sqrt(std::max(0.0, x.gain + w));
    const double sum = c.forget ? at(in.forget, h * c.tokens() + n) : 0;
    const double forgotten = c.forget ? sum - at(in.forget, h * c.tokens() + m) : 0;
    x.y = x.gain * x.score + bias - w / 2 + forgotten;
    x.e_y = x.gain * (x.e_score + 4 * unit * std::abs(x.score)) +
            4 * unit * (std::abs(x.y) + std::abs(bias) + std::abs(w) / 2 + std::abs(forgotten)) +
            0x1p-45 * std::abs(sum) +  // sums fall: the query's is the largest
            2 * unit * std::abs(c.bias_of_gain) * (x.gain * x.gain + 1);
    return x;
}

// The specification of AttentionSpec and its derivatives, pair by pair. loss = <o, dout>.
struct Reference {
    struct Output {
        std::vector<double> value, bound;
        explicit Output(int64_t n = 0) : value(static_cast<size_t>(n)), bound(static_cast<size_t>(n)) {}
        void add(int64_t at, double v, double e) {
            value[static_cast<size_t>(at)] += v;
            bound[static_cast<size_t>(at)] += e;
        }
        // The largest error in units of the bounds; an infinity must be met exactly.
        double worst(const Floats& actual) const {
            double most = 0;
            for (int64_t i = 0; i < actual.count(); ++i) {
                const auto at = static_cast<size_t>(i);
                if (double{actual[i]} == value[at]) continue;
                const double error = std::abs(double{actual[i]} - value[at]);
                const double ratio = error / (safety * bound[at] + floor_of_bounds);
                if (!(ratio <= most)) most = ratio < 1e300 ? ratio : 1e300;  // a NaN counts as huge
            }
            return most;
        }
    };
    Output o, lse, maxima, dqkv, dfactor, dgain, dbias, dsink, dforget, dchannel;
    double loss = 0;
    int64_t undecided = 0;  // rows of which rounding decides what the largest scores are
    const Problem& p;
    const Variant& c;
    const ExactInputs& in;
    int64_t columns;
    double narrow;

    // rows: the positions of queries that are added, all if empty. Of the others neither o, lse nor dq is known, and
    // dk and dv only of keys that no other query sees.
    Reference(const Problem& problem, const ExactInputs& inputs, double narrow_unit = 0,
              const std::vector<int64_t>& rows = {})
        : o(problem.o.count()),
          lse(problem.lse.count()),
          maxima(problem.maxima.count()),
          dqkv(problem.dqkv.count()),
          dfactor(problem.dfactor.count()),
          dgain(problem.dgain.count()),
          dbias(problem.dbias.count()),
          dsink(problem.dsink.count()),
          dforget(problem.dforget.count()),
          dchannel(problem.dchannel.count()),
          p(problem),
          c(problem.c),
          in(inputs),
          columns(problem.dqkv.cols()),
          narrow(narrow_unit) {
        for (int64_t h = 0; h < c.heads; ++h)
            dsink.add(h, double{Problem::sink_before}, unit * double{Problem::sink_before});
        for (int64_t b = 0; b < c.batch; ++b)
            for (int64_t h = 0; h < c.heads; ++h) {
                if (rows.empty())
                    for (int64_t i = 0; i < c.length; ++i) add_row(b, h, i);
                for (int64_t i : rows) add_row(b, h, i);
            }
        for (size_t at = 0; at < dqkv.value.size(); ++at) dqkv.bound[at] += narrow * std::abs(dqkv.value[at]);
        for (Output* table : {&dgain, &dbias})
            for (size_t at = 0; at < table->value.size(); ++at) {
                const bool below_length = static_cast<int64_t>(at) % p.entries >= p.entries - c.length;
                if (!below_length) table->value[at] = double{Problem::untouched};
            }
    }

    int64_t first_key(int64_t b, int64_t i) const { return first_visible(p, b, i); }

    using Pair = ScoredPair;

    static double at(const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; }

    // Leaves of a row's pairs, from key `first` on, those with the largest scores, of equal ones the nearest, and makes the
    // other scores -infinity. False: rounding decides which.
    bool keep_largest(std::vector<Pair>& pairs, int64_t first, double scale) const {
        struct Choice {
            double score, error;
            size_t begin, end;  // pairs
        };
        const auto count = static_cast<int64_t>(pairs.size()), size = std::max<int64_t>(1, c.top_k_block);
        const int64_t last = first + count - 1;
        std::vector<Choice> choices;  // from the nearest; a query's own block is no choice
        for (int64_t end = c.top_k_block > 0 ? last / size * size : last + 1; end > first;) {
            const int64_t begin = std::max(first, (end - 1) / size * size);
            Choice x{0, 0, static_cast<size_t>(begin - first), static_cast<size_t>(end - first)};
            double summed = 0;
            for (size_t j = x.begin; j < x.end; ++j) {
                const Pair& pair = pairs[j];
                x.score += pair.y / double(end - begin);
                x.error = std::max(x.error, pair.e_y);
                const double f = pair.capped == 0 ? 0 : pair.score / pair.capped;
                summed =
                    std::max(summed, std::abs(pair.gain * f) * scale * pair.magnitude + std::abs(pair.y));
            }
            if (c.top_k_block > 0) x.error += roundings(double(size + c.head_dim + 8)) * summed;
            choices.push_back(x);
            end = begin;
        }
        std::stable_sort(choices.begin(), choices.end(),
                         [](const Choice& a, const Choice& b) { return a.score > b.score; });
        const auto kept = static_cast<size_t>(c.top_k / size - (c.top_k_block > 0 ? 1 : 0));
        bool decided = true;
        for (size_t n = kept; n < choices.size(); ++n) {
            const Choice& left = choices[n];
            for (size_t m = 0; m < kept; ++m)
                decided = decided && choices[m].score - left.score > safety * (choices[m].error + left.error);
            for (size_t j = left.begin; j < left.end; ++j)
                pairs[j].y = -std::numeric_limits<double>::infinity();
        }
        return decided;
    }

    // What one pair gives to dq, dk, dv and the gradients of sums by channel. ds: the derivative at <q, k>.
    struct PairWeights {
        double ds, e_ds, probability, e_probability;
        double e_sums;  // of the additions of all pairs
    };
    void add_vectors(int64_t b, int64_t h, int64_t i, int64_t j, const PairWeights& w) {
        const int64_t d = c.head_dim, n = b * c.length + i, key = b * c.length + j;
        const int64_t q_at = h * d, k_at = p.query_cols + h / (c.heads / c.kv_heads) * d,
                      v_at = k_at + p.kv_cols;
        const auto put = [&](int64_t row, int64_t column, double weight, double e_weight, double of) {
            dqkv.add(row * columns + column, weight * of,
                     (e_weight + (w.e_sums + narrow + 2 * c.input) * std::abs(weight)) * std::abs(of));
        };
        for (int64_t m = 0; m < d; ++m) {
            const Fading fading(p, in, q_at + m, n, key);
            const double k = at(in.qkv, key * columns + k_at + m), q = at(in.qkv, n * columns + q_at + m);
            const double faded = w.ds * fading.factor;
            const double e_faded = (w.e_ds + fading.error * std::abs(w.ds)) * fading.factor;
            put(n, q_at + m, faded, e_faded, k);
            put(key, k_at + m, faded, e_faded, q);
            put(key, v_at + m, w.probability, w.e_probability, at(in.dout, n * p.query_cols + q_at + m));
            if (!c.channels) continue;
            const double e = (e_faded + (w.e_sums + 4 * unit) * std::abs(faded)) * std::abs(q * k);
            dchannel.add((q_at + m) * c.tokens() + n, faded * q * k, e);
            dchannel.add((q_at + m) * c.tokens() + key, -faded * q * k, e);
        }
    }

    void add_row(int64_t b, int64_t h, int64_t i) {
        const int64_t d = c.head_dim, n = b * c.length + i, group = c.heads / c.kv_heads, g = h / group;
        const int64_t q_at = h * d, k_at = p.query_cols + g * d, v_at = k_at + p.kv_cols;
        const int64_t first = first_key(b, i), count = i - first + 1;
        const double scale = static_cast<float>(1 / std::sqrt(double(d)));
        const double f = c.factor_rows ? at(in.factor, (c.factor_rows == 1 ? 0 : h) * c.tokens() + n) : 1;
        const auto entry = [&](int64_t rows, int64_t t) {
            return (rows == 1 ? 0 : h) * p.entries + p.entries - 1 - t;
        };
        const auto row_of = [&](int64_t j) { return (b * c.length + j) * columns; };

        std::vector<Pair> pairs;
        double e_y = 0, largest = 0, top = -1e300, maximum = -std::numeric_limits<double>::infinity();
        double e_maximum = 0;
        for (int64_t j = first; j <= i; ++j) {
            const Pair x = pair_of(p, in, b, h, i, j);
            maximum = std::max(maximum, c.absolute ? std::abs(x.z) : x.z);
            e_maximum = std::max(e_maximum, x.e_z + 6 * unit * std::abs(x.z));
            pairs.push_back(x);
        }
        const bool decided = c.top_k == 0 || keep_largest(pairs, first, scale);
        for (const Pair& x : pairs) {
            if (std::isinf(x.y)) continue;
            e_y = std::max(e_y, x.e_y);
            top = std::max(top, x.y);
            largest = std::max(largest, std::abs(x.y));
        }
        const double sink = c.sink ? at(in.sink, h) : -std::numeric_limits<double>::infinity();
        top = std::max(top, sink);
        if (!std::isinf(sink)) largest = std::max(largest, std::abs(sink));
        double sum = std::exp(sink - top);
        for (const Pair& x : pairs) sum += std::exp(x.y - top);
        const double log_sum = top + std::log(sum);
        const double tiles = double(count) / 64 + 3;
        const double e_p =
            2 * e_y + 4 * unit * (largest + std::abs(log_sum)) + (c.input > 0 ? e_coarse_exp : e_exp);
        const double e_sum = e_p + tiles * (e_exp + 4 * unit * (largest + 1)) + roundings(double(count) + 1);
        const double e_lse = decided ? e_sum + 4 * unit * std::abs(log_sum) : 1e300;
        undecided += decided ? 0 : 1;
        lse.add(h * c.tokens() + n, log_sum, e_lse);
        maxima.add(h * c.tokens() + n, f == 0 ? -std::numeric_limits<double>::infinity() : maximum,
                   e_maximum);

        double delta = 0, e_delta = 0;
        for (int64_t m = 0; m < d; ++m) {
            double value = 0, magnitude = 0;
            for (int64_t j = first; j <= i; ++j) {
                const double term = std::exp(pairs[static_cast<size_t>(j - first)].y - log_sum) *
                                    at(in.qkv, row_of(j) + v_at + m);
                value += term;
                magnitude += std::abs(term);
            }
            const double dout = at(in.dout, n * p.query_cols + q_at + m);
            const double e_o = decided ? (2 * e_sum + 4 * unit + 2 * c.input) * magnitude : 1e300;
            o.add(n * p.query_cols + q_at + m, value, e_o);
            delta += dout * value;
            e_delta += std::abs(dout) * (safety * e_o + (roundings(double(d)) + narrow) * std::abs(value));
        }
        loss += delta;
        if (c.sink) {
            const double share = std::exp(sink - log_sum);
            const double e_share =
                e_lse + e_exp + 4 * unit * ((std::isinf(sink) ? 0 : std::abs(sink)) + std::abs(log_sum) + 2);
            dsink.add(h, -share * delta,
                      share * (e_delta + (e_share + roundings(double(c.tokens()))) * std::abs(delta)));
        }

        const double e_row = e_p + e_sum;  // of a probability rebuilt from the saved lse
        // Additions that make a gradient: of a query or key over pairs, of a table entry over all heads too.
        const double e_sums = roundings(double(c.length * group) + 8);
        const double e_table_sums = roundings(double(c.tokens() * c.heads) + 20);
        for (int64_t j = first; j <= i; ++j) {
            const Pair& x = pairs[static_cast<size_t>(j - first)];
            const double probability = std::exp(x.y - log_sum);
            double dp = 0, magnitude = 0;
            for (int64_t m = 0; m < d; ++m) {
                const double product =
                    at(in.dout, n * p.query_cols + q_at + m) * at(in.qkv, row_of(j) + v_at + m);
                dp += product;
                magnitude += std::abs(product);
            }
            const double dl = probability * (dp - delta);
            const double e_dl =
                probability *
                (e_delta + (roundings(double(d)) + 2 * c.input) * magnitude +
                 (e_row + 6 * unit) * (std::abs(dp - delta) + roundings(2) * (magnitude + std::abs(delta))));
            // Derivative at <q, k>, without f and with it. A gain carries 2 roundings, every factor one.
            const double without = dl * x.gain * x.slope * scale;
            const double e_without =
                scale * x.gain * (e_dl * x.slope + std::abs(dl) * (x.e_slope + 8 * unit * x.slope));
            const double ds = f * without, e_ds = std::abs(f) * e_without;
            add_vectors(b, h, i, j, {ds, e_ds, probability, e_row * probability, e_sums});
            // Folded: <dq / f, q>, channel by channel. With a softcap: pair by pair.
            const double df = dl * x.gain * x.capped;
            const double e_df =
                c.softcap > 0
                    ? x.gain * (e_dl * std::abs(x.capped) + std::abs(dl) * x.e_capped) +
                          (e_sums + 8 * unit) * std::abs(df)
                    : (e_without + (e_sums + roundings(double(d) + 4) + 2 * c.input) * std::abs(without)) *
                              x.magnitude +
                          (c.channels ? x.gain * std::abs(dl) * x.e_z : 0);
            dfactor.add(h * c.tokens() + n, df, e_df);
            dforget.add(h * c.tokens() + n, dl, e_dl + e_sums * std::abs(dl));
            dforget.add(h * c.tokens() + b * c.length + j, -dl, e_dl + e_sums * std::abs(dl));
            if (!c.tables()) continue;
            dgain.add(
                entry(c.gain_rows, i - j), dl * x.score,
                e_dl * std::abs(x.score) + std::abs(dl) * x.e_score + e_table_sums * std::abs(dl * x.score));
            dbias.add(entry(c.bias_rows, i - j), dl, e_dl + e_table_sums * std::abs(dl));
        }
    }
};

// Every result that was asked for within its bounds.
inline void check_against(const Problem& run, const Reference& exact) {
    const Variant& c = run.c;
    CHECK(exact.o.worst(run.o) <= 1);
    CHECK(exact.lse.worst(run.lse) <= 1);
    if (c.maxima) CHECK(exact.maxima.worst(run.maxima) <= 1);
    if (c.far) return;
    CHECK(exact.dqkv.worst(run.dqkv) <= 1);
    if (c.factor_gradient) CHECK(exact.dfactor.worst(run.dfactor) <= 1);
    if (c.gain_gradient) CHECK(exact.dgain.worst(run.dgain) <= 1);
    if (c.bias_gradient) CHECK(exact.dbias.worst(run.dbias) <= 1);
    if (c.sink_gradient) CHECK(exact.dsink.worst(run.dsink) <= 1);
    if (c.forget_gradient) CHECK(exact.dforget.worst(run.dforget) <= 1);
    if (c.channel_gradient) CHECK(exact.dchannel.worst(run.dchannel) <= 1);
}

}  // namespace longreach::test
