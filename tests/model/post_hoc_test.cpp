// What evaluation changes beyond the training length: against the reference, and what must stay as it was.
#include <doctest/doctest.h>

#include "mixers/latent.h"
#include "model/gradient_check.h"
#include "model/laws.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t trained = 8, length = 24;

// A rotary layer, a half-rotated one and one without positions.
model::ModelConfig mixed_positions() {
    model::ModelConfig m;
    m.layers = 3;
    m.width = 16;
    m.vocab_size = 13;
    m.train_context = trained;
    m.init.zero_projections = m.init.zero_head = false;
    m.attention.heads = 2;
    m.attention.head_dim = 12;
    set_angle(m.attention, {"rope", 50});
    m.layouts["half"] = m.attention;
    set_angle(m.layouts["half"], {"p_rope_linspace", 20, 0.67});
    m.layouts["none"] = m.attention;
    set_angle(m.layouts["none"], {"nope"});
    m.layouts["full"] = m.attention;
    m.pattern = {"full", "half", "none"};
    return m;
}

std::vector<float> losses(const model::PostHocConfig& change, int64_t tokens,
                          const model::ModelConfig& m = mixed_positions()) {
    const Example example = random_example(m.vocab_size, 2, tokens, true);
    ModelFixture fixture(m, {.sequences = 2, .length = length, .document_mask = true, .post_hoc = change});
    fixture.model().use_length(fixture.ops(), tokens);
    return fixture.evaluate(example);
}

struct Case {
    const char* name;
    model::PostHocConfig production;
    reference::PostHoc reference;
};

std::vector<Case> cases() {
    using Kind = reference::PostHoc::Kind;
    const auto same = [](const char* name, const std::string& kind, Kind other, double factor = 0) {
        Case c{name, {}, {}};
        c.production.kind = kind;
        c.production.factor = factor;
        c.reference.kind = other;
        c.reference.factor = factor;
        return c;
    };
    std::vector<Case> all{same("pi", "pi", Kind::pi),
                          same("pi, factor 5", "pi", Kind::pi, 5),
                          same("ntk", "ntk", Kind::ntk),
                          same("ntk_old", "ntk_old", Kind::ntk_old, 8),
                          same("ntk_su", "ntk_su", Kind::ntk_su, 8),
                          same("ntk_mixed", "ntk_mixed", Kind::ntk_mixed, 8),
                          same("ntk_dynamic", "ntk_dynamic", Kind::ntk_dynamic, 2),
                          same("yarn", "yarn", Kind::yarn),
                          same("llama3", "llama3", Kind::llama3),
                          same("rerope", "rerope", Kind::rerope),
                          same("leaky_rerope", "leaky_rerope", Kind::leaky_rerope)};
    for (Case& c : all) {
        c.production.window = c.production.far_pairs() ? 5 : 0;
        c.reference.window = static_cast<double>(c.production.window);
        if (c.production.kind == "leaky_rerope") c.production.leak = c.reference.leak = 3;
    }
    Case clip{"clip_logn", {}, {}};
    clip.production.scale = "clip_logn";
    clip.reference.clip_logn = true;
    all.push_back(clip);
    return all;
}

}  // namespace

TEST_CASE(
    "evaluation beyond the training length: pi, ntk, yarn, rerope and clip_logn agree with the reference") {
    const model::ModelConfig m = mixed_positions();
    const Example example = random_example(m.vocab_size, 2, length, true);
    const std::vector<float> plain = losses({}, length);
    for (const Case& c : cases()) {
        CAPTURE(c.name);
        ModelFixture fixture(m, {.sequences = 2, .length = length, .document_mask = true});
        const reference::Params<double> weights = fixture.named_weights();
        const std::vector<double> expected = reference::losses(m, weights, example, c.reference);
        const std::vector<float> actual = losses(c.production, length);
        // One way through the model, as gradient_check.h counts it; logits of these weights stay below 4.
        const double bound = gradient_epsilon(m, 2 * length) * (1 + 4);
        double moved = 0;
        for (size_t n = 0; n < expected.size(); ++n) {
            CHECK(std::abs(actual[n] - expected[n]) <= bound);
            moved = std::max(moved, static_cast<double>(std::abs(actual[n] - plain[n])));
        }
        CHECK(moved > 10 * bound);
    }
}

TEST_CASE(
    "clip_logn changes the factor of z alone, whatever follows: every law of distance by name, one as a formula") {
    model::PostHocConfig change;
    change.scale = "clip_logn";
    reference::PostHoc other;
    other.clip_logn = true;
    const auto agrees = [&](const model::ModelConfig& m, const model::ModelConfig& same) {
        const Example example = random_example(m.vocab_size, 2, length, true);
        ModelFixture fixture(m, {.sequences = 2, .length = length, .document_mask = true});
        const std::vector<double> expected = reference::losses(same, fixture.named_weights(), example, other);
        const std::vector<float> actual = losses(change, length, m), plain = losses({}, length, m);
        const double bound = gradient_epsilon(m, 2 * length) * (1 + 4);
        double moved = 0;
        for (size_t n = 0; n < expected.size(); ++n) {
            CHECK(std::abs(actual[n] - expected[n]) <= bound);
            moved = std::max(moved, static_cast<double>(std::abs(actual[n] - plain[n])));
        }
        CHECK(moved > 10 * bound);
    };
    const auto with = [](const std::string& law) {
        model::ModelConfig m = mixed_positions();
        for (auto& [name, layout] : m.layouts) add_law(layout, law);
        return m;
    };
    for (const std::string law : {"scale_invariant", "log_bias", "alibi", "kerple_log", "kerple_power"}) {
        CAPTURE(law);
        agrees(with(law), with(law));
    }
    agrees(with("z - 2^(-4*(h + 1))*t"), with("alibi"));
    model::ModelConfig capped = with("0.5*tanh(z/0.5)");
    for (auto& [name, layout] : capped.layouts) add_law(layout, "alibi");
    agrees(capped, capped);
}

TEST_CASE("top_k: the keys or blocks with the largest scores, at every length, as the reference has them") {
    model::ModelConfig m = mixed_positions();
    m.layouts["full"].kv_heads = 1;
    add_law(m.layouts["full"], "scale_invariant");
    m.layouts["full"].window = 9;
    m.layouts["half"].qk.kind = model::QkKind::none;
    m.layouts["half"].own<model::LatentConfig>() = {12, 4, 0};
    m.layouts["half"].sink = model::SinkKind::zero;
    add_law(m.layouts["none"], "forgetting");
    m.layouts["full"].index_heads = 2;  // "none" chooses by scores in any case
    m.layouts["half"].index_heads = 1;
    for (const int64_t tokens : {trained, length}) {
        const Example example = random_example(m.vocab_size, 2, tokens, true);
        ModelFixture fixture(m, {.sequences = 2, .length = length, .document_mask = true});
        const reference::Params<double> weights = fixture.named_weights();
        const std::vector<float> all = losses({}, tokens, m);
        using model::TopBy;
        for (const auto& [k, block, by] : {std::tuple<int64_t, int64_t, TopBy>{1, 0, TopBy::scores},
                                           {3, 0, TopBy::scores},
                                           {3, 3, TopBy::scores},
                                           {4, 2, TopBy::scores},
                                           {2, 2, TopBy::scores},
                                           {1, 0, TopBy::index},
                                           {4, 0, TopBy::index}}) {
            CAPTURE(k);
            CAPTURE(block);
            CAPTURE(static_cast<int>(by));
            model::PostHocConfig change;
            change.top_k = k;
            change.top_k_block = block;
            change.top_k_by = by;
            reference::PostHoc same;
            same.top_by_index = by == TopBy::index;
            same.top_k = k;
            same.top_k_block = block;
            const std::vector<double> expected = reference::losses(m, weights, example, same);
            const std::vector<float> actual = losses(change, tokens, m);
            const double bound = gradient_epsilon(m, 2 * length) * (1 + 4);
            double moved = 0;
            for (size_t n = 0; n < expected.size(); ++n) {
                CHECK(std::abs(actual[n] - expected[n]) <= bound);
                moved = std::max(moved, static_cast<double>(std::abs(actual[n] - all[n])));
            }
            CHECK(moved > 10 * bound);
        }
        model::PostHocConfig change;
        change.top_k = length;
        const std::vector<float> same = losses(change, tokens, m);
        for (size_t n = 0; n < same.size(); ++n)
            CHECK(std::abs(same[n] - all[n]) <= gradient_epsilon(m, 2 * length) * (1 + 4));
    }
}

TEST_CASE("top_k: a probe takes no notice, in any pass through the layers") {
    struct Nothing : model::ForwardObserver {
        void attention(const model::StepContext&, const model::AttentionView&) override {}
        void block(const model::StepContext&, int64_t, const Tensor&) override {}
    } probe;
    model::ModelConfig m = mixed_positions();
    m.loops = 2;
    const Example example = random_example(m.vocab_size, 2, length, true);
    model::PostHocConfig change;
    change.top_k = 2;
    ModelFixture few(m, {.sequences = 2, .length = length, .document_mask = true, .post_hoc = change});
    few.model().use_length(few.ops(), length);
    const std::vector<float> all = losses({}, length, m);
    CHECK(few.evaluate(example) != all);
    CHECK(few.evaluate(example, &probe) == all);
}

TEST_CASE("top_k: of equal scores the nearest keys count") {
    const std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    std::vector<float> q(24, 0), k(24, 1), v(24), o(24), lse(6);
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / 4);
    const auto rows = [](std::vector<float>& x) { return Tensor(x.data(), DType::f32, {6, 4}); };
    AttentionSpec spec{.batch = 1, .length = 6, .heads = 1, .kv_heads = 1, .head_dim = 4};
    spec.top_k = 2;
    ops->attention(rows(o), Tensor(lse.data(), DType::f32, {1, 6}), Tensor(), rows(q), rows(k), rows(v),
                   spec);
    for (size_t i = 0; i < 6; ++i) {
        CHECK(o[4 * i] == (i == 0 ? 0 : static_cast<float>(i) - 0.5f));
        CHECK(lse[i] == (i == 0 ? 0 : std::log(2.0f)));
    }
}

TEST_CASE("evaluation beyond the context of a scaled training agrees with the reference") {
    const Example example = random_example(mixed_positions().vocab_size, 2, length, true);
    const auto compare = [&](const model::ScalingConfig& scaling, const Case& c) {
        CAPTURE(scaling.kind);
        CAPTURE(c.name);
        model::ModelConfig m = mixed_positions();
        for (auto& [name, layout] : m.layouts) layout.angle_scaling = scaling;
        ModelFixture fixture(m, {.sequences = 2, .length = length, .document_mask = true});
        const std::vector<double> expected =
            reference::losses(m, fixture.named_weights(), example, c.reference);
        const std::vector<float> actual = losses(c.production, length, m), unscaled = losses({}, length);
        const double bound = gradient_epsilon(m, 2 * length) * (1 + 4);
        double moved = 0;
        for (size_t n = 0; n < expected.size(); ++n) {
            CHECK(std::abs(actual[n] - expected[n]) <= bound);
            moved = std::max(moved, static_cast<double>(std::abs(actual[n] - unscaled[n])));
        }
        CHECK(moved > 10 * bound);
    };
    const model::ScalingConfig pi{.kind = "pi", .original_context = 4}, ntk{.kind = "ntk", .factor = 3},
        yarn{.kind = "yarn", .original_context = 4, .fast = 0.9, .slow = 0.05, .truncate = false};
    compare(yarn, {"none", {}, {}});
    for (const Case& c : cases()) {
        if (c.production.kind == "llama3") {
            compare({.kind = "llama3", .original_context = 4, .fast = 0.9, .slow = 0.05}, c);
            continue;
        }
        compare(yarn, c);
        if (c.production.kind == "yarn") continue;  // refused after pi and ntk
        compare(pi, c);
        compare(ntk, c);
    }
}

TEST_CASE("evaluation up to the training length is untouched by what is meant for longer texts") {
    for (int64_t tokens : {int64_t{5}, trained})
        for (const Case& c : cases()) {
            CAPTURE(c.name);
            CHECK(losses(c.production, tokens) == losses({}, tokens));
        }
}

TEST_CASE("training goes on with its own tables after an evaluation that changed them") {
    const model::ModelConfig m = mixed_positions();
    const Example example = random_example(m.vocab_size, 2, length, true);
    for (const Case& c : cases()) {
        CAPTURE(c.name);
        ModelFixture fixture(
            m, {.sequences = 2, .length = length, .document_mask = true, .post_hoc = c.production});
        const auto before = fixture.train(example);
        fixture.model().use_length(fixture.ops(), length);
        CHECK_THROWS(fixture.train(example));
        fixture.evaluate(example);
        fixture.model().use_length(fixture.ops(), 0);
        const auto after = fixture.train(example);
        CHECK(before.losses == after.losses);
        CHECK(before.gradients == after.gradients);
    }
}

TEST_CASE("rerope: a window as long as the text is plain rotary; leaky_rerope: a leak of 1 is") {
    const std::vector<float> plain = losses({}, length);
    model::PostHocConfig change;
    change.kind = "rerope";
    change.window = length;
    CHECK(losses(change, length) == plain);
    change.kind = "leaky_rerope";
    change.window = 5;
    change.leak = 1;
    const double bound = gradient_epsilon(mixed_positions(), 2 * length) * (1 + 4);
    const std::vector<float> leaky = losses(change, length);
    for (size_t n = 0; n < plain.size(); ++n) CHECK(std::abs(leaky[n] - plain[n]) <= bound);
}

TEST_CASE("rerope and leaky_rerope leave the distances of learned and fixed distance forms alone") {
    model::ModelConfig m = mixed_positions();
    for (auto& [name, layout] : m.layouts) add_law(layout, "scale_invariant");
    const Example example = random_example(m.vocab_size, 2, length, true);
    model::PostHocConfig change;
    change.kind = "rerope";
    change.window = 5;
    reference::PostHoc other;
    other.kind = reference::PostHoc::Kind::rerope;
    other.window = 5;
    ModelFixture fixture(m, {.sequences = 2, .length = length, .document_mask = true});
    const std::vector<double> expected = reference::losses(m, fixture.named_weights(), example, other);
    const std::vector<float> actual = losses(change, length, m);
    const double bound = gradient_epsilon(m, 2 * length) * (1 + 4);
    for (size_t n = 0; n < expected.size(); ++n) CHECK(std::abs(actual[n] - expected[n]) <= bound);
}
