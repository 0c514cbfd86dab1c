// Heads of queries, keys or values after projection, in place.
//
//   Per head of d channels: n = (x - mean) * r, r = (var + eps)^(-1/2) (rms: mean = 0, var the mean of the
//   squares; none: n = x); a = gain * n + bias; for pairs m < pairs, (a[m], a[m + d/2]) turns by the angle of
//   its position: y1 = a1 cos - a2 sin, y2 = a1 sin + a2 cos. Other pairs keep a.
//
//   Backward, R the rotation, h = R^T dy:
//     none                dx = h
//     rms without a gain  dx = r R^T (dy - y <y, dy> / d): the norm commutes with R, so y alone suffices
//     with a gain         g = gain * h: dx = r (g - n mean(g n)), layer: less mean(g);
//                         dgain += h n, dbias += h over tokens and heads
//     eps = e^u           du += eps * sum of -1/2 r^2 <n, gradient at n>
//
// Saved: y in place, r [N, heads], with a gain n. Per element 8 bytes and 5 FLOPs forward (12 and 7 with a
// gain), 12 bytes and 9 FLOPs backward. Parallel over tokens, backward over fixed blocks of them; a token's
// heads share one row of the tables.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/fold.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Tokens from the one at work to the one whose row is fetched. Two heads of 64 take less time than their way from memory: with
// the next token, the operation took 1.5 times as long, backward 1.2 times.
constexpr int64_t tokens_ahead = 4;

// One token's row of the tables.
struct Rotation {
    const float *cosine, *sine;
    int64_t pairs;
    int64_t sharing;  // consecutive heads with the same angles
    Rotation of_head(int64_t h) const {
        if (h < sharing) return *this;
        const int64_t before = h / sharing * pairs;
        return {cosine + before, sine + before, pairs, sharing};
    }
};

Rotation rotation_at(const HeadSpec& spec, int64_t token) {
    if (!spec.cosine) return {nullptr, nullptr, 0, spec.heads};
    const int64_t position = token % spec.length;
    return {spec.cosine.f32() + position * spec.cosine.row_stride,
            spec.sine.f32() + position * spec.sine.row_stride, spec.cosine.cols() / spec.angle_heads,
            spec.heads / spec.angle_heads};
}

// eps of every head where it is learned: one exponential per head and op, not per token.
void learned_eps(double* eps, const HeadSpec& spec) {
    if (!spec.log_eps) return;
    const bool shared = spec.log_eps.count() == 1;
    for (int64_t h = 0; h < spec.heads; ++h)
        eps[h] = std::exp(static_cast<double>(spec.log_eps.f32()[shared ? 0 : h]));
}

struct Moments {
    float mean, inverse;
};

LONGREACH_INLINE float inverse_root(double squares, int64_t d, double eps) {
    return static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(d) + eps));
}
LONGREACH_INLINE Moments rms_moments(const float* x, int64_t d, double eps) {
    return {0.0f, inverse_root(dot(x, x, d), d, eps)};
}
Moments layer_moments(const float* x, int64_t d, double eps) {
    const float mean =
        sum_vectors(d, [&](int64_t i, auto n) { return load(x + i, n); }) / static_cast<float>(d);
    const Vec center = splat(mean);
    const auto centered = [&](int64_t i, auto n) { return load(x + i, n, mean) - center; };
    const double squares = sum_products(d, centered, centered);
    return {mean, inverse_root(squares, d, eps)};
}

// Puts value(i, width) of the channels in x, turned. Which of two products is fused is written out: left to the
// compiler it depends on what `value` is, and a gain of 1 would change bits.
template <class Value>
LONGREACH_INLINE void turn_head(float* x, const Rotation& turn, int64_t half, Value value) {
    for_vectors(turn.pairs, [&](int64_t i, auto n) {
        const Vec c = load(turn.cosine + i, n), s = load(turn.sine + i, n);
        const Vec x1 = value(i, n), x2 = value(half + i, n);
        store(x + i, fma(x1, c, -(x2 * s)), n);
        store(x + half + i, fma(x1, s, x2 * c), n);
    });
}
// And turns them back.
template <class Value>
LONGREACH_INLINE void turn_head_back(float* x, const Rotation& turn, int64_t half, Value value) {
    for_vectors(turn.pairs, [&](int64_t i, auto n) {
        const Vec c = load(turn.cosine + i, n), s = load(turn.sine + i, n);
        const Vec g1 = value(i, n), g2 = value(half + i, n);
        store(x + i, fma(g1, c, g2 * s), n);
        store(x + half + i, fma(g2, c, -(g1 * s)), n);
    });
}
// The channels of the pairs that do not turn.
template <class Value>
LONGREACH_INLINE void keep_rest(float* x, const Rotation& turn, int64_t half, Value value) {
    for (int64_t begin : {turn.pairs, half + turn.pairs})
        for_vectors(half - turn.pairs,
                    [&](int64_t i, auto n) { store(x + begin + i, value(begin + i, n), n); });
}

LONGREACH_INLINE void prepare_head(float* x, float inverse, const Rotation& turn, int64_t half) {
    const Vec scale = splat(inverse);
    const auto scaled = [&](int64_t i, auto n) { return scale * load(x + i, n); };
    turn_head(x, turn, half, scaled);
    if (inverse != 1.0f) keep_rest(x, turn, half, scaled);
}

// With a gain; `bias` may be null.
void prepare_affine_head(float* x, float* normalised, const float* gain, const float* bias, Moments m,
                         const Rotation& turn, int64_t half) {
    const Vec center = splat(m.mean), scale = splat(m.inverse);
    const auto value = [&](int64_t i, auto n) {
        const Vec v = (load(x + i, n) - center) * scale;
        store(normalised + i, v, n);
        const Vec gained = v * load(gain + i, n);
        return bias ? gained + load(bias + i, n) : gained;
    };
    turn_head(x, turn, half, value);
    keep_rest(x, turn, half, value);
}

// One token's heads. `ahead`: distance to the token to fetch, or 0 for the last ones.
struct Row {
    float *x, *inverse;
    int64_t ahead;
    Rotation turn;
};
// eps: of every head, or null for the constant.
void prepare_row(Row row, const HeadSpec& spec, const double* eps) {
    const int64_t d = spec.head_dim, heads = spec.heads;
    const double constant = spec.eps;
    for (int64_t h = 0; h < heads; ++h) {
        float* head = row.x + h * d;
        prefetch(head + row.ahead, d);
        float scale = 1.0f;
        if (row.inverse) row.inverse[h] = scale = rms_moments(head, d, eps ? eps[h] : constant).inverse;
        prepare_head(head, scale, row.turn.of_head(h), d / 2);
    }
}
void prepare_affine_row(Row row, float* normalised, const HeadSpec& spec, const double* eps) {
    const int64_t d = spec.head_dim, heads = spec.heads;
    const double constant = spec.eps;
    for (int64_t h = 0; h < heads; ++h) {
        float* head = row.x + h * d;
        prefetch(head + row.ahead, d);
        const double own = eps ? eps[h] : constant;
        const Moments m =
            spec.norm == HeadNorm::rms ? rms_moments(head, d, own) : layer_moments(head, d, own);
        row.inverse[h] = m.inverse;
        prepare_affine_head(head, normalised + h * d, spec.gain.f32(), spec.bias.f32(), m,
                            row.turn.of_head(h), d / 2);
    }
}

// along = <y, dy> / d, or 0 without norm.
void prepare_head_backward(float* dx, const float* y, float along, float inverse, const Rotation& turn,
                           int64_t half) {
    const Vec scale = splat(inverse), projection = splat(along);
    const auto gradient = [&](int64_t i, auto n) {
        return scale * (load(dx + i, n) - load(y + i, n) * projection);
    };
    turn_head_back(dx, turn, half, gradient);
    keep_rest(dx, turn, half, gradient);
}
// Without a norm nothing but the rotation is left.
void turn_gradient_back(float* dx, const Rotation& turn, int64_t half) {
    turn_head_back(dx, turn, half, [&](int64_t i, auto n) { return load(dx + i, n); });
}

struct AffineHead {
    float* dx;
    float *dgain, *dbias;  // this block's partial sums, or null
    const float *normalised, *gain;
    float inverse;
    bool centered;
};

// Returns <n, gradient at n>.
float prepare_affine_head_backward(const AffineHead& head, const Rotation& turn, int64_t half) {
    const int64_t d = 2 * half;
    const float width = static_cast<float>(d);
    turn_gradient_back(head.dx, turn, half);
    if (head.dgain)
        for_vectors(d, [&](int64_t i, auto n) {
            store(head.dgain + i,
                  fma(load(head.dx + i, n), load(head.normalised + i, n), load(head.dgain + i, n)), n);
        });
    if (head.dbias)
        for_vectors(d, [&](int64_t i, auto n) {
            store(head.dbias + i, load(head.dbias + i, n) + load(head.dx + i, n), n);
        });
    const auto gradient = [&](int64_t i, auto n) { return load(head.dx + i, n) * load(head.gain + i, n); };
    const float along =
        sum_products(d, gradient, [&](int64_t i, auto n) { return load(head.normalised + i, n); });
    const Vec mean = splat(head.centered ? sum_vectors(d, gradient) / width : 0.0f);
    const Vec projection = splat(along / width), scale = splat(head.inverse);
    for_vectors(d, [&](int64_t i, auto n) {
        store(head.dx + i, scale * (gradient(i, n) - mean - load(head.normalised + i, n) * projection), n);
    });
    return along;
}

void check_shapes(const Tensor& x, const Tensor& normalised, const Tensor& inverse, const HeadSpec& spec) {
    check(spec.head_dim % 2 == 0 && spec.heads * spec.head_dim == x.cols(), "{} heads of {} in {} columns",
          spec.heads, spec.head_dim, x.cols());
    check(spec.norm == HeadNorm::none || (inverse.rows() == x.rows() && inverse.cols() == spec.heads),
          "inverse is {}x{}", inverse.rows(), inverse.cols());
    check(spec.angle_heads > 0 && spec.heads % spec.angle_heads == 0 &&
              spec.cosine.cols() % spec.angle_heads == 0,
          "{} angles of {} heads for {}", spec.cosine.cols(), spec.angle_heads, spec.heads);
    check(!spec.cosine || (spec.cosine.cols() / spec.angle_heads <= spec.head_dim / 2 &&
                           spec.cosine.rows() >= spec.length && spec.sine.cols() == spec.cosine.cols() &&
                           spec.sine.rows() == spec.cosine.rows()),
          "rotary tables {}x{} for length {}", spec.cosine.rows(), spec.cosine.cols(), spec.length);
    check(!spec.gain || (spec.norm != HeadNorm::none && spec.gain.count() == spec.head_dim &&
                         normalised.rows() == x.rows() && normalised.cols() == x.cols()),
          "a gain of {} on heads of {}, normalised is {}x{}", spec.gain.count(), spec.head_dim,
          normalised.rows(), normalised.cols());
    check(!spec.bias || (spec.gain && spec.bias.count() == spec.head_dim), "a bias of {} on heads of {}",
          spec.bias.count(), spec.head_dim);
    check(spec.norm != HeadNorm::layer || (spec.gain && spec.bias), "a layer norm without gain and bias");
    check(!spec.log_eps || (spec.norm == HeadNorm::rms &&
                            (spec.log_eps.count() == 1 || spec.log_eps.count() == spec.heads)),
          "{} learned eps for {} heads", spec.log_eps.count(), spec.heads);
}

}  // namespace

void CpuOps::do_prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec) {
    check_shapes(x, normalised, inverse, spec);
    const int64_t rows = x.rows(), d = spec.head_dim;
    const bool normed = spec.norm != HeadNorm::none;
    if (!normed && !spec.cosine) return;
    learned_eps(partials_, spec);
    const double* eps = spec.log_eps ? partials_ : nullptr;
    for_items(pool_, rows, spec.heads * d, [&](int64_t r) {
        const Row row{.x = x.f32() + r * x.row_stride,
                      .inverse = normed ? inverse.f32() + r * inverse.row_stride : nullptr,
                      .ahead = r + tokens_ahead < rows ? tokens_ahead * x.row_stride : 0,
                      .turn = rotation_at(spec, r)};
        if (spec.gain)
            prepare_affine_row(row, normalised.f32() + r * normalised.row_stride, spec, eps);
        else
            prepare_row(row, spec, eps);
    });
}

void CpuOps::do_prepare_heads_backward(Tensor dx, Tensor dgain, Tensor dbias, Tensor dlog_eps,
                                       const Tensor& x, const Tensor& normalised, const Tensor& inverse,
                                       const HeadSpec& spec) {
    check_shapes(x, normalised, inverse, spec);
    check(dx.rows() == x.rows() && dx.cols() == x.cols(), "dx is {}x{}", dx.rows(), dx.cols());
    check((!dgain || spec.gain) && (!dbias || spec.bias) && (!dlog_eps || spec.log_eps),
          "a gradient of something the heads do not have");
    check(!dlog_eps || dlog_eps.count() == spec.log_eps.count(), "{} gradients of {} learned eps",
          dlog_eps.count(), spec.log_eps.count());
    const int64_t rows = x.rows(), d = spec.head_dim, heads = spec.heads;
    const bool normed = spec.norm != HeadNorm::none;
    if (!normed && !spec.cosine) return;

    // Partial sums of one block, in doubles: by head those of eps, then d floats each for gain and bias.
    const int64_t each = heads + d;
    const int64_t blocks = fixed_blocks(rows, partial_doubles, each);
    for_items(pool_, blocks, heads * d * piece(rows, blocks, 0).end, [&](int64_t b) {
        double* of_eps = partials_ + b * each;
        float* of_gain = reinterpret_cast<float*>(of_eps + heads);
        if (dlog_eps) std::fill_n(of_eps, heads, 0.0);
        if (dgain || dbias) std::fill_n(of_gain, 2 * d, 0.0f);
        const Range block = piece(rows, blocks, b);
        for (int64_t r = block.begin; r < block.end; ++r) {
            const Rotation of_token = rotation_at(spec, r);
            const int64_t ahead = r + tokens_ahead < rows ? tokens_ahead : 0;
            for (int64_t h = 0; h < heads; ++h) {
                const Rotation turn = of_token.of_head(h);
                float* gradient = dx.f32() + r * dx.row_stride + h * d;
                prefetch(gradient + ahead * dx.row_stride, d);
                if (!normed) {
                    turn_gradient_back(gradient, turn, d / 2);
                    continue;
                }
                const float scale = inverse.f32()[r * inverse.row_stride + h];
                float along;
                if (spec.gain) {
                    const float* kept = normalised.f32() + r * normalised.row_stride + h * d;
                    prefetch(kept + ahead * normalised.row_stride, d);
                    along = prepare_affine_head_backward({.dx = gradient,
                                                          .dgain = dgain ? of_gain : nullptr,
                                                          .dbias = dbias ? of_gain + d : nullptr,
                                                          .normalised = kept,
                                                          .gain = spec.gain.f32(),
                                                          .inverse = scale,
                                                          .centered = spec.norm == HeadNorm::layer},
                                                         turn, d / 2);
                } else {
                    const float* y = x.f32() + r * x.row_stride + h * d;
                    prefetch(y + ahead * x.row_stride, d);
                    along = dot(y, gradient, d);
                    prepare_head_backward(gradient, y, along / static_cast<float>(d), scale, turn, d / 2);
                }
                if (dlog_eps) of_eps[h] -= 0.5 * double{scale} * scale * along;
            }
        }
    });

    const float* of_gain = reinterpret_cast<const float*>(partials_ + heads);
    if (dgain) fold(dgain.f32(), of_gain, blocks, 2 * each, {0, d});
    if (dbias) fold(dbias.f32(), of_gain + d, blocks, 2 * each, {0, d});
    if (!dlog_eps) return;
    const int64_t sharing = heads / dlog_eps.count();  // heads with the same eps
    for (int64_t e = 0; e < dlog_eps.count(); ++e) {
        double total = 0;
        for (int64_t h = e * sharing; h < (e + 1) * sharing; ++h)
            for (int64_t b = 0; b < blocks; ++b) total += partials_[b * each + h];
        dlog_eps.f32()[e] += static_cast<float>(std::exp(static_cast<double>(spec.log_eps.f32()[e])) * total);
    }
}

#include "kernels/cpu/isa_end.h"
