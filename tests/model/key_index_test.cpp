// Models with an index of keys: gradients against the reference, the tensors, equal bits, and what an index leaves alone.
#include <doctest/doctest.h>

#include "model/check_model.h"
#include "model/key_index.h"
#include "model/key_index_models.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("an index of keys: losses and gradients agree with the reference on every instruction set") {
    check_models(key_index_models());
}

TEST_CASE("an index of keys: the reference in f32 keeps the bound it sets for others") {
    check_f32_reference(key_index_models());
}

TEST_CASE("an index of keys: tensors") {
    check_tensors(key_index_models());
}

TEST_CASE("an index of keys: the same bits at every number of threads, in training and evaluation") {
    check_threads(key_index_models());
}

TEST_CASE(
    "an index of keys: every other gradient has the bits it has without one; alone it has those beside "
    "them") {
    for (const SmallModel& small : key_index_models()) {
        CAPTURE(small.name);
        const Example example = make_example(small);
        SmallModel without = small;
        without.config.attention.index_heads = 0;
        for (auto& [name, layout] : without.config.layouts) layout.index_heads = 0;
        const auto indexed = make_fixture(small, {.threads = 2}),
                   plain = make_fixture(without, {.threads = 2}), alone = make_fixture(small, {.threads = 2});
        for (const model::Param& p : plain->params().params()) {
            const auto from = indexed->params().find(p.name)->offset;
            std::copy_n(indexed->host_weights.begin() + from, p.count(),
                        plain->host_weights.begin() + p.offset);
        }
        alone->model().train_indexes_alone();
        ModelFixture::Step with = indexed->train(example), other = plain->train(example),
                           only = alone->train(example);
        CHECK(with.losses == other.losses);
        CHECK(with.losses == only.losses);
        int64_t owned = 0;
        for (const model::Param& p : indexed->params().params()) {
            CAPTURE(p.name);
            const auto gradient = indexed->values(with.gradients, p.name);
            const bool of_index = model::KeyIndex::owns(p.name);
            owned += of_index ? 1 : 0;
            const auto same =
                of_index ? alone->values(only.gradients, p.name) : plain->values(other.gradients, p.name);
            CHECK(std::equal(gradient.begin(), gradient.end(), same.begin(), same.end()));
        }
        CHECK(owned == 3 * indexed->model().indexed_layers());
    }
}
