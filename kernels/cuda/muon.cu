// The passes of Muon around its matrix products, for up to 32 matrices of one shape (or of one another's
// transpose) per launch. g is the gradient times gradient_scale.
//
//   momentum   m = mu m + q g;  q = 1, or 1 - mu when averaged;  partial sums of |u|^2
//              u = q g + mu m (Nesterov) or m: not stored, recomputed from g and m by the next pass
//   scale      x = u / (|u|_F + 1e-7), shorter side first, f32 or bf16
//   update     w = w (1 - wd) - lr x
//
// Per parameter 12 bytes and 7 FLOPs in momentum, 8 plus the size of x in scale, 8 plus that in update.
//
// Momentum: blocks (piece of a matrix, matrix); the sum of squares of a piece in f64, its shape decided by
// the size and alignment of this matrix alone. Scale and update: blocks (tile of 32 by 32 of the parameter,
// matrix); a tile that must be transposed goes through shared memory, rows padded against bank conflicts, so
// that all accesses to device memory run along rows. A launch lists its matrices in its arguments.
#include "kernels/cuda/muon.h"

#include <algorithm>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr int64_t launch_slots = 32;  // their descriptions stay below the 4 KiB arguments may take
constexpr int side = 32;              // of a tile

struct Matrix {
    float *param, *momentum;
    const float* gradient;
    float keep, rate;  // 1 - weight decay, learning rate
    int32_t rows, cols;
    bool vectors;  // accesses of 16 bytes
};
struct Matrices {
    Matrix of[launch_slots];
    float mu, share;  // share = q gradient_scale
    bool nesterov;
};
static_assert(sizeof(Matrices) <= 4000);

// The direction of a step from the momentum it left.
DEVICE float direction(const Matrices& all, float momentum, float own) {
    return all.nesterov ? fmaf(all.mu, momentum, own) : momentum;
}

template <int n>
DEVICE double momentum_piece(const Matrices& all, const Matrix& matrix) {
    const int64_t packs = static_cast<int64_t>(matrix.rows) * matrix.cols / n;
    const Range piece = piece_of(packs, gridDim.x, blockIdx.x);
    double squares = 0.0;
    for (int64_t i = piece.begin + threadIdx.x; i < piece.end; i += 256) {
        const Pack<n> g = load<n>(matrix.gradient + i * n);
        Pack<n> m = load<n>(matrix.momentum + i * n);
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const float own = all.share * g[k];
            m[k] = fmaf(all.mu, m[k], own);
            const float u = direction(all, m[k], own);
            squares += static_cast<double>(u) * u;
        }
        store(matrix.momentum + i * n, m);
    }
    return squares;
}
KERNEL(256) void momentum_kernel(Matrices all, double* partials) {
    auto& results = shared<WarpResults<double, 256>>();
    const Matrix& matrix = all.of[blockIdx.y];
    const double own = matrix.vectors ? momentum_piece<4>(all, matrix) : momentum_piece<1>(all, matrix);
    const double squares = block_sum<256>(own, results);
    if (threadIdx.x == 0) partials[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = squares;
}

struct Tile {
    float of[side][side + 1];
};
// The place of this block's tile in a matrix [rows, cols].
struct Corner {
    int32_t row, col;
};
DEVICE Corner corner_of(int32_t cols) {
    const int32_t across = (cols + side - 1) / side, tile = static_cast<int32_t>(blockIdx.x);
    return {tile / across * side, tile % across * side};
}

// Moves this block's tile of a matrix [rows, cols]: give(i) of its elements, by their place in the matrix, to
// take(i, value), or, turned, to take(place in the transpose, value). Threads are 32 by 8.
template <class Give, class Take>
DEVICE void move_tile(int32_t rows, int32_t cols, bool turned, Give give, Take take) {
    Tile& tile = shared<Tile>();
    const Corner corner = corner_of(cols);
    const int32_t x = static_cast<int32_t>(threadIdx.x), y = static_cast<int32_t>(threadIdx.y);
    if (!turned) {
        if (corner.col + x >= cols) return;
#pragma unroll
        for (int32_t i = 0; i < side; i += 8) {
            if (corner.row + y + i >= rows) break;
            const int64_t at = static_cast<int64_t>(corner.row + y + i) * cols + corner.col + x;
            take(at, give(at));
        }
        return;
    }
#pragma unroll
    for (int32_t i = 0; i < side; i += 8)
        if (corner.row + y + i < rows && corner.col + x < cols)
            tile.of[y + i][x] = give(static_cast<int64_t>(corner.row + y + i) * cols + corner.col + x);
    __syncthreads();
#pragma unroll
    for (int32_t i = 0; i < side; i += 8)
        if (corner.col + y + i < cols && corner.row + x < rows)
            take(static_cast<int64_t>(corner.col + y + i) * rows + corner.row + x, tile.of[x][y + i]);
}

template <class T>
KERNEL(256)
void scale_kernel(Matrices all, T* x, int64_t step, const double* squares) {
    const Matrix& matrix = all.of[blockIdx.y];
    const float scale = static_cast<float>(1.0 / (sqrt(squares[blockIdx.y]) + 1e-7));
    T* to = x + blockIdx.y * step;
    move_tile(
        matrix.rows, matrix.cols, matrix.rows > matrix.cols,
        [&](int64_t i) { return scale * direction(all, matrix.momentum[i], all.share * matrix.gradient[i]); },
        [&](int64_t i, float v) { to[i] = narrow<T>(v); });
}

template <class T>
KERNEL(256)
void update_kernel(Matrices all, const T* x, int64_t step) {
    const Matrix& matrix = all.of[blockIdx.y];
    const bool turned = matrix.rows > matrix.cols;
    const T* from = x + blockIdx.y * step;
    // The tile is one of x.
    move_tile(
        turned ? matrix.cols : matrix.rows, turned ? matrix.rows : matrix.cols, turned,
        [&](int64_t i) { return widen(from[i]); },
        [&](int64_t i, float v) {
            float& w = matrix.param[i];
            w = matrix.keep * w - matrix.rate * v;
        });
}

Matrix matrix_of(const MuonSlot& slot) {
    const int64_t rows = slot.param.rows(), cols = slot.param.cols();
    check(rows <= INT32_MAX && cols <= INT32_MAX, "muon on {}x{}", rows, cols);
    return {
        .param = slot.param.f32(),
        .momentum = slot.momentum.f32(),
        .gradient = slot.gradient.f32(),
        .keep = 1.0f - slot.weight_decay,
        .rate = slot.learning_rate,
        .rows = static_cast<int32_t>(rows),
        .cols = static_cast<int32_t>(cols),
        .vectors = rows * cols % 4 == 0 && aligned(Tensor(slot.momentum.data(), DType::f32, {rows * cols}),
                                                   Tensor(slot.gradient.data(), DType::f32, {rows * cols}))};
}

// body(list, its number of matrices, number of the first) for every 32 slots.
template <class Body>
void for_each_list(const MuonBatch& batch, const MuonSpec& spec, Body body) {
    const auto count = static_cast<int64_t>(batch.slots.size());
    for (int64_t first = 0; first < count; first += launch_slots) {
        Matrices all{.of = {},
                     .mu = spec.momentum,
                     .share = spec.gradient_scale * (spec.averaged ? 1.0f - spec.momentum : 1.0f),
                     .nesterov = spec.nesterov};
        const int64_t taken = std::min(launch_slots, count - first);
        for (int64_t i = 0; i < taken; ++i)
            all.of[i] = matrix_of(batch.slots[static_cast<size_t>(first + i)]);
        body(all, static_cast<unsigned>(taken), first);
    }
}

Launch tiles(const MuonBatch& batch, unsigned matrices, Stream stream) {
    const Tensor& one = batch.slots[0].param;
    const unsigned count = blocks_for(one.rows(), side) * blocks_for(one.cols(), side);
    return {dim3(count, matrices), dim3(side, 256 / side), sizeof(Tile), stream};
}

}  // namespace

void muon_momentum(const MuonBatch& batch, double* partials, const MuonSpec& spec, Stream stream) {
    const int64_t blocks = flat_blocks(batch.slots[0].param.count());
    for_each_list(batch, spec, [&](const Matrices& all, unsigned count, int64_t first) {
        launch(
            momentum_kernel,
            {dim3(static_cast<unsigned>(blocks), count), dim3(256), sizeof(WarpResults<double, 256>), stream},
            all, partials + first * blocks);
    });
}

void muon_scale(const MuonBatch& batch, const double* squares, const MuonSpec& spec, Stream stream) {
    for_each_list(batch, spec, [&](const Matrices& all, unsigned count, int64_t first) {
        with_element(batch.type, [&](auto element) {
            using T = typename decltype(element)::type;
            launch(scale_kernel<T>, tiles(batch, count, stream), all,
                   static_cast<T*>(batch.x) + first * batch.step, batch.step, squares + first);
        });
    });
}

void muon_update(const MuonBatch& batch, Stream stream) {
    for_each_list(batch, {}, [&](const Matrices& all, unsigned count, int64_t first) {
        with_element(batch.type, [&](auto element) {
            using T = typename decltype(element)::type;
            launch(update_kernel<T>, tiles(batch, count, stream), all,
                   static_cast<const T*>(batch.x) + first * batch.step, batch.step);
        });
    });
}

}  // namespace longreach::cuda
