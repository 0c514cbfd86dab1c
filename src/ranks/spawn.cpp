#include "ranks/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>

#include "base/error.h"
#include "base/process.h"
#include "base/sha256.h"
#include "base/text.h"
#include "ranks/channel.h"
#include "ranks/watchdog.h"

namespace longreach::ranks {

namespace {

constexpr size_t kept_lines = 10, longest_line = 4096;
constexpr double cause_seconds = 2;  // for a rank that made another one fail to end by itself
constexpr int forwarded[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

// The lines of one stream of one rank.
struct Stream {
    Descriptor pipe;
    bool shown = false;
    std::string line;
};

struct Child {
    int rank = 0;
    pid_t process = -1;  // also its process group
    bool running = true;
    int status = 0;
    Stream out, err;
    std::deque<std::string> last;

    // As a shell shows it.
    int code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }
    std::string how() const {
        if (WIFEXITED(status)) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
        const int number = WTERMSIG(status);
        return fmt::format("was ended by signal {} ({}){}", number, ::strsignal(number),
                           number == SIGKILL ? "; the kernel does that when memory runs out" : "");
    }
};

void end_line(Child& child, Stream& stream) {
    if (child.last.size() == kept_lines) child.last.pop_front();
    child.last.push_back(stream.line);
    if (stream.shown) write_to_stderr(fmt::format("[rank {}] {}\n", child.rank, stream.line));
    stream.line.clear();
}

void read_stream(Child& child, Stream& stream) {
    std::array<char, 16384> bytes;
    const ssize_t got = ::read(stream.pipe.get(), bytes.data(), bytes.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) {
        if (!stream.line.empty()) end_line(child, stream);
        return stream.pipe.reset();
    }
    for (const char c : std::string_view(bytes.data(), static_cast<size_t>(got))) {
        if (c != '\n') stream.line += c;
        if (c == '\n' || stream.line.size() >= longest_line) end_line(child, stream);
    }
}

class Parent {
  public:
    explicit Parent(const SpawnOptions& options) : options_(options) {
        sigset_t ours;
        sigemptyset(&ours);
        for (const int signal : forwarded) sigaddset(&ours, signal);
        sigaddset(&ours, SIGCHLD);
        sigaddset(&ours, SIGTSTP);
        sigaddset(&ours, SIGPIPE);  // the run continues if its messages are no longer read
        check(::sigprocmask(SIG_BLOCK, &ours, &before_) == 0, "sigprocmask: {}", std::strerror(errno));
        signals_ = Descriptor(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
        check(static_cast<bool>(signals_), "signalfd: {}", std::strerror(errno));
    }
    ~Parent() {
        for (Child& child : children_) {
            if (!child.running) continue;
            ::kill(-child.process, SIGKILL);
            ::kill(child.process, SIGKILL);
            while (::waitpid(child.process, nullptr, 0) < 0 && errno == EINTR) {
            }
            child.running = false;
        }
        take_signals();  // left pending, they would be delivered now
        ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    }

    int run() {
        start();
        const auto running = [](const Child& c) { return c.running; };
        while (std::any_of(children_.begin(), children_.end(), running)) {
            wait_a_little();
            reap();
            const double now = monotonic_seconds();
            if (ending_ && !term_sent_ && now >= end_at_) {
                signal_all(SIGTERM);
                signal_all(SIGCONT);  // a stopped process handles SIGTERM only when it continues
                term_sent_ = true;
            }
            if (ending_ && !killed_ && now >= end_at_ + options_.grace) {
                signal_all(SIGKILL);
                killed_ = true;
            }
        }
        return result();
    }

  private:
    void start() {
        // Listens already, so that no other process can take the port before rank 0 starts.
        listening_ = listen_on("127.0.0.1", 0, true);
        const std::string token = hexadecimal(random_bytes(32));
        const Environment environment = process_environment();
        const pid_t parent = ::getpid();
        for (int rank = 0; rank < options_.ranks; ++rank) {
            Environment own = rank_environment(environment, rank, options_.ranks, port_of(listening_), token);
            if (rank == 0) own["LONGREACH_LISTENING"] = std::to_string(listening_.get());
            Child child;
            child.rank = rank;
            child.err.shown = true;
            Descriptor out, err;
            for (auto [stream, end] : {std::pair{&child.out, &out}, std::pair{&child.err, &err}}) {
                int ends[2];
                if (rank == 0) break;
                require(::pipe2(ends, O_CLOEXEC) == 0, ExitCode::internal, "cannot make a pipe: {}",
                        std::strerror(errno));
                stream->pipe = Descriptor(ends[0]);
                ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
                *end = Descriptor(ends[1]);
            }
            child.process = ::fork();
            require(child.process >= 0, ExitCode::internal, "cannot start rank {}: {}", rank,
                    std::strerror(errno));
            if (child.process == 0) {
                ::prctl(PR_SET_PDEATHSIG, SIGKILL);
                if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
                become(rank, own, out.get(), err.get());
            }
            ::setpgid(child.process, child.process);  // here and in the child, whichever comes first
            children_.push_back(std::move(child));
        }
    }
    // In the child. noexcept: an exception must not reach the destructor, which would kill the other ranks.
    [[noreturn]] void become(int rank, const Environment& environment, int out, int err) noexcept {
        ::setpgid(0, 0);
        const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        bool ok = null >= 0 && ::dup2(null, STDIN_FILENO) >= 0;
        if (rank == 0) ok = ok && ::fcntl(listening_.get(), F_SETFD, 0) == 0;
        if (rank > 0) ok = ok && ::dup2(out, STDOUT_FILENO) >= 0 && ::dup2(err, STDERR_FILENO) >= 0;
        std::vector<std::string> pairs;
        for (const auto& [name, value] : environment) pairs.push_back(name + "=" + value);
        const auto pointers = [](const std::vector<std::string>& texts) {
            std::vector<char*> all;
            for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
            all.push_back(nullptr);
            return all;
        };
        sigset_t mask = before_;
        for (const int signal : forwarded) {
            // A signal that arrives before execve() must not run a handler of the parent.
            if (::signal(signal, SIG_DFL) == SIG_IGN) ::signal(signal, SIG_IGN);
            if (options_.block_signals) sigaddset(&mask, signal);
        }
        ::sigprocmask(SIG_SETMASK, &mask, nullptr);
        if (ok)
            ::execve(options_.program.c_str(), pointers(options_.arguments).data(), pointers(pairs).data());
        write_to_stderr(fmt::format("error: cannot start {}: {}\n", options_.program, std::strerror(errno)));
        ::_exit(127);
    }
    void wait_a_little() {
        std::vector<pollfd> polled = {{signals_.get(), POLLIN, 0}};
        std::vector<std::pair<Child*, Stream*>> order;
        for (Child& child : children_)
            for (Stream* stream : {&child.out, &child.err})
                if (stream->pipe) {
                    polled.push_back({stream->pipe.get(), POLLIN, 0});
                    order.emplace_back(&child, stream);
                }
        // SIGCHLD wakes it; the limit is for the grace period.
        ::poll(polled.data(), polled.size(), 200);
        for (size_t i = 0; i < order.size(); ++i)
            if (polled[i + 1].revents != 0) read_stream(*order[i].first, *order[i].second);
        take_signals();
    }
    void take_signals() {
        signalfd_siginfo info;
        while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
            const int signal = static_cast<int>(info.ssi_signo);
            if (signal == SIGTSTP) {
                // Ctrl-Z: the ranks stop too, since this process shows their messages.
                signal_all(SIGSTOP);
                ::raise(SIGSTOP);
                signal_all(SIGCONT);
            } else if (signal != SIGCHLD && signal != SIGPIPE) {
                stop_asked_ = true;
                signal_all(signal);
            }
        }
    }
    void reap() {
        // A rank that fails makes others fail (ExitCode::peer). Of those that ended together, report the
        // cause and not its effects.
        std::vector<Child*> fresh;
        for (Child& child : children_) {
            if (!child.running) continue;
            const pid_t got = ::waitpid(child.process, &child.status, WNOHANG);
            if (got != child.process) continue;
            child.running = false;
            ::kill(-child.process, SIGKILL);  // processes that it started itself
            fresh.push_back(&child);
        }
        std::stable_sort(fresh.begin(), fresh.end(), [](const Child* a, const Child* b) {
            constexpr int peer = static_cast<int>(ExitCode::peer);
            return (a->code() != peer) > (b->code() != peer);
        });
        for (Child* child : fresh) ended(*child);
    }
    void ended(Child& child) {
        // What it has written is read; descendants that hold its pipes open are not waited for.
        for (Stream* stream : {&child.out, &child.err}) {
            for (int i = 0; i < 64 && stream->pipe; ++i) read_stream(child, *stream);
            if (!stream->line.empty()) end_line(child, *stream);
        }
        if (ended_in_order(child.code()) || follows_a_stop(child)) return;
        const int code = child.code();
        const bool by_us = term_sent_ && (code == 128 + SIGTERM || (killed_ && code == 128 + SIGKILL));
        const bool cause = failed_ == nullptr || (failed_->code() == static_cast<int>(ExitCode::peer) &&
                                                  code != static_cast<int>(ExitCode::peer) && !by_us);
        if (!cause) return;
        std::string text = fmt::format("error: rank {} {}", child.rank, child.how());
        if (failed_ != nullptr)
            text += fmt::format("; rank {} had only reported that another rank failed", failed_->rank);
        text += "\n";
        failed_ = &child;
        if (!child.last.empty()) {
            text += "its last lines:\n";
            for (const std::string& line : child.last)
                text += fmt::format("[rank {}] {}\n", child.rank, line);
        }
        if (!ending_) {
            const auto others =
                std::count_if(children_.begin(), children_.end(), [](const Child& c) { return c.running; });
            if (others > 0)
                text += fmt::format("ending the other {}\n", counted(static_cast<size_t>(others), "rank"));
        }
        // The rank whose failure made this one fail may still be about to end with its own exit code.
        end_at_ = monotonic_seconds() + (code == static_cast<int>(ExitCode::peer) ? cause_seconds : 0);
        ending_ = true;
        write_to_stderr(text);
    }
    bool one_stopped() const {
        return std::any_of(children_.begin(), children_.end(), [](const Child& c) {
            return !c.running && c.code() == static_cast<int>(ExitCode::stopped);
        });
    }
    // A signal may stop some ranks before they have joined the others, which then report only that they left.
    bool follows_a_stop(const Child& child) const {
        return stop_asked_ && child.code() == static_cast<int>(ExitCode::peer) && one_stopped();
    }
    int result() const {
        if (failed_ != nullptr && !follows_a_stop(*failed_)) return failed_->code();
        return static_cast<int>(one_stopped() ? ExitCode::stopped : ExitCode::ok);
    }
    void signal_all(int signal) {
        for (const Child& child : children_)
            if (child.running) ::kill(-child.process, signal);
    }

    const SpawnOptions& options_;
    sigset_t before_;
    Descriptor signals_, listening_;
    std::deque<Child> children_;
    const Child* failed_ = nullptr;  // the rank whose failure is the run's
    bool ending_ = false, term_sent_ = false, killed_ = false;
    bool stop_asked_ = false;  // a signal that asks to stop
    double end_at_ = 0;
};

}  // namespace

Environment rank_environment(const Environment& parent, int rank, int ranks, int port,
                             const std::string& token) {
    Environment own = parent;
    own.insert_or_assign("LONGREACH_SPAWNED", std::to_string(1));
    own["LONGREACH_RUN_TOKEN"] = token;
    own["RANK"] = own["LOCAL_RANK"] = std::to_string(rank);
    own["WORLD_SIZE"] = own["LOCAL_WORLD_SIZE"] = std::to_string(ranks);
    own["MASTER_ADDR"] = "127.0.0.1";
    own["MASTER_PORT"] = std::to_string(port);
    own.erase("LONGREACH_LISTENING");
    own.erase("LONGREACH_PORT");
    return own;
}

int spawn_ranks(const SpawnOptions& options) {
    check(options.ranks >= 1 && !options.arguments.empty(), "nothing to start");
    Parent parent(options);
    return parent.run();
}

}  // namespace longreach::ranks
