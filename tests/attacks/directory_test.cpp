// The run directory under attack while a run uses it: removed, moved, its lock deleted, its records deleted,
// cut or replaced; and links and FIFOs that wait in it.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>

#include "attacks/rounds.h"
#include "attacks/runs.h"
#include "base/rng.h"

using namespace longreach;
using namespace longreach::test;

namespace fs = std::filesystem;

namespace {

// Starts an endless run, does `attack` at a random moment after its first checkpoints, and waits for the end.
template <class Attack>
Finished attacked(const std::string& name, int round, Attack attack) {
    fs::remove_all(target().path(name));
    Process process(target().output(), target().endless(name));
    REQUIRE(wait_until([&] { return target().has_checkpoints(name, 2) || !process.running(); }));
    REQUIRE(process.running());
    sleep_for(0.05 * Rng(3, Purpose::test).uniform(static_cast<uint64_t>(round)));
    attack(target().path(name), process);
    REQUIRE(wait_until([&] { return !process.running(); }));
    const int code = process.wait();
    return {code, process.out(), process.err()};
}

// The run goes on after "resuming" until it is asked to stop. Its record of steps must have no hole.
void resumes(const std::string& name) {
    put(target().output() / "resumedstdout.txt", "");  // not what an earlier run left there
    Process process(target().output(), target().endless(name), {.name = "resumed"});
    REQUIRE(wait_until([&] { return contains(process.out(), "tok/s") || !process.running(); }));
    process.signal(SIGTERM);
    const int code = process.wait();
    const std::string err = process.err();
    CAPTURE(err);
    REQUIRE(code == 75);
    const std::vector<double> losses = training_losses(target().path(name));
    const auto newest = io::newest_checkpoint(target().path(name) + "/checkpoints", io::Damaged::leave,
                                              [](const std::string&) {});
    REQUIRE(newest.has_value());
    CHECK(static_cast<int64_t>(losses.size()) == newest->step);
    const std::string first = get(target().path(name) + "/metrics.jsonl").substr(0, 9);
    CHECK(first == "{\"step\":1");
}

}  // namespace

TEST_CASE("a run directory that is removed ends the run with 5") {
    for (int round = 0; round < attack_rounds(); ++round) {
        // At once, or file by file while the run goes on.
        const bool at_once = round % 2 == 0;
        const Finished f = attacked("removed", round, [&](const std::string& path, Process& process) {
            std::error_code failed;
            if (at_once) process.signal(SIGSTOP);
            while (fs::exists(path)) fs::remove_all(path, failed);
            process.signal(SIGCONT);
        });
        CAPTURE(f.err);
        CHECK(f.code == 5);
        if (at_once) CHECK(contains(f.err, "removed was removed while the run used it"));
    }
}

TEST_CASE("a run directory that is moved ends the run with 5, and keeps its checkpoints") {
    for (int round = 0; round < attack_rounds(); ++round) {
        const std::string moved = target().path("elsewhere");
        fs::remove_all(moved);
        const Finished f =
            attacked("moved", round, [&](const std::string& path, Process&) { fs::rename(path, moved); });
        CAPTURE(f.err);
        CHECK(f.code == 5);
        CHECK(contains(f.err, "moved was moved to "));
        CHECK(contains(f.err, "elsewhere while the run used it"));
        CHECK_FALSE(fs::exists(target().path("moved/config.json")));
        fs::remove_all(target().path("moved"));
        fs::rename(moved, target().path("moved"));
        resumes("moved");
    }
}

TEST_CASE("a lock file that is deleted lets no second process in, and ends the run with 5") {
    for (int round = 0; round < attack_rounds(); ++round) {
        const Finished f = attacked("unlocked", round, [](const std::string& path, Process& first) {
            first.signal(SIGSTOP);  // it would notice and end before the second has begun
            fs::remove(path + "/lock");
            Process second(target().output(), target().endless("unlocked"), {.name = "second"});
            REQUIRE(wait_until([&] { return !second.running(); }));
            CHECK(second.wait() == 10);
            first.signal(SIGCONT);
        });
        CAPTURE(f.err);
        CHECK(f.code == 5);
        CHECK(contains(f.err, "unlocked/lock was removed while the run used it"));
        resumes("unlocked");
    }
}

TEST_CASE("record files that are deleted, replaced or cut end the run with 5 and are restored") {
    for (int round = 0; round < attack_rounds(); ++round)
        for (const char* file : {"metrics.jsonl", "val.csv", "positions.csv"}) {
            const int kind = round % 3;
            const Finished f = attacked("records", round, [&](const std::string& path, Process&) {
                const std::string record = io::join_path(path, file);
                if (kind == 0) fs::remove(record);
                if (kind == 1) put(record, "");
                if (kind == 2) {
                    put(record + ".new", "{\"step\":1}\n");
                    fs::rename(record + ".new", record);
                }
            });
            CAPTURE(f.err);
            CAPTURE(kind);
            CHECK(f.code == 5);
            CHECK(contains(f.err, io::join_path("records", file) + " was "));
            CHECK(contains(f.err, " while the run used it"));
            resumes("records");
        }
}

TEST_CASE("FIFOs and links in a run directory are refused at once and not followed") {
    const std::vector<std::string> files = {"metrics.jsonl", "timing.jsonl", "val.csv",    "positions.csv",
                                            "log.txt",       "lock",         "config.json"};
    const std::string outside = target().path("outside");
    for (const std::string& file : files)
        for (const bool fifo : {true, false}) {
            CAPTURE(file);
            CAPTURE(fifo);
            const std::string run = target().path("trap"), path = io::join_path(run, file);
            fs::remove_all(run);
            fs::create_directories(run);
            put(outside, "precious");
            if (fifo)
                REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
            else
                fs::create_symlink(outside, path);
            Process process(target().output(), target().command("trap"));
            REQUIRE(wait_until([&] { return !process.running(); }));
            CHECK(process.wait() == 5);
            CHECK(contains(process.err(), file));
            CHECK((contains(process.err(), "regular file") || contains(process.err(), "symbolic link")));
            CHECK(get(outside) == "precious");
        }
    for (const char* directory : {"checkpoints", "eval", "events"}) {
        CAPTURE(directory);
        const std::string run = target().path("trap");
        fs::remove_all(run);
        fs::create_directories(run);
        fs::create_directories(outside + ".d");
        fs::create_symlink(outside + ".d", io::join_path(run, directory));
        const Finished f = target().run(target().command("trap"));
        const bool events = std::string(directory) == "events";  // which end no run
        CHECK(f.code == (events ? 0 : 5));
        CHECK(contains(events ? f.out : f.err, std::string(directory) + " is not a directory"));
        CHECK(fs::is_empty(outside + ".d"));
    }
    // --fresh clears what does not belong there.
    std::vector<std::string> fresh = target().command("trap");
    fresh.push_back("--fresh");
    const Finished f = target().run(fresh);
    CAPTURE(f.err);
    CHECK(f.code == 0);
    CHECK(fs::exists(outside));
}

TEST_CASE("names with newlines, ESC and other control characters are refused with 2") {
    for (const char* name : {"\"a\\nb\"", "\"a\\u001b[31mb\"", "\"a\\u007f\"", "\"a\\u009b\"", "\"\\tb\""}) {
        CAPTURE(name);
        for (const char* field : {"run.name=", "run.dir="}) {
            const Finished f = target().run(
                {"train", target().path("config.json"), "--set", std::string(field) + name, "--dry-run"});
            CHECK(f.code == 2);
            CHECK(contains(f.err, "control characters"));
            CHECK_FALSE(contains(f.err, "\x1b"));
        }
    }
    const Finished label = target().run({"eval", target().path("nowhere"), "--label", "a\nb"});
    CHECK(label.code == 2);
    // A name that reaches a message by another way is shown without its control characters.
    const Finished missing = target().run({"eval", "no\x1b[31mwhere"});
    CHECK(missing.code == 4);
    CHECK_FALSE(contains(missing.err, "\x1b"));
}
