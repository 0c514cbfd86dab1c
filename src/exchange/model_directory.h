// The directory of a model that somebody else made. Links in it are followed as far as the model reaches: to files of the
// directory itself, or, in a cache of the Hugging Face hub (snapshots/HASH/), to its blobs/.
#pragma once

#include <string>

namespace longreach::exchange {

// The path of a file in the directory. Error(ExitCode::data) if it is a link that leads elsewhere.
std::string file_in(const std::string& directory, const std::string& name);

}  // namespace longreach::exchange
