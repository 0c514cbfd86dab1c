// An append-only text file of a run directory that is rewound on
// resume: metrics.jsonl, val.csv, positions.csv.
//
// Its length in bytes is part of every checkpoint; resuming truncates it to that length, so an interrupted
// run ends with the same bytes as an uninterrupted one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "io/file.h"

namespace longreach::io {

// Copies refer to the same open file.
class RecordFile {
  public:
    RecordFile() = default;
    // Opens for appending after cutting the file to `bytes` (it must not be shorter); 0 and a missing file: a
    // new one that starts with `header`. Error(ExitCode::disk) for a link and anything but a regular file.
    RecordFile(const std::string& path, int64_t bytes, std::string_view header = {},
               Disk& disk = Disk::system());

    void append(std::string_view line);  // adds the newline; handed to the system before returning
    void sync();                         // durable; before a checkpoint refers to its length
    int64_t bytes() const { return open_ ? open_->bytes : 0; }
    const std::string& path() const { return open_->file.path(); }

    // The first `bytes` bytes, read from the open file, even if it was removed or renamed.
    void copy_to(ByteSink& out, int64_t bytes) const;
    // Whether the path still names this file.
    bool in_place() const { return open_->file.is_at_path(Links::refuse); }
    // Whether the file still contains everything that was appended.
    bool whole() const { return open_->file.size() >= static_cast<uint64_t>(open_->bytes); }
    std::string whereabouts() const { return open_->file.whereabouts(); }

  private:
    struct Open {
        File file;
        int64_t bytes = 0;
    };
    std::shared_ptr<Open> open_;
};

}  // namespace longreach::io
