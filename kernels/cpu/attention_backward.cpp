// Gradients of attention. Per visible pair, with P = exp(y - lse) rebuilt tile by tile from the saved lse:
//
//   delta_i = <dO_i, O_i>      dP = dO V^T      dL = P (dP - delta)      dS = gain(t) dL
//   dV = P^T dO      dK = scale dS^T f Q      dQ = scale f dS K
//
//   10*d FLOPs and one exp2 per visible pair. Reads q, k, v, o, dout and lse; overwrites dq, dk and dv.
//
// Row factors f sit in the packed queries, for S and for dK. dQ is summed without them, so that df_i =
// <dQ_i / f_i, q_i> needs no division; the last pass over a row of dQ forms this product and then
// multiplies by f. A softcap lies between scale and f; then dS = f (1 - tanh^2) gain(t) dL, and df is
// summed pair by pair. Gradients of the distance tables are sums along the diagonals of dL and dL z. A sink
// affects dL only through lse and delta; its own gradient is -sum_i exp(sink - lse_i) delta_i. The gradient
// of a forget sum is the sum of dL over the row of its position less that over the column. Rows are summed
// although without a sink they add up to 0 but for the rounding of delta: a forget gate gets the total of
// these differences over all later positions, in which the pairs on one side of the gate cancel only if
// each of them is in both sums.
//
// Parallel over (sequence, key/value head, segment of keys). An item walks its keys in blocks whose dK and dV
// stay in L2, and per block all queries that see it, so dK and dV need no sums of other items. With one
// segment it also owns dQ; with several, each keeps a partial dQ in the workspace and a last pass adds them
// in order. The number of segments is a function of the shape, so no bit depends on the threads.
#include <cmath>
#include <cstring>
#include <memory>

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
#include "kernels/cpu/attention_horizon.h"
#include "kernels/cpu/attention_backward_passes.h"
#include "kernels/cpu/attention_backward_tile.h"
#include "kernels/cpu/entmax.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// One block of keys: sums over all queries that see it.
template <class Unit>
struct KeyBlock {
    int64_t begin, end;  // positions
    int64_t padded;
    float* dk;     // [block_keys][padded], without the factor `scale`
    float* dv;     // [block_keys][padded]
    float* k;      // per key tile what pack_keys_for_dq makes
    KeyRows rows;  // K and V as left sides
    // [block_keys][sum_lanes]: dL of one head, summed over queries lane by lane; null: not wanted
    float* sums;

    KeyBlock(float* memory, const Plan& plan, int64_t first, int64_t until, const Tensor& keys,
             const Tensor& values)
        : begin(first), end(until), padded(plan.padded) {
        dk = memory;
        dv = dk + plan.block_keys * padded;
        k = dv + plan.block_keys * padded;
        float* left = k + plan.block_keys * padded;
        rows = {.begin = begin,
                .k = LeftRows::of<Unit>(left, keys, begin, end),
                .v = LeftRows::of<Unit>(left + plan.block_keys * plan.row_floats / 2, values, begin, end)};
        sums = plan.forget ? left + plan.block_keys * plan.row_floats : nullptr;
        std::memset(dk, 0, static_cast<size_t>(2 * plan.block_keys * padded) * sizeof(float));
        for (int64_t tile = begin; tile < end; tile += key_tile)
            pack_keys_for_dq<Unit>(k_of(tile), keys.f32() + tile * keys.row_stride, keys.row_stride,
                                   smaller(key_tile, end - tile), keys.cols());
    }
    // Of the tile that starts at position `tile`.
    float* k_of(int64_t tile) const { return k + (tile - begin) * padded / Unit::floats; }
};

enum class Rule { softmax, squares, powers };  // squares, powers: entmax, with alpha 1.5 and any

// p: S^T to P^T; ds: dP^T to dS^T. Queries of the panel and keys of `range`, a block. False: P is 0 everywhere.
template <class Unit, Form form, bool masked, Rule rule>
bool differentiate_panel(const BackwardTile<Unit>& t, const QueryTile& q, const ScoreRows& rows,
                         int64_t panel, const KeyRange& range, int64_t first_key, const TableSlice& slice,
                         RowsAhead& ahead) {
    // Copies no store can change.
    float *const to_p = t.p, *const to_ds = t.ds, *const to_dl = t.dl, *const to_dlz = t.dlz;
    float* const to_column = t.dcolumn;
    const int64_t block_begin = t.block_begin;
    constexpr bool forgets = form == Form::forget || form == Form::general;
    const int64_t begin = range.begin, end = range.end;
    [[maybe_unused]] const Entmax entmax = *t.entmax;
    bool any = rule == Rule::softmax;
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t query = q.begin + at;
        const Vec lse = load(t.lse + at), delta = load(t.delta + at);
        [[maybe_unused]] Vec dfactor{}, drow{}, weights{};
        for (int64_t j = begin; j < end; ++j) {
            if (j % RowsAhead::keys_per_row == 0) ahead.fetch_row();
            const int64_t where = t.score_at(panel, j - first_key, begin - first_key) + lane;
            [[maybe_unused]] const int64_t pair = (j - first_key) * score_stride + at;
            const Score s = score_of<form>(load(to_p + where), rows, at, slice, query - j - slice.lowest, j);
            Vec y = s.y - lse;
            if constexpr (masked) y = mask_unseen(y, j, query, q.start + at);
            Vec p, share;  // P, and its derivative by the score
            if constexpr (rule == Rule::softmax) {
                p = share = Unit::exp2_of(y);
            } else {
                const Weights w = weights_at<rule == Rule::squares>(entmax, y);
                p = w.p, share = w.s;
                weights += p;
            }
            const Vec dl = share * (load(to_ds + where) - delta);
            Vec ds = dl;
            if constexpr (form == Form::distance || form == Form::general) ds *= s.gain;
            if (forgets && to_column) {
                float* sum = to_column + (j - block_begin) * sum_lanes + at % sum_lanes;
                store(sum, load(sum) + dl);
                drow += dl;
            }
            if constexpr (form == Form::general) {
                if (to_dl) store(to_dl + pair, dl);
                if (to_dlz) store(to_dlz + pair, dl * s.z);
                if (rows.capped) {
                    dfactor = fma(ds, s.tangent, dfactor);
                    ds *= load(rows.factor + at) * (splat(1.0f) - s.tangent * s.tangent);
                }
            }
            store(to_p + where, p);
            store(to_ds + where, ds);
        }
        if constexpr (form == Form::general) store(t.dfactor + at, load(t.dfactor + at) + dfactor);
        if constexpr (forgets) store(t.drow + at, load(t.drow + at) + drow);
        if constexpr (rule != Rule::softmax) any = any || !all_zero(weights);
    }
    return any;
}

// The instantiations of one form, with and without masked pairs.
template <class Unit>
struct FormPasses {
    using Differentiate = bool (*)(const BackwardTile<Unit>&, const QueryTile&, const ScoreRows&, int64_t,
                                   const KeyRange&, int64_t, const TableSlice&, RowsAhead&);
    Differentiate masked, whole;
};
template <class Unit, Form form, Rule rule = Rule::softmax>
constexpr FormPasses<Unit> passes_of = {differentiate_panel<Unit, form, true, rule>,
                                        differentiate_panel<Unit, form, false, rule>};
// general: gradients of tables are wanted.
template <class Unit>
FormPasses<Unit> passes_for(const AttentionSpec& spec, bool general) {
    const Form form = general ? Form::general : form_of(spec);
    if (spec.normaliser == Normaliser::entmax) {
        if (!Entmax(spec, 0).squares) return passes_of<Unit, Form::general, Rule::powers>;
        return form == Form::plain ? passes_of<Unit, Form::plain, Rule::squares>
                                   : passes_of<Unit, Form::general, Rule::squares>;
    }
    return form == Form::general    ? passes_of<Unit, Form::general>
           : form == Form::distance ? passes_of<Unit, Form::distance>
           : form == Form::forget   ? passes_of<Unit, Form::forget>
                                    : passes_of<Unit, Form::plain>;
}

// Sums of one head's table gradients by distance, entry t of distance t; null: not wanted.
// The gain's are times log2(e).
struct TableSums {
    float* gain;
    float* bias;
};

// Shared by the tiles of one head.
template <class Unit>
struct HeadPass {
    const KeyBlock<Unit>& block;
    const TableSlice& slice;
    const TableSums& tables;
    const FormPasses<Unit>& passes;
};

// One tile of keys [key, key_end) of the block against one tile of queries.
template <class Unit>
void backward_tile(const BackwardTile<Unit>& t, const HeadPass<Unit>& head, const QueryTile& q,
                   const ScoreRows& rows, int64_t key, int64_t key_end, RowsAhead& ahead) {
    const KeyBlock<Unit>& block = head.block;
    const TableSums& tables = head.tables;
    constexpr int64_t step = step_floats<Unit>;
    const int64_t unseen = larger(0, q.first_key() - key) / step * step;  // keys that no query sees
    const int64_t first = key + unseen, last = smaller(key_end, q.end);
    PanelKeys seen;
    for (int64_t panel = 0; panel < query_panels; ++panel) {
        seen.of[panel] = panel > 0 ? seen.of[panel - 1] : 0;
        for (int64_t begin = first; begin < last; begin += score_keys<Unit>) {
            const int64_t end = smaller(begin + score_keys<Unit>, last);
            const KeyRange range(q, panel, begin, end, step);
            if (range.empty()) {
                clear_panel(t, panel, begin, end, first);
                continue;
            }
            score_panel(t, panel, range, first, block.rows);
            const auto differentiate = range.masked ? head.passes.masked : head.passes.whole;
            if (!differentiate(t, q, rows, panel, range, first, head.slice, ahead)) {
                clear_panel(t, panel, begin, end, first);
                continue;
            }
            t.round_panel(panel, range.begin - first, range.end - first);
            clear_panel(t, panel, begin, range.begin, first);
            clear_panel(t, panel, range.end, end, first);
            seen.of[panel] = range.end - first;
        }
    }
    if (seen.all() == 0) return;
    const int64_t keys = last - first, at = (first - block.begin) * t.padded;
    add_products(t, block.dv + at, block.dk + at,
                 block.k_of(key) + unseen / Unit::floats * (Core<Unit>::turned ? 1 : panel_cols), seen,
                 q.end - q.begin);
    if (tables.gain) add_diagonals(tables.gain, t.dlz, keys, q.begin - first);
    if (tables.bias) add_diagonals(tables.bias, t.dl, keys, q.begin - first);
}

enum class RowWrite { set, add, past_caches };  // past_caches: whole vectors, aligned

RowWrite first_write(const Tensor& t, const AttentionSpec& spec) {
    const bool past =
        spec.head_dim % lanes == 0 && goes_past_caches(t.f32(), t.row_stride, t.rows(), t.cols());
    return past ? RowWrite::past_caches : RowWrite::set;
}

// to [rows, width] = or += factor * from [rows, padded].
void write_rows(float* to, int64_t stride, const float* from, int64_t padded, int64_t rows, int64_t width,
                float factor, RowWrite write) {
    if (write == RowWrite::past_caches) {
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < width; c += lanes)
                store_past_caches(to + r * stride + c, load(from + r * padded + c) * splat(factor));
        return drain_stores();
    }
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < width; c += lanes) {
            const int64_t count = width - c;
            Vec value = load(from + r * padded + c) * splat(factor);
            float* at = to + r * stride + c;
            if (write == RowWrite::add) value += PlainUnit::along(at, count);
            count >= lanes ? store(at, value) : store_first(at, value, static_cast<int>(count));
        }
}

// What one item reads and writes: tensors of one sequence ([T, columns]); lse, delta and dfactor are
// rows of [H, N].
template <class Unit>
struct Item {
    const AttentionSpec& spec;
    const Plan& plan;
    Tensor dq, dk, dv;             // dq: [T, H*d], the output or this segment's partial
    RowWrite to_dq, to_dk, to_dv;  // how they are written first
    Tensor dout, q, k, v;
    const float *lse, *delta;
    float* dfactor;       // softcap only: the output or this segment's partial; null: not wanted
    int64_t head_stride;  // between heads of lse, delta and dfactor
    int64_t dfactor_stride;
    int64_t first_token;       // of the sequence among all N
    const int32_t* row_start;  // of this sequence, or null
    int64_t kv_head;
    const Horizon& horizon;
    FormPasses<Unit> passes;
    float *row_sums, *column_sums;  // of dL, [H, N]: this segment's, and of all keys; null: not wanted
    float *scratch, *memory;        // of this thread
    float* tables;                  // of this item: rows of gains, then of biases

    TableSums table_sums(int64_t head) const {
        const int64_t member = head % (spec.heads / spec.kv_heads);
        const auto row = [&](int64_t first, int64_t rows) {
            const int64_t at = first + (rows == 1 ? 0 : member);
            return rows ? tables + at * plan.table_span + table_margin : nullptr;
        };
        return {row(0, plan.gain_rows), row(plan.gain_rows, plan.bias_rows)};
    }
};

// All queries of one head against one block of keys. segment_begin: of the first block that adds to the same dQ.
template <class Unit>
void backward_head(const Item<Unit>& item, const KeyBlock<Unit>& block, int64_t head, int64_t segment_begin) {
    const int64_t d = item.spec.head_dim, length = item.spec.length;
    const auto of_head = [&](const Tensor& t) { return t.col_range(head * d, d); };
    const Tensor q = of_head(item.q), dout = of_head(item.dout), dq = of_head(item.dq);
    const Tensor v = item.v.col_range(item.kv_head * d, d);
    const TableSlice::Tables tables(item.spec, head);
    const TableSums sums = item.table_sums(head);
    BackwardTile<Unit> t(item.scratch, d, sums.gain, sums.bias);
    const Entmax entmax(item.spec, head);
    t.entmax = &entmax;
    t.dcolumn = block.sums;
    t.block_begin = block.begin;
    const int64_t keys = block.end - block.begin;
    if (block.sums) std::memset(block.sums, 0, static_cast<size_t>(keys * sum_lanes) * sizeof(float));
    const double* forget = sums_of_head(item.spec, head, item.first_token);
    TableSlice slice;
    const HeadPass<Unit> pass{block, slice, sums, item.passes};
    for (int64_t i = block.begin / query_tile * query_tile; i < length; i += query_tile) {
        const QueryTile tile(i, length, item.row_start);
        if (tile.first_key() >= block.end) break;
        const ScoreRows rows(item.spec, head, item.first_token + i, tile.end - i);
        t.load_queries(tile, q, dout, item.lse + head * item.head_stride + i,
                       item.delta + head * item.head_stride + i, rows, item.spec.row_factor && !rows.capped);
        const Horizon::OfTile horizon =
            item.horizon.of(item.spec, item.first_token / length, head, tile, rows,
                            q.f32() + i * q.row_stride, q.row_stride, t.lse);
        // Rows of the next tile.
        RowsAhead ahead(d);
        const int64_t next = tile.end, next_end = smaller(next + query_tile, length);
        if (item.to_dq != RowWrite::past_caches) ahead.add(dq, next, next_end);
        ahead.add(v, next, smaller(next_end, block.end));
        ahead.add(dout, next, next_end);
        ahead.add(q, next, next_end);
        for (int64_t key = block.begin; key < smaller(block.end, tile.end); key += key_tile) {
            const int64_t key_end = smaller(key + key_tile, block.end);
            if (key_end <= tile.first_key() || horizon.skips(key, key_end)) continue;
            if (tables.gain) slice.cut(tables, tile.begin, key, key_end);
            if (forget) slice.cut_forget(forget, key, key_end);
            backward_tile(t, pass, tile, rows, key, key_end, ahead);
        }
        const bool reached =
            segment_begin < block.begin && tile.first_key() < block.begin;  // by earlier blocks
        write_rows(dq.f32() + i * dq.row_stride, dq.row_stride, t.rows_of_dq(), t.padded, tile.end - i, d,
                   item.spec.scale, reached ? RowWrite::add : item.to_dq);
        if (item.dfactor) {
            float* to = item.dfactor + head * item.dfactor_stride + i;
            for (int64_t r = 0; r < tile.end - i; ++r) to[r] += t.dfactor[r] * item.spec.softcap;
        }
        if (item.row_sums) {
            float* to = item.row_sums + head * item.head_stride + i;
            for (int64_t r = 0; r < tile.end - i; ++r) to[r] += t.drow[r];
        }
    }
    if (item.column_sums)
        for (int64_t j = 0; j < keys; ++j)
            item.column_sums[head * item.head_stride + block.begin + j] =
                reduce_add(*reinterpret_cast<const Sums*>(block.sums + j * sum_lanes));
}

// Keys [begin, end) of one sequence and key/value head.
template <class Unit>
void backward_segment(const Item<Unit>& item, int64_t begin, int64_t end) {
    const int64_t d = item.spec.head_dim, group = item.spec.heads / item.spec.kv_heads;
    const Tensor k = item.k.col_range(item.kv_head * d, d), v = item.v.col_range(item.kv_head * d, d);
    const int64_t first_head = item.kv_head * group;
    // Tiles of queries that see no key of the segment get dQ = 0.
    int64_t unreached = begin / query_tile * query_tile;
    while (unreached < item.spec.length && (!item.row_start || item.row_start[unreached] < end))
        unreached += query_tile;
    for (int64_t i = unreached; i < item.spec.length; ++i)
        std::memset(item.dq.f32() + i * item.dq.row_stride + first_head * d, 0,
                    static_cast<size_t>(group * d) * sizeof(float));
    const size_t reached = static_cast<size_t>(item.spec.length - begin) * sizeof(float);
    for (int64_t head = first_head; head < first_head + group; ++head) {
        if (item.dfactor) std::memset(item.dfactor + head * item.dfactor_stride + begin, 0, reached);
        if (item.row_sums) std::memset(item.row_sums + head * item.head_stride + begin, 0, reached);
    }
    if (item.tables)
        std::memset(item.tables, 0, static_cast<size_t>(item.plan.item_table_floats()) * sizeof(float));
    for (int64_t key = begin; key < end; key += item.plan.block_keys) {
        const KeyBlock<Unit> block(item.memory, item.plan, key, smaller(key + item.plan.block_keys, end), k,
                                   v);
        for (int64_t head = first_head; head < first_head + group; ++head)
            backward_head(item, block, head, begin);
        const int64_t rows = block.end - key, padded = item.plan.padded;
        const Tensor dk = item.dk.row_range(key, rows).col_range(item.kv_head * d, d);
        const Tensor dv = item.dv.row_range(key, rows).col_range(item.kv_head * d, d);
        write_rows(dk.f32(), dk.row_stride, block.dk, padded, rows, d, item.spec.scale, item.to_dk);
        write_rows(dv.f32(), dv.row_stride, block.dv, padded, rows, d, 1.0f, item.to_dv);
    }
}

}  // namespace

int64_t CpuOps::do_attention_workspace(const AttentionSpec& spec, const AttentionGradients& gradients) const {
    if (spec.channel_sums.rank > 0) return decay_workspace(spec);  // its shape counts, not its memory
    if (spec.normaliser == Normaliser::stick_breaking) return stick_workspace(spec, gradients);
    int64_t floats = 0;
    with_products(products_, [&](auto unit) { floats = Plan(spec, gradients, threads_, unit).floats(); });
    return floats * static_cast<int64_t>(sizeof(float));
}

void CpuOps::do_attention_backward(Tensor dq, Tensor dk, Tensor dv, const AttentionGradients& gradients,
                                   Tensor workspace, const Tensor& dout, const Tensor& o, const Tensor& lse,
                                   const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionSpec& spec) {
    const AttentionTensors of{dq, dk, dv, dout, o, lse, q, k, v};
    check_attention(spec);
    if (spec.channel_sums) return decayed_attention_backward(of, gradients, workspace, spec);
    with_products(products_, [&]<class Unit>(Unit) {
        if (spec.normaliser == Normaliser::stick_breaking)
            break_sticks_backward<Unit>(of, gradients, workspace, spec);
        else
            softmax_attention_backward<Unit>(of, gradients, workspace, spec);
    });
}

void CpuOps::softmax_deltas(float* delta, const AttentionTensors& of, const AttentionGradients& gradients,
                            const AttentionSpec& spec) {
    row_products(delta, of.dout, of.o, spec.heads, spec.head_dim, pool_);
    if (!gradients.sink) return;
    add_sinks(gradients.sink, of.lse, delta, pool_, [&](int64_t head, Vec lse) {
        return exp(
            min(Vec{}, splat(spec.sink.f32()[head]) - lse));  // lanes past the end would hold exp(sink)
    });
}

template <class Unit>
void CpuOps::softmax_attention_backward(const AttentionTensors& of, const AttentionGradients& gradients,
                                        const Tensor& workspace, const AttentionSpec& spec) {
    // Not a structured binding: clang 14 cannot use one in a lambda.
    const Tensor &dq = of.dq, &dk = of.dk, &dv = of.dv, &dout = of.dout, &lse = of.lse;
    const Tensor &q = of.q, &k = of.k, &v = of.v;
    check(!spec.far_queries && !spec.far_keys, "attention_backward: a far pair is for forward passes only");
    check(!gradients.sink || spec.sink, "attention_backward: gradient of a sink that is not there");
    check(!gradients.forget || spec.forget, "attention_backward: gradient of forget sums that are not there");
    const Plan plan(spec, gradients, threads_, Unit{});
    const bool tables = plan.item_table_floats() > 0;
    check(!tables || (spec.distance_gain && !spec.row_square),
          "attention_backward: gradients of distance tables need tables and no row_square");
    check(workspace.bytes() >= plan.floats() * 4, "attention_backward: workspace of {} bytes, {} needed",
          workspace.bytes(), plan.floats() * 4);
    check(BackwardTile<Unit>::floats(spec.head_dim, tables) <= scratch_per_thread_,
          "attention: head size {} is too large", spec.head_dim);
    const int64_t length = spec.length, tokens = spec.batch * length, width = spec.heads * spec.head_dim;
    const int64_t group = spec.heads / spec.kv_heads;
    float* delta = workspace.f32();
    float* memory = delta + plan.delta_floats;
    float* partial = memory + plan.thread_floats;
    float* partial_factor = partial + plan.partial_floats;
    float* table_sums = partial_factor + plan.factor_floats;
    float* pair_sums = table_sums + plan.table_floats;  // of rows, a part per segment, and of columns
    const auto sums_at = [&](int64_t part, int64_t token) {
        return plan.forget ? pair_sums + part * spec.heads * tokens + token : nullptr;
    };
    if (spec.normaliser == Normaliser::entmax)
        entmax_deltas<Unit>(delta, memory, delta + plan.floats() - plan.alpha_floats, of, gradients, spec);
    else
        softmax_deltas(delta, of, gradients, spec);
    const QueryFinish finish{.spec = spec,
                             .plan = plan,
                             .dq = dq,
                             .q = q,
                             .dfactor = gradients.row_factor,
                             .partial = partial,
                             .partial_factor = partial_factor};
    const bool whole = plan.segments == 1;
    // Each row of dQ is written once: by one block of keys, and by no pass after it.
    const bool once = whole && plan.block_keys >= length && !finish.needed();
    const FormPasses<Unit> passes = passes_for<Unit>(spec, tables);
    const Horizon horizon(spec, k, pool_);

    // Early keys are seen by most queries: the first segments are the longest items and start first.
    const int64_t heads = spec.batch * spec.kv_heads;
    pool_.run(plan.segments * heads, [&](int64_t i, int thread) {
        [[maybe_unused]] const typename Core<Unit>::Ready ready;
        const int64_t segment = i / heads, first_row = i % heads / spec.kv_heads * length;
        const Tensor to_dq =
            whole ? dq : Tensor(partial + segment * tokens * width, DType::f32, {tokens, width});
        float* dfactor = nullptr;
        if (gradients.row_factor && finish.capped())
            dfactor = whole ? gradients.row_factor.f32() : partial_factor + segment * spec.heads * tokens;
        const Item<Unit> item{.spec = spec,
                              .plan = plan,
                              .dq = to_dq.row_range(first_row, length),
                              .dk = dk.row_range(first_row, length),
                              .dv = dv.row_range(first_row, length),
                              .to_dq = once ? first_write(dq, spec) : RowWrite::set,
                              .to_dk = first_write(dk, spec),
                              .to_dv = first_write(dv, spec),
                              .dout = dout.row_range(first_row, length),
                              .q = q.row_range(first_row, length),
                              .k = k.row_range(first_row, length),
                              .v = v.row_range(first_row, length),
                              .lse = lse.f32() + first_row,
                              .delta = delta + first_row,
                              .dfactor = dfactor ? dfactor + first_row : nullptr,
                              .head_stride = tokens,
                              .dfactor_stride = whole ? gradients.row_factor.row_stride : tokens,
                              .first_token = first_row,
                              .row_start = spec.row_start ? spec.row_start.i32() + first_row : nullptr,
                              .kv_head = i % spec.kv_heads,
                              .horizon = horizon,
                              .passes = passes,
                              .row_sums = sums_at(segment, first_row),
                              .column_sums = sums_at(plan.segments, first_row),
                              .scratch = scratch_of(thread),
                              .memory = memory + thread * plan.block_floats(),
                              .tables = tables ? table_sums + i * plan.item_table_floats() : nullptr};
        backward_segment(item, segment * plan.segment_keys,
                         smaller(length, (segment + 1) * plan.segment_keys));
        // The item's dQ is complete and still in cache.
        if (whole && finish.needed())
            for (int64_t n = first_row; n < first_row + length; ++n)
                for (int64_t head = item.kv_head * group; head < (item.kv_head + 1) * group; ++head)
                    finish(n, head);
    });
    if (!whole) {
        for_items(pool_, tokens, width, [&](int64_t n) {
            for (int64_t head = 0; head < spec.heads; ++head) finish(n, head);
        });
    }
    if (gradients.forget) subtract_sums(gradients.forget, pair_sums, length, plan, pool_);
    if (gradients.distance_gain)
        add_tables(gradients.distance_gain, table_sums, 0, plan.gain_rows, ln_2, spec, plan, pool_);
    if (gradients.distance_bias)
        add_tables(gradients.distance_bias, table_sums, plan.gain_rows, plan.bias_rows, 1.0f, spec, plan,
                   pool_);
}

#include "kernels/cpu/isa_end.h"
