// Mutants of barriers, warp calls and the order of threads.
#include "simt/mutants.h"

namespace longreach::mutants {

using namespace cuda;

namespace {

struct Row {
    float x[64];
};
struct Pair {
    float x[2][64];
};

template <bool wrong>
KERNEL(64)
void tree(float* y, const float* x) {
    Row& s = shared<Row>();
    unsigned t = threadIdx.x;
    s.x[t] = x[t];
    __syncthreads();
    for (unsigned half = 32; half > 0; half /= 2) {
        if (t < half) s.x[t] += s.x[t + half];
        if (!wrong) __syncthreads();
    }
    if (t == 0) y[0] = s.x[0];
}

template <bool wrong>
KERNEL(64)
void first_barrier_missing(float* y, const float* x) {
    Row& s = shared<Row>();
    s.x[threadIdx.x] = x[threadIdx.x];
    if (!wrong) __syncthreads();
    y[threadIdx.x] = s.x[63 - threadIdx.x];
}

// A second tile overwrites the first while others still read it.
template <bool wrong>
KERNEL(64)
void next_tile_early(float* y, const float* x) {
    Row& s = shared<Row>();
    float sum = 0;
    for (int tile = 0; tile < 4; ++tile) {
        s.x[threadIdx.x] = x[static_cast<unsigned>(tile) * 64 + threadIdx.x];
        __syncthreads();
        sum += s.x[63 - threadIdx.x];
        if (!wrong) __syncthreads();
    }
    y[threadIdx.x] = sum;
}

// Double buffering needs one barrier per step, if reader and writer use different halves.
template <bool wrong>
KERNEL(64)
void parity(float* y, const float* x) {
    Pair& s = shared<Pair>();
    s.x[0][threadIdx.x] = x[threadIdx.x];
    float sum = 0;
    for (unsigned step = 0; step < 4; ++step) {
        __syncthreads();
        unsigned next = wrong ? step % 2 : (step + 1) % 2;
        if (step < 3) s.x[next][threadIdx.x] = x[(step + 1) * 64 + threadIdx.x];
        sum += s.x[step % 2][63 - threadIdx.x];
    }
    y[threadIdx.x] = sum;
}

template <bool wrong>
KERNEL(64)
void two_barriers(float* y, const float* x) {
    Row& s = shared<Row>();
    s.x[threadIdx.x] = x[threadIdx.x];
    if (wrong && threadIdx.x < 32)
        __syncthreads();
    else if (wrong)
        __syncthreads();
    else
        __syncthreads();
    y[threadIdx.x] = s.x[63 - threadIdx.x];
}

template <bool wrong>
KERNEL(64)
void barrier_of_a_half(float* y, const float* x) {
    Row& s = shared<Row>();
    if (threadIdx.x < 32) {
        s.x[threadIdx.x] = x[threadIdx.x];
        if (wrong) __syncthreads();
    }
    if (!wrong) __syncthreads();
    if (threadIdx.x < 32) y[threadIdx.x] = s.x[31 - threadIdx.x];
}

template <bool wrong>
KERNEL(64)
void early_return(float* y, const float* x) {
    Row& s = shared<Row>();
    bool inside = threadIdx.x < 50;
    if (wrong && !inside) return;
    s.x[threadIdx.x] = inside ? x[threadIdx.x] : 0;
    __syncthreads();
    if (inside) y[threadIdx.x] = s.x[49 - threadIdx.x];
}

template <bool wrong>
KERNEL(64)
void rounds_by_thread(float* y, const float* x) {
    unsigned rounds = wrong ? 2 + threadIdx.x / 32 : 3;
    for (unsigned i = 0; i < rounds; ++i) __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}

template <bool wrong>
KERNEL(32)
void warp_tree(float* y, const float* x) {
    Row& s = shared<Row>();
    unsigned t = threadIdx.x;
    s.x[t] = x[t];
    __syncwarp();
    for (unsigned half = 16; half > 0; half /= 2) {
        float more = t < half ? s.x[t + half] : 0;
        if (!wrong) __syncwarp();
        s.x[t] += more;
        if (!wrong) __syncwarp();
    }
    if (t == 0) y[0] = s.x[0];
}

// All read one cell, then one of them overwrites it.
template <bool wrong, int threads>
DEVICE void overwrite(float* y, const float* x) {
    Row& s = shared<Row>();
    if (threadIdx.x == 5) s.x[0] = x[0];
    __syncthreads();
    float v = s.x[0];
    if (!wrong) __syncthreads();
    if (threadIdx.x == 9) s.x[0] = 2;
    y[threadIdx.x] = v;
}
template <bool wrong>
KERNEL(32)
void overwritten_in_a_warp(float* y, const float* x) {
    overwrite<wrong, 32>(y, x);
}
template <bool wrong>
KERNEL(96)
void overwritten_in_a_block(float* y, const float* x) {
    overwrite<wrong, 96>(y, x);
}

// Of the lanes that read the cell, the writer has met only the lower half since.
template <bool wrong>
KERNEL(32)
void met_half_of_the_readers(float* y, const float* x) {
    Row& s = shared<Row>();
    if (threadIdx.x == 0) s.x[0] = x[0];
    __syncwarp();
    float v = wrong || threadIdx.x < 16 ? s.x[0] : 0;
    __syncwarp(threadIdx.x < 16 ? 0xffffu : 0xffff0000u);
    if (threadIdx.x == 3) s.x[0] = 2;
    y[threadIdx.x] = v;
}

// Order passes on: 0 to 1 at one call, 1 to 2 at the next.
template <bool wrong>
KERNEL(32)
void chain(float* y, const float* x) {
    Row& s = shared<Row>();
    unsigned lane = threadIdx.x;
    if (lane == 0) s.x[0] = x[0];
    if (lane < 2) __syncwarp(0x3u);
    if (lane == 1 || lane == 2) __syncwarp(0x6u);
    if (lane == (wrong ? 3u : 2u)) y[0] = s.x[0];
}

// Shuffles order no memory: CUDA promises that of __syncwarp only.
template <bool wrong>
KERNEL(32)
void shuffle_as_fence(float* y, const float* x) {
    Row& s = shared<Row>();
    s.x[threadIdx.x] = x[threadIdx.x];
    float other = __shfl_xor_sync(~0u, x[threadIdx.x], 1);
    if (!wrong) __syncwarp();
    y[threadIdx.x] = other + s.x[31 - threadIdx.x];
}

template <bool wrong>
KERNEL(32)
void half_warp_fence(float* y, const float* x) {
    Row& s = shared<Row>();
    s.x[threadIdx.x] = x[threadIdx.x];
    __syncwarp(!wrong ? ~0u : threadIdx.x < 16 ? 0xffffu : 0xffff0000u);
    y[threadIdx.x] = s.x[31 - threadIdx.x];
}

template <bool wrong>
KERNEL(64)
void warp_fence_for_a_block(float* y, const float* x) {
    Row& s = shared<Row>();
    s.x[threadIdx.x] = x[threadIdx.x];
    if (wrong)
        __syncwarp();
    else
        __syncthreads();
    y[threadIdx.x] = s.x[63 - threadIdx.x];
}

template <bool wrong>
KERNEL(32)
void mask_without_caller(float* y, const float* x) {
    float v = x[threadIdx.x];
    y[threadIdx.x] = __shfl_xor_sync(wrong ? 0x0000ffffu : 0xffffffffu, v, 1);
}

template <bool wrong>
KERNEL(32)
void mask_of_missing_lanes(float* y, const float* x) {
    y[threadIdx.x] = __shfl_xor_sync(wrong ? 0xffffffffu : 0x0000ffffu, x[threadIdx.x], 1);
}

// The upper half's sum reads lanes that the mask leaves out.
template <bool wrong>
KERNEL(32)
void source_outside_mask(float* y, const float* x) {
    float v = x[threadIdx.x];
    if (threadIdx.x < 16) {
        for (int by = wrong ? 16 : 8; by > 0; by /= 2) v += __shfl_xor_sync(0xffffu, v, by);
        y[threadIdx.x] = v;
    }
}

template <bool wrong>
KERNEL(32)
void shuffle_after_return(float* y, const float* x) {
    if (threadIdx.x >= 20) return;
    unsigned mask = wrong ? ~0u : 0xfffffu;
    y[threadIdx.x] = __shfl_sync(mask, x[threadIdx.x], 0);
}

template <bool wrong>
KERNEL(32)
void different_shuffles(float* y, const float* x) {
    float v = x[threadIdx.x];
    if (threadIdx.x < 16)
        v = __shfl_xor_sync(wrong ? ~0u : 0xffffu, v, 1);
    else
        v = __shfl_xor_sync(wrong ? ~0u : 0xffff0000u, v, 2);
    y[threadIdx.x] = v;
}

template <bool wrong>
KERNEL(32)
void different_masks(float* y, const float* x) {
    unsigned mask = wrong && threadIdx.x == 3 ? 0xffu : ~0u;
    y[threadIdx.x] = static_cast<float>(__ballot_sync(mask, x[threadIdx.x] > 1.5f));
}

template <bool wrong>
KERNEL(64)
void barrier_against_warp(float* y, const float* x) {
    if (wrong && threadIdx.x % 2 == 1) __syncwarp();
    __syncthreads();
    y[threadIdx.x] = x[threadIdx.x];
}

// The sum of floats in the order in which threads took their numbers.
struct Tickets {
    int next;
    float x[64];
};
template <bool wrong>
KERNEL(64)
void sum_by_arrival(float* y, const float* x) {
    Tickets& s = shared<Tickets>();
    if (threadIdx.x == 0) s.next = 0;
    __syncthreads();
    int at = atomicAdd(&s.next, 1);
    s.x[wrong ? at : static_cast<int>(threadIdx.x)] =
        x[threadIdx.x] * 0.1f * static_cast<float>(threadIdx.x + 1);
    __syncthreads();
    float sum = 0;
    for (float v : s.x) sum += v;
    if (threadIdx.x == 0) y[0] = sum;
}

template <bool wrong>
KERNEL(32)
void number_of_a_block(int* y, const int*) {
    Tickets& s = shared<Tickets>();
    if (threadIdx.x == 0) s.next = atomicAdd(&y[8], 1);
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = wrong ? s.next : static_cast<int>(blockIdx.x);
}

}  // namespace

std::vector<Mutant> synchronisation() {
    return {
        MUTANT(shared_race, "tree reduction without its barrier", tree, LAUNCH(1, 64, sizeof(Row)), 1, 64),
        MUTANT(shared_race, "read of a neighbour's value without a barrier", first_barrier_missing,
               LAUNCH(1, 64, sizeof(Row)), 64, 64),
        MUTANT(shared_race, "next tile stored while the last is read", next_tile_early,
               LAUNCH(1, 64, sizeof(Row)), 64, 256),
        MUTANT(shared_race, "parity of a double buffer", parity, LAUNCH(1, 64, sizeof(Pair)), 64, 256),
        MUTANT(barrier_divergence, "a barrier in each branch", two_barriers, LAUNCH(1, 64, sizeof(Row)), 64,
               64),
        MUTANT(barrier_exit, "barrier in one branch only", barrier_of_a_half, LAUNCH(1, 64, sizeof(Row)), 32,
               64),
        MUTANT(barrier_exit, "return before a barrier", early_return, LAUNCH(1, 64, sizeof(Row)), 64, 50),
        MUTANT(barrier_exit, "number of barriers depends on the warp", rounds_by_thread, LAUNCH(1, 64, 0), 64,
               64),
        MUTANT(shared_race, "warp-synchronous tree without __syncwarp", warp_tree, LAUNCH(1, 32, sizeof(Row)),
               1, 32),
        MUTANT(shared_race, "cell overwritten that the warp reads", overwritten_in_a_warp,
               LAUNCH(1, 32, sizeof(Row)), 32, 32),
        MUTANT(shared_race, "cell overwritten that the block reads", overwritten_in_a_block,
               LAUNCH(1, 96, sizeof(Row)), 96, 96),
        MUTANT(shared_race, "writer met half of the readers", met_half_of_the_readers,
               LAUNCH(1, 32, sizeof(Row)), 32, 32),
        MUTANT(shared_race, "reader outside of a chain of fences", chain, LAUNCH(1, 32, sizeof(Row)), 1, 32),
        MUTANT(shared_race, "shuffle taken for a fence", shuffle_as_fence, LAUNCH(1, 32, sizeof(Row)), 32,
               32),
        MUTANT(shared_race, "__syncwarp of half a warp", half_warp_fence, LAUNCH(1, 32, sizeof(Row)), 32, 32),
        MUTANT(shared_race, "__syncwarp in place of __syncthreads", warp_fence_for_a_block,
               LAUNCH(1, 64, sizeof(Row)), 64, 64),
        MUTANT(warp_mask, "mask leaves the caller out", mask_without_caller, LAUNCH(1, 32, 0), 32, 32),
        MUTANT(warp_mask, "mask names lanes beyond the block", mask_of_missing_lanes, LAUNCH(1, 16, 0), 16,
               16),
        MUTANT(poison_in_output, "shuffle reads a lane outside of the mask", source_outside_mask,
               LAUNCH(1, 32, 0), 16, 32),
        MUTANT(warp_exit, "full mask after some lanes returned", shuffle_after_return, LAUNCH(1, 32, 0), 20,
               32),
        MUTANT(warp_divergence, "two shuffles meet under one mask", different_shuffles, LAUNCH(1, 32, 0), 32,
               32),
        MUTANT(warp_divergence, "lanes disagree about the mask", different_masks, LAUNCH(1, 32, 0), 32, 32),
        MUTANT(deadlock, "half a warp at __syncwarp, half at the barrier", barrier_against_warp,
               LAUNCH(1, 64, 0), 64, 64),
        MUTANT(schedule_dependent, "floats summed in order of arrival", sum_by_arrival,
               LAUNCH(1, 64, sizeof(Tickets)), 1, 64),
        MUTANT(schedule_dependent, "block number by arrival", number_of_a_block,
               LAUNCH(8, 32, sizeof(Tickets)), 9, 1),
    };
}

}  // namespace longreach::mutants
