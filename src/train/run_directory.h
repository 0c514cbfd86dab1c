// runs/<name>: its lock, its files, and how checkpoints map to the weights and the optimiser of a run.
//
//     config.json  build.json  log.txt  metrics.jsonl  timing.jsonl  val.csv  positions.csv
//     probe.csv  tasks.csv  validated.json  validation.partial
//     sets/<name>/val.csv  sets/<name>/positions.csv
//     events/events.out.tfevents.*
//     checkpoints/step_00000800/  model.safetensors  optimizer.safetensors  state.json  config.json
//     metrics.jsonl  val.csv  positions.csv  probe.csv  tasks.csv  sets.<name>.val.csv  manifest.json ...
//
// Everything that this program writes there is a regular file or a directory: links and FIFOs are refused.
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

// The contents of a checkpoint. With several ranks, rank 0 writes and reads it.
struct CheckpointParts {
    Ops& ops;
    const model::ParamTable& table;
    model::FlatParams weights;
    StateExchange& state;
};

// A sweep writes a config for each run, and for "a.json" the file "a.origins.json", which says where it took each value.
std::string origins_beside(const std::string& config_path);

// Where each value came from, as origins.json has it: "default", "derived" from other values, "a.json:3:14", "command line".
// A value of a config that has such a file with it has the origin that it gives.
std::string origins_text(const std::vector<config::FieldOrigin>& origins);

class RunDirectory {
  public:
    // Creates the directory if needed and locks it.
    explicit RunDirectory(const std::string& path, io::Disk& disk = io::Disk::system());

    // Deletes the files of an earlier run (run_files.h) but the lock. Returns the paths of other files, which stay.
    std::vector<std::string> start_over();

    const std::string& path() const { return path_; }
    io::Disk& disk() const { return *disk_; }
    std::string file(const std::string& name) const;

    // Writes config.json, origins.json and build.json, which names the data. If a config is already there, a run must be allowed
    // to resume across every difference; otherwise Error(ExitCode::usage) lists the differences.
    void adopt_config(const config::FieldInfo& config, const std::vector<config::FieldOrigin>& origins,
                      const DataIdentity& data = {});

    // Opens a record file, a path in this directory; see the constructor of RecordFile. Checkpoints contain a copy of every file that
    // state.file_bytes names, so that it can be restored from a checkpoint alone.
    io::RecordFile open_record(const std::string& name, int64_t bytes, std::string_view header = {});

    // Call before writing. Error(ExitCode::disk) if the directory was moved or removed while the run used
    // it, if another process may have entered it, or if a record file was truncated.
    void check_in_place() const;
    // Call after a checkpoint, and before a validation. Fails also if only the name of a record file or of
    // the lock was removed or given to another file. The checkpoint then holds the records.
    void check_names() const;

    // Error(ExitCode::numerics) if a weight or a moment is not finite; then nothing is saved or removed.
    void save(const CheckpointParts& parts, const TrainState& state, int64_t keep, Console& console);
    // For finished runs: saves without the optimiser, and removes all other checkpoints but that of step 0.
    void save_weights_only(const CheckpointParts& parts, const TrainState& state, Console& console);
    // Loads weights and counters of the newest valid checkpoint; empty if the run has none. Restores lost
    // record files from it. moments: the tensors that its optimiser file must hold. If the checkpoint has no
    // optimiser and the run has more steps to do: Error(ExitCode::checkpoint).
    struct Loaded {
        TrainState state;
        std::string optimizer;  // file with the moments; empty: the checkpoint has none
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
    struct Record {
        std::string name;  // its path in this directory
        io::RecordFile file;
    };
    std::vector<Record> records_;  // open
    std::string config_text_;
};

// Sends the moments in an optimiser file to the ranks that keep them.
void load_optimizer(const std::string& path, StateExchange& state);

// Whether `name` is valid as <run>/eval/<name>, the directory of an evaluation's results.
bool is_label(std::string_view name);

// The newest valid checkpoint of a run directory, or the checkpoint itself if `path` names one.
io::Checkpoint find_checkpoint(const std::string& path, const io::Notice& notice);

// Fingerprint of the tokenizer of the data that a checkpoint was trained on; 0: unknown.
uint64_t tokenizer_of(const io::Checkpoint& checkpoint);

struct LoadOptions {
    bool partial = false;     // missing tensors keep their values; reports missing and unused tensors
    bool non_finite = false;  // reports values that are not finite; false: they are an Error(numerics)
};
// What load_weights with `partial` would throw.
void check_weights(const io::Checkpoint& checkpoint, const model::ParamTable& table);

// Loads weights by name. Unless `partial`, table and file must have the same tensors; shapes must be equal.
void load_weights(const io::Checkpoint& checkpoint, Ops& ops, const model::ParamTable& table,
                  const model::FlatParams& weights, const LoadOptions& options, const io::Notice& notice);

}  // namespace longreach::train
