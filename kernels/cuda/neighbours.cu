// Sums over neighbouring positions: short convolutions and the smeared embedding.
//
//   conv   y_n = sum over m < K of w_m * x_(n-m), channel by channel, over positions of the same sequence and
//          document;  dx_n = sum over m of w_m * dy_(n+m);  dw_m += sum over n of dy_n * x_(n-m)
//   smear  y_n = x_n + lambda s_n x_(n-1), s_n = sigmoid(<w, first channels of x_n>); a_n = <dy_n, x_(n-1)>:
//          dx_n = dy_n + lambda s_(n+1) dy_(n+1) + lambda s_n (1 - s_n) a_n w (first channels);
//          dlambda += sum s_n a_n;  dw += sum lambda s_n (1 - s_n) a_n x_n
//
// In units of the element size, 2 accesses per element forward and 4 backward (smear 3) from memory: the
// rows next door are in a cache. 2K FLOPs forward and 4K backward, smear 2 and 4. conv: tiles of 8 rows,
// one pack per thread; dw by strips of columns times fixed blocks of rows, four taps at a time in registers,
// folded in block order. smear: a warp per row; what a row adds to dw and dlambda goes through two
// floats of the workspace.
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

// Which rows of [B*T, .] belong to the same sequence and document.
struct Neighbourhood {
    const int32_t* doc_start;  // [B*T] or null
    int length;

    Neighbourhood(const Tensor& starts, int64_t rows, int64_t sequence)
        : doc_start(starts.i32()), length(static_cast<int>(sequence)) {
        check(sequence > 0 && rows % sequence == 0 && rows < int64_t{1} << 31, "{} rows in sequences of {}",
              rows, sequence);
        check(!starts || (starts.count() == rows && starts.contiguous()), "{} document starts of {} rows",
              starts.count(), rows);
    }
    // Positions up to and including `row` that it may read, itself included, at most `most`.
    DEVICE int before(int row, int most) const {
        const int seen = row % length - (doc_start ? doc_start[row] : 0) + 1;
        return seen < 1 ? 1 : seen > most ? most : seen;
    }
    // Positions from `row` on that read it, at most `most`. (A document is one run of positions.)
    DEVICE int after(int row, int most) const {
        const int position = row % length;
        const int end = most < length - position ? most : length - position;
        int n = 1;
        while (n < end && (!doc_start || doc_start[row + n] <= position)) ++n;
        return n;
    }
    DEVICE bool follows(int row) const { return before(row, 2) == 2; }
};

// to = sum over the taps of w_m times the row m steps away: back for y, ahead for dx.
template <class T, bool ahead>
struct Convolution {
    View<T> to;
    View<const T> from;
    View<const float> w;
    int taps;
    Neighbourhood near;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const int row = static_cast<int>(r);
        const int looked_at = ahead ? near.after(row, taps) : near.before(row, taps);
        Pack<n> sum{};
        for (int m = 0; m < looked_at; ++m) {
            const Pack<n> weight = load<n>(w.at(m, c)), v = load<n>(from.at(ahead ? r + m : r - m, c));
#pragma unroll
            for (int k = 0; k < n; ++k) sum[k] = fmaf(weight[k], v[k], sum[k]);
        }
        store(to.at(r, c), sum);
    }
};

constexpr int column_rows = 8, tap_group = 4;
template <int n>
struct ColumnSums {
    Pack<n> of[column_rows][32];
};

template <class T>
struct Weights {
    View<const T> dy, x;
    int rows, taps;
    int64_t width;
    Neighbourhood near;
};

// partials [blocks, K, W].
template <class T, int n>
KERNEL(32 * column_rows)
void conv_weights_kernel(Weights<T> a, float* partials) {
    auto& sums = shared<ColumnSums<n>>();
    const int64_t c = (static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x) * n;
    const Range block = piece_of(a.rows, gridDim.y, blockIdx.y);
    for (int first = 0; first < a.taps; first += tap_group) {
        Pack<n> of[tap_group]{};
        if (c < a.width)
            for (int r = static_cast<int>(block.begin + threadIdx.y); r < block.end; r += column_rows) {
                const int looked_at = a.near.before(r, a.taps) - first;
                const Pack<n> d = load<n>(a.dy.at(r, c));
#pragma unroll
                for (int m = 0; m < tap_group; ++m) {
                    if (m >= looked_at) continue;
                    const Pack<n> v = load<n>(a.x.at(r - first - m, c));
#pragma unroll
                    for (int k = 0; k < n; ++k) of[m][k] = fmaf(d[k], v[k], of[m][k]);
                }
            }
#pragma unroll
        for (int m = 0; m < tap_group; ++m) {
            if (first + m >= a.taps) break;
            sums.of[threadIdx.y][threadIdx.x] = of[m];
            __syncthreads();
            if (threadIdx.y == 0 && c < a.width) {
                Pack<n> total = of[m];
                for (int y = 1; y < column_rows; ++y) {
                    const Pack<n> other = sums.of[y][threadIdx.x];
#pragma unroll
                    for (int k = 0; k < n; ++k) total[k] += other[k];
                }
                store(partials + (static_cast<int64_t>(blockIdx.y) * a.taps + first + m) * a.width + c,
                      total);
            }
            __syncthreads();
        }
    }
}

template <class T>
struct Smear {
    View<T> to;           // y or dx
    View<const T> dy, x;  // dy: backward
    const float *w, *lambda;
    float* shares;  // backward [N, 2]: what the row adds to the gradient at the logit, and to dlambda
    int rows, width, channels;
    Neighbourhood near;
};

// s_n of a row, by a whole warp.
template <class T>
DEVICE Logistic smear_gate(const Smear<T>& a, int row, int lane) {
    float logit = 0.0f;
    for (int c = lane; c < a.channels; c += 32) logit = fmaf(widen(*a.x.at(row, c)), a.w[c], logit);
    return logistic(warp_sum(logit));
}

template <class T, int n>
KERNEL(256)
void smear_kernel(Smear<T> a) {
    const int row = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32),
              lane = static_cast<int>(threadIdx.x % 32);
    if (row >= a.rows) return;  // a whole warp
    const bool follows = a.near.follows(row);
    const float take = follows ? *a.lambda * smear_gate(a, row, lane).value : 0.0f;
    for (int c = lane * n; c < a.width; c += 32 * n) {
        Pack<n> v = load<n>(a.x.at(row, c));
        if (follows) {
            const Pack<n> previous = load<n>(a.x.at(row - 1, c));
#pragma unroll
            for (int k = 0; k < n; ++k) v[k] = fmaf(take, previous[k], v[k]);
        }
        store(a.to.at(row, c), v);
    }
}

template <class T, int n>
KERNEL(256)
void smear_backward_kernel(Smear<T> a) {
    const int row = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32),
              lane = static_cast<int>(threadIdx.x % 32);
    if (row >= a.rows) return;  // a whole warp
    const bool follows = a.near.follows(row), followed = row + 1 < a.rows && a.near.follows(row + 1);
    const float lambda = *a.lambda;
    const float give = followed ? lambda * smear_gate(a, row + 1, lane).value : 0.0f;
    float at_logit = 0.0f, at_lambda = 0.0f;
    if (follows) {
        const Logistic here = smear_gate(a, row, lane);
        float along = 0.0f;
        for (int c = lane * n; c < a.width; c += 32 * n) {
            const Pack<n> d = load<n>(a.dy.at(row, c)), previous = load<n>(a.x.at(row - 1, c));
#pragma unroll
            for (int k = 0; k < n; ++k) along = fmaf(d[k], previous[k], along);
        }
        along = warp_sum(along);
        at_logit = lambda * here.value * here.rest * along;
        at_lambda = here.value * along;
    }
    for (int c = lane * n; c < a.width; c += 32 * n) {
        Pack<n> d = load<n>(a.dy.at(row, c));
        if (followed) {
            const Pack<n> next = load<n>(a.dy.at(row + 1, c));
#pragma unroll
            for (int k = 0; k < n; ++k) d[k] = fmaf(give, next[k], d[k]);
        }
#pragma unroll
        for (int k = 0; k < n; ++k)
            if (c + k < a.channels) d[k] = fmaf(at_logit, a.w[c + k], d[k]);
        store(a.to.at(row, c), d);
    }
    if (lane != 0) return;
    a.shares[2 * static_cast<int64_t>(row)] = at_logit;
    a.shares[2 * static_cast<int64_t>(row) + 1] = at_lambda;
}

struct ShareSums {
    double of[8][32];
};
// partials [channels + 1, blocks]: sums over a block of rows of at_logit x, and of at_lambda.
template <class T>
KERNEL(256)
void smear_weights_kernel(Smear<T> a, double* partials) {
    ShareSums& sums = shared<ShareSums>();
    const int c = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
    const Range block = piece_of(a.rows, gridDim.y, blockIdx.y);
    double sum = 0.0;
    if (c <= a.channels)
        for (int64_t r = block.begin + threadIdx.y; r < block.end; r += 8)
            sum += c < a.channels ? static_cast<double>(a.shares[2 * r]) * widen(*a.x.at(r, c))
                                  : static_cast<double>(a.shares[2 * r + 1]);
    sums.of[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || c > a.channels) return;
    for (int y = 1; y < 8; ++y) sum += sums.of[y][threadIdx.x];
    partials[static_cast<int64_t>(c) * gridDim.y + blockIdx.y] = sum;
}

void check_conv(const Tensor& y, const Tensor& x, const Tensor& w) {
    check(y.rows() == x.rows() && y.cols() == x.cols() && w.cols() == x.cols() && w.rows() >= 1,
          "convolution {}x{} of {}x{} into {}x{}", w.rows(), w.cols(), x.rows(), x.cols(), y.rows(),
          y.cols());
    check(y.data() != x.data(), "a convolution cannot work in place");
}
void check_smear(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& lambda) {
    check(y.rows() == x.rows() && y.cols() == x.cols() && w.count() <= x.cols() && lambda.count() == 1,
          "smear by {} channels of {}x{} into {}x{}", w.count(), x.rows(), x.cols(), y.rows(), y.cols());
    check(y.data() != x.data(), "smear cannot work in place");
}

template <bool ahead>
void convolve(const Tensor& to, const Tensor& from, const Tensor& w, const Neighbourhood& near,
              Stream stream) {
    with_element(to.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        map<T>(Convolution<T, ahead>{view<T>(to), view<const T>(from), view<const float>(w),
                                     static_cast<int>(w.rows()), near},
               to.rows(), to.cols(), aligned(to, from, w), stream);
    });
}

}  // namespace

void short_conv(Tensor y, const Tensor& x, const Tensor& w, const Tensor& doc_start, int64_t length,
                Stream stream) {
    check_conv(y, x, w);
    convolve<false>(y, x, w, Neighbourhood(doc_start, x.rows(), length), stream);
}

void short_conv_backward(const ConvTensors& d, Tensor workspace, const Tensor& dy, const ConvTensors& of,
                         const Tensor& doc_start, int64_t length, Stream stream) {
    const Tensor &x = of.x, &w = of.w;
    check_conv(d.x, dy, w);
    check_conv(d.x, x, w);
    check(d.w.rows() == w.rows() && d.w.cols() == w.cols(), "gradient {}x{} of taps {}x{}", d.w.rows(),
          d.w.cols(), w.rows(), w.cols());
    const int64_t rows = x.rows(), width = x.cols(), taps = w.rows(), blocks = row_blocks(rows);
    check(workspace.bytes() >= short_conv_backward_workspace(rows, taps, width),
          "short_conv_backward workspace of {} bytes", workspace.bytes());
    const Neighbourhood near(doc_start, rows, length);
    convolve<true>(d.x, dy, w, near, stream);
    float* partials = workspace.as<float>();
    with_element(x.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        with_pack<T>(width % wide<T> == 0 && aligned(dy, x, workspace), [&](auto n) {
            constexpr int pack = decltype(n)::value;
            const Weights<T> arguments{view<const T>(dy),
                                       view<const T>(x),
                                       static_cast<int>(rows),
                                       static_cast<int>(taps),
                                       width,
                                       near};
            launch(conv_weights_kernel<T, pack>,
                   {dim3(blocks_for(width, 32 * pack), static_cast<unsigned>(blocks)), dim3(32, column_rows),
                    sizeof(ColumnSums<pack>), stream},
                   arguments, partials);
        });
    });
    for (int64_t m = 0; m < taps; ++m)
        fold_columns(d.w.f32() + m * d.w.row_stride, partials + m * width, blocks, taps * width, width,
                     stream);
}

void smear(Tensor y, const Tensor& x, const Tensor& w, const Tensor& lambda, const Tensor& doc_start,
           int64_t length, Stream stream) {
    check_smear(y, x, w, lambda);
    const int64_t rows = x.rows(), width = x.cols();
    const Neighbourhood near(doc_start, rows, length);
    with_element(x.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        with_pack<T>(width % wide<T> == 0 && aligned(y, x), [&](auto n) {
            launch(smear_kernel<T, decltype(n)::value>, {dim3(blocks_for(rows, 8)), dim3(256), 0, stream},
                   Smear<T>{view<T>(y), view<const T>(Tensor()), view<const T>(x), w.f32(), lambda.f32(),
                            nullptr, static_cast<int>(rows), static_cast<int>(width),
                            static_cast<int>(w.count()), near});
        });
    });
}

void smear_backward(const SmearTensors& d, Tensor workspace, const Tensor& dy, const SmearTensors& of,
                    const Tensor& doc_start, int64_t length, Stream stream) {
    const Tensor &x = of.x, &w = of.w, &lambda = of.lambda;
    check_smear(d.x, dy, w, lambda);
    check_smear(d.x, x, w, lambda);
    check(d.w.count() == w.count() && d.lambda.count() == 1, "gradient of {} channels for {}", d.w.count(),
          w.count());
    const int64_t rows = x.rows(), width = x.cols(), channels = w.count(), blocks = row_blocks(rows);
    check(workspace.bytes() >= smear_backward_workspace(rows, channels),
          "smear_backward workspace of {} bytes", workspace.bytes());
    double* partials = workspace.as<double>();
    float* shares = reinterpret_cast<float*>(partials + blocks * (channels + 1));
    const Neighbourhood near(doc_start, rows, length);
    with_element(x.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const Smear<T> arguments{view<T>(d.x),
                                 view<const T>(dy),
                                 view<const T>(x),
                                 w.f32(),
                                 lambda.f32(),
                                 shares,
                                 static_cast<int>(rows),
                                 static_cast<int>(width),
                                 static_cast<int>(channels),
                                 near};
        with_pack<T>(width % wide<T> == 0 && aligned(d.x, dy, x), [&](auto n) {
            launch(smear_backward_kernel<T, decltype(n)::value>,
                   {dim3(blocks_for(rows, 8)), dim3(256), 0, stream}, arguments);
        });
        launch(smear_weights_kernel<T>,
               {dim3(blocks_for(channels + 1, 32), static_cast<unsigned>(blocks)), dim3(32, 8),
                sizeof(ShareSums), stream},
               arguments, partials);
    });
    fold_totals({.partials = partials, .count = blocks, .step = blocks, .add_to = d.w.f32()}, channels,
                stream);
    fold_totals({.partials = partials + channels * blocks, .count = blocks, .add_to = d.lambda.f32()}, 1,
                stream);
}

}  // namespace longreach::cuda
