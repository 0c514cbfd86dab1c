// Products of the MLP with relu^2 in their epilogues, for Hopper (sm_90a), bf16:
//
//   forward    h [N, F] = max(0, a)^2,     a = x [N, C] w [F, C]^T
//   backward   da [N, F] = dh 2 sqrt(h),  dh = dy [N, C] w [C, F]
//
// a and dh are f32 sums and are not stored: h and da are rounded once. 2 N C F FLOPs each; (N C + C F + N F) 2 bytes,
// backward 2 N F more for h. This spares the passes after the library's products: 2 N F and, h apart, 2 N F accesses.
//
// A block of one multiprocessor: one warpgroup copies, two compute 64 rows each of a tile of 128 x 256. Three stages of
// 64 along C hold 128 rows of the left side and 256 columns of the right one; a stage is 4 m64n256k16 per warpgroup. The
// copier runs ahead into the next tile, so operands are there when an epilogue ends. The epilogue writes through shared
// memory: h of the tile is brought there while the products run, da takes its place, and the copy engine stores a tile
// while the next one is multiplied. Tiles across F follow each other, so that those in work share rows of x, and all of
// w stays in L2. Tile t is that of worker t modulo the number of workers: no result depends on it.
//
// Clocks of a stage per multiprocessor, by counts: products 1,024; shared memory 1,024, of which operands 640 and copies
// 384. A stage draws 48 KiB from L2, 85 FLOP a byte. Rows and columns past the end arrive as 0 and are not stored.
#define LONGREACH_SM90 1  // what the builds that have these kernels define
#include <algorithm>
#include <limits>

#include "kernels/cuda/relu2_hopper.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tiles_sm90.cuh"

namespace longreach::cuda {
namespace {

constexpr int groups = 2, rows = 64 * groups, columns = 256, depth = 64, stages = 3;
constexpr int block_threads = 128 * (groups + 1);
using Registers = RegisterSplit<block_threads, 24, 240>;

template <bool backward>
struct Relu2Layout {
    BoxedTile<rows, depth> a[stages];
    // Rows of w along its columns, or columns along its rows.
    std::conditional_t<backward, BoxedTile<depth, columns>, BoxedTile<columns, depth>> b[stages];
    BoxedTile<64, columns> out[groups];  // backward: before that h
    RingBarriers<stages> of_in;
    RingBarriers<1> of_out[groups];
};

struct Relu2Arguments {
    CUtensorMap a, b, h, out;  // h and out in boxes of 64 rows
    int steps;                 // along C
    int across, tiles;         // of the output
};

// --- the copying warpgroup, its first thread

DEVICE void copy_h(const Relu2Arguments& x, Relu2Layout<true>& block, const RingPosition<1>& at, int down,
                   int across) {
#pragma unroll
    for (int group = 0; group < groups; ++group) {
        RingBarriers<1>& of_out = block.of_out[group];
        of_out.wait_empty(at);
        barrier_arrive_expecting(of_out.full[0], block.out[0].bytes);
        copy_tile(block.out[group], x.h, across, down * rows + 64 * group, 0, of_out.full[0]);
    }
}

template <bool backward>
DEVICE void copy_operands(const Relu2Arguments& x, Relu2Layout<backward>& block) {
    RingPosition<stages> at;
    RingPosition<1> at_out;
    for (int tile = static_cast<int>(blockIdx.x); tile < x.tiles; tile += static_cast<int>(gridDim.x)) {
        const int down = tile / x.across, across = tile % x.across;
        for (int step = 0; step < x.steps; ++step) {
            block.of_in.wait_empty(at);
            PhaseBarrier& full = block.of_in.full[at.stage()];
            barrier_arrive_expecting(full, block.a[0].bytes + block.b[0].bytes);
            copy_tile(block.a[at.stage()], x.a, step, down * rows, 0, full);
            if constexpr (backward)
                copy_tile(block.b[at.stage()], x.b, across, step * depth, 0, full);
            else
                copy_tile(block.b[at.stage()], x.b, step, across * columns, 0, full);
            at.next();
            // The place of h is free soon after the first stage of this tile is multiplied: not to be waited for
            // before the other stages are on their way.
            if constexpr (backward)
                if (step == min(stages, x.steps) - 1) {
                    copy_h(x, block, at_out, down, across);
                    at_out.next();
                }
        }
    }
}

// --- the computing warpgroups

DEVICE float square_of_positive(float a) {
    return a <= 0.0f ? 0.0f : a * a;  // NaN stays NaN
}
// dh 2 sqrt(h) for the low and the high half of a word of h.
DEVICE uint32_t sloped(uint32_t h, float low, float high) {
    const float of_low = sqrt_approx(__uint_as_float(h << 16)),
                of_high = sqrt_approx(__uint_as_float(h & 0xffff0000u));
    return pack_bf16(low * (2.0f * of_low), high * (2.0f * of_high));
}

// The warpgroup's sums to its place, where backward h lies.
template <bool backward>
DEVICE void finish_tile(BoxedTile<64, columns>& out, const float (&sums)[columns / 2]) {
    const int thread = anew(static_cast<int>(threadIdx.x % 128)), lane = thread % 32;
    const int row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int c = 0; c < columns / 16; ++c) {
        bf16* const chunk = out.chunk(row, 16 * c + lane / 16 * 8);
        uint32_t words[4];
        if constexpr (backward) ldmatrix_x4(words, chunk);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int first = 4 * (2 * c + i / 2) + i % 2 * 2;
            if constexpr (backward)
                words[i] = sloped(words[i], sums[first], sums[first + 1]);
            else
                words[i] = pack_bf16(square_of_positive(sums[first]), square_of_positive(sums[first + 1]));
        }
        stmatrix_x4(chunk, words);
    }
}

template <bool backward>
DEVICE void multiply_stage(float (&sums)[columns / 2], const Relu2Layout<backward>& block, int stage,
                           int group, bool add) {
    products_fence();
    if constexpr (backward)
        multiply_strided<columns>(sums, block.a[stage], 64 * group, block.b[stage], add);
    else
        multiply_boxes<columns>(sums, block.a[stage], 64 * group, block.b[stage], add);
    products_commit();
}

template <bool backward>
DEVICE void compute_tiles(const Relu2Arguments& x, Relu2Layout<backward>& block) {
    const int group = static_cast<int>(threadIdx.x / 128) - 1;
    const bool stores = threadIdx.x % 128 == 0;
    RingBarriers<1>& of_out = block.of_out[group];
    RingPosition<stages> at, done;
    RingPosition<1> at_out;
    // Gives the place of the outputs back, once the copy engine has read them.
    const auto return_out = [&] {
        if (!stores) return;
        tensor_stores_read();
        barrier_arrive(of_out.empty[0]);
    };
    const int first = static_cast<int>(blockIdx.x), workers = static_cast<int>(gridDim.x);
    for (int tile = first; tile < x.tiles; tile += workers) {
        float sums[columns / 2];
        block.of_in.wait_full(at);
        multiply_stage(sums, block, at.stage(), group, false);
        at.next();
        if (tile != first) return_out();
#pragma unroll 1
        for (int step = 1; step < x.steps; ++step) {
            block.of_in.wait_full(at);
            multiply_stage(sums, block, at.stage(), group, true);
            at.next();
            products_wait<1>();
            block.of_in.release(done);
            done.next();
        }
        products_wait<0>();
        block.of_in.release(done);
        done.next();
        if constexpr (backward)
            of_out.wait_full(at_out);
        else
            of_out.wait_empty(at_out);
        at_out.next();
        finish_tile<backward>(block.out[group], sums);
        fence_async_proxy();
        meet_group<groups>(group);
        if (stores) {
            store_rows(x.out, block.out[group], 0, tile % x.across, tile / x.across * rows + 64 * group, 0);
            tensor_stores_commit();
        }
    }
    return_out();
}

template <bool backward>
KERNEL(block_threads, 1)
void relu2_sm90_kernel(const __grid_constant__ Relu2Arguments x) {
    auto& block = shared<Relu2Layout<backward>>();
    if (threadIdx.x == 0) {
        block.of_in.init(1, 4 * arriving_lanes * groups);
#pragma unroll
        for (int group = 0; group < groups; ++group) block.of_out[group].init(1, 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<Registers::copier>();
        if (threadIdx.x == 0) copy_operands(x, block);
    } else {
        more_registers<Registers::computer>();
        compute_tiles(x, block);
    }
}

// --- host side

CUtensorMap map_of(const Tensor& t, int box_rows) {
    return tensor_map(t, 1, t.rows(), box_rows);
}

template <bool backward>
void launch_relu2(Tensor out, const Tensor& a, const Tensor& w, const Tensor& h, int workers, Stream stream) {
    constexpr size_t shared_bytes = sizeof(Relu2Layout<backward>);
    static_assert(shared_bytes <= 227 * 1024);
    const unsigned across = blocks_for(out.cols(), columns), tiles = across * blocks_for(out.rows(), rows);
    const Relu2Arguments arguments{.a = map_of(a, rows),
                                   .b = map_of(w, backward ? depth : columns),
                                   .h = map_of(h, 64),
                                   .out = map_of(out, 64),
                                   .steps = static_cast<int>(blocks_for(a.cols(), depth)),
                                   .across = static_cast<int>(across),
                                   .tiles = static_cast<int>(tiles)};
    launch(relu2_sm90_kernel<backward>,
           {dim3(std::min(tiles, static_cast<unsigned>(workers))), dim3(block_threads), shared_bytes, stream},
           arguments);
}

}  // namespace

// Few rows, as of a generation's next tokens, leave most of a tile empty: a library splits the inner sums instead.
bool relu2_sm90_serves(const Tensor& out, const Tensor& a, const Tensor& w, const Tensor& h) {
    return has_tensor_map(out) && has_tensor_map(a) && has_tensor_map(w) && has_tensor_map(h) &&
           a.rows() > 32 && a.cols() > 0 && out.cols() > 0 &&
           (a.rows() / rows + 1) * (out.cols() / columns + 1) < int64_t{1} << 31;
}

void linear_relu2_sm90(Tensor h, const Tensor& x, const Tensor& w, int workers, Stream stream) {
    check(h.rows() == x.rows() && h.cols() == w.rows() && x.cols() == w.cols(),
          "relu^2 [{}, {}] of the product of [{}, {}] and [{}, {}]", h.rows(), h.cols(), x.rows(), x.cols(),
          w.rows(), w.cols());
    launch_relu2<false>(h, x, w, h, workers, stream);
}

void linear_relu2_backward_sm90(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h, int workers,
                                Stream stream) {
    check(da.rows() == dy.rows() && da.cols() == w.cols() && dy.cols() == w.rows() && h.rows() == da.rows() &&
              h.cols() == da.cols(),
          "gradient [{}, {}] of the product of [{}, {}] and [{}, {}] at [{}, {}]", da.rows(), da.cols(),
          dy.rows(), dy.cols(), w.rows(), w.cols(), h.rows(), h.cols());
    launch_relu2<true>(da, dy, w, h, workers, stream);
}

}  // namespace longreach::cuda
