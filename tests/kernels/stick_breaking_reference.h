// Stick-breaking attention by loops in double, with bounds.
//
// Bounds, with e_y of a score as attention_variants.h derives it. The logarithms of a break, log s(y) and
// log(1 - s(y)), move by (1 - s) e_y and s e_y and are good to e_break (an exponential and a logarithm,
// relative to log(1 + e^-|y|)) and 4 u of their size. A weight's exponent is one of the first and a sum
// of the second, which is rounded once per key of a tile and once per tile: fewer than the keys.
// What is computed from the weights follows from the formulas at the top of
// kernels/cpu/stick_breaking_backward.cpp term by term. Sums of statistics are those of statistics_reference.h.
#pragma once

#include <algorithm>

#include "kernels/statistics_reference.h"

namespace longreach::test {

inline constexpr double e_break = 8e-7;

struct StickReference {
    using Output = Reference::Output;
    struct Weight {
        Reference::Pair pair;
        double share, e_share;  // P
        double sigma, e_sigma;  // s(y)
    };

    const Problem& p;
    const Variant& c;
    const ExactInputs& in;
    double narrow;
    Output o, lse, dqkv, dfactor, dgain, dbias;
    double loss = 0;

    // narrow_unit: the relative error of a rounding to the type that o and the gradients are stored in.
    StickReference(const Problem& problem, const ExactInputs& inputs, double narrow_unit = 0)
        : p(problem),
          c(problem.c),
          in(inputs),
          narrow(narrow_unit),
          o(problem.o.count()),
          lse(problem.lse.count()),
          dqkv(problem.dqkv.count()),
          dfactor(problem.dfactor.count()),
          dgain(problem.dgain.count()),
          dbias(problem.dbias.count()) {
        for (int64_t b = 0; b < c.batch; ++b)
            for (int64_t h = 0; h < c.heads; ++h)
                for (int64_t i = 0; i < c.length; ++i) add_row(b, h, i);
        for (Output* stored : {&o, &dqkv})
            for (size_t at = 0; at < stored->value.size(); ++at)
                stored->bound[at] += narrow * (std::abs(stored->value[at]) + stored->bound[at]);
        for (Output* table : {&dgain, &dbias})
            for (size_t at = 0; at < table->value.size(); ++at)
                if (static_cast<int64_t>(at) % p.entries < p.entries - c.length)
                    table->value[at] = double{Problem::untouched};
    }
    static double at(const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; }

    // From the nearest key on; `rest` and its error: what is left, as -log.
    std::vector<Weight> weights(int64_t b, int64_t h, int64_t i, double& rest, double& e_rest) const {
        std::vector<Weight> all;
        const int64_t first = first_visible(p, b, i);
        const double additions = roundings(double(i - first) + 4);
        double errors = 0;
        rest = e_rest = 0;
        for (int64_t j = i - 1; j >= first; --j) {
            Weight w{pair_of(p, in, b, h, i, j), 0, 0, 0, 0};
            const double y = w.pair.y, r = std::log1p(std::exp(-std::abs(y)));
            w.sigma = 1 / (1 + std::exp(-y));
            w.e_sigma = w.sigma * ((1 - w.sigma) * w.pair.e_y + e_exp + 6 * unit);
            const double taken = std::min(y, 0.0) - r, left = std::max(y, 0.0) + r;
            const double e_taken = (1 - w.sigma) * w.pair.e_y + e_break * r + 4 * unit * std::abs(taken);
            w.share = std::exp(taken - rest);
            w.e_share =
                w.share * (e_taken + errors + additions * rest + 4 * unit * (std::abs(taken) + rest) + e_exp);
            all.push_back(w);
            rest += left;
            errors += w.sigma * w.pair.e_y + e_break * r + 4 * unit * left;
        }
        e_rest = errors + (additions + 4 * unit) * rest;
        return all;
    }

    void add_row(int64_t b, int64_t h, int64_t i) {
        const int64_t d = c.head_dim, n = b * c.length + i, group = c.heads / c.kv_heads, g = h / group;
        const int64_t columns = p.dqkv.cols(), q_at = h * d, k_at = p.query_cols + g * d,
                      v_at = k_at + p.kv_cols;
        const double scale = static_cast<float>(1 / std::sqrt(double(d)));
        const double f = c.factor_rows ? at(in.factor, (c.factor_rows == 1 ? 0 : h) * c.tokens() + n) : 1;
        const auto row_of = [&](int64_t j) { return (b * c.length + j) * columns; };
        double rest = 0, e_rest = 0;
        const std::vector<Weight> all = weights(b, h, i, rest, e_rest);
        const double count = double(all.size());
        lse.add(h * c.tokens() + n, -rest, e_rest);

        double delta = 0, e_delta = 0;
        for (int64_t m = 0; m < d; ++m) {
            double value = 0, e_value = 0;
            for (size_t x = 0; x < all.size(); ++x) {
                const double v = at(in.qkv, row_of(i - 1 - int64_t(x)) + v_at + m);
                value += all[x].share * v;
                e_value +=
                    (all[x].e_share + (roundings(count + 2) + 2 * c.input) * all[x].share) * std::abs(v);
            }
            o.add(n * p.query_cols + q_at + m, value, e_value);
            const double dout = at(in.dout, n * p.query_cols + q_at + m);
            delta += dout * value;
            e_delta +=
                std::abs(dout) * (safety * e_value + (roundings(double(d)) + narrow) * std::abs(value));
        }
        loss += delta;

        const double e_sums = roundings(double(c.length * group) + 8);
        const double e_table_sums = roundings(double(c.tokens() * c.heads) + 20);
        double given = 0, e_given = 0, given_size = 0;
        for (size_t x = 0; x < all.size(); ++x) {
            const int64_t j = i - 1 - int64_t(x);
            const Weight& w = all[x];
            double dp = 0, magnitude = 0;
            for (int64_t m = 0; m < d; ++m) {
                const double product =
                    at(in.dout, n * p.query_cols + q_at + m) * at(in.qkv, row_of(j) + v_at + m);
                dp += product;
                magnitude += std::abs(product);
            }
            const double dw = w.share * dp;
            const double e_dw =
                w.e_share * std::abs(dp) + w.share * (roundings(double(d) + 2) + 2 * c.input) * magnitude;
            const double others = delta - given;
            const double e_others = e_delta + e_given + roundings(count + 2) * (std::abs(delta) + given_size);
            const double dl = dw - w.sigma * others;
            const double e_dl = e_dw + w.sigma * e_others + w.e_sigma * std::abs(others) +
                                4 * unit * (std::abs(dw) + w.sigma * std::abs(others));
            given += dw;
            given_size += std::abs(dw);
            e_given += e_dw;

            const Reference::Pair& s = w.pair;
            const double without = dl * s.gain * s.slope * scale;
            const double e_without =
                scale * s.gain * (e_dl * s.slope + std::abs(dl) * (s.e_slope + 8 * unit * s.slope));
            const double ds = f * without, e_ds = std::abs(f) * e_without;
            const auto put = [&](int64_t row, int64_t column, double weight, double e_weight, double of) {
                dqkv.add(row_of(row) + column, weight * of,
                         (e_weight + (e_sums + 2 * c.input) * std::abs(weight)) * std::abs(of));
            };
            for (int64_t m = 0; m < d; ++m) {
                put(i, q_at + m, ds, e_ds, at(in.qkv, row_of(j) + k_at + m));
                put(j, k_at + m, ds, e_ds, at(in.qkv, row_of(i) + q_at + m));
                put(j, v_at + m, w.share, w.e_share, at(in.dout, n * p.query_cols + q_at + m));
            }
            const double df = dl * s.gain * s.capped;
            const double e_df =
                c.softcap > 0
                    ? s.gain * (e_dl * std::abs(s.capped) + std::abs(dl) * s.e_capped) +
                          (e_sums + 8 * unit) * std::abs(df)
                    : (e_without + (e_sums + roundings(double(d) + 4) + 2 * c.input) * std::abs(without)) *
                          s.magnitude;
            dfactor.add(h * c.tokens() + n, df, e_df);
            if (!c.tables()) continue;
            const auto entry = [&](int64_t rows) {
                return (rows == 1 ? 0 : h) * p.entries + p.entries - 1 - (i - j);
            };
            dgain.add(
                entry(c.gain_rows), dl * s.score,
                e_dl * std::abs(s.score) + std::abs(dl) * s.e_score + e_table_sums * std::abs(dl * s.score));
            dbias.add(entry(c.bias_rows), dl, e_dl + e_table_sums * std::abs(dl));
        }
    }
};

// The results that were asked for within their bounds.
inline void check_sticks(const Problem& run, double narrow_unit = 0) {
    const ExactInputs inputs(run);
    StickReference exact(run, inputs, narrow_unit);
    // A stick below 2^-150 is used up; how far below is not said.
    for (int64_t n = 0; n < run.lse.count(); ++n) {
        double& value = exact.lse.value[static_cast<size_t>(n)];
        if (value > -103) continue;
        CHECK(run.lse[n] <= -103);
        value = double{run.lse[n]};
    }
    CHECK(exact.o.worst(run.o) <= 1);
    CHECK(exact.lse.worst(run.lse) <= 1);
    CHECK(exact.dqkv.worst(run.dqkv) <= 1);
    if (run.c.factor_gradient) CHECK(exact.dfactor.worst(run.dfactor) <= 1);
    if (run.c.gain_gradient) CHECK(exact.dgain.worst(run.dgain) <= 1);
    if (run.c.bias_gradient) CHECK(exact.dbias.worst(run.dbias) <= 1);
}

// Row statistics of one query against `all`, [row_statistics, H, N].
struct StickStatistics {
    struct Value {
        double value = 0, bound = 0;
    };
    const StickReference& exact;
    const Floats& all;
    int64_t b, h, i;
    std::array<Value, row_statistics> sums{};

    void add(RowStatistic which, int64_t plus, double value, double bound) {
        Value& x = sums[static_cast<size_t>(static_cast<int64_t>(which) + plus)];
        x.value += value;
        x.bound += bound;
    }
    double got(RowStatistic which, int64_t plus = 0) const {
        const Variant& c = exact.c;
        return double{all.at((static_cast<int64_t>(which) + plus) * c.heads + h, b * c.length + i)};
    }
    void add_weight(const StickReference::Weight& w, int64_t t, bool first) {
        using enum RowStatistic;
        const Variant& c = exact.c;
        const double rounded = roundings(StatisticsReference::chain + 2);
        const double log = w.share > 0 ? std::log(w.share) : 0;
        const double e_share = w.share > 0 ? w.e_share / w.share : 0;
        int64_t k = 0;
        while (t >= distance_class_begin[static_cast<size_t>(k) + 1]) ++k;
        add(mass, k, w.share, w.e_share + rounded * w.share);
        add(surprise, k, -w.share * log, w.share * (std::abs(log) * (e_share + rounded) + e_share));
        add(participation, 0, w.share * w.share, w.share * (2 * w.e_share + rounded * w.share));
        if (first) add(first_mass, 0, w.share, w.e_share + unit * w.share);
        for (int64_t x = 0; x < watched_keys; ++x)
            if (watched_of(c, x, b * c.length + i) == i - t)
                add(RowStatistic::watched, x, w.share, w.e_share + unit * w.share);
    }
    // The largest of a row: nothing of a row without keys.
    void check_largest(RowStatistic which, double value, double bound) const {
        CAPTURE(static_cast<int64_t>(which));
        if (std::isinf(value))
            CHECK(got(which) == value);
        else
            CHECK(std::abs(got(which) - value) <= safety * bound + unit);
    }
    void check() {
        using enum RowStatistic;
        constexpr double none = -std::numeric_limits<double>::infinity();
        double rest = 0, e_rest = 0, largest = none, runner_up = none, e_largest = 0, score = none,
               logit = none, least = 0, e_z = 0, e_y = 0, sum = 0;
        const auto weights = exact.weights(b, h, i, rest, e_rest);
        const auto count = static_cast<double>(weights.size()) - 1;  // without the first key
        for (size_t x = 0; x < weights.size(); ++x) {
            const auto& w = weights[x];
            const ScoredPair& pair = w.pair;
            add_weight(w, int64_t(x) + 1, x + 1 == weights.size());
            if (w.share > 0) {
                const double log = std::log(w.share);
                runner_up = std::max(runner_up, std::min(largest, log));
                largest = std::max(largest, log);
                e_largest = std::max(e_largest, w.e_share / w.share + 4 * unit * std::abs(log));
            }
            score = std::max(score, pair.z);
            least = x == 0 ? pair.z : std::min(least, pair.z);
            logit = std::max(logit, pair.y);
            e_z = std::max(e_z, pair.e_z + unit * std::abs(pair.z));
            e_y = std::max(e_y, pair.e_y + 4 * unit * std::abs(pair.y));
            if (x + 1 < weights.size()) sum += pair.z;
        }
        add(sink_mass, 0, std::exp(-rest), std::exp(-rest) * (e_rest + e_exp + 4 * unit * rest));
        if (largest == none || largest > -60)  // below, logarithms are of nothing
            check_largest(top_weight, largest, e_largest);
        if (runner_up == none || runner_up > -60) check_largest(second_weight, runner_up, e_largest);
        check_largest(top_score, score, e_z);
        check_largest(top_logit, logit, e_y);
        CHECK(got(pairs) == std::max(0.0, count));
        const double range = weights.empty() ? 0 : score - least + 2 * e_z;
        if (count > 0)
            add(mean, 0, sum / count,
                e_z + roundings(StatisticsReference::chain + 3) * range + unit * std::abs(sum / count));
        for (RowStatistic which :
             {mass, surprise, RowStatistic::watched, participation, first_mass, sink_mass, mean}) {
            const int64_t members = which == mass || which == surprise ? int64_t{distance_classes}
                                    : which == RowStatistic::watched   ? int64_t{watched_keys}
                                                                       : 1;
            for (int64_t k = 0; k < members; ++k) {
                const Value& x = sums[static_cast<size_t>(static_cast<int64_t>(which) + k)];
                CHECK(std::abs(got(which, k) - x.value) <= safety * x.bound + floor_of_bounds);
            }
        }
    }
};
inline void check_stick_statistics(const Problem& run, const Floats& all) {
    const ExactInputs inputs(run);
    const StickReference exact(run, inputs);
    for (int64_t b = 0; b < run.c.batch; ++b)
        for (int64_t h = 0; h < run.c.heads; ++h)
            for (int64_t i = 0; i < run.c.length; ++i)
                StickStatistics{.exact = exact, .all = all, .b = b, .h = h, .i = i}.check();
}

}  // namespace longreach::test
