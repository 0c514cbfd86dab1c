// Statistics of attention by row: RowStatistic of every query and head.
//
// A second pass over the scores with the lse of the first, so each score gives its probability at once. Tiles
// and scores are those of attention.cpp, except that queries are packed with the scale alone: the raw score z
// is also needed, and a row factor of 0 must not hide it. 2*d FLOPs and one exp2 per visible pair; a far
// pair's scores are computed in addition to the near ones and chosen by lane.
// Sums are f32 over the keys of one tile and f64 over tiles. Moments are about a centre of the row, the mean
// over its first tile, which is within a few deviations of the row's mean.
// Scores are f32 products here whatever the precision: with bf16, weights differ from those of attention by
// the rounding of its inputs.
// With stick-breaking, tiles and keys are visited from near to far and weights are rebuilt without the lse.
// Parallel over (sequence, head, tile of queries).
#include <cmath>
#include <cstring>
#include <numbers>
#include <optional>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/channel_decay.h"
#include "kernels/cpu/entmax.h"
#include "kernels/cpu/stick_breaking.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Logarithms of weights that are 0 or of masked pairs: 2^-1000 is 0 in f32, and times it gives 0.
inline constexpr float log_of_nothing = -1000.0f;

// Buffers of one tile, pieces of the thread's scratch; scores and weights hold one panel, transposed.
struct StatisticsTile {
    float *queries, *far_queries;  // [query_panels][d][panel_cols], times the scale
    float *scores, *far_scores;    // [key_tile][panel_cols]: z
    float* weights;                // likewise: P
    float* terms;                  // likewise: P log2 P

    StatisticsTile(float* scratch, int64_t width) {
        queries = scratch;
        far_queries = queries + query_tile * width;
        scores = far_queries + query_tile * width;
        far_scores = scores + key_tile * panel_cols;
        weights = far_scores + key_tile * panel_cols;
        terms = weights + key_tile * panel_cols;
    }
    static int64_t floats(int64_t width) { return 2 * query_tile * width + 4 * key_tile * panel_cols; }
};

// Sums over the keys for the queries of a tile.
struct RowSums {
    alignas(64) double mass[distance_classes][query_tile] = {};
    alignas(64) double terms[distance_classes][query_tile] = {};  // of P log2 P
    alignas(64) double squares[query_tile] = {};                  // of P
    alignas(64) double powers[4][query_tile] = {};                // of z - centre
    alignas(64) float centre[query_tile] = {};
    alignas(64) float centred[query_tile] = {};  // 1 where there is a centre
    alignas(64) float top_score[query_tile];
    alignas(64) float top_logit[query_tile];  // times log2(e)
    alignas(64) float second_logit[query_tile];
    alignas(64) float top_log[query_tile];  // of weights that are not a softmax's, base 2
    alignas(64) float second_log[query_tile];
    alignas(64) float broken[query_tile] = {};
    alignas(64) float support[query_tile] = {};  // keys with P > 0, of entmax
    alignas(64) float first_mass[query_tile] = {};
    float watched_mass[watched_keys][query_tile] = {};
    int32_t watched[watched_keys][query_tile];  // key; -1: none
    alignas(64) float lse[query_tile] = {};     // times log2(e)
    alignas(64) float ratio[query_tile];        // times z: what score_of takes
    Entmax entmax;

    // token: the first of the tile.
    RowSums(const AttentionSpec& spec, const ScoreRows& rows, const float* lse_of_rows, const Tensor& keys,
            int64_t token, int64_t count, const Entmax& rule)
        : entmax(rule) {
        for (int64_t i = 0; i < query_tile; ++i) {
            top_score[i] = top_logit[i] = second_logit[i] = top_log[i] = second_log[i] = -__builtin_inff();
            ratio[i] = rows.capped ? 1.0f / spec.softcap : log2_e * rows.factor[i];
            if (i < count) lse[i] = lse_of_rows[i] * log2_e;
            for (int64_t w = 0; w < watched_keys; ++w)
                watched[w][i] = keys && i < count ? keys.i32()[w * keys.row_stride + token + i] : -1;
        }
    }
};

// The lanes' sums, added to those of their rows.
LONGREACH_INLINE void add_wide(double* to, Vec sums) {
    alignas(64) float narrow[lanes];
    store(narrow, sums);
    for (int i = 0; i < lanes; i += half_lanes) {
        VecDouble* at = reinterpret_cast<VecDouble*>(to + i);
        *at += widen(narrow + i);
    }
}

// The lanes of a panel that are worked on together: query positions, and where their rows lie in the tile.
struct Lanes {
    int64_t at, query;  // of lane 0: within the tile, position
    const int32_t* start;
    LONGREACH_INLINE VecInt queries() const { return static_cast<int32_t>(query) + lane_index(); }
    LONGREACH_INLINE VecInt first() const { return *reinterpret_cast<const VecInt*>(start); }
};
LONGREACH_INLINE VecInt every_lane(int64_t x) {
    return static_cast<int32_t>(x) - VecInt{};
}

// Weights and their terms from the scores of the keys of `range`; maxima and squares on the way.
template <Form form>
void weigh(RowSums& r, const StatisticsTile& t, const ScoreRows& rows, const Lanes& l, int64_t lane,
           const KeyRange& range, const TableSlice& slice) {
    const Vec lse = load(r.lse + l.at), ratio = load(r.ratio + l.at);
    Vec top_score = load(r.top_score + l.at), top_logit = load(r.top_logit + l.at), squares{};
    Vec second_logit = load(r.second_logit + l.at);
    for (int64_t j = range.begin; j < range.end; ++j) {
        const int64_t cell = (j - range.begin) * panel_cols + lane;
        const Vec z = load(t.scores + cell);
        const Vec y =
            mask_unseen(score_of<form>(z * ratio, rows, l.at, slice, l.query - j - slice.lowest, j).y, j,
                        l.query, l.start);
        top_score = max(top_score, mask_unseen(z, j, l.query, l.start));
        second_logit = max(second_logit, min(top_logit, y));
        top_logit = max(top_logit, y);
        const Vec log = max(splat(log_of_nothing), y - lse);
        const Vec p = exp2(log);
        squares += p * p;
        store(t.weights + cell, p);
        store(t.terms + cell, p * log);
    }
    store(r.top_score + l.at, top_score);
    store(r.top_logit + l.at, top_logit);
    store(r.second_logit + l.at, second_logit);
    add_wide(r.squares + l.at, squares);
}

// The same of entmax.
void weigh_entmax(RowSums& r, const StatisticsTile& t, const ScoreRows& rows, const Lanes& l, int64_t lane,
                  const KeyRange& range, const TableSlice& slice) {
    const Vec theta = load(r.lse + l.at), ratio = load(r.ratio + l.at), none = splat(-__builtin_inff());
    const Entmax e = r.entmax;
    Vec top_score = load(r.top_score + l.at), top_logit = load(r.top_logit + l.at);
    Vec top_log = load(r.top_log + l.at), second_log = load(r.second_log + l.at), squares{};
    Vec support = load(r.support + l.at);
    for (int64_t j = range.begin; j < range.end; ++j) {
        const int64_t cell = (j - range.begin) * panel_cols + lane;
        const Vec z = load(t.scores + cell);
        const Vec y = mask_unseen(
            score_of<Form::general>(z * ratio, rows, l.at, slice, l.query - j - slice.lowest, j).y, j,
            l.query, l.start);
        top_score = max(top_score, mask_unseen(z, j, l.query, l.start));
        top_logit = max(top_logit, y);
        const Vec p = weights_at(e, y - theta).p;
        const Vec log = p > Vec{} ? log2(p) : none;
        second_log = max(second_log, min(top_log, log));
        top_log = max(top_log, log);
        squares += p * p;
        support += p > Vec{} ? splat(1.0f) : Vec{};
        store(t.weights + cell, p);
        store(t.terms + cell, p * max(splat(log_of_nothing), log));
    }
    store(r.top_score + l.at, top_score);
    store(r.top_logit + l.at, top_logit);
    store(r.top_log + l.at, top_log);
    store(r.second_log + l.at, second_log);
    store(r.support + l.at, support);
    add_wide(r.squares + l.at, squares);
}

// The same of a stick.
void weigh_sticks(RowSums& r, const StatisticsTile& t, const ScoreRows& rows, const Lanes& l, int64_t lane,
                  const KeyRange& range, const TableSlice& slice) {
    const Vec ratio = load(r.ratio + l.at), before = load(r.broken + l.at), none = splat(-__builtin_inff());
    Vec top_score = load(r.top_score + l.at), top_logit = load(r.top_logit + l.at);
    Vec top_log = load(r.top_log + l.at), second_log = load(r.second_log + l.at), squares{}, here{};
    for (int64_t j = range.end - 1; j >= range.begin; --j) {
        const int64_t cell = (j - range.begin) * panel_cols + lane;
        const Vec z = load(t.scores + cell);
        const Vec y = score_of<Form::general>(z * ratio, rows, l.at, slice, l.query - j - slice.lowest, j).y;
        const VecInt seen = sees_before(j, l.query, l.start);
        const Break b = break_at(y);
        const Vec log = max(splat(log_of_nothing), b.taken - (before + here));
        const Vec p = seen ? exp2(log) : Vec{};
        top_score = max(top_score, seen ? z : none);
        top_logit = max(top_logit, seen ? y : none);
        second_log = max(second_log, min(top_log, seen ? log : none));
        top_log = max(top_log, seen ? log : none);
        here += seen ? b.left : Vec{};
        squares += p * p;
        store(t.weights + cell, p);
        store(t.terms + cell, p * log);
    }
    store(r.broken + l.at, before + here);
    store(r.top_score + l.at, top_score);
    store(r.top_logit + l.at, top_logit);
    store(r.top_log + l.at, top_log);
    store(r.second_log + l.at, second_log);
    add_wide(r.squares + l.at, squares);
}

// Sums by distance, and the weights of the first visible key and of those that are watched.
void sort_by_distance(RowSums& r, const StatisticsTile& t, const Lanes& l, int64_t lane,
                      const KeyRange& range) {
    for (size_t c = 0; c < distance_classes; ++c) {
        const int64_t nearest = distance_class_begin[c], behind = distance_class_begin[c + 1];
        // Keys that are in the class for some lane; the earliest ones for lane 0, the latest for the last.
        const int64_t begin = larger(range.begin, l.query - behind + 1);
        const int64_t end = smaller(range.end, l.query + lanes - nearest);
        if (begin >= end) continue;
        const VecInt first = l.queries() - static_cast<int32_t>(behind - 1);
        const VecInt last = l.queries() - static_cast<int32_t>(nearest);
        Vec mass{}, terms{};
        for (int64_t j = begin; j < end; ++j) {
            const int64_t cell = (j - range.begin) * panel_cols + lane;
            const VecInt inside = (every_lane(j) >= first) & (every_lane(j) <= last);
            mass += inside ? load(t.weights + cell) : Vec{};
            terms += inside ? load(t.terms + cell) : Vec{};
        }
        add_wide(r.mass[c] + l.at, mass);
        add_wide(r.terms[c] + l.at, terms);
    }
    const int64_t begin = larger(range.begin, l.start[0]);
    const int64_t end = smaller(range.end, int64_t{l.start[lanes - 1]} + 1);
    for (int64_t j = begin; j < end; ++j) {
        const Vec p = load(t.weights + (j - range.begin) * panel_cols + lane);
        store(r.first_mass + l.at, load(r.first_mass + l.at) + (every_lane(j) == l.first() ? p : Vec{}));
    }
    for (int64_t w = 0; w < watched_keys; ++w)
        for (int64_t i = 0; i < lanes; ++i) {
            const int64_t j = r.watched[w][l.at + i];
            if (j >= range.begin && j < range.end)  // a masked key has weight 0
                r.watched_mass[w][l.at + i] = t.weights[(j - range.begin) * panel_cols + lane + i];
        }
}

// Powers of z - centre over the keys after the first visible one and before the query itself.
void add_powers(RowSums& r, const StatisticsTile& t, const Lanes& l, int64_t lane, const KeyRange& range) {
    const VecInt first = l.first(), query = l.queries();
    const auto counts = [&](int64_t j) __attribute__((always_inline)) {
        return (every_lane(j) > first) & (every_lane(j) < query);
    };
    const float* column = t.scores + lane;
    Vec centred = load(r.centred + l.at), centre = load(r.centre + l.at);
    if (reduce_add(centred) < static_cast<float>(lanes)) {
        Vec sum{}, count{};
        for (int64_t j = range.begin; j < range.end; ++j) {
            sum += counts(j) ? load(column + (j - range.begin) * panel_cols) : Vec{};
            count += counts(j) ? splat(1.0f) : Vec{};
        }
        const VecInt fresh = (centred == Vec{}) & (count > Vec{});
        centre = fresh ? sum / max(splat(1.0f), count) : centre;
        centred = fresh ? splat(1.0f) : centred;
        store(r.centre + l.at, centre);
        store(r.centred + l.at, centred);
    }
    Vec powers[4] = {};
    for (int64_t j = range.begin; j < range.end; ++j) {
        const Vec z = load(column + (j - range.begin) * panel_cols);
        const Vec x = counts(j) ? z - centre : Vec{};
        const Vec square = x * x;
        powers[0] += x;
        powers[1] += square;
        powers[2] += square * x;
        powers[3] += square * square;
    }
    for (int power = 0; power < 4; ++power) add_wide(r.powers[power] + l.at, powers[power]);
}

using Weigh = void (*)(RowSums&, const StatisticsTile&, const ScoreRows&, const Lanes&, int64_t,
                       const KeyRange&, const TableSlice&);

__attribute__((noinline)) void multiply_scores(float* to, const Tensor& k, const float* queries,
                                               const KeyRange& range) {
    multiply_panel<PlainUnit>(
        k.f32() + range.begin * k.row_stride, k.row_stride, 1, queries, k.cols(),
        range.end - range.begin, [=](int64_t row, Vec left, Vec right) __attribute__((always_inline)) {
            store(to + row * panel_cols, left);
            store(to + row * panel_cols + lanes, right);
        });
}

// One column of the statistics: row s H + h, from the tile's first token on.
struct Columns {
    const Tensor& statistics;
    int64_t heads, head, token;
    float& at(RowStatistic which, int64_t plus, int64_t row) const {
        const int64_t s = static_cast<int64_t>(which) + plus;
        return statistics.f32()[(s * heads + head) * statistics.row_stride + token + row];
    }
};

// The weight that goes to no key: the rest of a stick, or that of the sink of a head.
float mass_of_rest(const AttentionSpec& s, int64_t head, float lse) {
    if (s.normaliser == Normaliser::stick_breaking) return std::exp(lse);
    if (!s.sink) return 0.0f;
    if (s.normaliser == Normaliser::softmax) return std::exp(s.sink.f32()[head] - lse);
    const Entmax e(s, head);
    return weights_at(e, splat(e.sink - lse * log2_e)).p[0];
}

void write_rows(const Columns& out, const RowSums& r, const QueryTile& q, const float* lse,
                const AttentionSpec& spec) {
    using enum RowStatistic;
    const bool softmax = spec.normaliser == Normaliser::softmax;
    for (int64_t i = 0; i < q.end - q.begin; ++i) {
        out.at(top_score, 0, i) = r.top_score[i];
        out.at(top_logit, 0, i) = r.top_logit[i] * ln_2;
        out.at(top_weight, 0, i) = (softmax ? r.top_logit[i] - r.lse[i] : r.top_log[i]) * ln_2;
        out.at(second_weight, 0, i) = (softmax ? r.second_logit[i] - r.lse[i] : r.second_log[i]) * ln_2;
        out.at(participation, 0, i) = static_cast<float>(r.squares[i]);
        out.at(first_mass, 0, i) = r.first_mass[i];
        out.at(sink_mass, 0, i) = mass_of_rest(spec, out.head, lse[i]);
        const double n = static_cast<double>(larger(0, q.begin + i - q.start[i] - 1));
        const double each = n > 0 ? 1 / n : 0;
        // About the centre, then about the mean.
        const double a = r.powers[0][i] * each, b = r.powers[1][i] * each, c = r.powers[2][i] * each,
                     d = r.powers[3][i] * each;
        out.at(pairs, 0, i) = static_cast<float>(n);
        out.at(mean, 0, i) = static_cast<float>(double{r.centre[i]} + a);
        out.at(second, 0, i) = static_cast<float>(b - a * a);
        out.at(third, 0, i) = static_cast<float>(c - 3 * a * b + 2 * a * a * a);
        out.at(fourth, 0, i) = static_cast<float>(d - 4 * a * c + 6 * a * a * b - 3 * a * a * a * a);
        out.at(support, 0, i) = r.support[i];
        for (int64_t k = 0; k < distance_classes; ++k) {
            out.at(mass, k, i) = static_cast<float>(r.mass[k][i]);
            out.at(surprise, k, i) = static_cast<float>(-r.terms[k][i] * std::numbers::ln2);
        }
        for (int64_t w = 0; w < watched_keys; ++w) out.at(watched, w, i) = r.watched_mass[w][i];
    }
}

}  // namespace

void CpuOps::do_attention_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                                     const Tensor& watched, const AttentionSpec& spec) {
    const int64_t d = spec.head_dim, length = spec.length, group = spec.heads / spec.kv_heads;
    check(StatisticsTile::floats(d) <= scratch_per_thread_, "attention statistics: head size {} is too large",
          d);
    check_attention(spec);
    if (spec.channel_sums) check_channel_memory(spec, k);
    check(statistics.rows() == row_statistics * spec.heads && statistics.cols() == spec.batch * length,
          "attention statistics are {}x{}", statistics.rows(), statistics.cols());
    check(!watched || (watched.rows() == watched_keys && watched.cols() == spec.batch * length),
          "watched keys are {}x{}", watched.rows(), watched.cols());
    const int64_t tiles = (length + query_tile - 1) / query_tile;
    const int32_t* row_start = spec.row_start ? spec.row_start.i32() : nullptr;
    const Form form = form_of(spec);
    const bool sticks = spec.normaliser == Normaliser::stick_breaking;
    if (sticks) check_sticks(spec);
    const bool entmax = spec.normaliser == Normaliser::entmax;
    if (entmax) check_entmax(spec);
    const Weigh weigh_form = sticks                   ? weigh_sticks
                             : entmax                 ? weigh_entmax
                             : form == Form::general  ? weigh<Form::general>
                             : form == Form::distance ? weigh<Form::distance>
                             : form == Form::forget   ? weigh<Form::forget>
                                                      : weigh<Form::plain>;
    pool_.run(spec.batch * spec.heads * tiles, [&](int64_t item, int thread) {
        const int64_t sequence = item / tiles / spec.heads, head = item / tiles % spec.heads;
        const int64_t first_row = sequence * length;
        const QueryTile tile((tiles - 1 - item % tiles) * query_tile, length,
                             row_start ? row_start + first_row : nullptr);
        const auto part = [&](const Tensor& t, int64_t which) {
            return t ? t.row_range(first_row, length).col_range(which * d, d) : Tensor();
        };
        const Tensor keys = part(k, head / group), far_keys = part(spec.far_keys, head / group);
        const int64_t token = first_row + tile.begin, count = tile.end - tile.begin;
        const StatisticsTile t(scratch_of(thread), d);
        alignas(64) float scales[query_tile];
        for (float& scale : scales) scale = spec.scale;
        const auto pack = [&](float* to, const Tensor& from) {
            pack_queries_transposed<PlainUnit>(to, from.f32() + tile.begin * from.row_stride, from.row_stride,
                                               count, d, scales);
        };
        pack(t.queries, part(q, head));
        if (far_keys) pack(t.far_queries, part(spec.far_queries, head));

        const float* lse_of_rows = lse.f32() + head * lse.row_stride + token;
        const ScoreRows rows(spec, head, token, count);
        const TableSlice::Tables tables(spec, head);
        const double* forget = sums_of_head(spec, head, first_row);
        std::optional<DecayedHead> decayed;
        if (spec.channel_sums) decayed.emplace(spec, k, sequence * spec.heads + head);
        TableSlice slice;
        RowSums sums(spec, rows, lse_of_rows, watched, token, count, Entmax(spec, head));
        const int64_t first_key = tile.first_key(), last = (tile.end - 1 - first_key) / key_tile;
        for (int64_t number = 0; number <= last; ++number) {
            const int64_t key = first_key + (sticks ? last - number : number) * key_tile;
            const int64_t key_end = smaller(key + key_tile, tile.end);
            if (tables.gain) slice.cut(tables, tile.begin, key, key_end);
            if (forget) slice.cut_forget(forget, key, key_end);
            for (int64_t panel = 0; panel < query_panels; ++panel) {
                const KeyRange range(tile, panel, key, key_end, 1);
                if (range.empty()) continue;
                const float* queries = t.queries + panel * d * panel_cols;
                const int64_t query = tile.begin + panel * panel_cols;
                if (decayed)
                    multiply_pairs(t.scores, *decayed, queries, query, smaller(panel_cols, tile.end - query),
                                   range.begin, range.end);
                else
                    multiply_scores(t.scores, keys, queries, range);
                if (far_keys)
                    multiply_scores(t.far_scores, far_keys, t.far_queries + panel * d * panel_cols, range);
                for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
                    const int64_t at = panel * panel_cols + lane;
                    const Lanes l{at, tile.begin + at, tile.start + at};
                    const VecInt last_far = l.queries() - static_cast<int32_t>(spec.far_from);
                    for (int64_t j = range.begin; far_keys && j < range.end; ++j) {
                        const int64_t cell = (j - range.begin) * panel_cols + lane;
                        store(t.scores + cell,
                              every_lane(j) <= last_far ? load(t.far_scores + cell) : load(t.scores + cell));
                    }
                    weigh_form(sums, t, rows, l, lane, range, slice);
                    sort_by_distance(sums, t, l, lane, range);
                    add_powers(sums, t, l, lane, range);
                }
            }
        }
        write_rows({statistics, spec.heads, head, token}, sums, tile, lse_of_rows, spec);
    });
}

#include "kernels/cpu/isa_end.h"
