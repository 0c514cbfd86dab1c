// Tensors between CPU ranks: Gloo over TCP.
//
// Every pair of ranks has one connection. Comm::exchange starts all its receives and sends at once; Gloo's
// thread moves the bytes while this one computes. all_reduce is Gloo's ring, runs in the calling thread and
// is complete when it returns.
//
// The two ends of a piece are matched by the collective's number, the piece's index in it and its size. Ranks
// that disagree wait, without overwriting anything, until the watchdog names the rank that differs.
#pragma once

#include <memory>
#include <string>

#include "ranks/comm.h"
#include "ranks/launch.h"
#include "ranks/rendezvous.h"

namespace longreach::ranks {

// Returns once all ranks are connected. They listen on the address by which they reach rank 0 (127.0.0.1 on
// one node). `prefix` of the keys in the store: another one for each communicator of a run. Its waits are
// limited by the watchdog (Gloo's own limit is a day). Error(peer) if a rank is lost; Error(usage) if
// longreach_gloo.so cannot be opened.
std::unique_ptr<Comm> make_gloo_comm(Rendezvous& rendezvous, const RankPlace& place, CollectiveLog* log,
                                     const std::string& prefix);

}  // namespace longreach::ranks
