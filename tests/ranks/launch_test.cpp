#include "ranks/launch.h"

#include <doctest/doctest.h>

#include "base/error.h"
#include "base/text.h"
#include "ranks/spawn.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const ranks::Environment torchrun = {{"RANK", "5"},
                                     {"WORLD_SIZE", "8"},
                                     {"LOCAL_RANK", "1"},
                                     {"LOCAL_WORLD_SIZE", "4"},
                                     {"MASTER_ADDR", "node-a"},
                                     {"MASTER_PORT", "29500"}};
const ranks::Environment slurm = {{"SLURM_PROCID", "5"},
                                  {"SLURM_NTASKS", "7"},
                                  {"SLURM_LOCALID", "1"},
                                  {"SLURM_NODEID", "1"},
                                  {"SLURM_STEP_ID", "0"},
                                  {"SLURM_STEP_TASKS_PER_NODE", "4,3"},
                                  {"SLURM_JOB_NODELIST", "gpu[08-09]"},
                                  {"SLURM_JOB_ID", "123456"}};
const ranks::Environment open_mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                                     {"OMPI_COMM_WORLD_SIZE", "2"},
                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                     {"PMIX_RANK", "1"},
                                     {"PMIX_NAMESPACE", "prterun-host-71@1"}};
const ranks::Environment hydra = {{"PMI_RANK", "1"},
                                  {"PMI_SIZE", "2"},
                                  {"MPI_LOCALRANKID", "1"},
                                  {"MPI_LOCALNRANKS", "2"},
                                  {"MASTER_PORT", "4000"}};

// `base` with changes; an empty value removes the variable.
ranks::Environment with(ranks::Environment base, const ranks::Environment& changes) {
    for (const auto& [name, value] : changes) {
        base.erase(name);
        if (!value.empty()) base[name] = value;
    }
    return base;
}

std::string shown_place(const ranks::RankPlace& p) {
    return fmt::format("{}: rank {} of {}, local {} of {}, {}", ranks::launcher_name(p.source), p.rank,
                       p.ranks, p.local_rank, p.local_ranks, p.host);
}

std::string place_or_error(const ranks::Environment& environment) {
    std::string shown;
    const std::string error = error_of([&] { shown = shown_place(ranks::place_from(environment)); });
    return shown.empty() ? error : shown;
}

}  // namespace

TEST_CASE("each launcher's variables give the place") {
    CHECK(place_or_error({}) == "no launcher: rank 0 of 1, local 0 of 1, 127.0.0.1");
    CHECK(place_or_error(torchrun) == "torchrun: rank 5 of 8, local 1 of 4, node-a");
    CHECK(ranks::place_from(torchrun).port == 29500);
    CHECK(place_or_error(slurm) == "SLURM: rank 5 of 7, local 1 of 3, gpu08");
    CHECK(place_or_error(open_mpi) == "Open MPI: rank 1 of 2, local 1 of 2, 127.0.0.1");
    CHECK(place_or_error(hydra) == "MPICH (PMI): rank 1 of 2, local 1 of 2, 127.0.0.1");
    CHECK(ranks::place_from(hydra).port == 4000);
    const ranks::Environment pmix = {{"PMIX_RANK", "2"},
                                     {"WORLD_SIZE", "3"},
                                     {"LOCAL_RANK", "2"},
                                     {"LOCAL_WORLD_SIZE", "3"},
                                     {"MASTER_PORT", "4000"}};
    CHECK(place_or_error(pmix) == "PMIx: rank 2 of 3, local 2 of 3, 127.0.0.1");
}

TEST_CASE("all tasks of one SLURM step meet at the same place, those of another step elsewhere") {
    const ranks::RankPlace first = ranks::place_from(slurm);
    const ranks::RankPlace other = ranks::place_from(
        with(slurm, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}}));
    CHECK(first.host == other.host);
    CHECK(first.port == other.port);
    CHECK(first.port >= 15000);
    CHECK(first.port < 30000);
    CHECK(first.job == other.job);
    CHECK(ranks::place_from(with(slurm, {{"SLURM_STEP_ID", "1"}})).port != first.port);
    CHECK(ranks::place_from(with(slurm, {{"SLURM_RESTART_COUNT", "1"}})).job != first.job);
    const ranks::RankPlace set =
        ranks::place_from(with(slurm, {{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "77"}}));
    CHECK(set.host == "10.0.0.7");
    CHECK(set.port == 77);
    CHECK(ranks::place_from(with(slurm, {{"MASTER_PORT", "77"}, {"LONGREACH_PORT", "78"}})).port == 78);
    // The step may run on fewer nodes than the job has.
    CHECK(ranks::place_from(
              with(slurm, {{"SLURM_JOB_NODELIST", "gpu[01-09]"}, {"SLURM_STEP_NODELIST", "gpu[04,06]"}}))
              .host == "gpu04");
    CHECK(ranks::place_from(with(slurm, {{"SLURM_NTASKS", "64"}, {"SLURM_STEP_NUM_TASKS", "7"}})).ranks == 7);
}

TEST_CASE("a shell inside an allocation is one process, and a lone task of srun may start the ranks") {
    const ranks::Environment salloc = {
        {"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "9"}, {"SLURM_JOB_NODELIST", "n1"}};
    const ranks::Environment batch =
        with(salloc, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}});
    const ranks::Environment interactive = with(batch, {{"SLURM_STEP_ID", "4294967290"}});
    for (const ranks::Environment& shell : {salloc, batch, interactive}) {
        CHECK(place_or_error(shell) == "no launcher: rank 0 of 1, local 0 of 1, 127.0.0.1");
        CHECK(ranks::must_spawn(ranks::place_from(shell), 4));
        CHECK_FALSE(ranks::must_spawn(ranks::place_from(shell), 0));
        CHECK_FALSE(ranks::must_spawn(ranks::place_from(shell), 1));
    }
    const ranks::RankPlace one = ranks::place_from(with(
        batch, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}}));
    CHECK(one.source == ranks::Launcher::slurm);
    CHECK(one.ranks == 1);
    CHECK(ranks::must_spawn(one, 4));
    CHECK_FALSE(ranks::must_spawn(one, 0));
    CHECK(error_of([&] { ranks::must_spawn(one, -1); }) ==
          "2: --ranks -1 is not from 1 to 1024: all of them run on this machine");
}

TEST_CASE("--ranks under a launcher must agree with it") {
    CHECK_FALSE(ranks::must_spawn(ranks::place_from(torchrun), 8));
    CHECK_FALSE(ranks::must_spawn(ranks::place_from(torchrun), 0));
    CHECK(error_of([&] { ranks::must_spawn(ranks::place_from(torchrun), 4); }) ==
          "2: --ranks 4 but torchrun has started 8 ranks (WORLD_SIZE=8)");
    CHECK(error_of([&] { ranks::must_spawn(ranks::place_from(slurm), 2); }) ==
          "2: --ranks 2 but SLURM has started 7 ranks (SLURM_NTASKS=7)");
}

TEST_CASE("contradictions name both variables and both values") {
    const std::string lead = "2: the environment contradicts itself: ";
    const struct {
        ranks::Environment environment;
        std::string message;
    } table[] = {
        {with(torchrun, {{"RANK", "8"}}), "RANK=8 but WORLD_SIZE=8: the first must be smaller"},
        {with(torchrun, {{"LOCAL_RANK", "4"}}),
         "LOCAL_RANK=4 but LOCAL_WORLD_SIZE=4: the first must be smaller"},
        {with(torchrun, {{"LOCAL_WORLD_SIZE", "9"}}),
         "LOCAL_WORLD_SIZE=9 but WORLD_SIZE=8: the first must not be larger"},
        {with(torchrun, {{"RANK", "0"}}), "LOCAL_RANK=1 but RANK=0: the first must not be larger"},
        {with(slurm, {{"SLURM_PROCID", "7"}}),
         "SLURM_PROCID=7 but SLURM_NTASKS=7: the first must be smaller"},
        {with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "4(x2)"}}),
         "SLURM_NTASKS=7 but SLURM_STEP_TASKS_PER_NODE=\"4(x2)\": the tasks per node must add up to all "
         "tasks"},
        {with(slurm, {{"SLURM_LOCALID", "3"}}),
         "SLURM_LOCALID=3 but SLURM_STEP_TASKS_PER_NODE=\"4,3\": the first must be smaller"},
        {with(slurm, {{"SLURM_JOB_NODELIST", "gpu[1-3]"}}),
         "SLURM_JOB_NODELIST=\"gpu[1-3]\" but SLURM_STEP_TASKS_PER_NODE=\"4,3\": they count the nodes of one "
         "step"},
        {with(slurm, {{"SLURM_STEP_ID", ""}}),
         "SLURM_PROCID=5 but SLURM_STEP_ID (not set): srun always sets both"},
        // A batch script that exports RANK=$SLURM_PROCID once, outside srun.
        {with(slurm, {{"RANK", "0"},
                      {"WORLD_SIZE", "7"},
                      {"LOCAL_RANK", "0"},
                      {"LOCAL_WORLD_SIZE", "4"},
                      {"MASTER_ADDR", "gpu08"},
                      {"MASTER_PORT", "29500"}}),
         "RANK=0 but SLURM_PROCID=5: they number the same process"},
        {with(slurm, {{"WORLD_SIZE", "8"}}),
         "SLURM_NTASKS=7 but WORLD_SIZE=8: they count the ranks of one run"},
        {with(open_mpi, {{"PMIX_RANK", "0"}}),
         "OMPI_COMM_WORLD_RANK=1 but PMIX_RANK=0: they number the same process"},
        {with(hydra, {{"WORLD_SIZE", "3"}}), "PMI_SIZE=2 but WORLD_SIZE=3: they count the ranks of one run"},
    };
    for (const auto& row : table) CHECK(place_or_error(row.environment) == lead + row.message);
}

TEST_CASE("torchrun inside srun: the inner launcher decides") {
    ranks::Environment both = slurm;
    for (const auto& [name, value] : torchrun) both[name] = value;
    both["TORCHELASTIC_RUN_ID"] = "job7";
    CHECK(place_or_error(both) == "torchrun: rank 5 of 8, local 1 of 4, node-a");
    // Our own --ranks inside either.
    const ranks::Environment own = ranks::rank_environment(both, 2, 3, 4444, std::string(64, 'a'));
    CHECK(place_or_error(own) == "--ranks: rank 2 of 3, local 2 of 3, 127.0.0.1");
    CHECK_FALSE(ranks::must_spawn(ranks::place_from(own), 3));
}

TEST_CASE("torchrun's agent may hold MASTER_PORT: then the ranks agree on another one") {
    const ranks::Environment agent =
        with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "none"}});
    const int port = ranks::place_from(agent).port;
    CHECK(port != 29500);
    CHECK(port == ranks::place_from(with(agent, {{"RANK", "6"}, {"LOCAL_RANK", "2"}})).port);
    CHECK(ranks::place_from(with(agent, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).port == 29500);
}

TEST_CASE("incomplete or impossible variables are refused") {
    const struct {
        ranks::Environment environment;
        std::string message;
    } table[] = {
        {with(torchrun, {{"WORLD_SIZE", ""}}),
         "2: RANK=5 is set but WORLD_SIZE is not: this set of torchrun's variables is incomplete"},
        {with(torchrun, {{"MASTER_ADDR", ""}}),
         "2: RANK=5 is set but MASTER_ADDR is not: this set of torchrun's variables is incomplete"},
        {{{"WORLD_SIZE", "4"}},
         "2: WORLD_SIZE=4 is set but RANK is not: this set of torchrun's variables is incomplete"},
        {{{"PMIX_RANK", "0"}},
         "2: PMIX_RANK=0 is set but WORLD_SIZE is not: this set of PMIx's variables is incomplete"},
        {with(slurm, {{"SLURM_JOB_NODELIST", ""}}),
         "2: SLURM_PROCID=5 is set but SLURM_JOB_NODELIST is not: this set of SLURM's variables is "
         "incomplete"},
        {with(torchrun, {{"RANK", "-1"}}),
         "2: the environment variable RANK=-1 is not a whole number from 0 to 65535"},
        {with(torchrun, {{"RANK", "5x"}}),
         "2: the environment variable RANK=5x is not a whole number from 0 to 65535"},
        {with(torchrun, {{"WORLD_SIZE", "99999999999999999999"}}),
         "2: the environment variable WORLD_SIZE=99999999999999999999 is not a whole number from 1 to 65536"},
        {with(torchrun, {{"MASTER_PORT", "0"}}),
         "2: the environment variable MASTER_PORT=0 is not a whole number from 1 to 65535"},
        {with(torchrun, {{"MASTER_ADDR", "a b\n"}}),
         "2: MASTER_ADDR=\"a b\\n\" is not a host name or an address"},
        {with(torchrun, {{"MASTER_ADDR", "0.0.0.0"}}),
         "2: MASTER_ADDR=0.0.0.0 means every interface of a machine; rank 0 listens only on the one address "
         "the others use"},
        {with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
         "2: OMPI_COMM_WORLD_SIZE=2 on several nodes: Open MPI does not say where rank 0 runs"},
        {with(hydra, {{"MASTER_PORT", ""}}),
         "2: PMI_SIZE=2: MPICH (PMI) does not name its job, so no port can be made from it"},
        {{{"LONGREACH_SPAWNED", "1"}, {"RANK", "0"}},
         "2: LONGREACH_SPAWNED=1 is set but MASTER_ADDR is not: this set of --ranks's "
         "variables is incomplete"},
    };
    for (const auto& row : table) CHECK(place_or_error(row.environment) == row.message);
}

TEST_CASE("node lists and task counts as SLURM writes them") {
    const auto hosts = [](std::string_view list) {
        std::string text;
        const std::string error = error_of([&] {
            const ranks::NodeList nodes = ranks::read_node_list(list);
            text = fmt::format("{}, the first of {}", nodes.first, nodes.count);
        });
        return text.empty() ? error : text;
    };
    CHECK(hosts("n1") == "n1, the first of 1");
    CHECK(hosts("b-c,a") == "b-c, the first of 2");
    CHECK(hosts("n[01-03,7],gpu-[1-2]x[0-1].local") == "n01, the first of 8");
    CHECK(hosts("gpu-[1-2,9]x[0-1].local,n[3]") == "gpu-1x0.local, the first of 7");
    CHECK(hosts("n[098-101]") == "n098, the first of 4");
    CHECK(hosts("n[0-65535]") == "n0, the first of 65536");
    CHECK(hosts("") == "2: the node list \"\" has an empty name");
    CHECK(hosts("a,,b") == "2: the node list \"a,,b\" has an empty name");
    CHECK(hosts("n[1-2") == "2: the node list \"n[1-2\" has brackets that do not match");
    CHECK(hosts("n1-2]") == "2: the node list \"n1-2]\" has brackets that do not match");
    CHECK(hosts("n[[1]]") == "2: the node list \"n[[1]]\" has brackets that do not match");
    CHECK(hosts("n[]") == "2: the node list \"n[]\" has \"\" where numbers belong");
    CHECK(hosts("n[a-b]") == "2: the node list \"n[a-b]\" has a-b where numbers belong");
    CHECK(hosts("n[3-1]") == "2: the node list \"n[3-1]\" counts backwards in 3-1");
    CHECK(hosts("n[0-99999]") == "2: the node list \"n[0-99999]\" names more than 65536 hosts");
    CHECK(hosts("n[0-999][0-999]") == "2: the node list \"n[0-999][0-999]\" names more than 65536 hosts");

    CHECK(ranks::expand_task_counts("2(x3),1") == std::vector<int>{2, 2, 2, 1});
    CHECK(ranks::expand_task_counts("4") == std::vector<int>{4});
    for (const char* wrong : {"", "0", "2(x", "2(x)", "2(x3)4", "a", "2,,1", "(x2)", "2(x-1)"})
        CHECK(
            contains(error_of([&] { ranks::expand_task_counts(wrong); }), "is not a list of tasks per node"));
    CHECK(contains(error_of([&] { ranks::expand_task_counts("1(x60000),1(x60000)"); }),
                   "more than 65536 nodes"));
}

TEST_CASE("the token is the same on all ranks of a job and nowhere else") {
    const ranks::Environment other_rank =
        with(slurm, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}});
    const std::string token = ranks::run_token(ranks::place_from(slurm), slurm);
    CHECK(token.size() == 64);
    CHECK(token == ranks::run_token(ranks::place_from(other_rank), other_rank));
    CHECK(token != ranks::run_token(ranks::place_from(slurm), with(slurm, {{"LONGREACH_SECRET", "s"}})));
    const ranks::Environment restarted = with(slurm, {{"SLURM_RESTART_COUNT", "1"}});
    CHECK(token != ranks::run_token(ranks::place_from(restarted), restarted));
    CHECK(ranks::run_token(ranks::place_from(slurm),
                           with(slurm, {{"LONGREACH_RUN_TOKEN", "sixteen letters!"}})) == "sixteen letters!");
    CHECK(error_of([&] {
              ranks::run_token(ranks::place_from(slurm), with(slurm, {{"LONGREACH_RUN_TOKEN", "short"}}));
          }) == "2: LONGREACH_RUN_TOKEN has 5 characters; 16 to 1024 are allowed");
}
