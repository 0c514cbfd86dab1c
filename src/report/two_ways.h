// Losses scored in two ways: by windows cut from the stream (eval.align chunk), where a longer window changes the
// context of a token and its place, and by the last tokens of documents after prefixes of each length (eval.align
// suffix), where only the context changes. An evaluation that differs from another one, or from the run as
// trained, in nothing but this is its second way: neither compares with the other token by token, so that the
// two have a table of their own.
#pragma once

#include <optional>

#include "report/page_parts.h"

namespace longreach::report {

// The label of which `label` is the second way in this run; "plain" is the model as trained. Nothing if the
// evaluation stands on its own.
std::optional<std::string> first_way_of(const RunRecord& run, const std::string& label);

// One table for all that were scored on the same two sets of tokens: the losses at each length by both ways, and
// the rise from the training length to the longest, paired by seed, on its own and less that of the baseline.
std::vector<table::DataTable> two_ways_tables(const Collection& collection);

// The same as text; empty if nothing was scored in two ways.
std::string two_ways_text(const Collection& collection, const table::Terminal& terminal);
Section two_ways_section(const PageContext& page);

}  // namespace longreach::report
