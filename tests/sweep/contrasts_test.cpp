// The contrasts of sweep files: what is refused and where it points, and what sweep.json says of them.
#include <doctest/doctest.h>

#include "sweep/contrast.h"
#include "sweep/sweep_plan.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Two variants that are trained at 32 and evaluated at 16, 32 and 64, and an evaluation of tasks.
struct Contrasted {
    TempDir dir;
    Contrasted() {
        make_corpus(dir / "data");
        put(dir / "tiny.json", tiny_config(dir.path()));
    }
    sweep::SweepConfig sweep(const std::string& contrasts, const std::string& more = "") const {
        const std::string file = dir / "s.json";
        put(file, "{ \"name\": \"s\", \"dir\": \"" + dir.path() +
                      R"(/runs", "set": { "eval.lengths": [16, 32, 64] },
"variants": [{ "name": "a", "config": "tiny.json" }, { "name": "b", "config": "tiny.json" }],
"evaluations": [{ "name": "needles", "tasks": ["needle", "retrieval"], "lengths": [128], "depths": [0, 50] },
                { "name": "own", "variants": ["a"], "lengths": [32] }],
)" + more + "\"contrasts\": [" +
                      contrasts + "] }\n");
        return sweep::load_sweep(file, {});
    }
    sweep::SweepPlan plan(const std::string& contrasts, const std::string& more = "") const {
        return sweep::plan_sweep(sweep(contrasts, more));
    }
    std::string problem(const std::string& contrast, const std::string& more = "") const {
        return anonymous(error_of([&] { plan(contrast, more); }), dir.path() + "/");
    }
};

// A contrast of a and b at 64 with `more` at its end.
std::string contrast(const std::string& more, const std::string& name = "c") {
    return R"({ "name": ")" + name + R"(", "arms": ["a", "b"], "at": 64)" + (more.empty() ? "" : ", ") +
           more + " }";
}

}  // namespace

TEST_CASE("contrasts: sweep.json holds them with their margins, and reads back") {
    const Contrasted home;
    const sweep::SweepPlan plan = home.plan(
        contrast(R"("claim": "a reaches further", "expect": "negative")") + "," +
            R"({ "name": "at home", "arms": ["b", "a"], "at": 32 },)" +
            R"({ "name": "gap", "arms": ["a", "b"], "at": 64, "of": "gap", "margin": 0.3, "primary": false },)" +
            R"({ "name": "needles", "arms": ["a", "b"], "at": 128, "of": "margin", "margin": 1, "task": "needle",
                 "depth": 50, "evaluation": "needles" })",
        R"("seeds": [3, 1], )");
    const json::Value sweep = json::parse(sweep::sweep_json(plan), "sweep.json");
    CHECK(sweep.find("seeds")->as_array() == json::Array{3, 1});
    CHECK(sweep.find("format")->as_int64() == sweep::sweep_list_format);
    const std::vector<sweep::Contrast> read = sweep::read_contrasts(sweep, "sweep.json");
    REQUIRE(read.size() == 4);
    CHECK(read[0].margin == 0.05);
    CHECK(read[0].claim == "a reaches further");
    CHECK(read[0].expect == sweep::Expected::negative);
    CHECK(read[0].evaluation == "plain");
    CHECK(read[0].trained_at == 32);
    CHECK(read[1].margin == 0.02);
    CHECK(read[1].first == "b");
    CHECK(read[2].of == sweep::ContrastOf::gap);
    CHECK_FALSE(read[2].primary);
    CHECK(read[2].margin == 0.3);
    CHECK(read[3].task == "needle");
    CHECK(read[3].depth == 50);
    CHECK(json::write(sweep::contrasts_json(read), json::Style::pretty) ==
          json::write(sweep::contrasts_json(plan.contrasts), json::Style::pretty));
    // Without contrasts sweep.json is as it was.
    CHECK_FALSE(contains(sweep::sweep_json(home.plan("")), "seeds"));
    CHECK(error_of([] {
              sweep::read_contrasts(json::parse("{\"contrasts\": [\n{\"name\": 3}]}", "s"), "sweep.json");
          }) == "3: sweep.json:2: a contrast without a valid \"name\"");
}

TEST_CASE("contrasts: what is refused, with its line and column") {
    const Contrasted home;
    const auto has = [&](const std::string& text, const std::string& part) {
        CAPTURE(home.problem(text));
        CHECK(contains(home.problem(text), part));
    };
    has(R"({ "name": "c", "arms": ["a", "bb"], "at": 64 })",
        "contrasts.0.arms.1 (xs.json:5:44): there is no variant \"bb\": did you mean b?");
    has(R"({ "name": "c", "arms": ["a", "a"], "at": 64 })",
        "contrasts.0.arms.1 (xs.json:5:44): the arms are the same variant");
    has(R"({ "name": "c", "arms": ["a"], "at": 64 })", "contrasts.0.arms (xs.json:5:38): arms: expected two");
    has(R"({ "name": "c", "at": 64 })", "contrasts.0 (xs.json:5:15): arms: expected two variants");
    has(R"({ "name": "c", "arms": ["a", "b"] })",
        "contrasts.0 (xs.json:5:15): at: a context length is needed");
    has(R"({ "name": "c", "arms": ["a", "b"], "at": 48 })",
        "contrasts.0.at (xs.json:5:56): a is not evaluated at 48: its lengths are 16, 32, 64");
    has(R"({ "arms": ["a", "b"], "at": 64 })", "contrasts.0 (xs.json:5:15): name: a contrast needs one");
    has(contrast("") + "," + contrast(""), "contrasts.1.name (xs.json:5:71): \"c\" is given twice");
    has(contrast(R"("margin": 0)"), "contrasts.0.margin (xs.json:5:70): must be above 0");
    has(contrast(R"("margin": -1)"), "contrasts.0.margin (xs.json:5:70)");
    has(contrast(R"("evaluation": "needle")"),
        "contrasts.0.evaluation (xs.json:5:74): there is no evaluation \"needle\": did you mean needles?");
    has(contrast(R"("evaluation": "own")"),
        "contrasts.0.evaluation (xs.json:5:74): b is not evaluated as own");
    has(contrast(R"("evaluation": "needles")"), "is not evaluated as needles");  // it scores tasks alone
    has(contrast(R"("of": "losses")"), "contrasts.0.of (xs.json:5:66): expected loss, gap or margin");
    has(R"({ "name": "c", "arms": ["a", "b"], "at": 32, "of": "gap" })", "the gap is always 0");
    has(contrast(R"("task": "needle")"), "contrasts.0.task (xs.json:5:68): has no effect: of is not margin");
    const std::string margin = R"("of": "margin", "margin": 1)";
    has(contrast(margin), "the evaluation plain has no tasks");
    has(contrast(margin + R"(, "evaluation": "needles")"), "task: name one of needle, retrieval");
    has(contrast(margin + R"(, "evaluation": "needles", "task": "needl")"), "did you mean needle?");
    has(contrast(margin + R"(, "evaluation": "needles", "task": "needle", "depth": 10)"),
        "has the depths 0, 50");
    has(contrast(margin + R"(, "evaluation": "needles", "task": "needle")"),
        "contrasts.0.at (xs.json:5:56): a is not evaluated at 64: its lengths are 128");
    has(contrast(R"("of": "margin", "evaluation": "needles", "task": "needle")"), "margin: log-odds have no");
    std::string seven;
    for (const char* name : {"1", "2", "3", "4", "5", "6", "7"})
        seven += (seven.empty() ? "" : ",\n") + contrast("", name);
    has(seven, "contrasts.6 (xs.json:11:1): is the primary contrast number 7; a sweep has at most 6");
}

TEST_CASE("contrasts: of points, and of variants that --only leaves out") {
    const Contrasted home;
    const std::string grid = R"("grid": { "model.width": [8, 16] }, )";
    CHECK(contains(home.problem(contrast(""), grid), "choose one of a.width-8, a.width-16"));
    const std::string points = R"({ "name": "c", "arms": ["a.width-8", "b.width-8"], "at": 64 })";
    CHECK(home.plan(points, grid).contrasts[0].margin == 0.05);
    sweep::SweepConfig sweep = home.sweep(points, grid);
    sweep::keep_variants(sweep, {"a"});
    const sweep::SweepPlan plan = sweep::plan_sweep(sweep);
    REQUIRE(plan.contrasts.size() == 1);  // its number still decides the level of the others
    CHECK(plan.contrasts[0].second == "b.width-8");
    CHECK(plan.runs.size() == 2);
}

TEST_CASE("contrasts: the gap of variants that are trained at different lengths is refused") {
    const Contrasted home;
    const std::string set =
        R"("list": [{ "name": "long" }, { "name": "short", "set": { "stages.1.context": 16 } }], )";
    const auto arms = [](const std::string& more) {
        return R"({ "name": "c", "arms": ["a.long", "a.short"], "at": 64)" + more + " }";
    };
    CHECK(contains(home.problem(arms(R"(, "of": "gap")"), set), "the arms are trained at different lengths"));
    CHECK(home.plan(arms(""), set).contrasts[0].trained_at == 0);
}
