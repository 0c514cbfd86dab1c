// Fields that another field leaves without effect, as the field list declares them (Acts in config/fields.h).
#pragma once

#include <functional>
#include <string>

#include "config/field_info.h"
#include "config/problems.h"

namespace longreach::config {

// The field whose value leaves `field`, one of the fields of `section`, without effect; null if it acts.
const FieldInfo* silencer(const FieldInfo& root, const FieldInfo& section, const FieldInfo& field);

// Reports every field that was given and does not act. Rules between several fields are code (`check` of a struct).
void check_acts(const FieldInfo& root, Problems& problems);

// Calls visit for every field below `section`, at any depth, that holds a value and acts, in the order of
// the list; lists and variations are left out, and so are fields and whole sections for which `skipped`
// holds. path: below `section`, with a dot in front.
void for_each_acting(const FieldInfo& root, const FieldInfo& section,
                     const std::function<bool(const std::string& path)>& skipped,
                     const std::function<void(const FieldInfo& field, const std::string& path)>& visit);

// "kind is rope or p_rope", "size is not 0": where a field with these words acts.
std::string acts_text(const Acts& acts);

}  // namespace longreach::config
