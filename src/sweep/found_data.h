// The data of the runs of a sweep: what they find under its paths now, and what they read when they were trained.
#pragma once

#include <map>
#include <string>

#include "train/data_identity.h"
#include "train/experiment.h"

namespace longreach::sweep {

struct FoundData {
    std::string problem;  // of opening it as the trainer will; empty: none
    train::DataIdentity identity;
};

// Opens data once for all runs that read the same.
class DataOfRuns {
  public:
    const FoundData& of(const train::Experiment& experiment);

  private:
    std::map<std::string, FoundData> found_;  // by data and evaluation settings
};

// What the checkpoint of this step says of the data of a run; unknown if it cannot be read.
train::DataIdentity data_of_run(const std::string& directory, int64_t step);

}  // namespace longreach::sweep
