// What the language says of itself is what the parser accepts.
#include <doctest/doctest.h>

#include <algorithm>

#include "law/language.h"

using namespace longreach;

TEST_CASE("language: every function is written with its name and as many arguments as it takes") {
    for (size_t i = 0; i <= static_cast<size_t>(law::Function::lookup); ++i) {
        const auto f = static_cast<law::Function>(i);
        const std::string written = law::meaning_of(f).written;
        CAPTURE(written);
        CHECK_FALSE(law::meaning_of(f).value.empty());
        const std::vector<std::string> names{"a", "b", "c", "C", "d", "n", "w", "x", "y"};
        const law::Formula parsed = law::parse(written, {}, names);
        REQUIRE(parsed->kind == law::Node::Kind::call);
        CHECK(parsed->function == f);
        CHECK(parsed->arguments.size() == law::arguments_of(f));
    }
}

TEST_CASE("language: every variable has its name and a meaning of its own") {
    std::vector<std::string_view> meanings;
    for (size_t i = 0; i < law::variable_count; ++i) {
        const auto variable = static_cast<law::Variable>(i);
        CHECK(law::meaning_of(variable).written == law::name_of(variable));
        CHECK_FALSE(law::meaning_of(variable).value.empty());
        meanings.push_back(law::meaning_of(variable).value);
    }
    std::sort(meanings.begin(), meanings.end());
    CHECK(std::adjacent_find(meanings.begin(), meanings.end()) == meanings.end());
}
