// Which rank of how many this process is, as the launcher's environment variables say it.
//
// No launcher's library is linked: torchrun, srun, mpirun and our own --ranks all tell a process its place in
// variables, and the processes then find each other over TCP (rendezvous.h).
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
    pmix,      // PMIX_RANK; the rest from WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, for PMIx has no variables
    spawn,     // our own --ranks (spawn.h): torchrun's variables and LONGREACH_RUN_TOKEN
};
std::string_view launcher_name(Launcher launcher);

struct RankPlace {
    int rank = 0, ranks = 1;
    int local_rank = 0, local_ranks = 1;  // among the ranks of this node: chooses the GPU
    int node = 0;                         // -1: the launcher does not say
    std::string host = "127.0.0.1";       // where rank 0 listens: a name or an address of its machine
    int port = 0;                         // 0: not needed (one rank)
    int listening = -1;  // descriptor of a socket already bound to host:port, given to rank 0 by our spawn
    Launcher source = Launcher::none;
    std::string ranks_from;  // "WORLD_SIZE=4": what to name in messages about the number of ranks
    std::string job;         // names this start of this job; the same on all its ranks, on no other run's

    bool one_node() const { return local_ranks == ranks; }
};

// Takes the first launcher that speaks, in the order of Launcher but with our own spawn, which is always the
// innermost, first. Variables of another launcher that is present too must agree, unless they describe the
// process around ours: torchrun's agents and our spawn's parent may themselves be tasks of srun or mpirun. A
// shell inside a SLURM allocation (sbatch script, salloc) is no task of srun: it counts as no launcher,
// whatever number of tasks was allocated. Error(usage) names variables and values.
//
// MASTER_ADDR and MASTER_PORT, where set, decide where to meet under every launcher. Otherwise: SLURM takes
// the first node of the step and a port made from job and step; MPI on one node takes 127.0.0.1 and a port
// made from the job's name; MPI on several nodes needs them. torchrun's agent may hold MASTER_PORT itself and
// says so: the port is then made from job and MASTER_PORT. LONGREACH_PORT overrides whatever was found.
RankPlace place_from(const Environment& environment);

// Whether `--ranks N` asks this process to start N ranks itself (0: the option was not given). Under a
// launcher that already started several, the number must agree.
bool must_spawn(const RankPlace& place, int ranks_option);

// The token all ranks share: LONGREACH_RUN_TOKEN if set (our spawn makes it at random), otherwise the keyed
// hash of the job's name and the meeting point under LONGREACH_SECRET. Without that variable anybody who
// knows the job's number can make the same token: it then only keeps two runs from mixing by accident.
std::string run_token(const RankPlace& place, const Environment& environment);

// "n[01-03,7],gpu-[1-2]x[0-1]": the hosts it stands for, in order. Error(usage) if it is malformed or stands
// for more than 65536.
std::vector<std::string> expand_node_list(std::string_view list);

// "2(x3),1" -> 2 2 2 1, as SLURM counts tasks per node.
std::vector<int> expand_task_counts(std::string_view list);

}  // namespace longreach::ranks
