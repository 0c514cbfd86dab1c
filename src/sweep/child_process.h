// A child process whose output is appended to a file.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace longreach::sweep {

// How a process ended.
struct ProcessEnd {
    int code = 0;    // exit code, if no signal ended it
    int signal = 0;  // 0: none
    bool ok() const { return code == 0 && signal == 0; }
};

class ChildProcess {
  public:
    // Starts `program` (a path; /proc/self/exe is this program) with empty standard input, and appends its
    // standard output and errors to `log`. The child has its own process group, so that ^C in the terminal
    // reaches it only through its parent, and it receives TERM when this process dies for any reason.
    ChildProcess(const std::string& program, const std::vector<std::string>& arguments,
                 const std::string& log);
    ~ChildProcess();  // sends TERM to a running child and waits for it
    ChildProcess(const ChildProcess&) = delete;
    ChildProcess& operator=(const ChildProcess&) = delete;

    void terminate();                   // sends TERM
    std::optional<ProcessEnd> ended();  // empty while it runs; does not wait

  private:
    void collect(int options);
    pid_t pid_ = -1;
    std::optional<ProcessEnd> end_;
};

// "exit code 3", "killed by signal 9 (Killed)".
std::string to_string(const ProcessEnd& end);

// The last `count` lines of a text file that are not empty, with
// control characters escaped; none if the file cannot be read.
std::vector<std::string> last_lines(const std::string& path, size_t count);

}  // namespace longreach::sweep
