// Sweep files: what they expand to, what is refused and where it points, what is already there.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "sweep/packing.h"
#include "sweep/sweep_plan.h"
#include "sweep/sweep_queue.h"
#include "train/run_directory.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Home {
    TempDir dir;
    Home() {
        make_corpus(dir / "data");
        put(dir / "tiny.json", tiny_config(dir.path()));
        put(dir / "wide.json", R"({ "model": { "width": 32 } })");
    }
    // A sweep of the tiny config with `more` at its end.
    sweep::SweepConfig sweep(const std::string& more, const std::vector<std::string>& overrides = {}) const {
        const std::string file = dir / "s.json";
        put(file, "{\n\"name\": \"s\", \"dir\": \"" + dir.path() + "/runs\",\n" + more + "\n}\n");
        return sweep::load_sweep(file, overrides);
    }
    sweep::SweepPlan plan(const std::string& more, const std::vector<std::string>& overrides = {}) const {
        return sweep::plan_sweep(sweep(more, overrides));
    }
    // The message without this directory's name.
    std::string problem(const std::string& more, const std::vector<std::string>& overrides = {}) const {
        return anonymous(error_of([&] { plan(more, overrides); }), dir.path() + "/");
    }
};

const std::string one = R"("variants": [{ "name": "a", "config": "tiny.json" }])";
const std::string two =
    R"("variants": [{ "name": "a", "config": "tiny.json" }, { "name": "b", "config": ["tiny.json", "wide.json"] }])";

std::vector<std::string> names(const sweep::SweepPlan& plan) {
    std::vector<std::string> out;
    for (const sweep::PlannedRun& run : plan.runs) out.push_back(run.name);
    return out;
}

}  // namespace

TEST_CASE("sweep: variants, seeds and files laid over one another") {
    const Home home;
    const sweep::SweepPlan plan = home.plan(two + R"(, "seeds": [1, 7], "over": ["wide.json"],
        "set": { "model.attention.heads": 4 }, "jobs": 2, "threads": 3)");
    CHECK(names(plan) == std::vector<std::string>{"a.seed1", "b.seed1", "a.seed7", "b.seed7"});
    const train::Experiment& e = plan.runs[2].experiment;
    CHECK(e.run.name == "a.seed7");
    CHECK(e.run.dir == home.dir / "runs/s");
    CHECK(e.run.seed == 7);
    CHECK(e.data_seed() == 7);
    CHECK(e.model.width == 32);
    CHECK(e.model.attention.heads == 4);
    CHECK(e.system.threads == 3);
    CHECK_FALSE(e.checkpoint.keep_optimizer);
    CHECK(plan.runs[2].directory == home.dir / "runs/s/a.seed7");
    // 12 steps of 128 tokens, four runs.
    CHECK(plan.tokens_to_train() == 4 * 12 * 128);
    const std::string json = sweep::sweep_json(plan);
    CHECK(contains(json, R"("variant": "b")"));
    CHECK(contains(json, R"("directory": "a.seed7")"));
    CHECK(contains(json, R"("baseline": "")"));
}

TEST_CASE("sweep: grid, zip and list multiply, and their values make the names") {
    const Home home;
    const sweep::SweepPlan plan = home.plan(one + R"(,
        "grid": { "model.attention.params.tau.init": [10, 2.5], "model.attention.heads": [2, 4] },
        "zip": { "optimizer.muon.lr": [0.01, 0.02], "optimizer.adam.embedding_lr": [0.1, 0.2] },
        "list": [{ "name": "x" }, { "name": "y", "set": { "model": { "width": 32 } } }],
        "set": { "model.attention.score": "scale_invariant" })");
    REQUIRE(plan.runs.size() == 16);
    CHECK(plan.runs[0].name == "a.tau-10.heads-2.lr-0.01.embedding_lr-0.1.x.seed1");
    CHECK(plan.runs[15].name == "a.tau-2.5.heads-4.lr-0.02.embedding_lr-0.2.y.seed1");
    CHECK(plan.runs[15].experiment.model.attention.params.at("tau").init == json::Value(2.5));
    CHECK(plan.runs[15].experiment.model.attention.heads == 4);
    CHECK(plan.runs[15].experiment.optimizer.adam.embedding_lr == 0.2);
    CHECK(plan.runs[15].experiment.model.width == 32);
    CHECK(plan.runs[15].of == "a");
    // Keys with the same last part show as much as tells them apart.
    const sweep::SweepPlan same = home.plan(one + R"(, "grid": {
        "model.attention.qk.kind": ["qk_rms", "none"], "model.attention.gate.kind": ["none"] })");
    REQUIRE(same.runs.size() == 2);
    CHECK(same.runs[1].name == "a.qk_kind-none.gate_kind-none.seed1");
    CHECK(home.plan(one + R"(, "grid": { "seed.init": [1, 2] })").runs[1].name == "a.init-2.seed1");
}

TEST_CASE("sweep: later settings win, and seed and variant are filled in") {
    const Home home;
    const sweep::SweepPlan plan = home.plan(R"("variants": [
        { "name": "a", "config": "tiny.json", "set": { "model.width": 24, "model.attention.heads": 4 } }],
        "set": { "model.width": 8, "data.train": [")" +
                                                home.dir.path() + R"(/data/train_*.bin"] },
        "grid": { "model.width": [32] }, "seeds": [3])",
                                            {"model.attention.heads=1"});
    CHECK(plan.runs[0].experiment.model.width == 32);
    CHECK(plan.runs[0].experiment.model.attention.heads == 1);  // the command line's
    CHECK(home.problem(one + R"(, "seeds": [3], "set": { "run.init_from": "none/{variant}.seed{seed}" })") ==
          "2: a.seed3: run.init_from: none/a.seed3 holds no checkpoint\n1 problem; nothing was started");
}

TEST_CASE("sweep: a run starts from the weights of an earlier variant of the same seed") {
    const Home home;
    const auto variants = [](const char* a, const char* b) {
        const auto one = [](const char* name, const std::string& from) {
            return fmt::format(
                R"({{ "name": "{}", "config": "tiny.json"{} }})", name,
                from.empty() ? "" : fmt::format(R"(, "set": {{ "run.init_from": "{}" }})", from));
        };
        return R"("seeds": [1, 7], "variants": [)" + one("a", a) + ", " + one("b", b) + "]";
    };
    const sweep::SweepPlan plan = home.plan(variants("", "{sweep}/a.seed{seed}"));
    CHECK(plan.runs[3].experiment.run.init_from == home.dir / "runs/s/a.seed7");
    CHECK(plan.runs[3].after == home.dir / "runs/s/a.seed7");
    CHECK(plan.runs[2].after.empty());
    CHECK(
        home.problem(variants("{sweep}/b.seed1", "")) ==
        "2: a.seed1: run.init_from: xruns/s/b.seed1 is trained later in this sweep: list its variant before "
        "this one\n1 problem; nothing was started");
}

TEST_CASE("sweep: the problems of all runs at once, each where it stands in the sweep file") {
    const Home home;
    const std::string text = home.problem(two + R"(, "seeds": [1, 2], "baseline": "b",
"set": { "model.widht": 3 },
"evaluations": [{ "name": "ntk", "set": { "eval.rope.kind": "ntc" } }])");
    CHECK(text ==
          "2: every run: model.widht (xs.json:4:25): unknown key: did you mean model.width?\n"
          "1 problem; nothing was started");
    CHECK(home.problem(two + R"(, "evaluations": [
{ "name": "e", "variants": ["b"], "set": { "eval.rope.kind": "ntc" } }])")
              .starts_with("2: b.seed1: evaluations.0 (e): eval.rope.kind (xs.json:4:62): expected ntk"));
    // A file of a variant is at fault: its own place.
    put(home.dir / "bad.json", "{ \"model\": { \"width\": \"x\" } }");
    CHECK(contains(home.problem(two + R"(, "over": ["bad.json"])"),
                   "every run: model.width (xbad.json:1:23): expected an integer, got the string \"x\""));
}

TEST_CASE("sweep: --over lays config files over every run, after those of the sweep file") {
    const Home home;
    put(home.dir / "small.json", R"({ "base": "wide.json", "model": { "attention": { "heads": 4 } } })");
    const auto over = [&](const std::string& more, const std::vector<std::string>& overrides,
                          const std::vector<std::string>& files) {
        home.sweep(more);
        std::vector<std::string> paths;
        for (const std::string& file : files) paths.push_back(home.dir / file);
        return sweep::plan_sweep(sweep::load_sweep(home.dir / "s.json", overrides, paths));
    };
    put(home.dir / "narrow.json", R"({ "model": { "width": 8 } })");
    const sweep::SweepPlan plan = over(two + R"(, "over": ["narrow.json"])", {}, {"small.json"});
    CHECK(plan.directory == home.dir / "runs/s-small");
    for (const sweep::PlannedRun& run : plan.runs) {
        CHECK(run.experiment.model.width == 32);
        CHECK(run.experiment.model.attention.heads == 4);
    }
    // The later file wins; settings of the sweep and of the command line win over both.
    CHECK(over(one, {}, {"small.json", "narrow.json"}).runs[0].experiment.model.width == 8);
    CHECK(over(one, {}, {"small.json", "narrow.json"}).directory == home.dir / "runs/s-small-narrow");
    CHECK(
        over(one + R"(, "set": { "model.width": 16 })", {}, {"small.json"}).runs[0].experiment.model.width ==
        16);
    CHECK(over(one, {"model.width=24", "name=other"}, {"small.json"}).runs[0].experiment.model.width == 24);
    CHECK(over(one, {"name=other"}, {"small.json"}).directory == home.dir / "runs/other");
    // Problems point to the overlay, or to what that builds on.
    const auto problem = [&](const std::vector<std::string>& files) {
        return anonymous(error_of([&] { over(two, {}, files); }), home.dir.path() + "/");
    };
    put(home.dir / "bad.json", "{ \"model\": { \"width\": \"x\" } }");
    put(home.dir / "worse.json", "{ \"base\": \"bad.json\",\n\"modle\": {} }");
    CHECK(problem({"bad.json"}) ==
          "2: every run: model.width (xbad.json:1:23): expected an integer, got the string \"x\"\n1 problem; "
          "nothing was started");
    CHECK(contains(problem({"worse.json"}), "modle (xworse.json:2:1): unknown key: did you mean model?"));
    CHECK(contains(problem({"worse.json"}), "model.width (xbad.json:1:23)"));
    CHECK(problem({"smal.json"}) == "2: --over: there is no file xsmal.json: did you mean xsmall.json?");
}

TEST_CASE(
    "sweep: the values of a run came from the sweep file, an overlay or a config, and the run says so") {
    const Home home;
    put(home.dir / "small.json", R"({ "model": { "attention": { "heads": 4 } } })");
    const std::string more = two + R"(, "over": ["small.json"], "set": { "model.mlp.hidden": 48 })";
    const sweep::SweepPlan plan = home.plan(more, {"eval.every=3"});
    const std::string config = home.dir / "a.seed1.json";
    CHECK(train::origins_beside(config) == home.dir / "a.seed1.origins.json");
    put(config, plan.runs[0].resolved);
    put(train::origins_beside(config), plan.runs[0].origins);

    // What the worker that trains the run makes of them.
    const std::vector<std::string> overrides{"optimizer.clip_norm=0.25"};
    const json::Value origins = json::parse(
        train::origins_text(
            config::load_config<train::Experiment>({.file = config, .overrides = overrides}).origins),
        "origins");
    const auto at = [&](const char* path) {
        const json::Value* found = origins.find(path);
        REQUIRE_MESSAGE(found != nullptr, path);
        return io::base_name(*found->to_string());
    };
    CHECK(at("model.attention.heads").starts_with("small.json:1:"));
    CHECK(at("model.mlp.hidden").starts_with("s.json:"));
    CHECK(at("model.layers").starts_with("tiny.json:"));
    CHECK(at("eval.every") == "command line");
    CHECK(at("run.seed") == "derived");
    CHECK(at("checkpoint.at_start") == "default");
    CHECK(at("optimizer.clip_norm") == "command line");
}

TEST_CASE("sweep: only some of its variants") {
    const Home home;
    home.sweep(two + R"(, "baseline": "a", "grid": { "model.width": [8, 16] },
        "evaluations": [{ "name": "plain" }, { "name": "ntk", "variants": ["a.width-8"] }])");
    const auto kept = [&](const std::vector<std::string>& names) {
        sweep::SweepConfig sweep = sweep::load_sweep(home.dir / "s.json", {"baseline="});
        sweep::keep_variants(sweep, names);
        return sweep::plan_sweep(sweep);
    };
    const sweep::SweepPlan plan = kept({"b"});
    REQUIRE(plan.runs.size() == 2);
    CHECK(plan.runs[0].variant == "b.width-8");
    CHECK(plan.runs[1].variant == "b.width-16");
    CHECK(plan.runs[0].evaluations.size() == 1);
    CHECK(kept({"a"}).runs[0].evaluations.size() == 2);
    CHECK(kept({"b", "a"}).runs.size() == 4);
    CHECK(contains(error_of([&] { kept({"a", "c"}); }), "--only: there is no variant \"c\""));
    // A baseline that is left out.
    sweep::SweepConfig sweep = sweep::load_sweep(home.dir / "s.json", {"baseline=a.width-16"});
    sweep::keep_variants(sweep, {"b"});
    CHECK(sweep.baseline.empty());
}

TEST_CASE("sweep: its own fields are read as strictly as a config") {
    const Home home;
    const auto has = [&](const std::string& more, const std::string& part) {
        CAPTURE(home.problem(more));
        CHECK(contains(home.problem(more), part));
    };
    has(one + R"(, "sedes": [1])", "sedes (xs.json:3:55): unknown key: did you mean seeds?");
    has(R"("variants": [{ "name": "a", "config": "none.json" }])",
        "variants.0.config (xs.json:3:39): there is no file xnone.json");
    has(R"("variants": [{ "name": "a b", "config": "tiny.json" }])", "\"a b\" is not a valid name");
    has(R"("variants": [])", "at least one variant");
    has(R"("variants": [{ "name": "a" }])", "config: expected a file name or a list of them");
    has(one + R"(, "over": ["none.json"])", "over.0 (xs.json:3:64): there is no file");
    has(one + R"(, "set": { "run.seed": 3 })", "run.seed is the sweep's own: seeds are listed under seeds");
    has(one + R"(, "set": { "run": { "name": "x" } })",
        "set.run.name (xs.json:3:81): run.name is the sweep's own");
    has(one + R"(, "grid": { "model.width": 3 })", "grid.model.width (xs.json:3:80): expected a list");
    has(one + R"(, "zip": { "model.width": [1, 2], "model.layers": [1] })",
        "has 1 values, but the first list has 2");
    has(one + R"(, "baseline": "aa")", "there is no variant \"aa\": did you mean a?");
    has(one + R"(, "grid": { "model.width": [16, 32] }, "baseline": "a")",
        "choose one of a.width-16, a.width-32");
    has(one + R"(, "evaluations": [{ "name": "e", "variants": ["c"] }])",
        "evaluations.0: there is no variant \"c\"");
    has(one + R"(, "evaluations": [{ "name": "plain", "set": { "eval.rope.kind": "ntk" } }])",
        "plain is the label of the unchanged model");
    has(one + R"(, "evaluations": [{ "name": "e", "samples": 3 }])", "has no effect: there are no tasks");
    has(one + R"(, "grid": { "model.width": [16, 16] })", "two points have this name");
}

TEST_CASE("sweep: a point that contradicts itself is an error, or skipped with its reason") {
    const Home home;
    const std::string grid = one + R"(, "grid": { "model.attention.score": [null, "scale_invariant"],
        "model.attention.params.tau.init": [10] })";
    CHECK(contains(home.problem(grid),
                   "a.score-null.tau-10.seed1: model.attention.params.tau (xs.json:4:45): has no effect"));
    const sweep::SweepPlan plan = home.plan(grid + R"(, "skip_contradictory": true)");
    CHECK(names(plan) == std::vector<std::string>{"a.score-scale_invariant.tau-10.seed1"});
    REQUIRE(plan.skipped.size() == 1);
    CHECK(contains(plan.skipped[0], "a.score-null.tau-10: model.attention.params.tau"));
    // A value that is wrong by itself is no contradiction.
    CHECK(
        contains(home.problem(one + R"(, "skip_contradictory": true, "grid": { "model.width": [16, "x"] })"),
                 "expected an integer"));
}

TEST_CASE("sweep: variants of a seed see the same order of data, or the sweep is refused") {
    const Home home;
    CHECK(contains(home.problem(one + R"(, "grid": { "seed.data": [1, 2] })"), "would not be paired"));
    // The same for all is no such thing; contexts that change the order are only told.
    CHECK(home.plan(two + R"(, "set": { "seed.data": 5 })").runs[0].experiment.data_seed() == 5);
    const sweep::SweepPlan plan = home.plan(one + R"(, "grid": { "data.shuffle": ["random", "none"] })");
    REQUIRE(plan.notes.size() == 1);
    CHECK(contains(plan.notes[0], "2 different streams or orders"));
    CHECK(home.plan(two).notes.empty());
    CHECK(home.plan(one + R"(, "grid": { "data.document_mask": [true, false] })").notes.empty());
}

TEST_CASE("sweep: data that are not there are found before anything starts") {
    const Home home;
    const std::string text = home.problem(one + R"(, "set": { "data.val": ["none_*.bin"] })");
    CHECK(text.starts_with("3: a.seed1: "));
    CHECK(contains(text, "none_*.bin"));
}

TEST_CASE("sweep: the disk it needs is that of the checkpoints it will leave and of those under way") {
    const Home home;
    // P parameters: weights 4 P bytes, a moment per matrix and two per other parameter.
    const sweep::SweepPlan plan = home.plan(two + R"(, "seeds": [1, 2], "jobs": 2)");
    std::vector<int64_t> weights, whole;
    for (const sweep::PlannedRun& run : plan.runs) {
        const train::Experiment& e = run.experiment;
        const model::Transformer model(e.model, e.table_rows(), e.eval.rope);
        int64_t w = 0, moments = 0;
        for (const model::Param& p : model.params().params()) {
            w += 4 * p.count();
            moments += 4 * p.count() * (p.group == model::ParamGroup::matrix ? 1 : 2);
        }
        weights.push_back(w);
        whole.push_back(w + moments);
        CHECK(run.kept_bytes == w);
        CHECK(run.peak_bytes == 3 * (w + moments));  // keep is 2, and one more while it is written
    }
    const int64_t kept = weights[0] + weights[1] + weights[2] + weights[3];
    const int64_t largest = std::max(3 * whole[0] - weights[0], 3 * whole[1] - weights[1]);
    CHECK(plan.disk_bytes() == kept + 2 * largest);  // the two largest, at the same time
    CHECK(contains(plan.text(), "2 variants x 2 seeds = 4 runs"));
}

TEST_CASE("sweep: a run trained by hand with the same config is done; another config is refused") {
    const Home home;
    const auto train_by_hand = [&](const std::vector<std::string>& more) {
        std::vector<std::string> overrides{"run.dir=" + home.dir.path() + "/runs/s", "run.name=a.seed1"};
        overrides.insert(overrides.end(), more.begin(), more.end());
        const config::LoadedConfig<train::Experiment> config =
            load_tiny(get(home.dir / "tiny.json"), overrides);
        REQUIRE(run_training(config, true) == ExitCode::ok);
    };
    train_by_hand({});
    const sweep::SweepPlan plan = home.plan(one + R"(, "seeds": [1, 2])");
    CHECK(plan.runs[0].state == sweep::RunState::trained);
    CHECK(plan.runs[0].step == 12);
    CHECK(plan.runs[1].state == sweep::RunState::fresh);
    CHECK(plan.tokens_to_train() == 12 * 128);
    CHECK(contains(plan.text(), "1 trained already"));
    CHECK(
        contains(home.problem(one + R"(, "set": { "model.width": 32 })"),
                 "a.seed1: xruns/s/a.seed1: model.width is 16, here 32; it was started with another config"));
    // Validated otherwise: it stays, and the plan says so.
    CHECK(contains(home.plan(one + R"(, "set": { "eval.lengths": [16] })").notes.at(0), "eval.lengths"));
    // More steps than it has: it goes on; fewer: refused.
    CHECK(home.plan(one + R"(, "set": { "stages.1.steps": 9 })").runs[0].state == sweep::RunState::begun);
    CHECK(
        contains(home.problem(one + R"(, "set": { "stages.1.steps": 4 })"), "holds a checkpoint of step 12"));
}

TEST_CASE("a checkpoint without the optimiser serves evaluation and init_from, and resuming it is refused") {
    const Home home;
    const std::vector<std::string> lean{"checkpoint.keep_optimizer=false", "checkpoint.every=3"};
    REQUIRE(run_training(load_tiny(tiny_config(home.dir.path(), "lean"), lean)) == ExitCode::ok);
    const std::string root = home.dir / "lean/checkpoints";
    CHECK(io::checkpoint_steps(root) == std::vector<int64_t>{12});  // those of steps 9 and before are gone
    const io::Checkpoint checkpoint = io::verify_checkpoint(root, 12);
    CHECK_FALSE(checkpoint.has("optimizer.safetensors"));
    CHECK(checkpoint.has("model.safetensors"));
    REQUIRE(run_training(load_tiny(tiny_config(home.dir.path(), "whole"))) == ExitCode::ok);
    CHECK(get(checkpoint.file("model.safetensors")) ==
          get(home.dir / "whole/checkpoints/step_00000012/model.safetensors"));
    // Again: nothing to do. Longer: refused, and nothing is lost.
    CHECK(run_training(load_tiny(tiny_config(home.dir.path(), "lean"), lean)) == ExitCode::ok);
    const std::string text = error_of([&] {
        run_training(load_tiny(tiny_config(home.dir.path(), "lean"),
                               {"checkpoint.keep_optimizer=false", "stages.1.steps=9"}));
    });
    CHECK(text.starts_with("4: "));
    CHECK(contains(text, "holds the weights only"));
    CHECK(io::checkpoint_steps(root) == std::vector<int64_t>{12});
    CHECK(run_training(load_tiny(tiny_config(home.dir.path(), "next"),
                                 {"run.init_from=" + (home.dir / "lean")})) == ExitCode::ok);
}

TEST_CASE("every sweep under configs/reproduce resolves: all its runs and evaluations, up to the data") {
    int sweeps = 0;
    for (const auto& entry : std::filesystem::directory_iterator(LONGREACH_CONFIGS "/reproduce")) {
        const std::string name = entry.path().filename().string();
        const json::Value file = json::parse(get(entry.path().string()), name, {.relaxed = true});
        if (file.find("name") == nullptr) continue;  // laid over variants
        CAPTURE(name);
        ++sweeps;
        // Shards are the last to be looked for, and these are nowhere.
        const TempDir dir;
        const std::string text = error_of([&] {
            sweep::plan_sweep(
                sweep::load_sweep(entry.path().string(),
                                  {"dir=" + dir.path(), "data.train=[\"" + (dir / "none_*.bin") + "\"]"}));
        });
        CAPTURE(text);
        // The runs of these start from those of another sweep, which are nowhere either.
        if (contains(name, "table2") || contains(name, "needle") || name == "length_extension_cpu.json" ||
            name == "index_cpu.json") {
            CHECK(contains(text, "holds no checkpoint"));
            continue;
        }
        CHECK(text.starts_with("3: every run: no file matches"));
        CHECK(text.ends_with("1 problem; nothing was started"));
    }
    CHECK(sweeps == 48);
}

TEST_CASE(
    "a sweep that leaves it open runs as many at a time as there are cores, as far as their memory fits") {
    const std::vector<int64_t> runs(12, 100);
    const auto packed = [&](sweep::PackingRequest request) {
        request.bytes = runs;
        const sweep::Packing p = sweep::pack(request);
        return std::pair(p.jobs, p.threads);
    };
    CHECK(packed({.cores = 2, .free_bytes = 1000}) == std::pair<int64_t, int64_t>(2, 1));
    CHECK(packed({.cores = 64, .free_bytes = 10000}) == std::pair<int64_t, int64_t>(12, 5));
    CHECK(packed({.cores = 64, .free_bytes = 1000}) == std::pair<int64_t, int64_t>(7, 9));  // of 750 bytes
    CHECK(packed({.cores = 8, .free_bytes = 50}) == std::pair<int64_t, int64_t>(1, 8));
    CHECK(packed({.threads = 4, .cores = 8, .free_bytes = 1000}) == std::pair<int64_t, int64_t>(2, 4));
    CHECK(packed({.jobs = 3, .cores = 8, .free_bytes = 50}) == std::pair<int64_t, int64_t>(3, 2));
    CHECK(packed({.cores = 8, .free_bytes = 1000, .on_cpu = false}) == std::pair<int64_t, int64_t>(1, 8));

    // What a run takes is at least its weights, a gradient, and Adam's or Muon's moments.
    const Home home;
    const sweep::SweepPlan plan = home.plan(two + R"(, "seeds": [1, 2])");
    for (const sweep::PlannedRun& run : plan.runs) {
        const train::Experiment& e = run.experiment;
        const model::Transformer model(e.model, e.table_rows(), e.eval.rope);
        CHECK(sweep::memory_of(e) > 3 * 4 * model.params().count());
        CHECK(e.system.threads == plan.threads);
        CHECK(contains(run.resolved, fmt::format("\"threads\": {}", plan.threads)));
    }
}
