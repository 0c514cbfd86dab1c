// Inputs of attention with anything that AttentionSpec can ask for, and what the operations make of them.
#pragma once

#include "kernels/support.h"

namespace longreach::test {

inline double roundings(double k) {
    return k * unit / (1 - k * unit);
}
inline constexpr double safety = 2;
inline constexpr double e_exp = 3e-7;
inline constexpr double e_coarse_exp = 9e-5;  // of weights that are rounded for their product
inline constexpr double e_tanh = 4e-7;
inline constexpr double floor_of_bounds = 1e-30;

// What is on and what is off. Rows of a table or factor: 0 (absent), 1 or `heads`.
struct Variant {
    int64_t batch = 1, length = 1, heads = 1, kv_heads = 1, head_dim = 4;
    int64_t window = 0, chunk = 0;
    bool documents = false;
    double softcap = 0;
    int64_t factor_rows = 0, gain_rows = 0, bias_rows = 0;
    double bias_of_gain = 0;  // as in AttentionSpec; then bias_rows = gain_rows
    bool row_square = false;
    bool sink = false;
    bool far = false;
    int64_t far_from = 0;
    bool maxima = false, absolute = false;
    // Gradients asked for in addition to those of q, k and v.
    bool factor_gradient = false, gain_gradient = false, bias_gradient = false, sink_gradient = false;
    bool forget = false, forget_gradient = false;
    bool sticks = false;
    double alpha = 0;                    // of entmax; 0: another normaliser
    bool alpha_gradient = false;         // alphas by head, around alpha, that learn
    int64_t top_k = 0, top_k_block = 0;  // without gradients
    double input = 0;                    // relative rounding of the inputs of products
    uint64_t seed = 1;
    bool channels = false, channel_gradient = false;  // sums by channel

    int64_t tokens() const { return batch * length; }
    bool tables() const { return gain_rows > 0; }
};

// Consecutive random numbers.
class Draw {
  public:
    explicit Draw(uint64_t seed, uint32_t stream = 0) : rng_(seed, Purpose::test, stream) {}
    int64_t below(int64_t n) { return static_cast<int64_t>(rng_.below(next_++, static_cast<uint64_t>(n))); }
    double uniform() { return rng_.uniform(next_++); }
    double normal() { return rng_.normal(next_++); }
    bool chance(double p) { return uniform() < p; }

  private:
    Rng rng_;
    uint64_t next_ = 0;
};

inline std::vector<double> widened(const Floats& x) {
    std::vector<double> out(static_cast<size_t>(x.count()));
    for (int64_t i = 0; i < x.count(); ++i) out[static_cast<size_t>(i)] = double{x[i]};
    return out;
}

// The inputs of one variant and what the operations make of them. q, k and v are slices of wider rows.
struct Problem {
    Variant c;
    int64_t query_cols, kv_cols, entries;  // entries of a distance table
    Floats qkv, far, dout, factor, gain, bias, square, sink;
    Doubles forget, channel;
    Floats channel_memory;
    IndexScores index;  // as in AttentionSpec
    Ints doc_start, row_start;
    Floats alpha_logit;
    Floats o, lse, maxima, dqkv, dfactor, dgain, dbias, dsink, dforget, dalpha, dchannel;
    static constexpr float untouched = 7.0f, sink_before = 0.5f;

    explicit Problem(const Variant& v)
        : c(v),
          query_cols(c.heads * c.head_dim),
          kv_cols(c.kv_heads * c.head_dim),
          entries(c.length + static_cast<int64_t>(c.seed % 7)),
          qkv(c.tokens(), query_cols + 2 * kv_cols, query_cols + 2 * kv_cols + 3),
          far(c.tokens(), query_cols + kv_cols, query_cols + kv_cols + 5),
          dout(c.tokens(), query_cols, query_cols + 1),
          factor(std::max<int64_t>(1, c.factor_rows), c.tokens()),
          gain(std::max<int64_t>(1, c.gain_rows), entries),
          bias(std::max<int64_t>(1, c.bias_rows), entries),
          square(1, c.tokens()),
          sink(1, c.heads),
          forget(c.heads, c.tokens()),
          channel(c.channels ? query_cols : 1, c.channels ? c.tokens() : 1),
          channel_memory(1, c.channels ? channel_floats(plain_spec(), c.batch, c.tokens()) : 1),
          doc_start(c.batch, c.length),
          row_start(c.batch, c.length),
          alpha_logit(1, c.heads),
          o(c.tokens(), query_cols, query_cols + 2),
          lse(c.heads, c.tokens()),
          maxima(c.heads, c.tokens()),
          dqkv(c.tokens(), query_cols + 2 * kv_cols, query_cols + 2 * kv_cols + 3),
          dfactor(c.heads, c.tokens()),
          dgain(gain.rows(), entries),
          dbias(bias.rows(), entries),
          dsink(1, c.heads),
          dforget(c.heads, c.tokens()),
          dalpha(1, c.heads),
          dchannel(channel.rows(), channel.cols()) {
        Draw draw(c.seed, 1);
        const auto fill = [&](Floats& x, auto value) {
            for (int64_t i = 0; i < x.count(); ++i) x[i] = static_cast<float>(value());
        };
        fill(qkv, [&] { return draw.normal(); });
        fill(far, [&] { return draw.normal(); });
        fill(dout, [&] { return draw.normal(); });
        fill(factor, [&] { return draw.chance(0.1) ? 0.0 : 1.5 * draw.normal(); });
        // With row_square: squares, some below zero even with w added.
        fill(gain, [&] { return c.row_square ? 2.5 * draw.uniform() - 0.5 : 0.3 + 1.2 * draw.uniform(); });
        fill(bias, [&] { return -2 * draw.uniform(); });
        for (int64_t i = 0; c.bias_of_gain != 0 && i < bias.count(); ++i)
            bias[i] = static_cast<float>(c.bias_of_gain * (double{gain[i]} * double{gain[i]} - 1));
        fill(square, [&] { return 1.5 * draw.uniform() - 0.5; });
        fill(sink,
             [&] { return draw.chance(0.1) ? -std::numeric_limits<double>::infinity() : draw.normal(); });
        for (int64_t b = 0; b < c.batch; ++b)
            for (int64_t i = 0, begin = 0; i < c.length; ++i) {
                if (c.documents && draw.chance(0.03)) begin = i;
                doc_start.at(b, i) = static_cast<int32_t>(begin);
            }
        // Gates that keep most, some that forget; sums so large that f32 would lose all of that.
        Draw gates(c.seed, 3);
        for (int64_t h = 0; h < c.heads; ++h)
            for (int64_t n = 0; n < c.tokens(); ++n)
                forget.at(h, n) = (n % c.length == 0 ? -1e5 * gates.uniform() : forget.at(h, n - 1)) -
                                  (gates.chance(0.05) ? 5 : 0.3) * gates.uniform();
        // Channels that keep all, that fade, and that drop everything at once.
        for (int64_t r = 0; r < channel.rows() && c.channels; ++r)
            for (int64_t n = 0; n < c.tokens(); ++n)
                channel.at(r, n) = (n % c.length == 0 ? -1e4 * gates.uniform() : channel.at(r, n - 1)) -
                                   (r % 3 == 0           ? 0
                                    : gates.chance(0.02) ? 300
                                                         : 0.5 / double(r % 3)) *
                                       gates.uniform();
        // Whatever is overwritten must not depend on what was there.
        for (Floats* x : {&o, &lse, &maxima, &dqkv, &dfactor, &dforget, &dchannel, &channel_memory})
            for (int64_t i = 0; i < x->count(); ++i) (*x)[i] = std::numeric_limits<float>::quiet_NaN();
        for (Floats* x : {&dgain, &dbias})
            for (int64_t i = 0; i < x->count(); ++i) (*x)[i] = untouched;
        fill(dsink, [&] { return sink_before; });
        fill(dalpha, [&] { return sink_before; });
        for (int64_t h = 0; h < c.heads && c.alpha_gradient; ++h)
            alpha_logit[h] = static_cast<float>(std::log((c.alpha - 1) / (2 - c.alpha)) + 0.3 * double(h));
    }

    Tensor part(Floats& fused, int which) {
        const Tensor t = fused.tensor();
        if (which == 0) return t.col_range(0, query_cols);
        return t.col_range(query_cols + (which - 1) * kv_cols, kv_cols);
    }
    bool restricted() const { return c.window > 0 || c.chunk > 0 || c.documents; }
    AttentionSpec plain_spec() const {
        return {.batch = c.batch,
                .length = c.length,
                .heads = c.heads,
                .kv_heads = c.kv_heads,
                .head_dim = c.head_dim,
                .scale = static_cast<float>(1 / std::sqrt(double(c.head_dim)))};
    }
    AttentionSpec spec() {
        AttentionSpec s{.batch = c.batch,
                        .length = c.length,
                        .heads = c.heads,
                        .kv_heads = c.kv_heads,
                        .head_dim = c.head_dim,
                        .scale = plain_spec().scale,
                        .softcap = static_cast<float>(c.softcap),
                        .normaliser = c.sticks      ? Normaliser::stick_breaking
                                      : c.alpha > 0 ? Normaliser::entmax
                                                    : Normaliser::softmax,
                        .alpha = c.alpha > 0 ? static_cast<float>(c.alpha) : 1.5f,
                        .top_k = c.top_k,
                        .top_k_block = c.top_k_block,
                        .absolute_maxima = c.absolute};
        if (restricted()) s.row_start = row_start.tensor();
        if (c.factor_rows) s.row_factor = factor.tensor();
        if (c.tables()) s.distance_gain = gain.tensor(), s.distance_bias = bias.tensor();
        s.bias_of_gain = static_cast<float>(c.bias_of_gain);
        if (c.row_square) s.row_square = square.vector();
        if (c.sink) s.sink = sink.vector();
        if (c.alpha_gradient) s.alpha_logit = alpha_logit.vector();
        if (c.forget) s.forget = forget.tensor();
        if (c.channels) s.channel_sums = channel.tensor(), s.channel_memory = channel_memory.vector();
        s.index = index;
        if (c.far) {
            s.far_queries = part(far, 0), s.far_keys = part(far, 1);
            s.far_from = c.far_from;
        }
        return s;
    }
    AttentionGradients gradients() {
        AttentionGradients g;
        if (c.factor_gradient) g.row_factor = dfactor.tensor();
        if (c.gain_gradient) g.distance_gain = dgain.tensor();
        if (c.bias_gradient) g.distance_bias = dbias.tensor();
        if (c.sink_gradient) g.sink = dsink.vector();
        if (c.forget_gradient) g.forget = dforget.tensor();
        if (c.alpha_gradient) g.alpha_logit = dalpha.vector();
        if (c.channel_gradient) g.channel_sums = dchannel.tensor();
        return g;
    }
    void forward(Ops& ops) {
        if (restricted())
            ops.row_starts(row_start.tensor(), c.documents ? doc_start.tensor() : Tensor(), c.length,
                           c.window, c.chunk);
        ops.attention(o.tensor(), lse.tensor(), c.maxima ? maxima.tensor() : Tensor(), part(qkv, 0),
                      part(qkv, 1), part(qkv, 2), spec());
    }
    void backward(Ops& ops) {
        const AttentionSpec s = spec();
        const AttentionGradients g = gradients();
        Floats workspace(1, ops.attention_workspace(s, g) / 4);
        for (int64_t i = 0; i < workspace.count(); ++i)
            workspace[i] = std::numeric_limits<float>::quiet_NaN();
        ops.attention_backward(part(dqkv, 0), part(dqkv, 1), part(dqkv, 2), g, workspace.vector(),
                               dout.tensor(), o.tensor(), lse.tensor(), part(qkv, 0), part(qkv, 1),
                               part(qkv, 2), s);
        CHECK(workspace.guards_intact());
    }
    void execute(Ops& ops) {
        forward(ops);
        if (!c.far) backward(ops);
        for (const Floats* x : {&o, &lse, &maxima, &dqkv, &dfactor, &dgain, &dbias, &dsink, &dforget, &dalpha,
                                &dchannel, &channel_memory})
            CHECK(x->guards_intact());
    }
    // Every result in one array, for comparisons of bits.
    Floats results() const {
        int64_t count = 0;
        const std::vector<const Floats*> all = {&o,     &lse,   &maxima,  &dqkv,   &dfactor, &dgain,
                                                &dbias, &dsink, &dforget, &dalpha, &dchannel};
        for (const Floats* x : all) count += x->count();
        Floats out(1, count);
        int64_t at = 0;
        for (const Floats* x : all)
            for (int64_t i = 0; i < x->count(); ++i) out[at++] = (*x)[i];
        return out;
    }
};

// The inputs in double, so that they can be moved by less than an ulp.
struct ExactInputs {
    std::vector<double> qkv, far, dout, factor, gain, bias, square, sink, forget, alpha_logit, channel;
    explicit ExactInputs(const Problem& p)
        : qkv(widened(p.qkv)),
          far(widened(p.far)),
          dout(widened(p.dout)),
          factor(widened(p.factor)),
          gain(widened(p.gain)),
          bias(widened(p.bias)),
          square(widened(p.square)),
          sink(widened(p.sink)),
          alpha_logit(widened(p.alpha_logit)) {
        for (int64_t i = 0; i < p.forget.count(); ++i) forget.push_back(p.forget[i]);
        for (int64_t i = 0; i < p.channel.count(); ++i) channel.push_back(p.channel[i]);
    }
};

}  // namespace longreach::test
