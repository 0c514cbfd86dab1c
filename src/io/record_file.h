// An append-only text file of a run directory that is rewound on resume: metrics.jsonl, val.csv,
// positions.csv.
//
// Its length in bytes is part of every checkpoint; resuming truncates it to that length, so an interrupted
// run ends with the same bytes as an uninterrupted one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace longreach {

class RecordFile {
  public:
    RecordFile() = default;
    // Opens for appending after cutting the file to `bytes` (it must not be shorter); 0 and a missing file: a
    // new one that starts with `header`.
    RecordFile(const std::string& path, int64_t bytes, std::string_view header = {});
    ~RecordFile();
    RecordFile(RecordFile&& other) noexcept;
    RecordFile& operator=(RecordFile&& other) noexcept;

    void append(std::string_view line);  // adds the newline; handed to the system before returning
    void sync();                         // durable; before a checkpoint refers to its length
    int64_t bytes() const { return bytes_; }

  private:
    int fd_ = -1;
    int64_t bytes_ = 0;
    std::string path_;
};

}  // namespace longreach
