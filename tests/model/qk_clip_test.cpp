// QK-clip: scores watched during training, and the matrices of heads that went too far.
#include <doctest/doctest.h>

#include "mixers/latent.h"
#include "model/gradient_check.h"

using namespace longreach;
using namespace longreach::test;

namespace {

model::ModelConfig unnormed(int64_t heads, int64_t kv_heads) {
    model::ModelConfig m;
    m.layers = 1;
    m.width = 16;
    m.vocab_size = 13;
    m.init.zero_projections = m.init.zero_head = false;
    m.attention.heads = heads;
    m.attention.kv_heads = kv_heads;
    m.attention.head_dim = 8;
    m.attention.qk.kind = model::QkKind::none;
    return m;
}

// The largest score of one training pass without an update: learning rate 0.
struct Watched {
    ModelFixture fixture;
    explicit Watched(const model::ModelConfig& m, bool absolute)
        : fixture(m, {.sequences = 2,
                      .length = 12,
                      .document_mask = true,
                      .watch = absolute ? Watch::absolute : Watch::signed_values}) {}

    float largest(const Example& example) {
        fixture.model().clear_maxima(fixture.ops());
        fixture.train(example);
        return fixture.model().largest_score(fixture.ops());
    }
    void clip(float limit) {
        fixture.model().clip_scores(fixture.ops(), fixture.weights(), limit);
        fixture.ops().download(fixture.host_weights.data(), fixture.weights().flat);
    }
};

}  // namespace

TEST_CASE("qk_clip: after a clip the largest score of the same batch is at most the limit") {
    for (const auto& [heads, kv_heads] : {std::pair{2, 2}, {4, 2}, {3, 1}})
        for (bool absolute : {false, true}) {
            CAPTURE(heads);
            CAPTURE(absolute);
            const model::ModelConfig m = unnormed(heads, kv_heads);
            Watched run(m, absolute);
            for (float& w : run.fixture.values(run.fixture.host_weights, "layers.0.attention.q.weight"))
                w *= 8;
            const Example example = random_example(m.vocab_size, 2, 12, true);
            const float before = run.largest(example);
            const float limit = before / 5;
            REQUIRE(limit > 0);
            run.clip(limit);
            // Scores are products of two sums of 16 terms each; every rounding is half a unit of 2^-24.
            CHECK(run.largest(example) <= limit * (1 + 64 * 0x1p-24f));
            CHECK(run.largest(example) >= limit * (1 - 64 * 0x1p-24f));  // no more than needed
        }
}

TEST_CASE("qk_clip: with latents too, and what all heads share stays") {
    for (int64_t queries : {0, 12}) {
        model::ModelConfig m = unnormed(3, 3);
        m.attention.own<model::LatentConfig>() = {12, 4, queries};
        Watched run(m, false);
        const std::string query = queries > 0 ? "q_up" : "q", layer = "layers.0.attention.";
        const auto weights = [&](const std::string& name) {
            const auto values = run.fixture.values(run.fixture.host_weights, layer + name + ".weight");
            return std::vector<float>(values.begin(), values.end());
        };
        for (float& w : run.fixture.values(run.fixture.host_weights, layer + query + ".weight")) w *= 8;
        const Example example = random_example(m.vocab_size, 2, 12, true);
        const float before = run.largest(example), limit = before / 5;
        const std::vector<float> q = weights(query), k = weights("k_up"), s = weights("k_shared"),
                                 c = weights("kv_down"), v = weights("v_up");
        run.clip(limit);
        CHECK(run.largest(example) <= limit * (1 + 64 * 0x1p-24f));
        CHECK(run.largest(example) >= limit * (1 - 64 * 0x1p-24f));
        CHECK(weights("k_shared") == s);
        CHECK(weights("kv_down") == c);
        CHECK(weights("v_up") == v);
        // Of the head with the largest score, g = 1/5: content by its root, shared channels by itself.
        const size_t in = q.size() / 24;
        bool found = false;
        for (size_t h = 0; h < 3; ++h) {
            const float own = weights(query)[h * 8 * in] / q[h * 8 * in],
                        shared = weights(query)[(h * 8 + 7) * in] / q[(h * 8 + 7) * in],
                        key = weights("k_up")[h * 4 * 12] / k[h * 4 * 12];
            CHECK(own == doctest::Approx(key));
            CHECK(own * own == doctest::Approx(shared));
            found = found || shared == doctest::Approx(0.2);
        }
        CHECK(found);
    }
}

TEST_CASE("qk_clip: nothing moves when no score is above the limit, or all are negative") {
    const model::ModelConfig m = unnormed(2, 2);
    const Example example = random_example(m.vocab_size, 2, 12, true);
    Watched run(m, false);
    const float largest = run.largest(example);
    const std::vector<float> weights = run.fixture.host_weights;
    run.clip(largest);
    CHECK(run.fixture.host_weights == weights);
    // Equal queries and keys up to the sign: every score is at most 0.
    auto q = run.fixture.values(run.fixture.host_weights, "layers.0.attention.q.weight");
    auto k = run.fixture.values(run.fixture.host_weights, "layers.0.attention.k.weight");
    for (size_t i = 0; i < q.size(); ++i) q[i] = k[i] = 0;
    const std::vector<float> zero = run.fixture.host_weights;
    CHECK(run.largest(example) == 0);
    run.clip(1e-6f);
    CHECK(run.fixture.host_weights == zero);
}

TEST_CASE(
    "qk_clip: maxima grow over micro-batches until they are cleared, and other layers keep their norms") {
    model::ModelConfig m = unnormed(2, 2);
    m.layers = 2;
    m.layouts["normed"] = m.attention;
    m.layouts["normed"].qk.kind = model::QkKind::qk_rms;
    m.last = "normed";
    Watched run(m, false);
    const Example one = random_example(m.vocab_size, 2, 12, true),
                  two = random_example(m.vocab_size, 2, 12, true, 1);
    const float first = run.largest(one), second = run.largest(two);
    run.fixture.train(one);
    CHECK(run.fixture.model().largest_score(run.fixture.ops()) == std::max(first, second));
    const auto before = run.fixture.host_weights;
    run.clip(std::max(first, second) / 2);
    for (const char* name : {"q", "k"}) {
        const std::string changed = std::string("layers.0.attention.") + name + ".weight";
        const std::string kept = std::string("layers.1.attention.") + name + ".weight";
        auto old = before;
        const auto differ = [&](const std::string& tensor) {
            const auto a = run.fixture.values(old, tensor),
                       b = run.fixture.values(run.fixture.host_weights, tensor);
            return !std::equal(a.begin(), a.end(), b.begin());
        };
        CHECK(differ(changed));
        CHECK_FALSE(differ(kept));
    }
}
