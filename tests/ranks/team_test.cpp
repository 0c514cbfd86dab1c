// What a user sees when something goes wrong among several ranks: real processes with real collectives, their
// exit codes and the lines they print.
#include "ranks/team.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sched.h>

#include <cstdlib>
#include <thread>

#include "ranks/processes.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const std::string token = "the token of the tests";

bool exists(const std::string& path) {
    return ::access(path.c_str(), F_OK) == 0;
}

// Short against what users get, long against the heartbeats on a crowded machine.
ranks::TeamOptions impatient() {
    ranks::TeamOptions options;
    options.watchdog = {30, 4, 1.5, 1};
    options.heartbeat.interval = 0.1;
    options.heartbeat.unheard = 20;
    options.arrival = patience;
    return options;
}

// A joined and connected rank at work; its piece of a collective is one row of `count` from every rank.
struct Worker {
    ranks::Team& team;
    std::unique_ptr<ranks::Comm> comm;
    std::vector<float> memory = {};
    void gather(int64_t count) {
        const int ranks = team.ranks();
        memory.assign(static_cast<size_t>(count * ranks), 1);
        std::vector<ranks::Transfer> sends, receives;
        const auto row = [&](int rank) { return Tensor(memory.data() + rank * count, DType::f32, {count}); };
        for (int peer = 0; peer < ranks; ++peer) {
            if (peer == team.rank()) continue;
            sends.push_back({peer, row(team.rank())});
            receives.push_back({peer, row(peer)});
        }
        comm->wait(comm->exchange({ranks::CollectiveOp::all_gather, DType::f32, count}, sends, receives));
    }
    void all_reduce(int64_t count) {
        memory.assign(static_cast<size_t>(count), 1);
        comm->wait(comm->all_reduce(Tensor(memory.data(), DType::f32, {count})));
    }
};

class TeamRun {
  public:
    TeamRun() = default;
    TeamRun(int ranks, const std::function<void(Worker&)>& work,
            const ranks::TeamOptions& options = impatient()) {
        for (int rank = 0; rank < ranks; ++rank)
            start(place_of(rank, ranks, 0), options, [work](ranks::Team& team) {
                team.join({{"build", "1"}, {"config", "2"}});
                work_connected(team, work);
            });
    }
    static void work_connected(ranks::Team& team, const std::function<void(Worker&)>& work) {
        const std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
        Worker worker{team, team.connect(*ops)};
        team.set_step(1);
        work(worker);
    }
    // A process that does what main() does. Port 0: the one that rank 0 takes.
    void start(
        ranks::RankPlace place, const ranks::TeamOptions& options,
        const std::function<void(ranks::Team&)>& work, const std::function<void()>& first = [] {}) {
        children_.emplace_back([this, place, options, work, first]() mutable {
            redirect(STDERR_FILENO, stderr_of(place.rank));
            first();
            int code = 0;
            try {
                const std::string port_file = directory_ / "port";
                if (place.rank > 0 && place.port == 0) {
                    wait_until([&] { return exists(port_file); });
                    place.port = std::stoi(get(port_file));
                }
                ranks::Team team(place, token, directory_ / "run", options);
                if (place.rank == 0) io::write_file_atomically(port_file, std::to_string(team.place().port));
                put(connected(place.rank), "");
                try {
                    work(team);
                    team.leave(ExitCode::ok, "");
                } catch (const Error& error) {
                    team.leave(error.code(), error.what());
                    throw;
                }
            } catch (const Error& error) {
                fmt::print(stderr, "error: {}\n", error.what());
                code = static_cast<int>(error.code());
            }
            std::fflush(stderr);
            ::_exit(code);
            return std::string();
        });
    }
    // For a rank: until this many others have reached rank 0, however slow the machine is.
    void wait_for_connected(int ranks) const {
        for (int rank = 0; rank < ranks; ++rank) wait_until([&] { return exists(connected(rank)); });
    }
    Child& operator[](int rank) { return children_[static_cast<size_t>(rank)]; }
    const TempDir& directory() const { return directory_; }
    // Once the rank's log has it.
    bool wait_for_collective(int rank, uint64_t sequence) const {
        return wait_until([&] {
            uint64_t newest = 0;
            error_of([&] {
                const auto log =
                    ranks::read_collective_log(ranks::collective_log_path(directory_ / "run", rank));
                if (!log.records.empty()) newest = log.records.back().sequence;
            });
            return newest >= sequence;
        });
    }
    // What `rank` printed, once it has ended with `code`: one line.
    std::string line(int rank, int code) {
        CHECK_MESSAGE((*this)[rank].wait() == code, "rank " << rank);
        const std::string text = get(stderr_of(rank));
        MESSAGE("rank " << rank << ", exit code " << code << ": " << text.substr(0, text.size() - 1));
        CHECK(std::count(text.begin(), text.end(), '\n') == 1);
        return text;
    }
    // The others' line, all alike.
    std::string line_of_all(const std::vector<int>& ranks, int code = 8) {
        const std::string text = line(ranks.front(), code);
        for (const int rank : ranks) {
            CHECK((*this)[rank].wait() == code);
            CHECK(get(stderr_of(rank)) == text);
        }
        return text;
    }

  private:
    std::string connected(int rank) const { return directory_ / fmt::format("connected.{}", rank); }
    std::string stderr_of(int rank) const { return directory_ / fmt::format("stderr.{}", rank); }
    TempDir directory_;
    std::vector<Child> children_;
};

}  // namespace

TEST_CASE("a run that goes well ends without a word, and rank 0's texts reach everybody") {
    TeamRun run(3, [](Worker& w) {
        for (int64_t step = 1; step <= 20; ++step) {
            w.gather(100 * step);
            w.all_reduce(step);
            check(w.memory[0] == 3, "the sum of 3 ones is {}", w.memory[0]);
            w.team.set_step(step);
        }
        const std::string secret = w.team.first() ? std::string(30'000, 'x') + "!" : "not mine to tell";
        check(w.team.broadcast("name", secret).ends_with("x!"), "rank {} was not told", w.team.rank());
        // Out of step at the end, as ranks are.
        sleep_for(0.3 * w.team.rank());
    });
    for (const int rank : {0, 1, 2}) {
        CHECK(run[rank].wait() == 0);
        CHECK(get(run.directory() / fmt::format("stderr.{}", rank)).empty());
    }
    const ranks::CollectiveLogContents log =
        ranks::read_collective_log(ranks::collective_log_path(run.directory() / "run", 2));
    CHECK(ranks::describe(log.records.back()) == "collective 40 (all_reduce of 20 f32, step 19)");
    CHECK(log.records.back().finished_ns > 0);
}

TEST_CASE("a team of one has no files, no threads and nobody to talk to") {
    ranks::Team team;
    team.join({});
    team.set_step(3);
    const ranks::Team::Busy busy(team, "saving");
    const std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    CHECK(team.connect(*ops)->describe() == "one rank");
    CHECK(team.broadcast("a", "b") == "b");
    CHECK(team.ranks() == 1);
    team.leave(ExitCode::ok, "");
}

TEST_CASE("ranks with another config are told apart before anything begins") {
    TeamRun run;
    for (int rank = 0; rank < 3; ++rank)
        run.start(place_of(rank, 3, 0), impatient(), [&run](ranks::Team& team) {
            run.wait_for_connected(3);
            team.join({{"build", "1"}, {"config", team.rank() == 1 ? "other" : "same"}});
        });
    const std::string line = run.line_of_all({0, 1, 2});
    CHECK(contains(line, "rank 1 (process "));
    CHECK(contains(line, "differs from rank 0: config is \"other\" there but \"same\" on rank 0"));
}

TEST_CASE("a rank that never starts is named") {
    TeamRun run;
    ranks::TeamOptions options = impatient();
    options.arrival = 3;
    for (const int rank : {0, 1})
        run.start(place_of(rank, 3, 0), options, [](ranks::Team& team) { team.join({}); });
    CHECK(contains(run.line_of_all({0, 1}), "rank 2 of 3 did not arrive within 3 s"));
}

TEST_CASE("a port in use is reported with address and port; the others do not take the stranger for rank 0") {
    const ranks::Descriptor taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    REQUIRE(::bind(taken.get(), reinterpret_cast<sockaddr*>(&name), size) == 0);
    REQUIRE(::listen(taken.get(), 8) == 0);
    REQUIRE(::getsockname(taken.get(), reinterpret_cast<sockaddr*>(&name), &size) == 0);
    const int port = ntohs(name.sin_port);
    TeamRun run;
    ranks::TeamOptions options = impatient();
    options.arrival = 2;
    for (const int rank : {0, 1})
        run.start(place_of(rank, 2, port), options, [](ranks::Team& team) { team.join({}); });
    CHECK(contains(run.line(0, 2),
                   fmt::format("rank 0 cannot listen on 127.0.0.1:{}: another process listens there", port)));
    CHECK(
        contains(run.line(1, 8), fmt::format("rank 1 found no rank 0 at 127.0.0.1:{} within 2 s: it accepts "
                                             "connections but does not answer as rank 0 does",
                                             port)));
}

TEST_CASE("a host that cannot be resolved is named") {
    TeamRun run;
    for (const int rank : {0, 1}) {
        ranks::RankPlace place = place_of(rank, 2, 29555);
        place.host = "no-such-host.invalid";
        run.start(place, impatient(), [](ranks::Team& team) { team.join({}); });
    }
    CHECK(contains(run.line_of_all({0, 1}, 2), "cannot resolve the host no-such-host.invalid of rank 0: "));
}

TEST_CASE("a rank that fails on its own before all have joined tells the others why, late ones too") {
    for (const int failing : {0, 1}) {
        TeamRun run;
        for (int rank = 0; rank < 3; ++rank)
            run.start(place_of(rank, 3, 0), impatient(), [&run, failing](ranks::Team& team) {
                run.wait_for_connected(3);
                require(team.rank() != failing, ExitCode::device, "no room for 3 GiB");
                // By then, rank 0 has ended.
                if (team.rank() == 2) sleep_for(2);
                team.join({});
            });
        CHECK(contains(run.line(failing, 6), "error: no room for 3 GiB"));
        CHECK(contains(run.line_of_all({1 - failing, 2}), "failed with exit code 6: no room for 3 GiB"));
    }
}

TEST_CASE("a rank that fails in a step ends the others with its own words") {
    for (const int failing : {0, 2}) {
        TeamRun run(3, [failing](Worker& w) {
            w.gather(10);
            require(w.team.rank() != failing, ExitCode::disk, "no space left on /scratch");
            w.gather(20);
        });
        CHECK(contains(run.line(failing, 5), "error: no space left on /scratch"));
        const std::string line = run.line_of_all({1, failing == 0 ? 2 : 0});
        CHECK(contains(line, fmt::format("rank {} (process ", failing)));
        CHECK(contains(line, "failed with exit code 5: no space left on /scratch"));
    }
}

TEST_CASE("a rank that dies between collectives is named, not the connection it broke") {
    TeamRun run(3, [](Worker& w) {
        w.gather(1000);
        sleep_for(0.5);  // some heartbeats
        if (w.team.rank() == 1) ::raise(SIGKILL);
        w.gather(2000);
    });
    CHECK(run[1].wait() == -SIGKILL);
    const std::string line = run.line_of_all({0, 2});
    CHECK(contains(line, "rank 1 (process "));
    CHECK(contains(line, "is gone: its connection closed without a goodbye"));
    CHECK(contains(line, "its newest is collective 1 (all_gather of 1000 f32, step 1), finished"));
}

TEST_CASE("a rank that dies inside a collective is named with what it was in") {
    for (const bool reduce : {false, true}) {
        TeamRun run(3, [reduce](Worker& w) {
            if (w.team.rank() == 0) sleep_for(patience);
            reduce ? w.all_reduce(1'000'000) : w.gather(1'000'000);
        });
        for (const int rank : {1, 2}) REQUIRE(run.wait_for_collective(rank, 1));
        sleep_for(0.5);  // some heartbeats
        run[2].signal(SIGKILL);
        CHECK(run[2].wait() == -SIGKILL);
        const std::string line = run.line_of_all({0, 1});
        CHECK(contains(line, "rank 2 (process "));
        CHECK(
            contains(line, fmt::format("its newest is collective 1 ({} of 1000000 f32, step 1), not finished",
                                       reduce ? "all_reduce" : "all_gather")));
    }
}

TEST_CASE("a broken connection is no news while the watchdog may have better, and is news after that") {
    const auto breaks = [](bool dies) {
        return [dies](Worker& w) {
            w.gather(1000);
            if (w.team.rank() != 1) return w.gather(2000);
            w.comm.reset();
            sleep_for(dies ? 1 : patience);
            if (dies) ::raise(SIGKILL);
        };
    };
    TeamRun dying(2, breaks(true));
    const std::string last_word = "its newest is collective 1 (all_gather of 1000 f32, step 1), finished";
    CHECK(contains(dying.line(0, 8), last_word));
    TeamRun living(2, breaks(false));
    CHECK(contains(living.line(0, 8), "error: lost rank 1: "));
    CHECK(contains(living.line(1, 8), "failed with exit code 8: lost rank 1: "));
}

TEST_CASE("when rank 0 dies the others say so") {
    TeamRun run(3, [](Worker& w) {
        w.gather(1000);
        if (w.team.first()) ::raise(SIGKILL);
        w.gather(2000);
    });
    CHECK(run[0].wait() == -SIGKILL);
    for (const int rank : {1, 2})
        CHECK(contains(run.line(rank, 8), "lost the connection to rank 0 at 127.0.0.1:"));
}

TEST_CASE("a rank that hangs is named with the collective the others wait in") {
    TeamRun run(3, [](Worker& w) {
        w.gather(1000);
        sleep_for(0.5);  // some heartbeats
        if (w.team.rank() == 1) ::raise(SIGSTOP);
        w.gather(2000);
    });
    const std::string line = run.line_of_all({0, 2});
    CHECK(contains(line,
                   "ranks 0 and 2 wait in collective 2 (all_gather of 2000 f32, step 1); rank 1 (process "));
    CHECK(contains(line, "has not begun it: silent for "));
    CHECK(contains(line,
                   "stopped, starved or cut off from the network; its newest is collective 1 (all_gather"));
}

TEST_CASE("ranks in different collectives are told apart") {
    TeamRun run(3, [](Worker& w) {
        w.gather(64);
        w.team.rank() == 1 ? w.all_reduce(64) : w.gather(64);
    });
    CHECK(run.line_of_all({0, 1, 2}) ==
          "error: the ranks differ on collective 2: ranks 0 and 2 call all_gather of 64 f32 (step 1), rank 1 "
          "calls all_reduce of 64 f32 (step 1)\n");
}

TEST_CASE("ranks with different sizes in a collective are told apart") {
    TeamRun gather(3, [](Worker& w) { w.gather(w.team.rank() == 2 ? 1001 : 1000); });
    CHECK(gather.line_of_all({0, 1, 2}) ==
          "error: the ranks differ on collective 1: ranks 0 and 1 call all_gather of 1000 f32 (step 1), rank "
          "2 calls all_gather of 1001 f32 (step 1)\n");
    TeamRun reduce(3, [](Worker& w) { w.all_reduce(w.team.rank() == 0 ? 500 : 5000); });
    CHECK(reduce.line_of_all({0, 1, 2}) ==
          "error: the ranks differ on collective 1: ranks 1 and 2 call all_reduce of 5000 f32 (step 1), rank "
          "0 calls all_reduce of 500 f32 (step 1)\n");
}

TEST_CASE("nobody is blamed for waiting while a rank saves a checkpoint, nor that rank") {
    ranks::TeamOptions options = impatient();
    options.watchdog.timeout = 3;
    TeamRun run(
        2,
        [](Worker& w) {
            w.gather(10);
            if (w.team.first()) {
                const ranks::Team::Busy busy(w.team, "saving a checkpoint");
                sleep_for(5);
            }
            w.gather(20);
        },
        options);
    for (const int rank : {0, 1}) {
        CHECK(run[rank].wait() == 0);
        CHECK(get(run.directory() / fmt::format("stderr.{}", rank)).empty());
    }
}

namespace {

bool shell(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// Two ranks, each alone in a network of its own, with one cable between them.
class TwoNodes {
  public:
    TwoNodes(const std::function<void(Worker&)>& work) {
        ranks::TeamOptions options = impatient();
        options.heartbeat.unheard = 8;
        for (const int rank : {0, 1}) {
            ranks::RankPlace place = place_of(0, 1, 29555);
            place.rank = rank;
            place.ranks = 2;
            place.host = "10.99.7.1";
            run_.start(
                place, options,
                [work](ranks::Team& team) {
                    team.join({});
                    TeamRun::work_connected(team, work);
                },
                [this, rank] { enter(rank); });
        }
        const bool ready = wait_until([&] { return exists(mark("alone.0")) && exists(mark("alone.1")); });
        possible_ = ready && get(mark("alone.0")) == "yes" && get(mark("alone.1")) == "yes" &&
                    shell(fmt::format("ip link add cable netns {} type veth peer name cable netns {}",
                                      run_[0].id(), run_[1].id()));
        put(mark("go.tmp"), possible_ ? "yes" : "no");
        io::rename_path(mark("go.tmp"), mark("go"));
    }
    bool possible() const {
        if (!possible_) MESSAGE("skipped: this process may not make networks, or there is no `ip`");
        return possible_;
    }
    TeamRun& run() { return run_; }

  private:
    std::string mark(const std::string& name) const { return run_.directory() / name; }
    void enter(int rank) const {
        const bool alone = ::unshare(CLONE_NEWNET) == 0;
        put(mark(fmt::format("alone.{}.tmp", rank)), alone ? "yes" : "no");
        io::rename_path(mark(fmt::format("alone.{}.tmp", rank)), mark(fmt::format("alone.{}", rank)));
        wait_until([&] { return exists(mark("go")); });
        if (get(mark("go")) != "yes") ::_exit(0);
        check(shell(fmt::format(
                  "ip addr add 10.99.7.{}/24 dev cable && ip link set cable up && ip link set lo up",
                  rank + 1)),
              "cannot set up the network of rank {}", rank);
    }
    TeamRun run_;
    bool possible_ = false;
};

}  // namespace

TEST_CASE("two nodes train over the network between them and listen nowhere else") {
    TwoNodes nodes([](Worker& w) {
        const std::string expected = fmt::format("gloo over 10.99.7.{}", w.team.rank() + 1);
        check(w.comm->describe() == expected, "{}", w.comm->describe());
        for (int64_t step = 1; step <= 5; ++step) {
            w.gather(100'000 * step);
            w.all_reduce(1000);
            check(w.memory[0] == 2, "the sum of 2 ones is {}", w.memory[0]);
        }
    });
    if (!nodes.possible()) return;
    for (const int rank : {0, 1}) {
        CHECK(nodes.run()[rank].wait() == 0);
        CHECK(get(nodes.run().directory() / fmt::format("stderr.{}", rank)).empty());
    }
}

TEST_CASE("a node whose network breaks is named by rank 0, and ends by itself") {
    TwoNodes nodes([](Worker& w) {
        w.gather(1000);
        sleep_for(0.5);  // some heartbeats
        if (w.team.rank() == 1) check(shell("ip link set cable down"), "the cable stays");
        w.gather(2000);
    });
    if (!nodes.possible()) return;
    const std::string told = nodes.run().line(0, 8);
    CHECK(contains(told, "rank 0 waits in collective 2 (all_gather of 2000 f32, step 1)"));
    CHECK(contains(told, "rank 1 (process "));
    CHECK(contains(told, "silent for "));
    CHECK(contains(nodes.run().line(1, 8), "rank 0 at 10.99.7.1:29555 has been silent for "));
}
