// Gradients of stick-breaking attention. Per visible pair, with P rebuilt as in the forward pass:
//
//   dW_ij = P_ij <dO_i, v_j>
//   dy_ij = dW_ij - s(y_ij) C_ij
//   C_ij  = sum over visible j' <= j of dW_ij' = delta_i - sum over j < k < i of dW_ik
//   delta_i = <dO_i, O_i>            (a score takes from the stick of every farther key)
//   dV = P^T dO      dK = scale dS^T f Q      dQ = scale f dS K,     dS from dy as in attention_backward.cpp
//
// 10*d FLOPs per visible pair, two exp2 and a logarithm. Overwrites dq, dk and dv.
//
// Both sums over keys run from near to far, so a tile of queries meets its tiles of keys in that order and is
// then done with dQ, df included. Parallel over (sequence, key/value head, segment of queries); an item sums
// dK and dV of all keys its queries see in memory of its own, and a last pass adds the items in order. The
// number of segments is a function of the shape, so no bit depends on the threads.
#include <cstring>

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
#include "kernels/cpu/stick_breaking.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// The workspace: delta [H, N]; per thread one tile of keys as a right side, and with its values as left sides; per item dK and dV [T, padded] of
// its sequence and key/value head, and its tables by distance.
struct StickPlan {
    Plan plan;             // segments, and sizes of delta and tables
    int64_t segment_rows;  // queries of a segment: whole tiles, so that the last segments may be empty
    int64_t thread_floats, item_floats, items;
    int64_t keys_at, sums_at, tables_at, floats;

    template <class Unit>
    StickPlan(const AttentionSpec& s, const AttentionGradients& wanted, int threads, Unit unit)
        : plan(s, wanted, threads, unit) {
        segment_rows = round_up(plan.segment_keys, query_tile);
        thread_floats = key_tile * (plan.padded + plan.row_floats);
        item_floats = 2 * (s.length + Core<Unit>::rows_together - 1) * plan.padded;
        items = plan.segments * s.batch * s.kv_heads;
        keys_at = plan.delta_floats;
        sums_at = keys_at + threads * thread_floats;
        tables_at = sums_at + items * item_floats;
        floats = tables_at + plan.table_floats;
    }
};

// Running sums of the queries of a tile, over the keys nearer than the next.
struct StickSums {
    alignas(64) float broken[query_tile] = {};  // of b
    alignas(64) float given[query_tile] = {};   // of dW
};

// p: S^T to P^T; ds: dP^T to dS^T. Queries of the panel and keys of `range`, a block, from the last to the first.
template <class Unit, bool masked>
void differentiate_sticks(const BackwardTile<Unit>& t, StickSums& sums, const QueryTile& q,
                          const ScoreRows& rows, int64_t panel, const KeyRange& range, int64_t first_key,
                          const TableSlice& slice) {
    float *const to_p = t.p, *const to_ds = t.ds, *const to_dl = t.dl, *const to_dlz = t.dlz;
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t query = q.begin + at;
        const Vec before = load(sums.broken + at), delta = load(t.delta + at);
        Vec here{}, given = load(sums.given + at), dfactor{};
        for (int64_t j = range.end - 1; j >= range.begin; --j) {
            const int64_t where = t.score_at(panel, j - first_key, range.begin - first_key) + lane;
            const int64_t pair = (j - first_key) * score_stride + at;
            const Score s =
                score_of<Form::general>(load(to_p + where), rows, at, slice, query - j - slice.lowest, j);
            const Break b = break_at(s.y);
            const Vec share = splat(1.0f) / (splat(1.0f) + b.small);
            const Vec sigma = s.y < Vec{} ? share * b.small : share;
            Vec p = exp2(b.taken - (before + here)), left = b.left;
            Vec dw = p * load(to_ds + where);
            Vec dl = dw - sigma * (delta - given);
            if constexpr (masked) {
                const VecInt seen = sees_before(j, query, q.start + at);
                p = seen ? p : Vec{};
                dw = seen ? dw : Vec{};
                dl = seen ? dl : Vec{};
                left = seen ? left : Vec{};
            }
            here += left;
            given += dw;
            Vec ds = dl * s.gain;
            if (to_dl) store(to_dl + pair, dl);
            if (to_dlz) store(to_dlz + pair, dl * s.z);
            if (rows.capped) {
                dfactor = fma(ds, s.tangent, dfactor);
                ds *= load(rows.factor + at) * (splat(1.0f) - s.tangent * s.tangent);
            }
            store(to_p + where, p);
            store(to_ds + where, ds);
        }
        store(sums.broken + at, before + here);
        store(sums.given + at, given);
        store(t.dfactor + at, load(t.dfactor + at) + dfactor);
    }
}

// What one item reads and writes: tensors of one sequence ([T, columns]).
struct StickItem {
    const AttentionSpec& spec;
    const Plan& plan;
    Tensor dq, dout, q, k, v;  // k, v: of the key/value head
    const float *lse, *delta;  // [H, N], from the sequence on
    float* dfactor;            // likewise; null: not wanted
    int64_t head_stride, dfactor_stride;
    int64_t first_token;
    const int32_t* row_start;  // of this sequence, or null
    float *scratch, *packed;   // of this thread
    float *dk, *dv;            // [T, padded] of this item, dk without scale
    float* tables;             // of this item: rows of gains, then of biases

    float* table(int64_t first, int64_t rows, int64_t member) const {
        return rows ? tables + (first + (rows == 1 ? 0 : member)) * plan.table_span + table_margin : nullptr;
    }
};

// One tile of keys [key, key_end) against one tile of queries; false: every stick is used up.
template <class Unit>
bool stick_tile(const StickItem& item, const BackwardTile<Unit>& t, StickSums& sums, const QueryTile& q,
                const ScoreRows& rows, const TableSlice& slice, int64_t key, int64_t key_end) {
    bool any = false;
    float* left = item.packed + key_tile * t.padded;
    const KeyRows sides{
        .begin = key,
        .k = LeftRows::of<Unit>(left, item.k, key, key_end),
        .v = LeftRows::of<Unit>(left + key_tile * item.plan.row_floats / 2, item.v, key, key_end)};
    PanelKeys seen;
    for (int64_t panel = 0; panel < query_panels; ++panel) {
        const bool done =
            q.begin + panel * panel_cols >= q.end || all_used_up(sums.broken + panel * panel_cols);
        any = any || !done;
        seen.of[panel] = panel > 0 ? seen.of[panel - 1] : 0;
        for (int64_t begin = key + (key_end - 1 - key) / score_keys<Unit> * score_keys<Unit>; begin >= key;
             begin -= score_keys<Unit>) {
            const int64_t end = smaller(begin + score_keys<Unit>, key_end);
            const KeyRange range(q, panel, begin, end, step_floats<Unit>);
            if (done || range.empty()) {
                clear_panel(t, panel, begin, end, key);
                continue;
            }
            score_panel(t, panel, range, key, sides);
            if (masked_before(q, panel, range))
                differentiate_sticks<Unit, true>(t, sums, q, rows, panel, range, key, slice);
            else
                differentiate_sticks<Unit, false>(t, sums, q, rows, panel, range, key, slice);
            t.round_panel(panel, range.begin - key, range.end - key);
            clear_panel(t, panel, begin, range.begin, key);
            clear_panel(t, panel, range.end, end, key);
            seen.of[panel] = larger(seen.of[panel], range.end - key);
        }
    }
    if (!any) return false;
    pack_keys_for_dq<Unit>(item.packed, item.k.f32() + key * item.k.row_stride, item.k.row_stride,
                           key_end - key, item.k.cols());
    add_products(t, item.dv + key * t.padded, item.dk + key * t.padded, item.packed, seen, q.end - q.begin);
    return true;
}

// dq = scale f times the tile's sums; df, without a softcap from <dQ / f, q>.
template <class Unit>
void finish_queries(const StickItem& item, const BackwardTile<Unit>& t, const QueryTile& q,
                    const ScoreRows& rows, int64_t head, const Tensor& queries) {
    const int64_t d = item.spec.head_dim;
    const float scale = item.spec.scale;
    const float* dq = t.rows_of_dq();
    for (int64_t r = 0; r < q.end - q.begin; ++r) {
        const float* from = dq + r * t.padded;
        const float* query = queries.f32() + (q.begin + r) * queries.row_stride;
        float* to = item.dq.f32() + (q.begin + r) * item.dq.row_stride + head * d;
        const Vec factor = splat(rows.capped ? scale : scale * rows.factor[r]);
        Sums product;
        for_parts(d, [&](int p, int64_t c, auto n) {
            const Vec sum = load(from + c, n);
            product.part[p] = fma(sum, load(query + c, n), product.part[p]);
            store(to + c, sum * factor, n);
        });
        if (item.dfactor)
            item.dfactor[head * item.dfactor_stride + q.begin + r] =
                rows.capped ? t.dfactor[r] * item.spec.softcap : reduce_add(product) * scale;
    }
}

// Queries [begin, end) of one head.
template <class Unit>
void stick_head(const StickItem& item, int64_t begin, int64_t end, int64_t head, int64_t member) {
    const int64_t d = item.spec.head_dim;
    const Tensor q = item.q.col_range(head * d, d), dout = item.dout.col_range(head * d, d);
    const TableSlice::Tables tables(item.spec, head);
    float* dgain = item.table(0, item.plan.gain_rows, member);
    float* dbias = item.table(item.plan.gain_rows, item.plan.bias_rows, member);
    BackwardTile<Unit> t(item.scratch, d, dgain, dbias);
    TableSlice slice;
    for (int64_t i = begin; i < end; i += query_tile) {
        const QueryTile tile(i, item.spec.length, item.row_start);
        const ScoreRows rows(item.spec, head, item.first_token + i, tile.end - i);
        const int64_t row = head * item.head_stride + i;
        t.load_queries(tile, q, dout, item.lse + row, item.delta + row, rows,
                       item.spec.row_factor && !rows.capped);
        StickSums sums;
        const int64_t first = tile.first_key() / step_floats<Unit> * step_floats<Unit>;
        for (int64_t number = (tile.end - 1 - first) / key_tile; number >= 0; --number) {
            const int64_t key = first + number * key_tile, key_end = smaller(key + key_tile, tile.end);
            if (tables.gain) slice.cut(tables, tile.begin, key, key_end);
            if (!stick_tile(item, t, sums, tile, rows, slice, key, key_end)) break;
            if (dgain) add_diagonals(dgain, t.dlz, key_end - key, tile.begin - key);
            if (dbias) add_diagonals(dbias, t.dl, key_end - key, tile.begin - key);
        }
        finish_queries(item, t, tile, rows, head, q);
    }
}

}  // namespace

int64_t CpuOps::stick_workspace(const AttentionSpec& spec, const AttentionGradients& gradients) const {
    int64_t floats = 0;
    with_products(products_, [&](auto unit) { floats = StickPlan(spec, gradients, threads_, unit).floats; });
    return floats * static_cast<int64_t>(sizeof(float));
}

template <class Unit>
void CpuOps::break_sticks_backward(const AttentionTensors& of, const AttentionGradients& gradients,
                                   const Tensor& workspace, const AttentionSpec& spec) {
    check_sticks(spec);
    const StickPlan sticks(spec, gradients, threads_, Unit{});
    const Plan& plan = sticks.plan;
    const bool tables = plan.item_table_floats() > 0;
    check(!tables || spec.distance_gain,
          "attention_backward: gradients of distance tables that are not there");
    check(!gradients.sink && !gradients.forget, "attention_backward: gradients that stick-breaking has not");
    check(workspace.bytes() >= sticks.floats * 4, "attention_backward: workspace of {} bytes, {} needed",
          workspace.bytes(), sticks.floats * 4);
    check(BackwardTile<Unit>::floats(spec.head_dim, tables) <= scratch_per_thread_,
          "attention: head size {} is too large", spec.head_dim);
    const int64_t d = spec.head_dim, length = spec.length, tokens = spec.batch * length, padded = plan.padded;
    const int64_t group = spec.heads / spec.kv_heads, heads = spec.batch * spec.kv_heads;
    float* delta = workspace.f32();
    float* sums = delta + sticks.sums_at;
    float* table_sums = delta + sticks.tables_at;
    row_products(delta, of.dout, of.o, spec.heads, d, pool_);
    // The last segments are the longest and start first.
    pool_.run(sticks.items, [&](int64_t task, int thread) {
        [[maybe_unused]] const typename Core<Unit>::Ready ready;
        const int64_t i = sticks.items - 1 - task, segment = i / heads, kv_head = i % spec.kv_heads;
        const int64_t first_row = i % heads / spec.kv_heads * length;
        const auto part = [&](const Tensor& t) { return t.row_range(first_row, length); };
        float* dk = sums + i * sticks.item_floats;
        const StickItem item{
            .spec = spec,
            .plan = plan,
            .dq = part(of.dq),
            .dout = part(of.dout),
            .q = part(of.q),
            .k = part(of.k).col_range(kv_head * d, d),
            .v = part(of.v).col_range(kv_head * d, d),
            .lse = of.lse.f32() + first_row,
            .delta = delta + first_row,
            .dfactor = gradients.row_factor ? gradients.row_factor.f32() + first_row : nullptr,
            .head_stride = tokens,
            .dfactor_stride = gradients.row_factor.row_stride,
            .first_token = first_row,
            .row_start = spec.row_start ? spec.row_start.i32() + first_row : nullptr,
            .scratch = scratch_of(thread),
            .packed = delta + sticks.keys_at + thread * sticks.thread_floats,
            .dk = dk,
            .dv = dk + length * padded,
            .tables = tables ? table_sums + i * plan.item_table_floats() : nullptr};
        std::memset(dk, 0, static_cast<size_t>(sticks.item_floats) * sizeof(float));
        if (tables)
            std::memset(item.tables, 0, static_cast<size_t>(plan.item_table_floats()) * sizeof(float));
        const int64_t begin = segment * sticks.segment_rows,
                      end = smaller(length, begin + sticks.segment_rows);
        for (int64_t member = 0; member < group; ++member)
            stick_head<Unit>(item, begin, end, kv_head * group + member, member);
    });
    // dK and dV: those of the segments whose queries come after the key, in order.
    for_items(pool_, tokens, 2 * spec.kv_heads * d, [&](int64_t n) {
        for (int64_t g = 0; g < spec.kv_heads; ++g)
            for (int64_t c = 0; c < d; c += lanes) {
                const int64_t position = n % length;
                Vec of_k{}, of_v{};
                for (int64_t s = position / sticks.segment_rows; s < plan.segments; ++s) {
                    const float* from =
                        sums + (s * heads + n / length * spec.kv_heads + g) * sticks.item_floats;
                    of_k += load(from + position * padded + c);
                    of_v += load(from + (length + position) * padded + c);
                }
                const int count = static_cast<int>(smaller(lanes, d - c));
                store_first(of.dk.f32() + n * of.dk.row_stride + g * d + c, of_k * splat(spec.scale), count);
                store_first(of.dv.f32() + n * of.dv.row_stride + g * d + c, of_v, count);
            }
    });
    if (gradients.distance_gain)
        add_tables(gradients.distance_gain, table_sums, 0, plan.gain_rows, ln_2, spec, plan, pool_);
    if (gradients.distance_bias)
        add_tables(gradients.distance_bias, table_sums, plan.gain_rows, plan.bias_rows, 1.0f, spec, plan,
                   pool_);
}

template void CpuOps::break_sticks_backward<PlainUnit>(const AttentionTensors&, const AttentionGradients&,
                                                       const Tensor&, const AttentionSpec&);
#if defined(LONGREACH_ISA_BF16)
template void CpuOps::break_sticks_backward<Bf16Unit>(const AttentionTensors&, const AttentionGradients&,
                                                      const Tensor&, const AttentionSpec&);
#endif
#if defined(LONGREACH_ISA_AVX512)
template void CpuOps::break_sticks_backward<TileUnit>(const AttentionTensors&, const AttentionGradients&,
                                                      const Tensor&, const AttentionSpec&);
#endif

#include "kernels/cpu/isa_end.h"
