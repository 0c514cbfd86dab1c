// Which files of a run directory are the run's: the names that this program gives, and what an import lists of the model
// that it came from. Everything else in it is the user's.
#pragma once

#include <string>
#include <vector>

namespace longreach::train {

// In an imported run, the list (io/written_files.h) of the files that it has of a tokenizer.
inline constexpr const char* import_list = "longreach_import.json";

// Whether a directory holds a run: a resolved config and a lock, and no manifest, which a checkpoint has.
bool is_run(const std::string& directory);

// Whether it is missing, or holds at most the lock and the temporary files of a run that ended before it wrote its config,
// or the list of an import whose other files were being deleted.
bool is_blank(const std::string& directory);

// Whether a path is a directory, or leads into it; links are followed.
bool is_within(const std::string& path, const std::string& directory);

// Paths, relative to the directory, of the run's files, those last by which is_run knows it.
std::vector<std::string> run_files(const std::string& directory);

}  // namespace longreach::train
