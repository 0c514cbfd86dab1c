// Commands that delete, replace or write over: what is not theirs stays,
// and what they replace stays until the new is whole.
#include <doctest/doctest.h>
#include <sys/file.h>

#include <filesystem>

#include "attacks/rounds.h"
#include "attacks/runs.h"
#include "base/rng.h"
#include "io/run_lock.h"

using namespace longreach;
using namespace longreach::test;

namespace fs = std::filesystem;

namespace {

// Every file below a directory, but locks, whose text names a process.
std::map<std::string, std::string> tree(const std::string& directory) {
    std::map<std::string, std::string> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory))
        if (entry.is_regular_file() && entry.path().filename() != "lock")
            files[fs::relative(entry.path(), directory).string()] = get(entry.path().string());
    return files;
}

Finished ended(const std::vector<std::string>& arguments) {
    return target().run(arguments);
}

std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
}

// A finished run of this name.
std::string trained(const std::string& name, const std::vector<std::string>& set = {}) {
    if (!fs::exists(target().path(name))) REQUIRE(target().run(target().command(name, set)).code == 0);
    return target().path(name);
}

std::vector<std::string> export_of(const std::string& run, const std::string& directory,
                                   bool replace = false) {
    std::vector<std::string> all{"export", run, "--hf", directory};
    if (replace) all.emplace_back("--replace");
    return all;
}

// Files of somebody else, of names that a command might take for its own.
void scatter(const std::string& directory) {
    fs::create_directories(directory);
    put(directory + "/README.md", "my notes");
    put(directory + "/model_backup.safetensors", "my weights");
    put(directory + "/modeling_longreach.py", "my code");
    put(directory + "/config.json", "{\"model_type\": \"mine\"}");
    put(directory + "/val.csv", "my,own,table\n1,2,3\n");
    fs::create_directories(directory + "/checkpoints/mine");
    put(directory + "/checkpoints/mine/model.bin", "mine");
    fs::create_directories(directory + "/eval");
    put(directory + "/eval/notes.txt", "mine");
}

}  // namespace

TEST_CASE(
    "export, import and train --fresh refuse a directory that is not theirs, with and without --replace") {
    const std::string run = trained("out"), foreign = target().path("foreign"),
                      model = target().path("model");
    scatter(foreign);
    const auto before = tree(foreign);
    REQUIRE(ended(export_of(run, model)).code == 0);
    const std::vector<std::string> import{"import", model, "-o", foreign};
    for (const std::vector<std::string>& command :
         {export_of(run, foreign), export_of(run, foreign, true), import, with(import, {"--replace"}),
          with(target().command("foreign"), {"--fresh"})}) {
        const Finished f = ended(command);
        CAPTURE(command[0]);
        CAPTURE(f.err);
        CHECK(f.code == 2);
        CHECK(contains(f.err, "foreign holds files and is not "));
        CHECK(tree(foreign) == before);
    }
}

TEST_CASE("export --replace takes away what the export before it wrote, and nothing else") {
    const std::string run = trained("out"), hf = target().path("replaced");
    REQUIRE(ended(with(export_of(run, hf), {"--shard-gigabytes", "1e-5"})).code == 0);
    REQUIRE(fs::exists(hf + "/model.safetensors.index.json"));
    put(hf + "/model_backup.safetensors", "mine");
    put(hf + "/chat_template.jinja", "mine");
    CHECK(ended(export_of(run, hf)).code == 2);
    const Finished f = ended(export_of(run, hf, true));
    CHECK(f.code == 0);
    CHECK(contains(f.out,
                   "kept, since this program did not write it: chat_template.jinja, "
                   "model_backup.safetensors"));
    CHECK(fs::exists(hf + "/model.safetensors"));
    CHECK_FALSE(fs::exists(hf + "/model.safetensors.index.json"));
    CHECK(get(hf + "/model_backup.safetensors") == "mine");
    // What was changed since is its owner's: a model trained further in place, an edited card.
    put(hf + "/README.md", "an edited card");
    const auto before = tree(hf);
    const Finished edited = ended(export_of(run, hf, true));
    CHECK(edited.code == 2);
    CHECK(contains(edited.err, "README.md was not written by this program, or was changed since"));
    CHECK(tree(hf) == before);
}

TEST_CASE("export --replace that is killed leaves the old model or the new one") {
    const std::string one = trained("out"), two = trained("out2", {"run.seed=9"}),
                      hf = target().path("killed");
    fs::remove_all(hf);
    REQUIRE(ended(export_of(two, hf)).code == 0);
    const auto new_model = tree(hf);
    fs::remove_all(hf);
    REQUIRE(ended(export_of(one, hf)).code == 0);
    put(hf + "/notes.txt", "mine");
    const auto old_model = tree(hf);
    for (int round = 0; round < attack_rounds(6); ++round) {
        Process process(target().output(), export_of(round % 2 == 0 ? two : one, hf, true));
        sleep_for(0.03 * Rng(5, Purpose::test).uniform(static_cast<uint64_t>(round)));
        process.signal(SIGKILL);
        process.wait();
        auto found = tree(hf);
        const bool has_notes = found.erase("notes.txt") > 0;  // else the next command brings it back
        auto old_only = old_model;
        old_only.erase("notes.txt");
        const bool whole = found == new_model || found == old_only;
        CHECK(whole);
        REQUIRE(ended(export_of(one, hf, true)).code == 0);
        CHECK(tree(hf) == old_model);
        CAPTURE(has_notes);
        CHECK_FALSE(fs::exists(target().path(".killed.longreach")));
    }
}

TEST_CASE("train --fresh and import --replace delete a run, and keep and name what else is there") {
    const std::string run = target().path("again"), model = target().path("model2");
    REQUIRE(ended(export_of(trained("out"), model)).code == 0);
    for (const bool fresh : {true, false}) {
        fs::remove_all(run);
        REQUIRE(target().run(target().command("again", {"run.seed=5"})).code == 0);
        put(run + "/notes.txt", "mine");
        put(run + "/checkpoints/mine.txt", "mine");
        fs::create_directories(run + "/plots");
        put(run + "/plots/loss.svg", "mine");
        const Finished f = ended(fresh ? with(target().command("again"), {"--fresh"})
                                       : std::vector<std::string>{"import", model, "-o", run, "--replace"});
        CAPTURE(f.err);
        CAPTURE(f.out);
        CHECK(f.code == 0);
        CHECK(contains(f.out,
                       "kept, since this program did not write it: checkpoints/mine.txt, notes.txt, plots"));
        for (const char* mine : {"/notes.txt", "/checkpoints/mine.txt", "/plots/loss.svg"})
            CHECK(get(run + mine) == "mine");
        CHECK(io::checkpoint_steps(run + "/checkpoints").front() == (fresh ? 12 : 0));
        CHECK(fs::exists(run + "/val.csv") == fresh);
    }
}

TEST_CASE("train --fresh looks at everything before it deletes anything") {
    const std::string run = trained("kept"), other = trained("out");
    const auto before = tree(run);
    const auto refused = [&](const std::vector<std::string>& set, int code, const std::string& message) {
        const Finished f = ended(with(target().command("kept", set), {"--fresh"}));
        CAPTURE(message);
        CAPTURE(f.err);
        CHECK(f.code == code);
        CHECK(contains(f.err, message));
        CHECK(tree(run) == before);
    };
    refused({"run.init_from=" + target().path("nothing")}, 4, "neither a run directory nor a checkpoint");
    refused({"run.init_from=" + run}, 2, "--fresh would delete");
    refused({"run.init_from=" + run + "/checkpoints/step_00000012"}, 2, "--fresh would delete");
    refused({"run.init_from=" + other, "model.mlp.hidden=40"}, 4, "has shape");
    refused({"data.train=[\"" + target().path("nothing_*.bin") + "\"]"}, 3, "nothing_");
    refused({"model.width=0"}, 2, "model.width");
    const io::RunLock held(run);
    refused({}, 10, "is in use by process");
}

TEST_CASE("import and export look at everything before they replace anything") {
    const std::string run = trained("out"), model = target().path("model3"),
                      imported = target().path("imported"), hf = target().path("hf3");
    REQUIRE(ended(export_of(run, model)).code == 0);
    REQUIRE(ended({"import", model, "-o", imported}).code == 0);
    REQUIRE(ended(export_of(run, hf)).code == 0);
    const auto run_before = tree(imported), hf_before = tree(hf);
    const auto refused = [&](const std::vector<std::string>& command, int code, const std::string& message) {
        const Finished f = ended(command);
        CAPTURE(f.err);
        CHECK(f.code == code);
        CHECK(contains(f.err, message));
        CHECK(tree(imported) == run_before);
        CHECK(tree(hf) == hf_before);
    };
    const std::vector<std::string> import{"import", model, "-o", imported, "--replace"};
    // A NaN in the last of the weights: everything before it would have been written.
    const std::string weights = get(model + "/model.safetensors");
    put(model + "/model.safetensors", weights.substr(0, weights.size() - 4) + std::string("\0\0\xc0\x7f", 4));
    refused(import, 4, "not finite");
    put(model + "/model.safetensors", weights);
    // Links out of the model's directory.
    put(target().path("secret.json"), "{\"secret\": 1}");
    fs::create_symlink(target().path("secret.json"), model + "/special_tokens_map.json");
    refused(import, 3, "is a link to ");
    fs::remove(model + "/special_tokens_map.json");
    put(model + "/special_tokens_map.json", "no JSON");
    refused(import, 3, "special_tokens_map.json");
    fs::remove(model + "/special_tokens_map.json");
    fs::create_directories(target().path("tokenizer"));
    put(target().path("tokenizer/tokenizer.json"), "{}");
    refused(with(export_of(run, hf, true), {"--tokenizer", target().path("nothing")}), 2,
            "--tokenizer: there is no");
    fs::create_symlink(target().path("secret.json"), target().path("tokenizer/special_tokens_map.json"));
    refused(with(export_of(run, hf, true), {"--tokenizer", target().path("tokenizer")}), 3, "is a link to ");
    CHECK(ended(import).code == 0);
}

TEST_CASE("one export at a time writes a directory") {
    const std::string run = trained("out"), hf = target().path("busy"),
                      stage = target().path(".busy.longreach");
    fs::create_directory(stage);
    const int held = ::open(stage.c_str(), O_RDONLY | O_DIRECTORY);
    REQUIRE(::flock(held, LOCK_EX | LOCK_NB) == 0);
    CHECK(ended(export_of(run, hf)).code == 10);
    ::close(held);
    CHECK(ended(export_of(run, hf)).code == 0);
}

TEST_CASE("eval and report write over results of theirs, and over nothing else without --replace") {
    const std::string run = trained("out"), weights = run + "/checkpoints/step_00000012/model.safetensors";
    const std::vector<std::string> eval{"eval", run, "--lengths", "16", "--tokens", "256"};
    const auto before = tree(run);
    const auto refused = [&](const std::vector<std::string>& command, const std::string& message) {
        const Finished f = ended(command);
        CAPTURE(f.err);
        CHECK(f.code == 2);
        CHECK(contains(f.err, message));
        CHECK(tree(run) == before);
    };
    refused(with(eval, {"--out", run}), "it is not a directory of results");
    refused(with(eval, {"--out", run + "/checkpoints/step_00000012"}), "it is not a directory of results");
    refused(with(eval, {"--token-losses", weights}), "this program did not write it");
    refused(with(eval, {"--token-losses", run + "/val.csv"}), "this program did not write it");
    const std::string results = target().path("results"), mine = target().path("mine.html");
    fs::create_directories(results);
    put(results + "/val.csv", "my,own,table\n");
    refused(with(eval, {"--out", results}), "this program did not write it");
    CHECK(get(results + "/val.csv") == "my,own,table\n");
    CHECK(ended(with(eval, {"--out", results, "--replace"})).code == 0);
    CHECK(ended(with(eval, {"--out", results, "--token-losses", results + "/t.safetensors"})).code == 0);
    CHECK(ended(with(eval, {"--token-losses", results + "/t.safetensors"})).code == 0);

    put(mine, "<!doctype html>\n<title>mine</title>\n");
    put(results + "/references.bib", "@article{mine}\n");
    refused({"report", run, "--html", mine}, "this program did not write it");
    refused({"report", run, "--html", weights}, "this program did not write it");
    refused({"report", run, "--html", results + "/p.html", "--figures", results},
            "references.bib exists, and");
    CHECK(get(results + "/references.bib") == "@article{mine}\n");
    for (int i = 0; i < 2; ++i)
        CHECK(ended({"report", run, "--html", results + "/page.html", "--svg", results + "/p.svg"}).code ==
              0);
    CHECK(ended({"report", run, "--html", mine, "--replace"}).code == 0);
    CHECK(tree(run) == before);
}
