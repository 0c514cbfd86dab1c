// "did you mean" for files.
#pragma once

#include <string>

namespace longreach {

// The existing path that may have been meant by `path`: each missing part is replaced by the nearest name
// in its directory. "" if `path` exists, nothing is near, or a directory has more than 5000 entries.
std::string nearest_path(const std::string& path);

// ": did you mean PATH?" to end a message with, or "".
std::string path_suggestion(const std::string& path);

}  // namespace longreach
