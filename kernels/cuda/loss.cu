// Cross-entropy over rows of logits x [n, V], with softcap and z-loss; the largest logit of each row.
//
//   y = x, cap tanh(x / cap) or cap sigmoid((x + shift) / temperature);  L = log sum exp y
//   loss = L - y[target] + z L^2;   dloss/dx_v = ((1 + 2 z L) e^(y_v - L) - [v = target]) dy_v/dx_v
//   dy/dx = 1, (1 - y/cap)(1 + y/cap) or y (1 - y/cap) / temperature;  times gradient_scale and the row's weight
//
// Nothing is saved: the gradient takes the logits' place in the same call. One read per element, with the
// gradient one more (from L2) and one write; 2 exponentials, a softcap computed twice rather than stored.
// A block per row: every thread keeps a running maximum and the sum below it of its packs,
// then a tree over the block.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr int loss_threads = 512;

template <Softcap kind>
DEVICE float capped(float x, const LossSpec& spec) {
    if constexpr (kind == Softcap::tanh) return spec.cap * tanhf(x / spec.cap);
    if constexpr (kind == Softcap::sigmoid)
        return spec.cap * logistic((x + spec.shift) / spec.temperature).value;
    return x;
}
// dy/dx at the capped value y.
template <Softcap kind>
DEVICE float cap_slope(float y, const LossSpec& spec) {
    if constexpr (kind == Softcap::none) return 1.0f;
    const float part = y / spec.cap;
    if constexpr (kind == Softcap::tanh) return (1.0f - part) * (1.0f + part);
    return y * (1.0f - part) / spec.temperature;
}

// sum exp y = e^top * sum. Nothing seen: top -infinity, sum 0.
struct LogSum {
    float top, sum;
};
constexpr float minus_infinity = -__builtin_huge_valf();

struct LossShared {
    WarpResults<float, loss_threads> results;
    float share;
};

template <class T, int n, Softcap kind>
KERNEL(loss_threads)
void cross_entropy_kernel(float* loss, View<T> logits, const int32_t* targets, const float* weights,
                          int64_t width, LossSpec spec, bool gradient) {
    LossShared& space = shared<LossShared>();
    const int64_t row = blockIdx.x;
    T* x = logits.at(row);
    const int target = targets[row];
    const int thread = static_cast<int>(threadIdx.x);
    constexpr int step = loss_threads * n;
    if (target < 0 && !gradient) {
        if (thread == 0) loss[row] = 0.0f;
        return;
    }
    if (target < 0) {
        for (int64_t c = thread * n; c < width; c += step) store(x + c, Pack<n>{});
        if (thread == 0) loss[row] = 0.0f;
        return;
    }
    // The target's logit before anything is overwritten.
    const float hit = target < width ? capped<kind>(widen(x[target]), spec) : nanf("");

    LogSum own{minus_infinity, 0.0f};
    for (int64_t c = thread * n; c < width; c += step) {
        Pack<n> y = load<n>(x + c);
        float most = own.top;
#pragma unroll
        for (int k = 0; k < n; ++k) {
            y[k] = capped<kind>(y[k], spec);
            most = fmaxf(most, y[k]);  // passes over a NaN; the sum below meets it
        }
        const float shift = most == minus_infinity ? 0.0f : most;
        own.sum *= expf(own.top - shift);
#pragma unroll
        for (int k = 0; k < n; ++k) own.sum += expf(y[k] - shift);
        own.top = most;
    }
    const float top = block_reduce<loss_threads>(own.top, space.results, Max{});
    const float shift = top == minus_infinity ? 0.0f : top;
    const float sum = block_sum<loss_threads>(own.sum * expf(own.top - shift), space.results);
    const float rate = spec.gradient_scale * (weights != nullptr ? weights[row] : 1.0f);
    if (thread == 0) {
        const double lse = static_cast<double>(top) + log(static_cast<double>(sum));
        loss[row] = static_cast<float>(lse - static_cast<double>(hit) + spec.z_loss * lse * lse);
        space.share = static_cast<float>(rate * (1.0 + 2.0 * spec.z_loss * lse) / static_cast<double>(sum));
    }
    if (!gradient) return;
    __syncthreads();
    const float share = space.share;
    for (int64_t c = thread * n; c < width; c += step) {
        Pack<n> g = load<n>(x + c);
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const float y = capped<kind>(g[k], spec);
            float at = share * expf(y - top);
            if (c + k == target) at -= rate;
            g[k] = target < width ? at * cap_slope<kind>(y, spec) : hit;
        }
        store(x + c, g);
    }
}

struct Smaller {
    DEVICE int operator()(int a, int b) const { return a < b ? a : b; }
};
constexpr int no_column = 0x7fffffff;

union TopShared {
    WarpResults<float, loss_threads> values;
    WarpResults<int, loss_threads> columns;
};

// A block per row, one read per element. First the largest number, then the first of the threads'
// columns that hold it.
template <class T, int n>
KERNEL(loss_threads)
void top1_kernel(int32_t* best, View<const T> logits, int width) {
    TopShared& space = shared<TopShared>();
    const int64_t row = blockIdx.x;
    const T* x = logits.at(row);
    float own = minus_infinity;
    int column = no_column;
    constexpr int step = loss_threads * n;
    for (int c = static_cast<int>(threadIdx.x) * n; c < width; c += step) {
        const Pack<n> y = load<n>(x + c);
#pragma unroll
        for (int k = 0; k < n; ++k) {
            // Columns come in order, so of equal numbers the first stays; a NaN is neither larger nor equal.
            if (y[k] > own || (column == no_column && y[k] == own)) {
                own = y[k];
                column = c + k;
            }
        }
    }
    const float top = block_reduce<loss_threads>(own, space.values, Max{});
    const int first = block_reduce<loss_threads>(own == top ? column : no_column, space.columns, Smaller{});
    if (threadIdx.x == 0) best[row] = first == no_column ? -1 : first;
}

}  // namespace

void top1(Tensor best, const Tensor& logits, Stream stream) {
    const int64_t rows = logits.rows(), width = logits.cols();
    check(best.count() == rows, "top 1 of {} rows into {} places", rows, best.count());
    with_element(logits.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        with_pack<T>(width % wide<T> == 0 && aligned(logits), [&](auto n) {
            launch(top1_kernel<T, decltype(n)::value>,
                   {dim3(static_cast<unsigned>(rows)), dim3(loss_threads), sizeof(TopShared), stream},
                   best.i32(), view<const T>(logits), static_cast<int>(width));
        });
    });
}

void cross_entropy(Tensor loss, Tensor logits, const Tensor& targets, const LossSpec& spec, bool gradient,
                   Stream stream) {
    const int64_t rows = logits.rows(), width = logits.cols();
    check(loss.count() == rows && targets.count() == rows, "cross_entropy of {} rows, {} targets, {} losses",
          rows, targets.count(), loss.count());
    check(!spec.weights || spec.weights.count() == rows, "cross_entropy of {} rows, {} weights", rows,
          spec.weights.count());
    check(spec.softcap == Softcap::none || (spec.cap > 0 && spec.temperature > 0),
          "softcap {} at temperature {}", spec.cap, spec.temperature);
    const float* const weights = spec.weights ? spec.weights.f32() : nullptr;
    with_element(logits.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        with_pack<T>(width % wide<T> == 0 && aligned(logits), [&](auto n) {
            constexpr int pack = decltype(n)::value;
            const auto run = [&](auto kernel) {
                launch(kernel,
                       {dim3(static_cast<unsigned>(rows)), dim3(loss_threads), sizeof(LossShared), stream},
                       loss.f32(), view<T>(logits), targets.i32(), weights, width, spec, gradient);
            };
            if (spec.softcap == Softcap::none) run(cross_entropy_kernel<T, pack, Softcap::none>);
            if (spec.softcap == Softcap::tanh) run(cross_entropy_kernel<T, pack, Softcap::tanh>);
            if (spec.softcap == Softcap::sigmoid) run(cross_entropy_kernel<T, pack, Softcap::sigmoid>);
        });
    });
}

}  // namespace longreach::cuda
