// Which data a run has read: fingerprints of the content, whatever the files are called.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/token_stream.h"
#include "train/validation_set.h"

namespace longreach::train {

struct DataIdentity {
    uint64_t training = 0;   // 0: unknown
    uint64_t tokenizer = 0;  // of the training data; 0: unknown
    std::map<std::string, uint64_t>
        validation;  // data.val has the name ""; names that are missing are unknown

    static DataIdentity of(const data::TokenStream& training, const std::vector<ValidationSet>& validation);
};

// "the training data", "data.val and data.val_sets.books": what both know and is not the same; empty: nothing.
std::string changed_data(const DataIdentity& then, const DataIdentity& now);

}  // namespace longreach::train
