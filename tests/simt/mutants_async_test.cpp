// Mutants of asynchronous copies and of the matrix instructions.
#include "simt/mutants.h"

namespace longreach::mutants {

using namespace cuda;

namespace {

struct Stages {
    alignas(16) float x[2][128];  // each thread of 32 copies 4 floats of a stage
};

template <bool wrong>
KERNEL(32)
void no_wait(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    cp_async_16(&s.x[0][t * 4], x + t * 4);
    cp_async_commit();
    if (!wrong) cp_async_wait<0>();
    __syncthreads();
    y[t] = s.x[0][127 - t];
    if (wrong) cp_async_wait<0>();
}

template <bool wrong>
KERNEL(32)
void wait_of_one_too_many(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    for (unsigned stage = 0; stage < 2; ++stage) {
        cp_async_16(&s.x[stage][t * 4], x + stage * 128 + t * 4);
        cp_async_commit();
    }
    cp_async_wait<wrong ? 2 : 1>();
    __syncthreads();
    float first = s.x[0][127 - t];
    cp_async_wait<0>();
    __syncthreads();
    y[t] = first + s.x[1][127 - t];
}

template <bool wrong>
KERNEL(32)
void no_commit(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    cp_async_16(&s.x[0][t * 4], x + t * 4);
    if (!wrong) cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    y[t] = s.x[0][127 - t];
    cp_async_commit();
    cp_async_wait<0>();
}

template <bool wrong>
KERNEL(32)
void no_barrier_behind_the_wait(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    cp_async_16(&s.x[0][t * 4], x + t * 4);
    cp_async_commit();
    __syncthreads();
    cp_async_wait<0>();
    if (!wrong) __syncthreads();
    y[t] = s.x[0][127 - t];
}

template <bool wrong>
KERNEL(32)
void own_read_before_the_wait(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    cp_async_16(&s.x[0][t * 4], x + t * 4);
    cp_async_commit();
    float v = 0;
    if (wrong) v = s.x[0][t * 4];
    cp_async_wait<0>();
    if (!wrong) v = s.x[0][t * 4];
    y[t] = v;
}

template <bool wrong>
KERNEL(32)
void source_written(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    for (unsigned i = 0; i < 4; ++i) y[t * 4 + i] = x[t * 4 + i];
    cp_async_16(&s.x[0][t * 4], y + t * 4);
    cp_async_commit();
    if (!wrong) cp_async_wait<0>();
    y[t * 4] = 5;
    cp_async_wait<0>();
    y[t * 4 + 1] = s.x[0][t * 4];
}

template <bool wrong>
KERNEL(32)
void destination_written(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    cp_async_16(&s.x[0][t * 4], x + t * 4);
    cp_async_commit();
    if (!wrong) cp_async_wait<0>();
    s.x[0][t * 4 + 3] = 0;
    cp_async_wait<0>();
    y[t] = s.x[0][t * 4 + 3];
}

template <bool wrong>
KERNEL(32)
void overlapping(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    cp_async_16(&s.x[0][t * 4], x + t * 4);
    cp_async_16(&s.x[wrong ? 0 : 1][t * 4], x + 128 + t * 4);
    cp_async_commit();
    cp_async_wait<0>();
    y[t] = s.x[0][t * 4];
}

template <bool wrong>
KERNEL(32)
void left_under_way(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    cp_async_16(&s.x[0][t * 4], x + t * 4);
    cp_async_commit();
    y[t] = x[t];
    if (!wrong) cp_async_wait<0>();
}

// A pipeline of two stages; the barrier at the end of a step keeps the next copy off what others still read.
template <bool wrong>
KERNEL(64)
void pipeline(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    auto copy = [&](unsigned step) {
        if (t < 32) cp_async_16(&s.x[step % 2][t * 4], x + step * 128 + t * 4);
        cp_async_commit();
    };
    copy(0);
    float sum = 0;
    for (unsigned step = 0; step < 4; ++step) {
        if (step + 1 < 4) copy(step + 1);
        if (step + 1 < 4)
            cp_async_wait<1>();
        else
            cp_async_wait<0>();
        __syncthreads();
        sum += s.x[step % 2][127 - t];
        if (!wrong) __syncthreads();
    }
    y[t] = sum;
}

template <bool wrong>
KERNEL(64)
void pipeline_parity(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    float sum = 0;
    if (t < 32) cp_async_16(&s.x[0][t * 4], x + t * 4);
    cp_async_commit();
    for (unsigned step = 0; step < 4; ++step) {
        cp_async_wait<0>();
        __syncthreads();
        unsigned into = wrong ? step % 2 : (step + 1) % 2;
        if (step < 3 && t < 32) cp_async_16(&s.x[into][t * 4], x + (step + 1) * 128 + t * 4);
        cp_async_commit();
        sum += s.x[step % 2][127 - t];
    }
    cp_async_wait<0>();
    y[t] = sum;
}

template <bool wrong>
KERNEL(32)
void unaligned_copy(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    cp_async_16(&s.x[0][t * 4], x + t * 4 + (wrong ? 2 : 0));
    cp_async_commit();
    cp_async_wait<0>();
    y[t] = s.x[0][t * 4];
}

// 126 floats: the last copy has 8 bytes, the rest is zero.
template <bool wrong>
KERNEL(32)
void copy_of_the_tail(float* y, const float* x) {
    Stages& s = shared<Stages>();
    unsigned t = threadIdx.x;
    cp_async_16(&s.x[0][t * 4], x + t * 4, wrong || t < 31 ? 16 : 8);
    cp_async_commit();
    cp_async_wait<0>();
    y[t] = s.x[0][t * 4 + 3];
}

struct Tile {
    alignas(16) __nv_bfloat16 x[16][24];  // rows of 48 bytes
};
enum class Fault { none, fence, alignment, half, return_early };

template <Fault fault>
KERNEL(32)
void matrix(float* y, const float* x) {
    Tile& s = shared<Tile>();
    unsigned t = threadIdx.x;
    for (unsigned i = t; i < 16 * 24; i += 32) s.x[i / 24][i % 24] = __float2bfloat16(x[i]);
    if (fault != Fault::fence) __syncwarp();
    if (fault == Fault::return_early && t >= 30) return;
    const __nv_bfloat16* row = &s.x[t % 16][t / 16 * 8 + (fault == Fault::alignment ? 4 : 0)];
    uint32_t a[4], b[2];
    if (fault == Fault::half && t >= 16)
        ldmatrix_x4(a, row);
    else
        ldmatrix_x4(a, row);
    b[0] = a[0];
    b[1] = a[1];
    float c[4] = {0, 0, 0, 0};
    mma_m16n8k16_bf16(c, a, b, c);
    y[t] = c[0] + c[3];
}

template <bool wrong>
KERNEL(32)
void matrix_fence(float* y, const float* x) {
    matrix<wrong ? Fault::fence : Fault::none>(y, x);
}
template <bool wrong>
KERNEL(32)
void matrix_alignment(float* y, const float* x) {
    matrix<wrong ? Fault::alignment : Fault::none>(y, x);
}
template <bool wrong>
KERNEL(32)
void matrix_half(float* y, const float* x) {
    matrix<wrong ? Fault::half : Fault::none>(y, x);
}
template <bool wrong>
KERNEL(32)
void matrix_return(float* y, const float* x) {
    matrix<wrong ? Fault::return_early : Fault::none>(y, x);
}

}  // namespace

std::vector<Mutant> copies() {
    return {
        MUTANT(async_unfinished, "cp.async without a wait", no_wait, LAUNCH(1, 32, sizeof(Stages)), 32, 128),
        MUTANT(async_unfinished, "cp.async wait allows one group too many", wait_of_one_too_many,
               LAUNCH(1, 32, sizeof(Stages)), 32, 256),
        MUTANT(async_unfinished, "cp.async without a commit", no_commit, LAUNCH(1, 32, sizeof(Stages)), 32,
               128),
        MUTANT(shared_race, "no barrier between wait and others' reads", no_barrier_behind_the_wait,
               LAUNCH(1, 32, sizeof(Stages)), 32, 128),
        MUTANT(async_unfinished, "own destination read before the wait", own_read_before_the_wait,
               LAUNCH(1, 32, sizeof(Stages)), 32, 128),
        MUTANT(async_source_changed, "source written during the copy", source_written,
               LAUNCH(1, 32, sizeof(Stages)), 128, 128),
        MUTANT(async_unfinished, "destination written during the copy", destination_written,
               LAUNCH(1, 32, sizeof(Stages)), 32, 128),
        MUTANT(async_unfinished, "two copies to one place", overlapping, LAUNCH(1, 32, sizeof(Stages)), 32,
               256),
        MUTANT(async_unwaited, "return with copies under way", left_under_way, LAUNCH(1, 32, sizeof(Stages)),
               32, 128),
        MUTANT(shared_race, "pipeline without its closing barrier", pipeline, LAUNCH(1, 64, sizeof(Stages)),
               64, 512),
        MUTANT(async_unfinished, "pipeline copies into the stage being read", pipeline_parity,
               LAUNCH(1, 64, sizeof(Stages)), 64, 512),
        MUTANT(misaligned, "cp.async from an unaligned source", unaligned_copy, LAUNCH(1, 32, sizeof(Stages)),
               32, 132),
        MUTANT(global_out_of_bounds, "cp.async beyond the end of the source", copy_of_the_tail,
               LAUNCH(1, 32, sizeof(Stages)), 32, 126),
        MUTANT(shared_race, "ldmatrix without __syncwarp", matrix_fence, LAUNCH(1, 32, sizeof(Tile)), 32,
               384),
        MUTANT(misaligned, "ldmatrix of an unaligned row", matrix_alignment, LAUNCH(1, 32, sizeof(Tile)), 32,
               384),
        MUTANT(warp_divergence, "two ldmatrix in divergent branches", matrix_half,
               LAUNCH(1, 32, sizeof(Tile)), 32, 384),
        MUTANT(warp_exit, "ldmatrix after two lanes returned", matrix_return, LAUNCH(1, 32, sizeof(Tile)), 32,
               384),
    };
}

}  // namespace longreach::mutants
