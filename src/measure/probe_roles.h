// The roles of heads, measured on a text that has no other structure than that it is repeated: two copies of
// different random tokens. A previous-token head attends to the token before the query, anywhere; an
// induction head of the second copy attends to the token that followed the query's token in the first.
#pragma once

#include <vector>

#include "measure/probe.h"

namespace longreach::measure {

// Tokens of one copy: as many as there are different ones, and two copies fit into the longest sequence.
int64_t role_text(int64_t longest, int64_t vocab);

// Rows previous_score and induction_score of every head that can see these tokens. `batch` and `buffers` have
// room for `longest` tokens; document_mask: as the evaluation was planned.
struct RoleRequest {
    int64_t longest = 0;
    bool document_mask = true;
    uint64_t seed = 0;
};
std::vector<ProbeRow> probe_roles(Ops& ops, model::Transformer& model, const model::FlatParams& weights,
                                  const model::DeviceBatch& batch, const ProbeBuffers& buffers,
                                  const RoleRequest& request);

}  // namespace longreach::measure
