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
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/stick_breaking.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// One tile of queries of one head. Buffers are pieces of the thread's scratch.
template <class Unit>
struct StickTile {
    int64_t width;
    int64_t height;  // rows of O^T: those of d channels and what products write past them
    float*
        queries;  // [query_panels][filled d / u][panel_cols], times ScoreRows::packing; u: numbers of a unit
    float* output;  // [query_panels][height][panel_cols]: O^T so far
    float* scores;  // [key_tile][panel_cols]: S^T of the current panel, then P^T, [key_tile / u][panel_cols]
    float* broken;  // [query_tile]: sum of b so far
    float* packed;  // of KeyTile

    StickTile(float* scratch, int64_t head_dim)
        : width(head_dim), height(round_up(head_dim, Core<Unit>::rows_together)) {
        queries = scratch;
        output = queries + query_tile * filled_units<Unit>(width);
        scores = output + query_tile * height;
        broken = scores + key_tile * panel_cols;
        packed = broken + query_tile;
        for (int64_t i = 0; i < query_tile * height; ++i) output[i] = 0.0f;
        for (int64_t i = 0; i < query_tile; ++i) broken[i] = 0.0f;
    }
    static int64_t floats(int64_t head_dim) {
        const int64_t rows = round_up(head_dim, Core<Unit>::rows_together);
        return query_tile * (filled_units<Unit>(head_dim) + rows + 1) + key_tile * panel_cols +
               KeyTile::floats<Unit>(head_dim);
    }
};

// Turns the scores of one panel and the keys of `range` into P^T.
template <class Unit, bool masked>
void break_panel(const StickTile<Unit>& t, const QueryTile& q, const ScoreRows& rows, int64_t panel,
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
        if constexpr (Unit::floats > 1)  // unit j / 2 replaces a row that has been read
            for (int64_t j = 0; j < keys; j += 2) {
                const float* p = t.scores + j * panel_cols + lane;
                store(t.scores + j / 2 * panel_cols + lane,
                      Unit::interleave(load(p), j + 1 < keys ? load(p + panel_cols) : Vec{}));
            }
        for (int64_t u = units_of<Unit>(keys); u < filled_units<Unit>(keys); ++u)
            store(t.scores + u * panel_cols + lane, Vec{});
    }
}

// O^T transposed to rows of o.
template <class Unit>
void write_output(const StickTile<Unit>& t, const QueryTile& q, float* o, int64_t stride) {
    const int64_t rows = q.end - q.begin;
    for (int64_t i = 0; i < rows; i += panel_cols) {
        const auto put = [=](int64_t r, int64_t c, Vec value, int count) {
            store_first(o + (i + r) * stride + c, value, count);
        };
        for_turned(t.output + i * t.height, t.width, smaller(panel_cols, rows - i), put);
    }
}

// Adds the keys of `range` to one panel of queries.
template <class Unit>
void attend_panel(const StickTile<Unit>& t, const QueryTile& q, const ScoreRows& rows, int64_t panel,
                  const KeyRange& range, const TableSlice& slice, const KeyTile& tile) {
    const int64_t first = range.begin - tile.begin, keys = range.end - range.begin;
    Core<Unit>::template multiply_to<false>(t.scores, panel_cols, tile.keys.from(first),
                                            t.queries + panel * filled_units<Unit>(t.width) * panel_cols,
                                            units_of<Unit>(t.width), keys);
    if (masked_before(q, panel, range))
        break_panel<Unit, true>(t, q, rows, panel, range, slice);
    else
        break_panel<Unit, false>(t, q, rows, panel, range, slice);
    Core<Unit>::template multiply_to<true>(t.output + panel * t.height * panel_cols, panel_cols,
                                           tile.values.from_unit(first / Unit::floats), t.scores,
                                           units_of<Unit>(keys), t.width);
}

}  // namespace

template <class Unit>
void CpuOps::break_sticks(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                          const AttentionSpec& spec) {
    const int64_t d = spec.head_dim, length = spec.length, group = spec.heads / spec.kv_heads;
    const int64_t before = keys_before(spec, k);
    check(StickTile<Unit>::floats(d) <= scratch_per_thread_, "attention: head size {} is too large", d);
    check_sticks(spec);
    const int64_t tiles = (length + query_tile - 1) / query_tile;
    const int32_t* row_start = spec.row_start ? spec.row_start.i32() : nullptr;
    pool_.run(spec.batch * spec.heads * tiles, [&](int64_t item, int thread) {
        [[maybe_unused]] const typename Core<Unit>::Ready ready;
        const int64_t sequence = item / tiles / spec.heads, head = item / tiles % spec.heads;
        const int64_t first_row = sequence * length, begin = (tiles - 1 - item % tiles) * query_tile;
        const QueryTile tile(begin, length, row_start ? row_start + first_row : nullptr, before);
        const auto part = [&](const Tensor& t, int64_t rows, int64_t which) {
            return t.row_range(sequence * rows, rows).col_range(which * d, d);
        };
        const Tensor queries = part(q, length, head), keys = part(k, before + length, head / group),
                     values = part(v, before + length, head / group);
        const int64_t token = first_row + begin, count = tile.end - tile.begin;
        StickTile<Unit> t(scratch_of(thread), d);
        const ScoreRows rows(spec, head, token, count);
        pack_queries_transposed<Unit>(t.queries, queries.f32() + begin * queries.row_stride,
                                      queries.row_stride, count, d, rows.packing);
        const TableSlice::Tables tables(spec, head);
        TableSlice slice;
        const int64_t first = tile.first_key() / step_floats<Unit> * step_floats<Unit>;
        const int64_t last = (tile.end - 1 - first) / key_tile;
        for (int64_t number = last; number >= 0; --number) {
            const int64_t key = first + number * key_tile, key_end = smaller(key + key_tile, tile.end);
            if (tables.gain) slice.cut(tables, tile.begin, key, key_end);
            const KeyTile side = KeyTile::of<Unit>(t.packed, keys, Tensor(), values, key, key_end);
            bool done = true;
            for (int64_t panel = 0; panel < query_panels; ++panel) {
                const KeyRange range(tile, panel, key, key_end, step_floats<Unit>);
                if (tile.begin + panel * panel_cols >= tile.end || all_used_up(t.broken + panel * panel_cols))
                    continue;
                done = false;
                if (!range.empty()) attend_panel(t, tile, rows, panel, range, slice, side);
            }
            if (done) break;
        }
        write_output(t, tile, o.f32() + token * o.row_stride + head * d, o.row_stride);
        float* left = lse.f32() + head * lse.row_stride + token;
        for (int64_t i = 0; i < count; ++i) left[i] = -t.broken[i] * ln_2;
    });
}

template void CpuOps::break_sticks<PlainUnit>(Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&,
                                              const AttentionSpec&);
#if defined(LONGREACH_ISA_BF16)
template void CpuOps::break_sticks<Bf16Unit>(Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&,
                                             const AttentionSpec&);
#endif
#if defined(LONGREACH_ISA_AVX512)
template void CpuOps::break_sticks<TileUnit>(Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&,
                                             const AttentionSpec&);
#endif

#include "kernels/cpu/isa_end.h"
