// Entmax attention by loops in double, with bounds.
//
// Bounds, with e_y of a score as attention_variants.h derives it, a = alpha - 1, r = 1 / a, F(theta) the sum of a row's
// weights and S that of s = u^(r-1). F falls by S dtheta. Computed scores are off by E = max (e_y + 4 u |y|) over the keys whose
// weight may not be 0, and a weight of given u by the relative
//     e_w = 8 u                                                          alpha 1.5: three roundings of u, one of its square
//     e_w = (r - 1) (3 u + 4e-7 log 2) + 4 u |log s| + e_exp + 8 u       else: a logarithm good to 4e-7, an exponential
// The search ends where no step changes theta, so the computed sum is 1 but for the rounding of theta:
//     e_theta = E + (sum of e_w P + roundings(keys / 96 + 100)) / S + 6 u |theta|
// for sums of at most 96 weights, added up. u is then off by a (e_y + 4 u |y| + e_theta), and P and s, which rise with u, lie
// between their values at both ends, wherever u = 0 is: this needs no derivative, which s has not at 0. What follows are the
// formulas of kernels/cpu/entmax.h and entmax_backward.cpp term by term, then those of attention_variants.h. P log P moves by
// at most |log P| + 1 times the error of P, or by that of an error that is larger than P, and has that of a logarithm.
#pragma once

#include <algorithm>

#include "kernels/statistics_reference.h"

namespace longreach::test {

struct EntmaxReference {
    using Output = Reference::Output;
    struct Weight {
        ScoredPair pair;
        double share, e_share;  // P
        double slope, e_slope;  // s
    };
    struct Row {
        std::vector<Weight> keys;  // from the first visible one on
        Weight sink;
        double theta, e_theta;
    };

    const Problem& p;
    const Variant& c;
    const ExactInputs& in;
    Output o, lse, dqkv, dfactor, dgain, dbias, dsink, dforget, dalpha;
    double loss = 0;

    EntmaxReference(const Problem& problem, const ExactInputs& inputs)
        : p(problem),
          c(problem.c),
          in(inputs),
          o(problem.o.count()),
          lse(problem.lse.count()),
          dqkv(problem.dqkv.count()),
          dfactor(problem.dfactor.count()),
          dgain(problem.dgain.count()),
          dbias(problem.dbias.count()),
          dsink(problem.dsink.count()),
          dforget(problem.dforget.count()),
          dalpha(problem.dalpha.count()) {
        for (int64_t h = 0; h < c.heads; ++h)
            for (Output* x : {&dsink, &dalpha})
                x->add(h, double{Problem::sink_before}, unit * double{Problem::sink_before});
        for (int64_t b = 0; b < c.batch; ++b)
            for (int64_t h = 0; h < c.heads; ++h)
                for (int64_t i = 0; i < c.length; ++i) add_row(b, h, i);
        for (Output* table : {&dgain, &dbias})
            for (size_t at = 0; at < table->value.size(); ++at)
                if (static_cast<int64_t>(at) % p.entries < p.entries - c.length)
                    table->value[at] = double{Problem::untouched};
    }
    static double at(const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; }
    double a_of(int64_t h) const {
        if (!c.alpha_gradient) return double{static_cast<float>(c.alpha)} - 1;
        return std::max(0.01, 1 / (1 + std::exp(-at(in.alpha_logit, h))));
    }
    double sink_of(int64_t h) const {
        return c.sink ? at(in.sink, h) : -std::numeric_limits<double>::infinity();
    }

    // u^power; 0 for u <= 0.
    static double raised(double u, double power) { return u > 0 ? std::pow(u, power) : 0; }
    double e_weight(double slope, double a) const {
        if (c.alpha == 1.5 && !c.alpha_gradient) return 8 * unit;
        return (1 / a - 1) * (3 * unit + 4e-7 * std::log(2.0)) +
               4 * unit * (slope > 0 ? std::abs(std::log(slope)) : 0) + e_exp + 8 * unit;
    }
    // The score at which weights become 0.
    static double threshold(const std::vector<double>& scores, double a) {
        double above = *std::max_element(scores.begin(), scores.end()), below = above - 1 / a;
        for (double middle = (above + below) / 2; below < middle && middle < above;
             middle = (above + below) / 2) {
            double sum = 0;
            for (double y : scores) sum += raised(a * (y - middle), 1 / a);
            (sum > 1 ? below : above) = middle;
        }
        return below;
    }
    // Of a score y that is off by e.
    void weigh(Weight& w, double y, double e, double theta, double a) const {
        const double r = 1 / a;
        const auto between = [&](double power, double& value, double& error) {
            value = raised(a * (y - theta), power);
            const double most = raised(a * (y + e - theta), power),
                         least = raised(a * (y - e - theta), power);
            error =
                std::max(most - value, value - least) + most * e_weight(raised(a * (y - theta), r - 1), a);
        };
        if (std::isinf(y)) {
            w.share = w.e_share = w.slope = w.e_slope = 0;
            return;
        }
        between(r, w.share, w.e_share);
        between(r - 1, w.slope, w.e_slope);
    }
    Row row(int64_t b, int64_t h, int64_t i) const {
        Row out{};
        const double sink = sink_of(h), a = a_of(h), r = 1 / a;
        std::vector<double> scores;
        for (int64_t j = first_visible(p, b, i); j <= i; ++j) {
            out.keys.push_back({pair_of(p, in, b, h, i, j), 0, 0, 0, 0});
            scores.push_back(out.keys.back().pair.y);
        }
        if (!std::isinf(sink)) scores.push_back(sink);
        const double theta = out.theta = threshold(scores, a);
        double most = std::isinf(sink) ? 0 : 4 * unit * std::abs(sink), sum = 0, slopes = 0;
        for (double y : scores) {
            const double slope = raised(a * (y - theta), r - 1);
            sum += raised(a * (y - theta), r) * e_weight(slope, a);
            slopes += slope;
        }
        const double least = *std::max_element(scores.begin(), scores.end()) - r - 1;
        for (const Weight& w : out.keys)
            if (w.pair.y > least) most = std::max(most, w.pair.e_y + 4 * unit * std::abs(w.pair.y));
        out.e_theta =
            most + (sum + roundings(double(scores.size()) / 96 + 100)) / slopes + 6 * unit * std::abs(theta);
        for (Weight& w : out.keys)
            weigh(w, w.pair.y, w.pair.e_y + 4 * unit * std::abs(w.pair.y) + out.e_theta, theta, a);
        weigh(out.sink, sink, 4 * unit * std::abs(sink) + out.e_theta, theta, a);
        return out;
    }

    void add_row(int64_t b, int64_t h, int64_t i) {
        const int64_t d = c.head_dim, n = b * c.length + i, group = c.heads / c.kv_heads, g = h / group;
        const int64_t columns = p.dqkv.cols(), q_at = h * d, k_at = p.query_cols + g * d,
                      v_at = k_at + p.kv_cols, first = first_visible(p, b, i);
        const auto row_of = [&](int64_t j) { return (b * c.length + j) * columns; };
        const Row all = row(b, h, i);
        const double count = double(all.keys.size());
        lse.add(h * c.tokens() + n, all.theta, all.e_theta);

        // Gradients at the weights.
        std::vector<double> dp(all.keys.size()), e_dp(all.keys.size());
        for (size_t x = 0; x < all.keys.size(); ++x)
            for (int64_t m = 0; m < d; ++m) {
                const double product = at(in.dout, n * p.query_cols + q_at + m) *
                                       at(in.qkv, row_of(first + int64_t(x)) + v_at + m);
                dp[x] += product;
                e_dp[x] += (roundings(double(d) + 2) + 2 * c.input) * std::abs(product);
            }
        double products = 0, e_products = 0, slopes = all.sink.slope, e_slopes = all.sink.e_slope;
        const double e_chain = roundings(count / 32 + 100);
        for (size_t x = 0; x < all.keys.size(); ++x) {
            const Weight& w = all.keys[x];
            products += w.slope * dp[x];
            e_products += w.e_slope * (std::abs(dp[x]) + e_dp[x]) + w.slope * e_dp[x] +
                          e_chain * w.slope * std::abs(dp[x]);
            slopes += w.slope;
            e_slopes += w.e_slope + e_chain * w.slope;
        }
        const double delta = products / slopes;
        const double e_delta =
            slopes > 2 * e_slopes
                ? (e_products + std::abs(delta) * e_slopes) / (slopes - e_slopes) + 2 * unit * std::abs(delta)
                : 1e300;
        if (c.alpha_gradient) add_alpha(h, all, dp, e_dp, delta, e_delta);
        if (c.sink)
            dsink.add(h, -all.sink.slope * delta,
                      all.sink.e_slope * (std::abs(delta) + e_delta) + all.sink.slope * e_delta +
                          roundings(double(c.tokens()) + 2) * all.sink.slope * std::abs(delta));

        for (int64_t m = 0; m < d; ++m) {
            double value = 0, e_value = 0;
            for (size_t x = 0; x < all.keys.size(); ++x) {
                const double v = at(in.qkv, row_of(first + int64_t(x)) + v_at + m);
                value += all.keys[x].share * v;
                e_value += (all.keys[x].e_share + (roundings(count + 2) + 2 * c.input) * all.keys[x].share) *
                           std::abs(v);
            }
            o.add(n * p.query_cols + q_at + m, value, e_value);
            loss += value * at(in.dout, n * p.query_cols + q_at + m);
        }
        for (size_t x = 0; x < all.keys.size(); ++x) {
            const Weight& w = all.keys[x];
            const double dl = w.slope * (dp[x] - delta);
            const double e_dl = w.e_slope * (std::abs(dp[x] - delta) + e_dp[x] + e_delta) +
                                w.slope * (e_dp[x] + e_delta) +
                                4 * unit * w.slope * (std::abs(dp[x]) + std::abs(delta));
            add_pair(b, h, i, first + int64_t(x), w, dl, e_dl);
        }
    }

    // What a row adds to the gradient of alpha.
    void add_alpha(int64_t h, const Row& all, const std::vector<double>& dp, const std::vector<double>& e_dp,
                   double delta, double e_delta) {
        const double a = a_of(h), r = 1 / a, e_chain = roundings(double(dp.size()) / 32 + 100);
        double weighted = 0, e_weighted = 0, logs = 0, e_logs = 0, weighted_logs = 0, e_weighted_logs = 0;
        const auto log_of = [](const Weight& w, double& value, double& error) {
            const double log = w.share > 0 ? std::log(w.share) : 0;
            value = w.share * log;
            error = w.e_share * (2 + std::abs(std::log(std::max({w.share, w.e_share, 1e-30})))) +
                    w.share * (4e-7 + 4 * unit * std::abs(log));
        };
        double value, error;
        for (size_t x = 0; x < dp.size(); ++x) {
            const Weight& w = all.keys[x];
            weighted += w.share * dp[x];
            e_weighted += w.e_share * (std::abs(dp[x]) + e_dp[x]) + w.share * e_dp[x] +
                          e_chain * w.share * std::abs(dp[x]);
            log_of(w, value, error);
            logs += value;
            e_logs += error + e_chain * std::abs(value);
            weighted_logs += value * dp[x];
            e_weighted_logs += error * (std::abs(dp[x]) + e_dp[x]) + std::abs(value) * e_dp[x] +
                               e_chain * std::abs(value * dp[x]);
        }
        log_of(all.sink, value, error);
        logs += value;
        e_logs += error;
        const double by_logit = a > 0.01 ? a * (1 - a) : 0;
        const double gradient = r * r * (weighted - delta) - r * (weighted_logs - delta * logs);
        const double e =
            r * r * (e_weighted + e_delta + 8 * unit * (std::abs(weighted) + std::abs(delta))) +
            r * (e_weighted_logs + e_delta * (std::abs(logs) + e_logs) + std::abs(delta) * e_logs +
                 8 * unit * (std::abs(weighted_logs) + std::abs(delta * logs)));
        dalpha.add(h, gradient * by_logit, by_logit * e + 4 * unit * std::abs(gradient * by_logit));
    }

    // What the gradient dl at the score of a pair adds to those of its inputs.
    void add_pair(int64_t b, int64_t h, int64_t i, int64_t j, const Weight& w, double dl, double e_dl) {
        const int64_t d = c.head_dim, n = b * c.length + i, group = c.heads / c.kv_heads, g = h / group;
        const int64_t columns = p.dqkv.cols(), q_at = h * d, k_at = p.query_cols + g * d,
                      v_at = k_at + p.kv_cols;
        const double scale = static_cast<float>(1 / std::sqrt(double(d)));
        const double f = c.factor_rows ? at(in.factor, (c.factor_rows == 1 ? 0 : h) * c.tokens() + n) : 1;
        const double e_sums = roundings(double(c.length * group) + 8);
        const double e_table_sums = roundings(double(c.tokens() * c.heads) + 20);
        const ScoredPair& s = w.pair;
        const double without = dl * s.gain * s.slope * scale;
        const double e_without =
            scale * s.gain * (e_dl * s.slope + std::abs(dl) * (s.e_slope + 8 * unit * s.slope));
        const double ds = f * without, e_ds = std::abs(f) * e_without;
        const auto put = [&](int64_t row, int64_t column, double weight, double e_weight, double of) {
            dqkv.add((b * c.length + row) * columns + column, weight * of,
                     (e_weight + (e_sums + 2 * c.input) * std::abs(weight)) * std::abs(of));
        };
        const auto of = [&](int64_t row, int64_t column) {
            return at(in.qkv, (b * c.length + row) * columns + column);
        };
        for (int64_t m = 0; m < d; ++m) {
            put(i, q_at + m, ds, e_ds, of(j, k_at + m));
            put(j, k_at + m, ds, e_ds, of(i, q_at + m));
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
        dforget.add(h * c.tokens() + n, dl, e_dl + e_sums * std::abs(dl));
        dforget.add(h * c.tokens() + b * c.length + j, -dl, e_dl + e_sums * std::abs(dl));
        if (!c.tables()) return;
        const auto entry = [&](int64_t rows) {
            return (rows == 1 ? 0 : h) * p.entries + p.entries - 1 - (i - j);
        };
        dgain.add(
            entry(c.gain_rows), dl * s.score,
            e_dl * std::abs(s.score) + std::abs(dl) * s.e_score + e_table_sums * std::abs(dl * s.score));
        dbias.add(entry(c.bias_rows), dl, e_dl + e_table_sums * std::abs(dl));
    }
};

// The results that were asked for within their bounds.
inline void check_entmax(const Problem& run) {
    const Variant& c = run.c;
    const ExactInputs inputs(run);
    const EntmaxReference exact(run, inputs);
    CHECK(exact.o.worst(run.o) <= 1);
    CHECK(exact.lse.worst(run.lse) <= 1);
    if (c.far) return;
    CHECK(exact.dqkv.worst(run.dqkv) <= 1);
    if (c.factor_gradient) CHECK(exact.dfactor.worst(run.dfactor) <= 1);
    if (c.gain_gradient) CHECK(exact.dgain.worst(run.dgain) <= 1);
    if (c.bias_gradient) CHECK(exact.dbias.worst(run.dbias) <= 1);
    if (c.sink_gradient) CHECK(exact.dsink.worst(run.dsink) <= 1);
    if (c.forget_gradient) CHECK(exact.dforget.worst(run.dforget) <= 1);
    if (c.alpha_gradient) CHECK(exact.dalpha.worst(run.dalpha) <= 1);
}

// Row statistics of one query against `all`, [row_statistics, H, N].
inline void check_entmax_row(const EntmaxReference& exact, const Floats& all, int64_t b, int64_t h,
                             int64_t i) {
    using enum RowStatistic;
    constexpr double none = -std::numeric_limits<double>::infinity();
    const Variant& c = exact.c;
    const EntmaxReference::Row row = exact.row(b, h, i);
    const auto got = [&](RowStatistic which, int64_t plus = 0) {
        return double{all.at((static_cast<int64_t>(which) + plus) * c.heads + h, b * c.length + i)};
    };
    const auto near = [&](RowStatistic which, int64_t plus, double value, double bound) {
        CAPTURE(static_cast<int64_t>(which));
        CAPTURE(plus);
        CHECK(std::abs(got(which, plus) - value) <= safety * bound + floor_of_bounds);
    };
    const double rounded = roundings(StatisticsReference::chain + 2);
    std::array<double, distance_classes> masses{}, e_masses{}, surprises{}, e_surprises{};
    double squares = 0, e_squares = 0, largest = none, e_largest = 0, runner_up = none;
    double surely = 0, perhaps = 0;  // keys with a weight above 0
    for (size_t x = 0; x < row.keys.size(); ++x) {
        const auto& w = row.keys[x];
        const auto t = static_cast<int64_t>(row.keys.size() - 1 - x);
        size_t k = 0;
        while (t >= distance_class_begin[k + 1]) ++k;
        const double e = w.e_share + rounded * w.share, log = w.share > 0 ? std::log(w.share) : none;
        masses[k] += w.share;
        e_masses[k] += e;
        if (w.share > 0) surprises[k] -= w.share * log;
        // The slope of -P log P is at most |log P| + 1, at the error itself where P is smaller.
        e_surprises[k] += (e + e_exp * w.share) * (2 + std::abs(std::log(std::max({w.share, e, 1e-30}))));
        if (w.share > safety * w.e_share + floor_of_bounds) ++surely;
        if (w.share + w.e_share > 0) ++perhaps;
        squares += w.share * w.share;
        e_squares += w.share * (2 * e + unit) + e * e;
        runner_up = std::max(runner_up, std::min(largest, log));
        if (log > largest) {
            largest = log;
            e_largest = (w.e_share / w.share) + 8 * unit * std::abs(log) + 1e-6;
        }
        for (int64_t y = 0; y < watched_keys; ++y)
            if (watched_of(c, y, b * c.length + i) == i - t)
                near(watched, y, w.share, w.e_share + unit * w.share);
    }
    for (int64_t k = 0; k < distance_classes; ++k) {
        const auto at = static_cast<size_t>(k);
        near(mass, k, masses[at], e_masses[at]);
        near(surprise, k, surprises[at], e_surprises[at]);
    }
    near(participation, 0, squares, e_squares);
    CHECK(got(support) >= surely);
    CHECK(got(support) <= perhaps);
    near(first_mass, 0, row.keys[0].share, row.keys[0].e_share + unit * row.keys[0].share);
    near(sink_mass, 0, row.sink.share, row.sink.e_share + unit * row.sink.share);
    if (largest > -20) near(top_weight, 0, largest, e_largest);
    if (row.keys.size() == 1) CHECK(got(second_weight) == none);
    if (runner_up > none) CHECK(got(second_weight) <= got(top_weight));
}

}  // namespace longreach::test
