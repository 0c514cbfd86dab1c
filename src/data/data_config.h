// The "data" section of a config.
#pragma once

#include <string>
#include <vector>

#include "config/fields.h"
#include "config/problems.h"
#include "data/batch_plan.h"
#include "data/task_config.h"
#include "data/token_stream.h"

namespace longreach::data {

enum class DataFormat { automatic, raw };

struct BoundaryConfig {
    int64_t token = -1;
    BoundarySide side = BoundarySide::before;
    void fields(config::Fields& f);
};

struct DataConfig {
    std::vector<std::string> train, val;
    DataFormat format = DataFormat::automatic;
    int64_t width = 0;
    bool document_mask = true;
    BoundaryConfig boundary;
    ShuffleKind shuffle = ShuffleKind::random;
    TaskConfig task;

    void fields(config::Fields& f);
    // The rules between fields. `vocab_size` is the model's.
    void check(config::Problems& problems, int64_t vocab_size) const;
    // The options with which TokenStream::open reads these data for a model of that vocabulary.
    StreamOptions stream_options(int64_t vocab_size) const;
};

}  // namespace longreach::data
