// What other programs took from this process while something was measured.
#pragma once

#include <cstdint>
#include <string>

namespace longreach {

struct Contention {
    bool known = false;  // the system has the files to tell
    double waited = 0;   // share of their time, running or ready to run, that threads waited for a core
    double others = 0;   // share of all cores that other processes used
    double stolen = 0;   // share of all cores that the hypervisor gave to other machines
};

// "threads waited for a core 3% of their time, other programs used 20% of the cores, 0% stolen".
std::string describe(const Contention& seen);

// Counts from its construction on. `root` is put before the paths of /proc.
class ContentionMeter {
  public:
    explicit ContentionMeter(std::string root = "");
    Contention seen() const;

  private:
    struct Counts {
        bool known = false;
        double running = 0, waiting = 0;       // of the threads that exist, in seconds
        double own = 0;                        // of this process, in seconds
        double busy = 0, stolen = 0, all = 0;  // of all cores, in seconds
    };
    Counts count() const;

    std::string root_;
    Counts before_;
};

}  // namespace longreach
