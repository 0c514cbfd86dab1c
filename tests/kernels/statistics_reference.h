// Row statistics of a Problem by plain loops in double, with bounds.
//
// The reference takes the lse as given, so its error is not counted. Per pair e_z and e_y as in
// attention_variants.h; a probability is off by the relative
//     e_p = e_y + 4 u (|y| + |lse|) + e_exp                y, lse and their difference in units of log 2
// and an implementation adds at most `chain` numbers in f32 before it goes on in f64 and rounds the result:
//     mass         sum P e_p + roundings(chain + 2) sum P
//     surprise     the same with -P log P for P, and sum P (e_y + 4 u (|y| + |lse|)) for the logarithm
//     squares      2 sum P^2 e_p + roundings(chain + 2) sum P^2
//     powers       of x = z - c, c a value or a mean of values of the row: |x| <= R, the range of z; then
//                  e_k = k R^(k-1) max e_z + roundings(chain + k + 2) R^k, and about the mean,
//                  |mean - c| <= R: mean e_1, second e_2 + 2 R e_1, third e_3 + 3 R e_2 + 9 R^2 e_1,
//                  fourth e_4 + 4 R e_3 + 6 R^2 e_2 + 28 R^3 e_1
// The row's centre c is rounded, which moves x by u |z| more: part of e_z.
#pragma once

#include "kernels/attention_variants.h"

namespace longreach::test {

// A key to watch for token n: most in the sequence, visible or not; some after its end, some -1.
inline int64_t watched_of(const Variant& c, int64_t which, int64_t n) {
    const Rng rng(c.seed, Purpose::test, 77);
    const uint64_t range = static_cast<uint64_t>(c.length) + 2;
    return static_cast<int64_t>(rng.below(static_cast<uint64_t>(n * watched_keys + which), range)) - 1;
}
inline Ints watched_of(const Variant& c) {
    Ints all(watched_keys, c.tokens(), c.tokens() + 1);
    for (int64_t w = 0; w < watched_keys; ++w)
        for (int64_t n = 0; n < c.tokens(); ++n) all.at(w, n) = static_cast<int32_t>(watched_of(c, w, n));
    return all;
}

struct StatisticsReference {
    static constexpr double chain = 100;
    Reference::Output all;  // [row_statistics, H, N]
    const Problem& p;
    const Variant& c;
    const ExactInputs& in;

    // lse: as the operation gets it.
    StatisticsReference(const Problem& problem, const ExactInputs& inputs, const Floats& lse)
        : all(row_statistics * problem.c.heads * problem.c.tokens()), p(problem), c(problem.c), in(inputs) {
        for (int64_t b = 0; b < c.batch; ++b)
            for (int64_t h = 0; h < c.heads; ++h)
                for (int64_t i = 0; i < c.length; ++i) add_row(b, h, i, double{lse.at(h, b * c.length + i)});
    }

    int64_t first_key(int64_t b, int64_t i) const {
        int64_t first = 0;
        if (c.window > 0) first = std::max(first, i - c.window + 1);
        if (c.chunk > 0) first = std::max(first, i / c.chunk * c.chunk);
        if (c.documents) first = std::max<int64_t>(first, p.doc_start.at(b, i));
        return first;
    }
    static double at(const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; }

    struct Pair {
        double z, e_z, y, e_y;
    };
    Pair pair(int64_t b, int64_t h, int64_t i, int64_t j) const {
        const int64_t d = c.head_dim, n = b * c.length + i, m = b * c.length + j, t = i - j;
        const int64_t q_at = h * d, k_at = p.query_cols + h / (c.heads / c.kv_heads) * d;
        const bool far = c.far && t >= c.far_from;
        const std::vector<double>& rows = far ? in.far : in.qkv;
        const int64_t columns = far ? p.far.cols() : p.qkv.cols();
        const double scale = static_cast<float>(1 / std::sqrt(double(d)));
        double z = 0, magnitude = 0, e_faded = 0;
        for (int64_t x = 0; x < d; ++x) {
            const Fading fading(p, in, q_at + x, n, m);
            const double product =
                at(rows, n * columns + q_at + x) * at(rows, m * columns + k_at + x) * fading.factor;
            z += scale * product;
            magnitude += scale * std::abs(product);
            e_faded += fading.error * scale * std::abs(product);
        }
        const double e_z = roundings(double(d) + 6) * magnitude + unit * std::abs(z) + e_faded;
        const double f = c.factor_rows ? at(in.factor, (c.factor_rows == 1 ? 0 : h) * c.tokens() + n) : 1;
        const double w = c.row_square ? at(in.square, n) : 0;
        const double cap = static_cast<float>(c.softcap);
        const double capped = cap > 0 ? cap * std::tanh(z / cap) : z;
        const double e_capped = e_z + (cap > 0 ? e_tanh * std::abs(capped) : 0) + 2 * unit * std::abs(z);
        const auto entry = [&](int64_t of_heads) {
            return (of_heads == 1 ? 0 : h) * p.entries + p.entries - 1 - t;
        };
        double gain = c.tables() ? at(in.gain, entry(c.gain_rows)) : 1;
        if (c.row_square) gain = std::sqrt(std::max(0.0, gain + w));
        const double bias = c.tables() ? at(in.bias, entry(c.bias_rows)) : 0;
        const double forgotten =
            c.forget ? at(in.forget, h * c.tokens() + n) - at(in.forget, h * c.tokens() + m) : 0;
        const double y = gain * f * capped + bias - w / 2 + forgotten;
        const double e_score = std::abs(f) * (e_capped + 4 * unit * std::abs(capped));
        const double e_y = gain * (e_score + 4 * unit * std::abs(f * capped)) +
                           4 * unit * (std::abs(y) + std::abs(bias) + std::abs(w) / 2 + std::abs(forgotten));
        const double e_forget = c.forget ? 0x1p-45 * std::abs(at(in.forget, h * c.tokens() + n)) : 0;
        return {z, e_z, y, e_y + e_forget};
    }

    void add_row(int64_t b, int64_t h, int64_t i, double lse) {
        using enum RowStatistic;
        const int64_t n = b * c.length + i, first = first_key(b, i);
        const auto put = [&](RowStatistic which, int64_t plus, double value, double bound) {
            all.add(((static_cast<int64_t>(which) + plus) * c.heads + h) * c.tokens() + n, value, bound);
        };
        const double none = -std::numeric_limits<double>::infinity();
        double score = none, logit = none, runner_up = none, e_score = 0, e_logit = 0;
        std::vector<Pair> others;
        for (int64_t j = first; j <= i; ++j) {
            const Pair x = pair(b, h, i, j);
            const double e_log = x.e_y + 4 * unit * (std::abs(x.y) + std::abs(lse));
            const double e_p = e_log + e_exp, log = x.y - lse, weight = std::exp(log);
            const double rounded = roundings(chain + 2);
            int64_t k = 0;
            while (i - j >= distance_class_begin[static_cast<size_t>(k) + 1]) ++k;
            put(mass, k, weight, weight * (e_p + rounded));
            put(surprise, k, -weight * log, weight * (std::abs(log) * (e_p + rounded) + e_log));
            put(participation, 0, weight * weight, weight * weight * (2 * e_p + rounded));
            if (j == first) put(first_mass, 0, weight, weight * (e_p + rounded));
            score = std::max(score, x.z), e_score = std::max(e_score, x.e_z);
            runner_up = std::max(runner_up, std::min(logit, x.y));
            logit = std::max(logit, x.y), e_logit = std::max(e_logit, e_log);
            for (int64_t w = 0; w < watched_keys; ++w)
                if (watched_of(c, w, n) == j) put(RowStatistic::watched, w, weight, weight * (e_p + rounded));
            if (j > first && j < i) others.push_back(x);
        }
        put(top_score, 0, score, e_score);
        put(top_logit, 0, logit, e_logit);
        put(top_weight, 0, logit - lse, e_logit);
        put(second_weight, 0, runner_up - lse, e_logit);
        const double sink = c.sink ? at(in.sink, h) : none, share = std::exp(sink - lse);
        put(sink_mass, 0, share,
            std::isinf(sink) ? 0 : share * (e_exp + 4 * unit * (std::abs(sink) + std::abs(lse))));
        put(pairs, 0, double(others.size()), 0);

        double low = 0, high = 0, e_z = 0, sum = 0;
        for (size_t x = 0; x < others.size(); ++x) {
            low = x == 0 ? others[x].z : std::min(low, others[x].z);
            high = x == 0 ? others[x].z : std::max(high, others[x].z);
            e_z = std::max(e_z, others[x].e_z);
            sum += others[x].z;
        }
        if (others.empty()) return;
        const double count = double(others.size()), average = sum / count, r = high - low + 2 * e_z;
        double power[5] = {};
        for (const Pair& x : others)
            for (int k = 2; k <= 4; ++k) power[k] += std::pow(x.z - average, k) / count;
        double e[5] = {};
        for (int k = 1; k <= 4; ++k)
            e[k] = k * std::pow(r, k - 1) * e_z + roundings(chain + k + 2) * std::pow(r, k);
        put(mean, 0, average, e[1] + unit * std::abs(average));
        put(second, 0, power[2], e[2] + 2 * r * e[1]);
        put(third, 0, power[3], e[3] + 3 * r * e[2] + 9 * r * r * e[1]);
        put(fourth, 0, power[4], e[4] + 4 * r * e[3] + 6 * r * r * e[2] + 28 * r * r * r * e[1]);
    }
};

// The statistics of an executed problem.
inline Floats statistics_of(Problem& p, Ops& ops) {
    Floats out(row_statistics * p.c.heads, p.c.tokens(), p.c.tokens() + 3);
    for (int64_t i = 0; i < out.count(); ++i) out[i] = std::numeric_limits<float>::quiet_NaN();
    Ints watched = watched_of(p.c);
    ops.attention_statistics(out.tensor(), p.lse.tensor(), p.part(p.qkv, 0), p.part(p.qkv, 1),
                             watched.tensor(), p.spec());
    CHECK(out.guards_intact());
    return out;
}

// A random combination of everything AttentionSpec can ask; pairs times channels below `budget`.
inline Variant random_statistics_variant(uint64_t seed, int64_t budget) {
    Draw draw(seed, 2);
    Variant c{.seed = seed};
    do {
        const int64_t sizes[] = {4, 5, 8, 16, 20, 31, 32, 64, 96};
        c.head_dim = sizes[draw.below(std::size(sizes))];
        c.batch = 1 + draw.below(2);
        c.kv_heads = 1 + draw.below(2);
        c.heads = c.kv_heads * (1 + draw.below(3));
        c.length = draw.chance(0.1) ? 1 + draw.below(4) : 1 + draw.below(300);
    } while (c.tokens() * c.heads * c.length / 2 * c.head_dim > budget);
    const auto rows = [&] { return draw.chance(0.5) ? c.heads : 1; };
    if (draw.chance(0.4)) c.window = 1 + draw.below(c.length + 10);
    if (draw.chance(0.3)) c.chunk = 1 + draw.below(c.length + 10);
    c.documents = draw.chance(0.3);
    if (draw.chance(0.3)) c.softcap = draw.chance(0.5) ? 0.5 : 30.0;
    if (draw.chance(0.5)) c.factor_rows = rows();
    c.sink = draw.chance(0.4);
    if (draw.chance(0.6)) {
        c.gain_rows = rows();
        c.bias_rows = rows();
        c.row_square = draw.chance(0.3);
    }
    c.far = draw.chance(0.25);
    c.far_from = draw.below(c.length + 5);
    c.forget = draw.chance(0.4);
    return c;
}

}  // namespace longreach::test
