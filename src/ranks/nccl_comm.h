// Tensors between GPUs, carried by NCCL. A build without it answers the same questions.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "ranks/comm.h"
#include "kernels/ops.h"

namespace longreach::ranks {

struct NcclApi;  // nccl_api.h

// What the ranks of one communicator have in common: rank 0 makes one and tells the others. Used once.
struct NcclId {
    std::array<char, 128> bytes{};
};

// Called at most once, on the communicator's own thread: a peer, the network or the device has failed, and
// what is under way never ends. As with Heartbeat::OnEnd the main thread may wait for the device for good, so
// this should print the text and end the process with ExitCode::peer, without destructors.
using OnAsyncError = std::function<void(const std::string& reason)>;

std::string nccl_unusable();  // why NCCL cannot be used; empty: it can
NcclId new_nccl_id();         // Error(device) where nccl_unusable() says why

// Returns once all ranks have called it with the same id; Error(peer) where that takes longer than
// connect_seconds. Collectives run on a stream of their own beside queue's: they start when what was queued
// before them is done, and wait() makes queue's stream wait, never the host. A collective is finished in the
// log some milliseconds after it is on the device. Used by one thread, and not while queue's work is being
// recorded for a replay. The destructor gives up what is not finished then: synchronise first.
// api: NCCL's functions; null: those of the library.
std::unique_ptr<Comm> make_nccl_comm(int rank, int ranks, CollectiveLog* log, NativeQueue queue,
                                     const NcclId& id, OnAsyncError on_error, double connect_seconds = 300,
                                     const NcclApi* api = nullptr);

}  // namespace longreach::ranks
