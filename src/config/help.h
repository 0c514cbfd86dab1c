// The field list in words: `config explain` and the reference page. Both take the
// description at the defaults.
#pragma once

#include <string>
#include <string_view>

#include "config/field_info.h"

namespace longreach::config {

// What the key at `path` means, or what is in the section at `path` ("" for the whole config): several lines,
// the last ending with a newline. If the path does not exist, throws Error(ExitCode::usage)
// with the nearest keys.
std::string explain(const FieldInfo& config, std::string_view path);

// The reference page in Markdown: one table per section, in the order of the list.
std::string reference_page(const FieldInfo& config, std::string_view title);

}  // namespace longreach::config
