// The harness itself: what correct kernels get, and the counters.
#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <vector>

#include "kernels/cuda/ptx.cuh"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::cuda;

namespace {

KERNEL(256) void scale(float* y, const float* x, float by, int n) {
    int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = by * x[i];
}

struct Sums {
    float x[256];
};
KERNEL(256) void sum(float* y, const float* x) {
    Sums& s = shared<Sums>();
    unsigned t = threadIdx.x;
    s.x[t] = x[blockIdx.x * 256 + t];
    for (unsigned half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (t < half) s.x[t] += s.x[t + half];
    }
    if (t == 0) y[blockIdx.x] = s.x[0];
}

KERNEL(256) void barriers(int rounds) {
    for (int i = 0; i < rounds; ++i) __syncthreads();
}

struct Bytes {
    unsigned char x[64];
    int sum[64];
};
// Neighbours in one word are neighbours, not rivals.
KERNEL(64) void bytes(int* y) {
    Bytes& s = shared<Bytes>();
    s.x[threadIdx.x] = static_cast<unsigned char>(threadIdx.x);
    s.x[threadIdx.x] = static_cast<unsigned char>(s.x[threadIdx.x] + 1);
    __syncthreads();
    s.sum[threadIdx.x] = s.x[threadIdx.x ^ 1];
    unsigned word = reinterpret_cast<const unsigned*>(s.x)[threadIdx.x / 4];
    __syncthreads();
    if (threadIdx.x % 4 == 0) *reinterpret_cast<unsigned*>(s.x + threadIdx.x) = word;
    __syncthreads();
    y[threadIdx.x] = s.sum[threadIdx.x] + s.x[threadIdx.x];
}

struct Block {
    float x[256];
};
KERNEL(256) void busy(float* y, int rounds) {
    Block& s = shared<Block>();
    s.x[threadIdx.x] = 1;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < rounds; ++i) sum += s.x[(static_cast<int>(threadIdx.x) + i) % 256];
    y[threadIdx.x] = sum;
}

KERNEL(64) void lanes(int* out) {
    int lane = static_cast<int>(threadIdx.x % 32), base = static_cast<int>(threadIdx.x) * 9;
    out[base + 0] = __shfl_xor_sync(~0u, lane, 5);
    out[base + 1] = __shfl_down_sync(~0u, lane, 3);
    out[base + 2] = __shfl_up_sync(~0u, lane, 2);
    out[base + 3] = __shfl_sync(~0u, lane, 7, 16);
    out[base + 4] = __shfl_down_sync(~0u, lane, 3, 8);
    out[base + 5] = static_cast<int>(__ballot_sync(~0u, lane < 5));
    out[base + 6] = __any_sync(~0u, lane == 9);
    out[base + 7] = __all_sync(~0u, lane != 9);
    unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;  // two masks of one warp, met independently
    out[base + 8] = lane < 16 ? static_cast<int>(__ballot_sync(half, 1))
                              : -static_cast<int>(__ballot_sync(half, lane & 1) >> 16);
}

struct Square {
    float plain[32][32];
    float padded[32][33];
};
KERNEL(32) void columns(float* y) {
    Square& s = shared<Square>();
    for (int i = 0; i < 32; ++i) {
        s.plain[threadIdx.x][i] = 1;
        s.padded[threadIdx.x][i] = 1;
    }
    y[threadIdx.x] = s.plain[threadIdx.x][0] + s.padded[threadIdx.x][0];
}

struct Tile {
    alignas(16) __nv_bfloat16 a[16][16];
    alignas(16) __nv_bfloat16 b[16][8];  // row k, column n
};
// c = a b of one tile: a by ldmatrix, b by the transposing one, whose second two matrices repeat the first.
KERNEL(32) void product(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b) {
    Tile& s = shared<Tile>();
    int lane = static_cast<int>(threadIdx.x);
    cp_async_16(&s.a[lane / 2][lane % 2 * 8], a + lane * 8);
    if (lane < 16) cp_async_16(&s.b[lane][0], b + lane * 8);
    cp_async_commit();
    cp_async_wait<0>();
    __syncwarp();
    uint32_t af[4], bf[4];
    ldmatrix_x4(af, &s.a[lane % 16][lane / 16 * 8]);
    ldmatrix_x4_trans(bf, &s.b[lane % 16][0]);
    float sums[4] = {0, 0, 0, 0};
    uint32_t b2[2] = {bf[0], bf[1]};
    mma_m16n8k16_bf16(sums, af, b2, sums);
    for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sums[i];
}

KERNEL(32) void count_even(int* counter, const int* x) {
    if (x[threadIdx.x + 32 * blockIdx.x] % 2 == 0) atomicAdd(counter, 1);
}

}  // namespace

TEST_CASE("a kernel over several blocks computes what its loop says") {
    std::vector<float> x(1000);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
    simt::DeviceArray<float> in(x), out(x.size());
    launch(scale, {4, 256, 0, nullptr}, out.data(), in.data(), 2.0f, 1000);
    auto y = out.get();
    for (size_t i = 0; i < x.size(); ++i) CHECK(y[i] == 2 * x[i]);
}

TEST_CASE("a tree reduction gives the same bits under sixteen schedules") {
    std::vector<float> x(1024);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 1.0f / static_cast<float>(i + 1);
    simt::DeviceArray<float> in(x), out(4);
    int ran = simt::run_schedules(
        16, [&] { out.zero(); },
        [&] {
            launch(sum, {4, 256, sizeof(Sums), nullptr}, out.data(), in.data());
        },
        {out.output()});
    CHECK(ran == 16);
}

TEST_CASE("shuffles and votes follow CUDA's rules for lanes, widths and ends") {
    simt::DeviceArray<int> out(64 * 9);
    int ran = simt::run_schedules(
        16, [&] { out.zero(); },
        [&] {
            launch(lanes, {1, 64, 0, nullptr}, out.data());
        },
        {out.output()});
    CHECK(ran == 16);
    auto y = out.get();
    for (int t = 0; t < 64; ++t) {
        int lane = t % 32;
        const int* row = &y[static_cast<size_t>(t) * 9];
        CHECK(row[0] == (lane ^ 5));
        CHECK(row[1] == (lane + 3 < 32 ? lane + 3 : lane));
        CHECK(row[2] == (lane >= 2 ? lane - 2 : lane));
        CHECK(row[3] == lane / 16 * 16 + 7);
        CHECK(row[4] == (lane % 8 + 3 < 8 ? lane + 3 : lane));
        CHECK(row[5] == 31);
        CHECK(row[6] == 1);
        CHECK(row[7] == 0);
        CHECK(row[8] == (lane < 16 ? 0xffff : -0xaaaa));
    }
}

TEST_CASE("copies, matrix loads and the matrix product agree with three loops") {
    std::vector<__nv_bfloat16> a(256), b(128);
    for (size_t i = 0; i < a.size(); ++i)
        a[i] = __float2bfloat16(static_cast<float>(static_cast<int>(i * 7 % 17) - 8));
    for (size_t i = 0; i < b.size(); ++i)
        b[i] = __float2bfloat16(static_cast<float>(static_cast<int>(i * 5 % 13) - 6));
    simt::DeviceArray<__nv_bfloat16> da(a), db(b);
    simt::DeviceArray<float> c(128);
    int ran = simt::run_schedules(
        12, [&] { c.zero(); },
        [&] {
            launch(product, {1, 32, sizeof(Tile), nullptr}, c.data(), da.data(), db.data());
        },
        {c.output()});
    CHECK(ran == 12);
    auto y = c.get();
    for (size_t i = 0; i < 16; ++i)
        for (size_t j = 0; j < 8; ++j) {
            float want = 0;  // sums of integers below 2^24: exact
            for (size_t k = 0; k < 16; ++k)
                want += __bfloat162float(a[i * 16 + k]) * __bfloat162float(b[k * 8 + j]);
            CHECK(y[i * 8 + j] == want);
        }
}

TEST_CASE("bytes of one word written by several threads are no race") {
    simt::DeviceArray<int> out(64);
    int ran = simt::run_schedules(
        12, [&] { out.zero(); },
        [&] {
            launch(bytes, {1, 64, sizeof(Bytes), nullptr}, out.data());
        },
        {out.output()});
    CHECK(ran == 12);
    auto y = out.get();
    for (int t = 0; t < 64; ++t) CHECK(y[static_cast<size_t>(t)] == (t ^ 1) + 1 + t + 1);
}

TEST_CASE("atomic sums of integers are no race") {
    std::vector<int> x(96);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i * i);
    simt::DeviceArray<int> in(x), counter(1);
    int ran = simt::run_schedules(
        8, [&] { counter.zero(); },
        [&] {
            launch(count_even, {3, 32, 0, nullptr}, counter.data(), in.data());
        },
        {counter.output()});
    CHECK(ran == 8);
    CHECK(counter.get()[0] == 48);
}

TEST_CASE("the host cannot touch device memory") {
    simt::DeviceArray<float> x(10);
    CHECK_FALSE(simt::host_can_read(x.data()));
    float mine = 0;
    CHECK(simt::host_can_read(&mine));
}

TEST_CASE("bank conflicts are counted per line") {
    simt::clear_bank_conflicts();
    simt::options().count_bank_conflicts = true;
    simt::DeviceArray<float> y(32);
    launch(columns, {1, 32, sizeof(Square), nullptr}, y.data());
    simt::options().count_bank_conflicts = false;
    int worst_lines = 0, free_lines = 0;
    for (const auto& line : simt::bank_conflicts()) {
        MESSAGE(line.place << ": " << line.accesses << " accesses, mean degree " << line.mean_degree
                           << ", worst " << line.worst_degree);
        worst_lines += line.mean_degree == 32;
        free_lines += line.mean_degree == 1;
    }
    CHECK(worst_lines == 1);
    CHECK(free_lines == 1);
}

TEST_CASE("host code with the runtime's functions works, at once and with streams that wait") {
    for (bool lazy : {false, true}) {
        simt::options().lazy_streams = lazy;
        std::vector<float> x{1, 2, 3}, y(3, 0);
        float *in = nullptr, *out = nullptr;
        cudaStream_t stream;
        REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
        REQUIRE(cudaMalloc(&in, 12) == cudaSuccess);
        REQUIRE(cudaMalloc(&out, 12) == cudaSuccess);
        CHECK(cudaMemcpyAsync(in, x.data(), 12, cudaMemcpyHostToDevice, stream) == cudaSuccess);
        launch(scale, {1, 32, 0, stream}, out, in, 3.0f, 3);
        CHECK(cudaMemcpyAsync(y.data(), out, 12, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
        CHECK(y[0] == (lazy ? 0.0f : 3.0f));
        CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
        CHECK(y == std::vector<float>{3, 6, 9});
        CHECK(cudaMemcpy(in, out, 12, cudaMemcpyHostToDevice) == cudaErrorInvalidMemcpyDirection);
        CHECK(cudaGetLastError() == cudaErrorInvalidMemcpyDirection);
        CHECK(cudaGetLastError() == cudaSuccess);
        CHECK(cudaFree(in) == cudaSuccess);
        CHECK(cudaFree(in) == cudaErrorInvalidValue);
        CHECK(cudaGetLastError() == cudaErrorInvalidValue);
        CHECK(cudaFree(out) == cudaSuccess);
        CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    }
    simt::options().lazy_streams = false;
}

TEST_CASE("a switch between threads costs well below a microsecond") {
    for (unsigned threads : {32u, 256u}) {
        launch(barriers, {1, threads, 0, nullptr}, 10);  // maps the stacks
        uint64_t before = simt::switches();
        auto start = std::chrono::steady_clock::now();
        launch(barriers, {1, threads, 0, nullptr}, 2000);
        double ns =
            std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
        double each = ns / static_cast<double>(simt::switches() - before);
        MESSAGE(threads << " threads: " << each << " ns per switch with its barrier");
        CHECK(each < 5000);  // a machine under load is no failure; a system call per switch would be seen
    }
}

TEST_CASE("a watched access of shared memory costs well below a microsecond") {
    simt::DeviceArray<float> y(256);
    auto start = std::chrono::steady_clock::now();
    launch(busy, {1, 256, sizeof(Block), nullptr}, y.data(), 4000);
    double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    double each = ns / (4000.0 * 256);
    MESSAGE(each << " ns per access");
    CHECK(y.get()[3] == 4000);
    CHECK(each < 5000);  // as above
}

TEST_CASE("a watched access of device memory costs well below a microsecond") {
    constexpr int n = 200000;
    simt::DeviceArray<float> x(n), y(n);
    x.zero();
    auto start = std::chrono::steady_clock::now();
    launch(scale, {(n + 255) / 256, 256, 0, nullptr}, y.data(), x.data(), 2.0f, n);
    double ns = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
    double each = ns / (2.0 * n);
    MESSAGE(each << " ns per access, with the start of a thread for every two");
    CHECK(each < 5000);  // as above
}
