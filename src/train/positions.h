// Positions of training sequences, drawn from a range longer than the context (Ruoss et al. 2023, Shimizu et al. 2026): angles
// of long contexts are trained on short ones. Every evaluation has the positions 0, 1, 2, ...
#pragma once

#include <cstdint>
#include <vector>

#include "config/fields.h"
#include "config/problems.h"
#include "model/model_config.h"

namespace longreach::train {

struct PositionsConfig {
    int64_t range = 0;  // 0: not drawn
    void fields(config::Fields& f);
    // Of the sequences of a step, all alike: `context` different ones below `range`, rising, every set equally likely.
    // A function of the arguments alone, so that neither micro-batches nor ranks nor an interruption change them.
    std::vector<int64_t> drawn(uint64_t seed, int64_t step, int64_t context) const;
};

// context: of the longest training sequence.
void check_positions(const PositionsConfig& positions, const model::ModelConfig& model, int64_t context,
                     config::Problems& problems);

}  // namespace longreach::train
