// Stick-breaking attention: o = P v, P as stick_breaking.h says; lse = log(1 - sum of P), what is left of the
// stick. A stick below 2^-150 counts as used up: its lse is below log(2^-150), but how far is not said.
//
//   q, o [N, H*d], k, v [N, G*d], lse [H, N]. 4*d FLOPs per visible pair, two exp2 and a logarithm.
//
// Tiles and scores are those of attention.cpp; tiles of keys are visited from the last to the first, so that
// the sum of b starts at the query, and a tile of queries is done when all its sticks are used up. Sums of b
// are f32 over the keys of a tile, then over tiles. Nothing is rescaled: a nearer key never changes the
// weight of a farther one later. Parallel over (sequence, head, tile of queries).
#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/stick_breaking.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// One tile of queries of one head. Buffers are pieces of the thread's scratch.
struct StickTile {
    int64_t width;
    float* queries;  // [query_panels][d][panel_cols], times ScoreRows::packing
    float* output;   // [query_panels][d][panel_cols]: O^T so far
    float* scores;   // [key_tile][panel_cols]: S^T of the current panel, then P^T
    float* broken;   // [query_tile]: sum of b so far

    StickTile(float* scratch, int64_t head_dim) : width(head_dim) {
        queries = scratch;
        output = queries + query_tile * width;
        scores = output + query_tile * width;
        broken = scores + key_tile * panel_cols;
        for (int64_t i = 0; i < query_tile * width; ++i) output[i] = 0.0f;
        for (int64_t i = 0; i < query_tile; ++i) broken[i] = 0.0f;
    }
    static int64_t floats(int64_t head_dim) {
        return 2 * query_tile * head_dim + key_tile * panel_cols + query_tile;
    }
};

// Turns the scores of one panel and the keys of `range` into P^T.
template <bool masked>
void break_panel(const StickTile& t, const QueryTile& q, const ScoreRows& rows, int64_t panel,
                 const KeyRange& range, const TableSlice& slice) {
    const int64_t first = range.begin, keys = range.end - range.begin;
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t query = q.begin + at;
        const Vec before = load(t.broken + at);
        Vec here{};
        for (int64_t j = keys - 1; j >= 0; --j) {
            float* y = t.scores + j * panel_cols + lane;
            const int64_t key = first + j;
            const Score s =
                score_of<Form::general>(load(y), rows, at, slice, query - key - slice.lowest, key);
            const Break b = break_at(s.y);
            const Vec p = exp2(b.taken - (before + here));
            if constexpr (masked) {
                const VecInt seen = sees_before(key, query, q.start + at);
                store(y, seen ? p : Vec{});
                here += seen ? b.left : Vec{};
            } else {
                store(y, p);
                here += b.left;
            }
        }
        store(t.broken + at, before + here);
    }
}

// O^T transposed to rows of o.
void write_output(const StickTile& t, const QueryTile& q, float* o, int64_t stride) {
    const int64_t rows = q.end - q.begin;
    for (int64_t i = 0; i < rows; i += lanes) {
        const float* columns = t.output + i / panel_cols * t.width * panel_cols + i % panel_cols;
        for (int64_t c = 0; c < t.width; c += lanes) {
            Vec block[lanes] = {};
            const int count = static_cast<int>(smaller(lanes, t.width - c));
            for (int j = 0; j < count; ++j) block[j] = load(columns + (c + j) * panel_cols);
            transpose(block);
            for (int64_t r = 0; r < smaller(lanes, rows - i); ++r)
                store_first(o + (i + r) * stride + c, block[r], count);
        }
    }
}

// Adds the keys of `range` to one panel of queries.
void attend_panel(const StickTile& t, const QueryTile& q, const ScoreRows& rows, int64_t panel,
                  const KeyRange& range, const TableSlice& slice, const Tensor& k, const Tensor& v) {
    float* scores = t.scores;
    multiply_panel<PlainUnit>(
        k.f32() + range.begin * k.row_stride, k.row_stride, 1, t.queries + panel * t.width * panel_cols,
        t.width, range.end - range.begin, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            store(scores + r * panel_cols, left);
            store(scores + r * panel_cols + lanes, right);
        });
    if (masked_before(q, panel, range))
        break_panel<true>(t, q, rows, panel, range, slice);
    else
        break_panel<false>(t, q, rows, panel, range, slice);
    float* output = t.output + panel * t.width * panel_cols;
    multiply_panel<PlainUnit>(
        v.f32() + range.begin * v.row_stride, 1, v.row_stride, t.scores, range.end - range.begin,
        t.width, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            float* o = output + r * panel_cols;
            store(o, load(o) + left);
            store(o + lanes, load(o + lanes) + right);
        });
}

}  // namespace

void CpuOps::break_sticks(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionSpec& spec) {
    const int64_t d = spec.head_dim, length = spec.length, group = spec.heads / spec.kv_heads;
    check(StickTile::floats(d) <= scratch_per_thread_, "attention: head size {} is too large", d);
    check_attention(spec);
    check_sticks(spec);
    const int64_t tiles = (length + query_tile - 1) / query_tile;
    const int32_t* row_start = spec.row_start ? spec.row_start.i32() : nullptr;
    pool_.run(spec.batch * spec.heads * tiles, [&](int64_t item, int thread) {
        const int64_t sequence = item / tiles / spec.heads, head = item / tiles % spec.heads;
        const int64_t first_row = sequence * length;
        const QueryTile tile((tiles - 1 - item % tiles) * query_tile, length,
                             row_start ? row_start + first_row : nullptr);
        const auto part = [&](const Tensor& t, int64_t which) {
            return t.row_range(first_row, length).col_range(which * d, d);
        };
        const Tensor queries = part(q, head), keys = part(k, head / group), values = part(v, head / group);
        const int64_t token = first_row + tile.begin, count = tile.end - tile.begin;
        StickTile t(scratch_of(thread), d);
        const ScoreRows rows(spec, head, token, count);
        pack_queries_transposed(t.queries, queries.f32() + tile.begin * queries.row_stride,
                                queries.row_stride, count, d, rows.packing);
        const TableSlice::Tables tables(spec, head);
        TableSlice slice;
        const int64_t first = tile.first_key(), last = (tile.end - 1 - first) / key_tile;
        for (int64_t number = last; number >= 0; --number) {
            const int64_t key = first + number * key_tile, key_end = smaller(key + key_tile, tile.end);
            if (tables.gain) slice.cut(tables, tile.begin, key, key_end);
            bool done = true;
            for (int64_t panel = 0; panel < query_panels; ++panel) {
                const KeyRange range(tile, panel, key, key_end);
                if (tile.begin + panel * panel_cols >= tile.end || all_used_up(t.broken + panel * panel_cols))
                    continue;
                done = false;
                if (!range.empty()) attend_panel(t, tile, rows, panel, range, slice, keys, values);
            }
            if (done) break;
        }
        write_output(t, tile, o.f32() + token * o.row_stride + head * d, o.row_stride);
        float* left = lse.f32() + head * lse.row_stride + token;
        for (int64_t i = 0; i < count; ++i) left[i] = -t.broken[i] * ln_2;
    });
}

#include "kernels/cpu/isa_end.h"
