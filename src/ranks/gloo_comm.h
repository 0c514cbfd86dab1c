// Tensors between CPU ranks: Gloo over TCP.
//
// Every pair of ranks has one connection. A collective of Comm::exchange becomes receives and sends that are
// all started at once; Gloo's own thread moves the bytes while this one computes. all_reduce is Gloo's ring
// and is over when it returns: it uses the calling thread.
//
// The two sides of a piece meet by the collective's number, the piece's place in it and its size: ranks that
// do not agree wait for each other, until the watchdog says who differs, and overwrite nothing.
#pragma once

#include <memory>
#include <string>

#include "ranks/comm.h"
#include "ranks/launch.h"
#include "ranks/rendezvous.h"

namespace longreach::ranks {

struct GlooOptions {
    std::string prefix = "gloo/";  // of the keys in the store: another one for each communicator of a run
    // Seconds to hold back the news that a connection broke. The watchdog hears of the death that broke it
    // and ends this process first, in better words: "rank 2 died", not "connection reset".
    double hold_back = 3;
};

// Returns once all ranks are connected with each other. They listen on the one address by which they reach
// rank 0 (127.0.0.1 on one node). No wait in it has a limit of its own short of a day: the watchdog has them.
// Error(peer) if a rank is lost; Error(usage) if the build has no Gloo.
std::unique_ptr<Comm> make_gloo_comm(Rendezvous& rendezvous, const RankPlace& place, CollectiveLog* log,
                                     const GlooOptions& options = {});

}  // namespace longreach::ranks
