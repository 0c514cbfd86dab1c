// Contrasts of a sweep directory: what is paired, what is said of it, and where it stands in tables and on the page.
#include "report/contrasts.h"

#include <doctest/doctest.h>

#include "io/temp_dir.h"
#include "report/page.h"
#include "report/sweep_results.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// Two variants; runs of any number of seeds with losses at 16 and 64, and a margin of a task at two depths.
struct Contrasted {
    TempDir dir;
    std::vector<sweep::Contrast> contrasts;
    std::vector<int64_t> seeds;
    std::string runs;
    Contrasted() {
        for (int64_t seed = 1; seed <= 20; ++seed) seeds.push_back(seed);
    }
    sweep::Contrast& add(const std::string& name) {
        sweep::Contrast& c = contrasts.emplace_back();
        c.name = name;
        c.first = "a";
        c.second = "b";
        c.at = 64;
        c.margin = 0.05;
        c.trained_at = 16;
        return c;
    }
    void run(const std::string& variant, int64_t seed, double at_16, double at_64,
             const std::string& fingerprint = "00000000000000aa", double margin = 0) {
        const std::string name = fmt::format("{}.seed{}", variant, seed);
        runs +=
            fmt::format(R"({}{{"variant": "{}", "seed": {}, "directory": "{}", "evaluations": ["plain"]}})",
                        runs.empty() ? "" : ",\n", variant, seed, name);
        io::make_directories(dir / (name + "/eval/plain"));
        put(dir / (name + "/eval/plain/val.csv"),
            fmt::format("step,tokens,length,loss,fingerprint\n9,9,16,{},{}\n9,9,64,{},{}\n", at_16,
                        fingerprint, at_64, fingerprint));
        put(dir / (name + "/eval/plain/tasks.csv"),
            fmt::format("step,task,length,depth,samples,accuracy,margin\n9,needle,64,0,8,1,{}\n9,needle,64,"
                        "50,8,1,{}\n",
                        margin, margin + 2));
    }
    // Pairs whose difference at 64 is `mean`, more or less `spread`; at 16 there is none.
    void pairs(int64_t first, int64_t last, double mean, double spread) {
        for (int64_t seed = first; seed <= last; ++seed) {
            run("a", seed, 1, 2 + mean + (seed % 2 == 0 ? spread : -spread));
            run("b", seed, 1, 2, "00000000000000aa", 1.0 / static_cast<double>(seed));
        }
    }
    report::Collection collection() const {
        json::Value sweep = json::parse(R"({"name": "s", "baseline": "b", "runs": [)" + runs + "]}", "sweep");
        if (!contrasts.empty())
            sweep.set("seeds", json::Value(json::Array(seeds.begin(), seeds.end())))
                .set("contrasts", sweep::contrasts_json(contrasts));
        put(dir / "sweep.json", json::write(sweep, json::Style::pretty));
        return report::collect({dir.path()});
    }
    report::ContrastResult result() const { return report::contrast_results(collection()).at(0); }
};

}  // namespace

TEST_CASE("contrasts: verdicts say what the claim needs") {
    const auto verdict = [](sweep::Expected expect, double mean, double spread) {
        Contrasted sweep;
        sweep.add("c").expect = expect;
        sweep.pairs(1, 4, mean, spread);
        return sweep.result().verdict;
    };
    using sweep::Expected;
    CHECK(verdict(Expected::unsaid, -1, 0.01) == "below");
    CHECK(verdict(Expected::unsaid, 1, 0.01) == "above");
    CHECK(verdict(Expected::negative, -1, 0.01) == "holds");
    CHECK(verdict(Expected::negative, 1, 0.01) == "fails");
    CHECK(verdict(Expected::positive, 1, 0.01) == "holds");
    CHECK(verdict(Expected::positive, -1, 0.01) == "fails");
    CHECK(verdict(Expected::positive, 0, 0.001) == "no difference beyond 0.05");
    CHECK(verdict(Expected::positive, 0.02, 0.001) == "holds, by less than 0.05");
    CHECK(verdict(Expected::none, 0, 0.001) == "holds: no difference beyond 0.05");
    CHECK(verdict(Expected::none, 0.02, 0.001) == "holds: no difference beyond 0.05");
    CHECK(verdict(Expected::none, 0.5, 0.001) == "fails");
    CHECK(verdict(Expected::none, 0.06, 0.01) == "above");  // perhaps by less than the margin
    CHECK(verdict(Expected::negative, 0, 1) == "open");
}

TEST_CASE("contrasts: looks go through the seeds in their order, and more seeds change none of them") {
    Contrasted sweep;
    sweep.add("c");
    sweep.pairs(1, 3, 1, 0.01);
    CHECK(sweep.result().answer.look == 0);
    CHECK(sweep.result().answer.seeds == 3);
    CHECK_FALSE(sweep.result().answer.interval.has_interval());
    CHECK(sweep.result().verdict == "open");
    sweep.pairs(4, 4, 1, 0.01);
    const report::ContrastResult four = sweep.result();
    CHECK(four.answer.look == 1);
    CHECK(four.verdict == "above");
    sweep.pairs(5, 9, -3, 0.01);
    CHECK(sweep.result().answer.interval.low == four.answer.interval.low);
    CHECK(sweep.result().answer.seeds == 4);
    // In another order those that come first decide.
    sweep.seeds = {5, 6, 7, 8, 1, 2, 3, 4};
    CHECK(sweep.result().verdict == "below");
    // A seed that is missing ends them.
    sweep.seeds = {1, 2, 3, 99, 4, 5, 6, 7};
    CHECK(sweep.result().answer.look == 0);
}

TEST_CASE("contrasts: arms that scored other tokens are no pair, and those set apart together are one") {
    Contrasted sweep;
    sweep.add("c");
    sweep.pairs(1, 3, 1, 0.01);
    sweep.run("a", 4, 1, 3, "00000000000000bb");
    sweep.run("b", 4, 1, 2);
    CHECK(sweep.result().answer.seeds == 3);
    CHECK(sweep.result().verdict == "open; some seeds scored other text in the two arms");
    Contrasted apart;
    apart.add("c");
    for (int64_t seed = 1; seed <= 4; ++seed) {
        const double noise = 0.01 * static_cast<double>(seed);
        apart.run("a", seed, 1, 3 + noise, "00000000000000bb");
        apart.run("b", seed, 1, 2, "00000000000000bb");
        for (const char* other : {"c", "d", "e"}) apart.run(other, seed, 1, 2);
    }
    CHECK(apart.result().verdict == "above");
}

TEST_CASE("contrasts: gaps, margins of tasks, and descriptive ones") {
    Contrasted sweep;
    sweep.add("gap").of = sweep::ContrastOf::gap;
    for (const int64_t depth : {-1, 50}) {
        sweep::Contrast& c = sweep.add(fmt::format("margin{}", depth));
        c.of = sweep::ContrastOf::margin;
        c.task = "needle";
        c.depth = depth;
    }
    sweep.add("described").primary = false;
    for (int64_t seed = 1; seed <= 5; ++seed) {
        const double s = static_cast<double>(seed);
        sweep.run("a", seed, 1 + s, 3 + 2 * s, "00000000000000aa", 2 * s);
        sweep.run("b", seed, 1, 2, "00000000000000aa", s);
    }
    const std::vector<report::ContrastResult> results = report::contrast_results(sweep.collection());
    // (3 + 2 s - 1 - s) - (2 - 1), for 1 to 4.
    CHECK(results[0].answer.interval.mean == doctest::Approx(3.5));
    // Depths 0 and 50: 2 s + 1 against s + 1; at 50 2 s + 2 against s + 2.
    CHECK(results[1].answer.interval.mean == doctest::Approx(2.5));
    CHECK(results[2].answer.interval.mean == doctest::Approx(2.5));
    CHECK(results[1].answer.confidence == doctest::Approx(1 - 0.05 / 3 / 4));
    // All five: 1 + 2 s.
    CHECK(results[3].verdict == "descriptive");
    CHECK(results[3].answer.interval.mean == doctest::Approx(7));
    CHECK(results[3].answer.seeds == 5);
    CHECK(results[3].answer.confidence == 0.95);
}

TEST_CASE("contrasts: they come first in tables and on the page, and other intervals are descriptive there") {
    Contrasted sweep;
    sweep::Contrast& c = sweep.add("reach <b>");
    c.claim = "a loses more & further";
    c.expect = sweep::Expected::positive;
    sweep.pairs(1, 4, 1, 0.01);
    const std::string text = report::sweep_tables(sweep.collection());
    const std::string page = report::report_page(sweep.collection());
    CAPTURE(text);
    CHECK(contains(text, "reach <b>    holds"));
    CHECK(contains(text, "  reach <b>: a loses more & further\n"));
    CHECK(contains(text, "holds"));
    CHECK(text.find("reach <b>") < text.find("loss at context"));
    CHECK(contains(text, "[descriptive 95% interval over seeds"));
    CHECK(contains(page, "a loses more &amp; further"));
    CHECK(page.find("id=\"contrasts\"") < page.find("id=\"overview\""));
    CHECK(contains(page, "descriptive 95% interval from"));
    CHECK(contains(page, "descriptive 95% t-interval"));
    // Without contrasts nothing of this is there.
    sweep.contrasts.clear();
    CHECK_FALSE(contains(report::sweep_tables(sweep.collection()), "descriptive"));
    const std::string plain = report::report_page(sweep.collection());
    CHECK_FALSE(contains(plain, "id=\"contrasts\""));
    CHECK_FALSE(contains(plain, "descriptive"));
}
