// Opening NCCL.
#include "ranks/nccl_api.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"

namespace longreach::ranks {

namespace {

// Sends and receives came with 2.7, bf16 with 2.10, communicators that do not block with 2.14.
constexpr int oldest_version = 21400;
static_assert(NCCL_VERSION_CODE >= oldest_version, "nccl.h of NCCL 2.14 or newer is needed");

class Library {
  public:
    Library() {
        std::vector<std::string> folders = {""};  // first where the system's loader looks
        if (const char* home = std::getenv("CUDA_HOME"); home && *home) {
            folders.push_back(std::string(home) + "/lib64/");
            folders.push_back(std::string(home) + "/lib/");
        }
        folders.push_back("/usr/local/cuda/lib64/");
        folders.push_back("/usr/local/cuda/lib/");
        const std::string file = "libnccl.so." + std::to_string(NCCL_MAJOR);
        for (const std::string& folder : folders)
            if (open(folder + file)) return;
        throw Error(ExitCode::device, fmt::format("no usable {}", file),
                    fmt::format("install NCCL 2.14 or newer, or name its folder in LD_LIBRARY_PATH or the "
                                "toolkit's in CUDA_HOME; looked for{}",
                                tried_.substr(0, tried_.size() - 1)));
    }

    template <class Function>
    void find(Function& function, const char* name) const {
        void* symbol = dlsym(handle_, name);
        require(symbol != nullptr, ExitCode::device, "{} has no function {}", path_, name);
        function = reinterpret_cast<Function>(symbol);
    }

  private:
    bool open(const std::string& path) {
        handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!handle_) {
            const char* reason = dlerror();
            const bool there = access(path.c_str(), F_OK) == 0;  // then the reason is worth reading
            tried_ += fmt::format(" {}{};", path, there && reason ? fmt::format(" ({})", reason) : "");
            return false;
        }
        path_ = path;
        const auto get = reinterpret_cast<decltype(&ncclGetVersion)>(dlsym(handle_, "ncclGetVersion"));
        int version = 0;  // 2.28.9 is 22809; before 2.9 it was 2809
        if (get && get(&version) == ncclSuccess && version >= oldest_version) return true;
        tried_ += fmt::format(" {} (version {});", path, version);
        dlclose(handle_);
        handle_ = nullptr;
        return false;
    }

    std::string path_, tried_;
    void* handle_ = nullptr;  // never closed: the functions stay in use
};

NcclApi load() {
    const Library library;
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
