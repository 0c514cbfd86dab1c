#include "base/build_info.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace longreach {

// The program's own object file (made by cmake/commit.cmake) replaces this one. Tests do not link it, so
// that a commit does not relink them.
[[gnu::weak]] const char* build_commit() {
    return "";
}

namespace {

std::string quoted_for_shell(const std::string& word) {
    constexpr std::string_view plain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%^";
    if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
    return out + "'";
}

// The kernel's copy of argv: NUL after each word.
std::string command_line() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::string text, word;
    while (std::getline(file, word, '\0')) {
        if (!text.empty()) text += ' ';
        text += quoted_for_shell(word);
    }
    return text;
}

std::string cpu_name() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with("model name")) continue;
        const size_t begin = line.find_first_not_of(": \t", std::min(line.find(':'), line.size()));
        return begin == std::string::npos ? "" : line.substr(begin);
    }
    return "";
}

}  // namespace

BuildInfo build_info() {
    utsname name{};
    uname(&name);
    return {LONGREACH_VERSION,    build_commit(),  LONGREACH_COMPILER,
            LONGREACH_BUILD_TYPE, LONGREACH_FLAGS, fmt::format("{} {}", name.sysname, name.machine)};
}

std::string describe(const BuildInfo& build) {
    const std::string commit = build.commit.empty() ? "" : fmt::format(" (commit {})", build.commit);
    return fmt::format("longreach {}{}\n{}, {}, flags {}", build.version, commit, build.compiler,
                       build.build_type, build.flags);
}

ProcessInfo process_info() {
    ProcessInfo info;
    info.command_line = command_line();
    utsname name{};
    if (uname(&name) == 0) info.host = name.nodename;
    info.cpu = cpu_name();
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) info.cores = std::max(1, CPU_COUNT(&set));
    info.memory_bytes = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
    return info;
}

}  // namespace longreach
