#include "ranks/spawn.h"

#include <doctest/doctest.h>
#include <sys/prctl.h>

#include <fstream>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "ranks/processes.h"
#include "ranks/rendezvous.h"
#include "ranks/rendezvous_server.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// A parent process with its output in files, whose ranks run a shell script ($RANK tells them apart).
class Parent {
  public:
    Parent(const TempDir& directory, int ranks, const std::string& script, double grace = patience)
        : out_(directory / "out"), err_(directory / "err"), child_([&] {
              redirect(STDOUT_FILENO, out_);
              redirect(STDERR_FILENO, err_);
              ranks::SpawnOptions options;
              options.ranks = ranks;
              options.program = "/bin/sh";
              options.arguments = {"sh", "-c", "cd \"$0\"\n" + script, directory.path()};
              options.grace = grace;
              ::_exit(ranks::spawn_ranks(options));
              return std::string();
          }) {}
    Child& process() { return child_; }
    int wait() { return child_.wait(); }
    std::string out() const { return get(out_); }
    std::string err() const { return get(err_); }

  private:
    std::string out_, err_;
    Child child_;
};

bool exists(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
}

pid_t pid_in(const std::string& path) {
    REQUIRE(wait_until([&] { return exists(path) && !get(path).empty() && get(path).back() == '\n'; }));
    return std::stoi(get(path));
}

// Whether a process that is not our child has ended; one that only waits to be reaped has.
bool ended(pid_t process) {
    std::ifstream in(fmt::format("/proc/{}/stat", process));
    std::string text;
    std::getline(in, text);
    return text.empty() || text.find(") Z ") != std::string::npos;
}

}  // namespace

TEST_CASE("all ranks get their place, rank 0's output is its own, the others' errors are marked") {
    const TempDir dir;
    Parent parent(dir, 3,
                  "echo out $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $LONGREACH_SPAWNED "
                  "${#LONGREACH_RUN_TOKEN} ${LONGREACH_LISTENING:+listening}\n"
                  "echo err $RANK >&2; printf 'no newline' >&2; cat");
    CHECK(parent.wait() == 0);
    CHECK(parent.out() == "out 0/3 0/3 127.0.0.1 1 64 listening\n");
    std::string err = parent.err();
    // Rank 0 writes directly, so its line without an end may run into any other.
    const size_t at = err.find("no newline");
    REQUIRE(at != std::string::npos);
    CHECK(contains(err, "err 0\n"));
    for (const char* line :
         {"[rank 1] err 1\n", "[rank 2] err 2\n", "[rank 1] no newline\n", "[rank 2] no newline\n"})
        CHECK(contains(err, line));
    CHECK_FALSE(contains(err, "out 1"));
}

TEST_CASE("the first failure is reported with its last lines, ends the others and decides the exit code") {
    const TempDir dir;
    Parent parent(dir, 3,
                  "echo $$ >pid.$RANK\n"
                  "trap 'echo told >told.$RANK; exit 75' TERM\n"
                  "if [ $RANK = 1 ]; then while [ ! -s pid.0 ] || [ ! -s pid.2 ]; do sleep 0.05; done\n"
                  "echo cannot read >&2; echo on stdout; exit 3; fi\n"
                  "while :; do sleep 0.05; done");
    CHECK(parent.wait() == 3);
    const std::string err = parent.err();
    CHECK(contains(err, "error: rank 1 ended with exit code 3\nits last lines:\n"));
    const std::string after = err.substr(err.find("its last lines:\n"));
    CHECK(contains(after, "[rank 1] cannot read\n"));
    CHECK(contains(after, "[rank 1] on stdout\n"));
    CHECK(contains(after, "ending the other 2 ranks\n"));
    CHECK(exists(dir / "told.0"));
    CHECK(exists(dir / "told.2"));
    CHECK_FALSE(contains(err, "rank 2 ended"));
}

TEST_CASE(
    "a rank ended by a signal is named with it; ranks that ignore the end are killed, and what they "
    "started") {
    const TempDir dir;
    const double start = ranks::monotonic_seconds();
    Parent parent(dir, 2,
                  "trap '' TERM\n"
                  "sleep 1000 & echo $! >grandchild.$RANK; echo $$ >pid.$RANK\n"
                  "if [ $RANK = 1 ]; then while [ ! -s pid.0 ]; do sleep 0.05; done; kill -SEGV $$; fi\n"
                  "while :; do sleep 0.05; done",
                  0.5);
    CHECK(parent.wait() == 128 + SIGSEGV);
    CHECK(ranks::monotonic_seconds() - start < patience);
    CHECK(contains(parent.err(), "error: rank 1 was ended by signal 11 (Segmentation fault)"));
    for (const char* name : {"pid.0", "pid.1", "grandchild.0", "grandchild.1"}) {
        const pid_t process = pid_in(dir / name);
        CHECK(wait_until([&] { return ended(process); }));
    }
}

TEST_CASE("when a rank only reports that another failed, the cause that follows decides") {
    const TempDir dir;
    Parent parent(
        dir, 3,
        "if [ $RANK = 2 ]; then trap '' TERM; else trap 'exit 5' TERM; fi\n"
        "echo >ready.$RANK; while [ ! -e ready.0 ] || [ ! -e ready.1 ] || [ ! -e ready.2 ]; do sleep 0.05; "
        "done\n"
        "if [ $RANK = 0 ]; then exit 8; fi\n"
        "while :; do sleep 0.05; done",
        1);
    CHECK(parent.wait() == 5);
    CHECK(contains(parent.err(), "error: rank 0 ended with exit code 8\n"));
    CHECK(contains(
        parent.err(),
        "error: rank 1 ended with exit code 5; rank 0 had only reported that another rank failed\n"));
    // Rank 2 was killed by the parent: that is no cause.
    CHECK_FALSE(contains(parent.err(), "rank 2"));
}

TEST_CASE("signals reach every rank exactly once, and an orderly stop is the run's") {
    const TempDir dir;
    Parent parent(dir, 3,
                  "for s in INT USR1 USR2 HUP; do trap \"echo $s >>got.$RANK\" $s; done\n"
                  "trap 'echo TERM >>got.$RANK; exit 75' TERM\n"
                  "echo $$ >pid.$RANK\n"
                  "while :; do sleep 0.05; done");
    for (int rank = 0; rank < 3; ++rank) pid_in(dir / fmt::format("pid.{}", rank));
    std::string expected;
    for (const auto& [number, name] :
         {std::pair{SIGINT, "INT"}, {SIGUSR1, "USR1"}, {SIGUSR2, "USR2"}, {SIGHUP, "HUP"}, {SIGINT, "INT"}}) {
        parent.process().signal(number);
        expected += std::string(name) + "\n";
        for (int rank = 0; rank < 3; ++rank) {
            const std::string path = dir / fmt::format("got.{}", rank);
            CHECK(wait_until([&] { return exists(path) && get(path) == expected; }));
        }
    }
    parent.process().signal(SIGTERM);
    CHECK(parent.wait() == 75);
    for (int rank = 0; rank < 3; ++rank) CHECK(get(dir / fmt::format("got.{}", rank)) == expected + "TERM\n");
    CHECK_FALSE(contains(parent.err(), "error:"));
}

TEST_CASE("no rank outlives a parent that is killed") {
    const TempDir dir;
    // Orphans of this test come to this process, so that it sees how they ended.
    REQUIRE(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    Parent parent(dir, 3, "trap '' TERM HUP INT\necho $$ >pid.$RANK\nwhile :; do sleep 0.05; done");
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < 3; ++rank) ranks.push_back(pid_in(dir / fmt::format("pid.{}", rank)));
    parent.process().signal(SIGKILL);
    CHECK(parent.wait() == -SIGKILL);
    for (const pid_t rank : ranks) {
        int status = 0;
        CHECK(wait_until([&] { return ::waitpid(rank, &status, WNOHANG) == rank; }));
        ::kill(rank, SIGKILL);  // where the check failed
        CHECK(WIFSIGNALED(status));
        CHECK(WTERMSIG(status) == SIGKILL);
    }
    // The shells' last sleeps.
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_CASE("a program that cannot be started") {
    const TempDir dir;
    Child child([&] {
        redirect(STDERR_FILENO, dir / "err");
        ranks::SpawnOptions options;
        options.program = "/nonexistent/program";
        options.arguments = {"x"};
        ::_exit(ranks::spawn_ranks(options));
        return std::string();
    });
    CHECK(child.wait() == 127);
    CHECK(contains(get(dir / "err"), "error: cannot start /nonexistent/program: No such file or directory"));
}

TEST_CASE("the parent leaves no child behind and restores the signals") {
    const TempDir dir;
    Child child([&] {
        sigset_t before, after;
        ::sigprocmask(SIG_SETMASK, nullptr, &before);
        ranks::SpawnOptions options;
        options.program = "/bin/sh";
        options.arguments = {"sh", "-c", "exit 0"};
        const int code = ranks::spawn_ranks(options);
        ::sigprocmask(SIG_SETMASK, nullptr, &after);
        bool same = true;
        for (int signal = 1; signal < 32; ++signal)
            same = same && sigismember(&before, signal) == sigismember(&after, signal);
        return fmt::format("{} {} {}", code, same, ::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD);
    });
    CHECK(child.outcome() == "0 true true");
}

// The program of the next test: this binary again, as a rank.
TEST_CASE("as a rank" * doctest::skip()) {
    const ranks::Environment environment = ranks::process_environment();
    const ranks::RankPlace place = ranks::place_from(environment);
    REQUIRE(place.source == ranks::Launcher::spawn);
    const std::string token = ranks::run_token(place, environment);
    std::unique_ptr<ranks::RendezvousServer> server;
    if (place.rank == 0) server = std::make_unique<ranks::RendezvousServer>(place, token);
    ranks::Rendezvous rendezvous(place, token, patience);
    rendezvous.join({{"ranks", std::to_string(place.ranks)}}, patience);
    rendezvous.set(std::to_string(place.rank), "here");
    for (int rank = 0; rank < place.ranks; ++rank)
        CHECK(rendezvous.wait(std::to_string(rank), patience) == "here");
    rendezvous.leave(ExitCode::ok, "");
}

TEST_CASE("ranks started by --ranks find each other over the inherited socket") {
    const TempDir dir;
    Child parent([&] {
        redirect(STDOUT_FILENO, dir / "out");
        ranks::SpawnOptions options;
        options.ranks = 4;
        options.arguments = {"test_ranks", "--no-skip", "--test-case=as a rank"};
        return std::to_string(ranks::spawn_ranks(options));
    });
    CHECK(parent.outcome() == "0");
    CHECK(contains(get(dir / "out"), "1 passed"));
}
