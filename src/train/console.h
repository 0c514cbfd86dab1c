// The output that a person sees during a run, and its copy in log.txt.
//
// A terminal shows a status line with a progress bar, redrawn below the scrolled lines, and lines broken at its width; a pipe
// or a file receives plain lines only. log.txt receives every permanent line, prefixed with date and time.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "base/messages.h"
#include "io/file.h"

namespace longreach::train {

class Console {
  public:
    // quiet: only log.txt.
    explicit Console(bool quiet = false);
    ~Console();
    Console(const Console&) = delete;
    Console& operator=(const Console&) = delete;

    // Appends to the file. Lines that cannot be written later are dropped with one warning on the console:
    // a full disk must not end a run because of its log.
    void open_log(const std::string& path, io::Disk& disk = io::Disk::system());
    // The lines of this console, so far and from now on, only accompany work that leaves its results in files: what
    // standard output does not take is dropped. A console with a log does this by itself.
    void accompany();
    // Why standard output did not take a line that a command was asked for; "": it took all.
    static const std::string& lost();
    void line(const std::string& text);  // permanent; may hold several lines
    void warn(const std::string& text);  // a line "warning: ..."
    // The line that says why a run ends with ExitCode::numerics.
    void end_line(const std::string& text);
    const std::string& end_line() const { return end_line_; }
    void status(const std::string& text);  // redrawn on a terminal, dropped elsewhere
    void clear_status();

  private:
    void write(MessageLevel level, const std::string& text);

    bool quiet_, terminal_;
    bool status_shown_ = false;
    bool accompanies_ = false;
    std::string end_line_;
    struct Log;  // the logger of spdlog
    std::unique_ptr<Log> log_;
};

// The fields of the progress line.
struct Progress {
    int64_t step = 0, total_steps = 0;  // steps done
    int64_t context = 0;
    double loss = 0, gradient_norm = 0, lr = 0;
    std::optional<double> index_loss = {};  // with an index of keys
    double tokens_per_second = 0;
    double peak_fraction = 0;  // of the matrix-product rate measured on this machine; 0: unknown
    double mfu = 0;            // of the device's datasheet rate; 0: unknown
    int64_t memory_bytes = 0;  // resident
    double seconds_left = 0;
    int64_t skipped = 0;
    std::string stage;  // "stage 2/3", empty with one stage
};
std::string progress_line(const Progress& p);
std::string progress_bar(const Progress& p);

// Resident memory of this process now, and its peak; 0 if the system does not report it.
int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace longreach::train
