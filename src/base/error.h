// Errors and exit codes.
//
// Two kinds of failure, distinguished where they are thrown:
//   check(...)          a broken invariant of this program: a bug, exit code 1, with source location.
//   require(...)/fail   something the user or the machine did: exit code by cause, message and hint;
//                       prints no stack trace.
// Only the catch in main() ends the process, but for a rank that others left and a device that hangs.
#pragma once

#if defined(__NVCC__) && !defined(FMT_USE_CONSTEXPR)
#define FMT_USE_CONSTEXPR 1  // fmt 9 believes nvcc cannot evaluate its format strings; since CUDA 12 it can
#endif
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace longreach {

// Documented in runs/README.md; requeue scripts read them, so a number never changes its meaning.
enum class ExitCode : int {
    ok = 0,
    internal = 1,    // a bug in this program
    usage = 2,       // command line or config
    data = 3,        // token shards or text input
    checkpoint = 4,  // no usable checkpoint where one was asked for
    disk = 5,        // full, read-only or failing disk
    device = 6,      // no such device, or out of memory
    numerics = 7,    // gave up after too many non-finite steps
    peer = 8,        // another rank failed or hung
    corruption = 9,  // a repeated computation gave other bits: hardware suspected
    locked = 10,     // another process holds the run directory
    runs = 11,       // a sweep ended with runs that failed
    hung = 12,       // a device ends no operation any more
    stopped = 75,    // a signal asked us to stop; a checkpoint is saved; safe to requeue
};

class Error : public std::runtime_error {
  public:
    Error(ExitCode code, const std::string& message, std::string hint = {})
        : std::runtime_error(message), code_(code), hint_(std::move(hint)) {}
    ExitCode code() const { return code_; }
    const std::string& hint() const { return hint_; }  // one line on what to do about it; may be empty

  private:
    ExitCode code_;
    std::string hint_;
};

// A format string that remembers where it was written. Not std::source_location: clang has it from 16 on.
template <class... Args>
struct LocatedFormat {
    fmt::format_string<Args...> format;
    const char* file;
    int line;
    template <class S>
    consteval LocatedFormat(const S& s, const char* f = __builtin_FILE(), int l = __builtin_LINE())
        : format(s), file(f), line(l) {}
};

template <class... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
    throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void require(bool ok, ExitCode code, fmt::format_string<Args...> format, Args&&... args) {
    if (!ok) [[unlikely]]
        throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void broken(LocatedFormat<std::type_identity_t<Args>...> format,
                                                   Args&&... args) {
    throw Error(ExitCode::internal, fmt::format("{}:{}: {}", format.file, format.line,
                                                fmt::format(format.format, std::forward<Args>(args)...)));
}

// Inline, so that only a check that fails writes its format to the stack: row kernels check a tensor for every row.
template <class... Args>
[[gnu::always_inline]] inline void check(bool ok, LocatedFormat<std::type_identity_t<Args>...> format,
                                         Args&&... args) {
    if (!ok) [[unlikely]]
        broken<Args...>(format, std::forward<Args>(args)...);
}

}  // namespace longreach
