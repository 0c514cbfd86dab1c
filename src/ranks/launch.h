// Finds the rank of this process and the number of ranks from the launcher's environment variables.
//
// No launcher's library is linked: torchrun, srun, mpirun and our own --ranks all pass a process its place in
// environment variables. The processes then find each other over TCP (rendezvous.h).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace longreach::ranks {

using Environment = std::map<std::string, std::string>;
Environment process_environment();

enum class Launcher {
    none,      // one process, started by hand
    torchrun,  // RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    slurm,     // a task of srun: SLURM_STEP_ID, SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID
    open_mpi,  // OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
    pmi,       // MPICH and Intel MPI (Hydra): PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
    pmix,      // PMIX_RANK, then WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE: PMIx sets no variables for them
    spawn,     // our own --ranks (spawn.h): torchrun's variables and LONGREACH_RUN_TOKEN
};
std::string_view launcher_name(Launcher launcher);

struct RankPlace {
    int rank = 0, ranks = 1;
    int local_rank = 0, local_ranks = 1;  // among the ranks of this node: chooses the GPU
    std::string host = "127.0.0.1";       // where rank 0 listens: a name or an address of its machine
    int port = 0;                         // 0: not needed (one rank)
    int listening = -1;  // descriptor of a socket already bound to host:port, given to rank 0 by our spawn
    Launcher source = Launcher::none;
    std::string ranks_from;  // "WORLD_SIZE=4": the source of `ranks`, for messages
    std::string job;         // identifies this start of the job: equal on all its ranks, unlike any other run

    bool one_node() const { return local_ranks == ranks; }
};

// Our own spawn takes precedence, because it is always the innermost launcher; after it, the order of
// Launcher decides. The variables of any other launcher must agree, unless they describe the process around
// this one: torchrun's agents and our spawn's parent may themselves be tasks of srun or mpirun. A shell
// inside a SLURM allocation (sbatch script, salloc) is not a task of srun and is not a launcher, for any
// number of allocated tasks. Error(usage) names variables and values.
//
// MASTER_ADDR and MASTER_PORT, if set, are the meeting point under every launcher. Otherwise SLURM uses the
// first node of the step and a port derived from job and step; MPI on one node uses 127.0.0.1 and a port
// derived from the job's name; MPI on several nodes requires both variables. If torchrun's agent occupies
// MASTER_PORT itself, the port is derived from job and MASTER_PORT. LONGREACH_PORT overrides the port.
RankPlace place_from(const Environment& environment);

// Whether `--ranks N` asks this process to start N ranks itself (0: the option was not given). Under a
// launcher that already started several, the number must agree.
bool must_spawn(const RankPlace& place, int ranks_option);

// The token that all ranks share: LONGREACH_RUN_TOKEN if set (our spawn draws it at random), otherwise the
// keyed hash of the job's name and the meeting point under LONGREACH_SECRET. Without a secret, anyone who
// knows the job's number can compute the token: it then only prevents two runs from mixing by accident.
std::string run_token(const RankPlace& place, const Environment& environment);

// A SLURM list of hosts such as "n[01-03,7],gpu-[1-2]x[0-1]". Error(usage) if the list is malformed or names
// more than 65536 hosts.
struct NodeList {
    std::string first;  // "n01"
    size_t count = 0;
};
NodeList read_node_list(std::string_view list);

// "2(x3),1" -> 2 2 2 1, as SLURM counts tasks per node.
std::vector<int> expand_task_counts(std::string_view list);

}  // namespace longreach::ranks
