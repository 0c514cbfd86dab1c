// What scores and angles read of tokens: sums of values between key and query, biases of keys, angles of the sums, and the
// way back to the projections.
//
//   sums     c_h(i) = sum over i' <= i of value_h(i') + key_h(i);   dvalue_h(i) = sum over i' >= i of dc_h(i')
//   gradient dx_h(i) = derivative_h(i) * gradient_h(i)
//   angles   a_h(i, m) = c_h(i) theta_m;   with y1, y2 the turned pair m: dc_h(i) = sum over m of theta_m (dy2 y1 - dy1 y2)
//
// At 64K positions c may be below -10^4, and attention needs the differences of neighbours: sums are f64. Per
// token and head 12 bytes and an addition.
// Sums are parallel over (sequence, head): each is one chain of additions. Gradients and angles are parallel over tokens;
// about 60 FLOPs per token, head and pair for cosine and sine, in double.
#include "base/error.h"
#include "kernels/ops.h"
#include "kernels/token_angle.h"

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

void CpuOps::do_token_angles(Tensor cosine, Tensor sine, const Tensor& sums, const Tensor& theta,
                             int64_t length, int64_t first) {
    const int64_t room = check_token_angles(cosine, sine, sums, theta, length, first);
    const int64_t heads = sums.rows(), pairs = theta.count();
    for_items(pool_, cosine.rows(), 16 * cosine.cols(), [&](int64_t i) {
        const double* of_token = sums.f64() + i / length * room + first + i % length;
        for (int64_t h = 0; h < heads; ++h) {
            float *c = cosine.f32() + i * cosine.row_stride + h * pairs,
                  *s = sine.f32() + i * sine.row_stride + h * pairs;
            const double place = of_token[h * sums.row_stride];
            for (int64_t m = 0; m < pairs; ++m) {
                const TokenAngle turn = token_angle(place * theta.f64()[m]);
                c[m] = turn.cosine;
                s[m] = turn.sine;
            }
        }
    });
}

void CpuOps::do_token_angles_backward(Tensor dsums, const Tensor& dx, const Tensor& x, const Tensor& theta,
                                      int64_t head_dim, Write write) {
    check_token_angle_gradient(dsums, dx, x, theta, head_dim);
    const int64_t groups = dsums.rows(), sharing = x.cols() / head_dim / groups, half = head_dim / 2;
    for_items(pool_, x.rows(), x.cols(), [&](int64_t i) {
        const float *turned = x.f32() + i * x.row_stride, *gradient = dx.f32() + i * dx.row_stride;
        for (int64_t g = 0; g < groups; ++g) {
            double slope = 0;
            for (int64_t h = 0; h < sharing; ++h, turned += head_dim, gradient += head_dim)
                for (int64_t m = 0; m < theta.count(); ++m)
                    slope += theta.f64()[m] * (double{gradient[half + m]} * double{turned[m]} -
                                               double{gradient[m]} * double{turned[half + m]});
            float& to = dsums.f32()[g * dsums.row_stride + i];
            to = static_cast<float>(write == Write::add ? double{to} + slope : slope);
        }
    });
}

#include "kernels/cpu/isa_end.h"
