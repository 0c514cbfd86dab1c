#include "kernels/toolkit_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"

namespace longreach {

namespace {

// The folders of NVIDIA's Python packages (nvidia-cublas, nvidia-nccl), of every Python in PATH.
std::vector<std::string> python_folders() {
    namespace fs = std::filesystem;
    const auto children = [](const fs::path& folder) {
        std::vector<fs::path> found;
        std::error_code ignored;
        for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
            found.push_back(at->path());
        std::sort(found.begin(), found.end());
        return found;
    };
    std::vector<std::string> folders;
    const char* path = std::getenv("PATH");
    std::string rest = path ? path : "";
    for (size_t end = 0; !rest.empty(); rest = end < rest.size() ? rest.substr(end + 1) : "") {
        end = std::min(rest.find(':'), rest.size());
        const fs::path bin = rest.substr(0, end);
        std::error_code ignored;
        if (bin.empty() || !fs::exists(bin / "python3", ignored)) continue;
        for (const fs::path& version : children(bin.parent_path() / "lib")) {
            if (!version.filename().string().starts_with("python3")) continue;
            for (const char* packages : {"site-packages", "dist-packages"})
                for (const fs::path& package : children(version / packages / "nvidia"))
                    folders.push_back((package / "lib/").string());
        }
    }
    return folders;
}

}  // namespace

ToolkitLibrary::ToolkitLibrary(const std::vector<std::string>& files, const std::string& wanted,
                               const std::function<std::string(const ToolkitLibrary&)>& unusable)
    : wanted_(wanted) {
    std::vector<std::string> folders = {""};  // first where the system's loader looks
    if (const char* home = std::getenv("CUDA_HOME"); home && *home)
        for (const char* folder : {"/lib64/", "/lib/"}) folders.push_back(std::string(home) + folder);
    for (const char* folder : {"/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"}) folders.push_back(folder);
    for (const std::string& folder : python_folders()) folders.push_back(folder);
    std::string tried;
    for (const std::string& file : files)
        for (const std::string& folder : folders) {
            path_ = folder + file;
            handle_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (handle_ == nullptr) {
                const char* reason = dlerror();
                const bool exists = access(path_.c_str(), F_OK) == 0;  // then the reason is worth reading
                tried += fmt::format(" {}{};", path_, exists && reason ? fmt::format(" ({})", reason) : "");
                continue;
            }
            const std::string problem = unusable(*this);
            if (problem.empty()) return;
            tried += fmt::format(" {} ({});", path_, problem);
            dlclose(handle_);
        }
    const std::string places = tried.substr(0, tried.size() - 1);
    throw Error(ExitCode::device, fmt::format("no usable {}", files.front()),
                fmt::format("install {}, or name its folder in LD_LIBRARY_PATH or the toolkit's in "
                            "CUDA_HOME; looked for{}",
                            wanted, places));
}

void* ToolkitLibrary::symbol(const char* name) const {
    return dlsym(handle_, name);
}

void* ToolkitLibrary::required_symbol(const char* name) const {
    void* found = symbol(name);
    if (found == nullptr)
        throw Error(ExitCode::device, fmt::format("{} has no function {}", path_, name),
                    fmt::format("it is not {}", wanted_));
    return found;
}

}  // namespace longreach
