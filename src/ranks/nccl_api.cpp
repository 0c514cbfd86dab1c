// Opening NCCL.
#include "ranks/nccl_api.h"

#include <string>

#include "base/error.h"
#include "kernels/toolkit_library.h"

namespace longreach::ranks {

namespace {

// Sends and receives came with 2.7, bf16 with 2.10, communicators that do not block with 2.14.
constexpr int oldest_version = 21400;
static_assert(NCCL_VERSION_CODE >= oldest_version, "nccl.h of NCCL 2.14 or newer is needed");

// 2.28.9 is 22809; before 2.9 it was 2809.
std::string too_old(const ToolkitLibrary& library) {
    const auto get = reinterpret_cast<decltype(&ncclGetVersion)>(library.symbol("ncclGetVersion"));
    int version = 0;
    if (get && get(&version) == ncclSuccess && version >= oldest_version) return "";
    return fmt::format("version {}", version);
}

NcclApi load() {
    const ToolkitLibrary library({fmt::format("libnccl.so.{}", NCCL_MAJOR)}, "NCCL 2.14 or newer", too_old);
    NcclApi f{};
    library.find(f.version, "ncclGetVersion");
    library.find(f.error_string, "ncclGetErrorString");
    library.find(f.last_error, "ncclGetLastError");
    library.find(f.unique_id, "ncclGetUniqueId");
    library.find(f.connect, "ncclCommInitRankConfig");
    library.find(f.async_error, "ncclCommGetAsyncError");
    library.find(f.finalize, "ncclCommFinalize");
    library.find(f.destroy, "ncclCommDestroy");
    library.find(f.abort, "ncclCommAbort");
    library.find(f.group_start, "ncclGroupStart");
    library.find(f.group_end, "ncclGroupEnd");
    library.find(f.send, "ncclSend");
    library.find(f.receive, "ncclRecv");
    library.find(f.all_reduce, "ncclAllReduce");
    return f;
}

}  // namespace

const NcclApi& nccl() {
    static const NcclApi functions = load();
    return functions;
}

}  // namespace longreach::ranks
