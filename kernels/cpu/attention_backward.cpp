// Gradients of attention. Per visible pair, with P = exp(y - lse) rebuilt tile by tile from the saved lse:
//
//   delta_i = <dO_i, O_i>      dP = dO V^T      dS = gain(t) P (dP - delta)
//   dV = P^T dO      dK = scale dS^T Q      dQ = scale dS K
//
//   10*d FLOPs and one exp2 per visible pair. Reads q, k, v, o, dout and lse; overwrites dq, dk and dv.
//
// Parallel over (sequence, key/value head, segment of keys). An item walks its keys in blocks whose dK and dV
// stay in L2, and per block all queries that see it, so it needs nobody else's sums for dK and dV. With one
// segment it also owns dQ; with several, each keeps a partial dQ in the workspace and a last pass adds them
// in order. The number of segments is a function of the shape, so no bit depends on the threads.
#include <omp.h>

#include <cstring>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Rows of S^T and dS^T tiles lie this far apart: as left sides they are read across rows.
constexpr int64_t score_stride = query_tile + 16;

// How the work and the workspace are cut. A function of the shape and, for the per-thread part, of the
// threads.
struct Plan {
    int64_t segments;      // of keys, per sequence and key/value head
    int64_t segment_keys;  // a multiple of key_tile
    int64_t block_keys;    // a multiple of key_tile: keys whose dK, dV and packed K stay in L2 together
    int64_t padded;        // d rounded up to whole panels
    int64_t delta_floats, thread_floats, partial_floats;  // the workspace: delta [H, N], threads, partial dQ

    Plan(const AttentionSpec& s, int threads) {
        // Enough items for many threads, but segments no shorter than 1024 keys.
        const int64_t heads = s.batch * s.kv_heads;
        const int64_t wanted = smaller((32 + heads - 1) / heads, larger(1, s.length / 1024));
        segment_keys = round_up((s.length + wanted - 1) / wanted, key_tile);
        segments = (s.length + segment_keys - 1) / segment_keys;
        padded = round_up(s.head_dim, panel_cols);
        block_keys = larger(1, 32768 / s.head_dim / key_tile) * key_tile;
        block_keys = smaller(block_keys, segment_keys);
        const int64_t tokens = s.batch * s.length;
        delta_floats = round_up(s.heads * tokens, 16);
        thread_floats = threads * block_floats();
        partial_floats = segments > 1 ? segments * tokens * s.heads * s.head_dim : 0;
    }
    int64_t block_floats() const { return 3 * block_keys * padded; }
    int64_t floats() const { return delta_floats + thread_floats + partial_floats; }
};

// One block of keys: sums over all queries that see it.
struct KeyBlock {
    int64_t begin, end;  // positions
    int64_t padded;
    float* dk;  // [block_keys][padded], without the factor `scale`
    float* dv;  // [block_keys][padded]
    float* k;   // K as a right side: per key tile, padded / panel_cols panels of [key_tile, panel_cols]

    KeyBlock(float* memory, const Plan& plan, int64_t first, int64_t until, const Tensor& keys)
        : begin(first), end(until), padded(plan.padded) {
        dk = memory;
        dv = dk + plan.block_keys * padded;
        k = dv + plan.block_keys * padded;
        std::memset(dk, 0, static_cast<size_t>(2 * plan.block_keys * padded) * sizeof(float));
        for (int64_t tile = begin; tile < end; tile += key_tile)
            for (int64_t c = 0; c < padded; c += panel_cols)
                pack_panel<PlainUnit>(panel(tile, c), keys.f32() + tile * keys.row_stride + c,
                                      keys.row_stride, smaller(key_tile, end - tile), keys.cols() - c);
    }
    // Row 0 is the first key of the tile that starts at position `tile`.
    float* panel(int64_t tile, int64_t column) const {
        return k + (tile - begin) * padded + column * key_tile;
    }
};

// One tile of queries of one head, packed in every form the products need. Buffers are pieces of the thread's
// scratch.
struct BackwardTile {
    int64_t width, padded;
    float* q_transposed;     // [query_panels][d][panel_cols], times scale * log2(e)
    float* dout_transposed;  // [query_panels][d][panel_cols]
    float* q;                // [padded / panel_cols][query_tile][panel_cols]
    float* dout;             // [padded / panel_cols][query_tile][panel_cols]
    float* dq;               // [query_tile][padded], without the factor `scale`
    float* p;                // [key_tile][score_stride]: S^T, then P^T
    float* ds;               // [key_tile][score_stride]: dP^T, then dS^T
    float* lse;              // [query_tile], in base 2
    float* delta;            // [query_tile]

    BackwardTile(float* scratch, int64_t head_dim) : width(head_dim), padded(round_up(head_dim, panel_cols)) {
        q_transposed = scratch;
        dout_transposed = q_transposed + query_tile * width;
        q = dout_transposed + query_tile * width;
        dout = q + query_tile * padded;
        dq = dout + query_tile * padded;
        p = dq + query_tile * padded;
        ds = p + key_tile * score_stride;
        lse = ds + key_tile * score_stride;
        delta = lse + query_tile;
    }
    static int64_t floats(int64_t head_dim) {
        return query_tile * (2 * head_dim + 3 * round_up(head_dim, panel_cols) + 2) +
               2 * key_tile * score_stride;
    }

    // at_lse, at_delta: of the tile's first query.
    void load_queries(const QueryTile& t, const Tensor& queries, const Tensor& gradients, const float* at_lse,
                      const float* at_delta, float scale) {
        const int64_t rows = t.end - t.begin;
        const float* from_q = queries.f32() + t.begin * queries.row_stride;
        const float* from_dout = gradients.f32() + t.begin * gradients.row_stride;
        pack_queries_transposed(q_transposed, from_q, queries.row_stride, rows, width, scale * log2_e);
        pack_queries_transposed(dout_transposed, from_dout, gradients.row_stride, rows, width, 1.0f);
        for (int64_t c = 0; c < padded; c += panel_cols) {
            pack_panel<PlainUnit>(q + c * query_tile, from_q + c, queries.row_stride, rows, width - c);
            pack_panel<PlainUnit>(dout + c * query_tile, from_dout + c, gradients.row_stride, rows,
                                  width - c);
        }
        std::memset(dq, 0, static_cast<size_t>(query_tile * padded) * sizeof(float));
        // Queries past the end: probability 0.
        for (int64_t i = 0; i < query_tile; ++i) {
            lse[i] = i < rows ? at_lse[i] * log2_e : __builtin_inff();
            delta[i] = i < rows ? at_delta[i] : 0.0f;
        }
    }
};

// Scores and gradients of probabilities of one panel: S^T = K Q^T and dP^T = V dO^T for the keys of `range`.
void score_panel(const BackwardTile& t, int64_t panel, const KeyRange& range, int64_t first_key,
                 const Tensor& k, const Tensor& v) {
    const auto product = [&](float* to, const Tensor& left, const float* right) {
        multiply_panel<PlainUnit>(
            left.f32() + range.begin * left.row_stride, left.row_stride, 1,
            right + panel * t.width * panel_cols, t.width,
            range.end - range.begin, [=](int64_t r, Vec low, Vec high) __attribute__((always_inline)) {
                store(to + r * score_stride, low);
                store(to + r * score_stride + lanes, high);
            });
    };
    const int64_t at = (range.begin - first_key) * score_stride + panel * panel_cols;
    product(t.p + at, k, t.q_transposed);
    product(t.ds + at, v, t.dout_transposed);
}

// p: S^T to P^T; ds: dP^T to dS^T. Queries of the panel and keys of `range`.
template <bool distance, bool masked>
void differentiate_panel(const BackwardTile& t, const QueryTile& q, int64_t panel, const KeyRange& range,
                         int64_t first_key, const DistanceSlice& slice) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t query = q.begin + at;
        const Vec lse = load(t.lse + at), delta = load(t.delta + at);
        for (int64_t j = range.begin; j < range.end; ++j) {
            float* to_p = t.p + (j - first_key) * score_stride + at;
            float* to_ds = t.ds + (j - first_key) * score_stride + at;
            const int64_t u = query - j - slice.lowest;
            Vec y = load(to_p);
            if constexpr (distance) y = fma(load(slice.gain + u), y, load(slice.bias + u));
            y -= lse;
            if constexpr (masked) y = mask_unseen(y, j, query, q.start + at);
            const Vec p = exp2(y);
            Vec ds = p * (load(to_ds) - delta);
            if constexpr (distance) ds *= load(slice.gain + u);
            store(to_p, p);
            store(to_ds, ds);
        }
    }
}

// Keys [from, until) of a panel are seen by none of its queries.
void clear_panel(const BackwardTile& t, int64_t panel, int64_t from, int64_t until, int64_t first_key) {
    for (int64_t j = from; j < until; ++j)
        for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
            const int64_t at = (j - first_key) * score_stride + panel * panel_cols + lane;
            store(t.p + at, Vec{});
            store(t.ds + at, Vec{});
        }
}

// c [rows, padded] += left [rows, depth] times the panels of `right`, which lie panel_floats apart.
void accumulate(float* c, int64_t padded, const float* left, int64_t row_step, int64_t k_step,
                const float* right, int64_t panel_floats, int64_t rows, int64_t depth) {
    for (int64_t column = 0; column < padded; column += panel_cols, right += panel_floats) {
        float* to = c + column;
        multiply_panel<PlainUnit>(
            left, row_step, k_step, right, depth,
            rows, [=](int64_t r, Vec low, Vec high) __attribute__((always_inline)) {
                float* at = to + r * padded;
                store(at, load(at) + low);
                store(at + lanes, load(at + lanes) + high);
            });
    }
}

// One tile of keys [key, key_end) of the block against one tile of queries.
template <bool distance>
void backward_tile(const BackwardTile& t, const KeyBlock& block, const QueryTile& q, int64_t key,
                   int64_t key_end, const Tensor& k, const Tensor& v, const DistanceSlice& slice) {
    const int64_t first = larger(key, q.first_key()), last = smaller(key_end, q.end);
    for (int64_t panel = 0; panel < query_panels; ++panel) {
        const KeyRange range(q, panel, key, key_end);
        if (range.empty()) {
            clear_panel(t, panel, first, last, first);
            continue;
        }
        clear_panel(t, panel, first, range.begin, first);
        clear_panel(t, panel, range.end, last, first);
        score_panel(t, panel, range, first, k, v);
        const auto differentiate =
            range.masked ? differentiate_panel<distance, true> : differentiate_panel<distance, false>;
        differentiate(t, q, panel, range, first, slice);
    }
    const int64_t queries = q.end - q.begin, keys = last - first, at = (first - block.begin) * t.padded;
    const int64_t query_panel = query_tile * panel_cols;
    accumulate(block.dv + at, t.padded, t.p, score_stride, 1, t.dout, query_panel, keys, queries);
    accumulate(block.dk + at, t.padded, t.ds, score_stride, 1, t.q, query_panel, keys, queries);
    accumulate(t.dq, t.padded, t.ds, 1, score_stride, block.panel(key, 0) + (first - key) * panel_cols,
               key_tile * panel_cols, queries, keys);
}

// to [rows, width] = or += factor * from [rows, padded].
void write_rows(float* to, int64_t stride, const float* from, int64_t padded, int64_t rows, int64_t width,
                float factor, bool add) {
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < width; c += lanes) {
            const int64_t count = width - c;
            Vec value = load(from + r * padded + c) * splat(factor);
            float* at = to + r * stride + c;
            if (add) value += PlainUnit::along(at, count);
            count >= lanes ? store(at, value) : store_first(at, value, static_cast<int>(count));
        }
}

// What one item reads and writes: tensors of one sequence ([T, columns]); lse and delta are rows of [H, N].
struct Item {
    const AttentionSpec& spec;
    const Plan& plan;
    Tensor dq, dk, dv;  // dq: [T, H*d], the output or this segment's partial
    Tensor dout, q, k, v;
    const float *lse, *delta;
    int64_t head_stride;       // between heads of lse and delta
    const int32_t* row_start;  // of this sequence, or null
    int64_t kv_head;
    float *scratch, *memory;  // of this thread
};

// All queries of one head against one block of keys.
template <bool distance>
void backward_head(const Item& item, const KeyBlock& block, int64_t head, const Tensor& k, const Tensor& v) {
    const int64_t d = item.spec.head_dim, length = item.spec.length;
    const Tensor q = item.q.col_range(head * d, d), dout = item.dout.col_range(head * d, d);
    const DistanceSlice::Tables tables(item.spec, head);
    BackwardTile t(item.scratch, d);
    DistanceSlice slice;
    for (int64_t i = block.begin / query_tile * query_tile; i < length; i += query_tile) {
        const QueryTile tile(i, length, item.row_start);
        if (tile.first_key() >= block.end) break;
        t.load_queries(tile, q, dout, item.lse + head * item.head_stride + i,
                       item.delta + head * item.head_stride + i, item.spec.scale);
        for (int64_t key = block.begin; key < smaller(block.end, tile.end); key += key_tile) {
            const int64_t key_end = smaller(key + key_tile, block.end);
            if (key_end <= tile.first_key()) continue;
            if constexpr (distance) slice.cut(tables, tile.begin, key, key_end);
            backward_tile<distance>(t, block, tile, key, key_end, k, v, slice);
        }
        write_rows(item.dq.f32() + i * item.dq.row_stride + head * d, item.dq.row_stride, t.dq, t.padded,
                   tile.end - i, d, item.spec.scale, true);
    }
}

// Keys [begin, end) of one sequence and key/value head.
void backward_segment(const Item& item, int64_t begin, int64_t end) {
    const int64_t d = item.spec.head_dim, group = item.spec.heads / item.spec.kv_heads;
    const Tensor k = item.k.col_range(item.kv_head * d, d), v = item.v.col_range(item.kv_head * d, d);
    const int64_t first_head = item.kv_head * group;
    for (int64_t i = begin; i < item.spec.length; ++i)
        std::memset(item.dq.f32() + i * item.dq.row_stride + first_head * d, 0,
                    static_cast<size_t>(group * d) * sizeof(float));
    const auto run = item.spec.distance_gain ? backward_head<true> : backward_head<false>;
    for (int64_t key = begin; key < end; key += item.plan.block_keys) {
        const KeyBlock block(item.memory, item.plan, key, smaller(key + item.plan.block_keys, end), k);
        for (int64_t head = first_head; head < first_head + group; ++head) run(item, block, head, k, v);
        const int64_t rows = block.end - key, padded = item.plan.padded;
        const Tensor dk = item.dk.row_range(key, rows).col_range(item.kv_head * d, d);
        const Tensor dv = item.dv.row_range(key, rows).col_range(item.kv_head * d, d);
        write_rows(dk.f32(), dk.row_stride, block.dk, padded, rows, d, item.spec.scale, false);
        write_rows(dv.f32(), dv.row_stride, block.dv, padded, rows, d, 1.0f, false);
    }
}

// delta [H, N] = rowsum(dout * o) per head.
void row_products(float* delta, const Tensor& dout, const Tensor& o, int64_t heads, int64_t d, int threads) {
    const int64_t tokens = dout.rows();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t n = 0; n < tokens; ++n)
        for (int64_t h = 0; h < heads; ++h) {
            const float* a = dout.f32() + n * dout.row_stride + h * d;
            const float* b = o.f32() + n * o.row_stride + h * d;
            Vec sum{};
            for (int64_t c = 0; c < d; c += lanes)
                sum = fma(PlainUnit::along(a + c, d - c), PlainUnit::along(b + c, d - c), sum);
            delta[h * tokens + n] = reduce_add(sum);
        }
}

// dq = sum of the partial dQ [segments][N, H*d]; a segment reaches only positions from its first key on.
void add_partials(const Tensor& dq, const float* partial, const Plan& plan, int64_t length, int threads) {
    const int64_t tokens = dq.rows(), width = dq.cols();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t n = 0; n < tokens; ++n) {
        const int64_t reached = n % length / plan.segment_keys + 1;
        float* to = dq.f32() + n * dq.row_stride;
        for (int64_t c = 0; c < width; c += lanes) {
            Vec sum{};
            for (int64_t s = 0; s < reached; ++s)
                sum += PlainUnit::along(partial + (s * tokens + n) * width + c, width - c);
            width - c >= lanes ? store(to + c, sum) : store_first(to + c, sum, static_cast<int>(width - c));
        }
    }
}

}  // namespace

int64_t CpuOps::attention_workspace(const AttentionSpec& spec, const AttentionGradients&) const {
    return Plan(spec, threads_).floats() * static_cast<int64_t>(sizeof(float));
}

void CpuOps::attention_backward(Tensor dq, Tensor dk, Tensor dv, const AttentionGradients&, Tensor workspace,
                                const Tensor& dout, const Tensor& o, const Tensor& lse, const Tensor& q,
                                const Tensor& k, const Tensor& v, const AttentionSpec& spec) {
    const Plan plan(spec, threads_);
    check(workspace.bytes() >= plan.floats() * 4, "attention_backward: workspace of {} bytes, {} needed",
          workspace.bytes(), plan.floats() * 4);
    check(BackwardTile::floats(spec.head_dim) <= scratch_per_thread_, "attention: head size {} is too large",
          spec.head_dim);
    const int64_t length = spec.length, tokens = spec.batch * length, width = spec.heads * spec.head_dim;
    float* delta = workspace.f32();
    float* memory = delta + plan.delta_floats;
    float* partial = memory + plan.thread_floats;
    row_products(delta, dout, o, spec.heads, spec.head_dim, threads_);

    // Early keys are seen by most queries: the first segments are the longest items and start first.
    const int64_t heads = spec.batch * spec.kv_heads;
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
    for (int64_t i = 0; i < plan.segments * heads; ++i) {
        const int64_t segment = i / heads, first_row = i % heads / spec.kv_heads * length;
        const Tensor to_dq =
            plan.segments == 1 ? dq : Tensor(partial + segment * tokens * width, DType::f32, {tokens, width});
        const Item item{.spec = spec,
                        .plan = plan,
                        .dq = to_dq.row_range(first_row, length),
                        .dk = dk.row_range(first_row, length),
                        .dv = dv.row_range(first_row, length),
                        .dout = dout.row_range(first_row, length),
                        .q = q.row_range(first_row, length),
                        .k = k.row_range(first_row, length),
                        .v = v.row_range(first_row, length),
                        .lse = lse.f32() + first_row,
                        .delta = delta + first_row,
                        .head_stride = tokens,
                        .row_start = spec.row_start ? spec.row_start.i32() + first_row : nullptr,
                        .kv_head = i % spec.kv_heads,
                        .scratch = scratch_of(omp_get_thread_num()),
                        .memory = memory + omp_get_thread_num() * plan.block_floats()};
        backward_segment(item, segment * plan.segment_keys,
                         smaller(length, (segment + 1) * plan.segment_keys));
    }
    if (plan.segments > 1) add_partials(dq, partial, plan, length, threads_);
}

#include "kernels/cpu/isa_end.h"
