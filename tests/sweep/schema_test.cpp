// The schema of sweep files against every sweep under configs/reproduce, and against wrong ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "base/text.h"
#include "sweep/sweep_config.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;
using json::Value;

namespace {

// As much of JSON Schema as longreach writes.
class Validator {
  public:
    explicit Validator(const Value& root) : root_(root) {}

    // Paths of what does not fit.
    std::vector<std::string> problems(const Value& value) {
        problems_.clear();
        check(value, root_, "");
        return problems_;
    }

  private:
    bool fits(const Value& value, const Value& schema) {
        Validator alone(root_);
        alone.check(value, schema, "");
        return alone.problems_.empty();
    }
    static bool is_type(const Value& value, const std::string& type) {
        if (type == "object") return value.is_object();
        if (type == "array") return value.is_array();
        if (type == "string") return value.is_string();
        if (type == "boolean") return value.to_bool().has_value();
        if (type == "integer") return value.kind() == json::Kind::integer;
        return type == "number" && value.to_number().has_value();
    }
    void check(const Value& value, const Value& schema, const std::string& path) {
        if (const auto any = schema.to_bool()) {
            if (!*any) problems_.push_back(path);
            return;
        }
        const auto wrong = [&](bool ok) {
            if (!ok) problems_.push_back(path);
        };
        for (const json::Member& rule : schema.as_object()) {
            const Value& r = rule.value;
            if (rule.key == "$ref") {
                const std::string name = r.as_string().substr(std::string("#/$defs/").size());
                check(value, *root_.find("$defs")->find(name), path);
            } else if (rule.key == "type") {
                const json::Array types = r.is_array() ? r.as_array() : json::Array{r};
                wrong(std::any_of(types.begin(), types.end(),
                                  [&](const Value& t) { return is_type(value, t.as_string()); }));
            } else if (rule.key == "enum") {
                const json::Array& words = r.as_array();
                wrong(std::find(words.begin(), words.end(), value) != words.end());
            } else if (rule.key == "const") {
                wrong(value == r);
            } else if (rule.key == "anyOf") {
                const json::Array& all = r.as_array();
                wrong(std::any_of(all.begin(), all.end(), [&](const Value& s) { return fits(value, s); }));
            } else if (rule.key == "pattern" && value.is_string()) {
                wrong(std::regex_search(value.as_string(), std::regex(r.as_string())));
            } else if (rule.key == "minLength" && value.is_string()) {
                wrong(static_cast<int64_t>(value.as_string().size()) >= r.as_int64());
            } else if (rule.key == "minItems" && value.is_array()) {
                wrong(static_cast<int64_t>(value.as_array().size()) >= r.as_int64());
            } else if (rule.key == "minimum" && value.to_number()) {
                wrong(*value.to_number() >= r.as_number());
            } else if (rule.key == "maximum" && value.to_number()) {
                wrong(*value.to_number() <= r.as_number());
            } else if (rule.key == "items" && value.is_array()) {
                for (size_t i = 0; i < value.as_array().size(); ++i)
                    check(value.as_array()[i], r, path + "/" + std::to_string(i));
            } else if (rule.key == "properties" && value.is_object()) {
                for (const json::Member& m : value.as_object())
                    if (const Value* s = r.find(m.key)) check(m.value, *s, path + "/" + m.key);
            } else if (rule.key == "additionalProperties" && value.is_object()) {
                const Value* properties = schema.find("properties");
                for (const json::Member& m : value.as_object())
                    if (properties == nullptr || properties->find(m.key) == nullptr)
                        check(m.value, r, path + "/" + m.key);
            } else if (rule.key == "propertyNames" && value.is_object()) {
                for (const json::Member& m : value.as_object())
                    if (!fits(Value(m.key), r)) problems_.push_back(path + "/" + m.key);
            } else {
                const std::vector<std::string> other{"$schema",         "$defs",
                                                     "title",           "description",
                                                     "default",         "enumDescriptions",
                                                     "pattern",         "minLength",
                                                     "minItems",        "minimum",
                                                     "maximum",         "items",
                                                     "properties",      "additionalProperties",
                                                     "propertyNames",   "exclusiveMinimum",
                                                     "exclusiveMaximum"};
                CHECK_MESSAGE(std::find(other.begin(), other.end(), rule.key) != other.end(), rule.key);
            }
        }
    }

    const Value& root_;
    std::vector<std::string> problems_;
};

}  // namespace

TEST_CASE("schema of sweep files: every sweep under configs/reproduce fits it") {
    const Value schema = sweep::sweep_schema();
    Validator validator(schema);
    int sweeps = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(io::join_path(LONGREACH_CONFIGS, "reproduce"))) {
        const std::string text = get(entry.path().string());
        const Value sweep = json::parse(text, "sweep", {.relaxed = true});
        if (sweep.find("name") == nullptr) continue;  // overlays are configs
        CAPTURE(entry.path().string());
        CHECK(join(validator.problems(sweep), " ") == "");
        ++sweeps;
    }
    CHECK(sweeps == 48);
}

TEST_CASE("schema of sweep files: what load_sweep refuses about one value, the schema refuses too") {
    const Value schema = sweep::sweep_schema();
    Validator validator(schema);
    const auto problems = [&](const std::string& text) {
        return join(validator.problems(json::parse(text, "sweep")), " ");
    };
    CHECK(
        problems(
            R"({"name": "s", "variants": [{"name": "a", "config": "a.json", "set": {"model.width": 64}}]})") ==
        "");
    CHECK(
        problems(
            R"({"variants": [{"name": "a", "config": ["a.json", "b.json"]}], "grid": {"model.width": [1, 2]}})") ==
        "/grid/model.width/0 /grid/model.width/1");  // below 4
    CHECK(problems(R"({"grid": {"stages.0.steps": [5, 6], "eval.lengths": [["2K", 4096]]}})") == "");
    CHECK(problems(R"({"sedes": [1]})") == "/sedes");
    CHECK(problems(R"({"variants": [{"name": "a", "config": 3}]})") == "/variants/0/config");
    CHECK(problems(R"({"set": {"model.width": "wide"}})") == "/set/model.width");
    CHECK(problems(R"({"set": {"optimizer.schedule.kind": "cosin"}})") == "/set/optimizer.schedule.kind");
    CHECK(problems(R"({"set": {"model": {"width": "wide"}}})") == "/set/model/width");
    CHECK(problems(R"({"grid": {"model.width": 64}})") == "/grid/model.width");
    CHECK(problems(R"({"evaluations": [{"name": "e", "lengths": ["64K", "1X"]}]})") ==
          "/evaluations/0/lengths/1");
    CHECK(problems(R"({"jobs": -1})") == "/jobs");
}
