// Starting the real program: arguments, exit code, output, signals at chosen moments.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "io/temp_dir.h"

namespace longreach::test {

// ctest sets the variable to run the same cases on a longreach with another backend.
inline const char* program() {
    const char* other = std::getenv("LONGREACH_TEST_PROGRAM");
    return other != nullptr ? other : LONGREACH_PROGRAM;
}

// A running longreach; its output goes to files in `directory`.
class Process {
  public:
    struct Options {
        bool close_stdout = false;  // the program starts without a standard output at all
        std::vector<std::pair<std::string, std::string>> variables =
            {};                                           // in addition to this process's environment
        std::string name = {};                            // of the files with its output
        std::vector<std::pair<int, rlim_t>> limits = {};  // of setrlimit
        std::string out = {}, err = {};                   // where output goes instead
        // The program starts with stop signals blocked, so that none ends this process's child before
        // it is the program.
        bool block_signals = false;
    };
    Process(const TempDir& directory, const std::vector<std::string>& arguments)
        : Process(directory, arguments, Options{}) {}
    Process(const TempDir& directory, const std::vector<std::string>& arguments, const Options& options)
        : out_(options.out.empty() ? directory / (options.name + "stdout.txt") : options.out),
          err_(options.err.empty() ? directory / (options.name + "stderr.txt") : options.err) {
        std::vector<const char*> argv{program()};
        for (const std::string& a : arguments) argv.push_back(a.c_str());
        argv.push_back(nullptr);
        sigset_t blocked, before;
        sigemptyset(&blocked);
        for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&blocked, number);
        if (options.block_signals) ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
        pid_ = ::fork();
        if (options.block_signals && pid_ != 0) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        check(pid_ >= 0, "cannot fork");
        if (pid_ > 0) return;
        redirect(out_, STDOUT_FILENO);
        redirect(err_, STDERR_FILENO);
        if (options.close_stdout) ::close(STDOUT_FILENO);
        for (const auto& [name, value] : options.variables) ::setenv(name.c_str(), value.c_str(), 1);
        for (const auto& [resource, most] : options.limits) {
            const rlimit limit{most, most};
            if (::setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) ::_exit(125);
        }
        ::execv(program(), const_cast<char* const*>(argv.data()));
        ::_exit(127);
    }
    ~Process() {
        if (!ended_) {
            signal(SIGKILL);
            wait();
        }
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    pid_t id() const { return pid_; }
    void signal(int number) { ::kill(pid_, number); }
    bool running() {
        if (!ended_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
        return !ended_;
    }
    // The exit code, or minus the signal that ended it.
    int wait() {
        if (!ended_) check(::waitpid(pid_, &status_, 0) == pid_, "cannot wait for {}", pid_);
        ended_ = true;
        return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
    }
    std::string out() const { return get(out_); }
    std::string err() const { return get(err_); }

  private:
    static void redirect(const std::string& path, int fd) {
        const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        if (file < 0 || ::dup2(file, fd) < 0) ::_exit(126);
        ::close(file);
    }
    std::string out_, err_;
    pid_t pid_ = -1;
    int status_ = 0;
    bool ended_ = false;
};

struct Finished {
    int code = 0;
    std::string out, err;
};
inline Finished run(const TempDir& directory, const std::vector<std::string>& arguments,
                    const Process::Options& options = {}) {
    Process process(directory, arguments, options);
    const int code = process.wait();
    return {code, options.out.empty() ? process.out() : "", options.err.empty() ? process.err() : ""};
}

inline void sleep_for(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// True once `done()` holds; false if that takes longer than any machine should need.
template <class Condition>
bool wait_until(Condition done) {
    for (int i = 0; i < 6000; ++i) {
        if (done()) return true;
        sleep_for(0.01);
    }
    return false;
}

}  // namespace longreach::test
