// RMS norm and LayerNorm over the rows of x [N, C].
//
//   n = (x - mean) * r,  r = (var + eps)^(-1/2),  y = gain * n + bias;  RMS: mean = 0, var = mean of squares.
//   g = gain * dy:  dx = r * (g - mean(g) - n * mean(g n))  (RMS without the term mean(g));
//   dgain += sum over rows of dy * n;  dbias += sum of dy.
//
// Saved: n [N, C], r [N]. In units of the element size: forward 2 accesses per element (3 with a gain) and 4
// FLOPs, backward 3 (4 when adding) and 8 FLOPs, with a gain's gradient 2 more and 3 FLOPs. A row up to 1024
// wide belongs to one warp and stays in its registers, a wider one to a block of 256 threads; what does not
// fit their registers is read again. Gradients of gain and bias: strips of columns times fixed blocks of
// rows, folded in block order, before dx may overwrite dy.
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

// A row shared by `team` threads: pack p of a thread is pack p * team + lane of the row. The first `kept`
// packs are in registers.
template <class T, int n, int team, int kept>
struct Row {
    const T* from;
    int64_t width;
    int lane;
    Pack<n> packs[kept];

    DEVICE Row(const T* data, int64_t columns, int thread) : from(data), width(columns), lane(thread) {
#pragma unroll
        for (int p = 0; p < kept; ++p)
            if (column(p) < width) packs[p] = load<n>(from + column(p));
    }
    DEVICE int64_t column(int64_t p) const {
        return (p * team + lane) * n;
    }
    // body(pack, column) for the packs of this thread.
    template <class Body>
    DEVICE void each(Body body) const {
#pragma unroll
        for (int p = 0; p < kept; ++p)
            if (column(p) < width) body(packs[p], column(p));
        for (int64_t c = column(kept); c < width; c += team * n) body(load<n>(from + c), c);
    }
};

template <int team>
DEVICE float team_sum(float value, WarpResults<float, 256>& results) {
    if constexpr (team == 32)
        return warp_sum(value);
    else
        return block_sum<256>(value, results);
}

template <class T>
struct Forward {
    View<T> y, normalised;  // normalised may be null
    float* inverse;         // or null
    View<const T> x;
    const float *gain, *bias;  // or null
    int64_t rows, width;
    bool centered;
    float eps;
};

template <class T, int n, int team, int kept>
KERNEL(256)
void norm_kernel(Forward<T> a) {
    auto& results = shared<WarpResults<float, 256>>();
    const int64_t r = static_cast<int64_t>(blockIdx.x) * (256 / team) + threadIdx.x / team;
    if (r >= a.rows) return;  // a whole team
    const int lane = static_cast<int>(threadIdx.x % team);
    const Row<T, n, team, kept> row(a.x.at(r), a.width, lane);
    const float width = static_cast<float>(a.width);
    float mean = 0.0f;
    if (a.centered) {
        float sum = 0.0f;
        row.each([&](const Pack<n>& v, int64_t) {
#pragma unroll
            for (int k = 0; k < n; ++k) sum += v[k];
        });
        mean = team_sum<team>(sum, results) / width;
    }
    float squares = 0.0f;
    row.each([&](const Pack<n>& v, int64_t) {
#pragma unroll
        for (int k = 0; k < n; ++k) squares = fmaf(v[k] - mean, v[k] - mean, squares);
    });
    const float inverse = 1.0f / sqrtf(team_sum<team>(squares, results) / width + a.eps);
    if (a.inverse && lane == 0) a.inverse[r] = inverse;
    row.each([&](const Pack<n>& v, int64_t c) {
        Pack<n> y;
#pragma unroll
        for (int k = 0; k < n; ++k) y[k] = (v[k] - mean) * inverse;
        if (a.normalised.data) store(a.normalised.at(r, c), y);
        if (a.gain) {
            const Pack<n> gain = load<n>(a.gain + c);
#pragma unroll
            for (int k = 0; k < n; ++k) y[k] *= gain[k];
        }
        if (a.bias) {
            const Pack<n> bias = load<n>(a.bias + c);
#pragma unroll
            for (int k = 0; k < n; ++k) y[k] += bias[k];
        }
        store(a.y.at(r, c), y);
    });
}

template <class T>
struct Backward {
    View<T> dx;
    View<const T> dy, normalised;
    const float *inverse, *gain;  // gain may be null
    int64_t rows, width;
    bool centered, add;
};

template <class T, int n, int team, int kept>
KERNEL(256)
void norm_backward_kernel(Backward<T> a) {
    auto& results = shared<WarpResults<float, 256>>();
    const int64_t r = static_cast<int64_t>(blockIdx.x) * (256 / team) + threadIdx.x / team;
    if (r >= a.rows) return;  // a whole team
    const int lane = static_cast<int>(threadIdx.x % team);
    const Row<T, n, team, kept> dy(a.dy.at(r), a.width, lane), normalised(a.normalised.at(r), a.width, lane);
    // body(g, n, column); dy and normalised have their packs in the same places.
    const auto each = [&](auto body) {
        const auto with_gain = [&](Pack<n> g, const Pack<n>& v, int64_t c) {
            if (a.gain) {
                const Pack<n> gain = load<n>(a.gain + c);
#pragma unroll
                for (int k = 0; k < n; ++k) g[k] *= gain[k];
            }
            body(g, v, c);
        };
#pragma unroll
        for (int p = 0; p < kept; ++p)
            if (dy.column(p) < a.width) with_gain(dy.packs[p], normalised.packs[p], dy.column(p));
        for (int64_t c = dy.column(kept); c < a.width; c += team * n)
            with_gain(load<n>(dy.from + c), load<n>(normalised.from + c), c);
    };
    const float width = static_cast<float>(a.width);
    float along = 0.0f, sum = 0.0f;
    each([&](const Pack<n>& g, const Pack<n>& v, int64_t) {
#pragma unroll
        for (int k = 0; k < n; ++k) {
            along = fmaf(g[k], v[k], along);
            sum += g[k];
        }
    });
    along = team_sum<team>(along, results) / width;
    const float mean = a.centered ? team_sum<team>(sum, results) / width : 0.0f;
    const float inverse = a.inverse[r];
    each([&](const Pack<n>& g, const Pack<n>& v, int64_t c) {
        Pack<n> dx;
#pragma unroll
        for (int k = 0; k < n; ++k) dx[k] = inverse * (g[k] - mean - v[k] * along);
        if (a.add) {
            const Pack<n> before = load<n>(a.dx.at(r, c));
#pragma unroll
            for (int k = 0; k < n; ++k) dx[k] += before[k];
        }
        store(a.dx.at(r, c), dx);
    });
}

constexpr int column_rows = 8;  // rows a block works on at a time
template <int n>
struct ColumnSums {
    Pack<n> of[column_rows][32];
};

// partials [blocks, 2C]: sums of dy n | dy over a block of rows.
template <class T, int n>
KERNEL(32 * column_rows)
void norm_columns_kernel(float* partials, View<const T> dy, View<const T> normalised, int64_t rows,
                         int64_t width) {
    auto& sums = shared<ColumnSums<n>>();
    const int64_t c = (static_cast<int64_t>(blockIdx.x) * 32 + threadIdx.x) * n;
    const Range block = piece_of(rows, gridDim.y, blockIdx.y);
    Pack<n> of[2]{};
    if (c < width)
        for (int64_t r = block.begin + threadIdx.y; r < block.end; r += column_rows) {
            const Pack<n> d = load<n>(dy.at(r, c)), v = load<n>(normalised.at(r, c));
#pragma unroll
            for (int k = 0; k < n; ++k) {
                of[0][k] = fmaf(d[k], v[k], of[0][k]);
                of[1][k] += d[k];
            }
        }
    for (int which = 0; which < 2; ++which) {
        sums.of[threadIdx.y][threadIdx.x] = of[which];
        __syncthreads();
        if (threadIdx.y == 0 && c < width) {
            Pack<n> total = of[which];
            for (int y = 1; y < column_rows; ++y) {
                const Pack<n> other = sums.of[y][threadIdx.x];
#pragma unroll
                for (int k = 0; k < n; ++k) total[k] += other[k];
            }
            store(partials + (static_cast<int64_t>(blockIdx.y) * 2 + which) * width + c, total);
        }
        __syncthreads();
    }
}

// body(n, team, kept) as constants: a warp per row up to 1024 elements (128 without vectors), else a block.
template <class T, class Body>
void with_team(int64_t width, bool vectors, Body body) {
    with_pack<T>(vectors, [&](auto n) {
        constexpr int pack = decltype(n)::value, kept = pack == 4 ? 8 : 4;
        if (width <= 32 * pack * kept)
            body(n, std::integral_constant<int, 32>{}, std::integral_constant<int, kept>{});
        else
            body(n, std::integral_constant<int, 256>{}, std::integral_constant<int, kept / 2>{});
    });
}

}  // namespace

void norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
          const Tensor& bias, const NormSpec& spec, Stream stream) {
    const int64_t rows = x.rows(), width = x.cols();
    check(y.rows() == rows && y.cols() == width, "norm of {}x{} into {}x{}", rows, width, y.rows(), y.cols());
    const bool shared = normalised.data() == y.data();
    check(!shared || !(gain || bias), "norm with a gain or bias needs y and normalised apart");
    if (shared) normalised = Tensor();
    with_element(x.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const bool vectors = width % wide<T> == 0 && aligned(y, normalised, x, gain, bias);
        const Forward<T> arguments{view<T>(y),
                                   view<T>(normalised),
                                   inverse.f32(),
                                   view<const T>(x),
                                   gain.f32(),
                                   bias.f32(),
                                   rows,
                                   width,
                                   spec.kind == NormKind::layer,
                                   spec.eps};
        with_team<T>(width, vectors, [&](auto n, auto team, auto kept) {
            constexpr int pack = decltype(n)::value, threads = decltype(team)::value;
            launch(
                norm_kernel<T, pack, threads, decltype(kept)::value>,
                {dim3(blocks_for(rows, 256 / threads)), dim3(256), sizeof(WarpResults<float, 256>), stream},
                arguments);
        });
    });
}

void norm_backward(const NormGradients& d, Tensor workspace, const Tensor& dy, const Tensor& normalised,
                   const Tensor& inverse, const Tensor& gain, const NormSpec& spec, Stream stream) {
    const int64_t rows = dy.rows(), width = dy.cols();
    check(
        d.x.rows() == rows && d.x.cols() == width && normalised.rows() == rows && normalised.cols() == width,
        "norm_backward of {}x{} into {}x{}", rows, width, d.x.rows(), d.x.cols());
    with_element(dy.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const bool vectors = width % wide<T> == 0 && aligned(d.x, dy, normalised, gain, workspace);
        if (d.gain || d.bias) {
            const int64_t blocks = row_blocks(rows);
            check(workspace.bytes() >= norm_backward_workspace(rows, width),
                  "norm_backward workspace of {} bytes", workspace.bytes());
            float* partials = workspace.as<float>();
            with_pack<T>(vectors, [&](auto n) {
                constexpr int pack = decltype(n)::value;
                launch(norm_columns_kernel<T, pack>,
                       {dim3(blocks_for(width, 32 * pack), static_cast<unsigned>(blocks)),
                        dim3(32, column_rows), sizeof(ColumnSums<pack>), stream},
                       partials, view<const T>(dy), view<const T>(normalised), rows, width);
            });
            if (d.gain) fold_columns(d.gain.f32(), partials, blocks, 2 * width, width, stream);
            if (d.bias) fold_columns(d.bias.f32(), partials + width, blocks, 2 * width, width, stream);
        }
        const Backward<T> arguments{view<T>(d.x),
                                    view<const T>(dy),
                                    view<const T>(normalised),
                                    inverse.f32(),
                                    gain.f32(),
                                    rows,
                                    width,
                                    spec.kind == NormKind::layer,
                                    d.write == Write::add};
        with_team<T>(width, vectors, [&](auto n, auto team, auto kept) {
            constexpr int pack = decltype(n)::value, threads = decltype(team)::value;
            launch(
                norm_backward_kernel<T, pack, threads, decltype(kept)::value>,
                {dim3(blocks_for(rows, 256 / threads)), dim3(256), sizeof(WarpResults<float, 256>), stream},
                arguments);
        });
    });
}

}  // namespace longreach::cuda
