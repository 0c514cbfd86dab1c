// The functions of NCCL that this program calls, as a table: opened when first needed, so that the program
// starts on machines without NCCL, and replaced by tests. Only nccl_*.cpp include this header.
#pragma once

#include <nccl.h>

namespace longreach::ranks {

struct NcclApi {
    decltype(&ncclGetVersion) version;
    decltype(&ncclGetErrorString) error_string;
    decltype(&ncclGetLastError) last_error;
    decltype(&ncclGetUniqueId) unique_id;
    decltype(&ncclCommInitRankConfig) connect;
    decltype(&ncclCommGetAsyncError) async_error;
    decltype(&ncclCommFinalize) finalize;
    decltype(&ncclCommDestroy) destroy;
    decltype(&ncclCommAbort) abort;
    decltype(&ncclGroupStart) group_start;
    decltype(&ncclGroupEnd) group_end;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) receive;
    decltype(&ncclAllReduce) all_reduce;
};

// Opened by the first call and kept until the program ends. Error(device), with every place that was
// searched, if no NCCL of the header's major version can connect without blocking (2.14).
const NcclApi& nccl();

}  // namespace longreach::ranks
