// What scores read of tokens: sums of values between key and query, biases of keys, and the way back to the projections.
//
//   sums     c_h(i) = sum over i' <= i of value_h(i') + key_h(i);   dvalue_h(i) = sum over i' >= i of dc_h(i')
//   gradient dx_h(i) = derivative_h(i) * gradient_h(i)
//
// At 64K positions c may be below -10^4, and attention needs the differences of neighbours: sums are f64. Per
// token and head 12 bytes and an addition.
// Sums are parallel over (sequence, head): each is one chain of additions. Gradients are parallel over tokens.
#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

void CpuOps::do_running_sums(Tensor sums, Tensor total, const Tensor& values, const Tensor& keys,
                             int64_t length, int64_t first) {
    const int64_t sequences = check_running_sums(sums, total, values, keys, length, first);
    if (sequences == 0) return;
    const int64_t heads = sums.rows(), room = sums.cols() / sequences;
    for_items(pool_, sequences * heads, length, [&](int64_t item) {
        const int64_t b = item / heads, h = item % heads;
        const float* value = values ? values.f32() + h * values.row_stride + b * length : nullptr;
        const float* key = keys ? keys.f32() + h * keys.row_stride + b * length : nullptr;
        double* to = sums.f64() + h * sums.row_stride + b * room + first;
        double* kept = total ? total.f64() + h * total.row_stride + b : nullptr;
        double so_far = kept != nullptr && first > 0 ? *kept : 0.0;
        for (int64_t i = 0; i < length; ++i) {
            if (value != nullptr) so_far += double{value[i]};
            to[i] = key != nullptr ? so_far + double{key[i]} : so_far;
        }
        if (kept != nullptr) *kept = so_far;
    });
}

void CpuOps::do_running_sums_backward(Tensor dvalues, const Tensor& dsums, int64_t length) {
    check(length > 0 && dsums.cols() % length == 0 && dvalues.rows() == dsums.rows() &&
              dvalues.cols() == dsums.cols(),
          "gradients {}x{} of sums {}x{}, length {}", dvalues.rows(), dvalues.cols(), dsums.rows(),
          dsums.cols(), length);
    const int64_t heads = dsums.rows(), sequences = dsums.cols() / length;
    for_items(pool_, sequences * heads, length, [&](int64_t item) {
        const int64_t b = item / heads, h = item % heads;
        const float* from = dsums.f32() + h * dsums.row_stride + b * length;
        float* to = dvalues.f32() + h * dvalues.row_stride + b * length;
        double later = 0;
        for (int64_t i = length - 1; i >= 0; --i) {
            later += double{from[i]};
            to[i] = static_cast<float>(later);
        }
    });
}

void CpuOps::do_term_gradient(Tensor dx, const Tensor& derivative, const Tensor& gradient, Write write) {
    const int64_t heads = gradient.rows(), tokens = gradient.cols();
    check(derivative.rows() == heads && derivative.cols() == tokens && dx.rows() == tokens &&
              dx.cols() == heads,
          "gradient {}x{} of derivatives {}x{} and gradients {}x{}", dx.rows(), dx.cols(), derivative.rows(),
          derivative.cols(), heads, tokens);
    for_items(pool_, tokens, heads, [&](int64_t i) {
        float* to = dx.f32() + i * dx.row_stride;
        for (int64_t h = 0; h < heads; ++h) {
            const float d = derivative.f32()[h * derivative.row_stride + i];
            const float g = gradient.f32()[h * gradient.row_stride + i];
            to[h] = write == Write::add ? to[h] + d * g : d * g;
        }
    });
}

#include "kernels/cpu/isa_end.h"
