// The keys that windows and chunks leave visible: masks, decoding and FLOPs count the same ones.
#include <doctest/doctest.h>

#include "kernels/cpu_device.h"
#include "model/arena.h"
#include "model/step_context.h"

using namespace longreach;

TEST_CASE("reach: masks begin at its first keys, and FLOPs count the keys from there on") {
    const std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    constexpr int64_t length = 48;
    model::Arena arena(*ops);
    const Tensor starts = arena.reserve("row_start", DType::i32, {length});
    arena.commit();
    for (const int64_t window : {0, 1, 5, 12, 47, 48, 100})
        for (const int64_t chunk : {0, 1, 8, 24, 48}) {  // whole chunks
            CAPTURE(window);
            CAPTURE(chunk);
            const model::Reach reach{window, chunk};
            ops->row_starts(starts, Tensor(), length, window, chunk);
            std::vector<int32_t> host(length);
            ops->download(host.data(), starts);
            int64_t keys = 0;
            for (int64_t p = 0; p < length; ++p) {
                CHECK(reach.first_key(p) == host[static_cast<size_t>(p)]);
                keys += p + 1 - reach.first_key(p);
            }
            CHECK(reach.mean_keys(length) ==
                  doctest::Approx(static_cast<double>(keys) / static_cast<double>(length)).epsilon(1e-12));
        }
}

TEST_CASE("reach: a stage narrows windows and adds none") {
    CHECK(model::Reach{12, 0}.narrowed(5) == model::Reach{5, 0});
    CHECK(model::Reach{12, 8}.narrowed(100) == model::Reach{12, 8});
    CHECK(model::Reach{0, 8}.narrowed(5) == model::Reach{0, 8});
    CHECK(model::Reach{12, 0}.narrowed(0) == model::Reach{12, 0});
}
