// Losses and gradients of random models over the whole config against the scalar reference.
#include <doctest/doctest.h>

#include <fmt/ranges.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/check_model.h"
#include "model/random_models.h"
#include "model/small_variants.h"
#include "reference/parameters.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr uint32_t draws = 330;

SmallModel drawn(uint32_t stream) {
    return RandomVariant(stream).draw();
}

// Collects what a check has to say.
class Complaints final : public config::Problems {
  public:
    bool is_set(std::string_view) const override { return false; }
    void add(std::string_view path, std::string message, std::string_view) override {
        text += fmt::format("{}: {}\n", path, message);
    }
    std::string text;
};

reference::Params<double> random_weights(const model::ModelConfig& config, uint32_t stream) {
    const Rng rng(19, Purpose::test, stream);
    uint64_t drawn = 0;
    return reference::first_values(
        config, [&] { return rng.uniform(drawn++); }, [&] { return rng.normal(drawn++); }, 0.3);
}

}  // namespace

TEST_CASE("all variants are valid and every value of every choice occurs") {
    std::map<std::string, int> count;
    for (uint32_t i = 0; i < draws; ++i) {
        const SmallModel small = drawn(i);
        Complaints complaints;
        small.config.check(complaints);
        CAPTURE(i);
        CHECK(complaints.text == "");
        for (const std::string& feature : features(small)) ++count[feature];
    }
    for (const SmallModel& small : small_variants()) {
        Complaints complaints;
        small.config.check(complaints);
        CAPTURE(small.name);
        CHECK(complaints.text == "");
    }
    for (const std::string& feature : known_features()) {
        CAPTURE(feature);
        CHECK(count[feature] >= 3);
    }
    CHECK(count.size() == known_features().size());
}

TEST_CASE("all variants: the reference in f32 keeps the bound it sets for others") {
    double worst = 0;
    for (const SmallModel& small : small_variants()) {
        CAPTURE(small.name);
        worst = std::max(worst, check_f32_reference(small.config, random_weights(small.config, 0),
                                                    make_example(small), 4));
    }
    for (uint32_t i = 0; i < draws; i += 3) {
        const SmallModel small = drawn(i);
        CAPTURE(small.name);
        worst = std::max(worst, check_f32_reference(small.config, random_weights(small.config, i),
                                                    make_example(small), 2));
    }
    MESSAGE("largest error, as a fraction of its bound: ", worst);
}

TEST_CASE("random variants: losses and gradients agree with the reference") {
    const std::vector<std::string> isas = available_isas();
    double worst = 0;
    for (uint32_t i = 0; i < draws; ++i) {
        const std::vector<std::string> some = i % 10 == 0 ? isas : std::vector{isas[i % isas.size()]};
        CAPTURE(i);
        // A tensor that one side does not know ends this model, not the test.
        CHECK_NOTHROW(worst = std::max(worst, check_model(drawn(i), some, 2, false)));
    }
    MESSAGE("largest error, as a fraction of its bound: ", worst);
}

TEST_CASE("random variants: names, shapes and first values of the tensors") {
    using Start = reference::Parameter::Start;
    for (uint32_t i = 0; i < draws; ++i) {
        const SmallModel small = drawn(i);
        CAPTURE(small.name);
        ModelFixture fixture(
            small.config,
            {.sequences = small.sequences, .length = small.length, .document_mask = small.documents});
        std::set<std::string> actual, expected;
        for (const model::Param& p : fixture.params().params())
            actual.insert(fmt::format("{} [{}]", p.name, fmt::join(p.shape, ", ")));
        for (const reference::Parameter& p : reference::parameters(small.config))
            expected.insert(fmt::format("{} [{}]", p.name, fmt::join(p.shape, ", ")));
        std::string difference;
        for (const std::string& x : actual)
            if (expected.count(x) == 0) difference += "only in the table: " + x + "\n";
        for (const std::string& x : expected)
            if (actual.count(x) == 0) difference += "only in the reference: " + x + "\n";
        CHECK(difference == "");
        if (!difference.empty()) continue;
        for (const reference::Parameter& p : reference::parameters(small.config)) {
            CAPTURE(p.name);
            const auto values = fixture.values(fixture.host_weights, p.name);
            // Constants and their logarithms are rounded to f32 once.
            size_t wrong = 0, equal = 0;
            for (size_t k = 0; k < values.size(); ++k) {
                const double x = values[k];
                const bool first_row = k < static_cast<size_t>(p.shape.back());
                const double constant = p.start == Start::first_row && !first_row ? 0 : p.value;
                if (p.start == Start::constant || p.start == Start::first_row)
                    wrong += std::abs(x - constant) > 0x1p-24 * std::abs(constant) ? 1 : 0;
                if (p.start == Start::uniform) wrong += std::abs(x) > p.value * (1 + 0x1p-24) ? 1 : 0;
                if (p.start == Start::zero_to) wrong += x < 0 || x > p.value ? 1 : 0;
                equal += values[k] == values[0] ? 1 : 0;
            }
            CHECK(wrong == 0);
            // What is drawn is not constant.
            const bool random =
                p.start == Start::uniform || p.start == Start::zero_to || p.start == Start::normal;
            if (random && values.size() > 1) CHECK(equal < values.size());
        }
    }
}
