// How much losses differ between runs of one variant that differ in the seed alone.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "decide/paired.h"
#include "table/text_table.h"

namespace longreach::report {

struct SpreadRow {
    std::string name;
    std::map<int64_t, std::vector<decide::SeedValue>> losses;  // by length
};

// Standard deviations over seeds by length, and how many seeds see a difference of 0.05 nats to `baseline`; empty unless some
// row has four seeds.
std::string spread_tables(const std::string& title, const std::vector<SpreadRow>& rows,
                          const std::string& baseline, const table::Terminal& terminal);

}  // namespace longreach::report
