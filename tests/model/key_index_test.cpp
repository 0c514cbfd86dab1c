// Models with an index of keys: gradients against the reference, the tensors, equal bits, and what an index leaves alone.
#include <doctest/doctest.h>

#include "model/check_model.h"
#include "mixers/key_index.h"
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
    "an index of keys: every other gradient has the bits it has without one; alone it has those with "
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

TEST_CASE("an index of keys: losses are those of every pass, not of the first alone") {
    SmallModel looped{"one layer, two passes", tiny_model(1), true};
    looped.config.train_context = 8;
    looped.config.attention.index_heads = 2;
    looped.config.loops = 2;
    SmallModel stacked = looped;
    stacked.config.layers = 2;
    stacked.config.loops = 1;
    const auto one = make_fixture(looped, {.threads = 1}), two = make_fixture(stacked, {.threads = 1});
    for (const model::Param& p : two->params().params()) {
        const size_t digit = std::string("layers.").size();
        std::string name = p.name;
        if (name.starts_with("layers.")) name[digit] = '0';
        const auto from = one->host_weights.begin() + one->params().find(name)->offset;
        std::copy_n(from, p.count(), two->host_weights.begin() + p.offset);
    }
    const Example example = make_example(looped);
    CHECK(one->train(example).losses == two->train(example).losses);
    const auto n = static_cast<int64_t>(example.tokens.size());
    const auto losses = [&](ModelFixture& of) {
        const Tensor t = of.model().index_losses(n);
        std::vector<float> host(static_cast<size_t>(t.count()));
        of.ops().download(host.data(), t);
        return host;
    };
    const std::vector<float> of_passes = losses(*one);
    CHECK(of_passes == losses(*two));
    CHECK(of_passes.size() == static_cast<size_t>(2 * n));
    CHECK(!std::equal(of_passes.begin(), of_passes.begin() + n, of_passes.begin() + n));
}
