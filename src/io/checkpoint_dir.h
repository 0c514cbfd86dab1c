// Checkpoints that survive a crash at any moment.
//
//     checkpoints/
//       step_00000800/           complete: manifest.json lists every other file with its size and XXH64
//       step_00001200.tmp.<id>/  unfinished, or on its way out; removed when the next writer starts
//       step_00000400.bad/       failed its checks; kept for inspection
//       latest                   the name of the newest, for people and scripts; this program never reads it
//
// A checkpoint is written under a temporary name, every file synced; then manifest.json; then the directory
// is renamed to its final name and the rename made durable; then everything is read back and compared; only
// then may older checkpoints go. So at each instant the newest durable checkpoint is either the old one or
// the new one, whole.
//
// Only the process that holds the RunLock of the run directory may write or quarantine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/file.h"
#include "io/safetensors.h"

namespace longreach::io {

// Reports something to the user that is not a failure.
using Notice = std::function<void(const std::string& message)>;

struct ManifestEntry {
    std::string name;
    uint64_t bytes = 0;
    uint64_t hash = 0;  // XXH64
    bool operator==(const ManifestEntry&) const = default;
};

// A checkpoint whose files have all been compared with its manifest.
struct Checkpoint {
    int64_t step = 0;
    std::string path;                  // of the directory
    std::vector<ManifestEntry> files;  // without manifest.json
    uint64_t manifest_hash = 0;        // names the content: equal on two machines exactly if all files are

    std::string file(std::string_view name) const { return join_path(path, name); }
    bool has(std::string_view name) const;
};

// Which checkpoints stay after a commit: the new one, the newest others up to `keep` in all,
// and the pinned steps.
struct Retention {
    int64_t keep = 2;
    std::vector<int64_t> pinned = {};
};

class CheckpointWriter {
  public:
    // Creates `root` if needed and removes what crashed writers left in it.
    CheckpointWriter(std::string root, int64_t step, Disk& disk = Disk::system());
    ~CheckpointWriter();  // without a commit, nothing remains
    CheckpointWriter(const CheckpointWriter&) = delete;
    CheckpointWriter& operator=(const CheckpointWriter&) = delete;

    // Adds a file of exactly `bytes` bytes, written by `body` and durable on return. Names: letters, digits
    // and . _ -
    void add(const std::string& name, uint64_t bytes, const std::function<void(ByteSink& out)>& body);
    void add_text(const std::string& name, std::string_view text);
    void add_safetensors(const std::string& name, const SafetensorsWriter& writer,
                         const SafetensorsWriter::Data& data);

    // Publishes the checkpoint (replacing one of the same step), verifies it, then prunes. After an Error the
    // checkpoints that were there before are still there, and the new one is there whole or not at all.
    // A failure to replace `latest` or to prune is reported to `notice`, not thrown.
    Checkpoint commit(const Retention& retention, const Notice& notice);

  private:
    void publish(const std::string& final_path);
    std::string root_;
    int64_t step_;
    Disk* disk_;
    std::string temporary_;  // the directory being filled; empty once published
    std::vector<ManifestEntry> files_;
};

// Steps that have a directory under a final name, newest first. Nothing is verified.
std::vector<int64_t> checkpoint_steps(const std::string& root);

// What the owner of the files checks in a checkpoint whose files agree with the manifest. Whatever it throws,
// but an Error(ExitCode::disk) and lack of memory, means that the checkpoint is damaged.
using Examine = std::function<void(const Checkpoint& checkpoint)>;

// Compares every file of a step's checkpoint with its manifest. Error(ExitCode::checkpoint) says what is
// wrong; Error(ExitCode::disk) that the disk failed.
Checkpoint verify_checkpoint(const std::string& root, int64_t step, Disk& disk = Disk::system(),
                             const Examine& examine = {});

// What to do with a checkpoint that fails its checks: a reader of another process's run leaves it, the
// holder of the run's lock renames it to *.bad.
enum class Damaged { leave, quarantine };

// The newest checkpoint that passes, each one that does not being reported to `notice`. Empty if
// there is none at all; Error(ExitCode::checkpoint) if there are some but none is usable: a run must
// not silently start over.
std::optional<Checkpoint> newest_checkpoint(const std::string& root, Damaged damaged, const Notice& notice,
                                            Disk& disk = Disk::system(), const Examine& examine = {});

std::string checkpoint_name(int64_t step);  // "step_00000800"
// Whether it is the name of a checkpoint, of one being written or removed ("*.tmp.<id>") or of a damaged one ("*.bad").
bool is_checkpoint_name(std::string_view name);

}  // namespace longreach::io
