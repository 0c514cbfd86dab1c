// `data tokenize`: text to shards, of bytes or of the tokens of a tokenizer file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/shard_set.h"
#include "text/split.h"
#include "text/text_source.h"
#include "data/tokenizer_file.h"

namespace longreach::text {

struct TokenizeOptions {
    SourceOptions source = {};
    std::string output = {};  // directory for train_*.bin and val_*.bin
    bool replace = false;     // the shards of an earlier call, once the new ones are complete
    data::TokenizerOptions tokenizer = {};

    Split split = {};
    uint64_t max_shard_tokens = 100'000'000;
    // Of text in all; documents from the first that would exceed it on are left out, but the text of standard input
    // is cut there. 0: no limit.
    uint64_t max_bytes = 0;

    int threads = 0;  // that encode with a tokenizer file, 0: 1; the shards do not depend on it
    // Told now and then how far the inputs have been read: bytes of the files, and of all of them (0: unknown).
    std::function<void(uint64_t done, uint64_t of)> progress = {};
    io::Disk* disk = &io::Disk::system();
};

struct TokenizeResult {
    data::SplitResult train, val;
    uint64_t files = 0, binary_files = 0;  // read; skipped
    bool limited = false;                  // max_bytes excluded something
    uint64_t resumed_shards = 0;           // completed by an earlier call that was interrupted
    uint64_t longest_part = 0;             // bytes that were encoded at once
    Excluded excluded = {};
    std::string tokenizer = {};               // what it is, in words; empty: the byte-level one
    std::vector<std::string> unmatched = {};  // patterns of `exclude` that match no file
    std::vector<std::string> others = {};     // left where shards were replaced: files not of this program
};

// Deterministic: the same text under the same names gives the same bytes. Memory does not grow with the text, but
// a JSONL line is held whole, and with a tokenizer file some megabytes for each thread and what may not be cut
// (text_cutter.h). A call that was killed or failed leaves its complete shards, if there are any, and unfinished.json;
// the same call then continues after them, and ends with the same shards.
TokenizeResult tokenize(const TokenizeOptions& options);

std::string to_text(const TokenizeResult& result);  // a few lines for the console

}  // namespace longreach::text
