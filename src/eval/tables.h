// Per-length losses as files and as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "eval/lengths.h"

namespace longreach {

// Columns of val.csv and positions.csv; data/README documents them.
inline constexpr const char* val_header =
    "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte,top1";
inline constexpr const char* positions_header = "step,length,by,bucket,loss,scored";

// What the header of a val.csv says of its lines: how many of val_header's columns they have, counted from
// the first. Files of earlier versions lack some of the last. 0: it is no header of a val.csv.
size_t val_columns(std::string_view header);
// The first `columns` cells of a line.
std::string first_cells(const std::string& line, size_t columns);

// One line of val.csv per length. bytes_per_token: 0 if unknown, which leaves bits_per_byte empty.
std::vector<std::string> val_lines(const std::vector<LengthResult>& results, int64_t step, int64_t tokens,
                                   double bytes_per_token);
// One line per non-empty bucket: by is "sequence" or "document", bucket the smallest context in it.
std::vector<std::string> positions_lines(const std::vector<LengthResult>& results, int64_t step);

// For the terminal: length, loss +- standard error, bits per byte, share of hits, tokens.
std::string results_table(const std::vector<LengthResult>& results, double bytes_per_token);
// Loss by bucket, one column per length.
std::string buckets_table(const std::vector<LengthResult>& results, bool by_document);

// Every scored token's loss: tensors "loss.<length>" f32 [E] in the order of the scored tokens.
void write_token_losses(const std::string& path, const std::vector<LengthResult>& results);

}  // namespace longreach
