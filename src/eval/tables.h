// Losses by length, as files and as text.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "eval/lengths.h"
#include "io/record_columns.h"

namespace longreach::eval {

// A line of val.csv; data/formats/records.md documents the columns of all record files.
struct LossRow {
    int64_t step = 0, tokens = 0, length = 0;
    double loss = NAN;
    double standard_error = NAN;           // of the loss, over documents
    double scored = NAN, documents = NAN;  // whole numbers
    std::optional<double> bits_per_byte = {};
    double top1 = NAN;
    double top1_error = NAN;       // of top1, over documents; files of earlier versions have none
    std::string fingerprint = {};  // of the scored tokens; files of earlier versions have none
};
inline constexpr io::RecordColumns val_file(
    "val.csv", 8, io::required("step", &LossRow::step), io::required("tokens", &LossRow::tokens),
    io::required("length", &LossRow::length), io::required("loss", &LossRow::loss),
    io::blank("standard_error", &LossRow::standard_error), io::plain("scored", &LossRow::scored),
    io::blank("documents", &LossRow::documents), io::plain("bits_per_byte", &LossRow::bits_per_byte),
    io::plain("top1", &LossRow::top1), io::blank("top1_error", &LossRow::top1_error),
    io::plain("fingerprint", &LossRow::fingerprint));

// A line of positions.csv.
struct BucketRow {
    int64_t step = 0, length = 0;
    std::string by = {};  // "sequence" or "document"
    int64_t bucket = 0;   // the smallest context in it
    double loss = NAN, scored = 0;
    std::string fingerprint = {};
};
inline constexpr io::RecordColumns positions_file("positions.csv", 6, io::required("step", &BucketRow::step),
                                                  io::required("length", &BucketRow::length),
                                                  io::required("by", &BucketRow::by),
                                                  io::required("bucket", &BucketRow::bucket),
                                                  io::required("loss", &BucketRow::loss),
                                                  io::required("scored", &BucketRow::scored),
                                                  io::plain("fingerprint", &BucketRow::fingerprint));

// One line of val.csv per length. bytes_per_token: 0 if unknown.
std::vector<std::string> val_lines(const std::vector<LengthResult>& results, int64_t step, int64_t tokens,
                                   double bytes_per_token);
// One line of positions.csv per non-empty bucket.
std::vector<std::string> positions_lines(const std::vector<LengthResult>& results, int64_t step);

// For the terminal: "scored: 16 windows of 4,096 tokens spread over 1,048,576; 23 documents; ...".
std::string scored_line(const ScoredTokens& tokens);
// For the terminal: length, loss, standard error, bits per byte, share of hits, its standard error,
// tokens, documents; "-" where unknown.
std::string results_table(const std::vector<LengthResult>& results, double bytes_per_token);
// Loss by bucket, one column per length.
std::string buckets_table(const std::vector<LengthResult>& results, bool by_document);

// Every scored token's loss: tensors "loss.<length>" f32 [E] in the order of the scored tokens, whose fingerprint is in the
// metadata of the file.
void write_token_losses(const std::string& path, const std::vector<LengthResult>& results,
                        const std::string& run);
// Whether a file is one of those.
bool is_token_losses(const std::string& path);

}  // namespace longreach::eval
