// Which tokens a long context helps to predict, and the loss on them alone.
//
// Most tokens follow from the last few hundred, so the mean loss over all of them says little of what a model makes of a
// long context. A scored token is a key token if its loss falls from the shortest length to the longest by enough, to
// little enough: by the losses of the model itself, or by those of another, the judge. Whoever chooses the tokens by its
// own losses also chooses where it was lucky; models are compared on the tokens of one judge.
#pragma once

#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "eval/lengths.h"
#include "io/record_columns.h"

namespace longreach::measure {

struct KeyTokenRule {
    double gain = 2;  // nats that the loss falls by, at least
    double loss = 2;  // nats at the longest length, at most
};

// The losses of every scored token at two lengths, in the order of the scored tokens.
struct JudgeLosses {
    int64_t short_length = 0, long_length = 0;
    std::vector<float> at_short, at_long;
    std::string name = {};  // of the run whose losses they are; empty: the file does not say
};
// The shortest and the longest length of `results`, which have kept their token losses.
JudgeLosses judge_of(const std::vector<eval::LengthResult>& results);
// The same of a file of write_token_losses(). Error(ExitCode::data) unless it has finite losses at two lengths of the
// tokens in `scored`. documents: of every entry, -1 where it is not scored.
JudgeLosses read_judge(const std::string& path, const eval::ScoredTokens& scored,
                       std::span<const int32_t> documents);

enum class TokenPart : int8_t { unscored, key, other };
std::vector<TokenPart> parts_of(const JudgeLosses& judge, const KeyTokenRule& rule);
// Losses on key tokens may be compared if the scored tokens and their parts are the same: the XXH64 of the parts.
uint64_t fingerprint_of(const std::vector<TokenPart>& parts);

// A line of key_tokens.csv; data/formats/records.md documents the columns.
struct KeyTokenRow {
    int64_t step = 0, length = 0;
    std::string part = {};  // "key" or "other"
    double loss = NAN, standard_error = NAN, scored = 0;
    int64_t from = 0, to = 0;  // lengths that the judge compared
    std::string judge = {};    // "self" or "file"
    std::string fingerprint = {};
    std::string judge_name = {}, parts = {};  // of the run that judges; fingerprint_of()
};
inline constexpr io::RecordColumns key_tokens_file(
    "key_tokens.csv", 9, io::required("step", &KeyTokenRow::step),
    io::required("length", &KeyTokenRow::length), io::required("part", &KeyTokenRow::part),
    io::blank("loss", &KeyTokenRow::loss), io::blank("standard_error", &KeyTokenRow::standard_error),
    io::required("scored", &KeyTokenRow::scored), io::required("from", &KeyTokenRow::from),
    io::required("to", &KeyTokenRow::to), io::required("judge", &KeyTokenRow::judge),
    io::plain("fingerprint", &KeyTokenRow::fingerprint), io::plain("judge_name", &KeyTokenRow::judge_name),
    io::plain("parts", &KeyTokenRow::parts));

// Two rows per length: the key tokens and the others. documents: of every entry, -1 where it is not scored; the
// standard error is that of a mean over resampled documents.
struct KeyTokenSplit {
    const JudgeLosses& judge;
    const std::vector<TokenPart>& parts;
    std::span<const int32_t> documents;
    bool by_file = false;
    uint64_t seed = 0;  // of the bootstrap
};
std::vector<KeyTokenRow> split_losses(const std::vector<eval::LengthResult>& results,
                                      const KeyTokenSplit& split, int64_t step);

// For the terminal: a line that says which tokens are key tokens, and a table by length.
std::string key_tokens_table(const std::vector<KeyTokenRow>& rows, const KeyTokenRule& rule);

}  // namespace longreach::measure
