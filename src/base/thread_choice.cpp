#include "base/thread_choice.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace longreach {

int ThreadChoice::next(double cores) {
    news_.clear();
    if (trial_ > 0) {
        const bool better = cores > 1.1 * cores_;
        if (better) {
            news_ = fmt::format("threads: {} of {}, which got {:.2f} cores where {} got {:.2f}", trial_,
                                most_, cores, settled_, cores_);
            settled_ = trial_;
        }
        patience_ = better ? first_patience : std::min(2 * patience_, longest_patience);
        wait_ = patience_;
        trial_ = 0;
        return settled_;
    }
    cores_ = cores;
    if (std::abs(cores - cores_tried_) > 0.2 * settled_) wait_ = std::min(wait_, 1);
    if (wait_ > 0) {
        --wait_;
        return settled_;
    }
    const int half = settled_ / 2;
    if (half > 0 && cores < half)
        trial_ = half;
    else if (settled_ < most_)
        trial_ = std::min(2 * settled_, most_);
    if (trial_ == 0) return settled_;
    cores_tried_ = cores;
    return trial_;
}

}  // namespace longreach
