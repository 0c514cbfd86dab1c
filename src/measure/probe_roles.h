// The roles of heads, measured on texts that a probe makes.
//
// Two copies of different random tokens have no other structure than that they are repeated: a previous-token head
// attends to the token before the query, anywhere; an induction head of the second copy attends to the token that
// followed the query's token in the first. In a text that hides a needle, a number to be repeated at the end, a
// retrieval head attends to the number's token that comes next in the answer.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "measure/probe.h"

namespace longreach::measure {

struct HeadRole {
    const char *statistic, *title, *column;  // in probe.csv, on the page, on the terminal
};
inline constexpr std::array head_roles{HeadRole{"previous_score", "Previous token", "previous"},
                                       HeadRole{"induction_score", "Induction", "induction"},
                                       HeadRole{"retrieval_score", "Retrieval", "retrieval"}};
inline bool is_role(std::string_view statistic) {
    return std::any_of(head_roles.begin(), head_roles.end(),
                       [&](const HeadRole& role) { return statistic == role.statistic; });
}

// Tokens of one copy: as many as there are different ones, and two copies fit into the longest sequence.
int64_t role_text(int64_t longest, int64_t vocab);

struct RoleRequest {
    int64_t longest = 0;
    bool document_mask = true;
    uint64_t seed = 0;
};
// A row for each role of every head that can see these tokens. Needles lie in text of the stream, in as many tokens as the
// model was trained on; none where the task does not fit. `batch` and `buffers` have room for `longest` tokens;
// document_mask: as the evaluation was planned.
std::vector<ProbeRow> probe_roles(Ops& ops, model::Transformer& model, const model::FlatParams& weights,
                                  const data::TokenStream& stream, const model::DeviceBatch& batch,
                                  const ProbeBuffers& buffers, const RoleRequest& request);

}  // namespace longreach::measure
