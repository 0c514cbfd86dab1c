// Two configs, field by field.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/field_info.h"

namespace longreach::config {

struct Difference {
    // Of a field. For a list entry or variation that one side lacks: of its fields that differ from the
    // initial values of such an entry, or of the entry if none does.
    std::string path;
    std::optional<json::Value> left, right;  // empty: absent on that side
    bool resumable = false;                  // a run may resume across this difference
};

// Both describe the same struct; in the order of the list.
std::vector<Difference> diff(const FieldInfo& left, const FieldInfo& right);

// The differences across which a run must not resume.
std::vector<Difference> not_resumable(std::vector<Difference> differences);

// A readable table: path, left, right, and a mark on what is fixed once a run has begun.
// Empty if there are none.
std::string diff_table(const std::vector<Difference>& differences);

}  // namespace longreach::config
