// The output of attention without its part along the token's own value (Ops::exclude_own_value).
//
//   a = <o, v> / <v, v>      y = o - a v            per head; v of the G key/value heads serves H / G heads
//   Backward: b = <dy, v> / <v, v>   do = dy - b v   dv = sum over its heads of (2 a b v - a dy - b o)
//
// Per element 8 bytes forward and 12 backward, and those of v; 4 FLOPs forward, 12 backward. Parallel over tokens.
#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

struct Shape {
    int64_t rows, kv_heads, each, d;  // each: heads that share a value
    Shape(const Tensor& y, const Tensor& o, const Tensor& v, int64_t head_dim)
        : rows(o.rows()), kv_heads(v.cols() / head_dim), each(o.cols() / v.cols()), d(head_dim) {
        check(y.rows() == rows && y.cols() == o.cols() && v.rows() == rows && v.cols() % d == 0 &&
                  o.cols() % v.cols() == 0,
              "own values {}x{} of {}x{} into {}x{}, heads of {}", v.rows(), v.cols(), rows, o.cols(),
              y.rows(), y.cols(), d);
    }
};

// 1 / <v, v>; of a value of length below 1e-12 as if it had that length.
LONGREACH_INLINE float inverse_square(const float* v, int64_t d) {
    const float square = dot(v, v, d);
    return 1.0f / (square > own_value_floor ? square : own_value_floor);
}

}  // namespace

void CpuOps::do_exclude_own_value(Tensor y, const Tensor& o, const Tensor& v, int64_t head_dim) {
    const Shape s(y, o, v, head_dim);
    for_items(pool_, s.rows, 2 * o.cols(), [&](int64_t r) {
        const float *from = o.f32() + r * o.row_stride, *values = v.f32() + r * v.row_stride;
        float* to = y.f32() + r * y.row_stride;
        for (int64_t g = 0; g < s.kv_heads; ++g) {
            const float* value = values + g * s.d;
            const float inverse = inverse_square(value, s.d);
            for (int64_t h = g * s.each; h < (g + 1) * s.each; ++h) {
                const float* head = from + h * s.d;
                const Vec share = splat(dot(head, value, s.d) * inverse);
                for_vectors(s.d, [&](int64_t i, auto n) {
                    store(to + h * s.d + i, load(head + i, n) - share * load(value + i, n), n);
                });
            }
        }
    });
}

void CpuOps::do_exclude_own_value_backward(Tensor dout, Tensor dv, const Tensor& dy, const Tensor& o,
                                           const Tensor& v, int64_t head_dim) {
    const Shape s(dy, o, v, head_dim);
    check(dout.rows() == s.rows && dout.cols() == o.cols() && dv.rows() == s.rows && dv.cols() == v.cols(),
          "gradients {}x{} and {}x{}", dout.rows(), dout.cols(), dv.rows(), dv.cols());
    for_items(pool_, s.rows, 6 * o.cols(), [&](int64_t r) {
        const float *from = o.f32() + r * o.row_stride, *values = v.f32() + r * v.row_stride;
        const float* gradients = dy.f32() + r * dy.row_stride;
        float *to = dout.f32() + r * dout.row_stride, *to_values = dv.f32() + r * dv.row_stride;
        for (int64_t g = 0; g < s.kv_heads; ++g) {
            const float* value = values + g * s.d;
            float* dvalue = to_values + g * s.d;
            const float inverse = inverse_square(value, s.d);
            for_vectors(s.d, [&](int64_t i, auto n) { store(dvalue + i, Vec{}, n); });
            for (int64_t h = g * s.each; h < (g + 1) * s.each; ++h) {
                const float *head = from + h * s.d, *gradient = gradients + h * s.d;
                const Vec a = splat(dot(head, value, s.d) * inverse);
                const Vec b = splat(dot(gradient, value, s.d) * inverse);
                const Vec twice = 2.0f * a * b;
                for_vectors(s.d, [&](int64_t i, auto n) {
                    const Vec d = load(gradient + i, n), own = load(value + i, n);
                    const Vec along = twice * own - a * d - b * load(head + i, n);
                    store(dvalue + i, load(dvalue + i, n) + along, n);
                    store(to + h * s.d + i, d - b * own, n);  // dout may be dy
                });
            }
        }
    });
}

#include "kernels/cpu/isa_end.h"
