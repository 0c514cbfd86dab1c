// Per-length losses as files and as text.
#pragma once

#include <string>
#include <vector>

#include "eval/lengths.h"

namespace longreach {

// Columns of val.csv and positions.csv; data/README documents them.
inline constexpr const char* val_header =
    "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte";
inline constexpr const char* positions_header = "step,length,by,bucket,loss,scored";

// One line of val.csv per length. bytes_per_token: 0 if unknown, which leaves bits_per_byte empty.
std::vector<std::string> val_lines(const std::vector<LengthResult>& results, int64_t step, int64_t tokens,
                                   double bytes_per_token);
// One line per non-empty bucket: by is "sequence" or "document", bucket the smallest context in it.
std::vector<std::string> positions_lines(const std::vector<LengthResult>& results, int64_t step);

// For the terminal: length, loss +- standard error, bits per byte, tokens.
std::string results_table(const std::vector<LengthResult>& results, double bytes_per_token);
// Loss by bucket, one column per length.
std::string buckets_table(const std::vector<LengthResult>& results, bool by_document);

// Every scored token's loss: tensors "loss.<length>" f32 [E] in the order of the scored tokens.
void write_token_losses(const std::string& path, const std::vector<LengthResult>& results);

}  // namespace longreach
