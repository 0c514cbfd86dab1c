// The command line from outside: exit codes, messages, and that each subcommand does what it says.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>

#include "base/json.h"
#include "commands/process.h"
#include "eval/tables.h"
#include "kernels/cuda_device.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct Home {
    TempDir dir, output;
    std::string config = dir / "config.json";
    Home() {
        make_corpus(dir / "data");
        put(config, tiny_config(dir.path(), "done"));
        const Finished f = command({"train", config});
        check(f.code == 0, "the run ended with {}: {}", f.code, f.err);
    }
    Finished command(const std::vector<std::string>& arguments) const { return run(output, arguments); }
};

const Home& home() {
    static const Home h;
    return h;
}

std::string file(const std::string& name) {
    return home().dir / name;
}

std::string last_lines(const std::string& text, size_t count) {
    size_t at = text.size();
    for (size_t i = 0; i <= count && at != std::string::npos && at > 0; ++i) at = text.rfind('\n', at - 1);
    return text.substr(at == std::string::npos ? 0 : at + 1);
}

}  // namespace

TEST_CASE("--log-level: messages below it are left out, before or after the command; log.txt has all") {
    const std::string shown = file("config.json");
    CHECK(contains(home().command({"config", "show", shown}).err, "score of model.attention: z"));
    CHECK(home().command({"config", "show", shown, "--log-level", "warning"}).err.empty());
    CHECK(home().command({"--log-level", "error", "config", "show", shown}).err.empty());
    CHECK(home().command({"config", "show", shown, "--log-level", "loud"}).code == 2);
    const TempDir scratch;
    put(scratch / "config.json", tiny_config(home().dir.path(), "silent"));
    const Finished f = home().command({"train", scratch / "config.json", "--log-level", "error"});
    CHECK(f.code == 0);
    CHECK(f.out.empty());
    CHECK(contains(get(home().dir / "silent/log.txt"), "validation at step"));
}

TEST_CASE("command line: help and version") {
    const Finished version = home().command({"--version"});
    CHECK(version.code == 0);
    CHECK(contains(version.out, "longreach 0."));
    CHECK(contains(version.out, "flags"));
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{"--help"},
                                               {"train", "--help"},
                                               {"eval", "--help"},
                                               {"generate", "--help"},
                                               {"report", "--help"},
                                               {"config", "--help"},
                                               {"config", "show", "--help"},
                                               {"data", "--help"},
                                               {"data", "synth", "--help"},
                                               {"bench", "--help"},
                                               {"doctor", "--help"}}) {
        const Finished f = home().command(arguments);
        CHECK(f.code == 0);
        CHECK(contains(f.out, "--help"));
        CHECK(f.err == "");
    }
    const std::string help = home().command({"--help"}).out;
    for (const char* name : {"train", "eval", "report", "config", "data", "bench", "doctor"})
        CHECK(contains(help, name));
}

TEST_CASE("exit code 2: command lines and configs that are wrong") {
    put(file("typo.json"), "{\n  \"model\": { \"widht\": 32 }\n}\n");
    const Finished typo = home().command({"train", file("typo.json")});
    CHECK(typo.code == 2);
    CHECK(contains(typo.err,
                   "model.widht (" + file("typo.json") + ":2:14): unknown key: did you mean model.width?"));
    CHECK(typo.out == "");
    put(file("text.json"), "layers: 4\n");
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{},
                                               {"frobnicate"},
                                               {"train"},
                                               {"train", home().config, "--frobnicate"},
                                               {"train", file("text.json")},
                                               {"train", home().dir.path()},
                                               {"train", home().config, "--set", "model.width"},
                                               {"train", home().config, "--set", "model.width=ten"},
                                               {"train", home().config, "--set", "run.name=../up"},
                                               {"train", home().config, "--set", "run.seed=2"},
                                               {"eval", file("done"), "--lengths", "0"},
                                               {"eval", file("done"), "--lengths", "-16"},
                                               {"eval", file("done"), "--lengths", "16,x"},
                                               {"eval", file("done"), "--lengths", "64,16"},
                                               {"eval", file("done"), "--lengths", "16,24"},
                                               {"eval", file("done"), "--tokens", "0"},
                                               {"eval", file("done"), "--set", "eval.lengths=[]"},
                                               {"eval", file("done"), "--label", "Not/one"},
                                               {"eval", file("done"), "--label", ""},
                                               {"generate", file("done"), "--tokens", "0"},
                                               {"generate", file("done"), "--ids", "--prompt", "5 900"},
                                               {"generate", file("done"), "--ids"},
                                               {"generate", file("done"), "--top", "5"},
                                               {"config", "explain", "model.widht"},
                                               {"data", "synth"}}) {
        CAPTURE(fmt::format("{}", fmt::join(arguments, " ")));
        const Finished f = home().command(arguments);
        CHECK(f.code == 2);
        CHECK(f.err != "");
    }
}

TEST_CASE("names that do not exist are answered with the nearest one") {
    const auto says = [&](const std::vector<std::string>& arguments, const std::string& text) {
        CAPTURE(fmt::format("{}", fmt::join(arguments, " ")));
        const Finished f = home().command(arguments);
        CHECK(f.code == 2);
        CHECK_MESSAGE(contains(f.err, text), f.err);
    };
    says({"trian", home().config}, "error: longreach has no command trian: did you mean train?");
    says({"frobnicate"}, "error: longreach has no command frobnicate: known are train, sweep,");
    says({"config", "shwo", home().config},
         "error: longreach config has no command shwo: did you mean show?");
    says({"eval", file("done"), "--lenghts", "16"},
         "error: longreach eval has no option --lenghts: did you mean --lengths?");
    says({"train", file("confg.json")}, "did you mean " + home().config + "?");
    says({"eval", file("done"), "--rope", "yarm"}, "did you mean yarn?");
    says({"config", "show", home().config, "--set", "model.last=x"}, "no layout is named 'x'");
    says({"config", "explain", "model.widht"}, "did you mean model.width?");
    says({"config", "explain", "model.attention.distance"}, "did you mean model.attention.score?");
}

TEST_CASE("a key without effect is warned of once, and --set KEY= takes it back") {
    const std::string warning =
        "warning: model.attention.params.tau (--set model.attention.params.tau.init=5): has no effect: score is "
        "null; see model.attention.score (";
    const std::string tau = "model.attention.params.tau.init=5";
    for (const std::vector<std::string>& arguments :
         std::vector<std::vector<std::string>>{{"config", "show", home().config, "--set", tau},
                                               {"train", home().config, "--dry-run", "--set", tau},
                                               {"eval", file("done"), "--set", tau}}) {
        CAPTURE(fmt::format("{}", fmt::join(arguments, " ")));
        const Finished f = home().command(arguments);
        CHECK(f.code == 0);
        CHECK(f.err.starts_with(warning));
        CHECK(f.err.find("warning", 1) == std::string::npos);
    }
    const Finished shown =
        home().command({"config", "show", home().config, "--set", "model.layers=", "--origins"});
    CHECK(shown.code == 0);
    CHECK(shown.err.starts_with("score of model.attention: z\n"));  // and no warning
    CHECK(contains(shown.out, "model.layers "));
    const std::string line = shown.out.substr(shown.out.find("model.layers "), 200);
    CHECK(contains(line.substr(0, line.find('\n')), "default"));
}

TEST_CASE("eval: lengths and counts of tokens as 1K, and the layers that --rope changes") {
    // More than there is: so the counts were read as what they mean.
    const Finished f = home().command({"eval", file("done"), "--lengths", "1K"});
    CHECK(f.code == 3);
    CHECK(f.err == home().command({"eval", file("done"), "--lengths", "1024"}).err);
    CHECK(home().command({"eval", file("done"), "--lengths", "16,64", "--tokens", "1K"}).code == 0);
    CHECK(home().command({"eval", file("done"), "--lengths", "16,64", "--tokens", "1X"}).code == 2);
    CHECK(home().command({"probe", file("done"), "--lengths", "1K", "--label", "k"}).code == 3);
    const Finished rope = home().command({"eval", file("done"), "--lengths", "16,64", "--rope", "pi"});
    CHECK(rope.code == 0);
    CHECK(contains(rope.out, "changed positions (pi) on 1 of 1 layers: 0\n"));
    CHECK(!contains(home().command({"eval", file("done")}).out, "changed positions"));
    const Finished none =
        home().command({"eval", file("done"), "--rope", "pi", "--set", "eval.rope.layers=local"});
    CHECK(none.code == 2);
    CHECK(contains(none.err, "no layout is named 'local'"));
}

TEST_CASE("exit code 3: data that are missing, damaged or too few") {
    const auto code = [&](const std::string& override_) {
        const Finished f =
            home().command({"train", home().config, "--set", "run.name=data", "--fresh", "--set", override_});
        CHECK(contains(f.err, "error: "));
        CHECK(io::kind_of(file("data/checkpoints"), io::Links::refuse) == io::PathKind::missing);
        return f.code;
    };
    CHECK(code("data.train=[\"" + file("none.bin") + "\"]") == 3);
    CHECK(code("data.train=[]") == 3);
    CHECK(code("data.val=[\"" + file("config.json") + "\"]") == 3);
    CHECK(code("eval.lengths=[16,4096]") == 2);  // more than eval.tokens
    put(file("cut.bin"), get(file("data/train_000000.bin")).substr(0, 700));
    CHECK(code("data.train=[\"" + file("cut.bin") + "\"]") == 3);
    // Found before the first step, although it concerns validation only.
    CHECK(code("eval.min_document=100000") == 3);
    CHECK(contains(
        home()
            .command({"train", home().config, "--set", "run.name=data", "--set", "eval.min_document=5000"})
            .err,
        "none of the 128 validation tokens looked at is in a document of at least 5000 tokens"));
    CHECK(home().command({"report", file("nowhere")}).code == 3);
    CHECK(home().command({"report", ""}).code == 3);
    CHECK(home().command({"data", "inspect", file("nowhere.bin")}).code == 3);
    CHECK(home().command({"data", "verify", file("cut.bin")}).code == 3);
    CHECK(home().command({"data", "verify", file("data/train_000000.bin")}).code == 0);
}

TEST_CASE("exit code 4: no checkpoint where one is asked for") {
    io::make_directories(file("empty"));
    CHECK(home().command({"eval", file("empty")}).code == 4);
    CHECK(home().command({"eval", file("nowhere")}).code == 4);
    CHECK(home()
              .command({"train", home().config, "--set", "run.name=four", "--set",
                        "run.init_from=" + file("empty")})
              .code == 4);
}

TEST_CASE("exit code 6: no such device") {
    if (std::string(device) == "cuda" || cuda_status().unusable.empty()) return;  // there is one
    const Finished f =
        home().command({"train", home().config, "--set", "run.name=gpu", "--set", "system.device=cuda"});
    CHECK(f.code == 6);
    CHECK(contains(f.err, "system.device"));
}

TEST_CASE("train --dry-run prints the plan and touches nothing; --quiet prints nothing") {
    const Finished dry = home().command({"train", home().config, "--set", "run.name=dry", "--dry-run"});
    CHECK(dry.code == 0);
    CHECK(contains(dry.out, "memory plan"));
    CHECK(contains(dry.out, "\ntime: "));
    CHECK(io::kind_of(file("dry"), io::Links::refuse) == io::PathKind::missing);
    const Finished quiet = home().command({"train", home().config, "--set", "run.name=quiet", "--quiet"});
    CHECK(quiet.code == 0);
    CHECK(quiet.out == "");
    CHECK(quiet.err == "");
    CHECK(contains(get(file("quiet/log.txt")), "validation at step 12"));
}

TEST_CASE("train takes the memory it planned, within what its surroundings need") {
    const Finished f =
        home().command({"train", file("config.json"), "--set", "run.name=\"memory\"", "--set",
                        "model.mlp.hidden=4096", "--set", "stages=[{\"steps\": 1, \"context\": 64}]", "--set",
                        "batch={\"tokens\": 2048, \"micro_tokens\": 2048}"});
    REQUIRE(f.code == 0);
    const size_t at = f.out.find("memory: planned ");
    REQUIRE(at != std::string::npos);
    double planned = 0, taken = 0;
    REQUIRE(std::sscanf(f.out.c_str() + at, "memory: planned %lf MiB, taken %lf MiB", &planned, &taken) == 2);
    CHECK(planned > 32);
    // All that is planned is touched in the first step, but for what only validation needs.
    CHECK(taken > 0.8 * planned);
    // Beside the plan: 12 MiB for the matrix product that measures the machine, batches in the loader, code.
    CHECK(taken < planned + 24);
    CHECK(!contains(f.out, "more than planned"));
}

TEST_CASE("train --fresh starts over, and only this run") {
    REQUIRE(home().command({"train", home().config, "--set", "run.name=again"}).code == 0);
    put(file("again/note.md"), "kept or not\n");
    const Finished same = home().command({"train", home().config, "--set", "run.name=again"});
    CHECK(contains(same.out, "nothing to do"));
    const Finished f =
        home().command({"train", home().config, "--set", "run.name=again", "--set", "run.seed=5", "--fresh"});
    CHECK(f.code == 0);
    CHECK(!contains(f.out, "resuming"));
    CHECK(io::kind_of(file("done/checkpoints/step_00000012"), io::Links::refuse) == io::PathKind::directory);
    CHECK(differing(results_of(file("done"), 12), results_of(file("again"), 12)) != "");
}

TEST_CASE("eval of a run repeats its final validation to the last digit, whatever the batch") {
    const std::string val = get(file("done/val.csv")), positions = get(file("done/positions.csv"));
    for (const char* batch : {"64", "256"}) {
        const Finished f =
            home().command({"eval", file("done"), "--set", fmt::format("eval.batch_tokens={}", batch),
                            "--out", file("evaluated"), "--token-losses", file("losses.safetensors")});
        CAPTURE(f.err);
        REQUIRE(f.code == 0);
        CHECK(contains(f.out, "std.err"));
        // The command does not know how many tokens the run had consumed: column two is 0.
        std::string expected = last_lines(val, 2);
        for (size_t at; (at = expected.find("12,1536,")) != std::string::npos;)
            expected.replace(at, 8, "12,0,");
        CHECK(get(file("evaluated/val.csv")) == eval::val_file.header() + "\n" + expected);
        const std::string lines = get(file("evaluated/positions.csv"));
        CHECK(positions.ends_with(lines.substr(lines.find('\n') + 1)));
        CHECK(io::kind_of(file("losses.safetensors"), io::Links::refuse) == io::PathKind::file);
    }
}

TEST_CASE("eval of a checkpoint from the middle of a run uses the window its stage trained with") {
    // The first stage narrows the window; its validation at step 4 must be what eval
    // finds in that checkpoint.
    put(file("window.json"), tiny_config(home().dir.path(), "window"));
    const Finished t =
        home().command({"train", file("window.json"), "--set", "model.attention.window=24", "--set",
                        "stages=[{\"steps\":4,\"context\":32,\"window\":4},{\"steps\":4,\"context\":32}]",
                        "--set", "checkpoint.every=4", "--set", "eval.final_tokens=128"});
    CAPTURE(t.err);
    REQUIRE(t.code == 0);
    for (const char* step : {"00000004", "00000008"}) {
        const Finished f =
            home().command({"eval", file("window/checkpoints/step_") + step, "--out", file("window_eval")});
        CAPTURE(f.err);
        REQUIRE(f.code == 0);
        const std::string lines = get(file("window_eval/positions.csv"));
        CHECK(contains(get(file("window/positions.csv")), lines.substr(lines.find('\n') + 1)));
    }
}

TEST_CASE("eval --lengths and --data replace what the config says") {
    const Finished f = home().command({"eval", file("done") + "/", "--lengths", "8,32,128", "--tokens", "384",
                                       "--data", file("data/train_000000.bin"), "--buckets"});
    CAPTURE(f.err);
    CHECK(f.code == 0);
    CHECK(contains(f.out, "in document"));
    CHECK(contains(f.out, "384"));
    CHECK(home().command({"eval", file("done"), "--lengths", "1048576"}).code == 3);
}

TEST_CASE("eval --label writes a run's results and what was asked for, --repeat its tasks") {
    const Finished f = home().command({"eval", file("done"), "--label", "longer.2", "--repeat", "--lengths",
                                       "16,64", "--set", "eval.batch_tokens=128"});
    CAPTURE(f.err);
    REQUIRE(f.code == 0);
    const std::string in = file("done/eval/longer.2/");
    CHECK(get(in + "val.csv").starts_with(eval::val_file.header() + "\n12,0,16,"));
    CHECK(get(in + "positions.csv").starts_with(eval::positions_file.header()));
    const std::string tasks = get(in + "tasks.csv");
    CHECK(tasks.starts_with(
        "step,task,length,depth,samples,accuracy,accuracy_error,margin,margin_error,loss,fingerprint\n"
        "12,repeat,16,,"));
    CHECK(contains(tasks, "\n12,repeat,64,,"));
    CHECK(contains(tasks, "\n12,non_repeat,64,,"));
    const json::Value request = json::parse(get(in + "request.json"), "request.json");
    CHECK(request.find("checkpoint")->as_int64() == 12);
    CHECK(request.find("set")->as_array().at(0).as_string() == "eval.batch_tokens=128");
    CHECK(request.find("lengths")->as_array().at(1).as_int64() == 64);
    CHECK(request.find("tasks")->as_array().size() == 2);
    CHECK(request.find("pick")->as_string() == "spread");
    CHECK(request.find("align")->as_string() == "chunk");
    const std::string val = get(in + "val.csv"), fingerprint = request.find("fingerprint")->as_string();
    CHECK(contains(f.out, "spread over "));
    CHECK(contains(f.out, fmt::format("; {} documents; fingerprint {}\n",
                                      request.find("documents")->as_int64(), fingerprint)));
    CHECK(val.ends_with("," + fingerprint + "\n"));
    // Other tokens have another fingerprint.
    const Finished fewer = home().command(
        {"eval", file("done"), "--lengths", "16,64", "--tokens", "64", "--out", file("fewer")});
    REQUIRE(fewer.code == 0);
    CHECK(!contains(fewer.out, fingerprint));
    CHECK(!contains(get(file("fewer/val.csv")), fingerprint));
    // The label's next request leaves nothing of this one.
    REQUIRE(home().command({"eval", file("done"), "--label", "longer.2"}).code == 0);
    CHECK(io::kind_of(in + "tasks.csv", io::Links::refuse) == io::PathKind::missing);
    CHECK(json::parse(get(in + "request.json"), "request.json").find("tasks")->as_array().empty());
    // A probe under the label adds to it.
    const std::string asked = get(in + "request.json");
    const Finished probed = home().command({"probe", file("done"), "--label", "longer.2", "--lengths", "16"});
    CHECK(probed.code == 0);
    CHECK(contains(probed.out, "written: "));
    CHECK(io::kind_of(in + "probe.csv", io::Links::refuse) == io::PathKind::file);
    CHECK(get(in + "request.json") == asked);
}

TEST_CASE("generate continues a prompt of bytes or of token numbers, the same each time") {
    const auto generate = [&](std::vector<std::string> more) {
        std::vector<std::string> arguments{"generate", file("done"), "--tokens", "20"};
        arguments.insert(arguments.end(), more.begin(), more.end());
        const Finished f = home().command(arguments);
        CAPTURE(f.err);
        CHECK(f.code == 0);
        return f.out;
    };
    const std::string text = generate({"--prompt", "The key"});
    CHECK(text.starts_with("The key"));
    CHECK(text.ends_with("\n"));
    CHECK(text.size() <= 7 + 20 + 1);
    CHECK(generate({"--prompt", "The key", "--label", "story"}) == text);
    CHECK(get(file("done/eval/story/sample.txt")) == text);
    // The same as numbers: 256 begins the document.
    const std::string ids = generate({"--ids", "--prompt", "256,84 104 101 32 107 101 121"});
    CHECK(std::count(ids.begin(), ids.end(), ' ') == 19);
    const size_t shown = text.size() - 8;
    std::string from_ids;
    for (size_t at = 0; at < ids.size() && from_ids.size() < shown; at = ids.find_first_of(" \n", at) + 1)
        from_ids += static_cast<char>(std::stoi(ids.substr(at)));
    CHECK(from_ids == text.substr(7, shown));
    put(file("prompt.txt"), "The key");
    CHECK("The key" + generate({"--prompt-file", file("prompt.txt")}) == text);
    // One likely token is the most likely one; of all, other seeds draw others.
    CHECK(generate({"--prompt", "The key", "--temperature", "0.7", "--top", "1"}) == text);
    const std::string drawn = generate({"--prompt", "The key", "--temperature", "3"});
    CHECK(generate({"--prompt", "The key", "--temperature", "3"}) == drawn);
    CHECK(generate({"--prompt", "The key", "--temperature", "3", "--seed", "2"}) != drawn);
    CHECK(generate({"--prompt", std::string(60, 'a'), "--rope", "ntk"}).starts_with("aaa"));
}

TEST_CASE("report compares runs, also one that diverged") {
    io::make_directories(file("diverged"));
    put(file("diverged/val.csv"), eval::val_file.header() +
                                      "\n12,1536,16,nan,0,256,4,,0,,0123456789abcdef\n"
                                      "12,1536,64,inf,0,256,4,,0,,0123456789abcdef\n"
                                      "12,1536,128,5.5,0,256,4,,0,,0123456789abcdef\n");
    io::make_directories(file("gone"));
    put(file("gone/val.csv"), eval::val_file.header() + "\n12,1536,16,nan,0,256,4,,0,,0123456789abcdef\n");
    const Finished f = home().command({"report", file("done"), file("diverged")});
    CAPTURE(f.err);
    CHECK(f.code == 0);
    CHECK(contains(f.out, "nan"));
    CHECK(contains(f.out, "diverged"));
    CHECK(home().command({"report", file("gone")}).code == 0);
    put(file("gone/val.csv"), "step,loss\n1,2\n");
    CHECK(home().command({"report", file("gone")}).code == 3);
}

TEST_CASE(
    "config: show can be read back, diff finds the difference, schema and reference cover every field") {
    const Finished show = home().command({"config", "show", home().config});
    REQUIRE(show.code == 0);
    put(file("shown.json"), show.out);
    CHECK(home().command({"config", "show", file("shown.json")}).out == show.out);
    CHECK(home().command({"config", "diff", home().config, file("shown.json")}).out == "");
    put(file("other.json"), home().command({"config", "show", home().config, "--set", "model.layers=2"}).out);
    const Finished diff = home().command({"config", "diff", home().config, file("other.json")});
    CHECK(diff.code == 0);
    CHECK(contains(diff.out, "model.layers"));
    CHECK(contains(home().command({"config", "show", home().config, "--origins"}).out, home().config + ":"));
    // Between runs, and between a run and a config.
    CHECK(home().command({"config", "diff", file("done"), home().config}).out == "");
    const Finished between = home().command({"config", "diff", file("done"), file("other.json")});
    CHECK(between.code == 0);
    CHECK(contains(between.out, "model.layers  1  2"));
    CHECK(home().command({"config", "diff", file("done/checkpoints"), file("done")}).code == 2);
    CHECK(contains(home().command({"config", "schema", "--sweep"}).out, "\"model.attention.window\""));
    const std::string schema = home().command({"config", "schema"}).out;
    const std::string reference = home().command({"config", "reference"}).out;
    for (const std::string& path : config::all_paths(config::describe<train::Experiment>())) {
        const std::string name = path.substr(path.rfind('.') + 1);
        CHECK_MESSAGE(contains(schema, "\"" + name + "\""), path);
        CHECK_MESSAGE(contains(reference, name), path);
        const Finished explained = home().command({"config", "explain", path});
        if (explained.code != 0) CHECK_MESSAGE(explained.code == 0, path << explained.err);
    }
}
