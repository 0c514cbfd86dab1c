// The ranks of one run, as the rest of the program meets them: who this is, how to reach the others, and what
// happens when one of them fails.
//
//     Team team(place, token, directory);
//     ...                           // whatever may fail on one rank alone, rank 0's run directory too
//     team.join(fingerprints);      // now all are there, and alike
//     auto comm = team.connect(ops);
//     ...
//     team.leave(code, "");         // or, when something throws, its code and message
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ranks/comm.h"
#include "ranks/control.h"
#include "ranks/launch.h"
#include "ranks/rendezvous.h"
#include "ranks/rendezvous_server.h"
#include "kernels/ops.h"

namespace longreach::ranks {

struct TeamOptions {
    WatchdogOptions watchdog;
    HeartbeatOptions heartbeat;
    double arrival = 300;  // seconds for rank 0 to listen, and for all ranks to join
};

// For the main thread.
class Team {
  public:
    // One rank: no sockets, no log, no threads.
    Team();
    // Several: rank 0 serves the rendezvous, everybody connects to it. Touches no file.
    Team(const RankPlace& place, const std::string& token, const std::string& run_directory,
         const TeamOptions& options = {});
    ~Team();  // without leave(), the others take this rank for dead
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int rank() const { return place_.rank; }
    int ranks() const { return place_.ranks; }
    bool first() const { return place_.rank == 0; }
    const RankPlace& place() const { return place_; }  // with the port, if rank 0 took a free one

    // Returns once all ranks have called it with the same fingerprints; on all of them an Error that says who
    // is missing, failed before or differs otherwise. Then opens RUN/ranks/rank_<k>.log and begins to send
    // heartbeats: from now on, when the run must end, this process prints why in one line and ends with
    // ExitCode::peer, whatever its threads do.
    void join(const std::vector<Fingerprint>& fingerprints);
    // Gloo for the CPU, NCCL where ops runs on a GPU. After join(); all ranks call it equally often.
    std::unique_ptr<Comm> connect(Ops& ops);
    // Rank 0 tells the others a text of up to most_value_bytes; every rank returns it. Topics are used once.
    std::string tell(const std::string& topic, const std::string& text);
    // Steps completed, for the heartbeats. The watchdog is patient until the first call: make none before a
    // step of this process is done, on resuming neither.
    void set_step(int64_t step);
    // ok and stopped: the others go on. Any other code: they end with ExitCode::peer and this reason. Only
    // the first call counts.
    void leave(ExitCode code, const std::string& reason);

    // While it lives, this rank does something alone that the others may have to wait for; the watchdog lets
    // them, as long as this rank's heartbeats come.
    class Busy {
      public:
        Busy(Team& team, const std::string& what);  // "saving a checkpoint"
        ~Busy();
        Busy(const Busy&) = delete;
        Busy& operator=(const Busy&) = delete;

      private:
        Team& team_;
    };

  private:
    struct Parts;
    CollectiveLog& log() const;
    std::unique_ptr<Parts> parts_;  // null: one rank
    RankPlace place_;
};

}  // namespace longreach::ranks
