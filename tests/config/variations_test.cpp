// Entries of variations that are written as the value of their main field.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "base/error.h"
#include "config/loader.h"
#include "config/schema.h"

using namespace longreach;

namespace {

struct Entry {
    std::string text = "none";
    int64_t count = 1;
    void fields(config::Fields& f) {
        f.text("text", text, {"what it says"});
        f.integer("count", count, {.min = 1, .max = 9}, {"how often"});
    }
};
struct Config {
    std::map<std::string, Entry> entries, numbers;
    void fields(config::Fields& f) {
        f.variations("entries", entries, Entry(), {.help = "entries; a text is a text", .main = "text"});
        f.variations("numbers", numbers, Entry(), {.help = "entries; a number is a count", .main = "count"});
    }
};

config::LoadedConfig<Config> load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return config::load_config<Config>({.file = "c.json", .overrides = overrides, .text = text},
                                       [](Config&, config::Problems&) {});
}
std::string problem(const std::string& text) {
    try {
        load(text);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace

TEST_CASE("variations: an entry that is not an object sets the main field") {
    const Config c =
        load(R"({"entries": {"a": "x", "b": {"text": "y", "count": 3}}, "numbers": {"n": 4}})").value;
    CHECK(c.entries.at("a").text == "x");
    CHECK(c.entries.at("a").count == 1);
    CHECK(c.entries.at("b").text == "y");
    CHECK(c.numbers.at("n").count == 4);
    CHECK(load(R"({"entries": {"a": {"count": 2}}})", {"entries.a.text=z"}).value.entries.at("a").count == 2);
    CHECK(load("{}", {"entries.a=z", "numbers.n=2"}).value.numbers.at("n").count == 2);
    CHECK(problem(R"({"entries": {"a": 4}})").starts_with("entries.a.text (c.json:1:"));
    CHECK(problem(R"({"numbers": {"n": 12}})").starts_with("numbers.n.count (c.json:1:"));
}

TEST_CASE("variations: the schema takes both ways to write an entry") {
    const json::Value schema = config::config_schema(config::describe<Config>(), "test");
    const json::Value& entry = *schema.find("properties")->find("entries")->find("additionalProperties");
    const json::Array& either = entry.find("anyOf")->as_array();
    REQUIRE(either.size() == 2);
    CHECK(*either[0].find("type") == json::Value("string"));
    CHECK(*either[1].find("type") == json::Value("object"));
}
