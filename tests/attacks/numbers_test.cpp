// Numbers, counts and names of configs and files, at and beyond what they may be.
#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <map>

#include "attacks/runs.h"
#include "io/safetensors.h"
#include "train/reseal.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::vector<std::string> with(std::vector<std::string> command, const std::vector<std::string>& set) {
    for (const std::string& s : set) command.insert(command.end(), {"--set", s});
    return command;
}

std::string sweep_file(const std::string& name, const std::string& more) {
    const std::string path = target().path(name + ".sweep.json");
    put(path,
        fmt::format(
            R"({{"name": "{}", "dir": "{}", "variants": [{{"name": "a", "config": "config.json"}}], {}}})",
            name, target().path("sweeps"), more));
    return path;
}

std::string repeated(const std::string& text, size_t count) {
    std::string all;
    for (size_t i = 0; i < count; ++i) all += (i > 0 ? "," : "") + text;
    return all;
}

}  // namespace

TEST_CASE("numbers: a run and a sweep with 10.0 for 10 in init, range and mixture resume") {
    using Values = std::map<std::string, std::string>;
    const Values decimals{
        {"data.train", "[]"},
        {"data.mixture.a.paths", fmt::format("[\"{}\"]", target().path("data/train_*.bin"))},
        {"data.mixture.b.paths", fmt::format("[\"{}\"]", target().path("data/val_*.bin"))},
        {"model.attention.score", "z - c*log1p(t/tau)"},
        {"model.attention.params.c.init", "1.0"},
        {"model.attention.params.c.learn", "layer"},
        {"model.attention.params.c.range", "[0.0, 20.0]"},
        {"model.attention.params.tau.init", "1e1"},
        {"stages", R"([{"steps": 2, "context": 16, "mixture": {"a": 1.0, "b": 3.0}}])"}};
    const auto run = [](const Values& values) {
        std::vector<std::string> set;
        for (const auto& [path, value] : values) set.push_back(path + "=" + value);
        return target().run(target().command("decimals", set));
    };
    REQUIRE(run(decimals).code == 0);
    const Finished again = run(decimals);
    CAPTURE(again.err);
    CHECK(again.code == 0);
    // Other values are still other values.
    for (const auto& [path, value] :
         {std::pair("model.attention.params.tau.init", "10.5"),
          {"model.attention.params.c.range", "[0, 21]"},
          {"stages", R"([{"steps": 2, "context": 16, "mixture": {"a": 1, "b": 2}}])"}}) {
        Values others = decimals;
        others[path] = value;
        const Finished changed = run(others);
        CAPTURE(changed.err);
        CHECK(changed.code == 2);
        CHECK(contains(changed.err, "fixed once a run has begun"));
    }
    const std::string sweep = sweep_file(
        "decimals",
        R"("set": {"stages": [{"steps": 2, "context": 16}], "model.attention.score": "z/tau", "model.attention.params.tau": {"init": 2.0}})");
    REQUIRE(target().run({"sweep", sweep}).code == 0);
    const Finished swept = target().run({"sweep", sweep, "--dry-run"});
    CAPTURE(swept.err);
    CHECK(swept.code == 0);
    CHECK(contains(swept.out, "1 trained already"));
}

TEST_CASE("numbers: a constant that is not finite is refused where it stands, in scores and angles") {
    const std::pair<const char*, const char*> wrong[] = {
        {"model.attention.score=z*(0/0)", "this is not a number everywhere: z*[(0/0)]"},
        {"model.attention.score=z + 0*(1/0)*t", "this is inf everywhere: z + 0*[(1/0)]*t"},
        {"model.attention.angle=p*(0/0)", "this is not a number everywhere: p*[(0/0)]"},
        {"eval.score=z*log(0)", "this is -inf everywhere: z*[log(0)]"}};
    for (const auto& [set, message] : wrong) {
        const Finished f = target().run(
            with({"config", "show", target().path("config.json")}, {set, "eval.lengths=[16,64]"}));
        CAPTURE(f.err);
        CHECK(f.code == 2);
        CHECK(contains(f.err, message));
    }
}

TEST_CASE(
    "numbers: an integral in an angle is computed once, or refused where every position would compute its "
    "own") {
    const auto show = [](const std::string& angle) {
        const auto begun = std::chrono::steady_clock::now();
        const Finished f = target().run(
            with({"config", "show", target().path("config.json")},
                 {"model.layers=24", "model.attention.head_dim=256", "model.attention.angle=" + angle}));
        CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(10));
        return f;
    };
    for (const char* angle : {"p/gaussian_scale(16, 4)", "p/cosine_scale(L, d, 4)", "p/max_normal(L)"}) {
        const Finished f = show(angle);
        CAPTURE(f.err);
        CHECK(f.code == 0);
    }
    const std::pair<const char*, const char*> wrong[] = {
        {"gaussian_scale(p + 5, 4)", "gaussian_scale takes a number here: gaussian_scale([p + 5], 4)"},
        {"p/cosine_scale(m + 9, 64, 4)", "cosine_scale takes a number here: p/cosine_scale([m + 9], 64, 4)"},
        {"p/(1 + max_normal(p + 1))", "max_normal takes a number here: p/(1 + max_normal([p + 1]))"},
        {"p*gaussian_scale(16, 1)", "gaussian_scale needs a number above 1 for C"}};
    for (const auto& [angle, message] : wrong) {
        const Finished f = show(angle);
        CAPTURE(f.err);
        CHECK(f.code == 2);
        CHECK(contains(f.err, message));
    }
}

TEST_CASE("numbers: a sweep of too many runs is refused with 2 before there is memory for them") {
    std::string seeds;
    for (int i = 0; i < 100000; ++i) seeds += fmt::format("{}{}", i > 0 ? "," : "", i);
    const std::string axis = "[" + repeated("1", 1000) + "]";
    const std::pair<std::string, std::string> many[] = {
        {sweep_file("seeds", "\"seeds\": [" + seeds + "]"),
         "1 variant x 1 points (grid, zip and list) x 100000 seeds are 100000 runs; a sweep may have 10000"},
        {sweep_file(
             "grid",
             fmt::format(R"("grid": {{"model.layers": {0}, "model.width": {0}, "run.log_every": {0}}})",
                         axis)),
         "1 variant x 1000000000 points (grid, zip and list) x 1 seed are 1000000000 runs; a sweep may have "
         "10000"}};
    for (const auto& [file, message] : many) {
        const auto begun = std::chrono::steady_clock::now();
        const Finished f =
            target().run({"sweep", file, "--dry-run"}, {.limits = {{RLIMIT_AS, rlim_t{512} << 20}}});
        CAPTURE(f.err);
        CHECK(f.code == 2);
        CHECK(contains(f.err, message));
        CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(20));
    }
}

TEST_CASE("numbers: names of runs, sweeps, variants and labels have at most 255 bytes") {
    const std::string longest(255, 'x'), longer(256, 'x'),
        message = "a name of 256 bytes; a file name may have 255";
    const std::vector<std::string> shorter{"stages=[{\"steps\":2,\"context\":16}]"};
    const Finished f = target().run(target().command(longer, shorter));
    CHECK(f.code == 2);
    CHECK(contains(f.err, "run.name"));
    CHECK(contains(f.err, message));
    const Finished fits = target().run(target().command(longest, shorter));
    CAPTURE(fits.err);
    CHECK(fits.code == 0);
    const Finished labelled =
        target().run({"eval", target().path(longest), "--tokens", "64", "--label", longer});
    CHECK(labelled.code == 2);
    CHECK(contains(labelled.err, message));
    const Finished kept =
        target().run({"eval", target().path(longest), "--tokens", "64", "--label", longest});
    CAPTURE(kept.err);
    CHECK(kept.code == 0);
    for (const std::string& text :
         {"name=" + longer, R"(variants=[{"name": ")" + longer + R"(", "config": "config.json"}])",
          R"(evaluations=[{"name": ")" + longer + R"("}])"}) {
        const Finished s =
            target().run({"sweep", sweep_file("names", "\"seeds\": [1]"), "--dry-run", "--set", text});
        CAPTURE(s.err);
        CHECK(s.code == 2);
        CHECK(contains(s.err, message));
    }
}

TEST_CASE("numbers: token losses of a judge that are not finite are refused with the entry") {
    const std::string name = "judged", losses = target().path("losses.safetensors");
    REQUIRE(target().run(target().command(name, {"stages=[{\"steps\":2,\"context\":16}]"})).code == 0);
    const std::vector<std::string> eval{"eval", target().path(name), "--lengths", "16,64", "--tokens", "256"};
    const auto evaluated = [&](const char* option) {
        std::vector<std::string> all = eval;
        all.insert(all.end(), {option, losses});
        return target().run(all);
    };
    REQUIRE(evaluated("--token-losses").code == 0);
    REQUIRE(evaluated("--key-tokens").code == 0);
    const std::string whole = get(losses);
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        std::string bytes = whole;
        set_value(bytes, losses, "loss.64", 17, value);
        put(losses, bytes);
        const Finished f = evaluated("--key-tokens");
        CAPTURE(f.err);
        CHECK(f.code == 3);
        CHECK(contains(f.err, fmt::format("entry 17 of loss.64 is {}", value)));
        put(losses, whole);
    }
}
