// Running sums of the logarithms of forget gates.
//
//   c_h(i) = c_h(i - 1) + log f,  log f = -log(1 + e^-(u + b));   du = (1 - f) * sum over i' >= i of dc_h(i')
//
// Sums are f64, as kernels/cpu/forget.cpp says, logarithms too. A block per (head, sequence) walks its positions
// 256 at a time, forwards or backwards: sums of the 32 positions of a warp, the totals of the warps before it,
// what came before the tile. 12 bytes per token and head, an exponential and a logarithm.
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr int scan_threads = 256;

// `before` plus the values of this thread and of those before it; then before += the sum of all.
DEVICE double running_sum(double value, double& before, WarpResults<double, scan_threads>& results) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(all_lanes, value, static_cast<unsigned>(step));
        if (lane >= step) value += other;
    }
    if (lane == 31) results.of[warp] = value;
    __syncthreads();
    double total = before;
#pragma unroll
    for (int w = 0; w < scan_threads / 32; ++w) {
        if (w == warp) value += total;
        total += results.of[w];
    }
    before = total;
    __syncthreads();  // frees the results
    return value;
}

template <class T>
DEVICE double gate_logit(const View<const T>& u, const float* bias, int64_t row, int head) {
    return static_cast<double>(widen(*u.at(row, head))) + static_cast<double>(bias[head]);
}

template <class T>
KERNEL(scan_threads)
void forget_sums_kernel(View<double> sums, View<const T> u, const float* bias, int64_t length, int64_t room,
                        int64_t first) {
    auto& results = shared<WarpResults<double, scan_threads>>();
    const int head = static_cast<int>(blockIdx.x);
    const int64_t sequence = blockIdx.y;
    double* to = sums.at(head, sequence * room + first);
    double before = first > 0 ? to[-1] : 0.0;
    for (int64_t begin = 0; begin < length; begin += scan_threads) {
        const int64_t i = begin + threadIdx.x;
        double value = 0.0;
        if (i < length) {
            const double x = gate_logit(u, bias, sequence * length + i, head);
            value = (x < 0.0 ? x : 0.0) - log1p(exp(-fabs(x)));
        }
        const double sum = running_sum(value, before, results);
        if (i < length) to[i] = sum;
    }
}

// partials [H, B]: sums of du.
template <class T>
KERNEL(scan_threads)
void forget_sums_backward_kernel(View<T> du, double* partials, View<const float> dsums, View<const T> u,
                                 const float* bias, int64_t length) {
    auto& results = shared<WarpResults<double, scan_threads>>();
    const int head = static_cast<int>(blockIdx.x);
    const int64_t sequence = blockIdx.y;
    double later = 0.0, total = 0.0;
    for (int64_t begin = 0; begin < length; begin += scan_threads) {
        const int64_t i = length - 1 - (begin + threadIdx.x), row = sequence * length + i;
        const double value = i >= 0 ? static_cast<double>(*dsums.at(head, row)) : 0.0;
        const double sum = running_sum(value, later, results);
        if (i >= 0) {
            const double d = sum / (1.0 + exp(gate_logit(u, bias, row, head)));
            *du.at(row, head) = narrow<T>(static_cast<float>(d));
            total += d;
        }
    }
    total = block_sum<scan_threads>(total, results);
    if (threadIdx.x == 0) partials[head * gridDim.y + sequence] = total;
}

// The sequences of a call.
int64_t checked_sequences(const Tensor& sums, const Tensor& u, const Tensor& bias, int64_t length) {
    const int64_t sequences = length > 0 ? u.rows() / length : 0;
    check(length > 0 && u.rows() == sequences * length && bias.count() == u.cols() &&
              sums.rows() == u.cols() && (sequences == 0 || sums.cols() % sequences == 0) &&
              sequences < 65536,
          "forget gates {}x{} with {} biases, sums {}x{}, length {}", u.rows(), u.cols(), bias.count(),
          sums.rows(), sums.cols(), length);
    return sequences;
}

}  // namespace

void forget_sums(Tensor sums, const Tensor& u, const Tensor& bias, int64_t length, int64_t first,
                 Stream stream) {
    const int64_t sequences = checked_sequences(sums, u, bias, length);
    if (u.count() == 0) return;
    const int64_t room = sums.cols() / sequences;
    check(first >= 0 && first + length <= room, "forget sums {}+{} of {}", first, length, room);
    with_element(u.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        launch(forget_sums_kernel<T>,
               {dim3(static_cast<unsigned>(u.cols()), static_cast<unsigned>(sequences)), dim3(scan_threads),
                sizeof(WarpResults<double, scan_threads>), stream},
               view<double>(sums), view<const T>(u), bias.f32(), length, room, first);
    });
}

void forget_sums_backward(Tensor du, Tensor dbias, Tensor workspace, const Tensor& dsums, const Tensor& u,
                          const Tensor& bias, int64_t length, Stream stream) {
    const int64_t sequences = checked_sequences(dsums, u, bias, length), heads = u.cols();
    check(du.rows() == u.rows() && du.cols() == heads && dsums.cols() == u.rows(),
          "gradient {}x{} of forget gates {}x{} from {}x{}", du.rows(), du.cols(), u.rows(), heads,
          dsums.rows(), dsums.cols());
    check(workspace.bytes() >= forget_sums_backward_workspace(heads, sequences), "a workspace of {} bytes",
          workspace.bytes());
    if (u.count() == 0) return;
    double* partials = workspace.as<double>();
    with_element(u.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        launch(forget_sums_backward_kernel<T>,
               {dim3(static_cast<unsigned>(heads), static_cast<unsigned>(sequences)), dim3(scan_threads),
                sizeof(WarpResults<double, scan_threads>), stream},
               view<T>(du), partials, view<const float>(dsums), view<const T>(u), bias.f32(), length);
    });
    if (dbias)
        fold_totals({.partials = partials, .count = sequences, .step = sequences, .add_to = dbias.f32()},
                    heads, stream);
}

}  // namespace longreach::cuda
