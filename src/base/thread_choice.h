// How many threads get most done while other programs run: a rule without clocks, so that tests can drive it.
//
// It is told, window after window, how many cores the threads in use got: their CPU time over the time of the loops. A
// loop's work per second of CPU time hardly depends on the number of threads, so these cores are the speed.
//
//   - m threads can use at most m cores, so half as many are tried only where all together get fewer than that half.
//   - Twice as many are tried after a while, sooner where the cores change: the other programs came or went.
//   - A trial lasts one window and wins where it got a tenth more cores than the window before it. After a trial that
//     lost, the next one waits twice as long, up to 32 windows.
#pragma once

#include <string>

namespace longreach {

class ThreadChoice {
  public:
    explicit ThreadChoice(int most) : most_(most), settled_(most) {}

    // The number of threads for the next window, given the cores that the last one got.
    int next(double cores);
    // What a log should say about the last call of next(); empty where the number is what it was, or a trial's.
    const std::string& news() const { return news_; }

  private:
    static constexpr int first_patience = 2, longest_patience = 32;  // windows

    int most_, settled_;
    int trial_ = 0;           // threads of the trial that runs; 0: none
    double cores_ = 0;        // of the last window before a trial
    double cores_tried_ = 0;  // the same when the last trial began
    int wait_ = 0, patience_ = first_patience;
    std::string news_;
};

}  // namespace longreach
