// Losses by length, as files and as text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "eval/lengths.h"

namespace longreach::eval {

// Columns of val.csv and positions.csv; data/README documents them.
inline constexpr const char* val_header =
    "step,tokens,length,loss,standard_error,scored,documents,bits_per_byte,top1,fingerprint";
inline constexpr const char* positions_header = "step,length,by,bucket,loss,scored,fingerprint";

// Number of columns in the header of a record file, which earlier versions may have written: those of the
// newest header without some of the last. 0: another header, or fewer columns than `fewest`.
size_t known_columns(std::string_view header, std::string_view newest, size_t fewest);
inline constexpr size_t first_val_columns = 8, first_positions_columns = 6;  // of the first version
// The first `columns` cells of a line.
std::string first_cells(const std::string& line, size_t columns);

// One line of val.csv per length. bytes_per_token: 0 if unknown. A cell of an unknown value is empty.
std::vector<std::string> val_lines(const std::vector<LengthResult>& results, int64_t step, int64_t tokens,
                                   double bytes_per_token);
// One line per non-empty bucket: by is "sequence" or "document", bucket the smallest context in it.
std::vector<std::string> positions_lines(const std::vector<LengthResult>& results, int64_t step);

// For the terminal: "scored: 16 windows of 4,096 tokens spread over 1,048,576; 23 documents; ...".
std::string scored_line(const ScoredTokens& tokens);
// For the terminal: length, loss, standard error, bits per byte, share of hits, tokens,
// documents; "-" where unknown.
std::string results_table(const std::vector<LengthResult>& results, double bytes_per_token);
// Loss by bucket, one column per length.
std::string buckets_table(const std::vector<LengthResult>& results, bool by_document);

// Every scored token's loss: tensors "loss.<length>" f32 [E] in the order of the scored tokens.
void write_token_losses(const std::string& path, const std::vector<LengthResult>& results);

}  // namespace longreach::eval
