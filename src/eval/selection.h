// Selects the tokens of a stream that an evaluation scores.
#pragma once

#include "eval/lengths.h"

namespace longreach::eval {

struct Selection {
    // chunk: starts of windows of the largest length; suffix: ends of documents. In stream order.
    std::vector<uint64_t> anchors;
    int64_t scored = 0;             // tokens scored per anchor
    std::vector<int32_t> document;  // document of every scored token, -1: filtered out
    int32_t documents = 0;          // of the stream; 1 if they are unknown
    ScoredTokens scope;
};

// Throws an Error if the stream is too short or no document qualifies.
Selection select(const data::TokenStream& stream, const EvalRequest& request);

}  // namespace longreach::eval
