// Mutants of memory accesses and launches.
#include "simt/mutants.h"

namespace longreach::mutants {

using namespace cuda;

namespace {

struct Row {
    float x[64];
};
struct RowAndMore {
    float x[64];
    float more[64];
};

// A stencil over a tile with one value to the right of it.
struct Halo {
    float x[65];
};
template <bool wrong>
KERNEL(64)
void tile_off_by_one(float* y, const float* x) {
    Halo& s = shared<Halo>();
    s.x[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x == 0) s.x[64] = 0;
    __syncthreads();
    y[threadIdx.x] = s.x[threadIdx.x + (wrong ? 2 : 1)];
}

// Through a pointer the compiler knows no size: the arena's end is what counts.
template <bool wrong>
KERNEL(64)
void beyond_the_arena(float* y, const float* x) {
    float* s = shared<Row>().x;
    s[threadIdx.x + (wrong ? 1 : 0)] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x / 2 + 1];
}

template <bool wrong>
KERNEL(64)
void tail_read(float* y, const float* x) {
    unsigned i = blockIdx.x * 64 + threadIdx.x;
    float v = wrong || i < 100 ? x[i] : 0;
    v = __shfl_xor_sync(~0u, v, 1);  // the value is used: else the compiler may drop the read
    if (i < 100) y[i] = v;
}

template <bool wrong>
KERNEL(64)
void tail_write(float* y, const float* x) {
    unsigned i = blockIdx.x * 64 + threadIdx.x;
    float v = i < 100 ? x[i] : 0;
    if (wrong || i < 100) y[i] = v;
}

template <bool wrong>
KERNEL(32)
void before_the_beginning(float* y, const float* x) {
    int i = static_cast<int>(threadIdx.x);
    y[i] = !wrong && i == 0 ? 0 : x[i - 1];
}

template <bool wrong>
KERNEL(32)
void unaligned_vector(float* y, const float* x) {
    float4 v = *reinterpret_cast<const float4*>(x + threadIdx.x * 4 + (wrong ? 1 : 0));
    y[threadIdx.x] = v.x + v.w;
}

template <bool wrong>
KERNEL(32)
void unaligned_shared(float* y, const float* x) {
    float* s = shared<Row>().x;
    s[threadIdx.x] = x[threadIdx.x];
    s[threadIdx.x + 32] = 0;
    __syncwarp();
    float2 v = *reinterpret_cast<const float2*>(s + (threadIdx.x & (wrong ? 31 : 30)));
    y[threadIdx.x] = v.x + v.y;
}

template <bool wrong>
KERNEL(64)
void uninitialised(float* y, const float* x) {
    Row& s = shared<Row>();
    if (threadIdx.x < (wrong ? 63u : 64u)) s.x[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = s.x[threadIdx.x];
}

// Counts on what the previous block left.
template <bool wrong>
KERNEL(64)
void left_by_the_last_block(float* y, const float* x) {
    RowAndMore& s = shared<RowAndMore>();
    if (!wrong || blockIdx.x == 0) s.more[threadIdx.x] = 0;
    s.more[threadIdx.x] += x[threadIdx.x];
    y[blockIdx.x * 64 + threadIdx.x] = s.more[threadIdx.x];
}

// The upper halves of the words are nobody's.
struct Halves {
    __nv_bfloat16 x[64];
};
template <bool wrong>
KERNEL(32)
void half_a_word(float* y, const float* x) {
    Halves& s = shared<Halves>();
    s.x[threadIdx.x * 2] = __float2bfloat16(x[threadIdx.x]);
    if (!wrong) s.x[threadIdx.x * 2 + 1] = __float2bfloat16(0.0f);
    __nv_bfloat162 both = *reinterpret_cast<const __nv_bfloat162*>(&s.x[threadIdx.x * 2]);
    y[threadIdx.x] = __bfloat162float(both.x) + __bfloat162float(both.y);
}

template <bool wrong>
KERNEL(32)
void word_for_a_half(float* y, const float* x) {
    __nv_bfloat16* s = shared<Halves>().x;
    s[threadIdx.x] = __float2bfloat16(x[threadIdx.x]);
    if (wrong && threadIdx.x % 2 == 0) *reinterpret_cast<unsigned*>(s + threadIdx.x) = 0x3f803f80u;
    y[threadIdx.x] = __bfloat162float(s[threadIdx.x]);
}

template <bool wrong>
KERNEL(32)
void one_cell(float* y, const float* x) {
    unsigned to = wrong ? 0 : blockIdx.x;
    if (threadIdx.x == 0) y[to] = x[0];
}

template <bool wrong>
KERNEL(64)
void stencil_in_place(float* y, const float* x) {
    unsigned i = blockIdx.x * 64 + threadIdx.x;
    if (!wrong)
        y[i] = x[i] + x[(i + 1) % 128];
    else if (threadIdx.x == 63)
        y[i] = x[i] + y[(i + 1) % 128];
    else
        y[i] = x[i];
}

// The earlier block's read is remembered through reads of two warps and a barrier of the later block.
template <bool wrong>
KERNEL(64)
void written_after_anothers_read(float* y, const float*) {
    float sum = y[wrong ? 0 : blockIdx.x];
    __syncthreads();
    if (threadIdx.x == 0 && blockIdx.x == gridDim.x - 1) y[wrong ? 0 : blockIdx.x] = 1;
    y[8 + blockIdx.x * 64 + threadIdx.x] = sum;
}

template <bool wrong>
KERNEL(64)
void global_scratch(float* y, const float* x) {
    y[threadIdx.x] = x[threadIdx.x];
    if (!wrong) __syncthreads();
    y[64 + threadIdx.x] = y[63 - threadIdx.x];
}

template <bool wrong>
KERNEL(32)
void plain_counter(int* y, const int*) {
    if (wrong)
        y[0] += 1;
    else
        atomicAdd(&y[0], 1);
}

template <bool wrong>
KERNEL(32)
void mixed_counter(int* y, const int*) {
    atomicAdd(&y[0], 1);
    if (!wrong) __syncwarp();
    if (threadIdx.x == 0) y[1] = y[0];
}

template <bool wrong>
KERNEL(64)
void plain(float* y, const float* x) {
    Row& s = shared<Row>();
    if (threadIdx.x < 64) s.x[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x < 64) y[threadIdx.x] = s.x[threadIdx.x];
}

template <bool wrong>
KERNEL(32)
void shift(int* y, const int* x) {
    y[threadIdx.x] = x[threadIdx.x] << (threadIdx.x + (wrong ? 1 : 0));
}

template <bool wrong>
KERNEL(32)
void division(int* y, const int* x) {
    int by = static_cast<int>(threadIdx.x) + (wrong ? 0 : 1);
    y[threadIdx.x] = x[threadIdx.x] / by;
}

template <class Choose>
int run_with(const Launch& at, bool free_first, Choose choose) {
    std::vector<float> host(64, 1);
    simt::DeviceArray<float> in(host), out(64);
    auto* spare = static_cast<float*>(simt::device_malloc(256));
    simt::copy_to_device(spare, host.data(), 256);
    const float* source = choose(in.data(), host.data(), spare);
    if (free_first) simt::device_free(spare);
    int passed = simt::run_schedules(
        schedules, [&] { out.zero(); }, [&] { launch(plain<false>, at, out.data(), source); },
        {out.output()});
    if (!free_first) simt::device_free(spare);
    return passed;
}

}  // namespace

std::vector<Mutant> memory() {
    using simt::Kind;
    Launch good{1, 64, sizeof(Row)};
    auto device = [](const float* in, const float*, const float*) { return in; };
    return {
        MUTANT(array_out_of_bounds, "tile off by one", tile_off_by_one, LAUNCH(1, 64, sizeof(Halo)), 64, 64),
        MUTANT(shared_out_of_bounds, "store beyond the arena", beyond_the_arena, LAUNCH(1, 64, sizeof(Row)),
               64, 64),
        MUTANT(global_out_of_bounds, "read of the tail without a check", tail_read, LAUNCH(2, 64, 0), 100,
               100),
        MUTANT(global_out_of_bounds, "write of the tail without a check", tail_write, LAUNCH(2, 64, 0), 100,
               100),
        MUTANT(global_out_of_bounds, "read before the beginning", before_the_beginning, LAUNCH(1, 32, 0), 32,
               32),
        MUTANT(misaligned, "float4 off its alignment", unaligned_vector, LAUNCH(1, 32, 0), 32, 132),
        MUTANT(misaligned, "float2 of shared memory off its alignment", unaligned_shared,
               LAUNCH(1, 32, sizeof(Row)), 32, 32),
        MUTANT(uninitialised_shared, "last element never written", uninitialised, LAUNCH(1, 64, sizeof(Row)),
               64, 64),
        MUTANT(uninitialised_shared, "sum left by the previous block", left_by_the_last_block,
               LAUNCH(2, 64, sizeof(RowAndMore)), 128, 64),
        MUTANT(uninitialised_shared, "half of a pair never written", half_a_word,
               LAUNCH(1, 32, sizeof(Halves)), 32, 32),
        MUTANT(shared_race, "word written over a neighbour's half", word_for_a_half,
               LAUNCH(1, 32, sizeof(Halves)), 32, 32),
        MUTANT(global_race, "two blocks write one cell", one_cell, LAUNCH(2, 32, 0), 2, 1),
        MUTANT(global_race, "block reads what another writes", stencil_in_place, LAUNCH(2, 64, 0), 128, 128),
        MUTANT(global_race, "block writes what another read", written_after_anothers_read, LAUNCH(3, 64, 0),
               200, 1),
        MUTANT(global_race, "scratch in device memory without a barrier", global_scratch, LAUNCH(1, 64, 0),
               128, 64),
        MUTANT(global_race, "counter without an atomic", plain_counter, LAUNCH(1, 32, 0), 1, 1),
        MUTANT(global_race, "plain read of a counter", mixed_counter, LAUNCH(1, 32, 0), 2, 1),
        MUTANT(invalid_arithmetic, "shift by the width", shift, LAUNCH(1, 32, 0), 32, 32),
        MUTANT(invalid_arithmetic, "division by zero", division, LAUNCH(1, 32, 0), 32, 32),
        {"uninitialised device memory", Kind::uninitialised_global,
         [](bool wrong) {
             simt::DeviceArray<float> in(64), out(64);
             if (!wrong) in.zero();
             return simt::run_schedules(
                 schedules, [&] { out.zero(); },
                 [&] {
                     launch(plain<false>, {1, 64, sizeof(Row)}, out.data(), in.data());
                 },
                 {out.output()});
         }},
        {"launch with too little shared memory", Kind::shared_too_small,
         [=](bool wrong) {
             Launch at = good;
             if (wrong) at.shared_bytes -= 4;
             return run_with(at, false, device);
         }},
        {"more shared memory than the architecture has", Kind::shared_too_large,
         [=](bool wrong) {
             Launch at = good;
             at.shared_bytes = wrong ? 228 * 1024 : 227 * 1024;
             return run_with(at, false, device);
         }},
        {"shared memory of another architecture", Kind::shared_too_large,
         [=](bool wrong) {
             simt::options().architecture = wrong ? 86 : 90;
             Launch at = good;
             at.shared_bytes = 120 * 1024;
             return run_with(at, false, device);
         }},
        {"more threads than KERNEL(n) says", Kind::launch_shape,
         [=](bool wrong) {
             Launch at = good;
             if (wrong) at.block = 128;
             return run_with(at, false, device);
         }},
        {"more threads than a block has", Kind::launch_shape,
         [=](bool wrong) {
             Launch at = good;
             if (wrong) at.block = dim3(64, 32);
             return run_with(at, false, device);
         }},
        {"an empty grid", Kind::launch_shape,
         [=](bool wrong) {
             Launch at = good;
             if (wrong) at.grid = 0;
             return run_with(at, false, device);
         }},
        {"pointer of the host", Kind::host_access,
         [=](bool wrong) {
             return run_with(good, false, [wrong](const float* in, const float* host, const float*) {
                 return wrong ? host : in;
             });
         }},
        {"null pointer", Kind::host_access,
         [=](bool wrong) {
             return run_with(good, false, [wrong](const float* in, const float*, const float*) {
                 return wrong ? nullptr : in;
             });
         }},
        {"memory freed before the launch", Kind::global_out_of_bounds,
         [=](bool wrong) {
             return run_with(good, wrong,
                             [](const float*, const float*, const float* spare) { return spare; });
         }},
    };
}

}  // namespace longreach::mutants
