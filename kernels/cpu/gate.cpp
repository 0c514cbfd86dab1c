// Sigmoid gates on the output of attention.
//
//   y = factor * s * o, s = 1 / (1 + e^-u), u one number per head or per channel.
//   Backward: do = factor * s * dy;  du = factor * s (1 - s) * o dy, per head summed over its d channels.
//   Times its input: y = factor * u s * o, do = factor * u s * dy, du = factor * s (1 + u (1 - s)) * o dy.
//
// Per element 8 bytes forward (12 with u per channel) and 12 backward (20); one multiplication, and per
// channel the exponential. Parallel over spans of 4096 elements, or over tokens; no sum crosses a token.
#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

void check_shapes(const Tensor& y, const Tensor& u, const Tensor& o) {
    check(y.rows() == o.rows() && y.cols() == o.cols() && u.rows() == o.rows() && u.cols() > 0 &&
              o.cols() % u.cols() == 0,
          "gate {}x{} on {}x{} into {}x{}", u.rows(), u.cols(), o.rows(), o.cols(), y.rows(), y.cols());
}

// The gate at u is plain * times; its derivative is plain * slope.
struct Gate {
    Vec plain, times, slope;
};
LONGREACH_INLINE Gate gate_at(Vec u, Vec scale, bool times_input) {
    const Logistic s = logistic(u);
    const Vec plain = scale * s.value, one = splat(1.0f);
    if (!times_input) return {plain, one, s.rest};
    return {plain, u, fma(u, s.rest, one)};
}
LONGREACH_INLINE Vec gate_value(Vec u, Vec scale, bool times_input) {
    const Gate g = gate_at(u, scale, times_input);
    return g.plain * g.times;
}

}  // namespace

void CpuOps::do_gate(Tensor y, const Tensor& u, const Tensor& o, const GateSpec& spec) {
    check_shapes(y, u, o);
    const Vec scale = splat(spec.factor);
    const bool times_input = spec.times_input;
    if (u.cols() == o.cols()) {
        const Spans spans(y, u, o);
        for_items(pool_, spans.count(), spans.each(), [&](int64_t s) {
            const Span span = spans[s];
            const float *logit = span.of(u), *from = span.of(o);
            float* to = span.of(y);
            for_vectors(span.count, [&](int64_t i, auto n) {
                store(to + i, gate_value(load(logit + i, n), scale, times_input) * load(from + i, n), n);
            });
        });
        return;
    }
    const int64_t rows = o.rows(), heads = u.cols(), d = o.cols() / heads;
    for_items(pool_, rows, o.cols(), [&](int64_t r) {
        const float *logit = u.f32() + r * u.row_stride, *from = o.f32() + r * o.row_stride;
        float* to = y.f32() + r * y.row_stride;
        const int64_t next = r + 1 < rows ? o.row_stride : 0;
        // As many heads at a time as a vector has lanes: one exponential for all of them.
        for_vectors(heads, [&](int64_t first, auto n) {
            const Vec gates = gate_value(load(logit + first, n), scale, times_input);
            const int64_t end = first + lanes < heads ? first + lanes : heads;
            for (int64_t h = first; h < end; ++h) {
                const Vec g = splat(gates[h - first]);
                const float* head = from + h * d;
                prefetch(head + next, d);
                for_vectors(d, [&](int64_t i, auto m) { store(to + h * d + i, g * load(head + i, m), m); });
            }
        });
    });
}

void CpuOps::do_gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                              const GateSpec& spec) {
    check_shapes(dy, u, o);
    check_shapes(dout, du, o);
    check(du.cols() == u.cols(), "gradient {}x{} of a gate {}x{}", du.rows(), du.cols(), u.rows(), u.cols());
    const Vec scale = splat(spec.factor);
    const bool times_input = spec.times_input;
    if (u.cols() == o.cols()) {
        const Spans spans(dout, du, dy, u, o);
        for_items(pool_, spans.count(), spans.each(), [&](int64_t s) {
            const Span span = spans[s];
            const float *logit = span.of(u), *from = span.of(o), *gradient = span.of(dy);
            float *to = span.of(dout), *to_logit = span.of(du);
            for_vectors(span.count, [&](int64_t i, auto n) {
                const Gate g = gate_at(load(logit + i, n), scale, times_input);
                const Vec d = g.plain * load(gradient + i, n);
                store(to_logit + i, d * g.slope * load(from + i, n), n);
                store(to + i, d * g.times, n);
            });
        });
        return;
    }
    const int64_t rows = o.rows(), heads = u.cols(), d = o.cols() / heads;
    for_items(pool_, rows, o.cols(), [&](int64_t r) {
        const float *logit = u.f32() + r * u.row_stride, *from = o.f32() + r * o.row_stride;
        const float* gradient = dy.f32() + r * dy.row_stride;
        float *to = dout.f32() + r * dout.row_stride, *to_logit = du.f32() + r * du.row_stride;
        const int64_t next = r + 1 < rows ? 1 : 0;
        for_vectors(heads, [&](int64_t first, auto n) {
            const Gate at = gate_at(load(logit + first, n), scale, times_input);
            const Vec gates = at.plain * at.times;
            Vec along{};
            const int64_t end = first + lanes < heads ? first + lanes : heads;
            for (int64_t h = first; h < end; ++h) {
                const float *head = from + h * d, *dhead = gradient + h * d;
                prefetch(head + next * o.row_stride, d);
                prefetch(dhead + next * dy.row_stride, d);
                // The sum comes first: dout may be dy.
                along[h - first] = dot(head, dhead, d);
                const Vec g = splat(gates[h - first]);
                for_vectors(d, [&](int64_t i, auto m) { store(to + h * d + i, g * load(dhead + i, m), m); });
            }
            store(to_logit + first, at.plain * at.slope * along, n);
        });
    });
}

#include "kernels/cpu/isa_end.h"
