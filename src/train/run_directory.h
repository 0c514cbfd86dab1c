// runs/<name>: who holds it, what is in it, and how checkpoints map to the weights and optimiser of a run.
//
//     config.json  build.json  log.txt  metrics.jsonl  timing.jsonl  val.csv  positions.csv
//     probe.csv  tasks.csv  validated.json  validation.partial
//     events/events.out.tfevents.*
//     checkpoints/step_00000800/  model.safetensors  optimizer.safetensors  state.json  config.json
//     metrics.jsonl  val.csv  positions.csv  probe.csv  tasks.csv  manifest.json
//
// Whatever this program writes there is a regular file or a directory: links and FIFOs are refused.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/loader.h"
#include "io/checkpoint_dir.h"
#include "io/record_file.h"
#include "io/run_lock.h"
#include "model/param_table.h"
#include "optim/optimizer.h"
#include "train/console.h"
#include "train/state_exchange.h"
#include "train/train_state.h"

namespace longreach::train {

// What a checkpoint is made of. Of several ranks rank 0 writes and reads it.
struct CheckpointParts {
    Ops& ops;
    const model::ParamTable& table;
    model::FlatParams weights;
    StateExchange& state;
};

class RunDirectory {
  public:
    // Creates the directory if needed and locks it. fresh: deletes what an earlier run left there.
    RunDirectory(const std::string& path, bool fresh, io::Disk& disk = io::Disk::system());

    const std::string& path() const { return path_; }
    io::Disk& disk() const { return *disk_; }
    std::string file(const std::string& name) const;

    // Writes config.json, origins and build.json. If a config is already there, every difference must be one
    // across which a run may resume; Error(ExitCode::usage) lists those that are not.
    void adopt_config(const config::FieldInfo& config, const std::vector<config::FieldOrigin>& origins);

    // One of the record files, of which RecordFile's constructor says more. Every one that state.file_bytes
    // names is also a file of the checkpoints, so that a checkpoint alone brings it back.
    io::RecordFile open_record(const std::string& name, int64_t bytes, std::string_view header = {});

    // Before anything is written: Error(ExitCode::disk) if the directory was moved or removed while the run
    // used it, another process may have come in, or a record file lost what was in it.
    void check_in_place() const;
    // After a checkpoint, and before a validation: the same also if only the name of a record file or of the
    // lock was removed or given to another file. What was recorded is then in the checkpoint.
    void check_names() const;

    // Error(ExitCode::numerics) if a weight or a moment is not finite: nothing is saved or removed then.
    void save(const CheckpointParts& parts, const TrainState& state, int64_t keep, Console& console);
    // Without the optimiser, in place of all checkpoints but that of step 0: what a finished run may leave.
    void save_weights_only(const CheckpointParts& parts, const TrainState& state, Console& console);
    // Weights and counters of the newest valid checkpoint; empty if the run has none. Record files that were
    // lost are restored from it. moments: what its optimiser's file must hold. Without the optimiser it
    // serves only a run with no more than its steps: Error(ExitCode::checkpoint) otherwise.
    struct Loaded {
        TrainState state;
        std::string optimizer;  // the file with its moments; empty: the checkpoint has none
    };
    std::optional<Loaded> load_newest(Ops& ops, const model::ParamTable& table,
                                      const model::FlatParams& weights, int64_t total_steps,
                                      const std::vector<io::StoredTensor>& moments, Console& console);

  private:
    void save(const CheckpointParts& parts, const TrainState& state, const io::Retention& retention,
              bool optimizer, Console& console);

    void check_kinds() const;
    void restore_records(const io::Checkpoint& checkpoint, const TrainState& state, Console& console) const;

    std::string path_;
    io::Disk* disk_;
    std::optional<io::RunLock> lock_;
    std::vector<io::RecordFile> records_;  // open
    std::string config_text_;
};

// The moments in such a file, to the ranks that keep them.
void load_optimizer(const std::string& path, StateExchange& state);

// Whether <run>/eval/<name> may hold the results of an evaluation.
bool is_label(std::string_view name);

// The newest valid checkpoint of a run directory, or the checkpoint itself if `path` names one.
io::Checkpoint find_checkpoint(const std::string& path, const io::Notice& notice);

struct LoadOptions {
    bool partial = false;  // tensors that are missing keep their values; both kinds of leftovers are reported
    bool non_finite = false;  // values that are not finite are reported, and otherwise an Error(numerics)
};
// Weights by name. Every tensor of the table must be in the file with its shape.
void load_weights(const io::Checkpoint& checkpoint, Ops& ops, const model::ParamTable& table,
                  const model::FlatParams& weights, const LoadOptions& options, const io::Notice& notice);

}  // namespace longreach::train
