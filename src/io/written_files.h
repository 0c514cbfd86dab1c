// A list, kept in a directory, of the files that a command wrote there, with their sizes and hashes, so that a later
// command replaces those and nothing else: a file that was added or changed since is the user's.
#pragma once

#include <string>
#include <vector>

namespace longreach::io {

void write_file_list(const std::string& directory, const std::string& list,
                     const std::vector<std::string>& files);

// The files of the list that are as they were written, and the list itself, last; none if there is no list.
std::vector<std::string> files_as_written(const std::string& directory, const std::string& list);

}  // namespace longreach::io
