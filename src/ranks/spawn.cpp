#include "ranks/spawn.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>

#include "base/error.h"
#include "base/text.h"
#include "ranks/channel.h"
#include "ranks/token.h"

namespace longreach::ranks {

namespace {

constexpr size_t kept_lines = 10, longest_line = 4096;
constexpr int passed_on[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

void write_all(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t written = ::write(fd, text.data(), text.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0 && errno == EAGAIN) {
            pollfd p{fd, POLLOUT, 0};
            ::poll(&p, 1, 1000);
            continue;
        }
        if (written <= 0) return;  // nobody reads our messages any more; the ranks go on
        text.remove_prefix(static_cast<size_t>(written));
    }
}

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

    // 0 to 255 as a shell would say it.
    int code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }
    bool in_order() const {
        return code() == static_cast<int>(ExitCode::ok) || code() == static_cast<int>(ExitCode::stopped);
    }
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
    if (stream.shown) write_all(STDERR_FILENO, fmt::format("[rank {}] {}\n", child.rank, stream.line));
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
    for (ssize_t i = 0; i < got; ++i) {
        if (bytes[static_cast<size_t>(i)] != '\n') stream.line += bytes[static_cast<size_t>(i)];
        if (bytes[static_cast<size_t>(i)] == '\n' || stream.line.size() >= longest_line)
            end_line(child, stream);
    }
}

// A socket that already listens, so that no other process can take the port between now and rank 0's start.
Descriptor listen_on_loopback(int& port) {
    Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    const bool ok = fd && ::bind(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0 &&
                    ::listen(fd.get(), 1024) == 0 &&
                    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &size) == 0;
    require(ok, ExitCode::internal, "cannot listen on 127.0.0.1: {}", std::strerror(errno));
    port = ntohs(name.sin_port);
    return fd;
}

// What the child needs is made before fork(): after it, only calls that are safe in a signal handler.
struct Command {
    explicit Command(const std::vector<std::string>& arguments, const Environment& environment) {
        for (const auto& [name, value] : environment) pairs.push_back(name + "=" + value);
        for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
        for (const std::string& p : pairs) envp.push_back(const_cast<char*>(p.c_str()));
        argv.push_back(nullptr);
        envp.push_back(nullptr);
    }
    std::vector<std::string> pairs;
    std::vector<char*> argv, envp;
};

class Parent {
  public:
    explicit Parent(const SpawnOptions& options) : options_(options) {
        sigset_t ours;
        sigemptyset(&ours);
        for (const int signal : passed_on) sigaddset(&ours, signal);
        sigaddset(&ours, SIGCHLD);
        sigaddset(&ours, SIGTSTP);
        sigaddset(&ours, SIGPIPE);  // a reader of our messages that went away must not end the run
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
        while (any_running()) {
            wait_a_little();
            reap();
            if (ending_ && !killed_ && monotonic_seconds() >= kill_at_) {
                signal_all(SIGKILL);
                killed_ = true;
            }
        }
        drain();
        return result();
    }

  private:
    void start();
    [[noreturn]] void become(const Command& command, int rank, int listening, int null, int out, int err);
    void wait_a_little();
    void take_signals();
    void reap();
    void ended(Child& child);
    void drain();
    int result() const;
    bool one_stopped() const;
    bool follows_a_stop(const Child& child) const;
    bool any_running() const {
        return std::any_of(children_.begin(), children_.end(), [](const Child& c) { return c.running; });
    }
    void signal_all(int signal) {
        for (const Child& child : children_)
            if (child.running) ::kill(-child.process, signal);
    }

    const SpawnOptions& options_;
    sigset_t before_;
    Descriptor signals_;
    std::deque<Child> children_;
    const Child* failed_ = nullptr;  // the rank whose failure is the run's
    bool ending_ = false, killed_ = false;
    bool passed_on_ = false;  // a signal that asks to stop
    double kill_at_ = 0;
};

void Parent::start() {
    int port = 0;
    const Descriptor listening = listen_on_loopback(port);
    const Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    require(static_cast<bool>(null), ExitCode::internal, "cannot open /dev/null: {}", std::strerror(errno));
    const std::string token = random_token();
    const Environment environment = process_environment();
    for (int rank = 0; rank < options_.ranks; ++rank) {
        Environment own = rank_environment(environment, rank, options_.ranks, port, token);
        if (rank == 0) own["LONGREACH_LISTENING"] = std::to_string(listening.get());
        const Command command(options_.arguments, own);
        Child child;
        child.rank = rank;
        Descriptor out, err;
        if (rank > 0) {
            for (auto [stream, end] : {std::pair{&child.out, &out}, std::pair{&child.err, &err}}) {
                int ends[2];
                require(::pipe2(ends, O_CLOEXEC) == 0, ExitCode::internal, "cannot make a pipe: {}",
                        std::strerror(errno));
                stream->pipe = Descriptor(ends[0]);
                ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
                *end = Descriptor(ends[1]);
            }
            child.err.shown = true;
        }
        const pid_t parent = ::getpid();
        const pid_t process = ::fork();
        require(process >= 0, ExitCode::internal, "cannot start rank {}: {}", rank, std::strerror(errno));
        if (process == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
            become(command, rank, listening.get(), null.get(), out.get(), err.get());
        }
        ::setpgid(process, process);  // here and in the child: whoever comes first
        child.process = process;
        children_.push_back(std::move(child));
    }
}

void Parent::become(const Command& command, int rank, int listening, int null, int out, int err) {
    ::setpgid(0, 0);
    ::dup2(null, STDIN_FILENO);
    if (rank == 0) {
        ::fcntl(listening, F_SETFD, 0);
    } else if (::dup2(out, STDOUT_FILENO) < 0 || ::dup2(err, STDERR_FILENO) < 0) {
        ::_exit(127);
    }
    // A signal that arrives before execve() must not run a handler of the parent.
    for (int signal = 1; signal < NSIG; ++signal) {
        struct sigaction action {};
        if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
        action.sa_handler = SIG_DFL;
        action.sa_flags = 0;
        ::sigaction(signal, &action, nullptr);
    }
    sigset_t mask = before_;
    for (const int signal : passed_on)
        if (options_.block_signals) sigaddset(&mask, signal);
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
    ::execve(options_.program.c_str(), command.argv.data(), command.envp.data());
    const char* reason = ::strerror(errno);
    const char* parts[] = {"error: cannot start ", options_.program.c_str(), ": ", reason, "\n"};
    for (const char* part : parts)
        if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
    ::_exit(127);
}

void Parent::wait_a_little() {
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

void Parent::take_signals() {
    signalfd_siginfo info;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
        const int signal = static_cast<int>(info.ssi_signo);
        if (signal == SIGTSTP) {
            // Ctrl-Z: the ranks must not go on without the process that shows their messages.
            signal_all(SIGSTOP);
            ::raise(SIGSTOP);
            signal_all(SIGCONT);
        } else if (signal != SIGCHLD && signal != SIGPIPE) {
            passed_on_ = true;
            signal_all(signal);
        }
    }
}

void Parent::reap() {
    // A rank that fails takes others with it (ExitCode::peer): of those that ended together, the cause first.
    std::vector<Child*> fresh;
    for (Child& child : children_) {
        if (!child.running) continue;
        const pid_t got = ::waitpid(child.process, &child.status, WNOHANG);
        if (got != child.process) continue;
        child.running = false;
        ::kill(-child.process, SIGKILL);  // what it may have started itself
        fresh.push_back(&child);
    }
    std::stable_sort(fresh.begin(), fresh.end(), [](const Child* a, const Child* b) {
        constexpr int peer = static_cast<int>(ExitCode::peer);
        return (a->code() != peer) > (b->code() != peer);
    });
    for (Child* child : fresh) ended(*child);
}

void Parent::ended(Child& child) {
    for (Stream* stream : {&child.out, &child.err})
        for (int i = 0; i < 64 && stream->pipe; ++i)
            read_stream(child, *stream);  // what is still in the pipe
    if (child.in_order() || follows_a_stop(child)) return;
    const int code = child.code();
    const bool by_us = ending_ && (code == 128 + SIGTERM || (killed_ && code == 128 + SIGKILL));
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
        for (const std::string& line : child.last) text += fmt::format("[rank {}] {}\n", child.rank, line);
    }
    if (!ending_) {
        const auto others =
            std::count_if(children_.begin(), children_.end(), [](const Child& c) { return c.running; });
        if (others > 0)
            text += fmt::format("ending the other {}\n", counted(static_cast<size_t>(others), "rank"));
        signal_all(SIGTERM);
        signal_all(SIGCONT);  // a stopped process takes the signal when it runs
        ending_ = true;
        kill_at_ = monotonic_seconds() + options_.grace;
    }
    write_all(STDERR_FILENO, text);
}

// Descendants of a rank may hold its pipes open: what has been written is read, nothing is waited for.
void Parent::drain() {
    for (Child& child : children_)
        for (Stream* stream : {&child.out, &child.err}) {
            for (int i = 0; i < 64 && stream->pipe; ++i) read_stream(child, *stream);
            if (!stream->line.empty()) end_line(child, *stream);
        }
}

bool Parent::one_stopped() const {
    return std::any_of(children_.begin(), children_.end(), [](const Child& c) {
        return !c.running && c.code() == static_cast<int>(ExitCode::stopped);
    });
}

// A signal may reach some ranks before they have met the others, who then only see them go.
bool Parent::follows_a_stop(const Child& child) const {
    return passed_on_ && child.code() == static_cast<int>(ExitCode::peer) && one_stopped();
}

int Parent::result() const {
    if (failed_ != nullptr && !follows_a_stop(*failed_)) return failed_->code();
    return static_cast<int>(one_stopped() ? ExitCode::stopped : ExitCode::ok);
}

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
