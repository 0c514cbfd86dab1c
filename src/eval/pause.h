// Stops an evaluation between batches and continues it later.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace longreach::eval {

struct Pause {
    // Whether this rank was asked to stop; called between batches. If any rank was, all of them stop, unless
    // the evaluation is complete by then.
    std::function<bool()> asked;
    // Set on all ranks after the evaluation: it was stopped, and its result is not valid.
    bool stopped = false;

    // LengthEvaluator only. true: on rank 0 `sums` holds what was found until the evaluation was stopped, and
    // handed to the next one it is not computed again. The result has the bits of an undisturbed evaluation.
    bool resumable = false;
    std::string sums = {};
    // Rank 0: names the weights and whatever else a result depends on. Sums of another context are ignored.
    // Called only where sums are read or made.
    std::function<uint64_t()> context = {};
};

}  // namespace longreach::eval
