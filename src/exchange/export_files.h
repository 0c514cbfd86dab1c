// longreach_export.json: the marker of an exported directory. It lists the other files with sizes and hashes, so that a
// later export replaces those and nothing else.
#pragma once

#include <string>
#include <vector>

namespace longreach::exchange {

inline constexpr const char* export_marker = "longreach_export.json";

// Writes the marker of these files into their directory.
void write_marker(const std::string& directory, const std::vector<std::string>& files);

// The files of an exported directory that are as they were written, and the marker; none if it has no marker.
std::vector<std::string> exported_files(const std::string& directory);

}  // namespace longreach::exchange
