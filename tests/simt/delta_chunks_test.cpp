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
    for (auto [d, by_channel] :
         std::vector<std::pair<int64_t, bool>>{{64, false}, {128, false}, {64, true}, {128, true}}) {
        CAPTURE(d);
        CAPTURE(by_channel);
        Problem p = rounded({1, 130, 1, d, 64, by_channel, true});
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
