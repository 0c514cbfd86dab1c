// What scores and angles read of tokens: sums of values between key and query, biases of keys, angles of the sums, and the
// way back to the projections.
//
//   sums     c_h(i) = sum over i' <= i of value_h(i') + key_h(i);   dvalue_h(i) = sum over i' >= i of dc_h(i')
//   gradient dx_h(i) = derivative_h(i) * gradient_h(i)
//   angles   a_h(i, m) = c_h(i) theta_m;   with y1, y2 the turned pair m: dc_h(i) = sum over m of theta_m (dy2 y1 - dy1 y2)
//
// Sums are f64, as kernels/cpu/terms.cpp says. A block per (head, sequence) walks its positions 256 at a time, forwards
// or backwards: sums of the 32 positions of a warp, the totals of the warps before it, what came before the tile. 12 bytes
// per token and head. Gradients: one thread per token and head. Angles: one thread per token, head and pair, about 60 FLOPs
// in double; their gradient: a warp per token and head of the angles, which reads 4 elements of each pair.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/token_angle.h"

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

KERNEL(scan_threads)
void running_sums_kernel(View<double> sums, View<double> total, View<const float> values,
                         View<const float> keys, int64_t length, int64_t room, int64_t first) {
    auto& results = shared<WarpResults<double, scan_threads>>();
    const int head = static_cast<int>(blockIdx.x);
    const int64_t sequence = blockIdx.y;
    double before = total.data && first > 0 ? *total.at(head, sequence) : 0.0;
    for (int64_t begin = 0; begin < length; begin += scan_threads) {
        const int64_t i = begin + threadIdx.x, token = sequence * length + i;
        const double value = i < length && values.data ? static_cast<double>(*values.at(head, token)) : 0.0;
        double sum = running_sum(value, before, results);
        if (i >= length) continue;
        if (keys.data) sum += static_cast<double>(*keys.at(head, token));
        *sums.at(head, sequence * room + first + i) = sum;
    }
    if (threadIdx.x == 0 && total.data) *total.at(head, sequence) = before;
}

KERNEL(scan_threads)
void running_sums_backward_kernel(View<float> dvalues, View<const float> dsums, int64_t length) {
    auto& results = shared<WarpResults<double, scan_threads>>();
    const int head = static_cast<int>(blockIdx.x);
    const int64_t sequence = blockIdx.y;
    double later = 0.0;
    for (int64_t begin = 0; begin < length; begin += scan_threads) {
        const int64_t i = length - 1 - (begin + threadIdx.x), token = sequence * length + i;
        const double value = i >= 0 ? static_cast<double>(*dsums.at(head, token)) : 0.0;
        const double sum = running_sum(value, later, results);
        if (i >= 0) *dvalues.at(head, token) = static_cast<float>(sum);
    }
}

template <class T>
KERNEL(256)
void term_gradient_kernel(View<T> dx, View<const float> derivative, View<const float> gradient, bool add,
                          int64_t tokens) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x, head = blockIdx.y;
    if (i >= tokens) return;
    const float d = *derivative.at(head, i) * *gradient.at(head, i);
    T* to = dx.at(i, head);
    *to = narrow<T>(add ? widen(*to) + d : d);
}

struct TokenAngles {
    View<float> cosine, sine;
    View<const double> sums;
    const double* theta;
    int64_t items;
    int columns, pairs;  // columns: G P
    int64_t length, room, first;
};
KERNEL(256)
void token_angles_kernel(TokenAngles a) {
    const int64_t item = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
    if (item >= a.items) return;
    const int64_t token = item / a.columns;
    const int column = static_cast<int>(item - token * a.columns);
    const int64_t at = token / a.length * a.room + a.first + token % a.length;
    const TokenAngle turn = token_angle(*a.sums.at(column / a.pairs, at) * a.theta[column % a.pairs]);
    *a.cosine.at(token, column) = turn.cosine;
    *a.sine.at(token, column) = turn.sine;
}

template <class T>
struct AngleGradient {
    View<float> dsums;
    View<const T> dx, x;
    const double* theta;
    int64_t items;                 // tokens times heads of the angles
    int heads, sharing, head_dim;  // heads of the angles; of x, for each of them
    int pairs;
    bool add;
};
template <class T>
KERNEL(256)
void token_angles_backward_kernel(AngleGradient<T> a) {
    const int64_t item = static_cast<int64_t>(blockIdx.x) * 8 + threadIdx.x / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32, half = a.head_dim / 2;
    const bool active = item < a.items;
    const int64_t token = active ? item / a.heads : 0;
    const int head = active ? static_cast<int>(item % a.heads) : 0;
    double sum = 0.0;
    for (int k = lane; k < (active ? a.sharing * a.pairs : 0); k += 32) {
        const int m = k % a.pairs, column = (head * a.sharing + k / a.pairs) * a.head_dim + m;
        const double x1 = static_cast<double>(widen(*a.x.at(token, column))),
                     x2 = static_cast<double>(widen(*a.x.at(token, column + half))),
                     d1 = static_cast<double>(widen(*a.dx.at(token, column))),
                     d2 = static_cast<double>(widen(*a.dx.at(token, column + half)));
        sum += a.theta[m] * (d2 * x1 - d1 * x2);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(all_lanes, sum, step);
    if (!active || lane != 0) return;
    float* to = a.dsums.at(head, token);
    *to = static_cast<float>(a.add ? static_cast<double>(*to) + sum : sum);
}

}  // namespace

void running_sums(Tensor sums, Tensor total, const Tensor& values, const Tensor& keys, int64_t length,
                  int64_t first, Stream stream) {
    const int64_t sequences = check_running_sums(sums, total, values, keys, length, first);
    if (sequences == 0) return;
    launch(running_sums_kernel,
           {dim3(static_cast<unsigned>(sums.rows()), static_cast<unsigned>(sequences)), dim3(scan_threads),
            sizeof(WarpResults<double, scan_threads>), stream},
           view<double>(sums), view<double>(total), view<const float>(values), view<const float>(keys),
           length, sums.cols() / sequences, first);
}

void running_sums_backward(Tensor dvalues, const Tensor& dsums, int64_t length, Stream stream) {
    const int64_t heads = dsums.rows(), sequences = length > 0 ? dsums.cols() / length : 0;
    check(length > 0 && dsums.cols() == sequences * length && sequences < 65536 && dvalues.rows() == heads &&
              dvalues.cols() == dsums.cols(),
          "gradients {}x{} of sums {}x{}, length {}", dvalues.rows(), dvalues.cols(), heads, dsums.cols(),
          length);
    if (dsums.count() == 0) return;
    launch(running_sums_backward_kernel,
           {dim3(static_cast<unsigned>(heads), static_cast<unsigned>(sequences)), dim3(scan_threads),
            sizeof(WarpResults<double, scan_threads>), stream},
           view<float>(dvalues), view<const float>(dsums), length);
}

void term_gradient(Tensor dx, const Tensor& derivative, const Tensor& gradient, Write write, Stream stream) {
    const int64_t heads = gradient.rows(), tokens = gradient.cols();
    check(derivative.rows() == heads && derivative.cols() == tokens && dx.rows() == tokens &&
              dx.cols() == heads,
          "gradient {}x{} of derivatives {}x{} and gradients {}x{}", dx.rows(), dx.cols(), derivative.rows(),
          derivative.cols(), heads, tokens);
    if (gradient.count() == 0) return;
    with_element(dx.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        launch(term_gradient_kernel<T>,
               {dim3(blocks_for(tokens, 256), static_cast<unsigned>(heads)), dim3(256), 0, stream},
               view<T>(dx), view<const float>(derivative), view<const float>(gradient), write == Write::add,
               tokens);
    });
}

void token_angles(Tensor cosine, Tensor sine, const Tensor& sums, const Tensor& theta, int64_t length,
                  int64_t first, Stream stream) {
    const int64_t room = check_token_angles(cosine, sine, sums, theta, length, first);
    if (cosine.count() == 0) return;
    const TokenAngles arguments{.cosine = view<float>(cosine),
                                .sine = view<float>(sine),
                                .sums = view<const double>(sums),
                                .theta = theta.f64(),
                                .items = cosine.count(),
                                .columns = static_cast<int>(cosine.cols()),
                                .pairs = static_cast<int>(theta.count()),
                                .length = length,
                                .room = room,
                                .first = first};
    launch(token_angles_kernel, {dim3(blocks_for(arguments.items, 256)), dim3(256), 0, stream}, arguments);
}

void token_angles_backward(Tensor dsums, const Tensor& dx, const Tensor& x, const Tensor& theta,
                           int64_t head_dim, Write write, Stream stream) {
    check_token_angle_gradient(dsums, dx, x, theta, head_dim);
    if (dsums.count() == 0) return;
    with_element(x.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const int64_t heads = dsums.rows();
        const AngleGradient<T> arguments{.dsums = view<float>(dsums),
                                         .dx = view<const T>(dx),
                                         .x = view<const T>(x),
                                         .theta = theta.f64(),
                                         .items = dsums.count(),
                                         .heads = static_cast<int>(heads),
                                         .sharing = static_cast<int>(x.cols() / head_dim / heads),
                                         .head_dim = static_cast<int>(head_dim),
                                         .pairs = static_cast<int>(theta.count()),
                                         .add = write == Write::add};
        launch(token_angles_backward_kernel<T>, {dim3(blocks_for(arguments.items, 8)), dim3(256), 0, stream},
               arguments);
    });
}

}  // namespace longreach::cuda
