// Attention whose channels decay: o = P v, lse = log of the denominator, scores as channel_decay.h says.
//
//   q, o [N, H*d], k, v [N, G*d], lse [H, N]. 4*d FLOPs and one exp2 per visible pair, d multiplications for each query and
//   block of keys, d exponentials per key, per query, per two blocks, and for each pair within a block.
//
// Online softmax over tiles of keys, in base 2, for one panel of queries at a time. Tiles begin at multiples of key_stretch: a
// sequence in pieces has the same bits. Always f32: a factor belongs to a channel, and two channels share a unit of bf16.
// Parallel over (sequence, head, panel).
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/items.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/channel_decay.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// What is known of a panel so far.
struct Online {
    float* output;  // [d][panel_cols]: O^T, relative to `top`
    alignas(64) float top[panel_cols], sum[panel_cols], shrink[panel_cols];

    Online(float* memory, int64_t width, float sink) : output(memory) {
        for (int64_t i = 0; i < width * panel_cols; ++i) output[i] = 0.0f;
        // A sink acts as the first key. `top` stays finite; -1e30 is far below any score.
        const float logit = sink * log2_e;
        const bool none = logit < -1e30f;
        for (int64_t x = 0; x < panel_cols; ++x) {
            top[x] = none ? -1e30f : logit;
            sum[x] = none ? 0.0f : 1.0f;
        }
    }
};

// Products of keys [key, key_end) become P^T.
void soften(Online& known, float* scores, const DecayedPanel& panel, const QueryTile& q,
            const ScoreRows& rows, const TableSlice& slice, int64_t key, int64_t key_end) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t query = panel.begin + lane;
        const Vec before = load(known.top + lane);
        Vec top = before;
        for (int64_t j = key; j < key_end; ++j) {
            float* y = scores + (j - key) * panel_cols + lane;
            const Vec score =
                score_of<Form::general>(load(y), rows, lane, slice, query - j - slice.lowest, j).y;
            const Vec seen = mask_unseen(score, j, query, q.start + lane);
            store(y, seen);
            top = max(top, seen);
        }
        Vec sum{};
        for (int64_t j = key; j < key_end; ++j) {
            float* y = scores + (j - key) * panel_cols + lane;
            const Vec p = exp2(load(y) - top);
            store(y, p);
            sum += p;
        }
        const Vec shrink = exp2(before - top);
        store(known.top + lane, top);
        store(known.shrink + lane, shrink);
        store(known.sum + lane, fma(load(known.sum + lane), shrink, sum));
    }
}

void add_values(const Online& known, const float* weights, const float* values, int64_t stride, int64_t keys,
                int64_t width) {
    for (int64_t c = 0; c < width; ++c)
        for (int64_t x = 0; x < panel_cols; x += lanes) {
            float* o = known.output + c * panel_cols + x;
            store(o, load(o) * load(known.shrink + x));
        }
    Core<PlainUnit>::multiply_to<true>(known.output, panel_cols, {values, 1, stride}, weights, keys, width);
}

// Rows of one panel: of its first query on, o the columns of the head.
void write_panel(float* o, int64_t stride, float* lse, Online& known, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; ++i) lse[i] = known.top[i] * ln_2 + std::log(known.sum[i]);
    for (int64_t x = 0; x < panel_cols; x += lanes)
        store(known.shrink + x, splat(1.0f) / load(known.sum + x));
    for_turned(known.output, width, rows, [&](int64_t r, int64_t c, Vec value, int count) {
        store_first(o + r * stride + c, value * splat(known.shrink[r]), count);
    });
}

}  // namespace

void CpuOps::decayed_attention(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                               const AttentionSpec& spec) {
    check_channel_memory(spec, k);
    const int64_t d = spec.head_dim, heads = spec.batch * spec.heads, keys = k.rows() / spec.batch;
    const int64_t before = keys - spec.length, first_panel = before / panel_cols;
    const int64_t panels = (keys - 1) / panel_cols + 1 - first_panel;
    check(key_stretch * panel_cols + DecayedPanel::floats(d) + d * panel_cols <= scratch_per_thread_,
          "attention: head size {} is too large", d);
    fade_keys(spec, k, pool_);
    const int32_t* row_start = spec.row_start ? spec.row_start.i32() : nullptr;
    pool_.run(heads * panels, [&](int64_t item, int thread) {
        const int64_t index = item / panels, sequence = index / spec.heads, h = index % spec.heads;
        const int64_t number = first_panel + panels - 1 - item % panels;  // the longest first
        const int64_t begin = larger(before, number * panel_cols),
                      end = smaller(keys, (number + 1) * panel_cols);
        const int64_t row = begin - before, token = sequence * spec.length + row;
        const DecayedHead head(spec, k, index);
        float* scores = scratch_of(thread);
        DecayedPanel panel(head, begin, end, scores + key_stretch * panel_cols);
        Online known(panel.plain + DecayedPanel::floats(d), d,
                     spec.sink ? spec.sink.f32()[h] : -__builtin_inff());
        const QueryTile tile(row, spec.length, row_start ? row_start + sequence * spec.length : nullptr,
                             before);
        const ScoreRows rows(spec, h, token, panel.count(), (keys - spec.length) * (sequence + 1));
        panel.pack(q.f32() + token * q.row_stride + h * d, q.row_stride, rows.packing);
        const TableSlice::Tables tables(spec, h);
        const double* sums = sums_of_head(spec, h, sequence * keys);
        const float* values = v.f32() + sequence * keys * v.row_stride + h / (spec.heads / spec.kv_heads) * d;
        TableSlice slice;
        for (int64_t key = tile.first_key() / key_stretch * key_stretch; key < end; key += key_stretch) {
            const int64_t key_end = smaller(key + key_stretch, end);
            if (tables.gain) slice.cut(tables, begin, key, key_end);
            if (sums) slice.cut_forget(sums, key, key_end);
            panel.multiply(scores, key, key_end);
            soften(known, scores, panel, tile, rows, slice, key, key_end);
            add_values(known, scores, values + key * v.row_stride, v.row_stride, key_end - key, d);
        }
        write_panel(o.f32() + token * o.row_stride + h * d, o.row_stride,
                    lse.f32() + h * lse.row_stride + token, known, panel.count(), d);
    });
}

#include "kernels/cpu/isa_end.h"
