// What a call of `data tokenize` was asked for, so that a later call continues it only if it would write the same shards.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/text_source.h"

namespace longreach::text {

struct TextRequest {
    struct Text {
        uint64_t name = 0;     // hash of its name
        uint64_t content = 0;  // of its size, its modification time, its first and its last MiB
        friend bool operator==(const Text&, const Text&) = default;
    };
    uint64_t hash = 0;  // of everything; 0: a text cannot be read again
    std::vector<Text> texts = {};
    std::vector<std::string> paths = {};  // of the texts

    static TextRequest of(std::string_view options, const std::vector<SourceFile>& sources);

    static constexpr const char* name = "unfinished.inputs";
    void write(const std::string& directory, io::Disk& disk) const;
    // The first text that changed since the shards in `directory` were begun; empty if something else differs.
    std::string changed_since(const std::string& directory) const;
};

}  // namespace longreach::text
