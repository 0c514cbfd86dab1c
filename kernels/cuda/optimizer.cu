// Adam over lists of tensors, and what Muon does around its matrix products, f32. g is the gradient times
// gradient_scale.
//
//   Adam   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//          w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//   Muon   m = mu m + q g;  u = q g + mu m (Nesterov) or m;  q = 1, or 1 - mu when averaged
//          x = u / (|u|_F + 1e-7), shorter side first; Newton-Schulz;  w = w (1 - wd) - lr x
//
// Adam moves 28 bytes and takes 14 FLOPs per parameter: one launch for up to 32 tensors, whose addresses and
// scalars travel as arguments; a block takes 4096 parameters of one tensor. Muon moves 16, 8 and 12 bytes per
// parameter in its three passes; a matrix that has to be turned goes through tiles of 32 by 32 in shared
// memory.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr int64_t adam_block = 4096;  // parameters
constexpr int adam_slots = 32;  // of a launch: their descriptions stay below the 4 KiB arguments may take

struct AdamTensor {
    float *param, *first, *second;
    const float* gradient;
    int64_t count;
    // keep = 1 - lr wd, rate = lr / (1 - b1^t)
    float keep, rate;
    unsigned begin;  // first block
    bool vectors;
};
struct AdamList {
    AdamTensor of[adam_slots];
    int slots;
    float gradient_scale, beta1, rest1, beta2, rest2, inverse_sqrt_c2, eps;  // c2 = 1 - b2^t
};

template <int n>
DEVICE void adam_pack(const AdamList& k, const AdamTensor& t, int64_t i) {
    const Pack<n> gradient = load<n>(t.gradient + i);
    Pack<n> param = load<n>(t.param + i), first = load<n>(t.first + i), second = load<n>(t.second + i);
#pragma unroll
    for (int e = 0; e < n; ++e) {
        const float g = gradient[e] * k.gradient_scale;
        first[e] = fmaf(k.beta1, first[e], k.rest1 * g);
        second[e] = fmaf(k.beta2, second[e], k.rest2 * g * g);
        const float step = t.rate * first[e] / fmaf(sqrtf(second[e]), k.inverse_sqrt_c2, k.eps);
        param[e] = t.keep * param[e] - step;
    }
    store(t.first + i, first);
    store(t.second + i, second);
    store(t.param + i, param);
}

KERNEL(256) void adam_kernel(AdamList list) {
    int slot = 0;
    while (slot + 1 < list.slots && blockIdx.x >= list.of[slot + 1].begin) ++slot;
    const AdamTensor& t = list.of[slot];
    const int64_t begin = static_cast<int64_t>(blockIdx.x - t.begin) * adam_block;
    const int64_t end = begin + adam_block < t.count ? begin + adam_block : t.count;
    if (t.vectors) {
        for (int64_t i = begin + threadIdx.x * 4; i < end; i += 256 * 4) adam_pack<4>(list, t, i);
    } else {
        for (int64_t i = begin + threadIdx.x; i < end; i += 256) adam_pack<1>(list, t, i);
    }
}

template <int n>
KERNEL(256)
void momentum_kernel(float* u, double* partials, float* momentum, const float* gradient, int64_t packs,
                     float mu, float share, bool nesterov) {
    auto& results = shared<WarpResults<double, 256>>();
    const Range block = piece_of(packs, gridDim.x, blockIdx.x);
    double squares = 0.0;
    for (int64_t i = block.begin + threadIdx.x; i < block.end; i += 256) {
        const Pack<n> g = load<n>(gradient + i * n);
        Pack<n> m = load<n>(momentum + i * n), to;
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const float own = share * g[k];
            m[k] = fmaf(mu, m[k], own);
            to[k] = nesterov ? fmaf(mu, m[k], own) : m[k];
            squares += static_cast<double>(to[k]) * to[k];
        }
        store(momentum + i * n, m);
        store(u + i * n, to);
    }
    squares = block_sum<256>(squares, results);
    if (threadIdx.x == 0) partials[blockIdx.x] = squares;
}

// The scale of u and its place in x. Turning: a tile of 32 by 32, padded against bank conflicts.
struct Tile {
    float of[32][33];
};
struct Scale {
    float* x;
    const float* u;
    const double* squares;
    template <int n>
    DEVICE void at(int64_t, int64_t c) const {
        const float scale = static_cast<float>(1.0 / (sqrt(*squares) + 1e-7));
        Pack<n> v = load<n>(u + c);
#pragma unroll
        for (int k = 0; k < n; ++k) v[k] *= scale;
        store(x + c, v);
    }
};
struct Update {
    float* param;
    const float* x;
    float keep, rate;
    template <int n>
    DEVICE void at(int64_t, int64_t c) const {
        Pack<n> w = load<n>(param + c);
        const Pack<n> step = load<n>(x + c);
#pragma unroll
        for (int k = 0; k < n; ++k) w[k] = keep * w[k] - rate * step[k];
        store(param + c, w);
    }
};

// from [rows, cols]; body(row, column of the transpose, element).
template <class Body>
DEVICE void turn(const float* from, int64_t rows, int64_t cols, Body body) {
    Tile& tile = shared<Tile>();
    const int64_t r = static_cast<int64_t>(blockIdx.y) * 32, c = static_cast<int64_t>(blockIdx.x) * 32;
    const int64_t x = threadIdx.x, y = threadIdx.y;
    for (int64_t i = y; i < 32 && r + i < rows; i += 8)
        if (c + x < cols) tile.of[i][x] = from[(r + i) * cols + c + x];
    __syncthreads();
    for (int64_t i = y; i < 32 && c + i < cols; i += 8)
        if (r + x < rows) body(c + i, r + x, tile.of[x][i]);
}
KERNEL(256)
void scale_turned_kernel(float* x, const float* u, const double* squares, int64_t rows, int64_t cols) {
    const float scale = static_cast<float>(1.0 / (sqrt(*squares) + 1e-7));
    turn(u, rows, cols, [&](int64_t r, int64_t c, float v) { x[r * rows + c] = scale * v; });
}
KERNEL(256)
void update_turned_kernel(float* param, const float* x, float keep, float rate, int64_t rows, int64_t cols) {
    turn(x, rows, cols, [&](int64_t r, int64_t c, float v) {
        float& w = param[r * rows + c];
        w = keep * w - rate * v;
    });
}
Launch tiles(int64_t rows, int64_t cols, Stream stream) {
    return {dim3(blocks_for(cols, 32), blocks_for(rows, 32)), dim3(32, 8), sizeof(Tile), stream};
}

void check_slot(const MuonSlot& slot) {
    const int64_t rows = slot.param.rows(), cols = slot.param.cols();
    check(slot.param.contiguous() && slot.gradient.contiguous() && slot.momentum.contiguous() &&
              slot.gradient.rows() == rows && slot.gradient.cols() == cols && slot.momentum.rows() == rows &&
              slot.momentum.cols() == cols,
          "muon slot {}x{} with gradient {}x{} and momentum {}x{}", rows, cols, slot.gradient.rows(),
          slot.gradient.cols(), slot.momentum.rows(), slot.momentum.cols());
}

}  // namespace

void adam(std::span<const AdamSlot> slots, const AdamSpec& spec, Stream stream) {
    const double step = static_cast<double>(spec.step);
    const double c1 = 1.0 - std::pow(double{spec.beta1}, step), c2 = 1.0 - std::pow(double{spec.beta2}, step);
    AdamList list{.of = {},
                  .slots = 0,
                  .gradient_scale = spec.gradient_scale,
                  .beta1 = spec.beta1,
                  .rest1 = static_cast<float>(1.0 - double{spec.beta1}),
                  .beta2 = spec.beta2,
                  .rest2 = static_cast<float>(1.0 - double{spec.beta2}),
                  .inverse_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(c2)),
                  .eps = spec.eps};
    static_assert(sizeof(AdamList) <= 4096);
    unsigned blocks = 0;
    const auto flush = [&] {
        if (blocks > 0) launch(adam_kernel, {dim3(blocks), dim3(256), 0, stream}, list);
        list.slots = 0;
        blocks = 0;
    };
    for (const AdamSlot& slot : slots) {
        const int64_t count = slot.param.count();
        check(slot.gradient.count() == count && slot.first.count() == count && slot.second.count() == count,
              "adam slot of {} with {}, {}, {}", count, slot.gradient.count(), slot.first.count(),
              slot.second.count());
        check(slot.param.contiguous() && slot.gradient.contiguous() && slot.first.contiguous() &&
                  slot.second.contiguous(),
              "adam on a strided tensor of {}", count);
        if (count == 0) continue;
        list.of[list.slots++] = {
            .param = slot.param.f32(),
            .first = slot.first.f32(),
            .second = slot.second.f32(),
            .gradient = slot.gradient.f32(),
            .count = count,
            .keep = static_cast<float>(1.0 - double{slot.learning_rate} * slot.weight_decay),
            .rate = static_cast<float>(slot.learning_rate / c1),
            .begin = blocks,
            .vectors = count % 4 == 0 && aligned(slot.param, slot.gradient, slot.first, slot.second)};
        blocks += blocks_for(count, adam_block);
        if (list.slots == adam_slots) flush();
    }
    flush();
}

void muon_momentum(Tensor u, Tensor squares, Tensor workspace, const MuonSlot& slot, const MuonSpec& spec,
                   Stream stream) {
    check_slot(slot);
    const int64_t count = slot.param.count(), blocks = flat_blocks(count);
    check(u.count() == count && u.contiguous() && squares.dtype == DType::f64 &&
              workspace.bytes() >= sum_workspace(count),
          "muon_momentum of {} into {}, workspace of {} bytes", count, u.count(), workspace.bytes());
    double* partials = workspace.as<double>();
    const float share = spec.gradient_scale * (spec.averaged ? 1.0f - spec.momentum : 1.0f);
    with_pack<float>(count % 4 == 0 && aligned(u, slot.momentum, slot.gradient), [&](auto n) {
        constexpr int pack = decltype(n)::value;
        launch(momentum_kernel<pack>,
               {dim3(static_cast<unsigned>(blocks)), dim3(256), sizeof(WarpResults<double, 256>), stream},
               u.f32(), partials, slot.momentum.f32(), slot.gradient.f32(), count / pack, spec.momentum,
               share, spec.nesterov);
    });
    fold_totals({.partials = partials, .count = blocks, .set = squares.f64()}, 1, stream);
}

void muon_scale(Tensor x, const Tensor& u, const Tensor& squares, Stream stream) {
    const int64_t rows = u.rows(), cols = u.cols();
    check(x.count() == u.count() && x.contiguous() && u.contiguous() && x.rows() == std::min(rows, cols),
          "muon_scale of {}x{} into {}x{}", rows, cols, x.rows(), x.cols());
    if (rows <= cols)
        map<float>(Scale{x.f32(), u.f32(), squares.f64()}, 1, u.count(), aligned(x, u), stream);
    else
        launch(scale_turned_kernel, tiles(rows, cols, stream), x.f32(), u.f32(), squares.f64(), rows, cols);
}

void muon_update(const MuonSlot& slot, const Tensor& x, Stream stream) {
    check_slot(slot);
    const int64_t rows = slot.param.rows(), cols = slot.param.cols();
    check(x.count() == slot.param.count() && x.contiguous() && x.rows() == std::min(rows, cols),
          "muon_update of {}x{} by {}x{}", rows, cols, x.rows(), x.cols());
    const float keep = 1.0f - slot.weight_decay, rate = slot.learning_rate;
    if (rows <= cols)
        map<float>(Update{slot.param.f32(), x.f32(), keep, rate}, 1, x.count(), aligned(slot.param, x),
                   stream);
    else
        launch(update_turned_kernel, tiles(cols, rows, stream), slot.param.f32(), x.f32(), keep, rate, cols,
               rows);
}

}  // namespace longreach::cuda
