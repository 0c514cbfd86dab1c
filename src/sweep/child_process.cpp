#include "sweep/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "io/record_columns.h"
#include "train/signals.h"

namespace longreach::sweep {

namespace {

// Runs between fork and exec, so it makes only async-signal-safe calls.
// If the program cannot be started, the child exits with 127, as in a shell.
[[noreturn]] void become(const char* program, char* const* argv, int output, pid_t parent) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(127);  // the parent died before the line above
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE}) ::signal(signal, SIG_DFL);
    const int input = ::open("/dev/null", O_RDONLY);
    if (input < 0 || ::dup2(input, STDIN_FILENO) < 0) ::_exit(127);
    if (::dup2(output, STDOUT_FILENO) < 0 || ::dup2(output, STDERR_FILENO) < 0) ::_exit(127);
    ::execv(program, argv);
    ::_exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::string& program, const std::vector<std::string>& arguments,
                           const std::string& log) {
    std::vector<char*> argv{const_cast<char*>(program.c_str())};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    const int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    const int output = ::open(log.c_str(), flags, 0644);
    require(output >= 0, ExitCode::disk, "cannot append to {}: {}", log, std::strerror(errno));
    const pid_t parent = ::getpid();
    // Until the child has installed its own handlers, the signals stay blocked.
    const train::BlockedStopSignals blocked;
    pid_ = ::fork();
    if (pid_ == 0) become(program.c_str(), argv.data(), output, parent);
    const int reason = errno;
    ::close(output);
    require(pid_ > 0, ExitCode::device, "cannot start another process: {}", std::strerror(reason));
}

ChildProcess::~ChildProcess() {
    if (end_) return;
    terminate();
    collect(0);
}

void ChildProcess::terminate() {
    if (!end_) ::kill(pid_, SIGTERM);
}

void ChildProcess::collect(int options) {
    int status = 0;
    pid_t result;
    do {
        result = ::waitpid(pid_, &status, options);
    } while (result < 0 && errno == EINTR);
    if (result != pid_) return;
    end_ = WIFEXITED(status) ? ProcessEnd{WEXITSTATUS(status), 0} : ProcessEnd{0, WTERMSIG(status)};
}

std::optional<ProcessEnd> ChildProcess::ended() {
    if (!end_) collect(WNOHANG);
    return end_;
}

std::string to_string(const ProcessEnd& end) {
    if (end.signal != 0) return fmt::format("killed by signal {} ({})", end.signal, ::strsignal(end.signal));
    return fmt::format("exit code {}", end.code);
}

std::vector<std::string> last_lines(const std::string& path, size_t count) {
    std::string text;
    try {
        text = io::file_end(path);
    } catch (const Error&) {
        return {};
    }
    std::deque<std::string> lines;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);)
        if (!line.empty()) lines.push_back(one_line(line));
    while (lines.size() > count) lines.pop_front();
    return {lines.begin(), lines.end()};
}

}  // namespace longreach::sweep
