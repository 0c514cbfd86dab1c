// Gradients of attention whose channels decay, scores as channel_decay.h says. Per visible pair, with
// P = exp(y - lse), delta_i = <dO_i, O_i> and dS = gain(t) P (dO_i v_j - delta_i):
//
//   dV = P^T dO      dK_jc = scale sum_i dS_ij f_i q_ic e      dQ_ic = scale f_i sum_j dS_ij k_jc e      e = exp(C_ic - C_jc)
//   dC_i = q_i dQ_i - k_i dK_i, channel by channel, with the dK of this head alone
//
// The last line holds because q_ic and exp(C_ic) stand in the score as their product, k_jc and exp(-C_jc) likewise. Between
// blocks the factors of e are split as in the forward pass: dQ is summed without exp(C_i - C_a), after exp(C_a - C_b) has
// multiplied what each block of keys adds, dK without exp(C_b - C_j). 10*d FLOPs and one exp2 per visible pair.
//
// Parallel over (sequence, key/value head); an item takes its heads, and their panels of queries, one after the other.
#include <cmath>
#include <cstring>
#include <vector>

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
#include "kernels/cpu/channel_decay.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

inline constexpr int64_t block_panels = channel_block / panel_cols;

// Sums over the queries, for the keys of one sequence and key/value head: [T, padded] each.
struct KeySums {
    int64_t padded;
    float*
        faded;  // dK over what panels have in common with earlier blocks, without exp(C_b - C_j); of one head
    float* paired;  // dK from pairs within a block; of one head
    float* values;  // dV; of all heads

    KeySums(float* memory, int64_t length, int64_t width)
        : padded(round_up(width, panel_cols)),
          faded(memory),
          paired(faded + length * padded),
          values(paired + length * padded) {}
    static int64_t floats(int64_t length, int64_t width) { return 3 * length * round_up(width, panel_cols); }
};

// One panel of queries: its inputs in the layouts of the products, its dQ, and one tile of keys.
struct GradientPanel {
    DecayedPanel panel;
    QueryTile tile;
    ScoreRows rows;
    int64_t width, padded;
    float* dout_columns;  // [d][panel_cols]
    float* dout_rows;     // [padded / panel_cols][panel_cols of queries][panel_cols of channels]
    float* query_rows;    // likewise, DecayedPanel::faded
    float* scaled_rows;   // likewise, times DecayedPanel::factor
    float* dq_faded;      // [d][panel_cols]: dQ^T from earlier blocks, without exp(C_i - C_a), scale and f
    float* dq;            // [d][panel_cols]: from pairs within the block, then all
    float* block_dq;      // [d][panel_cols]: of one block of keys
    float* p;             // [key_stretch][panel_cols]: S^T, then P^T
    float* ds;            // [key_stretch][panel_cols]: dP^T, then dS^T
    alignas(64) float lse[panel_cols], delta[panel_cols], drow[panel_cols];

    static int64_t floats(int64_t width) {
        return DecayedPanel::floats(width) +
               (4 * width + 3 * round_up(width, panel_cols) + 2 * key_stretch) * panel_cols;
    }
    GradientPanel(const DecayedPanel& of, const QueryTile& queries, const ScoreRows& score, float* memory)
        : panel(of), tile(queries), rows(score), width(of.head.width), padded(round_up(width, panel_cols)) {
        const int64_t columns = width * panel_cols, of_rows = padded * panel_cols;
        dout_columns = memory, dq_faded = dout_columns + columns, dq = dq_faded + columns,
        block_dq = dq + columns;
        dout_rows = block_dq + columns, query_rows = dout_rows + of_rows, scaled_rows = query_rows + of_rows;
        p = scaled_rows + of_rows, ds = p + key_stretch * panel_cols;
    }
    float* row_panel(float* of_rows, int64_t channel) const { return of_rows + channel * panel_cols; }

    void load_queries(const float* dout, int64_t stride, const float* at_lse, const float* at_delta) {
        const int64_t n = panel.count();
        pack_panel_transposed<PlainUnit>(dout_columns, dout, stride, width, n);
        std::memset(dout_rows, 0, static_cast<size_t>(2 * padded * panel_cols) * sizeof(float));
        for (int64_t c = 0; c < width; c += panel_cols)
            pack_panel<PlainUnit>(row_panel(dout_rows, c), dout + c, stride, n, width - c);
        for_turned(panel.faded, width, panel_cols, [this](int64_t r, int64_t c, Vec value, int) {
            store(row_panel(query_rows, c / panel_cols * panel_cols) + r * panel_cols + c % panel_cols,
                  value);
        });
        for (int64_t i = 0; i < 2 * width * panel_cols; ++i) dq_faded[i] = 0.0f;  // dq too
        for (int64_t x = 0; x < panel_cols; ++x) {
            lse[x] = x < n ? at_lse[x] * log2_e : __builtin_inff();  // of no query: probability 0
            delta[x] = x < n ? at_delta[x] : 0.0f;
            drow[x] = 0.0f;
        }
    }
};

// p: S^T to P^T; ds: dP^T to dS^T. by_key (may be null): sums of dL over the queries, [keys from `key` on][sum_lanes].
void differentiate(GradientPanel& t, const TableSlice& slice, int64_t key, int64_t key_end, float* by_key) {
    const QueryTile& q = t.tile;
    const ScoreRows& rows = t.rows;
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t query = t.panel.begin + lane;
        const Vec lse = load(t.lse + lane), delta = load(t.delta + lane);
        Vec drow = load(t.drow + lane);
        for (int64_t j = key; j < key_end; ++j) {
            const int64_t at = (j - key) * panel_cols + lane;
            const Score s =
                score_of<Form::general>(load(t.p + at), rows, lane, slice, query - j - slice.lowest, j);
            const Vec p = exp2(mask_unseen(s.y - lse, j, query, q.start + lane));
            const Vec dl = p * (load(t.ds + at) - delta);
            store(t.p + at, p);
            store(t.ds + at, dl * s.gain);
            drow += dl;
            if (!by_key) continue;
            float* sum = by_key + (j - key) * sum_lanes + query % sum_lanes;
            store(sum, load(sum) + dl);
        }
        store(t.drow + lane, drow);
    }
}

// What pairs within a block, whose panels these are, give to dQ^T and dK. Of each panel, ds holds keys from `tile_key` on.
void add_pairs(const std::vector<GradientPanel>& panels, int64_t tile_key, float* dk) {
    const DecayedHead& head = panels[0].panel.head;
    const int64_t begin = panels[0].panel.begin, end = panels.back().panel.end;
    const int vectors = static_cast<int>((end - begin + lanes - 1) / lanes);
    for (int64_t c = 0; c < head.width; ++c) {
        const PairFactors factors(head, c, begin, end - begin);
        for (int64_t j = begin; j < end; ++j) {
            const Vec k = splat(head.keys[j * head.key_stride + c]);
            Sums sum;
            for (int v = factors.first_after(j); v < vectors; ++v) {
                const GradientPanel& t = panels[static_cast<size_t>(v * lanes / panel_cols)];
                const int64_t half = v * lanes % panel_cols, at = c * panel_cols + half;
                const Vec share = load(t.ds + (j - tile_key) * panel_cols + half) * factors.at(j, v);
                store(t.dq + at, fma(share, k, load(t.dq + at)));
                Vec& part = sum.part[v % sum_parts];
                part = fma(share, load(t.panel.plain + at), part);
            }
            dk[(j - begin) * panels[0].padded + c] += reduce_add(sum);
        }
    }
}

// Rows of keys by the queries of a panel, as a left side.
Left by_query(const float* rows) {
    return {rows, tile_rows * panel_cols, panel_cols, 1};
}

// What an earlier block of keys gives to dQ^T and gets in dK.
void add_block(const GradientPanel& t, const float* ds, int64_t key, int64_t keys, float* dk) {
    const DecayedPanel& panel = t.panel;
    panel.scale_to(key / channel_block);
    Core<PlainUnit>::multiply_to<false>(t.block_dq, panel_cols, {panel.head.faded + key, panel.head.count, 1},
                                        ds, keys, t.width);
    for (int64_t c = 0; c < t.width; ++c)
        for (int64_t x = 0; x < panel_cols; x += lanes) {
            float* to = t.dq_faded + c * panel_cols + x;
            store(to, fma(load(t.block_dq + c * panel_cols + x), splat(panel.factor[c]), load(to)));
        }
    for (int64_t c = 0; c < t.padded; c += panel_cols) {
        float* scaled = t.row_panel(t.scaled_rows, c);
        for (int64_t i = 0; i < panel_cols * panel_cols; i += lanes)
            store(scaled + i,
                  load(t.row_panel(t.query_rows, c) + i) * load(panel.factor + c + i % panel_cols));
        multiply_onto<PlainUnit>(dk + c, t.padded, by_query(ds), scaled, panel_cols, keys);
    }
}

// One tile of keys against one panel of queries, but for the pairs within a block.
void add_tile(const GradientPanel& t, const KeySums& sums, int64_t key, int64_t key_end) {
    for (int64_t c = 0; c < t.padded; c += panel_cols)
        multiply_onto<PlainUnit>(sums.values + key * t.padded + c, t.padded, by_query(t.p),
                                 t.row_panel(t.dout_rows, c), panel_cols, key_end - key);
    const float* ds = t.ds;
    for (; key < key_end && key / channel_block < t.panel.block; key += channel_block) {
        add_block(t, ds, key, channel_block, sums.faded + key * t.padded);
        ds += channel_block * panel_cols;
    }
}

}  // namespace

int64_t CpuOps::decay_workspace(const AttentionSpec& spec) const {
    const int64_t deltas = round_up(spec.heads * spec.batch * spec.length, 16);
    return (deltas + threads_ * KeySums::floats(spec.length, spec.head_dim)) *
           static_cast<int64_t>(sizeof(float));
}

namespace {

// Everything of one head that its item reads and writes.
struct HeadGradients {
    const AttentionSpec& spec;
    const AttentionTensors& of;
    const AttentionGradients& also;
    const DecayedHead& head;
    int64_t sequence, h;
    const float* delta;  // [H, N]
    float* scratch;

    int64_t token(int64_t position) const { return sequence * spec.length + position; }
    const float* row(const Tensor& t, int64_t position, int64_t which) const {
        return t.f32() + token(position) * t.row_stride + which * spec.head_dim;
    }
    float* by_head(const Tensor& t, int64_t position) const {
        return t ? t.f32() + h * t.row_stride + token(position) : nullptr;
    }
    float* of_channel(int64_t c, int64_t position) const {
        const Tensor& t = also.channel_sums;
        return t.f32() + (h * spec.head_dim + c) * t.row_stride + token(position);
    }
};

// dQ of a panel, and what is made of it.
void write_queries(const HeadGradients& g, const GradientPanel& t) {
    const DecayedPanel& panel = t.panel;
    const int64_t n = panel.count(), begin = panel.begin;
    for (int64_t c = 0; c < t.width; ++c)
        for (int64_t x = 0; x < panel_cols; x += lanes) {
            const int64_t at = c * panel_cols + x;
            const Vec all = fma(load(t.dq_faded + at), load(panel.growth + at), load(t.dq + at));
            store(t.dq + at, all);
            if (g.also.channel_sums && x < n)
                store_first(g.of_channel(c, begin + x), all * load(panel.plain + at) * splat(ln_2),
                            static_cast<int>(smaller(lanes, n - x)));
        }
    float* dq = g.of.dq.f32() + g.token(begin) * g.of.dq.row_stride + g.h * t.width;
    float* dfactor = g.by_head(g.also.row_factor, begin);
    for_turned(t.dq, t.width, n, [&](int64_t r, int64_t c, Vec value, int count) {
        store_first(dq + r * g.of.dq.row_stride + c, value * splat(g.spec.scale), count);
    });
    for (int64_t r = 0; r < n; ++r) {
        float* row = dq + r * g.of.dq.row_stride;
        if (dfactor) dfactor[r] = dot(row, g.row(g.of.q, begin + r, g.h), t.width);
        const Vec factor = splat(t.rows.factor[r]);
        for_vectors(t.width, [&](int64_t c, auto w) { store(row + c, load(row + c, w) * factor, w); });
    }
    if (float* forget = g.by_head(g.also.forget, begin))
        for (int64_t i = 0; i < n; ++i) forget[i] += t.drow[i];
}

// dK += of this head; the rest of dC.
void write_keys(const HeadGradients& g, const KeySums& sums, int64_t kv_head) {
    const DecayedHead& head = g.head;
    for (int64_t block = 0; block < head.blocks(); ++block)
        for (int64_t c = 0; c < head.width; ++c) {
            alignas(64) float factors[channel_block];
            head.fade(factors, c, block);
            const int64_t begin = block * channel_block, n = smaller(channel_block, head.count - begin);
            float* dk = g.of.dk.f32() + g.token(begin) * g.of.dk.row_stride + kv_head * head.width + c;
            float* dsums = g.also.channel_sums ? g.of_channel(c, begin) : nullptr;
            for (int64_t x = 0; x < n; ++x) {
                const int64_t at = (begin + x) * sums.padded + c;
                const float own = ln_2 * (factors[x] * sums.faded[at] + sums.paired[at]);
                dk[x * g.of.dk.row_stride] += own;
                if (dsums) dsums[x] -= head.keys[(begin + x) * head.key_stride + c] * own;
            }
        }
}

// The panels of the queries [begin, end), a block.
std::vector<GradientPanel> panels_of(const HeadGradients& g, int64_t begin, int64_t end,
                                     const int32_t* row_start) {
    const AttentionSpec& s = g.spec;
    std::vector<GradientPanel> panels;
    panels.reserve(block_panels);
    float* memory = g.scratch;
    for (; begin < end; begin += panel_cols, memory += GradientPanel::floats(s.head_dim)) {
        DecayedPanel panel(g.head, begin, smaller(end, begin + panel_cols), memory);
        const ScoreRows rows(s, g.h, g.token(begin), panel.count());
        panel.pack(g.row(g.of.q, begin, g.h), g.of.q.row_stride, rows.packing);
        panels.emplace_back(panel, QueryTile(begin, s.length, row_start), rows,
                            memory + DecayedPanel::floats(s.head_dim));
        panels.back().load_queries(g.row(g.of.dout, begin, g.h), g.of.dout.row_stride,
                                   g.by_head(g.of.lse, begin),
                                   g.delta + g.h * s.batch * s.length + g.token(begin));
    }
    return panels;
}

void backward_head(const HeadGradients& g, const KeySums& sums, int64_t kv_head, const int32_t* row_start) {
    const AttentionSpec& s = g.spec;
    const int64_t d = s.head_dim, length = s.length;
    std::memset(sums.faded, 0, static_cast<size_t>(2 * length * sums.padded) * sizeof(float));  // paired too
    if (float* forget = g.by_head(g.also.forget, 0))
        std::memset(forget, 0, static_cast<size_t>(length) * sizeof(float));
    const TableSlice::Tables tables(s, g.h);
    const double* forget = sums_of_head(s, g.h, g.token(0));
    TableSlice slice;
    for (int64_t begin = 0; begin < length; begin += channel_block) {
        const int64_t end = smaller(length, begin + channel_block);
        std::vector<GradientPanel> panels = panels_of(g, begin, end, row_start);
        int64_t key = panels[0].tile.first_key() / key_stretch * key_stretch;
        for (; key < end; key += key_stretch) {
            alignas(64) float by_key[key_stretch * sum_lanes] = {};
            for (GradientPanel& t : panels) {
                const int64_t key_end = smaller(key + key_stretch, t.panel.end);
                if (tables.gain) slice.cut(tables, t.panel.begin, key, key_end);
                if (forget) slice.cut_forget(forget, key, key_end);
                t.panel.multiply(t.p, key, key_end);
                Core<PlainUnit>::multiply_to<false>(t.ds, panel_cols,
                                                    {g.row(g.of.v, key, kv_head), g.of.v.row_stride, 1},
                                                    t.dout_columns, d, key_end - key);
                differentiate(t, slice, key, key_end, g.also.forget ? by_key : nullptr);
                add_tile(t, sums, key, key_end);
            }
            if (float* to = g.by_head(g.also.forget, key))
                for (int64_t j = 0; j < smaller(key_stretch, end - key); ++j)
                    to[j] -= reduce_add(*reinterpret_cast<const Sums*>(by_key + j * sum_lanes));
        }
        add_pairs(panels, key - key_stretch, sums.paired + begin * sums.padded);
        for (const GradientPanel& t : panels) write_queries(g, t);
    }
    write_keys(g, sums, kv_head);
}

}  // namespace

void CpuOps::decayed_attention_backward(const AttentionTensors& of, const AttentionGradients& gradients,
                                        const Tensor& workspace, const AttentionSpec& spec) {
    check_channel_memory(spec, of.k);
    check(!gradients.distance_gain && !gradients.distance_bias && !gradients.alpha_logit,
          "attention_backward: gradients that sums by channel do not have");
    check(workspace.bytes() >= decay_workspace(spec), "attention_backward: workspace of {} bytes, {} needed",
          workspace.bytes(), decay_workspace(spec));
    const int64_t d = spec.head_dim, length = spec.length, heads = spec.batch * spec.heads;
    const int64_t group = spec.heads / spec.kv_heads;
    check(block_panels * GradientPanel::floats(d) <= scratch_per_thread_,
          "attention: head size {} is too large", d);
    float* delta = workspace.f32();
    float* memory = delta + round_up(heads * length, 16);
    softmax_deltas(delta, of, gradients, spec);
    fade_keys(spec, of.k, pool_);
    pool_.run(spec.batch * spec.kv_heads, [&](int64_t item, int thread) {
        const int64_t sequence = item / spec.kv_heads, kv_head = item % spec.kv_heads;
        const KeySums sums(memory + thread * KeySums::floats(length, d), length, d);
        const int32_t* row_start = spec.row_start ? spec.row_start.i32() + sequence * length : nullptr;
        const auto rows = [&](const Tensor& t, int64_t i) {
            return t.f32() + (sequence * length + i) * t.row_stride + kv_head * d;
        };
        std::memset(sums.values, 0, static_cast<size_t>(length * sums.padded) * sizeof(float));
        for (int64_t j = 0; j < length; ++j)
            std::memset(rows(of.dk, j), 0, static_cast<size_t>(d) * sizeof(float));
        for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
            const DecayedHead head(spec, of.k, sequence * spec.heads + h);
            backward_head({spec, of, gradients, head, sequence, h, delta, scratch_of(thread)}, sums, kv_head,
                          row_start);
        }
        for (int64_t j = 0; j < length; ++j)
            std::memcpy(rows(of.dv, j), sums.values + j * sums.padded,
                        static_cast<size_t>(d) * sizeof(float));
    });
}

#include "kernels/cpu/isa_end.h"
