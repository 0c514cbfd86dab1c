// The meeting point of the ranks of a run: a small key-value store on rank 0.
#pragma once

#include <map>
#include <string>

#include "base/error.h"
#include "ranks/channel.h"
#include "ranks/launch.h"

namespace longreach::ranks {

// What must be the same on all ranks: the build, the config, the data.
using Fingerprints = std::map<std::string, std::string>;

constexpr size_t most_value_bytes = 32 << 10;
constexpr const char* join_barrier = "join";  // until all ranks are in it, any loss of a rank ends the run

// A process's connection to the store, for one thread. Rank 0 uses it as the others do. Every member throws
// Error(peer) if the connection to rank 0 breaks, and rank 0's message if rank 0 reports a failure.
class Rendezvous {
  public:
    // Retries for `connect_seconds` until rank 0 listens.
    Rendezvous(const RankPlace& place, const std::string& token, double connect_seconds = 300);

    // Returns once all ranks have called it with the same fingerprints. Otherwise throws the same Error on
    // every rank: it names the ranks that did not arrive within `seconds`, or the field and the rank that
    // differ from rank 0.
    void join(const Fingerprints& fingerprints, double seconds = 300);

    void set(const std::string& key, const std::string& value);  // replaces
    std::string wait(const std::string& key, double seconds);    // until it is set
    void barrier(const std::string& name, double seconds);  // until all ranks are in it; names may be reused

    // The address by which this machine reaches rank 0; the other ranks reach this machine there.
    std::string local_address() const { return channel_.local_address(); }

    // If the connection closes without it, the others report this rank as dead.
    void leave(ExitCode code, const std::string& reason) { channel_.say_goodbye(code, reason); }

  private:
    std::string request(const std::string& message, double seconds);
    void meet(const std::string& name, double seconds, const Fingerprints& fingerprints);
    Channel channel_;
};

}  // namespace longreach::ranks
