// Names that become files and directories.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace longreach::train {

// Of a file or directory on every file system that runs are kept on, in bytes.
constexpr size_t longest_file_name = 255;

// Why a name is too long for a file or directory; "": it is not.
inline std::string too_long(std::string_view name) {
    if (name.size() <= longest_file_name) return "";
    return fmt::format("a name of {} bytes; a file name may have {}", name.size(), longest_file_name);
}

}  // namespace longreach::train
