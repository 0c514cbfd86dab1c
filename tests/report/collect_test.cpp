// Run directories read into one collection, and what is said about it.
#include <doctest/doctest.h>

#include "report/collect.h"
#include "report/page.h"
#include "report/summary.h"
#include "sample_runs.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr const char* val_head = "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte\n";

// A run whose newest validation at 512 tokens has the loss.
void put_run(const std::string& path, int64_t seed, double loss, int64_t step = 100) {
    io::make_directories(path);
    put(io::join_path(path, "config.json"),
        fmt::format(R"({{"run": {{"seed": {}}}, "stages": [{{"steps": 100, "context": 256}}]}})", seed));
    put(io::join_path(path, "val.csv"),
        fmt::format("{}50,1,512,9,0.1,64,2,\n{},1,512,{},0.1,64,2,\n", val_head, step, loss));
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

std::string sentences(const report::Collection& c) {
    std::string out;
    for (const std::string& s : report::headline(c, report::summarize(c))) out += s + "\n";
    return out;
}

}  // namespace

TEST_CASE("runs that differ only in the seed of their name are a group") {
    CHECK(report::group_of("rope.seed1") == "rope");
    CHECK(report::group_of("rope-seed12") == "rope");
    CHECK(report::group_of("rope") == "rope");
    CHECK(report::group_of("rope.seed") == "rope.seed");
    CHECK(report::group_of("rope.seed1b") == "rope.seed1b");
    CHECK(report::group_of("rope.seed1.seed2") == "rope.seed1");
    CHECK(report::group_of("a.seed1-seed2") == "a.seed1");
    CHECK(report::group_of("reseed1") == "reseed1");
    CHECK(report::group_of(".seed1") == ".seed1");
}

TEST_CASE("a table of results finds columns by name and ignores a line still being written") {
    const TempDir dir;
    io::make_directories(dir / "a");
    put(dir / "a/val.csv",
        "top1,loss,extra,length,tokens,step\n0.5,2.5,x,512,10,7\n,2.25,x,1024,10,7\n0.5,2");
    const report::Collection c = report::collect({dir / "a"});
    REQUIRE(c.runs[0].own.losses.size() == 2);
    CHECK(c.runs[0].own.losses[0].length == 512);
    CHECK(c.runs[0].own.losses[0].loss == 2.5);
    CHECK(c.runs[0].own.losses[0].top1 == 0.5);
    CHECK(std::isnan(c.runs[0].own.losses[1].top1));
    CHECK(std::isnan(c.runs[0].own.losses[1].standard_error));
    const auto message = [&](const std::string& content) {
        put(dir / "a/val.csv", content);
        return error_of([&] { report::collect({dir / "a"}); });
    };
    CHECK(contains(message("step,tokens,length\n1,2,3\n"), "there is no column 'loss'"));
    CHECK(contains(message("step,tokens,length,loss\n1,2,3\n"), "val.csv:2: 3 columns instead of 4"));
    CHECK(contains(message("step,tokens,length,loss\n1,2,3,four\n"), "val.csv:2: \"four\" is not a number"));
    CHECK(contains(message("step,tokens,length,loss\n1,2,3.5,4\n"), "val.csv:2: \"3.5\" is not an integer"));
    // Its header is not there yet.
    for (const char* begun : {"", "step,tok"}) {
        CHECK(message(begun) == "no error");
        CHECK(report::collect({dir / "a"}).runs.empty());
    }
}

TEST_CASE("a sweep is read whole, with its evaluations, while its runs still write") {
    const TempDir dir;
    SampleSweep sweep;
    SampleWriter(sweep).write_sweep(dir / "sweep");
    const report::Collection c = report::collect({(dir / "sweep") + "/"});
    CHECK(c.title == sweep.name);
    CHECK(c.groups == std::vector<std::string>{"rope", "logn", "si-p-rope"});
    CHECK(c.baseline == "rope");
    REQUIRE(c.runs.size() == 9);
    CHECK(c.runs[4].group == "logn");
    CHECK(c.runs[4].seed == 2);
    CHECK(c.runs[0].training.size() == 80);
    CHECK(c.runs[0].training.back().context == 256);
    CHECK(c.runs[0].own.losses.size() == 18);
    CHECK(c.runs[0].tokens_per_second == 28205);
    CHECK(c.runs[0].evaluations.size() == 3);
    const report::Summary s = report::summarize(c);
    REQUIRE(s.series.size() == 5);
    CHECK(s.styles[1].name == "rope + ntk");
    CHECK(s.styles[1].colour == s.styles[0].colour);
    CHECK(s.styles[1].dash != s.styles[2].dash);
    CHECK(s.longest == 8192);
    CHECK(s.contexts == std::vector<int64_t>{256});
    CHECK(s.final_losses);
    CHECK(s.series[1].loss.at(8192).size() == 3);
    CHECK(s.series[1].loss.at(8192)[0].value < s.series[0].loss.at(8192)[0].value);
    CHECK(s.series[0].top1.at(256).size() == 3);
    CHECK(s.series[0].top1_error.at(256) == std::vector<double>(3, 0.004));
    CHECK(s.series[0].document_error.at(256) == std::vector<double>(3, 0.01));
}

TEST_CASE("evaluations keep the order of the sweep; those it does not list follow by name") {
    const TempDir dir;
    for (const char* label : {"mine", "ntk", "yarn", "also-mine"})
        put_run(dir / "a.seed1/eval/" + label, 1, 2);
    put(dir / "sweep.json", R"({"name": "s", "baseline": "a", "runs": [
        {"variant": "a", "seed": 1, "directory": "a.seed1", "evaluations": ["yarn", "plain", "ntk"]}]})");
    const report::Collection c = report::collect({dir.path()});
    CHECK(c.labels == std::vector<std::string>{"plain", "yarn", "ntk", "also-mine", "mine"});
    std::vector<std::string> shown;
    for (const report::Series& s : report::summarize(c).series) shown.push_back(s.label);
    CHECK(shown == std::vector<std::string>{"", "yarn", "ntk", "also-mine", "mine"});
}

TEST_CASE("a sweep opens nothing outside its directory, and says which runs have not begun") {
    const TempDir dir;
    put_run(dir / "secret", 1, 2);
    put_run(dir / "sweep/a.seed1", 1, 2);
    put(dir / "sweep/sweep.json",
        R"({"name": "s", "baseline": "gone", "runs": [
            {"variant": "a", "seed": 1, "directory": "/elsewhere/a.seed1", "evaluations": []},
            {"variant": "b", "seed": 1, "directory": "../secret", "evaluations": []},
            {"variant": "c", "seed": 1, "directory": "..", "evaluations": []}]})");
    const report::Collection c = report::collect({dir / "sweep"});
    REQUIRE(c.runs.size() == 1);
    CHECK(c.runs[0].group == "a");
    REQUIRE(c.notes.size() == 3);
    CHECK(c.notes[0] == "secret has not begun.");
    CHECK(c.notes[1] == ".. has not begun.");
    CHECK(contains(c.notes[2], "baseline gone has no results yet; differences are to a."));
    CHECK(contains(error_of([&] { report::collect({dir / "sweep", dir / "secret"}); }), "2: "));
}

TEST_CASE("a sweep says which runs in its directory an earlier command trained") {
    const TempDir dir;
    for (const char* run : {"a.seed1", "a.seed2", "b.seed1", "b.seed2", "c.seed1", "c.seed2"}) {
        put_run(dir / "s/" + run, 1, 2);
        put(dir / "s/" + run + "/metrics.jsonl", "");
    }
    io::make_directories(dir / "s/mine");
    put(dir / "s/mine/config.json", "{}");  // no run
    put(dir / "s/sweep.json", R"({"name": "s", "baseline": "a", "runs": [
        {"variant": "a", "seed": 1, "directory": "a.seed1", "evaluations": []}]})");
    CHECK(report::collect({dir / "s"}).notes ==
          std::vector<std::string>{
              "5 runs of earlier commands not in the tables: a.seed2, b.seed1, b.seed2, "
              "c.seed1 and 1 more; a sweep with their seeds and variants lists them again."});
}

TEST_CASE("the list of a sweep by a later version is refused; one without a number is the first") {
    const TempDir dir;
    put_run(dir / "a.seed1", 1, 2);
    const auto problem = [&](const char* format) {
        put(dir / "sweep.json", fmt::format(R"({{{}"name": "s", "baseline": "a", "runs": [
            {{"variant": "a", "seed": 1, "directory": "a.seed1", "evaluations": []}}]}})",
                                            format));
        return error_of([&] { report::collect({dir.path()}); });
    };
    CHECK(problem("") == "no error");
    CHECK(problem(R"("format": 1, )") == "no error");
    CHECK(
        contains(problem(R"("format": 2, )"), "sweep.json: this version reads format 1 of this file, not 2"));
}

TEST_CASE("groups of the same name from different directories stay apart; a seed counts once") {
    const TempDir dir;
    put_run(dir / "x/a.seed1", 1, 2);
    put_run(dir / "y/a.seed1", 1, 3);
    put_run(dir / "y/b.seed1", 1, 3);
    put_run(dir / "y/b-seed1", 1, 4);
    const report::Collection c = report::collect(
        {dir / "x/a.seed1", dir / "y/a.seed1", dir / "y/b.seed1", dir / "y/b-seed1", dir / "y/b.seed1/"});
    CHECK(c.groups == std::vector<std::string>{"x/a", "y/a", "b"});
    CHECK(c.runs.size() == 3);
    REQUIRE(c.notes.size() == 1);
    CHECK(contains(c.notes[0], "b already has a run with seed 1"));
    CHECK(report::collect({dir / "x/a.seed1", dir / "y/b.seed1"}, "b").baseline == "b");
    CHECK(contains(error_of([&] { report::collect({dir / "x/a.seed1"}, "z"); }),
                   "2: --baseline z: there is no such variant"));
}

TEST_CASE("a run behind the other seeds of its group does not count in their mean") {
    const TempDir dir;
    put_run(dir / "a.seed1", 1, 2);
    put_run(dir / "a.seed2", 2, 4);
    put_run(dir / "a.seed3", 3, 100, 60);
    const report::Collection c = report::collect({dir / "a.seed1", dir / "a.seed2", dir / "a.seed3"});
    CHECK(c.runs[2].behind);
    const report::Summary s = report::summarize(c);
    CHECK(report::mean_interval(s.series[0].loss.at(512)).mean == 3);
    REQUIRE(c.notes.size() == 1);
    CHECK(contains(c.notes[0], "a.seed3 (step 60 of 100)"));
}

TEST_CASE("the headline says what the seeds allow and no more") {
    const TempDir dir;
    std::vector<std::string> one, three, unclear, apart;
    const auto add = [&](std::vector<std::string>& list, const std::string& name, int64_t seed, double loss) {
        const std::string path = dir / name;
        put_run(path, seed, loss);
        list.push_back(path);
    };
    add(one, "1/rope.seed1", 1, 2);
    add(one, "1/si.seed1", 1, 1.5);
    CHECK(sentences(report::collect(one)) ==
          "At 512 tokens of context, 2 times the training length, si has the lowest loss of 2 variants: "
          "1.5000 nats "
          "per token (1 seed).\n"
          "The next, rope, is 0.5000 higher; one shared seed gives no interval, so nothing here says how "
          "much of "
          "that is chance.\n");
    for (int seed = 1; seed <= 3; ++seed) {
        add(three, fmt::format("3/rope.seed{}", seed), seed, 2 + 0.3 * seed + 0.01 * (seed == 2));
        add(three, fmt::format("3/si.seed{}", seed), seed, 1.5 + 0.3 * seed);
        add(unclear, fmt::format("u/rope.seed{}", seed), seed, 2 + 0.3 * seed);
        add(unclear, fmt::format("u/si.seed{}", seed), seed, 2.9 - 0.3 * (seed - 2));
    }
    // Means differ by 0.5033, the seeds by far more: only the pairs show it.
    const std::string settled = sentences(report::collect(three));
    CHECK(contains(settled, "si has the lowest loss of 2 variants: 2.1000 ± 0.1732"));
    CHECK(
        contains(settled, "rope, is 0.5033 higher; the 95% interval of the difference over 3 shared seeds"));
    CHECK(contains(settled, "excludes zero"));
    CHECK(
        contains(sentences(report::collect(unclear)), "includes zero: these seeds do not separate the two"));
    add(apart, "p/rope.seed1", 1, 2);
    add(apart, "p/si.seed2", 2, 1.5);
    CHECK(contains(sentences(report::collect(apart)), "no seed is shared"));
    std::vector<std::string> broken;
    add(broken, "b/rope.seed1", 1, NAN);
    CHECK(contains(sentences(report::collect(broken)), "no loss is finite"));
    add(broken, "b/si.seed1", 1, 1);
    CHECK(contains(sentences(report::collect(broken)), "the loss of si is 1.0000 nats per token (1 seed)"));
    CHECK(contains(sentences(report::collect(broken)), "Not finite there: rope."));
}

TEST_CASE("a page of runs that train on a task opens with the task, and calls the losses on text that") {
    const TempDir dir;
    const auto add = [&](const std::string& name, int seed, const char* kind, double accuracy) {
        const std::string path = dir / name;
        put_run(path, seed, 5);
        put(io::join_path(path, "config.json"),
            fmt::format(R"({{"run": {{"seed": {}}}, "data": {{"task": {{"kind": "{}"}}}},
                             "stages": [{{"steps": 100, "context": 256}}]}})",
                        seed, kind));
        put(io::join_path(path, "tasks.csv"),
            fmt::format("step,task,length,depth,samples,accuracy,accuracy_error,margin,margin_error,loss\n"
                        "100,copy,512,,10,1,0,,,1\n100,needle,256,,10,1,0,1,0,1\n"
                        "100,needle,512,,10,{},0,1,0,1\n",
                        accuracy));
        return path;
    };
    std::vector<std::string> runs;
    for (int seed = 1; seed <= 3; ++seed) {
        runs.push_back(add(fmt::format("rope.seed{}", seed), seed, "needle", 0.1 * seed));
        runs.push_back(add(fmt::format("si.seed{}", seed), seed, "needle", 0.5 + 0.1 * seed));
    }
    const std::string page = report::report_page(report::collect(runs));
    CHECK(contains(page,
                   "At 512 tokens of context, 2 times the training length, si has the highest accuracy "
                   "in needle of 2 variants: 0.700 (3 seeds: 0.600, 0.700, 0.800)."));
    CHECK(contains(page, "The next, rope, is 0.500 lower; seed by seed −0.500, −0.500, −0.500."));
    CHECK(!contains(page, "lowest loss"));
    const auto place = [](const std::string& text, const std::string& part) {
        const size_t at = text.find(part);
        CHECK_MESSAGE(at != std::string::npos, part);
        return at;
    };
    CHECK(place(page, "<section id=\"tasks\"") < place(page, "<section id=\"lengths\""));
    CHECK(place(page, "<section id=\"lengths\"") < place(page, "data-chart=\"loss-by-length\""));
    CHECK(contains(page, "Text: loss by length"));
    CHECK(contains(page, "says little about what they can do"));
    // Of two tasks, the one that is trained on shows first.
    CHECK(place(page, "data-key=\"1\">") < place(page, "data-chart=\"task-needle\""));
    CHECK(contains(page, "data-key=\"0\" hidden>"));

    // Equal at the top; nothing measured yet; one run that trains on text makes it a page about text.
    runs = {add("a.seed1", 1, "needle", 1), add("b.seed1", 1, "needle", 1), add("c.seed1", 1, "needle", 0)};
    CHECK(contains(report::report_page(report::collect(runs)),
                   "2 of 3 variants share the highest accuracy in needle, 1.000: a, b."));
    io::remove_file(runs[0] + "/tasks.csv");
    CHECK(contains(report::report_page(report::collect({runs[0]})), "No results in needle yet"));
    runs.push_back(add("text.seed1", 1, "none", 1));
    const std::string mixed = report::report_page(report::collect(runs));
    CHECK(contains(mixed, "lowest loss of 4 variants"));
    CHECK(!contains(mixed, "Text: "));
    CHECK(place(mixed, "data-chart=\"loss-by-length\"") < place(mixed, "<section id=\"tasks\""));
}

TEST_CASE("a page can be made of anything that can be collected") {
    const TempDir dir;
    io::make_directories(dir / "young");
    put(dir / "young/metrics.jsonl", "{\"step\":10,\"tokens\":81920,\"loss\":2.5}\n{\"step\":20,\"los");
    const report::Collection young = report::collect({dir / "young"});
    CHECK(contains(report::report_page(young), "training has reached step 10"));
    CHECK(contains(error_of([&] { report::report_picture(young); }), "no losses by length"));
    put_run(dir / "diverged", 1, NAN);
    CHECK(contains(report::report_page(report::collect({dir / "diverged", dir / "young"})), "not finite"));
    CHECK(contains(error_of([&] { report::collect({dir / "missing"}); }), "3: "));
    io::make_directories(dir / "empty");
    const report::Collection nothing = report::collect({dir / "empty"});
    CHECK(nothing.runs.empty());
    CHECK(nothing.notes == std::vector<std::string>{"empty has no results yet."});
}

TEST_CASE("where stages begin is marked, whether they are given in steps or in tokens") {
    const TempDir dir;
    for (const bool by_tokens : {false, true}) {
        const std::string run = dir / (by_tokens ? "tokens" : "steps");
        put_run(run, 1, 2);
        const char* unit = by_tokens ? "tokens" : "steps";
        put(io::join_path(run, "config.json"),
            fmt::format(R"({{"stages": [{{"{0}": 20, "context": 128}}, {{"{0}": 40, "context": 2048}}]}})",
                        unit));
        put(io::join_path(run, "metrics.jsonl"), R"({"step":10,"context":128,"loss":3})"
                                                 "\n"
                                                 R"({"step":20,"context":128,"loss":2})"
                                                 "\n"
                                                 R"({"step":30,"context":2048,"loss":1})"
                                                 "\n");
        const std::string page = report::report_page(report::collect({run}));
        CHECK(contains(page, ">context 2K<"));
        CHECK(!contains(page, ">context 128<"));
    }
}
