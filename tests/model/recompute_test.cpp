// Training that keeps only the inputs of blocks and computes the rest again.
#include <doctest/doctest.h>

#include <algorithm>

#include "model/check_model.h"
#include "model/delta_models.h"
#include "model/gau_models.h"
#include "model/key_index_models.h"
#include "model/simplicial_models.h"
#include "model/small_variants.h"
#include "model/term_models.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("blocks that are computed again: the same bits with every mixer and in random models") {
    for (const auto& models : {small_variants(), delta_models(), gau_models(), key_index_models(),
                               simplicial_models(), term_models()})
        for (const SmallModel& small : models) check_recomputed(small);
    for (uint32_t i = 0; i < (brief() ? 40 : 120); ++i) check_recomputed(random_model(i));
}

TEST_CASE("blocks that are computed again: the same bits where indexes of keys train alone") {
    for (const SmallModel& small : key_index_models()) {
        CAPTURE(small.name);
        const auto trained = [&](bool recompute) {
            const auto fixture = make_fixture(small, {.threads = 1}, recompute);
            fixture->model().train_indexes_alone();
            return fixture->train(make_example(small)).gradients;
        };
        const std::vector<float> kept = trained(false), again = trained(true);
        CHECK(kept == again);
        CHECK(std::any_of(kept.begin(), kept.end(), [](float g) { return g != 0; }));
    }
}

TEST_CASE("blocks that are computed again take the memory of one, and an input for each") {
    SmallModel small = small_models().front();
    const auto bytes = [&](int64_t layers, bool recompute) {
        small.config.layers = layers;
        const auto ops = make_test_ops({.threads = 1});
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
