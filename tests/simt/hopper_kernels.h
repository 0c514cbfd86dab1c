// One kernel for each of Hopper's instructions: products of all shapes and layouts, matrices stored, boxes fetched and
// stored. The harness runs them (hopper_test.cpp), and a GPU (cuda/golden_sm90.cu).
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/ptx_sm90.cuh"

namespace longreach::hopper_test {

using namespace cuda;
using bf16 = __nv_bfloat16;

// --- products: d [64, n] = d + a [64, 32] b [32, n]

struct Operands {
    alignas(1024) unsigned char a[64 * 128];
    unsigned char b[256 * 128];
};

// Element (row, column) of boxes of 64 columns, each box `rows` rows of 128 bytes.
DEVICE void place(unsigned char* boxes, int rows, int row, int column, bf16 value) {
    unsigned char* chunk =
        boxes + column / 64 * rows * 128 + row * 128 + ((column % 64 / 8) ^ (row % 8)) * 16;
    reinterpret_cast<bf16*>(chunk)[column % 8] = value;
}

enum class From { shared_memory, shared_strided, registers, registers_strided };

template <int n, From from>
KERNEL(128, 1)
void multiply(float* out, const bf16* a, const bf16* b, const float* start) {
    constexpr bool strided = from == From::registers_strided || from == From::shared_strided;
    Operands& s = shared<Operands>();
    int thread = static_cast<int>(threadIdx.x), lane = thread % 32, row = thread / 32 * 16 + lane / 4,
        t = lane % 4;
    for (int i = thread; i < 64 * 32; i += 128) place(s.a, 64, i / 32, i % 32, a[i]);
    for (int i = thread; i < 32 * n; i += 128) {
        if (strided)
            place(s.b, 32, i / n, i % n, b[i]);
        else
            place(s.b, n, i % n, i / n, b[i]);
    }
    fence_async_proxy();
    __syncthreads();
    float d[n / 2];
    uint32_t fragments[2][4];
    for (int i = 0; i < n / 2; ++i)
        d[i] = start == nullptr ? 0 : start[(row + i % 4 / 2 * 8) * n + i / 4 * 8 + 2 * t + i % 2];
    for (int k = 0; k < 2; ++k)
        for (int i = 0; i < 4; ++i) {
            const bf16* pair = a + (row + i % 2 * 8) * 32 + 16 * k + i / 2 * 8 + 2 * t;
            uint16_t low, high;
            bf16 first = pair[0], second = pair[1];
            __builtin_memcpy(&low, &first, 2);
            __builtin_memcpy(&high, &second, 2);
            fragments[k][i] = low | static_cast<uint32_t>(high) << 16;
        }
    products_fence();
    for (int k = 0; k < 2; ++k) {
        bool add = start != nullptr || k > 0;
        if constexpr (from == From::shared_memory)
            product<n>(d, advance(operand(s.a), 32 * k), advance(operand(s.b), 32 * k), add);
        else if constexpr (from == From::shared_strided)
            product<n, true>(d, advance(operand(s.a), 32 * k), advance(operand(s.b, 32 * 128), 2048 * k),
                             add);
        else if constexpr (strided)
            product<n, true>(d, fragments[k], advance(operand(s.b, 32 * 128), 2048 * k), add);
        else
            product<n, false>(d, fragments[k], advance(operand(s.b), 32 * k), add);
    }
    products_commit();
    products_wait<0>();
    for (int i = 0; i < n / 2; ++i) out[(row + i % 4 / 2 * 8) * n + i / 4 * 8 + 2 * t + i % 2] = d[i];
}

// --- matrices

KERNEL(32)
void there_and_back(uint32_t* out, const uint32_t* in) {
    struct Tile {
        alignas(16) uint16_t rows[32][8];
    };
    Tile& s = shared<Tile>();
    unsigned lane = threadIdx.x;
    uint32_t words[4];
    for (unsigned i = 0; i < 4; ++i) words[i] = in[lane * 4 + i];
    stmatrix_x4(s.rows[lane], words);
    __syncwarp();
    ldmatrix_x4(words, s.rows[lane]);
    for (unsigned i = 0; i < 4; ++i) out[lane * 4 + i] = words[i];
}

// --- boxes

struct Box {
    alignas(1024) unsigned char bytes[16 * 128];
    PhaseBarrier full;
};

// A box of 64 columns and 16 rows in all to the output, as it lies in shared memory; asks instead of waiting.
KERNEL(64)
void fetch(bf16* out, const __grid_constant__ CUtensorMap map, int column, int row, int sequence) {
    Box& s = shared<Box>();
    if (threadIdx.x == 0) {
        barrier_init(s.full, 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_arrive_expecting(s.full, static_cast<int>(sizeof s.bytes));
        tensor_copy(s.bytes, map, column, row, sequence, s.full);
    }
    while (!barrier_try_wait(s.full, 0)) {
    }
    for (unsigned i = threadIdx.x; i < sizeof s.bytes / 2; i += 64)
        out[i] = reinterpret_cast<const bf16*>(s.bytes)[i];
}

// The reverse, all of it from the input; what lies outside the tensor is not written.
KERNEL(64)
void put(const __grid_constant__ CUtensorMap map, const bf16* in, int column, int row, int sequence) {
    Box& s = shared<Box>();
    for (unsigned i = threadIdx.x; i < sizeof s.bytes / 2; i += 64)
        reinterpret_cast<bf16*>(s.bytes)[i] = in[i];
    fence_async_proxy();
    __syncthreads();
    if (threadIdx.x != 0) return;
    tensor_store(map, s.bytes, column, row, sequence);
    tensor_stores_commit();
    tensor_stores_read();
}

// Bytes without a layout, in two pieces that count for one phase.
KERNEL(64)
void fetch_bytes(bf16* out, const bf16* in) {
    Box& s = shared<Box>();
    constexpr int half = static_cast<int>(sizeof s.bytes) / 2;
    if (threadIdx.x == 0) {
        barrier_init(s.full, 1);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        barrier_arrive_expecting(s.full, 2 * half);
        bulk_copy(s.bytes + half, in + half / 2, half, s.full);
        bulk_copy(s.bytes, in, half, s.full);
    }
    barrier_wait(s.full, 0);
    for (unsigned i = threadIdx.x; i < sizeof s.bytes / 2; i += 64)
        out[i] = reinterpret_cast<const bf16*>(s.bytes)[i];
}

// --- registers

// A block whose first warpgroup goes to `copier` registers a thread and whose others go to `computer`.
template <int threads, int copier, int computer>
KERNEL(threads, 1)
void share_registers(uint32_t* out, const uint32_t* in) {
    if (threadIdx.x < 128)
        fewer_registers<copier>();
    else
        more_registers<computer>();
    out[threadIdx.x] = in[threadIdx.x] + 1;
}

}  // namespace longreach::hopper_test
