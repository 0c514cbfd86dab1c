// The "data" section of a config.
#pragma once

#include <map>
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

// One source of a mixture.
struct SourceConfig {
    std::vector<std::string> paths;
    double weight = 1;
    void fields(config::Fields& f);
};

// A validation set besides data.val.
struct ValSetConfig {
    std::vector<std::string> paths;
    void fields(config::Fields& f);
};

struct DataConfig {
    std::vector<std::string> train, val;
    std::map<std::string, ValSetConfig> val_sets;
    std::map<std::string, SourceConfig> mixture;  // in place of train
    DataFormat format = DataFormat::automatic;
    int64_t width = 0;
    bool document_mask = true;
    BoundaryConfig boundary;
    ShuffleKind shuffle = ShuffleKind::random;
    BlockKind blocks = BlockKind::stream;
    TaskConfig task;

    void fields(config::Fields& f);
    // The rules between fields. `vocab_size` is the model's.
    void check(config::Problems& problems, int64_t vocab_size) const;
    // The paths of each source of training tokens: of the mixture by name, or of `train` alone.
    std::vector<std::vector<std::string>> sources() const;
    // Their weights, none negative and not all zero, where `stage` (a stage's `mixture`: an object of name and
    // weight, or null) replaces the mixture's own. Names it does not have get 0.
    std::vector<double> weights(const json::Value& stage) const;
    // Reports what is wrong with a stage's `mixture` at `path`.
    void check_weights(config::Problems& problems, const std::string& path, const json::Value& stage) const;
    // The paths of a validation set: of `val` for the name "".
    const std::vector<std::string>& val_paths(const std::string& set) const;
    // The options with which TokenStream::open reads these data for a model of that vocabulary.
    StreamOptions stream_options(int64_t vocab_size) const;
};

}  // namespace longreach::data
