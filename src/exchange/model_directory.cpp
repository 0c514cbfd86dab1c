#include "exchange/model_directory.h"

#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"

namespace longreach::exchange {

std::string file_in(const std::string& directory, const std::string& name) {
    namespace fs = std::filesystem;
    const std::string path = io::join_path(directory, name);
    std::error_code failed;
    const fs::path target = fs::canonical(path, failed);
    if (failed) return path;  // whoever opens it says what is missing
    const fs::path root = fs::canonical(directory);
    const auto below = [&](const fs::path& parent) {
        return target.string().starts_with(parent.string() + "/");
    };
    const bool in_cache =
        root.parent_path().filename() == "snapshots" && below(root.parent_path().parent_path() / "blobs");
    require(below(root) || in_cache, ExitCode::data,
            "{} is a link to {}, outside the model's directory: copy the file there", path,
            shown(target.string(), 200));
    return path;
}

}  // namespace longreach::exchange
