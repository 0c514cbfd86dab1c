// How the ranks of a run find each other: a small store of keys and values on rank 0 that all of them reach.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "ranks/channel.h"
#include "ranks/launch.h"

namespace longreach::ranks {

// What must be the same on all ranks: the build, the config, the data.
struct Fingerprint {
    std::string name, value;
};

constexpr size_t most_key_bytes = 256, most_value_bytes = 32 << 10, most_fingerprints = 64;

// One process's connection to the store; for one thread. Rank 0 uses it as the others do. Every member throws
// Error(peer) if rank 0 is lost, and with its words if it reports a failure.
class Rendezvous {
  public:
    // Tries for `connect_seconds` until rank 0 listens.
    Rendezvous(const RankPlace& place, const std::string& token, double connect_seconds = 300);

    // Returns once all ranks have called it with the same fingerprints. Otherwise, on every rank, an Error:
    // which ranks never arrived, or which field of which rank differs from rank 0's. `seconds` must exceed
    // the server's join_timeout, so that it is the server that names the missing.
    void join(const std::vector<Fingerprint>& fingerprints, double seconds = 330);

    void set(const std::string& key, const std::string& value);  // replaces
    std::string wait(const std::string& key, double seconds);  // until somebody has set it
    void barrier(const std::string& name, double seconds);  // until all ranks are in it; names may be reused

    // The address by which this machine reaches rank 0's: others can reach it there.
    std::string local_address() const { return channel_.local_address(); }

    // Says goodbye. Without it the others take this rank for dead when the connection closes.
    void leave(ExitCode code, const std::string& reason);

  private:
    std::string request(const std::string& message, double seconds);
    Channel channel_;
};

}  // namespace longreach::ranks
