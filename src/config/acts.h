// Fields that another field leaves without effect, as the field list declares them (Acts in config/fields.h).
#pragma once

#include <string>

#include "config/field_info.h"
#include "config/problems.h"

namespace longreach::config {

// The field whose value leaves `field`, one of the fields of `section`, without effect; null if it acts.
const FieldInfo* silencer(const FieldInfo& root, const FieldInfo& section, const FieldInfo& field);

// Reports every field that was given and does not act. Rules between several fields are code (`check` of a struct).
void check_acts(const FieldInfo& root, Problems& problems);

// "kind is rope or p_rope", "size is not 0": where a field with these words acts.
std::string acts_text(const Acts& acts);

}  // namespace longreach::config
