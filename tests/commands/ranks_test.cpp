// Runs of several ranks as real processes: the bytes of one rank's run, whoever starts the ranks, whatever
// happens to one of them.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "commands/process.h"
#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t steps = 300;

struct Home {
    TempDir dir;
    std::string config = dir / "config.json";
    Results whole;  // by one rank, not interrupted
    Home() {
        make_corpus(dir / "data");
        put(config, tiny_config(dir.path(), "whole"));
        const Finished f = run(dir, arguments("whole"));
        check(f.code == 0, "the run of one rank ended with {}: {}", f.code, f.err);
        whole = results_of(dir / "whole", steps);
    }
    std::vector<std::string> arguments(const std::string& name, int ranks = 1) const {
        std::vector<std::string> all{
            "train", config,
            "--set", "run.name=" + name,
            "--set", "stages=[{\"steps\":100,\"context\":16},{\"steps\":200,\"context\":32}]",
            "--set", "batch.tokens=256",
            "--set", "checkpoint.every=20",
            "--set", "eval.every=100",
            "--set", "parallel.timeout=3"};
        if (ranks > 1) all.insert(all.end(), {"--ranks", std::to_string(ranks)});
        return all;
    }
    std::string differing_from(const std::string& name) const {
        return differing(whole, results_of(dir / name, steps));
    }
};

const Home& home() {
    static const Home h;
    return h;
}

bool has_checkpoint(const std::string& name) {
    const std::string root = home().dir / (name + "/checkpoints");
    return io::kind_of(root, io::Links::refuse) == io::PathKind::directory &&
           !io::checkpoint_steps(root).empty();
}

std::string proc_file(const std::string& process, const char* name) {
    std::ifstream file("/proc/" + process + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// The process of a rank that `parent` has started.
pid_t rank_process(pid_t parent, int rank) {
    const std::string wanted = std::string("\0RANK=", 6) + std::to_string(rank) + '\0';
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const std::string id = entry.path().filename();
        if (id.find_first_not_of("0123456789") != std::string::npos) continue;
        const std::string status = proc_file(id, "status");
        if (!contains(status, fmt::format("PPid:\t{}\n", parent))) continue;
        if (contains('\0' + proc_file(id, "environ"), wanted)) return static_cast<pid_t>(std::stol(id));
    }
    fail(ExitCode::internal, "process {} has no rank {}", parent, rank);
}

}  // namespace

TEST_CASE("ranks: started by --ranks, 2 and 4 processes leave the bytes of one") {
    for (int ranks : {2, 4}) {
        CAPTURE(ranks);
        const TempDir output;
        const std::string name = fmt::format("spawned{}", ranks);
        const Finished f = run(output, home().arguments(name, ranks));
        CAPTURE(f.err);
        REQUIRE(f.code == 0);
        CHECK(home().differing_from(name) == "");
        CHECK(contains(f.out, fmt::format("ranks: {}; each of {} ranks updates its share", ranks, ranks)));
        for (int r = 0; r < ranks; ++r)
            CHECK(io::kind_of(home().dir / fmt::format("{}/ranks/rank_{}.log", name, r), io::Links::refuse) ==
                  io::PathKind::file);
    }
}

TEST_CASE("ranks: what they did last with each other is shown, and written as a trace") {
    const TempDir output;
    REQUIRE(run(output, home().arguments("shown", 2)).code == 0);
    const std::string trace = output / "trace.json";
    const Finished f = run(output, {"ranks", home().dir / "shown", "--last", "64", "--trace", trace});
    CAPTURE(f.err);
    REQUIRE(f.code == 0);
    for (const char* part :
         {"rank 0 of 2, process ", "rank 1 of 2, process ", "reduce_scatter", "all_gather"})
        CHECK(contains(f.out, part));
    CHECK(!contains(f.out, "not ended"));
    // A bar begins and ends for each of 64 collectives of each rank.
    const json::Value events = json::parse(get(trace), "trace.json");
    CHECK(events.as_array().size() == 2 * 2 * 64);
    const Finished none = run(output, {"ranks", home().dir / "whole"});
    CHECK(none.code == 3);
    CHECK(contains(none.err, "has no logs of ranks"));
}

TEST_CASE("ranks: started by hand with the variables of torchrun, mpirun and srun") {
    using Variables = std::vector<std::pair<std::string, std::string>>;
    const int port = 20000 + ::getpid() % 10000;
    const std::string meeting = std::to_string(port);
    const std::vector<std::pair<const char*, std::function<Variables(std::string)>>> launchers = {
        {"torchrun",
         [&](const std::string& rank) {
             return Variables{{"RANK", rank},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", rank},
                              {"LOCAL_WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", meeting},
                              {"TORCHELASTIC_RUN_ID", "test"}};
         }},
        {"mpirun",
         [&](const std::string& rank) {
             return Variables{{"OMPI_COMM_WORLD_RANK", rank},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "job" + meeting}};
         }},
        {"srun", [&](const std::string& rank) {
             return Variables{{"SLURM_JOB_ID", meeting},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_PROCID", rank},
                              {"SLURM_NTASKS", "2"},
                              {"SLURM_STEP_NUM_TASKS", "2"},
                              {"SLURM_LOCALID", rank},
                              {"SLURM_NODEID", "0"},
                              {"SLURM_STEP_NODELIST", "127.0.0.1"},
                              {"SLURM_STEP_TASKS_PER_NODE", "2"},
                              {"MASTER_ADDR", "127.0.0.1"}};
         }}};
    for (const auto& [launcher, variables] : launchers) {
        CAPTURE(launcher);
        const TempDir output;
        Process second(output, home().arguments(launcher), {.variables = variables("1"), .name = "second."});
        Process first(output, home().arguments(launcher), {.variables = variables("0"), .name = "first."});
        CHECK(first.wait() == 0);
        CHECK(second.wait() == 0);
        CAPTURE(first.err());
        CAPTURE(second.err());
        CHECK(second.out() == "");
        CHECK(home().differing_from(launcher) == "");
    }
}

TEST_CASE("ranks: one rank is asked to stop: all save the same step, and another number of ranks goes on") {
    const TempDir output;
    for (int ranks : {4, 2}) {
        Process process(output, home().arguments("term", ranks));
        const int64_t before =
            has_checkpoint("term") ? io::checkpoint_steps(home().dir / "term/checkpoints").front() : 0;
        REQUIRE(wait_until([&] {
            return has_checkpoint("term") &&
                   io::checkpoint_steps(home().dir / "term/checkpoints").front() > before;
        }));
        ::kill(rank_process(process.id(), ranks - 1), SIGTERM);
        CHECK(process.wait() == 75);
        CHECK(contains(process.out(), "stopped by Terminated after step"));
    }
    const Finished f = run(output, home().arguments("term"));
    CHECK(f.code == 0);
    CHECK(contains(f.out, "resuming after step"));
    CHECK(home().differing_from("term") == "");
}

TEST_CASE(
    "ranks: one rank is killed: the others say so and end; the same command resumes from what was saved") {
    const TempDir output;
    {
        Process process(output, home().arguments("killed", 4));
        REQUIRE(wait_until([&] { return has_checkpoint("killed"); }));
        ::kill(rank_process(process.id(), 2), SIGKILL);
        CHECK(process.wait() == 128 + SIGKILL);  // of the rank that failed first
        CHECK(contains(process.err(), "rank 2"));
        MESSAGE(process.err());
    }
    const Finished f = run(output, home().arguments("killed", 4));
    CAPTURE(f.err);
    CHECK(f.code == 0);
    CHECK(contains(f.out, "resuming after step"));
    CHECK(home().differing_from("killed") == "");
}

TEST_CASE("ranks: one rank hangs: named after the timeout, the run ends with 8, the checkpoint is whole") {
    const TempDir output;
    {
        Process process(output, home().arguments("hung", 2));
        REQUIRE(wait_until([&] { return has_checkpoint("hung"); }));
        const pid_t hung = rank_process(process.id(), 1);
        ::kill(hung, SIGSTOP);
        CHECK(wait_until([&] { return contains(process.err(), "rank 1"); }));
        ::kill(hung, SIGCONT);
        CHECK(process.wait() == 8);
        MESSAGE(process.err());
    }
    const Finished f = run(output, home().arguments("hung", 2));
    CHECK(f.code == 0);
    CHECK(home().differing_from("hung") == "");
}

TEST_CASE("ranks: another config on one rank is refused on all, before a step") {
    const TempDir output;
    const std::string port = std::to_string(20000 + ::getpid() % 10000);
    const auto variables = [&](const std::string& rank) {
        return std::vector<std::pair<std::string, std::string>>{{"RANK", rank},
                                                                {"WORLD_SIZE", "2"},
                                                                {"LOCAL_RANK", rank},
                                                                {"LOCAL_WORLD_SIZE", "2"},
                                                                {"MASTER_ADDR", "127.0.0.1"},
                                                                {"MASTER_PORT", port}};
    };
    auto other = home().arguments("refused");
    other.insert(other.end(), {"--set", "run.seed=2"});
    Process second(output, other, {.variables = variables("1"), .name = "second."});
    Process first(output, home().arguments("refused"), {.variables = variables("0"), .name = "first."});
    CHECK(first.wait() == 8);
    CHECK(second.wait() == 8);
    CHECK(contains(first.err(), "config"));
    CHECK(contains(second.err(), "config"));
    MESSAGE(first.err());
    CHECK(!has_checkpoint("refused"));
}

TEST_CASE("ranks: what cannot be spread is said before anything starts") {
    const TempDir output;
    auto arguments = home().arguments("never", 4);
    arguments.insert(arguments.end(), {"--set", "batch.micro_tokens=128"});
    const Finished f = run(output, arguments);
    CHECK(f.code == 2);
    CHECK(contains(f.err, "4 ranks, but the steps at context 16 have 2 micro-batches"));
    CHECK(contains(f.err, "set batch.micro_tokens to at most 64"));
    CHECK(io::kind_of(home().dir / "never/metrics.jsonl", io::Links::refuse) == io::PathKind::missing);
}
