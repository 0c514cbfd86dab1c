// Activations of the MLP and the mixing of two streams, element by element.
//
//   gelu       h = a P(a), P the normal distribution
//              dh/da = P(a) + a e^(-a^2/2) / sqrt(2 pi)
//   gelu_tanh  h = a s(2u), u = sqrt(2/pi) (a + 0.044715 a^3), s the sigmoid: (1 + tanh u) / 2 = s(2u)
//              dh/da = s + a s (1 - s) 2u'
//   swiglu     h = gate s(gate) up, a = gate|up [N, 2F]
//              dup = dh gate s,  dgate = dh up s (1 + gate (1 - s))
//   geglu_tanh h = gelu_tanh(gate) up, a = gate|up [N, 2F]
//              dup = dh gelu_tanh(gate),  dgate = dh up gelu_tanh'(gate)
//   silu       h = a s(a);  dh/da = s (1 + a (1 - s))
//   mix        out = a x + b y, scalars a = offset + scale * param
//              dx = a dout,  dy += b dout,  da += scale <dout, x>
//
// Saved: the argument a [N, F]; for mix, x and y where their coefficient is learned. Bytes per element: 8
// forward and 12 backward (gated 12 and 20). FLOPs: 20 to 30, almost all in exp, so two cores stay near the
// copy bandwidth. Parallel over spans of 4096 elements (rows where strided); the dot products of
// mix_backward sum fixed groups of spans.
#include <algorithm>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

constexpr float tanh_slope = 1.5957691216057308f;    // 2 sqrt(2/pi)
constexpr float tanh_cubic = 0.071354816272600254f;  // 2 sqrt(2/pi) * 0.044715
constexpr float inverse_sqrt_2pi = 0.39894228040143268f;

// At most this many partial dot products in mix_backward: enough to balance, few enough to
// fold on one thread.
constexpr int64_t dot_groups = 1024;

LONGREACH_INLINE Vec gelu(Vec a) {
    return a * normal_at(a).below;
}
LONGREACH_INLINE Vec gelu_slope(Vec a) {
    const Normal normal = normal_at(a);
    return fma(a * normal.bell, splat(inverse_sqrt_2pi), normal.below);
}

LONGREACH_INLINE Vec gelu_tanh(Vec a) {
    return a * sigmoid(a * fma(a * a, splat(tanh_cubic), splat(tanh_slope)));
}
LONGREACH_INLINE Vec gelu_tanh_slope(Vec a) {
    const Vec square = a * a;
    const Logistic s = logistic(a * fma(square, splat(tanh_cubic), splat(tanh_slope)));
    const Vec slope = fma(square, splat(3 * tanh_cubic), splat(tanh_slope));  // 2u'
    // s (1 - s) is zero long before |a| = 20, and beyond the other factors may overflow;
    // NaN takes the second branch.
    return abs(a) > splat(20.0f) ? s.value : fma(a * slope, s.value * s.rest, s.value);
}

LONGREACH_INLINE Vec silu(Vec a) {
    return a * sigmoid(a);
}
LONGREACH_INLINE Vec silu_slope(Vec a) {
    const Logistic s = logistic(a);
    return s.value * fma(a, s.rest, splat(1.0f));
}

// `next`: distance to the row after, or 0 for the last.
void swiglu_row(float* h, const float* gate, const float* up, int64_t width, int64_t next) {
    for_vectors(width, [&](int64_t i, auto n) {
        prefetch(gate + next + i, lanes);
        prefetch(up + next + i, lanes);
        store(h + i, silu(load(gate + i, n)) * load(up + i, n), n);
    });
}
void swiglu_row_backward(float* dgate, float* dup, const float* dh, const float* gate, const float* up,
                         int64_t width, int64_t next) {
    for_vectors(width, [&](int64_t i, auto n) {
        prefetch(gate + next + i, lanes);
        prefetch(up + next + i, lanes);
        const Vec g = load(gate + i, n), u = load(up + i, n), d = load(dh + i, n);
        const Logistic s = logistic(g);
        store(dup + i, d * (g * s.value), n);
        store(dgate + i, d * u * (s.value * fma(g, s.rest, splat(1.0f))), n);
    });
}

void geglu_row(float* h, const float* gate, const float* up, int64_t width, int64_t next) {
    for_vectors(width, [&](int64_t i, auto n) {
        prefetch(gate + next + i, lanes);
        prefetch(up + next + i, lanes);
        store(h + i, gelu_tanh(load(gate + i, n)) * load(up + i, n), n);
    });
}
void geglu_row_backward(float* dgate, float* dup, const float* dh, const float* gate, const float* up,
                        int64_t width, int64_t next) {
    for_vectors(width, [&](int64_t i, auto n) {
        prefetch(gate + next + i, lanes);
        prefetch(up + next + i, lanes);
        const Vec g = load(gate + i, n), u = load(up + i, n), d = load(dh + i, n);
        store(dup + i, d * gelu_tanh(g), n);
        store(dgate + i, d * u * gelu_tanh_slope(g), n);
    });
}

// out = map(in) element by element.
template <class Map>
void map_spans(const Tensor& out, const Tensor& in, Pool& pool, Map map) {
    const Spans spans(out, in);
    for_items(pool, spans.count(), spans.each(), [&](int64_t s) {
        const Span span = spans[s];
        const float* x = span.of(in);
        float* y = span.of(out);
        for_vectors(span.count, [&](int64_t i, auto n) { store(y + i, map(load(x + i, n)), n); });
    });
}
// da = dh * slope(a).
template <class Slope>
void map_spans_backward(const Tensor& da, const Tensor& dh, const Tensor& a, Pool& pool, Slope slope) {
    const Spans spans(da, dh, a);
    for_items(pool, spans.count(), spans.each(), [&](int64_t s) {
        const Span span = spans[s];
        const float *x = span.of(a), *dy = span.of(dh);
        float* dx = span.of(da);
        for_vectors(span.count,
                    [&](int64_t i, auto n) { store(dx + i, load(dy + i, n) * slope(load(x + i, n)), n); });
    });
}

float value_of(const Coefficient& c) {
    return c.param ? c.offset + c.scale * c.param.f32()[0] : c.offset;
}

}  // namespace

void CpuOps::do_activation(Tensor h, const Tensor& a, Activation kind) {
    const int64_t rows = h.rows(), width = h.cols();
    check(a.rows() == rows && a.cols() == (is_gated(kind) ? 2 * width : width), "activation {}x{} of {}x{}",
          rows, width, a.rows(), a.cols());
    if (kind == Activation::gelu) return map_spans(h, a, pool_, [](Vec v) { return gelu(v); });
    if (kind == Activation::gelu_tanh) return map_spans(h, a, pool_, [](Vec v) { return gelu_tanh(v); });
    if (kind == Activation::silu) return map_spans(h, a, pool_, [](Vec v) { return silu(v); });
    for_items(pool_, rows, width, [&](int64_t r) {
        const float* gates = a.f32() + r * a.row_stride;
        (kind == Activation::swiglu ? swiglu_row : geglu_row)(
            h.f32() + r * h.row_stride, gates, gates + width, width, r + 1 < rows ? a.row_stride : 0);
    });
}

void CpuOps::do_activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind) {
    const int64_t rows = dh.rows(), width = dh.cols();
    check(da.rows() == rows && a.rows() == rows && da.cols() == a.cols() &&
              a.cols() == (is_gated(kind) ? 2 * width : width),
          "activation_backward {}x{} of {}x{}", rows, width, a.rows(), a.cols());
    if (kind == Activation::gelu)
        return map_spans_backward(da, dh, a, pool_, [](Vec v) { return gelu_slope(v); });
    if (kind == Activation::gelu_tanh)
        return map_spans_backward(da, dh, a, pool_, [](Vec v) { return gelu_tanh_slope(v); });
    if (kind == Activation::silu)
        return map_spans_backward(da, dh, a, pool_, [](Vec v) { return silu_slope(v); });
    for_items(pool_, rows, width, [&](int64_t r) {
        const float* gates = a.f32() + r * a.row_stride;
        float* dgate = da.f32() + r * da.row_stride;
        (kind == Activation::swiglu ? swiglu_row_backward : geglu_row_backward)(
            dgate, dgate + width, dh.f32() + r * dh.row_stride, gates, gates + width, width,
            r + 1 < rows ? a.row_stride : 0);
    });
}

void CpuOps::do_mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b,
                    const Tensor& y) {
    check(
        x.rows() == out.rows() && x.cols() == out.cols() && y.rows() == out.rows() && y.cols() == out.cols(),
        "mix of {}x{} and {}x{}", x.rows(), x.cols(), y.rows(), y.cols());
    const Vec scale_x = splat(value_of(a)), scale_y = splat(value_of(b));
    const Spans spans(out, x, y);
    for_items(pool_, spans.count(), spans.each(), [&](int64_t s) {
        const Span span = spans[s];
        const float *from_x = span.of(x), *from_y = span.of(y);
        float* to = span.of(out);
        for_vectors(span.count, [&](int64_t i, auto n) {
            store(to + i, fma(scale_x, load(from_x + i, n), scale_y * load(from_y + i, n)), n);
        });
    });
}

void CpuOps::do_mix_backward(Tensor dx, Tensor dy, Tensor da, Tensor db, const Tensor& dout,
                             const Coefficient& a, const Tensor& x, const Coefficient& b, const Tensor& y) {
    const Vec scale_x = splat(value_of(a)), scale_y = splat(value_of(b));
    const Tensor read_x = da ? x : Tensor(), read_y = db ? y : Tensor();
    const Spans spans(dout, dx, dy, read_x, read_y);
    const int64_t groups = std::min<int64_t>(spans.count(), dot_groups);
    for_items(pool_, groups, spans.each(), [&](int64_t g) {
        const Range group = piece(spans.count(), groups, g);
        double along_x = 0, along_y = 0;
        for (int64_t s = group.begin; s < group.end; ++s) {
            const Span span = spans[s];
            const float* from = span.of(dout);
            // The dot products come first: dx may be dout.
            if (read_x) along_x += dot_wide(from, span.of(read_x), span.count);
            if (read_y) along_y += dot_wide(from, span.of(read_y), span.count);
            float *to_x = span.of(dx), *to_y = span.of(dy);
            for_vectors(span.count, [&](int64_t i, auto n) {
                const Vec d = load(from + i, n);
                if (to_y) store(to_y + i, fma(scale_y, d, load(to_y + i, n)), n);
                if (to_x) store(to_x + i, scale_x * d, n);
            });
        }
        partials_[2 * g] = along_x;
        partials_[2 * g + 1] = along_y;
    });
    double along_x = 0, along_y = 0;
    for (int64_t g = 0; g < groups; ++g) {
        along_x += partials_[2 * g];
        along_y += partials_[2 * g + 1];
    }
    if (da) da.f32()[0] += static_cast<float>(a.scale * along_x);
    if (db) db.f32()[0] += static_cast<float>(b.scale * along_y);
}

#include "kernels/cpu/isa_end.h"
