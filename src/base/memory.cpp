#include "base/memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace longreach {

namespace {

std::string text_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream out;
    if (in.good()) out << in.rdbuf();
    return out.str();
}

std::optional<int64_t> number(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + begin, text.data() + text.size(), value);
    static_cast<void>(end);
    if (error != std::errc()) return {};  // "max", and numbers of no limit beyond 63 bits
    return value;
}

// The number after `key` at the start of a line.
std::optional<int64_t> field(const std::string& text, std::string_view key) {
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string_view line = std::string_view(text).substr(at, end - at);
        if (line.starts_with(key)) return number(line.substr(key.size()));
        at = end + 1;
    }
    return {};
}

void lower(FreeMemory& free, int64_t bytes, const std::string& limit) {
    if (bytes < free.bytes) free = {std::max<int64_t>(bytes, 0), limit};
}

// What one control group leaves. Pages of files that are not in use are given back when memory runs short.
void hold_against_group(FreeMemory& free, const std::string& directory, const char* most, const char* used,
                        const char* reclaimable, const std::string& name) {
    const std::optional<int64_t> limit = number(text_of(directory + "/" + most)),
                                 taken = number(text_of(directory + "/" + used));
    if (!limit || !taken) return;
    const int64_t cache = field(text_of(directory + "/memory.stat"), reclaimable).value_or(0);
    lower(free, *limit - *taken + cache, "the control group " + name);
}

// A group and its ancestors, whose limits also apply.
void hold_against_groups(FreeMemory& free, const std::string& mount, std::string path, const char* most,
                         const char* used, const char* reclaimable) {
    for (;;) {
        hold_against_group(free, mount + path, most, used, reclaimable, path.empty() ? "/" : path);
        const size_t slash = path.rfind('/');
        if (slash == std::string::npos) return;
        path.resize(slash);
    }
}

void hold_against_limits(FreeMemory& free, const std::string& root) {
    const std::string status = text_of(root + "/proc/self/status");
    const auto held = [&](std::string_view key) { return 1024 * field(status, key).value_or(0); };
    const auto hold = [&](auto resource, int64_t used, const char* name) {
        rlimit limit{};
        if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
        const auto most = std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max());
        lower(free, static_cast<int64_t>(most) - used, name);
    };
    hold(RLIMIT_AS, held("VmSize:"), "RLIMIT_AS (ulimit -v)");
    hold(RLIMIT_DATA, held("VmData:"), "RLIMIT_DATA (ulimit -d)");
}

}  // namespace

FreeMemory free_memory(const std::string& root) {
    FreeMemory free{std::numeric_limits<int64_t>::max(), "nothing"};
    if (const auto available = field(text_of(root + "/proc/meminfo"), "MemAvailable:"))
        lower(free, 1024 * *available, "this machine");
    const std::string groups = text_of(root + "/proc/self/cgroup");
    std::istringstream lines(groups);
    for (std::string line; std::getline(lines, line);) {
        // "0::/path" of version 2, "5:cpu,memory:/path" of version 1.
        const size_t first = line.find(':'), second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
        std::string path = line.substr(second + 1);
        while (path.ends_with('/')) path.pop_back();
        if (line.starts_with("0::"))
            hold_against_groups(free, root + "/sys/fs/cgroup", path, "memory.max", "memory.current",
                                "inactive_file ");
        else if (controllers.find(",memory,") != std::string::npos)
            hold_against_groups(free, root + "/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                                "memory.usage_in_bytes", "total_inactive_file ");
    }
    hold_against_limits(free, root);
    return free;
}

}  // namespace longreach
