// What a person sees while a run goes on, and its copy in log.txt.
//
// Two forms: on a terminal a status line with a bar that redraws under the scrolled lines; into a pipe or a
// file plain lines only. log.txt gets every permanent line with the time of day in front.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "io/file.h"

namespace longreach::train {

class Console {
  public:
    // quiet: only log.txt.
    explicit Console(bool quiet = false);
    ~Console();
    Console(const Console&) = delete;
    Console& operator=(const Console&) = delete;

    // Appends. What cannot be written later is dropped, and the console says so once: a full disk under the
    // log must not end a run.
    void open_log(const std::string& path, io::Disk& disk = io::Disk::system());
    void line(const std::string& text);    // permanent; may hold several lines
    void status(const std::string& text);  // redrawn on a terminal, dropped elsewhere
    void clear_status();

  private:
    bool quiet_, terminal_;
    bool status_shown_ = false;
    struct Log;  // the logger of spdlog
    std::unique_ptr<Log> log_;
};

// The fields of the progress line.
struct Progress {
    int64_t step = 0, total_steps = 0;  // steps done
    int64_t context = 0;
    double loss = 0, gradient_norm = 0, lr = 0;
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

// Resident memory of this process now, and its peak; 0 where the system does not tell.
int64_t resident_bytes();
int64_t peak_resident_bytes();

}  // namespace longreach::train
