// Ranks as real processes: a forked child runs an action and leaves its outcome in a file.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "ranks/channel.h"
#include "ranks/launch.h"
#include "io/temp_dir.h"

namespace longreach::test {

// Above what any step takes on a crowded machine; only a failing test ever waits so long.
constexpr double patience = 60;

inline void sleep_for(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

template <class Condition>
bool wait_until(Condition done) {
    const double end = ranks::monotonic_seconds() + patience;
    while (ranks::monotonic_seconds() < end) {
        if (done()) return true;
        sleep_for(0.01);
    }
    return false;
}

// For a child: without stdio, whose buffers are copies of the test's.
inline void redirect(int fd, const std::string& path) {
    const ranks::Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    check(file && ::dup2(file.get(), fd) == fd, "cannot redirect {} to {}", fd, path);
}

// A child process. Fork before the test starts threads that hold locks: the action runs in a
// copy of this one.
class Child {
  public:
    // The action's return value is written to a file; what it throws, as "code: message".
    explicit Child(const std::function<std::string()>& action) {
        process_ = ::fork();
        check(process_ >= 0, "cannot fork");
        if (process_ > 0) return;
        // The server's sockets: a copy in a child would keep a connection open that the server closes.
        ::close_range(3, ~0u, 0);
        std::string outcome;
        const std::string error = error_of([&] { outcome = action(); });
        put(path(::getpid()), outcome.empty() ? error : outcome);
        ::_exit(0);
    }
    ~Child() {
        if (process_ > 0) {
            signal(SIGKILL);
            wait();
        }
    }
    Child(Child&& other) noexcept
        : directory_(std::move(other.directory_)), process_(other.process_), status_(other.status_) {
        other.process_ = -1;
    }

    pid_t id() const { return process_; }
    void signal(int number) const { ::kill(process_, number); }
    // The exit code, or minus the signal that ended it.
    int wait() {
        if (process_ > 0) ::waitpid(process_, &status_, 0);
        process_ = -1;
        return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
    }
    std::string outcome() {
        const pid_t id = process_;
        const int code = wait();
        return code == 0 ? get(path(id)) : fmt::format("ended with {}", code);
    }

  private:
    std::string path(pid_t id) const { return *directory_ / fmt::format("outcome.{}", id); }
    std::shared_ptr<TempDir> directory_ = std::make_shared<TempDir>();
    pid_t process_ = -1;
    int status_ = 0;
};

inline ranks::RankPlace place_of(int rank, int ranks, int port) {
    ranks::RankPlace place;
    place.rank = place.local_rank = rank;
    place.ranks = place.local_ranks = ranks;
    place.port = port;
    place.source = ranks::Launcher::spawn;
    return place;
}

}  // namespace longreach::test
