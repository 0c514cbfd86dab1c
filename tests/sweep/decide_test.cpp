// The runs of a sweep that adds seeds until its contrasts are decided.
#include "sweep/needed_seeds.h"

#include <doctest/doctest.h>

#include <map>

#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

TEST_CASE("sweep --decide: the seeds of a file come first, then the smallest others, twenty in all") {
    CHECK(sweep::seeds_of_looks({1}) ==
          std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20});
    const std::vector<int64_t> some = sweep::seeds_of_looks({7, 3, 100});
    CHECK(std::vector<int64_t>(some.begin(), some.begin() + 7) ==
          std::vector<int64_t>{7, 3, 100, 1, 2, 4, 5});
    CHECK(some.size() == 20);
    std::vector<int64_t> many;
    for (int64_t seed = 30; seed > 0; --seed) many.push_back(seed);
    CHECK(sweep::seeds_of_looks(many) == std::vector<int64_t>(many.begin(), many.begin() + 20));
}

TEST_CASE("sweep --decide: later seeds are for the arms of what is open, and for what these start from") {
    const TempDir dir;
    make_corpus(dir / "data");
    put(dir / "tiny.json", tiny_config(dir.path()));
    put(dir / "s.json", R"({ "name": "s", "dir": ")" + dir.path() + R"(/runs", "variants": [
        { "name": "start", "config": "tiny.json" }, { "name": "other", "config": "tiny.json" },
        { "name": "a", "config": "tiny.json", "set": { "run.init_from": "{sweep}/start.seed{seed}" } },
        { "name": "b", "config": "tiny.json" }, { "name": "c", "config": "tiny.json" }],
        "seeds": [9, 8, 7, 6, 5, 4, 3, 2, 1, 10],
        "contrasts": [{ "name": "ab", "arms": ["a", "b"], "at": 64 }, { "name": "bc", "arms": ["c", "b"], "at": 64 },
                      { "name": "d", "arms": ["other", "b"], "at": 64, "primary": false }] })");
    const sweep::SweepPlan all = sweep::plan_sweep(sweep::load_sweep(dir / "s.json", {}));
    const auto kept = [&](const sweep::NeededSeeds& needed) {
        sweep::SweepPlan plan = all;
        sweep::keep_needed(plan, needed);
        std::map<std::string, size_t> runs;
        for (const sweep::PlannedRun& run : plan.runs) ++runs[run.variant];
        return runs;
    };
    using Runs = std::map<std::string, size_t>;
    CHECK(kept({4, 4, 4}) == Runs{{"start", 4}, {"other", 4}, {"a", 4}, {"b", 4}, {"c", 4}});
    CHECK(kept({8, 4, 4}) == Runs{{"start", 8}, {"other", 4}, {"a", 8}, {"b", 8}, {"c", 4}});
    CHECK(kept({4, 8, 20}) == Runs{{"start", 4}, {"other", 4}, {"a", 4}, {"b", 8}, {"c", 8}});
    sweep::SweepPlan plan = all;
    sweep::keep_needed(plan, {4, 4, 4});
    CHECK(plan.runs.back().name == "c.seed6");  // in the order of the file
}
