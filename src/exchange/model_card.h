// README.md of an exported model.
#pragma once

#include <string>

#include "io/checkpoint_dir.h"
#include "train/experiment.h"

namespace longreach::exchange {

struct CardFacts {
    std::string architecture;
    int64_t parameters = 0;
    bool own_code = false;  // needs trust_remote_code
    bool tokenizer = false;
};

// With the losses by length that the run's records hold.
std::string model_card(const train::Experiment& experiment, const io::Checkpoint& checkpoint,
                       const CardFacts& facts);

}  // namespace longreach::exchange
