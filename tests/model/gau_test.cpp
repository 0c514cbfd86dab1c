// Models with gated attention units: the reference's own bound, the tensors, equal bits, QK-clip. gradient_test.cpp
// compares losses and gradients.
#include <doctest/doctest.h>

#include "model/check_model.h"
#include "model/gau_models.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("gated attention units: the reference in f32 keeps the bound it sets for others") {
    check_f32_reference(gau_models());
}

TEST_CASE("gated attention units: tensors, and no MLP") {
    check_tensors(gau_models());
    for (const SmallModel& small : gau_models()) {
        const ModelFixture fixture(small.config, {.sequences = 1, .length = 8});
        CHECK(fixture.params().find("layers.0.mlp.up.weight") == nullptr);
    }
}

TEST_CASE("gated attention units: the same bits at every number of threads, in training and evaluation") {
    check_threads(gau_models());
}

TEST_CASE("gated attention units: after a QK-clip the largest score of the same batch is the limit") {
    model::ModelConfig m = tiny_model(1);
    m.attention.mixer = "gau";
    m.attention.qk.kind = model::QkKind::none;
    ModelFixture fixture(
        m, {.sequences = 2, .length = 12, .document_mask = true, .watch = Watch::signed_values});
    fixture.scatter_constants(0.3);
    const Example example = random_example(m.vocab_size, 2, 12, true);
    const auto largest = [&] {
        fixture.model().clear_maxima(fixture.ops());
        fixture.train(example);
        return fixture.model().largest_score(fixture.ops());
    };
    const float limit = largest() / 5;
    REQUIRE(limit > 0);
    fixture.model().clip_scores(fixture.ops(), fixture.weights(), limit);
    fixture.ops().download(fixture.host_weights.data(), fixture.weights().flat);
    // Queries and keys are sums of two products with numbers that one rounding moved.
    CHECK(largest() <= limit * (1 + 64 * 0x1p-24f));
    CHECK(largest() >= limit * (1 - 64 * 0x1p-24f));
}
