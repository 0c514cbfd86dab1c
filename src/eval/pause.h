// Stops an evaluation between batches and continues it later.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace longreach::eval {

struct Pause {
    // Whether this rank was asked to stop; called between batches. If
    // any rank was, all of them stop, unless the evaluation is complete.
    std::function<bool()> asked;
    // Set on all ranks if the evaluation was stopped: its result is then invalid.
    bool stopped = false;

    // LengthEvaluator only: if the evaluation is stopped, `sums` on rank 0 receives its findings,
    // from which the next evaluation continues. The result has the same bits as without interruption.
    bool resumable = false;
    std::string sums = {};
    // Rank 0: a hash of the weights and everything else a result depends on. Sums
    // of another context are ignored. Called only when sums are read or written.
    std::function<uint64_t()> context = {};
};

}  // namespace longreach::eval
