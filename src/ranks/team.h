// The ranks of a run as the rest of the program uses them: which rank this is, how to reach the others, and
// what happens if one of them fails.
//
//     Team team(place, token, directory);
//     ...                           // anything that may fail on one rank alone, such as the run directory
//     team.join(fingerprints);      // all ranks are present and agree
//     auto comm = team.connect(ops);
//     ...
//     team.leave(code, "");         // or, when something throws, its code and message
#pragma once

#include <memory>
#include <optional>
#include <string>

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
    Team() = default;
    // Several: rank 0 serves the rendezvous, all ranks connect to it. Accesses no file.
    Team(const RankPlace& place, const std::string& token, const std::string& run_directory,
         const TeamOptions& options = {});
    ~Team() = default;  // without leave(), the others report this rank as dead
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int rank() const { return place_.rank; }
    int ranks() const { return place_.ranks; }
    bool first() const { return place_.rank == 0; }
    const RankPlace& place() const { return place_; }  // with the port, if rank 0 took a free one

    // Returns once all ranks have called it with the same fingerprints; otherwise throws on all ranks an
    // Error that names the rank that is missing, has failed or differs. Then opens RUN/ranks/rank_<k>.log and
    // starts the heartbeats: from now on, if the run must end, this process prints the reason in one line and
    // ends with ExitCode::peer at once, without waiting for its threads.
    void join(const Fingerprints& fingerprints);
    // Gloo on the CPU, NCCL on a GPU. Call it after join(); all ranks call it the same number of times.
    std::unique_ptr<Comm> connect(Ops& ops);
    // Sends rank 0's text, at most most_value_bytes, to the others; every rank returns it. Use a topic once.
    std::string broadcast(const std::string& topic, const std::string& text);
    // Sets the number of completed steps for the heartbeats. The watchdog uses its long timeout until the
    // first call: call it after the first step of this process, also when resuming.
    void set_step(int64_t step);
    // ok and stopped: the others continue. Any other code: they end with ExitCode::peer and this reason. Only
    // the first call has an effect.
    void leave(ExitCode code, const std::string& reason);

    // During its lifetime this rank does something alone for which the others may have to wait; the watchdog
    // allows it as long as this rank's heartbeats arrive.
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
    CollectiveLog& log();

    RankPlace place_;
    const std::string token_, run_directory_;
    const TeamOptions options_ = {};
    std::unique_ptr<RendezvousServer> server_;  // rank 0
    std::optional<Rendezvous> rendezvous_;      // empty: one rank
    std::optional<CollectiveLog> log_;          // after join()
    std::optional<Heartbeat> heartbeat_;
    int connections_ = 0;
    bool left_ = false;
};

}  // namespace longreach::ranks
