// Opening cuBLASLt. With LONGREACH_SIMT the functions are those of the harness in
// tests/simt, linked as usual.
#include "kernels/cuda/library.h"

#if !defined(LONGREACH_SIMT)
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#endif

namespace longreach::cuda {

#if defined(LONGREACH_SIMT)

const CublasLt& cublaslt() {
    static const CublasLt functions{
        .create = cublasLtCreate,
        .destroy = cublasLtDestroy,
        .version = cublasLtGetVersion,
        .status_string = cublasLtGetStatusString,
        .operation_create = cublasLtMatmulDescCreate,
        .operation_destroy = cublasLtMatmulDescDestroy,
        .operation_set = cublasLtMatmulDescSetAttribute,
        .layout_create = cublasLtMatrixLayoutCreate,
        .layout_destroy = cublasLtMatrixLayoutDestroy,
        .layout_set = cublasLtMatrixLayoutSetAttribute,
        .preference_create = cublasLtMatmulPreferenceCreate,
        .preference_destroy = cublasLtMatmulPreferenceDestroy,
        .preference_set = cublasLtMatmulPreferenceSetAttribute,
        .heuristic = cublasLtMatmulAlgoGetHeuristic,
        .matmul = cublasLtMatmul,
    };
    return functions;
}

#else

namespace {

// A library by the first of its names that opens; no other version than the header's will do,
// as the types are the header's.
class Library {
  public:
    explicit Library(const std::string& name)
        : versioned_(name + "." + std::to_string(CUBLAS_VER_MAJOR)), plain_(name) {
        std::vector<std::string> folders = {""};  // first where the system's loader looks
        if (const char* home = std::getenv("CUDA_HOME"); home && *home) {
            folders.push_back(std::string(home) + "/lib64/");
            folders.push_back(std::string(home) + "/lib/");
        }
        folders.push_back("/usr/local/cuda/lib64/");
        for (const std::string& file : {versioned_, plain_})
            for (const std::string& folder : folders)
                if (open(folder + file)) return;
        throw Error(ExitCode::device, fmt::format("no usable {}", versioned_),
                    fmt::format("install cuBLAS of CUDA {}, or name its folder in LD_LIBRARY_PATH or the "
                                "toolkit's in CUDA_HOME; looked for{}",
                                CUBLAS_VER_MAJOR, tried_.substr(0, tried_.size() - 1)));
    }

    template <class Function>
    void find(Function& function, const char* name) const {
        void* symbol = dlsym(handle_, name);
        if (!symbol)
            throw Error(ExitCode::device, fmt::format("{} has no function {}", path_, name),
                        fmt::format("it is not the library of CUDA {}", CUBLAS_VER_MAJOR));
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
        auto version = reinterpret_cast<decltype(&cublasLtGetVersion)>(dlsym(handle_, "cublasLtGetVersion"));
        // 13.1.0 is 130100; before version 12 the major number stood elsewhere, which is another one too.
        if (version && version() / 10000 == CUBLAS_VER_MAJOR) return true;
        tried_ += fmt::format(" {} (version {});", path, version ? version() : 0);
        dlclose(handle_);
        handle_ = nullptr;
        return false;
    }

    std::string versioned_, plain_, path_, tried_;
    void* handle_ = nullptr;  // never closed: the functions stay in use
};

CublasLt load() {
    const Library library("libcublasLt.so");
    CublasLt f{};
    library.find(f.create, "cublasLtCreate");
    library.find(f.destroy, "cublasLtDestroy");
    library.find(f.version, "cublasLtGetVersion");
    library.find(f.status_string, "cublasLtGetStatusString");
    library.find(f.operation_create, "cublasLtMatmulDescCreate");
    library.find(f.operation_destroy, "cublasLtMatmulDescDestroy");
    library.find(f.operation_set, "cublasLtMatmulDescSetAttribute");
    library.find(f.layout_create, "cublasLtMatrixLayoutCreate");
    library.find(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
    library.find(f.layout_set, "cublasLtMatrixLayoutSetAttribute");
    library.find(f.preference_create, "cublasLtMatmulPreferenceCreate");
    library.find(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    library.find(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    library.find(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    library.find(f.matmul, "cublasLtMatmul");
    return f;
}

}  // namespace

const CublasLt& cublaslt() {
    static const CublasLt functions = load();
    return functions;
}

#endif

}  // namespace longreach::cuda
