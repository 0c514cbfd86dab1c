// Training that keeps only the inputs of blocks and computes the rest again.
#include <doctest/doctest.h>

#include <cstring>

#include "model/check_model.h"
#include "model/delta_models.h"
#include "model/gau_models.h"
#include "model/key_index_models.h"
#include "model/simplicial_models.h"
#include "model/small_variants.h"
#include "model/term_models.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::unique_ptr<ModelFixture> fixture_of(const SmallModel& small, bool recompute, int threads) {
    const FixtureSize size{.sequences = small.sequences,
                           .length = small.length,
                           .document_mask = small.documents,
                           .recompute = recompute};
    auto fixture = std::make_unique<ModelFixture>(small.config, size, CpuOptions{.threads = threads});
    fixture->scatter_constants(0.3);
    return fixture;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check_same_bits(const SmallModel& small) {
    if (!runs_here(small.config)) return;
    CAPTURE(small.name);
    const Example example = make_example(small);
    const auto keeping = fixture_of(small, false, 1), again = fixture_of(small, true, 2);
    const ModelFixture::Step kept = keeping->train(example), computed = again->train(example);
    CHECK(same_bits(kept.losses, computed.losses));
    CHECK(same_bits(kept.gradients, computed.gradients));
    CHECK(
        same_bits(keeping->accumulate(example, 0.5f).gradients, again->accumulate(example, 0.5f).gradients));
}

}  // namespace

TEST_CASE("blocks that are computed again give the same losses and gradients, bit by bit, in every variant") {
    for (const auto& models : {small_models(), small_variants(), delta_models(), gau_models(),
                               key_index_models(), simplicial_models(), term_models()})
        for (const SmallModel& small : models) check_same_bits(small);
    for (uint32_t i = 0; i < (brief() ? 40 : 120); ++i) check_same_bits(random_model(i));
}

TEST_CASE("blocks that are computed again take the memory of one, and an input for each") {
    SmallModel small = small_models().front();
    const auto bytes = [&](int64_t layers, bool recompute) {
        small.config.layers = layers;
        const auto ops = make_test_ops({.threads = 1});
        const model::Transformer plain(small.config, 64);
        model::Transformer model(small.config, 64);
        model::Arena arena(*ops);
        model.plan_training(arena, *ops, {.tokens = 256, .lengths = {64}, .recompute = recompute}, false);
        return arena.bytes();
    };
    const int64_t input = 256 * small.config.width * 4;
    const int64_t block = bytes(9, false) - bytes(8, false);
    CHECK(block >= 8 * input);
    CHECK(bytes(9, true) - bytes(8, true) == input);
    CHECK(bytes(1, true) == bytes(1, false) + input);
}
