// Several validation sets: each is scored as data.val would be, a signal inside or between them repeats
// nothing, and data.val itself stays what it is without them.
#include <doctest/doctest.h>

#include <csignal>
#include <filesystem>

#include "base/text.h"
#include "train/evaluation.h"
#include "train/interpose.h"
#include "sweep/sweep_plan.h"
#include "train/tiny_run.h"
#include "train/validated.h"

using namespace longreach;
using namespace longreach::test;

namespace fs = std::filesystem;

namespace {

constexpr int64_t steps = 12;
constexpr size_t read_bytes = 130;  // of a sequence of 64 tokens and the one after it, 2 bytes each

using Overrides = std::vector<std::string>;

constexpr const char* set_records[] = {"sets/books/val.csv", "sets/books/positions.csv", "sets/code/val.csv",
                                       "sets/code/positions.csv"};

struct Home {
    TempDir dir;
    Results whole;
    Home() {
        make_corpus(dir / "data", 1);
        make_corpus(dir / "books", 2);
        make_corpus(dir / "code", 3);
        check(run_training(config("whole")) == ExitCode::ok, "the reference run");
        whole = results("whole");
    }
    Overrides sets() const {
        return {"data.val_sets.books.paths=[\"" + (dir / "books/val_*.bin") + "\"]",
                "data.val_sets.code.paths=[\"" + (dir / "code/val_*.bin") + "\"]"};
    }
    // Two batches at each set, length and validation, four at the end.
    config::LoadedConfig<train::Experiment> plain(const std::string& name, Overrides more = {}) const {
        more.insert(more.begin(), "eval.batch_tokens=64");
        return load_tiny(tiny_config(dir.path(), name), more);
    }
    config::LoadedConfig<train::Experiment> config(const std::string& name, Overrides more = {}) const {
        const Overrides own = sets();
        more.insert(more.end(), own.begin(), own.end());
        return plain(name, more);
    }
    std::string path(const std::string& name) const { return dir / name; }
    std::string log(const std::string& name) const { return get(path(name) + "/log.txt"); }
    // With the records of the sets, and their copies in the last checkpoint.
    Results results(const std::string& name) const {
        Results files = results_of(path(name), steps);
        const std::string checkpoint = path(name) + "/checkpoints/" + io::checkpoint_name(steps);
        for (const std::string record : set_records) {
            files[record] = get(io::join_path(path(name), record));
            const std::string copy = train::name_in_checkpoint(record);
            files[copy] = get(io::join_path(checkpoint, copy));
        }
        return files;
    }
};

const Home& home() {
    static const Home h;
    return h;
}

ExitCode stop_in_read(const config::LoadedConfig<train::Experiment>& config, int count, int ranks = 1) {
    raise_at_read(read_bytes, count, SIGTERM);
    const ExitCode code = run_training(config, false, ranks);
    raise_at_read(0, 0, 0);
    return code;
}

int64_t times(const std::string& text, const std::string& part) {
    int64_t count = 0;
    for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++count;
    return count;
}

// Every validation of every set was finished once.
void check_scored_once(const std::string& name) {
    for (const int step : {4, 8, 12})
        for (const char* set : {"", " on books", " on code"})
            CHECK(times(home().log(name), fmt::format("validation at step {}{}:", step, set)) == 1);
}

}  // namespace

TEST_CASE("validation sets: data.val is what it is without them, and each set what data.val would be") {
    REQUIRE(run_training(home().plain("none")) == ExitCode::ok);
    Results none = results_of(home().path("none"), steps), with = results_of(home().path("whole"), steps);
    none.erase("state.json");  // the lengths of the sets' records are in it
    with.erase("state.json");
    CHECK(differing(none, with) == "");
    CHECK(io::kind_of(home().path("none/sets"), io::Links::refuse) == io::PathKind::missing);
    for (const std::string set : {"books", "code"}) {
        CAPTURE(set);
        const Overrides alone{"data.val=[\"" + (home().dir / (set + "/val_*.bin")) + "\"]"};
        REQUIRE(run_training(home().plain("alone-" + set, alone)) == ExitCode::ok);
        for (const char* file : {"val.csv", "positions.csv"}) {
            const std::string here = get(home().path("whole/sets/" + set + "/" + file));
            CHECK(here == get(home().path("alone-" + set + "/" + file)));
            CHECK(here != get(home().path(std::string("whole/") + file)));
        }
    }
    check_scored_once("whole");
    // The plan is printed before there is a run directory.
    const TempDir dir;
    train::Console console(true);
    console.open_log(dir / "log");
    std::string note;
    const auto config = home().config("planned");
    const std::unique_ptr<Ops> ops = train::open_device(config.value.system, note);
    const train::Trainer trainer(config.value, console, *ops);
    const std::string log = get(dir / "log");
    CHECK(contains(log, "further validation tokens: books "));
    CHECK(contains(log, "at the end, at 2 lengths, on data.val and 2 further sets; "));
}

TEST_CASE(
    "validation sets: stopped in any batch of any set and resumed, the bytes are those of the whole run") {
    int stops = 0, count = 1;
    for (ExitCode code = ExitCode::stopped; code == ExitCode::stopped && count < 60; ++count) {
        CAPTURE(count);
        const std::string name = fmt::format("stopped{}", count);
        code = stop_in_read(home().config(name), count);
        if (code != ExitCode::stopped) break;
        ++stops;
        CHECK(sweep::look_at_run(home().path(name), home().config(name).value).state ==
              sweep::RunState::begun);
        REQUIRE(run_training(home().config(name)) == ExitCode::ok);
        CHECK(io::kind_of(home().path(name + "/validation.partial"), io::Links::refuse) ==
              io::PathKind::missing);
        CHECK(differing(home().whole, home().results(name)) == "");
        check_scored_once(name);
    }
    CHECK(stops >= 18);  // 2 + 2 + 4 sequences of 64 tokens of three sets, less those that end a validation
}

TEST_CASE("validation sets: several ranks stop in each set together and go on alone, or together") {
    const Overrides eight{"batch.tokens=256", "batch.micro_tokens=32"};
    REQUIRE(run_training(home().config("alone", eight)) == ExitCode::ok);
    const Results expected = home().results("alone");
    for (const int count : {1, 2, 3, 4, 5, 8}) {
        for (const int later : {1, 2}) {
            CAPTURE(count);
            const std::string name = fmt::format("ranks{}.{}", count, later);
            const auto config = home().config(name, eight);
            REQUIRE(stop_in_read(config, count, 2) == ExitCode::stopped);
            REQUIRE(run_training(config, false, later) == ExitCode::ok);
            CHECK(differing(expected, home().results(name)) == "");
            check_scored_once(name);
        }
    }
}

TEST_CASE("validation sets: stopped in every batch, each start gets further") {
    int starts = 0;
    ExitCode code = ExitCode::stopped;
    for (; code == ExitCode::stopped && starts < 80; ++starts)
        code = stop_in_read(home().config("stutter"), 1);
    CHECK(code == ExitCode::ok);
    CHECK(starts > 18);
    CHECK(differing(home().whole, home().results("stutter")) == "");
    check_scored_once("stutter");
}

TEST_CASE("validation sets: lost records come back from the checkpoint, later lines go") {
    const auto config = home().config("lost");
    raise_at_step(6, SIGTERM);
    REQUIRE(run_training(config) == ExitCode::stopped);
    raise_at_step(0, 0);
    fs::remove_all(home().path("lost/sets/books"));
    put(home().path("lost/sets/code/val.csv"), get(home().path("lost/sets/code/val.csv")) + "7,1,16,9\n");
    REQUIRE(run_training(config) == ExitCode::ok);
    CHECK(contains(home().log("lost"), "sets/books/val.csv was missing or changed; restored from "));
    CHECK(differing(home().whole, home().results("lost")) == "");
    // --fresh leaves nothing of the sets.
    REQUIRE(run_training(home().plain("lost"), true) == ExitCode::ok);
    CHECK(io::kind_of(home().path("lost/sets"), io::Links::refuse) == io::PathKind::missing);
}

TEST_CASE("validation sets: a link in the place of a directory or a record is refused") {
    const std::string run = home().path("linked");
    for (const std::string place : {"sets", "sets/books", "sets/books/val.csv"}) {
        CAPTURE(place);
        fs::remove_all(run);
        fs::create_directories(fs::path(io::join_path(run, place)).parent_path());
        fs::create_directories(home().path("elsewhere"));
        fs::create_symlink(home().path("elsewhere"), io::join_path(run, place));
        CHECK(anonymous(error_of([&] { run_training(home().config("linked")); }), home().dir.path()) ==
              fmt::format("5: x/linked/{} is not a {}: links and special files are not accepted in a run "
                          "directory",
                          place, place.ends_with(".csv") ? "regular file" : "directory"));
    }
}

TEST_CASE("validation sets: what is wrong with one is said before the run, with its name") {
    const auto message = [&](Overrides overrides) {
        const Overrides sets = home().sets();
        overrides.insert(overrides.end(), sets.begin(), sets.end());
        const auto config = load_tiny(tiny_config(home().dir.path(), "wrong"), overrides);
        return anonymous(error_of([&] { run_training(config); }), home().dir.path());
    };
    const uint64_t tokens = data::TokenStream::open({home().dir / "books/val_*.bin"}, {}).tokens();
    // data.val is long enough, and the set one token too short.
    CHECK(
        message({fmt::format("eval.lengths=[{}]", tokens), fmt::format("eval.tokens={}", tokens),
                 fmt::format("eval.final_tokens={}", tokens),
                 "data.val=[\"" + (home().dir / "data") + "\"]"}) ==
        fmt::format("3: data.val_sets.books has {0} tokens; eval.lengths asks for sequences of {0}", tokens));
    CHECK(contains(message({"data.val_sets.aaa.paths=[\"" + (home().dir / "none_*.bin") + "\"]"}),
                   "x/none_*.bin"));
    CHECK(io::kind_of(home().path("wrong"), io::Links::refuse) != io::PathKind::file);
}

TEST_CASE("validation sets: evaluations have names and records, and others are refused") {
    const auto config = load_tiny(tiny_config(home().dir.path()), [] {
        Overrides all = home().sets();
        all.insert(all.end(), {"probe.every=3", "data.task.kind=needle", "data.task.samples=2",
                               "data.document_mask=false", "stages=[{\"steps\":12,\"context\":64}]",
                               "batch.micro_tokens=128"});
        return all;
    }());
    const train::EvaluationList evaluations = train::evaluations_of(config.value);
    const auto due = [&](int64_t step) { return join(train::due_after(evaluations, step, 12), ", "); };
    CHECK(due(1) == "");
    CHECK(due(3) == "probe");
    CHECK(due(4) == "losses, losses of books, losses of code, task");
    CHECK(due(12) == "losses, losses of books, losses of code, task, probe");
    std::string records;
    for (const auto& evaluation : evaluations) {
        records += join(evaluation->records(), " ") + "\n";
        for (const std::string& record : evaluation->records()) {
            CHECK(train::is_evaluation_record(record));
            CHECK(train::evaluation_file(record).header().starts_with("step,"));
        }
    }
    CHECK(records ==
          "val.csv positions.csv\nsets/books/val.csv sets/books/positions.csv\nsets/code/val.csv "
          "sets/code/positions.csv\ntasks.csv\nprobe.csv\n");
    for (const char* path : {"key_tokens.csv", "metrics.jsonl", "sets/a/probe.csv", "../val.csv"})
        CHECK_FALSE(train::is_evaluation_record(path));
    for (const char* path : {"sets/books/val.csv", "sets/a-b_1/positions.csv"})
        CHECK(train::is_set_record(path));
    for (const char* path : {"sets/../val.csv", "sets/val.csv", "sets/a/b/val.csv", "sets/a/probe.csv",
                             "sets//val.csv", "x/sets/a/val.csv", "val.csv"})
        CHECK_FALSE(train::is_set_record(path));
    const TempDir dir;
    for (const std::string file : {"sets/books/val.csv", "sets/../val.csv"}) {
        put(dir / "validated.json", train::format_validated({4, {}, {{file, 0}}}));
        io::make_directories(dir / "sets/books");
        put(dir / "val.csv", "");
        put(dir / "sets/books/val.csv", "");
        CHECK(train::read_validated(dir.path()).has_value() == (file == "sets/books/val.csv"));
    }
}

TEST_CASE("validation sets: a sweep plans their data as a run would open them") {
    const TempDir dir;
    put(dir / "tiny.json", tiny_config(home().dir.path()));
    const auto problem = [&](const std::string& paths) {
        put(dir / "s.json", R"({"name": "s", "dir": ")" + dir.path() +
                                R"(", "variants": [{"name": "a", "config": "tiny.json"}],
                                "set": {"eval.lengths": [16, 512], "eval.tokens": 512, "eval.final_tokens": 512, "data.val_sets.books.paths": [")" +
                                paths + R"("]}})");
        return anonymous(error_of([&] { sweep::plan_sweep(sweep::load_sweep(dir / "s.json", {})); }),
                         home().dir.path());
    };
    CHECK(problem(home().dir / "books/val_*.bin") == "no error");
    CHECK(contains(problem(home().dir / "none.bin"), "x/none.bin"));
}
