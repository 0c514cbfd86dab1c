// Entmax attention: o = P v, P as entmax.h says; theta in the place of the lse.
//
//   q, o [N, H*d], k, v [N, G*d], lse [H, N]. Backward needs q, k, v, o and theta. 4*d FLOPs per visible pair, and per step to
//   theta, of which there are 2 to 8, a few operations on each score that may still have a weight.
//
// A tile of queries computes the scores of all its keys once and keeps them while it looks for theta: T rows of query_tile
// floats per thread, 1 MiB at 4096 keys, never T x T. Tiles of keys in which a panel gives no weight are left out of further
// steps, and their values are never read. Scores are those of attention.cpp. Parallel over (sequence, head, tile of queries).
#include <cmath>
#include <memory>
#include <vector>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/attention_scores.h"
#include "kernels/cpu/entmax.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Keys of one tile that a panel may give weights.
struct Stretch {
    int64_t begin, end;
    float* scores;  // [keys][panel_cols]
};

// Memory of a thread besides its scratch.
struct WholeRows {
    static constexpr int64_t slack = key_tile;  // rows that products write past the last key
    int64_t keys;
    std::unique_ptr<float[]> scores;       // [query_panels][keys][panel_cols]
    std::unique_ptr<Stretch[]> stretches;  // [query_panels][tiles]
    int64_t tiles, count[query_panels];

    explicit WholeRows(int64_t length)
        : keys(length + slack),
          scores(new float[static_cast<size_t>(keys * query_tile)]),
          tiles(length / key_tile + 2) {
        stretches.reset(new Stretch[static_cast<size_t>(tiles * query_panels)]);
    }
    float* scores_of(int64_t panel) const { return scores.get() + panel * keys * panel_cols; }
    Stretch* stretches_of(int64_t panel) const { return stretches.get() + panel * tiles; }
};

// One tile of queries of one head.
template <class Unit>
struct EntmaxTile : ScoreTile<Unit> {
    float* output;  // [query_panels][height][panel_cols]: O^T
    float* theta;   // [query_tile]: the largest score, then the threshold

    EntmaxTile(const Item& item, int64_t first, const int32_t* row_start, float* memory)
        : ScoreTile<Unit>(item, first, row_start, memory),
          output(memory + ScoreTile<Unit>::floats(this->width)),
          theta(output + query_tile * height(this->width)) {
        for (int64_t i = 0; i < query_tile * height(this->width); ++i) output[i] = 0.0f;
    }
    static int64_t height(int64_t head_dim) { return round_up(head_dim, Core<Unit>::rows_together); }
    static int64_t floats(int64_t head_dim) {
        return ScoreTile<Unit>::floats(head_dim) + query_tile * (height(head_dim) + 1);
    }
    float* output_of(int64_t panel) const { return output + panel * height(this->width) * panel_cols; }
};

// Turns the products of one panel and keys [range.begin, range.end) into scores and raises the largest of each row.
template <class Unit, Form form, bool masked>
void complete_scores(const EntmaxTile<Unit>& t, float* scores, int64_t panel, const KeyRange& range,
                     const TableSlice& slice) {
    const int64_t keys = range.end - range.begin;
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane, query = t.q.begin + at;
        Vec top = load(t.theta + at);
        for (int64_t j = 0; j < keys; ++j) {
            float* y = scores + j * panel_cols + lane;
            const int64_t key = range.begin + j;
            Vec value = score_of<form>(load(y), t.rows, at, slice, query - key - slice.lowest, key).y;
            if constexpr (masked) value = mask_unseen(value, key, query, t.q.start + at);
            if constexpr (form != Form::plain || masked) store(y, value);
            top = max(top, value);
        }
        store(t.theta + at, top);
    }
}

// The instantiations of one form, with and without masked pairs.
template <class Unit>
struct FormPasses {
    using Complete = void (*)(const EntmaxTile<Unit>&, float*, int64_t, const KeyRange&, const TableSlice&);
    Complete masked, whole;
};
template <class Unit, Form form>
constexpr FormPasses<Unit> passes_of = {complete_scores<Unit, form, true>,
                                        complete_scores<Unit, form, false>};

// Scores of all keys that the tile sees.
template <class Unit>
void score_tile(const EntmaxTile<Unit>& t, WholeRows& rows, const Item& item, const FormPasses<Unit>& passes,
                float* scratch) {
    Buffers<Unit> buffers(scratch);
    const TableSlice::Tables tables(item.spec, item.head);
    const double* sums = sums_of_head(item.spec, item.head, item.first_key);
    TableSlice slice;
    const int64_t first = t.q.first_key() / step_floats<Unit> * step_floats<Unit>;
    for (int64_t& count : rows.count) count = 0;
    for (int64_t key = first; key < t.q.end; key += key_tile) {
        const int64_t key_end = smaller(key + key_tile, t.q.end);
        if (tables.gain) slice.cut(tables, t.q.begin, key, key_end);
        if (sums) slice.cut_forget(sums, key, key_end);
        const KeyTile tile = KeyTile::of_keys<Unit>(buffers.packed, item.k, item.far_k, key, key_end);
        for (int64_t panel = 0; panel < query_panels; ++panel) {
            const KeyRange range(t.q, panel, key, key_end, step_floats<Unit>);
            if (range.empty()) continue;
            buffers.scores = rows.scores_of(panel) + (range.begin - first) * panel_cols;
            score_panel(t, buffers, panel, range, tile, item.spec.far_from);
            (range.masked ? passes.masked : passes.whole)(t, buffers.scores, panel, range, slice);
            rows.stretches_of(panel)[rows.count[panel]++] = {range.begin, range.end, buffers.scores};
        }
    }
}

// theta of one panel, and the stretches that have weights.
template <class Unit, bool squares>
void find_panel(const EntmaxTile<Unit>& t, WholeRows& rows, int64_t panel, const Entmax& e) {
    Stretch* const all = rows.stretches_of(panel);
    int64_t& count = rows.count[panel];
    float* const at = t.theta + panel * panel_cols;
    Vec theta[2] = {load(at), load(at + lanes)};
    find_thresholds<squares>(e, theta, [&](const Vec(&from)[2], Weights(&total)[2]) {
        int64_t kept = 0;
        for (int64_t i = 0; i < count; ++i) {
            const Stretch stretch = all[i];
            Weights left{}, right{};
            const float* y = stretch.scores;
            for (int64_t j = stretch.begin; j < stretch.end; ++j, y += panel_cols) {
                const Weights l = weights_at<squares>(e, load(y) - from[0]),
                              r = weights_at<squares>(e, load(y + lanes) - from[1]);
                left.p += l.p, left.s += l.s;
                right.p += r.p, right.s += r.s;
            }
            if (all_zero(left.p) && all_zero(right.p)) continue;
            all[kept++] = stretch;
            total[0].p += left.p, total[0].s += left.s;
            total[1].p += right.p, total[1].s += right.s;
        }
        count = kept;
    });
    store(at, theta[0]);
    store(at + lanes, theta[1]);
}

// P^T of one stretch, in the units of its product with values.
template <class Unit, bool squares>
void weigh_stretch(float* to, const Stretch& stretch, const float* theta, const Entmax& e) {
    const int64_t keys = stretch.end - stretch.begin;
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const Vec from = load(theta + lane);
        const auto weight = [&](int64_t j) __attribute__((always_inline)) {
            return weights_at<squares>(e, load(stretch.scores + j * panel_cols + lane) - from).p;
        };
        for (int64_t j = 0; j < keys; j += Unit::floats) {
            if constexpr (Unit::floats == 1)
                store(to + j * panel_cols + lane, weight(j));
            else
                store(to + j / Unit::floats * panel_cols + lane,
                      Unit::interleave(weight(j), j + 1 < keys ? weight(j + 1) : Vec{}));
        }
        for (int64_t u = units_of<Unit>(keys); u < filled_units<Unit>(keys); ++u)
            store(to + u * panel_cols + lane, Vec{});
    }
}

// O^T of the tile, tile of keys by tile of keys, so that panels share each.
template <class Unit, bool squares>
void add_values(const EntmaxTile<Unit>& t, const WholeRows& rows, const Item& item, const Entmax& e,
                float* scratch) {
    const Buffers<Unit> buffers(scratch);
    int64_t next[query_panels] = {};
    const int64_t first = t.q.first_key() / step_floats<Unit> * step_floats<Unit>;
    for (int64_t key = first; key < t.q.end; key += key_tile) {
        const int64_t key_end = smaller(key + key_tile, t.q.end);
        Strided values{};
        for (int64_t panel = 0; panel < query_panels; ++panel) {
            if (next[panel] == rows.count[panel]) continue;
            const Stretch& stretch = rows.stretches_of(panel)[next[panel]];
            if (stretch.begin >= key_end) continue;
            ++next[panel];
            if (!values.data) values = KeyTile::values_of<Unit>(buffers.packed, item.v, key, key_end);
            weigh_stretch<Unit, squares>(buffers.scores, stretch, t.theta + panel * panel_cols, e);
            Core<Unit>::template multiply_to<true>(
                t.output_of(panel), panel_cols, values.from_unit((stretch.begin - key) / Unit::floats),
                buffers.scores, units_of<Unit>(stretch.end - stretch.begin), t.width);
        }
    }
}

// Where an item puts its rows: of its sequence, o the columns of its head.
struct Output {
    Tensor o;
    float* lse;
};

template <class Unit, bool squares>
void entmax_tile(const Output& to, const EntmaxTile<Unit>& t, WholeRows& rows, const Item& item,
                 const FormPasses<Unit>& passes, float* scratch) {
    const Entmax e(item.spec, item.head);
    for (int64_t i = 0; i < query_tile; ++i) t.theta[i] = e.sink > -1e30f ? e.sink : -1e30f;
    score_tile(t, rows, item, passes, scratch);
    for (int64_t panel = 0; panel < query_panels; ++panel)
        if (rows.count[panel] > 0) find_panel<Unit, squares>(t, rows, panel, e);
    add_values<Unit, squares>(t, rows, item, e, scratch);
    const int64_t count = t.q.end - t.q.begin, row = t.q.begin - item.before;
    for (int64_t i = 0; i < count; ++i) to.lse[row + i] = t.theta[i] * ln_2;
    float* const o = to.o.f32() + row * to.o.row_stride;
    for (int64_t i = 0; i < count; i += panel_cols)
        for_turned(t.output_of(i / panel_cols), t.width, smaller(panel_cols, count - i),
                   [=](int64_t r, int64_t c, Vec value, int n) {
                       store_first(o + (i + r) * to.o.row_stride + c, value, n);
                   });
}

}  // namespace

template <class Unit>
void CpuOps::entmax_attention(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionSpec& spec) {
    const int64_t d = spec.head_dim, length = spec.length;
    check_entmax(spec);
    check(Buffers<Unit>::floats(d) + EntmaxTile<Unit>::floats(d) <= scratch_per_thread_,
          "attention: head size {} is too large", d);
    const int64_t tiles = (length + query_tile - 1) / query_tile;
    const int32_t* row_start = spec.row_start ? spec.row_start.i32() : nullptr;
    const Form form = form_of(spec);
    const FormPasses<Unit> passes = form == Form::general    ? passes_of<Unit, Form::general>
                                    : form == Form::distance ? passes_of<Unit, Form::distance>
                                    : form == Form::forget   ? passes_of<Unit, Form::forget>
                                                             : passes_of<Unit, Form::plain>;
    const auto attend = Entmax(spec, 0).squares ? entmax_tile<Unit, true> : entmax_tile<Unit, false>;
    std::vector<std::unique_ptr<WholeRows>> of_thread(static_cast<size_t>(threads_));
    // The longest tiles of a head come first.
    pool_.run(spec.batch * spec.heads * tiles, [&](int64_t i, int thread) {
        [[maybe_unused]] const typename Core<Unit>::Ready ready;
        std::unique_ptr<WholeRows>& rows = of_thread[static_cast<size_t>(thread)];
        if (!rows) rows = std::make_unique<WholeRows>(k.rows() / spec.batch);
        const int64_t sequence = i / tiles / spec.heads, head = i / tiles % spec.heads;
        const int64_t first_row = sequence * length;
        const Item item(spec, sequence, head, q, k, v, false);
        float* const scratch = scratch_of(thread);
        const EntmaxTile<Unit> t(item, (tiles - 1 - i % tiles) * query_tile,
                                 row_start ? row_start + first_row : nullptr,
                                 scratch + Buffers<Unit>::floats(d));
        const Output to{o.row_range(first_row, length).col_range(head * d, d),
                        lse.f32() + head * lse.row_stride + first_row};
        attend(to, t, *rows, item, passes, scratch);
    });
}

template void CpuOps::entmax_attention<PlainUnit>(Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&,
                                                  const AttentionSpec&);
#if defined(LONGREACH_ISA_BF16)
template void CpuOps::entmax_attention<Bf16Unit>(Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&,
                                                 const AttentionSpec&);
#endif
#if defined(LONGREACH_ISA_AVX512)
template void CpuOps::entmax_attention<TileUnit>(Tensor, Tensor, const Tensor&, const Tensor&, const Tensor&,
                                                 const AttentionSpec&);
#endif

#include "kernels/cpu/isa_end.h"
