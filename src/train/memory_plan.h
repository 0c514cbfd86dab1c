// The memory of a run: plans it, checks it against free memory, allocates it, and compares it with the use.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/arena.h"
#include "train/session.h"

namespace longreach::train {

class MemoryPlan {
  public:
    // What is to fit: training with these stages and evaluations at lengths up to `longest`.
    struct Work {
        std::vector<Stage> stages;
        int64_t longest;
        bool recompute;  // system.recompute
    };
    using Reserve = std::function<void(model::Arena&, const Work&)>;

    MemoryPlan(const Session& session, Reserve reserve);

    std::string table() const { return arena_.table(); }
    // Error(ExitCode::device) if the plan does not fit; the message says what would.
    void check() const;
    void allocate();
    // Call after the first step: prints planned and used memory. Later calls do nothing.
    void compare();

  private:
    int64_t needed(const model::Arena& arena) const;
    std::string what_fits(int64_t free) const;
    int64_t needed(const Work& work) const;
    bool recomputes() const { return session_.experiment.system.recompute; }
    int64_t held() const;

    const Session& session_;
    const Reserve reserve_;
    model::Arena arena_;
    int64_t held_before_ = 0;  // bytes
    bool compared_ = false;
};

}  // namespace longreach::train
