// Shared by the kernels for Hopper: tiles as the copy engine lays them out, rings of stages between the warpgroup that
// copies and those that compute, products of tiles.
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_sm90.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {

// R rows of D channels: boxes of 64 channels, each R rows of 128 bytes whose chunk c lies at c ^ (row % 8).
template <int R, int D>
struct alignas(1024) BoxedTile {
    static constexpr int bytes = R * D * 2, box_bytes = R * 128;
    bf16 data[D / 64][R][64];
    // The chunk of 8 channels that begins at `channel`.
    DEVICE const bf16* chunk(int row, int channel) const {
        return &data[channel / 64][row][(channel % 64 / 8 ^ row % 8) * 8];
    }
    DEVICE bf16* chunk(int row, int channel) {
        return &data[channel / 64][row][(channel % 64 / 8 ^ row % 8) * 8];
    }
};

// Copies the rows from `row` on of one head into a tile; its bytes count for the barrier.
template <int R, int D>
DEVICE void copy_tile(BoxedTile<R, D>& to, const CUtensorMap& from, int head, int row, int sequence,
                      PhaseBarrier& barrier) {
#pragma unroll
    for (int box = 0; box < D / 64; ++box)
        tensor_copy(to.data[box], from, head * D + 64 * box, row, sequence, barrier);
}

// Position in a ring of stages that are filled and emptied in turn: fill number n is stage n % stages.
template <int stages>
struct RingPosition {
    static_assert(stages == 3);
    int place = 0;  // the stage, and in bit 2 the parity of its phase, in one register: 0 in even rounds
    DEVICE int stage() const { return place & 3; }
    DEVICE int parity() const { return place >> 2; }
    DEVICE void next() { place = stage() == stages - 1 ? (place & 4) ^ 4 : place + 1; }
};
template <int stages>
requires(stages == 1 || stages == 2) struct RingPosition<stages> {
    int fill = 0;  // modulo a power of two
    DEVICE int stage() const { return fill & (stages - 1); }
    DEVICE int parity() const { return fill / stages & 1; }
    DEVICE void next() { fill = (fill + 1) & (2 * stages - 1); }
    DEVICE RingPosition before(int fills) const { return {(fill - fills) & (2 * stages - 1)}; }
};
// Lanes of a warp that arrive for it. One is enough, after __syncwarp(), which orders the accesses of the others before its
// arrival. compute-sanitizer's racecheck follows a barrier thread by thread and does not see that: the build for it
// (tests/cuda) lets every lane arrive.
#ifdef LONGREACH_EVERY_LANE_ARRIVES
constexpr int arriving_lanes = 32;
#else
constexpr int arriving_lanes = 1;
#endif
DEVICE bool arrives(int thread) {
    return arriving_lanes == 32 || thread % 32 == 0;
}

template <int stages>
struct RingBarriers {
    PhaseBarrier full[stages], empty[stages];
    DEVICE void init(int fillers, int readers) {
        for (int i = 0; i < stages; ++i) {
            barrier_init(full[i], fillers);
            barrier_init(empty[i], readers);
        }
    }
    // The filler waits for the readers of the fill before; in the first round there is none.
    DEVICE void wait_empty(const RingPosition<stages>& at) {
        barrier_wait(empty[at.stage()], at.parity() ^ 1);
    }
    DEVICE void wait_full(const RingPosition<stages>& at) { barrier_wait(full[at.stage()], at.parity()); }
    // By all lanes of a warp that has read its part.
    DEVICE void release(const RingPosition<stages>& at) {
        __syncwarp();
        if (arrives(anew(static_cast<int>(threadIdx.x)))) barrier_arrive(empty[at.stage()]);
    }
};

// --- warpgroups

// Registers per thread of the warpgroup that copies and of the `threads` / 128 - 1 that compute. They share what the block
// was launched with, not the registers of the multiprocessor: __launch_bounds__(threads, 1) makes ptxas give each thread
// 65,536 / threads, rounded down to 8 (168 of 384 threads, 128 of 512). A split that asks for more never starts.
template <int threads, int of_copier, int of_computer>
struct RegisterSplit {
    static constexpr int at_launch = 65536 / threads / 8 * 8, computers = threads / 128 - 1;
    static constexpr int copier = of_copier, computer = of_computer;
    static_assert(copier <= at_launch && at_launch <= computer, "the copier gives, the others take");
    static_assert(copier + computers * computer <= (1 + computers) * at_launch);
};

enum NamedBarrier { first_turn = 1, first_group = 4 };

// Waits for the other threads of a computing warpgroup.
template <int groups>
DEVICE void meet_group(int group) {
    if (group == 0) named_sync<first_group>(128);
    if (group == 1) named_sync<first_group + 1>(128);
    if (groups == 3 && group == 2) named_sync<first_group + 2>(128);
}

// 64 rows of a tile to a head, by one thread, after fence_async_proxy() by all that wrote them and a barrier.
template <int R, int D>
DEVICE void store_rows(const CUtensorMap& to, BoxedTile<R, D>& from, int first, int head, int row,
                       int sequence) {
#pragma unroll
    for (int box = 0; box < D / 64; ++box)
        tensor_store(to, from.data[box][first], head * D + 64 * box, row, sequence);
}

// --- products

// sums [64, N] = or += rows a [64, D] times rows b [N, D], from row `row` of a on, over all D channels.
template <int N, int R, int S, int D>
DEVICE void multiply_boxes(float (&sums)[N / 2], const BoxedTile<R, D>& a, int row, const BoxedTile<S, D>& b,
                           bool add = false) {
    // Operands are cheap; kept around a loop they would cost a register for every step of k.
    const Operand of_a = operand(a.data[0][anew(row)]), of_b = operand(b.data[0][0]);
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
        product<N>(sums, advance(of_a, k / 4 * BoxedTile<R, D>::box_bytes + k % 4 * 32),
                   advance(of_b, k / 4 * BoxedTile<S, D>::box_bytes + k % 4 * 32), add || k > 0);
}
// sums [64, N] = or += rows a [64, K], from row `row` of a on, times b [K, N].
template <int N, int R, int K>
DEVICE void multiply_strided(float (&sums)[N / 2], const BoxedTile<R, K>& a, int row,
                             const BoxedTile<K, N>& b, bool add = false) {
    const Operand of_a = operand(a.data[0][anew(row)]),
                  of_b = operand(b.data[0][0], BoxedTile<K, N>::box_bytes);
#pragma unroll
    for (int k = 0; k < K / 16; ++k)
        product<N, true>(sums, advance(of_a, k / 4 * BoxedTile<R, K>::box_bytes + k % 4 * 32),
                         advance(of_b, k * 16 * 128), add || k > 0);
}

}  // namespace longreach::cuda
