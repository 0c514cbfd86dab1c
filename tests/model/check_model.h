// Compares one small model on every instruction set with the scalar reference.
#pragma once

#include <doctest/doctest.h>

#include <cstring>

#include "model/gradient_check.h"
#include "model/registry.h"
#include "model/small_models.h"
#include "reference/parameters.h"

namespace longreach::test {

inline std::unique_ptr<ModelFixture> make_fixture(const SmallModel& small, const CpuOptions& cpu,
                                                  bool recompute = false) {
    const FixtureSize size{.sequences = small.sequences,
                           .length = small.length,
                           .document_mask = small.documents,
                           .recompute = recompute};
    auto fixture = std::make_unique<ModelFixture>(small.config, size, cpu);
    fixture->scatter_constants(0.3);
    return fixture;
}

inline Example make_example(const SmallModel& small) {
    return random_example(small.config.vocab_size, small.sequences, small.length, small.documents);
}

// Compares every instruction set with the reference. Returns the worst error divided by its bound.
inline double check_model(const SmallModel& small, const std::vector<std::string>& isas,
                          int64_t coordinates_per_tensor, bool every_gradient) {
    CAPTURE(small.name);
    const Example example = make_example(small);
    const auto first = make_fixture(small, {.threads = 1, .isa = isas.front()});
    const Expected expected(small.config, first->named_weights(), example, coordinates_per_tensor);
    if (every_gradient)
        for (const auto& part : expected.parts()) {
            CAPTURE(part.first);
            CHECK(part.second > 0);
        }
    double worst = 0;
    for (const std::string& isa : isas) {
        CAPTURE(isa);
        const auto fixture = make_fixture(small, {.threads = 1, .isa = isa});
        ModelFixture::Step step = fixture->train(example);
        worst = std::max(worst, expected.compare(*fixture, step));
    }
    return worst;
}

// Compares the reference in f32 with itself in f64. Returns the largest gradient error divided by its bound.
inline double check_f32_reference(const model::ModelConfig& config, const reference::Params<double>& weights,
                                  const Example& example, int64_t coordinates_per_tensor) {
    const Expected expected(config, weights, example, coordinates_per_tensor);
    const auto single = reference::token_derivatives<float>(config, weights, example, expected.coordinates());
    double worst = 0;
    for (size_t i = 0; i < single.size(); ++i) {
        double gradient = 0;
        for (double slope : single[i]) gradient += slope;
        const std::string& name = expected.coordinates()[i].name;
        const double error = std::abs(gradient - expected.gradient(i));
        const double ratio = error == 0 ? 0 : error / (expected.epsilon() * expected.size(name));
        CAPTURE(name);
        CAPTURE(gradient);
        CAPTURE(expected.gradient(i));
        CAPTURE(expected.size(name));
        CHECK(ratio <= 1);
        worst = std::max(worst, ratio);
    }
    return worst;
}

// Holds the reference itself, evaluated in f32, to the bound of every model.
inline void check_f32_reference(const std::vector<SmallModel>& models) {
    double worst = 0;
    for (const SmallModel& small : models) {
        CAPTURE(small.name);
        const auto fixture = make_fixture(small, {.threads = 1});
        worst = std::max(worst,
                         check_f32_reference(small.config, fixture->named_weights(), make_example(small), 4));
    }
    MESSAGE("largest error, as a fraction of its bound: ", worst);
}

// Every model has the reference's parameters, in their shapes, and no others.
inline void check_tensors(const std::vector<SmallModel>& models) {
    for (const SmallModel& small : models) {
        CAPTURE(small.name);
        ModelFixture fixture(small.config, {.sequences = 1, .length = 8});
        const std::vector<reference::Parameter> expected = reference::parameters(small.config);
        for (const reference::Parameter& p : expected) {
            CAPTURE(p.name);
            const model::Param* found = fixture.params().find(p.name);
            REQUIRE(found != nullptr);
            CHECK(found->shape == p.shape);
        }
        CHECK(expected.size() == fixture.params().params().size());
    }
}

// Whether the device of these tests computes every layer.
inline bool runs_here(const model::ModelConfig& m) {
    if (on_cpu()) return true;
    for (int64_t l = 0; l < m.layers; ++l)
        for (const model::LayerPart* part : model::parts_of(m.layer_attention(l)))
            if (!part->no_gpu.empty()) return false;
    return true;
}

// Training that computes blocks again has the bits of training that keeps them.
inline void check_recomputed(const SmallModel& small) {
    if (!runs_here(small.config)) return;
    CAPTURE(small.name);
    const Example example = make_example(small);
    const auto keeping = make_fixture(small, {.threads = 1}),
               again = make_fixture(small, {.threads = 2}, true);
    const auto check_bits = [](const std::vector<float>& a, const std::vector<float>& b) {
        REQUIRE(a.size() == b.size());
        CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
    };
    const ModelFixture::Step kept = keeping->train(example), computed = again->train(example);
    check_bits(kept.losses, computed.losses);
    check_bits(kept.gradients, computed.gradients);
    check_bits(keeping->accumulate(example, 0.5f).gradients, again->accumulate(example, 0.5f).gradients);
}

// Compares losses and gradients of every model with the reference, on every instruction set.
inline void check_models(const std::vector<SmallModel>& models) {
    const std::vector<std::string> isas = available_isas();
    double worst = 0;
    for (const SmallModel& small : models)
        if (runs_here(small.config)) worst = std::max(worst, check_model(small, isas, 12, true));
    MESSAGE("largest error, as a fraction of its bound: ", worst);
}

// Whether sequences of a training pass read what earlier ones left, as no evaluation does.
inline bool joins_sequences(const model::ModelConfig& config) {
    for (const int64_t l : config.distinct_layers())
        for (const model::LayerPart* part : model::parts_of(config.layer_attention(l)))
            if (part->sequences > 1) return true;
    return false;
}

// A step has the same bits at every number of threads, and an evaluation its losses.
inline void check_threads(const std::vector<SmallModel>& models) {
    for (const SmallModel& small : models) {
        CAPTURE(small.name);
        const Example example = make_example(small);
        const auto one = make_fixture(small, {.threads = 1});
        const ModelFixture::Step expected = one->train(example);
        std::vector<float> trained = expected.losses, evaluated = one->evaluate(example);
        if (joins_sequences(small.config)) {
            CHECK(evaluated != trained);
            for (std::vector<float>* losses : {&trained, &evaluated})
                losses->resize(static_cast<size_t>(small.length));  // the first sequence
        }
        CHECK(evaluated == trained);
        for (const int threads : {2, 3, 8}) {
            const auto fixture = make_fixture(small, {.threads = threads});
            const ModelFixture::Step step = fixture->train(example);
            CHECK(step.losses == expected.losses);
            CHECK(step.gradients == expected.gradients);
        }
    }
}

}  // namespace longreach::test
