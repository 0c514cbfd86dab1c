// Builds without NCCL.
#include "ranks/nccl_comm.h"

namespace longreach::ranks {

std::string nccl_unusable() {
    return "this build has no NCCL (configure with -DLONGREACH_CUDA=ON where nccl.h is installed)";
}

NcclId new_nccl_id() {
    fail(ExitCode::device, "{}", nccl_unusable());
}

std::unique_ptr<Comm> make_nccl_comm(int, int, CollectiveLog*, NativeQueue, const NcclId&, OnAsyncError,
                                     double, const NcclApi*) {
    fail(ExitCode::device, "{}", nccl_unusable());
}

}  // namespace longreach::ranks
