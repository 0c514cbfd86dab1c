// `data synth`: a corpus that rewards long context, by construction.
//
// Documents are byte text of three kinds of sentence:
//     filler    "bako tuli geno. "             words from a Markov chain: local structure any model learns
//     fact      "Karumi is 40917. "            a name new to the document and five random digits
//     question  "What is Karumi? 40917. "      the fact again, at a distance drawn uniformly over octaves
// The digits of a fact carry 5 log2(10) = 16.6 unpredictable bits; those of a question carry none for a
// reader whose context includes the fact, and 16.6 for any other. As distances are uniform over octaves,
// each doubling of a reader's context saves about the same number of bits, up to the longest distance.
// data/formats/tasks.md has the grammar.
//
// Everything is integer arithmetic on counter-based random numbers: the same seed gives the same
// bytes on any machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/shard_set.h"

namespace longreach::text {

struct SynthOptions {
    std::string output = {};  // directory for train_*.bin and val_*.bin
    bool replace = false;     // the shards of an earlier call
    uint64_t seed = 1;
    uint64_t train_bytes = 64'000'000, val_bytes = 4'000'000;  // of text; the last document may end beyond
    uint64_t min_document = 4096, max_document = 131072;       // bytes; lengths uniform over octaves
    uint64_t min_distance = 64, max_distance = 131072;         // bytes from a fact to its question
    uint64_t fact_every = 192;                                 // bytes between facts on average
    uint64_t max_shard_tokens = 100'000'000;
};

// A question: where its five digits are, and how far before them the fact's digits are.
struct Recall {
    uint64_t position = 0, distance = 0;  // bytes
};

struct SynthDocument {
    std::string text;
    std::vector<Recall> recalls;  // in order of position
};

// Document `index` of the corpus of a seed. Validation documents have the indices from validation_index on.
SynthDocument synth_document(const SynthOptions& options, uint32_t index);
inline constexpr uint32_t validation_index = uint32_t{1} << 30;

struct SynthResult {
    data::SplitResult train, val;
    uint64_t recalls = 0;
    std::vector<std::string> others = {};  // files in the directory that are not of this program
};

SynthResult synthesize(const SynthOptions& options);
std::string to_text(const SynthResult& result);

}  // namespace longreach::text
