// `data train-tokenizer`: learns a byte-level BPE vocabulary from text.
#pragma once

#include <cstdint>
#include <string>

#include "text/split.h"
#include "text/text_source.h"
#include "tokenizer/learn.h"

namespace longreach::text {

struct TrainTokenizerOptions {
    SourceOptions source = {};
    tokenizer::LearnOptions learn = {};
    std::string output = {};  // tokenizer.json to write
    bool replace = false;     // an existing file
    uint64_t max_bytes = 0;   // of text in all, as in TokenizeOptions; 0: no limit
    Split split = {};         // documents for validation are not read
    int threads = 0;          // that count words, 0: 1; the tokenizer does not depend on them
};

struct TrainTokenizerResult {
    int64_t tokens = 0, wanted = 0;
    uint64_t files = 0, binary_files = 0, documents = 0, bytes = 0, words = 0;
    uint64_t left_for_validation = 0;  // documents
    uint64_t fingerprint = 0;          // of the tokenizer
};

TrainTokenizerResult train_tokenizer(const TrainTokenizerOptions& options);

std::string to_text(const TrainTokenizerResult& result);  // a few lines for the console

}  // namespace longreach::text
