// A kernel with Hopper's instructions against plain arithmetic, and each way of breaking it against what the harness says.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "simt/hopper_pipeline.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::hopper_test;

namespace {

constexpr int queries = 128, keys = 300, tiles = 5, hopper_schedules = 24;

using Bf16s = std::vector<__nv_bfloat16>;

Bf16s numbers(int rows, int seed) {
    Bf16s made;
    for (int i = 0; i < rows * columns; ++i)
        made.push_back(
            __nv_bfloat16(static_cast<float>((i * 37 + seed * 11 + i / columns * 5) % 61 - 30) / 32.0f));
    return made;
}

CUtensorMap map_of(void* base, int rows) {
    using Encode = decltype(&cuTensorMapEncodeTiled);
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    REQUIRE(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                             &result) == cudaSuccess);
    REQUIRE(result == cudaDriverEntryPointSuccess);
    CUtensorMap map;
    cuuint64_t sizes[] = {columns, static_cast<cuuint64_t>(rows), 1},
               strides[] = {2 * columns, 2 * columns * sizes[1]};
    cuuint32_t box[] = {64, 64, 1}, steps[] = {1, 1, 1};
    REQUIRE(reinterpret_cast<Encode>(found)(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, base, sizes, strides,
                                            box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
    return map;
}

struct Problem {
    Bf16s q = numbers(queries, 1), k = numbers(keys, 2), v = numbers(keys, 3);
    std::vector<float> table;
    simt::DeviceArray<__nv_bfloat16> on_q{q}, on_k{k}, on_v{v}, out{queries * columns};
    Problem() {
        for (int i = 0; i < 4 * keys_of_tile; ++i) table.push_back(static_cast<float>(i % 9) / 16.0f - 0.25f);
    }

    // In the order of sums that the products have: equal bit for bit.
    Bf16s expected() const {
        Bf16s result;
        for (int i = 0; i < queries; ++i) {
            std::vector<float> o(columns);
            for (int j = 0; j < tiles * keys_of_tile; ++j) {
                if (j >= keys) continue;  // rows of zeros
                float score = 0;
                for (int c = 0; c < columns; ++c)
                    score += static_cast<float>(q[static_cast<size_t>(i * columns + c)]) *
                             static_cast<float>(k[static_cast<size_t>(j * columns + c)]);
                auto p =
                    static_cast<float>(__nv_bfloat16(score * table[static_cast<size_t>(j) % table.size()]));
                for (int c = 0; c < columns; ++c)
                    o[static_cast<size_t>(c)] +=
                        p * static_cast<float>(v[static_cast<size_t>(j * columns + c)]);
            }
            for (float one : o) result.push_back(__nv_bfloat16(one));
        }
        return result;
    }

    template <Fault fault>
    void launch() {
        simt::DeviceArray<float> on_table(table);
        CUtensorMap maps[] = {map_of(on_q.data(), queries), map_of(on_k.data(), keys),
                              map_of(on_v.data(), keys), map_of(out.data(), queries)};
        cuda::launch(pipeline<fault>, {1, 384, sizeof(Layout), nullptr}, maps[0], maps[1], maps[2], maps[3],
                     on_table.data(), tiles);
    }
};

struct Collecting {  // findings are read, not thrown
    Collecting() {
        simt::options() = simt::Options();
        simt::options().throw_on_finding = false;
        simt::clear_findings();
    }
    ~Collecting() {
        simt::options() = simt::Options();
        simt::clear_findings();
    }
};

struct Planted {
    Fault fault;
    const char* name;
    std::vector<simt::Kind> kinds;  // of which one has to be reported, whatever the schedule
    void (*launch)();
};

template <Fault fault>
void launch_fault() {
    Problem().launch<fault>();
}
#define PLANTED(fault, text, ...) \
    { fault, text, {__VA_ARGS__}, &launch_fault<fault> }

std::vector<Planted> planted() {
    using enum simt::Kind;
    return {
        PLANTED(no_empty_wait, "missing wait for an empty stage", product_in_flight, async_unfinished,
                phase_barrier_misused),
        PLANTED(parity_not_flipped, "parity not flipped at the wrap", phase_wrapped, deadlock),
        PLANTED(bytes_short, "bytes announced without one table", phase_bytes),
        PLANTED(early_release, "stage of V released before the wait", product_in_flight),
        PLANTED(no_proxy_fence, "no proxy fence after stmatrix", proxy_unfenced),
        PLANTED(fence_by_one, "proxy fence by one thread only", proxy_unfenced),
        PLANTED(fence_behind_barrier, "proxy fence after the barrier", proxy_unfenced),
        PLANTED(other_stride, "descriptor with the stride of another tile", product_descriptor),
        PLANTED(tile_on_512, "swizzled tile on 512 bytes", tensor_map),
        PLANTED(rescaled_in_flight, "sums rescaled before the wait", product_in_flight),
        PLANTED(sums_read_in_flight, "sums read before the wait", product_in_flight),
        PLANTED(fragments_overwritten, "registers of a written before the wait", product_in_flight),
        PLANTED(wrong_turn, "turn passed to the wrong warpgroup", deadlock, named_barrier_misused),
        PLANTED(producer_ends_early, "producer ends one tile early", deadlock),
        PLANTED(copy_nobody_awaits, "producer copies one tile too many", async_unwaited),
        PLANTED(init_unfenced, "no fence after barrier_init", phase_barrier_unfenced),
        PLANTED(no_barrier_behind_init, "no __syncthreads() after barrier_init", phase_barrier_unfenced,
                phase_barrier_misused),
        PLANTED(init_twice, "barrier_init twice", phase_barrier_misused),
        PLANTED(used_before_init, "a wait before barrier_init", phase_barrier_misused,
                phase_barrier_unfenced),
        PLANTED(arrival_too_many, "one arrival too many", phase_barrier_misused),
        PLANTED(no_products_fence, "no products_fence", product_unfenced),
        PLANTED(fence_before_writes, "products_fence before the writes of a", product_unfenced),
        PLANTED(no_room, "more registers than are free", register_pool),
        PLANTED(old_split, "32 + 2 * 240 registers of 3 * 168", register_pool),
        PLANTED(three_warps_ask, "three of four warps ask for registers", deadlock, register_pool),
        PLANTED(unequal_descriptors, "descriptors differ among warps", product_mismatch),
        PLANTED(named_count, "named barrier with two counts", named_barrier_misused),
        PLANTED(store_not_waited_for, "a store left under way", async_unwaited),
        PLANTED(box_overwritten, "box of a store written again too early", async_source_changed),
        PLANTED(operand_not_waited_for, "product of a tile that is on its way", async_unfinished,
                shared_race),
        PLANTED(product_not_waited_for, "a product left under way", async_unwaited),
        PLANTED(table_read_early, "a table read before the wait for it", async_unfinished, shared_race,
                uninitialised_shared),
        PLANTED(copies_overlap, "two copies to one place", async_unfinished),
        PLANTED(copy_onto_unfenced, "a copy onto what a thread wrote without a fence", proxy_unfenced),
        PLANTED(odd_registers, "registers in other steps than 8", register_pool),
        PLANTED(fragments_read_in_flight, "registers of a read before the wait", product_in_flight),
        PLANTED(one_barrier, "one named barrier for two warpgroups", named_barrier_misused),
        PLANTED(lanes_apart, "halves of a warp at two named barriers", named_barrier_misused),
    };
}

}  // namespace

TEST_CASE("products, copies and barriers of Hopper give what plain arithmetic gives, under all schedules") {
    Problem problem;
    simt::options() = simt::Options();
    simt::clear_findings();
    CHECK(simt::run_schedules(
              hopper_schedules, [&] { problem.out.zero(); }, [&] { problem.launch<none>(); },
              {problem.out.output()}) == hopper_schedules);
    Bf16s got = problem.out.get(), expected = problem.expected();
    size_t differ = 0;
    for (size_t i = 0; i < got.size(); ++i) differ += std::memcmp(&got[i], &expected[i], 2) != 0;
    CHECK(differ == 0);
}

TEST_CASE("every fault of a kernel with Hopper's instructions is reported, under every schedule") {
    auto all = planted();
    CHECK(all.size() == faults - 1);
    for (const Planted& one : all) {
        INFO(std::string(one.name));
        for (int k : {0, 3, 5, 6}) {
            Collecting collecting;
            simt::options() = simt::schedule(k);
            one.launch();
            bool reported = false;
            std::string seen, said;
            for (const auto& finding : simt::findings()) {
                bool meant = std::find(one.kinds.begin(), one.kinds.end(), finding.kind) != one.kinds.end();
                if (meant && !reported) said = finding.message;
                reported |= meant;
                seen += std::string(simt::name_of(finding.kind)) + ": " + finding.message + "\n";
            }
            CHECK_MESSAGE(reported, "schedule " << k << ", got\n" << seen);
            if (k == 0) std::printf("%-44s | %s\n", one.name, seen.substr(0, seen.find('\n')).c_str());
        }
    }
}

TEST_CASE("Hopper's instructions on another architecture are reported") {
    Collecting collecting;
    simt::options().architecture = 100;
    launch_fault<none>();
    REQUIRE(!simt::findings().empty());
    CHECK(simt::findings().front().kind == simt::Kind::wrong_architecture);
}
