// o = softmax(y) v with y = gain(t) scale q k^T + bias(t) over the visible keys; lse = log sum exp(y).
//
//   q, o [N, H*d], k, v [N, G*d], lse [H, N]. Backward needs q, k, v, o and lse; nothing of size T x T
//   exists. 4*d FLOPs and one exp2 per visible pair; memory: q, k, v once per tile of queries, o once.
//
// Online softmax over tiles of keys, in base 2: queries are scaled by scale * log2(e) when they are packed.
// Parallel over (sequence, head, tile of queries); a tile is one thread's work from its first to its last
// key.
#include <omp.h>

#include <cmath>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// One tile of queries of one head. Buffers are pieces of the thread's scratch.
struct ForwardTile {
    int64_t width;   // d
    float* queries;  // [query_panels][d][panel_cols], scaled
    float* scores;   // [key_tile][panel_cols]: S^T of the panel in work, then P^T
    float* output;   // [query_panels][d][panel_cols]: O^T so far, relative to `top`
    float* top;      // [query_tile]: largest score so far
    float* sum;      // [query_tile]: sum of 2^(score - top)
    float* shrink;   // [query_tile]: what earlier sums and outputs are multiplied with

    ForwardTile(float* scratch, int64_t head_dim) : width(head_dim) {
        queries = scratch;
        output = queries + query_tile * width;
        scores = output + query_tile * width;
        top = scores + key_tile * panel_cols;
        sum = top + query_tile;
        shrink = sum + query_tile;
    }
    static int64_t floats(int64_t head_dim) {
        return 2 * query_tile * head_dim + key_tile * panel_cols + 3 * query_tile;
    }

    void reset() {
        for (int64_t i = 0; i < query_tile * width; ++i) output[i] = 0.0f;
        // Finite, so that a difference of two tops is never infinity - infinity; far below any score.
        for (int64_t i = 0; i < query_tile; ++i) top[i] = -1e30f, sum[i] = 0.0f;
    }
};

// Turns the scores of one panel and keys [range.begin, range.end) into P^T and updates top, sum and shrink.
template <bool distance, bool masked>
void softmax_panel(const ForwardTile& t, const QueryTile& q, int64_t panel, const KeyRange& range,
                   const DistanceSlice& slice) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t query = q.begin + at;
        float* column = t.scores + lane;
        const Vec before = load(t.top + at);
        Vec top = before;
        for (int64_t j = range.begin; j < range.end; ++j) {
            float* y = column + (j - range.begin) * panel_cols;
            Vec value = load(y);
            if constexpr (distance) {
                const int64_t u = query - j - slice.lowest;
                value = fma(load(slice.gain + u), value, load(slice.bias + u));
            }
            if constexpr (masked) value = mask_unseen(value, j, query, q.start + at);
            if constexpr (distance || masked) store(y, value);
            top = max(top, value);
        }
        Vec sum{};
        for (int64_t j = 0; j < range.end - range.begin; ++j) {
            const Vec p = exp2(load(column + j * panel_cols) - top);
            sum += p;
            store(column + j * panel_cols, p);
        }
        const Vec shrink = exp2(before - top);
        store(t.top + at, top);
        store(t.shrink + at, shrink);
        store(t.sum + at, fma(load(t.sum + at), shrink, sum));
    }
}

// Adds keys [range.begin, range.end) to one panel of queries. k, v: rows of this sequence and key/value head.
template <bool distance>
void attend_panel(const ForwardTile& t, const QueryTile& q, int64_t panel, const KeyRange& range,
                  const Tensor& k, const Tensor& v, const DistanceSlice& slice) {
    const int64_t keys = range.end - range.begin;
    float* scores = t.scores;
    multiply_panel<PlainUnit>(
        k.f32() + range.begin * k.row_stride, k.row_stride, 1, t.queries + panel * t.width * panel_cols,
        t.width, keys, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            store(scores + r * panel_cols, left);
            store(scores + r * panel_cols + lanes, right);
        });
    if (range.masked)
        softmax_panel<distance, true>(t, q, panel, range, slice);
    else
        softmax_panel<distance, false>(t, q, panel, range, slice);
    float* output = t.output + panel * t.width * panel_cols;
    const Vec shrink_left = load(t.shrink + panel * panel_cols);
    const Vec shrink_right = load(t.shrink + panel * panel_cols + lanes);
    multiply_panel<PlainUnit>(
        v.f32() + range.begin * v.row_stride, 1, v.row_stride, scores, keys,
        t.width, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            float* o = output + r * panel_cols;
            store(o, fma(load(o), shrink_left, left));
            store(o + lanes, fma(load(o + lanes), shrink_right, right));
        });
}

// o rows = O^T transposed, divided by the sums; lse of the tile's queries.
void write_tile(const ForwardTile& t, const QueryTile& q, float* o, int64_t o_stride, float* lse) {
    const int64_t rows = q.end - q.begin;
    for (int64_t i = 0; i < rows; ++i) lse[i] = t.top[i] * ln_2 + std::log(t.sum[i]);
    for (int64_t i = 0; i < rows; i += lanes) {
        const Vec inverse = splat(1.0f) / load(t.sum + i);
        const float* columns = t.output + i / panel_cols * t.width * panel_cols + i % panel_cols;
        for (int64_t c = 0; c < t.width; c += lanes) {
            Vec block[lanes] = {};
            const int count = static_cast<int>(smaller(lanes, t.width - c));
            for (int j = 0; j < count; ++j) block[j] = load(columns + (c + j) * panel_cols) * inverse;
            transpose(block);
            for (int64_t r = 0; r < smaller(lanes, rows - i); ++r)
                store_first(o + (i + r) * o_stride + c, block[r], count);
        }
    }
}

template <bool distance>
void attention_tile(float* o, int64_t o_stride, float* lse, const QueryTile& q, const Tensor& queries,
                    const Tensor& k, const Tensor& v, const DistanceSlice::Tables& tables, float scale,
                    float* scratch) {
    ForwardTile t(scratch, queries.cols());
    t.reset();
    pack_queries_transposed(t.queries, queries.f32() + q.begin * queries.row_stride, queries.row_stride,
                            q.end - q.begin, t.width, scale * log2_e);
    DistanceSlice slice;
    for (int64_t key = q.first_key(); key < q.end; key += key_tile) {
        const int64_t key_end = smaller(key + key_tile, q.end);
        if constexpr (distance) slice.cut(tables, q.begin, key, key_end);
        for (int64_t panel = 0; panel < query_panels; ++panel) {
            const KeyRange range(q, panel, key, key_end);
            if (!range.empty()) attend_panel<distance>(t, q, panel, range, k, v, slice);
        }
    }
    write_tile(t, q, o, o_stride, lse);
}

}  // namespace

void CpuOps::row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window,
                        int64_t chunk) {
    const int64_t count = row_start.count();
    check(row_start.contiguous() && count % length == 0, "row_starts: {} entries, length {}", count, length);
    const int32_t* document = doc_start ? doc_start.i32() : nullptr;
    int32_t* out = row_start.i32();
#pragma omp parallel for schedule(static) num_threads(threads_)
    for (int64_t n = 0; n < count; ++n) {
        const int64_t i = n % length;
        const int64_t by_window = window > 0 ? larger(0, i - window + 1) : 0;
        const int64_t by_chunk = chunk > 0 ? i / chunk * chunk : 0;
        out[n] = static_cast<int32_t>(larger(larger(by_window, by_chunk), document ? document[n] : 0));
    }
}

void CpuOps::attention(Tensor o, Tensor lse, Tensor, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionSpec& spec) {
    check(ForwardTile::floats(spec.head_dim) <= scratch_per_thread_, "attention: head size {} is too large",
          spec.head_dim);
    const int64_t d = spec.head_dim, length = spec.length, group = spec.heads / spec.kv_heads;
    const int64_t tiles = (length + query_tile - 1) / query_tile;
    const int32_t* row_start = spec.row_start ? spec.row_start.i32() : nullptr;

    // Within a head the longest tiles come first; heads follow each other, so that keys and values stay in
    // cache.
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
    for (int64_t item = 0; item < spec.batch * spec.heads * tiles; ++item) {
        const int64_t sequence = item / tiles / spec.heads, head = item / tiles % spec.heads;
        const int64_t first_row = sequence * length, kv_head = head / group;
        const QueryTile tile((tiles - 1 - item % tiles) * query_tile, length,
                             row_start ? row_start + first_row : nullptr);
        const DistanceSlice::Tables tables(spec, head);
        const auto run = tables.gain ? attention_tile<true> : attention_tile<false>;
        run(o.f32() + (first_row + tile.begin) * o.row_stride + head * d, o.row_stride,
            lse.f32() + head * lse.row_stride + first_row + tile.begin, tile,
            q.row_range(first_row, length).col_range(head * d, d),
            k.row_range(first_row, length).col_range(kv_head * d, d),
            v.row_range(first_row, length).col_range(kv_head * d, d), tables, spec.scale,
            scratch_of(omp_get_thread_num()));
    }
}

#include "kernels/cpu/isa_end.h"
