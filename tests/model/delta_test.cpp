// Models with layers of the gated delta rule: losses and gradients against the scalar recurrence, the tensors and
// their first values, equal bits, FLOPs.
#include <doctest/doctest.h>

#include "model/check_model.h"
#include "model/delta_models.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE(
    "layers of the delta rule: losses and gradients agree with the reference on every instruction set") {
    check_models(delta_models());
}

TEST_CASE("layers of the delta rule: the reference in f32 keeps the bound it sets for others") {
    check_f32_reference(delta_models());
}

TEST_CASE("layers of the delta rule: tensors and their first values") {
    using Start = reference::Parameter::Start;
    check_tensors(delta_models());
    for (const SmallModel& small : delta_models()) {
        CAPTURE(small.name);
        ModelFixture fixture(small.config, {.sequences = 1, .length = 8});
        for (const reference::Parameter& p : reference::parameters(small.config)) {
            CAPTURE(p.name);
            for (const float value : fixture.values(fixture.host_weights, p.name)) {
                const double x = value;
                if (p.start == Start::log_to) {
                    CHECK(std::exp(x) >= p.least * (1 - 1e-6));
                    CHECK(std::exp(x) <= p.value * (1 + 1e-6));
                }
                if (p.start == Start::time_step) {
                    CHECK(std::log1p(std::exp(x)) >= p.least * (1 - 1e-6));
                    CHECK(std::log1p(std::exp(x)) <= p.value * (1 + 1e-6));
                }
            }
        }
    }
}

TEST_CASE("layers of the delta rule: the same bits at every number of threads, in training and evaluation") {
    check_threads(delta_models());
}

TEST_CASE("the FLOPs of a model of the delta rule do not grow with the length") {
    const SmallModel small = delta_models().front();
    const auto fixture = make_fixture(small, {.threads = 1});
    CHECK(fixture->model().evaluation_flops_per_token(64) ==
          fixture->model().evaluation_flops_per_token(65536));
}
