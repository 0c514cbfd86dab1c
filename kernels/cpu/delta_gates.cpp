// Gates of the delta rule, one number at a time.
//
//   decay = -exp(a_log_h) softplus(u + bias),  beta = beta_max sigmoid(ub)
//   du = -ddecay exp(a_log_h) sigmoid(u + bias);  dbias += du;  da_log_h += ddecay decay
//   dub = dbeta beta (1 - sigmoid(ub))
//
// u [N, W], W = H or H*d: column c belongs to head c / (W / H). An exponential and a logarithm per number. Parallel
// over rows, backward over at most 128 fixed blocks of rows whose sums are folded in block order.
#include <algorithm>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/fold.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

void check_gates(const Tensor& decay, const Tensor& beta, const Tensor& u, const Tensor& ub,
                 const Tensor& a_log, const Tensor& bias) {
    const int64_t heads = a_log.count();
    const auto of_heads = [&](const Tensor& t) { return t.rows() == u.rows() && t.cols() == heads; };
    check(decay.rows() == u.rows() && decay.cols() == u.cols() &&
              ((!beta && !ub) || (of_heads(beta) && of_heads(ub))) && heads > 0 && u.cols() % heads == 0 &&
              bias.count() == u.cols(),
          "delta gates {}x{} and {}x{} of {}x{} and {}x{}, {} heads, {} biases", decay.rows(), decay.cols(),
          beta.rows(), beta.cols(), u.rows(), u.cols(), ub.rows(), ub.cols(), heads, bias.count());
}

// Calls body(begin, n) for vectors of columns that belong to one head, head by head.
template <class Body>
LONGREACH_INLINE void for_heads(int64_t heads, int64_t width, Body body) {
    const int64_t each = width / heads;
    for (int64_t h = 0; h < heads; ++h)
        for_vectors(each, [&](int64_t i, auto n) { body(h, h * each + i, n); });
}

}  // namespace

void CpuOps::do_delta_gates(Tensor decay, Tensor beta, const Tensor& u, const Tensor& ub,
                            const DeltaGateSpec& spec) {
    check_gates(decay, beta, u, ub, spec.a_log, spec.bias);
    const int64_t rows = u.rows(), width = u.cols(), heads = spec.a_log.count();
    const float *log_rate = spec.a_log.f32(), *offset = spec.bias.f32();
    for_items(pool_, rows, width, [&](int64_t r) {
        const float* from = u.f32() + r * u.row_stride;
        float* to = decay.f32() + r * decay.row_stride;
        if (width == heads)
            for_vectors(width, [&](int64_t c, auto n) {
                const Vec rate = exp(load(log_rate + c, n));
                store(to + c, Vec{} - rate * softplus(load(from + c, n) + load(offset + c, n)), n);
            });
        else
            for_heads(heads, width, [&](int64_t h, int64_t c, auto n) {
                const Vec rate = exp(splat(log_rate[h]));
                store(to + c, Vec{} - rate * softplus(load(from + c, n) + load(offset + c, n)), n);
            });
        if (!beta) return;
        const float* from_beta = ub.f32() + r * ub.row_stride;
        float* to_beta = beta.f32() + r * beta.row_stride;
        for_vectors(heads, [&](int64_t h, auto n) {
            store(to_beta + h, splat(spec.beta_max) * sigmoid(load(from_beta + h, n)), n);
        });
    });
}

void CpuOps::do_delta_gates_backward(Tensor du, Tensor dub, Tensor da_log, Tensor dbias, const Tensor& ddecay,
                                     const Tensor& dbeta, const Tensor& u, const Tensor& ub,
                                     const DeltaGateSpec& spec) {
    check_gates(ddecay, dbeta, u, ub, spec.a_log, spec.bias);
    check_gates(du, dub, u, ub, da_log, dbias);
    const int64_t rows = u.rows(), width = u.cols(), heads = spec.a_log.count(), of_head = width / heads;
    const float *log_rate = spec.a_log.f32(), *offset = spec.bias.f32();
    const int64_t each = 2 * width;  // sums of du and of ddecay decay
    const int64_t blocks = fixed_blocks(rows, 2 * partial_doubles, each);
    float* partials = reinterpret_cast<float*>(partials_);
    for_items(pool_, blocks, width * piece(rows, blocks, 0).end, [&](int64_t b) {
        float *sums = partials + b * each, *rates = sums + width;
        std::fill_n(sums, each, 0.0f);
        const Range block = piece(rows, blocks, b);
        for (int64_t r = block.begin; r < block.end; ++r) {
            const float *from = u.f32() + r * u.row_stride, *gradient = ddecay.f32() + r * ddecay.row_stride;
            float* to = du.f32() + r * du.row_stride;
            const auto columns = [&](int64_t c, Vec rate, auto n) {
                const Vec x = load(from + c, n) + load(offset + c, n);
                const Vec d = Vec{} - rate * load(gradient + c, n);
                const Vec slope = d * sigmoid(x);
                store(to + c, slope, n);
                store(sums + c, load(sums + c, n) + slope, n);
                store(rates + c, fma(d, softplus(x), load(rates + c, n)), n);
            };
            if (width == heads)
                for_vectors(width, [&](int64_t c, auto n) { columns(c, exp(load(log_rate + c, n)), n); });
            else
                for_heads(heads, width,
                          [&](int64_t h, int64_t c, auto n) { columns(c, exp(splat(log_rate[h])), n); });
            if (!dub) continue;
            const float *from_beta = ub.f32() + r * ub.row_stride, *d = dbeta.f32() + r * dbeta.row_stride;
            float* to_beta = dub.f32() + r * dub.row_stride;
            for_vectors(heads, [&](int64_t h, auto n) {
                const Logistic s = logistic(load(from_beta + h, n));
                store(to_beta + h, splat(spec.beta_max) * (load(d + h, n) * s.value * s.rest), n);
            });
        }
    });
    fold(dbias.f32(), partials, blocks, each, {0, width});
    for (int64_t h = 0; h < heads; ++h) {
        double total = 0;
        for (int64_t b = 0; b < blocks; ++b)
            for (int64_t c = h * of_head; c < (h + 1) * of_head; ++c)
                total += double{partials[b * each + width + c]};
        da_log.f32()[h] += static_cast<float>(total);
    }
}

#include "kernels/cpu/isa_end.h"
