// The progress of a run: everything that a resume needs besides weights and optimiser moments.
// Checkpoints are made only between steps, so the state contains no partial gradient, and every random choice
// is a function of these counters.
#pragma once

#include <map>
#include <string>

#include "base/json.h"
#include "train/data_identity.h"
#include "train/spike.h"

namespace longreach::train {

struct TrainState {
    int64_t step = 0;     // steps done
    int64_t tokens = 0;   // tokens consumed
    int64_t updates = 0;  // optimiser updates applied (Adam's bias correction)
    int64_t skipped = 0;  // steps skipped because something was not finite
    int64_t bad_in_a_row = 0;
    int64_t spikes = 0, spikes_skipped = 0;  // steps that were spikes; those of them not applied
    SpikeWindow spike_window;
    // Whether the checkpoint was saved before the evaluations that are due after this step; validated.json
    // says which are done. Older versions saved after them.
    bool pending = false;
    DataIdentity data;
    // Lengths of the record files at this step, before pending evaluations append to them.
    std::map<std::string, int64_t> file_bytes;
    // Whether the records of the run identify the scored tokens. false: an earlier version started the run.
    bool fingerprints = true;

    json::Value to_json() const;
    static TrainState from_json(const json::Value& value);
};

}  // namespace longreach::train
