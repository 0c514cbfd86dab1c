// How losses by context length are measured.
#pragma once

#include "config/fields.h"
#include "config/problems.h"
#include "model/post_hoc.h"

namespace longreach::eval {

enum class EvalAlign { chunk, suffix };
enum class EvalPick { spread, head };

struct EvalConfig {
    int64_t every = 250;
    std::vector<int64_t> lengths{1024, 4096, 16384};
    int64_t tokens = 1048576;
    int64_t final_tokens = 10485760;
    EvalPick pick = EvalPick::spread;
    EvalAlign align = EvalAlign::chunk;
    int64_t suffix_tokens = 0;
    int64_t min_document = 0;
    int64_t batch_tokens = 0;
    int64_t piece = 0;
    model::PostHocConfig rope;
    // Sets the lengths and the token count of one evaluation, if given;
    // raises counts to at least one sequence of the largest length.
    void take_lengths(const std::vector<int64_t>& given, int64_t scored);
    void fields(config::Fields& f);
    void check(config::Problems& problems) const;
};

}  // namespace longreach::eval
