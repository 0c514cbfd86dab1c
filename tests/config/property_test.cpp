// Properties over random configs and random damage.
#include <doctest/doctest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "config/load.h"
#include "dice.h"

using namespace longreach;
using namespace longreach::sample;

namespace {

std::string random_text(Dice& dice) {
    const std::string_view pieces[] = {"a",      "\"",     "\\",         "\n", "\t", "\x01",
                                       "\u00e9", "\u20ac", "\U0001F600", "/",  "//", " "};
    std::string out;
    for (uint64_t i = dice.below(8); i > 0; --i) out += pieces[dice.below(std::size(pieces))];
    return out;
}

// Any finite double in [min, max], extreme exponents included.
double random_number(Dice& dice, double min, double max) {
    while (true) {
        const double d = std::bit_cast<double>(dice.bits());
        if (std::isfinite(d) && d >= min && d <= max) return d;
    }
}

void randomize(Attention& a, Dice& dice) {
    a.heads = int64_t{1} << dice.below(7);
    a.gate = dice.flip();
    a.window.size = static_cast<int64_t>(dice.below(4097));
    a.window.tau = random_number(dice, std::numeric_limits<double>::denorm_min(), 1e308);
    a.window.shape = static_cast<Shape>(dice.below(3));
}

Experiment random_experiment(Dice& dice) {
    Experiment e;
    e.run.name = random_text(dice);
    e.run.seed = static_cast<int64_t>(dice.bits() >> 1);
    e.run.init_seed = static_cast<int64_t>(dice.below(1000)) - 1;
    e.run.shift = random_number(dice, -1e308, 1e308);
    e.model.dropout = dice.flip() ? random_number(dice, 0, 0.999) : 0;
    randomize(e.model.attention, dice);
    e.model.width = e.model.attention.heads * static_cast<int64_t>(1 + dice.below(1000));
    for (uint64_t i = dice.below(4); i > 0; --i)
        randomize(e.model.layouts[fmt::format("layout_{}-x", i)], dice);
    for (uint64_t i = dice.below(4); i > 0; --i) e.model.pattern.push_back(random_text(dice));
    e.stages.resize(dice.below(4));
    for (Stage& stage : e.stages) {
        stage.steps = static_cast<int64_t>(1 + dice.below(std::numeric_limits<int64_t>::max()));
        stage.context = static_cast<int64_t>(16 + dice.below(1 << 20)) & ~15;
    }
    e.eval.lengths.resize(dice.below(40));
    for (int64_t& length : e.eval.lengths) length = static_cast<int64_t>(1 + dice.below(1 << 20));
    return e;
}

}  // namespace

TEST_CASE("property: random configs survive write, read, write") {
    Dice dice(3);
    for (int i = 0; i < 2000; ++i) {
        const std::string first = config::write_resolved(random_experiment(dice));
        const auto read = config::load_config<Experiment>({.file = "c.json", .text = first});
        const std::string second = config::write_resolved(read.value);
        REQUIRE(first == second);
        // With the rules between fields, which fill in run.init_seed, from the second writing on.
        const std::string third = config::write_resolved(load(second).value);
        REQUIRE(config::write_resolved(load(third).value) == third);
    }
}

TEST_CASE("property: every field can be set from the command line, and only that field changes") {
    const Experiment defaults;
    const json::Value before = config::to_json(config::describe(defaults));
    for (std::string path : config::all_paths(config::describe(defaults))) {
        const config::FieldInfo field = *config::find_field(config::describe(defaults), path);
        std::string value;
        switch (field.kind) {
            case config::FieldInfo::Kind::flag:
                value = field.value.as_bool() ? "false" : "true";
                break;
            case config::FieldInfo::Kind::integer:
                value = std::to_string(field.value.as_int64() + 1);
                break;
            case config::FieldInfo::Kind::number:
                value = std::to_string(field.value.as_number() + 0.25);
                break;
            case config::FieldInfo::Kind::text:
                value = "other";
                break;
            case config::FieldInfo::Kind::texts:
                value = R"(["other"])";
                break;
            case config::FieldInfo::Kind::integers:
                value = "[17]";
                break;
            case config::FieldInfo::Kind::choice:
                value = field.choices.back().name;
                break;
            default:
                FAIL("a path without a value");
        }
        if (const size_t star = path.find('*'); star != std::string::npos)
            path.replace(star, 1, path.starts_with("stages") ? "0" : "some");
        CAPTURE(path);
        const auto read = config::load_config<Experiment>({.overrides = {path + "=" + value}});
        CHECK(config::to_json(config::describe(read.value)) != before);
        size_t set = 0;
        for (const config::FieldOrigin& entry : read.origins) {
            if (entry.origin.kind != config::Origin::Kind::command_line) continue;
            ++set;
            CHECK(entry.path == path);
        }
        CHECK(set == 1);
    }
}

TEST_CASE("property: damaged configs and overrides are refused in words or read, and never crash") {
    const std::string seeds[] = {
        config::write_resolved(config::describe<Experiment>()),
        R"({"model": {"width": 64, "layouts": {"local": {"heads": 2}}}, "stages": [{"steps": 3}, {}], "eval": {"lengths": [1]}})",
        "// c\n{\"base\": [], \"resolved\": true, \"run\": {\"name\": \"x\", \"seed\": -3, \"shift\": 1e5}}",
    };
    const std::string overrides[] = {"model.width=64",
                                     "stages.0.steps=3",
                                     "model={\"width\":3}",
                                     "eval.lengths.0=5",
                                     "model.layouts.local.window.shape=square",
                                     "run.name=x"};
    Dice dice(4);
    size_t accepted = 0;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 20000; ++i) {
        const bool in_text = dice.flip();
        std::string text = seeds[dice.below(std::size(seeds))];
        std::string override_text = overrides[dice.below(std::size(overrides))];
        if (in_text) text = dice.mutate(text, 2, "{}[]\",:/\\0-.1e");
        if (!in_text) override_text = dice.mutate(override_text, 1, "{}[]\",:.=0-1e");
        try {
            const auto read = config::load_config<Experiment>(
                {.file = "c.json", .overrides = {override_text}, .text = text});
            const std::string written = config::write_resolved(read.value);
            REQUIRE(config::write_resolved(
                        config::load_config<Experiment>({.file = "c.json", .text = written}).value) ==
                    written);
            ++accepted;
        } catch (const Error& error) {
            REQUIRE_MESSAGE(error.code() == ExitCode::usage, error.what());
            REQUIRE(is_utf8(error.what()));
            REQUIRE(std::string_view(error.what()).find('\x1b') == std::string_view::npos);
        }
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    CHECK(accepted > 300);
    CHECK(seconds.count() < 60);
}
