// The file that marks an output directory of `data tokenize` as unfinished, and says where to continue.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "io/disk.h"

namespace longreach::data {

// Of one split: the shards that are complete, and the number of the first document that is in none of them.
struct SplitProgress {
    uint64_t shards = 0, next_document = 0;
};

struct Unfinished {
    uint64_t request = 0;  // identifies the texts and the options; 0: cannot be continued
    SplitProgress train = {}, val = {};
    bool publishing = false;  // a complete replacement is being moved into the directory

    static constexpr const char* name = "unfinished.json";
    static std::string path_in(const std::string& directory);
    // What the directory holds; nothing if its contents are complete.
    static std::optional<Unfinished> read(const std::string& directory);
    void write(const std::string& directory, io::Disk& disk) const;
};

}  // namespace longreach::data
