// Calls, seconds, FLOPs and bytes per operation. Every call is waited for, so a timed step is for finding where
// time goes, not for quoting tokens per second; on a GPU each call's time includes the few microseconds in
// which its first kernel reaches the idle device.
#pragma once

#include <map>

#include "kernels/ops.h"

namespace longreach {

class OpTimes final : public Decorator {
  public:
    explicit OpTimes(Ops& ops) : ops_(ops) {}

    struct Total {
        int64_t calls = 0;
        double seconds = 0, flops = 0, bytes = 0;
    };
    // By operation and, where its cost names one, shape: "linear 128->384".
    const std::map<std::string, Total>& totals() const { return totals_; }

    void around(Call& call) override {
        const Cost cost = call.cost();
        const double seconds = ops_.seconds_of([&] { call.run(); });
        Total& total = totals_[call.name() + cost.shape];
        total.seconds += seconds;
        total.flops += cost.flops;
        total.bytes += cost.bytes;
        ++total.calls;
    }

  private:
    Ops& ops_;
    std::map<std::string, Total> totals_;
};

}  // namespace longreach
