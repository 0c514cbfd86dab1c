#include "io/run_lock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include <fmt/chrono.h>

#include "base/error.h"

namespace longreach {

namespace {

std::string host_name() {
    std::array<char, 256> name{};
    if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
    return name.data();
}

std::string describe_self() {
    const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
    return fmt::format("process {} on {} since {:%Y-%m-%dT%H:%M:%SZ}", ::getpid(), host_name(),
                       fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

std::string read_holder(int fd) {
    std::array<char, 512> text{};
    const ssize_t size = ::pread(fd, text.data(), text.size(), 0);
    std::string holder(text.data(), size > 0 ? static_cast<size_t>(size) : 0);
    for (char& c : holder)
        if (static_cast<unsigned char>(c) < 0x20) c = ' ';
    while (!holder.empty() && holder.back() == ' ') holder.pop_back();
    return holder;
}

// For file systems without locks: whether the process a lock file names still runs here.
bool holder_is_alive(const std::string& holder) {
    constexpr std::string_view lead = "process ";
    if (!holder.starts_with(lead)) return false;
    int pid = 0;
    const char* end = holder.data() + holder.size();
    const auto [after, error] = std::from_chars(holder.data() + lead.size(), end, pid);
    if (error != std::errc{} || pid <= 0) return false;
    const std::string_view rest(after, static_cast<size_t>(end - after));
    const std::string here = " on " + host_name() + " ";
    if (!rest.starts_with(here)) return true;  // another host: it cannot be asked
    return ::kill(pid, 0) == 0 || errno == EPERM;
}

void write_holder(int fd, const std::string& text, const std::string& path) {
    const bool ok = ::ftruncate(fd, 0) == 0 &&
                    ::pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
    require(ok, ExitCode::disk, "cannot write {}: {}", path, std::strerror(errno));
}

}  // namespace

RunLock::RunLock(const std::string& directory) {
    const std::string path = join_path(directory, "lock");
    const int fd = ::open(path.c_str(), O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0644);
    require(fd >= 0, ExitCode::disk, "cannot open {}: {}", path, std::strerror(errno));
    try {
        struct stat status;
        const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
        require(regular, ExitCode::disk, "{} is not a regular file", path);
        int result;
        do {
            result = ::flock(fd, LOCK_EX | LOCK_NB);
        } while (result != 0 && errno == EINTR);
        const int reason = errno;
        const std::string holder = read_holder(fd);
        const bool held = result != 0 && (reason == EWOULDBLOCK || holder_is_alive(holder));
        if (held)
            throw Error(
                ExitCode::locked,
                fmt::format("{} is in use by {}", directory, holder.empty() ? "another process" : holder),
                "wait for it, stop it, or choose another run name");
        const bool unsupported =
            reason == ENOLCK || reason == EOPNOTSUPP || reason == ENOSYS || reason == EINVAL;
        require(result == 0 || unsupported, ExitCode::disk, "cannot lock {}: {}", path,
                std::strerror(reason));
        previous_ = holder;
        write_holder(fd, describe_self() + "\n", path);
    } catch (...) {
        ::close(fd);
        throw;
    }
    fd_ = fd;
}

RunLock::~RunLock() {
    // The file stays: removing it would let a process that opened it just before hold a lock nobody else can
    // see. Emptied, it tells the next holder that this one ended in good order. If that fails, the lock still
    // goes.
    const int ignored = ::ftruncate(fd_, 0);
    static_cast<void>(ignored);
    ::close(fd_);
}

}  // namespace longreach
