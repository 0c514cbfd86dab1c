// What the gradients of entmax attention are relative to (entmax.h), with s rebuilt from the saved theta:
//
//   delta_i = sum_j s_ij dP_ij / sum_j s_ij,   dP = dO V^T, that of a sink 0       dsink = -sum_i s_i,sink delta_i
//
// and of an alpha that learns, by the derivative of P at fixed scores with the change of theta that keeps the sum 1,
//
//   dP_ij / dalpha = r^2 (P_ij - s_ij / sum_k s_ik) - r (P_ij log P_ij - s_ij / sum_k s_ik sum_k P_ik log P_ik),
//   dalpha = sum_i r^2 (sum_j P_ij dP_ij - delta_i) - r (sum_j P_ij log P_ij dP_ij - delta_i sum_j P_ij log P_ij)
//
// delta_i is not <dO_i, O_i>, so it takes a pass over the scores of its own, 4*d FLOPs per visible pair, 2*d where a panel of queries
// gives a tile of keys no weight. attention_backward.cpp has the pass after it.
// Parallel over (sequence, head, tile of queries).
#include <cmath>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/attention_backward_passes.h"
#include "kernels/cpu/attention_backward_tile.h"
#include "kernels/cpu/entmax.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Sums over the keys for the queries of a tile.
struct MeanSums {
    alignas(64) float products[query_tile] = {};  // of s dP
    alignas(64) float shares[query_tile] = {};    // of s
    // With an alpha that learns: of P dP, P log P and P log P dP, in base 2.
    alignas(64) float weighted[query_tile] = {};
    alignas(64) float logs[query_tile] = {};
    alignas(64) float weighted_logs[query_tile] = {};
};
LONGREACH_INLINE Vec times_log(Vec p) {
    return p * log2(max(p, splat(1e-30f)));
}
LONGREACH_INLINE void add_to(float* sum, Vec x) {
    store(sum, load(sum) + x);
}

// One tile of queries, and what its panels need.
template <class Unit>
struct TileRows {
    const BackwardTile<Unit>& t;
    const QueryTile& q;
    const ScoreRows& scores;
    const TableSlice& slice;
    const Entmax& e;
    MeanSums& sums;
};

// p: S^T to s, or to y - theta with an alpha that learns; false: s is 0 everywhere. Queries of the panel and keys of `range`.
template <class Unit, bool squares, bool masked, bool learns>
bool share_panel(const TileRows<Unit>& r, int64_t panel, const KeyRange& range) {
    const BackwardTile<Unit>& t = r.t;
    bool any = false;
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane, query = r.q.begin + at;
        const Vec theta = load(t.lse + at);
        Vec sum{};
        [[maybe_unused]] Vec logs{};
        for (int64_t j = range.begin; j < range.end; ++j) {
            float* p = t.p + t.score_at(panel, j - range.begin, 0) + lane;
            Vec y = score_of<Form::general>(load(p), r.scores, at, r.slice, query - j - r.slice.lowest, j).y;
            if constexpr (masked) y = mask_unseen(y, j, query, r.q.start + at);
            const Weights w = weights_at<squares>(r.e, y - theta);
            sum += w.s;
            if constexpr (learns) logs += times_log(w.p);
            store(p, learns ? y - theta : w.s);
        }
        any = any || !all_zero(sum);
        add_to(r.sums.shares + at, sum);
        if constexpr (learns) add_to(r.sums.logs + at, logs);
    }
    return any;
}

// Sums with dP.
template <class Unit, bool learns>
void add_gradients(const TileRows<Unit>& r, int64_t panel, int64_t keys) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t row = panel * panel_cols + lane;
        [[maybe_unused]] Vec weighted{}, logs{};
        Vec sum{};
        for (int64_t j = 0; j < keys; ++j) {
            const int64_t at = r.t.score_at(panel, j, 0) + lane;
            const Vec dp = load(r.t.ds + at);
            Vec s = load(r.t.p + at);
            if constexpr (learns) {
                const Weights w = weights_at<false>(r.e, s);
                s = w.s;
                weighted = fma(w.p, dp, weighted);
                logs = fma(times_log(w.p), dp, logs);
            }
            sum = fma(s, dp, sum);
        }
        add_to(r.sums.products + row, sum);
        if constexpr (learns) {
            add_to(r.sums.weighted + row, weighted);
            add_to(r.sums.weighted_logs + row, logs);
        }
    }
}

// Keys [key, key_end), a tile.
template <class Unit, bool squares, bool learns>
void add_tile(const TileRows<Unit>& r, const KeyRows& sides, int64_t key, int64_t key_end) {
    const BackwardTile<Unit>& t = r.t;
    for (int64_t panel = 0; panel < query_panels; ++panel)
        for (int64_t begin = key; begin < key_end; begin += score_keys<Unit>) {
            const KeyRange range(r.q, panel, begin, smaller(begin + score_keys<Unit>, key_end),
                                 step_floats<Unit>);
            if (range.empty()) continue;
            const int64_t keys = range.end - range.begin;
            const auto multiply = [&](float* to, const LeftRows& left, const float* right) {
                Core<Unit>::template multiply_to<false>(
                    to + t.score_at(panel, 0, 0), score_row<Unit>, left.from(range.begin - key),
                    right + panel * filled_units<Unit>(t.width) * panel_cols, units_of<Unit>(t.width), keys);
            };
            multiply(t.p, sides.k, t.q_transposed);
            const auto share = range.masked ? share_panel<Unit, squares, true, learns>
                                            : share_panel<Unit, squares, false, learns>;
            if (!share(r, panel, range)) continue;
            multiply(t.ds, sides.v, t.dout_transposed);
            add_gradients<Unit, learns>(r, panel, keys);
        }
}

// What alpha gets of the rows of a tile from r on; p: the weight of a sink.
Vec alpha_rows(const MeanSums& sums, const Entmax& e, int64_t r, Vec delta, Vec p) {
    const Vec power = splat(1.0f / e.part), logs = load(sums.logs + r) + times_log(p);
    return power * (power * (load(sums.weighted + r) - delta) -
                    splat(ln_2) * (load(sums.weighted_logs + r) - delta * logs));
}

// to [H] += the sums of rows [H, N], in f64, times the derivative of alpha.
void add_alphas(const Tensor& to, const float* rows, const AttentionSpec& spec, Pool& pool) {
    const int64_t tokens = spec.batch * spec.length;
    for_items(pool, spec.heads, tokens, [&](int64_t h) {
        double sum = 0;
        for (int64_t n = 0; n < tokens; ++n) sum += double{rows[h * tokens + n]};
        to.f32()[h] += static_cast<float>(sum * Entmax(spec, h).by_logit);
    });
}

}  // namespace

template <class Unit>
void CpuOps::entmax_deltas(float* delta, float* memory, float* alphas, const AttentionTensors& of,
                           const AttentionGradients& gradients, const AttentionSpec& spec) {
    check_entmax(spec);
    const int64_t d = spec.head_dim, length = spec.length, tokens = spec.batch * length;
    const int64_t tiles = (length + query_tile - 1) / query_tile, group = spec.heads / spec.kv_heads;
    const bool learns(gradients.alpha_logit);
    check(!learns || spec.alpha_logit, "attention_backward: gradient of an alpha that does not learn");
    const auto sum_tile = learns                    ? add_tile<Unit, false, true>
                          : Entmax(spec, 0).squares ? add_tile<Unit, true, false>
                                                    : add_tile<Unit, false, false>;
    // The longest tiles of a head come first.
    pool_.run(spec.batch * spec.heads * tiles, [&](int64_t i, int thread) {
        [[maybe_unused]] const typename Core<Unit>::Ready ready;
        const int64_t head = i / tiles % spec.heads, first_row = i / tiles / spec.heads * length;
        const auto part = [&](const Tensor& x, int64_t which) {
            return x.row_range(first_row, length).col_range(which * d, d);
        };
        const QueryTile q((tiles - 1 - i % tiles) * query_tile, length,
                          spec.row_start ? spec.row_start.i32() + first_row : nullptr);
        const int64_t token = first_row + q.begin, rows = q.end - q.begin;
        const float* const theta = of.lse.f32() + head * of.lse.row_stride + token;
        const ScoreRows scores(spec, head, token, rows);
        BackwardTile<Unit> t(scratch_of(thread), d, false, false);
        t.load_queries(q, part(of.q, head), part(of.dout, head), theta, theta, scores, false);
        const TableSlice::Tables tables(spec, head);
        const double* sums_by_token = sums_of_head(spec, head, first_row);
        TableSlice slice;
        const Entmax e(spec, head);
        MeanSums sums;
        const Tensor k = part(of.k, head / group), v = part(of.v, head / group);
        float* const left = memory + thread * key_tile * 2 * LeftRows::floats<Unit>(d);
        for (int64_t key = q.first_key() / key_tile * key_tile; key < q.end; key += key_tile) {
            const int64_t key_end = smaller(key + key_tile, q.end);
            if (tables.gain) slice.cut(tables, q.begin, key, key_end);
            if (sums_by_token) slice.cut_forget(sums_by_token, key, key_end);
            const KeyRows sides{
                .begin = key,
                .k = LeftRows::of<Unit>(left, k, key, key_end),
                .v = LeftRows::of<Unit>(left + key_tile * LeftRows::floats<Unit>(d), v, key, key_end)};
            sum_tile(TileRows<Unit>{t, q, scores, slice, e, sums}, sides, key, key_end);
        }
        for (int64_t r = 0; r < rows; r += lanes) {
            const Weights of_sink = weights_at(e, splat(e.sink) - load(t.lse + r));
            const Vec mean = load(sums.products + r) / (load(sums.shares + r) + of_sink.s);
            const int64_t at = head * tokens + token + r;
            const int count = static_cast<int>(smaller(lanes, rows - r));
            store_first(delta + at, mean, count);
            if (learns) store_first(alphas + at, alpha_rows(sums, e, r, mean, of_sink.p), count);
        }
    });
    if (learns) add_alphas(gradients.alpha_logit, alphas, spec, pool_);
    if (!gradients.sink) return;
    add_sinks(gradients.sink, of.lse, delta, pool_, [&](int64_t head, Vec theta) {
        const Entmax e(spec, head);  // P is at most 1; lanes past the end would hold more
        return weights_at(e, min(splat(1.0f / e.slope), splat(e.sink) - theta * splat(log2_e))).s;
    });
}

template void CpuOps::entmax_deltas<PlainUnit>(float*, float*, float*, const AttentionTensors&,
                                               const AttentionGradients&, const AttentionSpec&);
#if defined(LONGREACH_ISA_BF16)
template void CpuOps::entmax_deltas<Bf16Unit>(float*, float*, float*, const AttentionTensors&,
                                              const AttentionGradients&, const AttentionSpec&);
#endif
#if defined(LONGREACH_ISA_AVX512)
template void CpuOps::entmax_deltas<TileUnit>(float*, float*, float*, const AttentionTensors&,
                                              const AttentionGradients&, const AttentionSpec&);
#endif

#include "kernels/cpu/isa_end.h"
