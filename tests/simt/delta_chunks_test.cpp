// The gated delta rule in chunks (kernels/cuda/delta_chunks.cuh): bank conflicts, and which calls go there. That its
// results are right is in tests/cuda/delta_bf16_test.cpp.
#include "cuda/delta_run.h"
#include "kernels/cuda/delta_chunks.h"
#include "kernels/cuda_device.h"
#include "simt/simt.h"

using namespace longreach;
using namespace longreach::test;
using namespace longreach::test::delta;

TEST_CASE("no access of shared memory by the delta rule in chunks waits for a bank") {
    const simt::Options before = simt::options();
    simt::options().count_bank_conflicts = true;
    const auto ops = make_cuda_ops({.precision = Precision::bf16});
    for (auto [d, by_channel, segments] : std::vector<std::tuple<int64_t, bool, int64_t>>{{64, false, 1},
                                                                                          {128, false, 1},
                                                                                          {64, true, 1},
                                                                                          {128, true, 1},
                                                                                          {64, false, 3},
                                                                                          {128, true, 3}}) {
        CAPTURE(d);
        CAPTURE(by_channel);
        CAPTURE(segments);
        Problem p = rounded({1, 130, 1, d, 64, by_channel, true});
        p.spec.segments = segments;
        DeviceRun run(*ops, p, 0);
        simt::clear_bank_conflicts();
        run.execute();
        REQUIRE(!simt::bank_conflicts().empty());
        for (const simt::BankConflicts& line : simt::bank_conflicts()) {
            CAPTURE(line.place);
            CHECK(line.mean_degree <= 1.0);
        }
    }
    simt::options() = before;
}

TEST_CASE("few long sequences of the delta rule go in segments, by their shape alone") {
    const auto segments = [](int64_t batch, int64_t length, int64_t heads, int64_t e, int64_t at_most = 0) {
        DeltaSpec s{.batch = batch, .length = length, .heads = heads, .key_dim = 128, .value_dim = e};
        s.segments = at_most;
        return cuda::delta_segments(s);
    };
    CHECK(segments(1, 65536, 12, 128) == 11);  // 24 blocks a segment, 264 in all
    CHECK(segments(1, 65536, 12, 256) == 5);
    CHECK(segments(2, 32768, 12, 128) == 5);
    CHECK(segments(4, 16384, 12, 128) == 1);  // two segments would not pay
    CHECK(segments(16, 4096, 6, 128) == 1);
    CHECK(segments(1, 4096, 12, 128) == 4);  // of 16 chunks
    CHECK(segments(1, 4032, 12, 128) == 1);
    CHECK(segments(1, 0, 12, 128) == 1);
    CHECK(segments(1, 65536, 1, 64) == 64);
    CHECK(segments(1, 1040, 12, 128, 16) == 9);  // 17 chunks, two in each
    CHECK(segments(1, 130, 12, 128, 16) == 3);
    CHECK(segments(1, 65536, 12, 128, 1) == 1);
    const DeltaSpec one{.batch = 1, .length = 65536, .heads = 12, .key_dim = 128, .value_dim = 128};
    DeltaSpec whole = one;
    whole.segments = 1;
    for (bool backward : {false, true})  // a state and a map of 64 KiB for each segment and head
        CHECK(cuda::delta_chunks_workspace(one, backward) - cuda::delta_chunks_workspace(whole, backward) ==
              2 * 11 * 12 * 65536);
}

TEST_CASE("the delta rule in chunks takes bf16, aligned") {
    const auto taken = [](const Case& c, DType type, int64_t gap = 0) {
        const Problem p(c);
        const auto rows = [&](int64_t width, DType of, int64_t between) {
            static float aligned_memory[64];
            Tensor t(reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(aligned_memory) + 15) / 16 * 16),
                     of, {p.rows, width});
            t.row_stride = width + between;
            return t;
        };
        const Tensor q = rows(c.heads * c.d, type, gap), k = q, v = rows(c.heads * c.e, type, gap);
        const Tensor decay = rows(p.w, DType::f32, 0), beta = rows(c.heads, DType::f32, 0);
        return cuda::delta_in_chunks({.q = q, .k = k, .v = v, .decay = decay, .beta = beta}, p.spec);
    };
    CHECK(taken({1, 16, 2, 64, 64}, DType::bf16));
    CHECK(taken({1, 20, 2, 128, 8}, DType::bf16, 8));
    CHECK(!taken({1, 16, 2, 64, 64}, DType::f32));
    CHECK(!taken({1, 16, 2, 64, 64}, DType::bf16, 3));
    CHECK(!taken({1, 15, 2, 64, 64}, DType::bf16));
    CHECK(taken({1, 16, 2, 64, 64, true}, DType::bf16));
    CHECK(!taken({1, 16, 2, 136, 64}, DType::bf16));
    CHECK(!taken({1, 16, 2, 24, 64}, DType::bf16));
    CHECK(!taken({1, 16, 2, 64, 60}, DType::bf16));
}
