#include <doctest/doctest.h>

#include <set>

#include "model/registry.h"

using namespace longreach;

TEST_CASE("every mixer has one row, which builds it") {
    std::set<std::string_view> names;
    for (const model::MixerType& type : model::mixer_types()) {
        CAPTURE(type.name());
        CHECK(names.insert(type.name()).second);
        CHECK(&model::mixer_type(type.name()) == &type);
        model::ModelConfig config;
        config.attention.mixer = type.name();
        model::ParamTable table;
        CHECK(type.construct(table, config, 0) != nullptr);
        CHECK(table.count() > 0);
        CHECK(model::parts_of(config.attention) == std::vector{&type.part});
    }
    CHECK_THROWS(model::mixer_type("none"));
}
