// Cross-entropy over rows of logits x [n, V], with softcap and z-loss; the largest logit of each row.
//
//   y = x, cap tanh(x / cap) or cap sigmoid((x + shift) / temperature);  L = log sum exp y
//   loss = L - y[target] + z L^2;   dloss/dx_v = ((1 + 2 z L) e^(y_v - L) - [v = target]) dy_v/dx_v
//   dy/dx = 1, (1 - y/cap)(1 + y/cap) or y (1 - y/cap) / temperature;  times gradient_scale and the row's weight
//
// Nothing is saved: the gradient takes the logits' place in the same call. Per element 4 bytes read, 4
// written with the gradient (its second pass finds the row in L2), 2 exponentials. L is built block by block:
// a running maximum, block sums in f32, their total in f64. Parallel over rows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

constexpr int64_t block = 1024;  // logits: 4 KiB
constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

template <Softcap kind>
LONGREACH_INLINE Vec capped(Vec x, const LossSpec& spec) {
    if constexpr (kind == Softcap::tanh) return splat(spec.cap) * tanh(x * splat(1.0f / spec.cap));
    if constexpr (kind == Softcap::sigmoid)
        return splat(spec.cap) * sigmoid((x + splat(spec.shift)) * splat(1.0f / spec.temperature));
    return x;
}
// dy/dx at the capped value y.
template <Softcap kind>
LONGREACH_INLINE Vec cap_slope(Vec y, const LossSpec& spec) {
    const Vec one = splat(1.0f), part = y * splat(kind == Softcap::none ? 0.0f : 1.0f / spec.cap);
    if constexpr (kind == Softcap::tanh) return (one - part) * (one + part);
    if constexpr (kind == Softcap::sigmoid) return y * (one - part) * splat(1.0f / spec.temperature);
    return one;
}

// sum exp y = e^top * sum.
struct LogSum {
    float top;
    double sum;
    double value() const { return top + std::log(sum); }
};

// With `keep` the capped values replace the logits.
template <Softcap kind>
LogSum log_sum_exp(float* logits, int64_t width, bool keep, const LossSpec& spec) {
    alignas(64) float buffer[block];
    LogSum result{minus_infinity, 0.0};
    for (int64_t begin = 0; begin < width; begin += block) {
        const int64_t count = std::min(block, width - begin);
        float* x = logits + begin;
        float* y = kind == Softcap::none || keep ? x : buffer;
        Vec most = splat(minus_infinity);
        for_vectors(count, [&](int64_t i, auto n) {
            const Vec v = capped<kind>(load(x + i, n, x[i]), spec);  // filled with x[i]: keeps the maximum
            if (kind != Softcap::none) store(y + i, v, n);
            most = max(v, most);  // in this order a NaN is passed over; the sum below meets it
        });
        const float top = std::max(result.top, reduce_max(most));
        const Vec shift = splat(top);
        const float sum = sum_vectors(
            count, [&](int64_t i, auto n) { return exp_or_nan(load(y + i, n, minus_infinity) - shift); });
        result.sum = result.sum * std::exp(double{result.top} - top) + sum;
        result.top = top;
    }
    return result;
}

// y holds capped logits and receives the gradient, `rate` times that of the loss.
template <Softcap kind>
void row_gradient(float* y, int64_t width, int64_t target, LogSum total, const LossSpec& spec, float rate) {
    const double share = rate * (1.0 + 2.0 * spec.z_loss * total.value()) / total.sum;
    const Vec scale = splat(static_cast<float>(share)), top = splat(total.top);
    const float hit = y[target];
    for_vectors(width, [&](int64_t i, auto n) {
        const Vec v = load(y + i, n, total.top);
        store(y + i, scale * exp_or_nan(v - top) * cap_slope<kind>(v, spec), n);
    });
    const double at_target = share * std::exp(double{hit} - total.top) - rate;
    y[target] = static_cast<float>(at_target * cap_slope<kind>(splat(hit), spec)[0]);
}

template <Softcap kind>
float row_loss(float* logits, int64_t width, int64_t target, const LossSpec& spec, bool gradient,
               float rate) {
    // The target's logit, capped exactly as the row is: its own vector, before anything is overwritten.
    const float hit = capped<kind>(splat(logits[target]), spec)[0];
    const LogSum total = log_sum_exp<kind>(logits, width, gradient, spec);
    if (gradient) row_gradient<kind>(logits, width, target, total, spec, rate);
    const double lse = total.value();
    return static_cast<float>(lse - hit + spec.z_loss * lse * lse);
}

template <Softcap kind>
void rows_loss(const Tensor& loss, const Tensor& logits, const Tensor& targets, const LossSpec& spec,
               bool gradient, Pool& pool) {
    const int64_t rows = logits.rows(), width = logits.cols();
    const float* const weights = spec.weights ? spec.weights.f32() : nullptr;
    for_items(pool, rows, width, [&](int64_t r) {
        float* row = logits.f32() + r * logits.row_stride;
        const int32_t target = targets.i32()[r];
        if (target < 0 && gradient) std::fill_n(row, width, 0.0f);
        const float rate = spec.gradient_scale * (weights != nullptr ? weights[r] : 1.0f);
        loss.f32()[r] = target < 0 ? 0.0f : row_loss<kind>(row, width, target, spec, gradient, rate);
    });
}

// The first column that holds the row's largest number; -1: all are NaN.
int32_t first_of_largest(const float* x, int64_t width) {
    float top = minus_infinity;
    int64_t place = 0;  // of the block it is first seen in
    for (int64_t begin = 0; begin < width; begin += block) {
        Vec most = splat(minus_infinity);
        for_vectors(std::min(block, width - begin), [&](int64_t i, auto n) {
            most = max(load(x + begin + i, n, minus_infinity), most);  // in this order a NaN is passed over
        });
        const float here = reduce_max(most);
        if (here > top) {
            top = here;
            place = begin;
        }
    }
    for (int64_t i = place; i < width; ++i)
        if (x[i] == top) return static_cast<int32_t>(i);
    return -1;
}

}  // namespace

void CpuOps::do_top1(Tensor best, const Tensor& logits) {
    const int64_t rows = logits.rows(), width = logits.cols();
    check(best.count() == rows, "top 1 of {} rows into {} places", rows, best.count());
    for_items(pool_, rows, width, [&](int64_t r) {
        best.i32()[r] = first_of_largest(logits.f32() + r * logits.row_stride, width);
    });
}

void CpuOps::do_cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec,
                              bool gradient) {
    const int64_t rows = logits.rows();
    check(loss.count() == rows && targets.count() == rows, "cross_entropy of {} rows, {} targets, {} losses",
          rows, targets.count(), loss.count());
    check(!spec.weights || spec.weights.count() == rows, "cross_entropy of {} rows, {} weights", rows,
          spec.weights.count());
    check(spec.softcap == Softcap::none || (spec.cap > 0 && spec.temperature > 0),
          "softcap {} at temperature {}", spec.cap, spec.temperature);
    // At most a few thousand rows per call, against V logits each.
    for (int64_t r = 0; r < rows; ++r)
        check(targets.i32()[r] >= -1 && targets.i32()[r] < logits.cols(), "target {} of {}", targets.i32()[r],
              logits.cols());
    if (spec.softcap == Softcap::none) rows_loss<Softcap::none>(loss, logits, targets, spec, gradient, pool_);
    if (spec.softcap == Softcap::tanh) rows_loss<Softcap::tanh>(loss, logits, targets, spec, gradient, pool_);
    if (spec.softcap == Softcap::sigmoid)
        rows_loss<Softcap::sigmoid>(loss, logits, targets, spec, gradient, pool_);
}

#include "kernels/cpu/isa_end.h"
