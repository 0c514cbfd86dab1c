// Tensors between GPUs over NCCL. A build without NCCL defines the same functions (nccl_absent.cpp).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "ranks/comm.h"
#include "kernels/ops.h"

namespace longreach::ranks {

struct NcclApi;  // nccl_api.h

// Identifies a communicator: rank 0 creates one and sends it to the others. Used once.
struct NcclId {
    std::array<char, 128> bytes{};
};

// Called at most once, on the communicator's own thread, when a peer, the network or the device has
// failed and pending collectives never end. As with Heartbeat::OnEnd, the main thread may wait for
// the device forever, so the function should print the reason and end the process with
// ExitCode::peer without running destructors.
using OnAsyncError = std::function<void(const std::string& reason)>;

std::string nccl_unusable();  // empty if NCCL can be used, otherwise the reason why not
NcclId new_nccl_id();         // Error(device) for the reason of nccl_unusable()

// Returns once all ranks have called it with the same id; Error(peer) after connect_seconds. Collectives run
// on a stream of their own: they start when the work queued before them is complete, and wait() makes queue's
// stream wait, never the host. The log marks a collective as finished some milliseconds after the device
// finished it. For one thread, and not while queue's work is being recorded for a replay. The destructor
// abandons unfinished collectives: synchronise first. api: NCCL's functions; null: the library's.
std::unique_ptr<Comm> make_nccl_comm(int rank, int ranks, CollectiveLog* log, NativeQueue queue,
                                     const NcclId& id, OnAsyncError on_error, double connect_seconds = 300,
                                     const NcclApi* api = nullptr);

}  // namespace longreach::ranks
