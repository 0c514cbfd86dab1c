// Running sums of the logarithms of forget gates.
//
//   c_h(i) = c_h(i - 1) + log f,  log f = -log(1 + e^-(u + b));   du = (1 - f) * sum over i' >= i of dc_h(i')
//
// At 64K positions c may be below -10^4, and attention needs the differences of neighbours: sums are f64. Per
// token and head 12 bytes, an exponential and a logarithm.
// Parallel over (sequence, head): each is one chain of additions.
#include <cmath>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

void check_shapes(const Tensor& sums, const Tensor& u, const Tensor& bias, int64_t length) {
    check(length > 0 && u.rows() % length == 0 && bias.count() == u.cols() && sums.rows() == u.cols() &&
              (u.rows() == 0 || sums.cols() % (u.rows() / length) == 0),
          "forget gates {}x{} with {} biases, sums {}x{}, length {}", u.rows(), u.cols(), bias.count(),
          sums.rows(), sums.cols(), length);
}

}  // namespace

void CpuOps::do_forget_sums(Tensor sums, const Tensor& u, const Tensor& bias, int64_t length, int64_t first) {
    check_shapes(sums, u, bias, length);
    const int64_t heads = u.cols(), sequences = u.rows() / length;
    const int64_t room = sequences > 0 ? sums.cols() / sequences : 0;
    check(sequences == 0 || (first >= 0 && first + length <= room), "forget sums {}+{} of {}", first, length,
          room);
    for_items(pool_, sequences * heads, length, [&](int64_t item) {
        const int64_t b = item / heads, h = item % heads;
        const float* from = u.f32() + b * length * u.row_stride + h;
        double* to = sums.f64() + h * sums.row_stride + b * room + first;
        double so_far = first > 0 ? to[-1] : 0.0;
        for (int64_t i = 0; i < length; ++i) {
            const double x = double{from[i * u.row_stride]} + double{bias.f32()[h]};
            so_far += (x < 0 ? x : 0.0) - std::log1p(std::exp(-std::abs(x)));
            to[i] = so_far;
        }
    });
}

void CpuOps::do_forget_sums_backward(Tensor du, Tensor dbias, const Tensor& dsums, const Tensor& u,
                                     const Tensor& bias, int64_t length) {
    check_shapes(dsums, u, bias, length);
    check(du.rows() == u.rows() && du.cols() == u.cols() && dsums.cols() == u.rows(),
          "gradient {}x{} of forget gates {}x{} from {}x{}", du.rows(), du.cols(), u.rows(), u.cols(),
          dsums.rows(), dsums.cols());
    const int64_t heads = u.cols(), sequences = u.rows() / length;
    check(heads * sequences <= partial_doubles, "forget gates of {} heads", heads * sequences);
    for_items(pool_, sequences * heads, length, [&](int64_t item) {
        const int64_t b = item / heads, h = item % heads;
        const float* from = u.f32() + b * length * u.row_stride + h;
        const float* gradient = dsums.f32() + h * dsums.row_stride + b * length;
        float* to = du.f32() + b * length * du.row_stride + h;
        double later = 0, total = 0;
        for (int64_t i = length - 1; i >= 0; --i) {
            later += double{gradient[i]};
            const double x = double{from[i * u.row_stride]} + double{bias.f32()[h]};
            const double d = later / (1 + std::exp(x));  // 1 - f = sigmoid(-x)
            to[i * du.row_stride] = static_cast<float>(d);
            total += d;
        }
        partials_[h * sequences + b] = total;
    });
    if (!dbias) return;
    for (int64_t h = 0; h < heads; ++h) {
        double total = 0;
        for (int64_t b = 0; b < sequences; ++b) total += partials_[h * sequences + b];
        dbias.f32()[h] += static_cast<float>(total);
    }
}

#include "kernels/cpu/isa_end.h"
