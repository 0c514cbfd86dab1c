// Kill the process anywhere, start it again: it ends with the bytes of a run nobody touched.
#include <doctest/doctest.h>

#include <cstdlib>

#include "base/rng.h"
#include "commands/process.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t steps = 1200;

// A run of about a second, most of it spent on checkpoints and records: where a kill can hurt.
struct Home {
    TempDir dir;
    std::string config = dir / "config.json";
    Results whole;
    double seconds = 0;
    Home() {
        make_corpus(dir / "data");
        put(config, tiny_config(dir.path(), "whole"));
        const auto begin = std::chrono::steady_clock::now();
        const Finished f = run(dir, arguments("whole"));
        seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        check(f.code == 0, "the reference run ended with {}: {}", f.code, f.err);
        whole = results_of(dir / "whole", steps);
    }
    std::vector<std::string> arguments(const std::string& name) const {
        return {"train", config,
                "--set", "run.name=" + name,
                "--set", "stages=[{\"steps\":500,\"context\":16},{\"steps\":700,\"context\":32}]",
                "--set", "checkpoint.every=5",
                "--set", "eval.every=40"};
    }
};

const Home& home() {
    static const Home h;
    return h;
}

bool has_checkpoint(const std::string& run) {
    const std::string root = io::join_path(run, "checkpoints");
    return io::kind_of(root, io::Links::refuse) == io::PathKind::directory &&
           !io::checkpoint_steps(root).empty();
}

}  // namespace

TEST_CASE("kill: SIGKILL at random moments, resumed each time, leaves the bytes of an uninterrupted run") {
    const int kills = std::getenv("LONGREACH_LONG_TESTS") ? 100 : 20;
    const Rng rng(7, Purpose::test);
    const TempDir output;
    int interrupted = 0, resumed = 0;
    for (int round = 0, k = 0; k < kills; ++round) {
        const std::string name = fmt::format("killed{}", round);
        bool finished = false;
        while (!finished && k < kills) {
            Process process(output, home().arguments(name));
            // Anywhere from the first instruction to about the end of the run.
            sleep_for(home().seconds * rng.uniform(static_cast<uint64_t>(k)));
            finished = !process.running();
            process.signal(SIGKILL);
            const int code = process.wait();
            REQUIRE((code == -SIGKILL || code == 0));
            if (code == -SIGKILL) ++interrupted;
            if (contains(process.out(), "resuming after step")) ++resumed;
            ++k;
        }
        const Finished last = run(output, home().arguments(name));
        CAPTURE(last.err);
        REQUIRE(last.code == 0);
        CHECK(differing(home().whole, results_of(home().dir / name, steps)) == "");
        for (const std::string& file : io::list_directory(home().dir / (name + "/checkpoints")))
            CHECK_MESSAGE(file.find(".bad") == std::string::npos, file);  // a kill damages nothing
        std::filesystem::remove_all(home().dir / name);
    }
    MESSAGE(kills << " starts of a run of " << home().seconds << " s: " << interrupted << " killed, "
                  << resumed << " resumed from a checkpoint");
    CHECK(interrupted > kills / 2);
}

TEST_CASE("kill: SIGTERM ends with 75 and the same command resumes") {
    const TempDir output;
    {
        Process process(output, home().arguments("term"));
        REQUIRE(wait_until([&] { return has_checkpoint(home().dir / "term"); }));
        process.signal(SIGTERM);
        CHECK(process.wait() == 75);
        CHECK(contains(process.out(), "stopped by Terminated after step"));
    }
    const Finished f = run(output, home().arguments("term"));
    CHECK(f.code == 0);
    CHECK(contains(f.out, "resuming after step"));
    CHECK(differing(home().whole, results_of(home().dir / "term", steps)) == "");
}

TEST_CASE("kill: a second process on the same run directory is turned away with 10 and disturbs nothing") {
    const TempDir output, other_output;
    Process process(output, home().arguments("shared"));
    REQUIRE(wait_until([&] { return has_checkpoint(home().dir / "shared"); }));
    const Finished second = run(other_output, home().arguments("shared"));
    REQUIRE(process.running());  // else the test has shown nothing
    CHECK(second.code == 10);
    CHECK(contains(second.err, "error: "));
    auto fresh = home().arguments("shared");
    fresh.push_back("--fresh");
    const Finished third = run(other_output, fresh);
    const bool still_running = process.running();
    CHECK((third.code == 10 || !still_running));
    CHECK(process.wait() == 0);
    if (still_running) CHECK(differing(home().whole, results_of(home().dir / "shared", steps)) == "");
}

TEST_CASE("kill: a reader that leaves, and no standard output at all, do not end a run") {
    const TempDir output;
    SUBCASE("the reader of the pipe leaves at once") {
        std::string command = std::string("'") + program() + "'";
        for (const std::string& a : home().arguments("pipe")) command += " '" + a + "'";
        // sh reports the exit code of the last command of a pipe, so the first writes its own into a file.
        command =
            "(" + command + "; echo $? > '" + (output / "code") + "') 2> '" + (output / "err") + "' | true";
        REQUIRE(std::system(command.c_str()) == 0);
        CHECK(get(output / "code") == "0\n");
        CHECK(get(output / "err") == "");
        CHECK(differing(home().whole, results_of(home().dir / "pipe", steps)) == "");
    }
    SUBCASE("standard output closed: its number must not go to a file of the run") {
        Process process(output, home().arguments("closed"), {.close_stdout = true});
        CHECK(process.wait() == 0);
        CHECK(process.out() == "");
        CHECK(process.err() == "");
        CHECK(differing(home().whole, results_of(home().dir / "closed", steps)) == "");
    }
}
