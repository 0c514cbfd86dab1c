// The sums of an evaluation stopped between two batches, as bytes.
//
// data/formats/records.md describes the format. Bytes that write() would not produce
// for the same context are refused, and the evaluation starts over.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/loss_sum.h"

namespace longreach::eval {

// Of one length.
struct PartialLength {
    LossSum loss, hits;
    std::vector<LossSum> by_sequence, by_document;
    std::vector<DocumentSums> documents;  // by index; write() omits those without a scored token
};

struct PartialSums {
    uint64_t context = 0;                // hash of everything the sums depend on
    uint64_t next = 0;                   // first sequence of the last length that is not in its sums
    std::vector<PartialLength> lengths;  // all but the last are complete

    std::string write() const;
    // documents: the number of documents of each length.
    // Empty if the bytes are damaged or of another context.
    static std::optional<PartialSums> read(const std::string& bytes, uint64_t context, size_t documents);
};

}  // namespace longreach::eval
