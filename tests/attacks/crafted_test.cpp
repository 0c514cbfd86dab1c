// Checkpoints that somebody wrote on purpose: each of their files is wrong in some way,
// and the manifest agrees with it. A run falls back to the checkpoint before and ends with the bytes of a
// run that nobody touched.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>

#include "attacks/rounds.h"
#include "attacks/runs.h"
#include "base/rng.h"
#include "io/manifest.h"

using namespace longreach;
using namespace longreach::test;

namespace fs = std::filesystem;

namespace {

constexpr int64_t steps = 12, crafted_step = 9;

// A run that was stopped after step 9; reference: the same to its end.
struct Stopped {
    Results whole;
    // A run keeps its name: its copies lie in directories of their own.
    std::string run(const std::string& place) const { return target().path(place) + "/run"; }
    std::vector<std::string> command(const std::string& place) const {
        return target().command("run", {"checkpoint.keep=4", "run.dir=" + target().path(place)});
    }
    std::string checkpoint(const std::string& place) const {
        return run(place) + "/checkpoints/" + io::checkpoint_name(crafted_step);
    }
    void copy_to(const std::string& place) const {
        fs::remove_all(target().path(place));
        fs::copy(target().path("stopped"), target().path(place), fs::copy_options::recursive);
    }
    Stopped() {
        const Finished f = target().run(command("stopped"));
        check(f.code == 0, "the reference run ended with {}: {}", f.code, f.err);
        whole = results_of(run("stopped"), steps);
        fs::remove_all(run("stopped") + "/checkpoints/" + io::checkpoint_name(steps));
    }
};

const Stopped& stopped() {
    static const Stopped s;
    return s;
}

// Makes the manifest agree with the files again.
void reseal(const std::string& checkpoint, int64_t step = crafted_step) {
    std::vector<io::ManifestEntry> files;
    for (const std::string& name : io::list_directory(checkpoint)) {
        if (name == io::manifest_name) continue;
        const std::string content = get(io::join_path(checkpoint, name));
        files.push_back({name, content.size(), xxh64(content)});
    }
    put(io::join_path(checkpoint, io::manifest_name), io::format_manifest(step, files));
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    check(at != std::string::npos, "nothing to replace: {}", from);
    return text.replace(at, from.size(), to);
}

// Copies the stopped run, crafts its newest checkpoint, and resumes: the crafted one is put aside.
void put_aside(const std::string& what, const std::function<void(const std::string& checkpoint)>& craft,
               int reader_code = 0) {
    CAPTURE(what);
    const std::string name = "crafted", run = stopped().run(name);
    stopped().copy_to(name);
    craft(stopped().checkpoint(name));
    // A reader goes to the one before, or ends with reader_code, and touches nothing.
    const Finished evaluated = target().run({"eval", run});
    CAPTURE(evaluated.err);
    CHECK(evaluated.code == reader_code);
    const Finished f = target().run(stopped().command(name));
    CAPTURE(f.out);
    CAPTURE(f.err);
    CHECK(f.code == 0);
    CHECK(contains(f.out, "is damaged and was renamed to step_00000009.bad"));
    CHECK(contains(f.out, "resuming after step 6"));
    CHECK(differing(stopped().whole, results_of(run, steps)) == "");
}

// One file of it, with the manifest made to agree.
void put_aside_file(const std::string& file, const std::string& what,
                    const std::function<std::string(const std::string&)>& craft, int reader_code = 0) {
    put_aside(
        file + ": " + what,
        [&](const std::string& checkpoint) {
            const std::string path = io::join_path(checkpoint, file);
            put(path, craft(get(path)));
            reseal(checkpoint);
        },
        reader_code);
}

}  // namespace

TEST_CASE("crafted manifests are damage and not the end") {
    const auto manifest = [](const std::string& what, auto craft) {
        put_aside("manifest: " + what, [&](const std::string& checkpoint) {
            const std::string path = io::join_path(checkpoint, io::manifest_name);
            put(path, craft(get(path)));
        });
    };
    const std::string mark = "\"checksum\": \"";
    const auto escaped = [&](size_t digit) {
        return [&mark, digit](const std::string& good) {
            const size_t at = good.rfind(mark) + mark.size() + digit;
            return good.substr(0, at) + fmt::format("\\u00{:02x}", good[at]) + good.substr(at + 1);
        };
    };
    manifest("the checksum's last digit escaped", escaped(15));
    if (!std::getenv("LONGREACH_LONG_TESTS") && attack_rounds() <= 3) {
        manifest("empty", [](const std::string&) { return std::string(); });
        manifest("another step",
                 [](const std::string& good) { return replaced(good, "\"step\": 9", "\"step\": 6"); });
        return;
    }
    for (size_t digit = 0; digit < 15; ++digit) manifest("a digit escaped", escaped(digit));
    manifest("an array", [](const std::string&) { return std::string("[]"); });
    manifest("deep", [](const std::string&) { return std::string(100000, '['); });
    manifest("large", [](const std::string&) { return std::string(2 << 20, ' '); });
    manifest("nothing but NUL", [](const std::string&) { return std::string(100, '\0'); });
    manifest("not UTF-8", [](const std::string& good) { return replaced(good, "longreach", "\xff\xfe"); });
}

TEST_CASE("a manifest of another step that agrees with itself is damage") {
    put_aside("step 8", [](const std::string& checkpoint) { reseal(checkpoint, 8); });
}

TEST_CASE("crafted states, configs and tensors under a right manifest are damage") {
    const auto json = [](const std::string& file, const std::string& from, const std::string& to) {
        put_aside_file(file, to, [&](const std::string& good) { return replaced(good, from, to); });
    };
    json("state.json", "\"step\": 9", "\"step\": 8");
    json("config.json", "{", "{ // a comment\n");
    put_aside_file("model.safetensors", "garbage",
                   [](const std::string& good) { return std::string(good.size(), 'x'); });
    put_aside_file("optimizer.safetensors", "a name changed", [](const std::string& good) {
        const size_t at = good.find("embedding");
        return good.substr(0, at) + "embeddinG" + good.substr(at + 9);
    });
    if (attack_rounds() <= 3) return;
    json("state.json", "\"step\": 9", "\"step\": \"9\"");
    json("state.json", "\"step\": 9", "\"step\": -9");
    json("state.json", "\"step\": 9", "\"step\": 1e300");
    json("state.json", "\"format\": 1", "\"format\": 2");
    json("state.json", "\"metrics.jsonl\": ", "\"metrics.jsonl\": -");
    json("state.json", "\"data_fingerprint\"", "\"data_fingerprint\": 1, \"data_fingerprint\"");
    json("config.json", "\"resolved\": true", "\"resolved\": true, \"base\": \"/etc/passwd\"");
    json("config.json", "\"resolved\": true", "\"resolved\": false");
    put_aside_file("state.json", "empty", [](const std::string&) { return std::string(); });
    put_aside_file("config.json", "an array", [](const std::string&) { return std::string("[]"); });
    put_aside_file("model.safetensors", "empty", [](const std::string&) { return std::string(); });
    // The checkpoint's own config, which a reader follows, is what the tensors contradict.
    put_aside_file(
        "model.safetensors", "another shape",
        [](const std::string& good) { return replaced(good, "[257,16]", "[16,257]"); }, 4);
    put_aside_file("optimizer.safetensors", "cut",
                   [](const std::string& good) { return good.substr(0, good.size() / 2); });
    put_aside("no state", [](const std::string& checkpoint) {
        fs::remove(io::join_path(checkpoint, "state.json"));
        reseal(checkpoint);
    });
}

TEST_CASE(
    "random bytes in a random file of a checkpoint, with or without a right manifest, never end a run "
    "badly") {
    const std::string name = "random", run = stopped().run(name);
    for (int round = 0; round < attack_rounds(); ++round) {
        const Rng rng(6, Purpose::test, static_cast<uint32_t>(round));
        stopped().copy_to(name);
        const std::string checkpoint = stopped().checkpoint(name);
        const std::vector<std::string> files = io::list_directory(checkpoint);
        const std::string file =
            files[static_cast<size_t>(rng.uniform(0) * static_cast<double>(files.size()))];
        std::string content = get(io::join_path(checkpoint, file));
        const bool sealed =
            rng.uniform(1) < 0.5 && file != io::manifest_name && !file.ends_with(".safetensors");
        const size_t at = static_cast<size_t>(rng.uniform(2) * static_cast<double>(content.size()));
        content[at] = static_cast<char>(content[at] ^ (1 << static_cast<int>(rng.uniform(3) * 8)));
        put(io::join_path(checkpoint, file), content);
        if (sealed) reseal(checkpoint);
        CAPTURE(file);
        CAPTURE(at);
        CAPTURE(sealed);
        const Finished f = target().run(stopped().command(name));
        CAPTURE(f.err);
        // A number changed in a file that is then sealed may mean another run: refused, not guessed.
        CHECK((f.code == 0 || (sealed && (f.code == 2 || f.code == 3 || f.code == 4 || f.code == 5))));
        if (!sealed) CHECK(differing(stopped().whole, results_of(run, steps)) == "");
    }
}
