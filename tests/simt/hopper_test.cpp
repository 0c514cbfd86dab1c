// Hopper's instructions one by one: shapes and layouts of products, matrices stored and loaded, boxes at the edges of a
// tensor, the rules for tensor maps, barriers that are asked and not waited for.
#include <doctest/doctest.h>

#include <cuda.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "simt/hopper_kernels.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::cuda;
using namespace longreach::hopper_test;

namespace {

float entry(int i, int seed) {
    return static_cast<float>((i * 29 + seed * 7) % 53 - 26) / 16.0f;
}
std::vector<bf16> matrix(int rows, int columns, int seed) {
    std::vector<bf16> made;
    for (int i = 0; i < rows * columns; ++i) made.push_back(bf16(entry(i, seed)));
    return made;
}
float at(const std::vector<bf16>& of, int columns, int row, int column) {
    return static_cast<float>(of[static_cast<size_t>(row * columns + column)]);
}
float at(const std::vector<float>& of, int columns, int row, int column) {
    return of[static_cast<size_t>(row * columns + column)];
}

template <int n, From from>
void check_product(bool add) {
    CAPTURE(n);
    CAPTURE(add);
    std::vector<bf16> a = matrix(64, 32, 1), b = matrix(32, n, 2);
    std::vector<float> start;
    for (int i = 0; i < 64 * n; ++i) start.push_back(entry(i, 3));
    simt::DeviceArray<bf16> on_a(a), on_b(b);
    simt::DeviceArray<float> on_start(start), out(start.size());
    simt::options() = simt::Options();
    CHECK(simt::run_schedules(
              6, [&] { out.zero(); },
              [&] {
                  launch(multiply<n, from>, {1, 128, sizeof(Operands), nullptr}, out.data(), on_a.data(),
                         on_b.data(), add ? on_start.data() : nullptr);
              },
              {out.output()}) == 6);
    std::vector<float> got = out.get();
    int differ = 0;
    for (int i = 0; i < 64; ++i)
        for (int j = 0; j < n; ++j) {
            float sum = add ? at(start, n, i, j) : 0.0f;
            for (int k = 0; k < 32; ++k) sum += at(a, 32, i, k) * at(b, n, k, j);
            differ += sum != at(got, n, i, j);
        }
    CHECK(differ == 0);
}

KERNEL(64)
void ask_for_ever(float* out, const float* in) {
    Box& s = shared<Box>();
    if (threadIdx.x == 0) {
        barrier_init(s.full, 2);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) barrier_arrive(s.full);
    while (!barrier_try_wait(s.full, 0)) {
    }
    out[threadIdx.x] = in[threadIdx.x];
}

// --- tensor maps

struct MapArguments {
    CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    cuuint32_t rank = 3;
    void* base = nullptr;
    cuuint64_t sizes[3] = {80, 11, 3}, strides[2] = {176, 1936};
    cuuint32_t box[3] = {64, 8, 2}, steps[3] = {1, 1, 1};
    CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
    CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;

    CUresult encode(CUtensorMap& map) const {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result{};
        REQUIRE(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                                 &result) == cudaSuccess);
        REQUIRE(result == cudaDriverEntryPointSuccess);
        return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found)(
            &map, type, rank, base, sizes, strides, box, steps, interleave, swizzle,
            CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    }
};

}  // namespace

TEST_CASE("products of all shapes and layouts, set and added to, equal plain sums bit for bit") {
    for (bool add : {false, true}) {
        check_product<64, From::shared_memory>(add);
        check_product<96, From::shared_memory>(add);
        check_product<128, From::shared_memory>(add);
        check_product<256, From::shared_memory>(add);
        check_product<256, From::shared_strided>(add);
        check_product<64, From::registers>(add);
        check_product<96, From::registers>(add);
        check_product<128, From::registers>(add);
        check_product<64, From::registers_strided>(add);
        check_product<96, From::registers_strided>(add);
        check_product<128, From::registers_strided>(add);
    }
}

TEST_CASE("stmatrix_x4 writes what ldmatrix_x4 reads") {
    std::vector<uint32_t> words;
    for (uint32_t i = 0; i < 128; ++i) words.push_back(i * 0x01030007u + 5);
    simt::DeviceArray<uint32_t> in(words), out(words.size());
    simt::options() = simt::Options();
    launch(there_and_back, {1, 32, 512, nullptr}, out.data(), in.data());
    CHECK(out.get() == words);
}

TEST_CASE("boxes at the edges of a tensor: swizzled, zeros outside, counted whole") {
    const int columns = 80, rows = 11, sequences = 3, stride = 88;
    std::vector<bf16> values = matrix(sequences * rows, stride, 4);
    simt::DeviceArray<bf16> tensor(values), out(16 * 64);
    MapArguments arguments;
    arguments.base = tensor.data();
    CUtensorMap map;
    REQUIRE(arguments.encode(map) == CUDA_SUCCESS);
    simt::options() = simt::Options();
    for (auto [column, row, sequence] : {std::tuple(0, 0, 0), {64, 8, 2}, {16, -3, 1}, {-8, 5, -1}}) {
        CAPTURE(column);
        CHECK(simt::run_schedules(
                  6, [&] { out.zero(); },
                  [&, column = column, row = row, sequence = sequence] {
                      launch(fetch, {1, 64, sizeof(Box), nullptr}, out.data(), map, column, row, sequence);
                  },
                  {out.output()}) == 6);
        std::vector<bf16> got = out.get();
        int differ = 0;
        for (int i = 0; i < 16 * 64; ++i) {
            int line = i / 64, c = column + i % 64, r = row + line % 8, s = sequence + line / 8;
            bool inside = c >= 0 && c < columns && r >= 0 && r < rows && s >= 0 && s < sequences;
            float expected = inside ? at(values, stride, s * rows + r, c) : 0.0f;
            differ += static_cast<float>(
                          got[static_cast<size_t>(line * 64 + ((i % 64 / 8) ^ (line % 8)) * 8 + i % 8)]) !=
                      expected;
        }
        CHECK(differ == 0);
    }
}

TEST_CASE("boxes that an H200 answers with an illegal instruction are found") {
    std::vector<bf16> values = matrix(3 * 40, 80, 4);
    simt::DeviceArray<bf16> tensor(values), box(values);
    MapArguments arguments;
    arguments.base = tensor.data();
    arguments.sizes[1] = 40;
    arguments.strides[0] = 160;
    arguments.strides[1] = 160 * 40;
    arguments.box[1] = 16;
    arguments.box[2] = 1;
    CUtensorMap map;
    REQUIRE(arguments.encode(map) == CUDA_SUCCESS);
    simt::options() = simt::Options();
    for (auto [column, row, sequence] :
         {std::tuple(0, 0, 0), {64, 32, 2}, {0, -3, 1}, {-8, 39, 0}, {4, 0, 0}}) {
        CAPTURE(column);
        CAPTURE(row);
        std::string text;
        try {
            launch(put, {1, 64, sizeof(Box), nullptr}, map, box.data(), column, row, sequence);
        } catch (const simt::Failure& failure) {
            text = failure.what();
        }
        simt::clear_findings();
        CHECK(text.empty() == (column % 8 == 0 && column >= 0 && row >= 0));
    }
}

TEST_CASE("who asks a barrier for ever is found, with a table of barriers") {
    simt::DeviceArray<float> out(64), in(64);
    simt::options() = simt::Options();
    std::string text;
    try {
        launch(ask_for_ever, {1, 64, sizeof(Box), nullptr}, out.data(), in.data());
    } catch (const simt::Failure& failure) {
        text = failure.what();
    }
    simt::clear_findings();
    CAPTURE(text);
    CHECK(text.find("deadlock: ") == 0);
    CHECK(text.find("phase 0, 1 of 2 arrivals and 0 bytes missing; threads 0-63 wait for parity 0") !=
          std::string::npos);
}

TEST_CASE("the driver's rules for tensor maps") {
    simt::DeviceArray<bf16> tensor(4096);
    MapArguments right;
    right.base = tensor.data();
    const std::vector<std::pair<const char*, std::function<void(MapArguments&)>>> wrong = {
        {"rank", [](MapArguments& m) { m.rank = 2; }},
        {"base", [](MapArguments& m) { m.base = static_cast<char*>(m.base) + 8; }},
        {"base", [](MapArguments& m) { m.base = &m; }},
        {"stride", [](MapArguments& m) { m.strides[0] = 168; }},
        {"stride", [](MapArguments& m) { m.strides[1] = uint64_t{1} << 40; }},
        {"size", [](MapArguments& m) { m.sizes[1] = 0; }},
        {"box", [](MapArguments& m) { m.box[1] = 257; }},
        {"box", [](MapArguments& m) { m.box[0] = 0; }},
        {"rows of 256 bytes", [](MapArguments& m) { m.box[0] = 128; }},
        {"rows are no multiple of 16", [](MapArguments& m) { m.box[0] = 60; }},
        {"element stride", [](MapArguments& m) { m.steps[1] = 2; }},
        {"interleaved", [](MapArguments& m) { m.interleave = CU_TENSOR_MAP_INTERLEAVE_32B; }},
        {"swizzle", [](MapArguments& m) { m.swizzle = CU_TENSOR_MAP_SWIZZLE_64B; }},
        {"data type", [](MapArguments& m) { m.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT64; }},
    };
    CUtensorMap map;
    CHECK(right.encode(map) == CUDA_SUCCESS);
    for (const auto& [what, change] : wrong) {
        CAPTURE(what);
        simt::clear_findings();
        MapArguments changed = right;
        change(changed);
        CHECK(changed.encode(map) == CUDA_ERROR_INVALID_VALUE);
        REQUIRE(simt::findings().size() == 1);
        CHECK(simt::findings().front().kind == simt::Kind::tensor_map);
        CHECK(simt::findings().front().message.find(what) != std::string::npos);
    }
    simt::clear_findings();
    void* found = &map;
    cudaDriverEntryPointQueryResult result{};
    CHECK(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &found, 12000, cudaEnableDefault, &result) ==
          cudaSuccess);
    CHECK(result == cudaDriverEntryPointSymbolNotFound);
}
