// The ranks of one run, as the rest of the program meets them: who this is, how to reach the others, and what
// happens when one of them fails.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist/comm.h"
#include "dist/control.h"
#include "dist/launch.h"
#include "dist/rendezvous.h"
#include "dist/rendezvous_server.h"
#include "kernels/ops.h"

namespace longreach {

class Team {
  public:
    // One rank: no sockets, no log, no threads.
    Team();
    // Several: rank 0 serves the rendezvous; everybody connects to it, opens RUN/ranks/rank_<k>.log and begins
    // to send heartbeats. When the run must end, prints why and ends this process with ExitCode::peer.
    Team(const RankPlace& place, const std::string& token, const std::string& run_directory,
         const WatchdogOptions& watchdog);
    ~Team();  // without leave(), the others take this rank for dead
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int rank() const;
    int ranks() const;
    const RankPlace& place() const;

    // Returns once all ranks have called it with the same fingerprints; Error(usage) on all of them otherwise.
    void join(const std::vector<Fingerprint>& fingerprints);
    // Gloo for the CPU, NCCL where ops runs on a GPU. After join().
    std::unique_ptr<Comm> connect(Ops& ops);
    // Rank 0 tells the others a text of up to most_value_bytes; every rank returns it. Topics are used once.
    std::string tell(const std::string& topic, const std::string& text);
    void set_step(int64_t step);  // steps completed, for the heartbeats
    void leave(ExitCode code, const std::string& reason);

  private:
    struct Parts;
    std::unique_ptr<Parts> parts_;  // null: one rank
    RankPlace place_;
};

}  // namespace longreach
