// Losses and gradients of the whole model against the scalar reference; gradient_check.h derives the bounds.
#include <doctest/doctest.h>

#include "model/check_model.h"
#include "model/gau_models.h"
#include "model/registry.h"
#include "model/term_models.h"
#include "model/small_variants.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("every variant: losses and gradients agree with the reference on every instruction set") {
    const std::vector<std::string> isas = available_isas();
    double worst = 0;
    for (const SmallModel& small : small_models())
        worst = std::max(worst, check_model(small, isas, 24, true));
    MESSAGE("largest error, as a fraction of its bound: ", worst);
}

TEST_CASE(
    "every value of every choice beyond the plain model: losses and gradients agree with the reference") {
    const std::vector<std::string> isas = available_isas();
    double worst = 0;
    size_t n = 0;
    for (const SmallModel& small : small_variants()) {
        if ((brief() && n++ % 2 != 0) || !runs_here(small.config)) continue;
        CAPTURE(small.name);
        CHECK_NOTHROW(worst = std::max(worst, check_model(small, isas, 12, true)));
    }
    MESSAGE("largest error, as a fraction of its bound: ", worst);
}

TEST_CASE("gated attention units: losses and gradients agree with the reference on every instruction set") {
    check_models(gau_models());
}

TEST_CASE("scores that read tokens: losses and gradients agree with the reference on every instruction set") {
    check_models(term_models());
    const std::vector<std::string> isas = available_isas();
    double worst = 0;
    for (uint64_t i = 0; i < (brief() ? 60 : 500); ++i)
        if (const SmallModel small = random_term_model(i); runs_here(small.config))
            worst = std::max(worst, check_model(small, {isas[i % isas.size()]}, 4, false));
    MESSAGE("largest error of random scores, as a fraction of its bound: ", worst);
}

TEST_CASE("random models: losses and gradients agree with the reference") {
    const std::vector<std::string> isas = available_isas();
    double worst = 0;
    for (uint32_t i = 0; i < (brief() ? 40 : 120); ++i)
        worst = std::max(worst, check_model(random_model(i), {isas[i % isas.size()]}, 4, false));
    MESSAGE("largest error, as a fraction of its bound: ", worst);
}

TEST_CASE("the reference in f32 keeps the bound it sets for others") {
    check_f32_reference(small_models());
    check_f32_reference(term_models());
}

TEST_CASE("blocks that are computed again give the same losses and gradients, bit by bit") {
    for (const SmallModel& small : small_models()) check_recomputed(small);
}

TEST_CASE("gradients are scaled and accumulate") {
    const SmallModel small = small_models().back();
    const auto fixture = make_fixture(small, {.threads = 1});
    const Example example = make_example(small);
    const ModelFixture::Step once = fixture->train(example);
    // A power of two scales without rounding anywhere.
    const ModelFixture::Step scaled = fixture->train(example, 0.25f);
    CHECK(scaled.losses == once.losses);
    for (size_t i = 0; i < once.gradients.size(); ++i)
        CHECK(scaled.gradients[i] == 0.25f * once.gradients[i]);
    const ModelFixture::Step twice = fixture->accumulate(example, 0.25f);
    const double epsilon = gradient_epsilon(small.config, small.length);
    for (const model::Param& p : fixture->params().params()) {
        double largest = 0, error = 0;
        for (int64_t i = p.offset; i < p.offset + p.count(); ++i) {
            const double one = scaled.gradients[static_cast<size_t>(i)];
            largest = std::max(largest, std::abs(one));
            error = std::max(error, std::abs(twice.gradients[static_cast<size_t>(i)] - 2 * one));
        }
        CAPTURE(p.name);
        CHECK(error <= epsilon * largest);
    }
}

TEST_CASE("weights of losses: the gradient agrees with the reference, and the losses stay as they were") {
    for (const char* name : {"plain", "softcap tanh, z-loss"}) {
        SmallModel small{name, tiny_model()};
        if (small.name != "plain") {
            small.config.head.softcap.kind = Softcap::tanh;
            small.config.head.z_loss = 1e-2;
        }
        CAPTURE(small.name);
        Example example = make_example(small);
        const auto fixture = make_fixture(small, {.threads = 1});
        const ModelFixture::Step plain = fixture->train(example);
        const Rng rng(11, Purpose::test, 0);
        for (size_t i = 0; i < example.tokens.size(); ++i)
            example.loss_weights.push_back(static_cast<float>(std::max(0.0, 3 * rng.uniform(i) - 1)));
        const Expected expected(small.config, fixture->named_weights(), example, 24);
        ModelFixture::Step step = fixture->train(example);
        CHECK(step.losses == plain.losses);
        CHECK(step.gradients != plain.gradients);
        expected.compare(*fixture, step);
    }
}

TEST_CASE("a weight of 0 is a target that is not scored, in every chunk of the head") {
    const SmallModel small{"plain", tiny_model(), false, 9, 100};
    const auto fixture = make_fixture(small, {.threads = 1});
    Example example = make_example(small), fewer = example;
    for (size_t i = 0; i < example.tokens.size(); ++i) {
        example.loss_weights.push_back(i * i % 7 == 2 ? 0.0f : 1.0f);
        if (example.loss_weights.back() == 0) fewer.targets[i] = -1;
    }
    CHECK(fixture->train(example).gradients == fixture->train(fewer).gradients);
}

TEST_CASE("without any target every loss and gradient is zero") {
    const SmallModel small{"plain", tiny_model()};
    const auto fixture = make_fixture(small, {.threads = 1});
    Example example = make_example(small);
    for (int32_t& t : example.targets) t = -1;
    const ModelFixture::Step step = fixture->train(example);
    for (float loss : step.losses) CHECK(loss == 0);
    for (float g : step.gradients) CHECK(g == 0);
}

// bf16 keeps 8 bits: each input of a matrix product is rounded by u = 2^-9 of itself, with a random sign,
// while sums stay in f32. A product thus errs by sqrt(2) u of the size of its result. D = 2 (6 L + 1)
// products (four linear and two of attention per layer, and the head) lie on the way there and back,
// independent of one another, so their errors add as the root of a sum of squares; four standard deviations:
// epsilon = 4 sqrt(2 D) u.
TEST_CASE("bf16 products: gradients within the rounding of their inputs") {
    double worst = 0;
    for (const SmallModel& small : small_models()) {
        CAPTURE(small.name);
        std::unique_ptr<ModelFixture> half;
        try {
            half = make_fixture(small, {.threads = 1, .precision = Precision::bf16});
        } catch (const Error& error) {
            if (error.code() != ExitCode::device) throw;
            MESSAGE("this CPU has no bf16 products");
            return;
        }
        const auto full = make_fixture(small, {.threads = 1});
        const Example example = make_example(small);
        const Expected expected(small.config, full->named_weights(), example, 16);
        ModelFixture::Step a = half->train(example), b = full->train(example);
        CHECK(a.losses != b.losses);
        const double epsilon =
            4 * std::sqrt(2.0 * 2 * (6 * static_cast<double>(small.config.layers) + 1)) * 0x1p-9;
        for (const model::Param& p : full->params().params()) {
            const auto x = half->values(a.gradients, p.name), y = full->values(b.gradients, p.name);
            double error = 0, norm = 0;
            for (size_t i = 0; i < x.size(); ++i) {
                error += (double(x[i]) - y[i]) * (double(x[i]) - y[i]);
                norm += double(y[i]) * y[i];
            }
            // A single number may cancel; its size is then that of what is summed (gradient_check.h).
            const double size = std::max(std::sqrt(norm), expected.size(p.name));
            CAPTURE(p.name);
            CHECK(std::sqrt(error) <= epsilon * size);
            worst = std::max(worst, std::sqrt(error) / (epsilon * size));
        }
    }
    MESSAGE("largest error, as a fraction of its bound: ", worst);
}
