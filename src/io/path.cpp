// The read-only parts of io/file.h: names, kinds and listings.
#include <dirent.h>
#include <glob.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "io/file.h"

namespace longreach::io {

PathKind kind_of(const std::string& path, Links links) {
    struct stat status;
    const int result =
        links == Links::follow ? ::stat(path.c_str(), &status) : ::lstat(path.c_str(), &status);
    if (result != 0) {
        require(errno == ENOENT || errno == ENOTDIR, ExitCode::disk, "cannot examine {}: {}", path,
                std::strerror(errno));
        return PathKind::missing;
    }
    if (S_ISREG(status.st_mode)) return PathKind::file;
    return S_ISDIR(status.st_mode) ? PathKind::directory : PathKind::other;
}

std::vector<std::string> list_directory(const std::string& path) {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(path.c_str()), ::closedir);
    require(directory != nullptr, errno == ENOENT || errno == ENOTDIR ? ExitCode::data : ExitCode::disk,
            "cannot list directory {}: {}", path, std::strerror(errno));
    std::vector<std::string> names;
    for (;;) {
        errno = 0;
        const dirent* entry = ::readdir(directory.get());
        if (entry == nullptr) break;
        const std::string name = entry->d_name;
        if (name != "." && name != "..") names.push_back(name);
    }
    require(errno == 0, ExitCode::disk, "cannot list directory {}: {}", path, std::strerror(errno));
    std::sort(names.begin(), names.end());
    return names;
}

std::vector<std::string> expand_pattern(const std::string& pattern) {
    glob_t found{};
    const std::unique_ptr<glob_t, void (*)(glob_t*)> guard(&found, ::globfree);
    const int result = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
    require(result == 0 || result == GLOB_NOMATCH, ExitCode::disk, "cannot expand {}: {}", pattern,
            result == GLOB_NOSPACE ? "out of memory" : "a directory cannot be read");
    std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    std::sort(paths.begin(), paths.end());  // byte order: the same in every locale
    return paths;
}

uint64_t free_bytes(const std::string& directory) {
    struct statvfs status;
    require(::statvfs(directory.c_str(), &status) == 0, ExitCode::disk, "cannot examine the disk of {}: {}",
            directory, std::strerror(errno));
    return uint64_t{status.f_bavail} * status.f_frsize;
}

std::string join_path(std::string_view directory, std::string_view name) {
    if (directory.empty()) return std::string(name);
    const bool slash = directory.back() == '/';
    return fmt::format("{}{}{}", directory, slash ? "" : "/", name);
}

std::string parent_path(std::string_view path) {
    while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
    const size_t slash = path.rfind('/');
    if (slash == std::string_view::npos) return ".";
    return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

std::string base_name(std::string_view path) {
    while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
    const size_t slash = path.rfind('/');
    return std::string(slash == std::string_view::npos ? path : path.substr(slash + 1));
}

}  // namespace longreach::io
