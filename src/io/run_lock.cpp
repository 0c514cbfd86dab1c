#include "io/run_lock.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>

#include <fmt/chrono.h>

#include "base/error.h"
#include "base/process.h"

namespace longreach::io {

namespace {

std::string describe_self() {
    const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
    return fmt::format("process {} on {} since {:%Y-%m-%dT%H:%M:%SZ}", ::getpid(), host_name(),
                       fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

std::string read_holder(const File& file) {
    std::string holder(static_cast<size_t>(std::min<uint64_t>(file.size(), 512)), '\0');
    try {
        file.read_at(holder.data(), holder.size(), 0);
    } catch (const Error&) {  // a holder that ends has emptied it
        holder.clear();
    }
    for (char& c : holder)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
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

}  // namespace

RunLock::RunLock(const std::string& directory, Disk& disk)
    : directory_(File::open_directory(directory, disk)),
      lock_(File::open_or_create(join_path(directory, "lock"), Writes::placed, disk)) {
    const File::Lock whole = directory_.lock();
    const File::Lock own = whole == File::Lock::busy ? File::Lock::busy : lock_.lock();
    const std::string holder = read_holder(lock_);
    if (own == File::Lock::busy || (own == File::Lock::unsupported && holder_is_alive(holder)))
        throw Error(ExitCode::locked,
                    fmt::format("{} is in use by {}", directory, holder.empty() ? "another process" : holder),
                    "wait for it, stop it, or choose another run name");
    holds_directory_ = whole == File::Lock::taken;
    previous_ = holder;
    lock_.truncate(0);
    const std::string self = describe_self() + "\n";
    lock_.write_at(self.data(), self.size(), 0);
}

RunLock::~RunLock() {
    // The file is kept: removing it would let a process that just opened it hold a lock that no other
    // can see. An empty file shows the next holder that this one ended normally. If emptying fails,
    // the lock is still released.
    try {
        lock_.truncate(0);
    } catch (const Error&) {
    }
}

std::string RunLock::directory_lost() const {
    return directory_.is_at_path(Links::follow) ? "" : directory_.whereabouts();
}

std::string RunLock::lock_lost() const {
    return lock_.is_at_path(Links::refuse) ? "" : lock_.whereabouts();
}

}  // namespace longreach::io
