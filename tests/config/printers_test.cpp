// What is printed from the field list: show, schema, explain, the reference page, diff.
#include <doctest/doctest.h>

#include "config/diff.h"
#include "config/help.h"
#include "config/load.h"
#include "config/schema.h"

using namespace longreach;
using namespace longreach::sample;
using json::Value;

namespace {

const Value& at(const Value& value, std::initializer_list<const char*> keys) {
    const Value* found = &value;
    for (const char* key : keys) {
        found = found->find(key);
        REQUIRE(found != nullptr);
    }
    return *found;
}

// Every object is closed and described, every value has a type, a meaning and a default
// within its own bounds.
void check_schema(const Value& schema) {
    // A count of tokens is an integer or a string like "2K", a list of strings a list or a string.
    const Value& types = at(schema, {"type"});
    const std::string type = (types.is_array() ? types.as_array().front() : types).as_string();
    if (type == "object") {
        const Value* properties = schema.find("properties");
        if (properties == nullptr) return check_schema(at(schema, {"additionalProperties"}));
        CHECK(at(schema, {"additionalProperties"}) == Value(false));
        for (const json::Member& member : properties->as_object()) {
            CAPTURE(member.key);
            if (member.key == "base" || member.key == "resolved" || member.key == "$schema") continue;
            CHECK(member.value.find("description") != nullptr);
            const bool section = member.value.find("properties") != nullptr;
            CHECK((member.value.find("default") != nullptr) == !section);
            check_schema(member.value);
        }
        return;
    }
    const Value* given = schema.find("default");
    if (type == "array") return check_schema(at(schema, {"items"}));
    if (given == nullptr) return;
    if (type == "boolean") CHECK(given->to_bool());
    if (type == "integer") CHECK(given->to_int64());
    if (type == "number") CHECK(given->to_number());
    if (type == "string") CHECK(given->is_string());
    if (const Value* low = schema.find("minimum")) CHECK(given->as_number() >= low->as_number());
    if (const Value* high = schema.find("maximum")) CHECK(given->as_number() <= high->as_number());
    if (const Value* low = schema.find("exclusiveMinimum")) CHECK(given->as_number() > low->as_number());
    if (const Value* high = schema.find("exclusiveMaximum")) CHECK(given->as_number() < high->as_number());
    if (const Value* words = schema.find("enum")) {
        const json::Array& list = words->as_array();
        CHECK(std::find(list.begin(), list.end(), *given) != list.end());
    }
}

}  // namespace

TEST_CASE("printers: all paths, in order") {
    CHECK(config::all_paths(config::describe<Experiment>()) ==
          std::vector<std::string>{"run.name",
                                   "run.seed",
                                   "run.init_seed",
                                   "run.shift",
                                   "model.width",
                                   "model.dropout",
                                   "model.attention.heads",
                                   "model.attention.gate",
                                   "model.attention.window.size",
                                   "model.attention.window.tau",
                                   "model.attention.window.shape",
                                   "model.layouts.*.heads",
                                   "model.layouts.*.gate",
                                   "model.layouts.*.window.size",
                                   "model.layouts.*.window.tau",
                                   "model.layouts.*.window.shape",
                                   "model.pattern",
                                   "stages.*.steps",
                                   "stages.*.context",
                                   "eval.every",
                                   "eval.lengths"});
}

TEST_CASE("printers: fields are found under indices, names and stars") {
    const config::FieldInfo config = config::describe<Experiment>();
    for (const std::string& path : config::all_paths(config)) {
        const config::FieldInfo* field = config::find_field(config, path);
        REQUIRE(field != nullptr);
        CHECK(field->path == path);
    }
    CHECK(config::find_field(config, "")->name.empty());
    CHECK(config::find_field(config, "stages.12.steps")->path == "stages.*.steps");
    CHECK(config::find_field(config, "stages.0")->path == "stages");
    CHECK(config::find_field(config, "model.layouts.my-layout.heads")->path == "model.layouts.*.heads");
    for (const char* path : {"nothing", "stages.x.steps", "stages.steps", "run.name.x",
                             "model.layouts.a b.heads", "run.", ".run", "stages..steps"}) {
        CAPTURE(path);
        CHECK(config::find_field(config, path) == nullptr);
    }
}

TEST_CASE("printers: the template of a list entry shows its own defaults, not the default list") {
    CHECK(config::find_field(config::describe<Experiment>(), "stages.*.steps")->value == Value(100));
}

TEST_CASE("printers: the resolved config holds every field and reads back byte for byte") {
    const auto config = load(R"({"model": {"layouts": {"local": {"window": {"size": 64}}}}})");
    const std::string text = config::write_resolved(config.value);
    CHECK(text == R"({
  "resolved": true,
  "run": {
    "name": "",
    "seed": 1,
    "init_seed": 1,
    "shift": -1.5
  },
  "model": {
    "width": 128,
    "dropout": 0,
    "attention": {
      "heads": 4,
      "gate": false,
      "window": {
        "size": 0,
        "tau": 10,
        "shape": "round"
      }
    },
    "layouts": {
      "local": {
        "heads": 4,
        "gate": false,
        "window": {
          "size": 64,
          "tau": 10,
          "shape": "round"
        }
      }
    },
    "pattern": []
  },
  "stages": [
    {
      "steps": 10,
      "context": 64
    }
  ],
  "eval": {
    "every": 250,
    "lengths": [2048, 4096]
  }
}
)");
    CHECK(config::write_resolved(load(text).value) == text);
}

TEST_CASE("printers: schema") {
    const Value schema = config::config_schema(config::describe<Experiment>(), "sample");
    CHECK(at(schema, {"$schema"}) == Value("https://json-schema.org/draft/2020-12/schema"));
    CHECK(at(schema, {"title"}) == Value("sample"));
    check_schema(schema);
    const std::string text = json::write(schema, json::Style::pretty);
    CHECK(json::write(json::parse(text, "f"), json::Style::pretty) == text);

    const Value& model = at(schema, {"properties", "model"});
    CHECK(json::write(at(model, {"properties", "width"}), json::Style::compact) ==
          R"({"type":"integer","minimum":1,"description":"channels","default":128})");
    CHECK(
        json::write(at(model, {"properties", "dropout"}), json::Style::compact) ==
        R"({"type":"number","minimum":0,"exclusiveMaximum":1,"description":"share of zeroed activations","default":0})");
    const Value& window = at(model, {"properties", "attention", "properties", "window", "properties"});
    CHECK(
        json::write(at(window, {"shape"}), json::Style::compact) ==
        R"({"type":"string","enum":["round","square","squircle"],"enumDescriptions":["no corners","four",""],)"
        R"("description":"form of the window","default":"round"})");
    const Value& layouts = at(model, {"properties", "layouts"});
    CHECK(at(layouts, {"propertyNames", "pattern"}) == Value("^[A-Za-z0-9_-]+$"));
    CHECK(at(layouts, {"additionalProperties", "properties", "heads", "maximum"}) == Value(64));
    CHECK(at(schema, {"properties", "stages", "items", "properties", "context", "minimum"}) == Value(16));
    CHECK(at(schema, {"properties", "eval", "properties", "lengths", "items", "maximum"}) == Value(1 << 20));
    CHECK(at(schema, {"properties", "base", "anyOf"}).as_array().size() == 2);
}

TEST_CASE("printers: explain") {
    const config::FieldInfo config = config::describe<Experiment>();
    CHECK(
        config::explain(config, "model.width") ==
        "model.width\n    channels\n    integer, at least 1; default 128\n    fixed once a run has begun\n");
    CHECK(
        config::explain(config, "run.name") ==
        "run.name\n    of the run directory\n    string; default \"\"\n    may change when a run resumes\n");
    CHECK(config::explain(config, "eval.lengths") ==
          "eval.lengths\n    context lengths | all scored on the same tokens\n    list of integers, each 1 "
          "to 1048576, like 4096 or \"4K\"; default [2048,4096]\n    may change when a run resumes\n");
    CHECK(config::explain(config, "model.layouts.local.window.shape") ==
          "model.layouts.*.window.shape\n    form of the window\n    one of round, square, squircle; default "
          "round\n"
          "    fixed once a run has begun\n    round   no corners\n    square  four\n");
    CHECK(config::explain(config, "model.attention") ==
          "model.attention\n    attention of every layer\n    heads   query heads\n    gate    multiply the "
          "output by a gate\n    window  which keys a query sees\n");
    CHECK(config::explain(config, "stages") ==
          "stages\n    training stages, in order\n    list of sections; each entry holds:\n    steps    "
          "optimiser steps\n"
          "    context  sequence length, in tokens\n");
    CHECK(config::explain(config, "") ==
          "    run     the run itself\n    model   the network\n    stages  training stages, in order\n    "
          "eval    evaluation\n");
    for (const std::string& path : config::all_paths(config))
        CHECK(config::explain(config, path).starts_with(path + "\n"));

    auto refusal = [&](std::string_view path) -> std::string {
        try {
            return config::explain(config, path);
        } catch (const Error& error) {
            CHECK(error.code() == ExitCode::usage);
            return error.what();
        }
    };
    CHECK(refusal("model.widht") == "there is no config key model.widht: did you mean model.width?");
    CHECK(
        refusal("tau") ==
        "there is no config key tau: did you mean model.attention.window.tau or model.layouts.*.window.tau?");
    CHECK(refusal("modl.width") == "there is no config key modl.width: did you mean model?");
    CHECK(refusal("zzz\n") == "there is no config key \"zzz\\n\"");
    CHECK(refusal("run..name") == "there is no config key run..name");
}

TEST_CASE("printers: the reference page has a row for every field and a section for every object") {
    const config::FieldInfo config = config::describe<Experiment>();
    const std::string page = config::reference_page(config, "Configuration");
    CHECK(page.starts_with("# Configuration\n"));
    CHECK(page.find("## `model.attention.window`\n\nWhich keys a query sees.\n\n| key | type |") !=
          std::string::npos);
    CHECK(page.find("| `width` | integer, at least 1 | `128` | fixed | channels |\n") != std::string::npos);
    CHECK(page.find("context lengths \\| all scored") != std::string::npos);
    CHECK(page.find("- `round`: no corners\n- `square`: four\n- `squircle`\n") != std::string::npos);
    size_t rows = 0;
    for (size_t i = page.find("\n| `"); i != std::string::npos; i = page.find("\n| `", i + 1)) ++rows;
    CHECK(rows == config::all_paths(config).size());
    CHECK(page.ends_with("\n"));
    CHECK_FALSE(page.ends_with("\n\n"));
}

TEST_CASE("printers: diff names what differs and what a run cannot resume across") {
    const Experiment a = load(R"({"model": {"layouts": {"x": {}, "y": {}}}, "stages": [{}]})").value;
    const Experiment b =
        load(R"({"run": {"name": "b"}, "model": {"width": 64, "layouts": {"x": {"heads": 2}, "z": {}}},
                                  "stages": [{}, {"steps": 5}], "eval": {"lengths": [16]}})")
            .value;
    CHECK(config::diff(config::describe(a), config::describe(a)).empty());
    CHECK(config::diff_table({}).empty());
    const auto differences = config::diff(config::describe(a), config::describe(b));
    std::vector<std::string> paths, fixed;
    for (const config::Difference& d : differences) paths.push_back(d.path);
    for (const config::Difference& d : config::not_resumable(differences)) fixed.push_back(d.path);
    CHECK(paths == std::vector<std::string>{"run.name", "model.width", "model.layouts.x.heads",
                                            "model.layouts.y", "model.layouts.z", "stages.1.steps",
                                            "eval.lengths"});
    CHECK(fixed == std::vector<std::string>{"model.width", "model.layouts.x.heads", "model.layouts.y",
                                            "model.layouts.z", "stages.1.steps"});
    CHECK(differences[1].left == Value(128));
    CHECK(differences[1].right == Value(64));
    CHECK(differences[3].left);
    CHECK_FALSE(differences[3].right);
    CHECK_FALSE(differences[5].left);
    // Of what one side lacks: the fields that are not as such an entry starts, or the entry.
    CHECK(differences[5].right == Value(5));
    CHECK(differences[3].left == Value::object());
    CHECK(config::diff_table({differences[0], differences[1], differences[5]}) ==
          "run.name        \"\"      \"b\"\n"
          "model.width     128     64   fixed once a run has begun\n"
          "stages.1.steps  absent  5    fixed once a run has begun\n");
}

TEST_CASE("printers: diff shows the leaves of a layout that one side lacks, not its whole section") {
    const Experiment a = load(R"({"model": {"attention": {"heads": 8}}})").value;
    const Experiment b =
        load(
            R"({"model": {"attention": {"heads": 8}, "layouts": {"y": {"gate": true, "window": {"size": 8}}}}})")
            .value;
    CHECK(config::diff_table(config::diff(config::describe(a), config::describe(b))) ==
          "model.layouts.y.gate         absent  true  fixed once a run has begun\n"
          "model.layouts.y.window.size  absent  8     fixed once a run has begun\n");
    CHECK(config::diff_table(config::diff(config::describe(b), config::describe(a)))
              .starts_with("model.layouts.y.gate         true  absent  fixed"));
}

TEST_CASE("printers: a field list that breaks its contract is a bug, found at once") {
    struct Twice {
        bool a = false;
        void fields(config::Fields& f) {
            f.flag("a", a, {"x"});
            f.flag("a", a, {"y"});
        }
    };
    struct OutOfRange {
        int64_t a = 0;
        void fields(config::Fields& f) { f.integer("a", a, {.min = 1}, {"x"}); }
    };
    struct Infinite {
        double a = std::numeric_limits<double>::infinity();
        void fields(config::Fields& f) { f.number("a", a, {}, {"x"}); }
    };
    struct Dotted {
        bool a = false;
        void fields(config::Fields& f) { f.flag("a.b", a, {"x"}); }
    };
    auto code = [](auto config) {
        try {
            config::describe(config);
            return ExitCode::ok;
        } catch (const Error& error) {
            return error.code();
        }
    };
    CHECK(code(Twice{}) == ExitCode::internal);
    CHECK(code(OutOfRange{}) == ExitCode::internal);
    CHECK(code(Infinite{}) == ExitCode::internal);
    CHECK(code(Dotted{}) == ExitCode::internal);
}
