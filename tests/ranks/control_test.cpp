// The watchdog with real processes over loopback: dead, hung, slow and mismatching ranks.
#include "ranks/control.h"

#include <doctest/doctest.h>

#include <atomic>
#include <memory>

#include "ranks/processes.h"
#include "ranks/rendezvous_server.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const std::string token = "the token of the tests";

// A rank's own part of a test.
struct RankWork {
    ranks::CollectiveLog& log;
    ranks::Heartbeat& heartbeat;
    const std::atomic<bool>& ended;
    int rank;
    void all_reduce(uint64_t count) {
        log.finish(log.begin(ranks::CollectiveOp::all_reduce, ranks::ElementType::f32, count));
    }
    // As a collective that never finishes: until the run is over.
    void hang(uint64_t count) {
        log.begin(ranks::CollectiveOp::all_reduce, ranks::ElementType::f32, count);
        wait();
    }
    void wait() {
        wait_until([&] { return ended.load(); });
    }
};

// A run of `ranks` processes; rank 0's has the server. Each ends with the reason it heard as its outcome.
class Run {
  public:
    Run(int ranks, const ranks::WatchdogOptions& watchdog, const std::function<void(RankWork&)>& work) {
        for (int rank = 0; rank < ranks; ++rank)
            children_.emplace_back([&, rank] {
                std::unique_ptr<ranks::RendezvousServer> server;
                const std::string port_file = directory_ / "port";
                if (rank == 0) {
                    ranks::ServerOptions options;
                    options.watchdog = watchdog;
                    server = std::make_unique<ranks::RendezvousServer>(place_of(0, ranks, 0), token, options);
                    io::write_file_atomically(port_file, std::to_string(server->port()));
                }
                wait_until([&] { return ::access(port_file.c_str(), F_OK) == 0; });
                const ranks::RankPlace place = place_of(rank, ranks, std::stoi(get(port_file)));
                ranks::CollectiveLog log(ranks::collective_log_path(directory_.path(), rank), rank, ranks);
                log.set_step(1);
                std::string reason = "none";
                std::atomic<bool> ended = false;
                ranks::HeartbeatOptions options;
                options.interval = 0.1;
                options.unheard = 20;
                ranks::Heartbeat heartbeat(
                    place, token, log,
                    [&](const std::string& text) {
                        reason = text;
                        ended = true;
                    },
                    options);
                put(directory_ / fmt::format("up.{}", rank), "");
                // All ranks are there before anything happens, however slow the machine is.
                wait_until([&] {
                    for (int other = 0; other < ranks; ++other)
                        if (::access((directory_ / fmt::format("up.{}", other)).c_str(), F_OK) != 0)
                            return false;
                    return true;
                });
                RankWork mine{log, heartbeat, ended, rank};
                work(mine);
                return reason;
            });
    }
    Child& operator[](int rank) { return children_[static_cast<size_t>(rank)]; }
    const TempDir& directory() const { return directory_; }
    // `rank`'s newest collective in its log.
    uint64_t newest(int rank) const {
        const std::string path = ranks::collective_log_path(directory_.path(), rank);
        if (::access(path.c_str(), F_OK) != 0) return 0;
        uint64_t sequence = 0;
        error_of([&] {
            const auto contents = ranks::read_collective_log(path);
            if (!contents.records.empty()) sequence = contents.records.back().sequence;
        });
        return sequence;
    }

  private:
    TempDir directory_;
    std::vector<Child> children_;
};

// Long against the heartbeats of 0.1 s, so that a crowded machine does not make a living rank silent.
const ranks::WatchdogOptions patient{30, 4, 1.5, 1};

}  // namespace

TEST_CASE("a dead rank is reported at once by name, with its last word, on every other rank") {
    ranks::WatchdogOptions never = patient;
    never.timeout = 1000;
    Run run(3, never, [](RankWork& r) {
        r.all_reduce(10);
        r.hang(20);
    });
    for (int rank = 0; rank < 3; ++rank) REQUIRE(wait_until([&] { return run.newest(rank) == 2; }));
    sleep_for(0.5);  // some heartbeats
    const int dead = run[1].id();
    run[1].signal(SIGKILL);
    for (const int rank : {0, 2}) {
        const std::string reason = run[rank].outcome();
        CHECK(contains(reason, fmt::format("rank 1 (process {} on ", dead)));
        CHECK(contains(reason, "is gone: its connection closed without a goodbye"));
    }
    // And its log says what it was in.
    const ranks::CollectiveLogContents log =
        ranks::read_collective_log(ranks::collective_log_path(run.directory().path(), 1));
    REQUIRE(log.records.size() == 2);
    CHECK(ranks::describe(log.records[1]) == "collective 2 (all_reduce of 20 f32, step 1)");
    CHECK(log.records[1].finished_ns == 0);
}

TEST_CASE("a stopped rank is reported as hung, not as dead or slow") {
    Run run(3, patient, [](RankWork& r) {
        r.all_reduce(10);
        if (r.rank == 2) ::raise(SIGSTOP);
        r.hang(20);
    });
    for (const int rank : {0, 1}) {
        const std::string reason = run[rank].outcome();
        CHECK(contains(
            reason, "ranks 0 and 1 wait in collective 2 (all_reduce of 20 f32, step 1); rank 2 (process "));
        CHECK(contains(reason, "has not begun it: silent for "));
    }
    run[2].signal(SIGCONT);
    // Awake again, it finds the server gone or hears the end.
    CHECK(run[2].outcome() != "none");
}

TEST_CASE("a slow rank is reported as alive and behind") {
    Run run(3, patient, [](RankWork& r) {
        r.all_reduce(10);
        if (r.rank == 1) r.wait();
        r.hang(20);
    });
    for (const int rank : {0, 1, 2}) {
        const std::string reason = run[rank].outcome();
        CHECK(contains(
            reason, "ranks 0 and 2 wait in collective 2 (all_reduce of 20 f32, step 1); rank 1 (process "));
        CHECK(contains(reason, "has not begun it: alive, heard "));
        CHECK(contains(reason, "its newest is collective 1 (all_reduce of 10 f32, step 1), finished"));
    }
}

TEST_CASE("a rank with another size is reported long before the timeout") {
    ranks::WatchdogOptions never = patient;
    never.timeout = 1000;
    Run run(3, never, [](RankWork& r) {
        r.all_reduce(10);
        r.hang(r.rank == 2 ? 21 : 20);
    });
    for (const int rank : {0, 1, 2})
        CHECK(run[rank].outcome() ==
              "the ranks differ on collective 2: ranks 0 and 1 call all_reduce of 20 f32 (step 1), rank 2 "
              "calls all_reduce of 21 f32 (step 1)");
}

TEST_CASE("a rank that fails tells the others why, and ranks that finish end without a word") {
    Run failing(3, patient, [](RankWork& r) {
        if (r.rank == 2) r.heartbeat.leave(ExitCode::disk, "no space left on /scratch");
        if (r.rank != 2) r.hang(20);
    });
    for (const int rank : {0, 1})
        CHECK(contains(failing[rank].outcome(), "failed with exit code 5: no space left on /scratch"));
    CHECK(failing[2].outcome() == "none");

    Run good(3, patient, [](RankWork& r) {
        for (uint64_t i = 0; i < 200; ++i) r.all_reduce(i);
        // Out of step at the end, as ranks are.
        sleep_for(0.3 * r.rank);
        r.heartbeat.leave(r.rank == 1 ? ExitCode::stopped : ExitCode::ok, "");
    });
    for (const int rank : {0, 1, 2}) CHECK(good[rank].outcome() == "none");
}

TEST_CASE("when rank 0 dies the others end and say so") {
    Run run(2, patient, [](RankWork& r) { r.hang(20); });
    REQUIRE(wait_until([&] { return run.newest(0) == 1 && run.newest(1) == 1; }));
    run[0].signal(SIGKILL);
    CHECK(contains(run[1].outcome(), "lost the connection to rank 0 at 127.0.0.1:"));
}
