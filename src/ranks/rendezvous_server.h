// Rank 0's side of the rendezvous: one thread serves the store, receives the heartbeats and runs the
// watchdog. README.md describes the messages and the threat model.
#pragma once

#include <memory>
#include <string>

#include "ranks/launch.h"
#include "ranks/watchdog.h"

namespace longreach::ranks {

struct ServerOptions {
    double handshake_timeout = 10;  // seconds for a connection to authenticate, or to complete a message
    size_t strangers = 64;          // unauthenticated connections; another one closes the oldest of them
    WatchdogOptions watchdog;
};

class RendezvousServer {
  public:
    // Listens on the address that place.host has on this machine, and on no other; place.port 0 takes a free
    // port. Error(usage) names what is wrong with host or port.
    RendezvousServer(const RankPlace& place, std::string token, const ServerOptions& options = {});
    // Waits up to 10 s for the others to leave, 1 s if the run has failed, then closes every connection.
    ~RendezvousServer();
    RendezvousServer(const RendezvousServer&) = delete;
    RendezvousServer& operator=(const RendezvousServer&) = delete;

    int port() const;
    size_t most_connections() const;  // ever open at once

  private:
    class Loop;
    std::unique_ptr<Loop> loop_;
};

}  // namespace longreach::ranks
