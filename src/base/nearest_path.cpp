#include "base/nearest_path.h"

#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"

namespace longreach {

namespace {

namespace fs = std::filesystem;
constexpr size_t most_entries = 5000;

std::vector<std::string> names_in(const fs::path& directory) {
    std::vector<std::string> names;
    std::error_code failed;
    fs::directory_iterator it(directory.empty() ? fs::path(".") : directory, failed);
    for (const fs::directory_iterator end; !failed && it != end; it.increment(failed)) {
        names.push_back(it->path().filename().string());
        if (names.size() > most_entries) return {};
    }
    return names;
}

// `name` with the edit distance of stems: "a.jsn" and "a.json" are near, and so are "b.json" and "bb.json".
std::string nearest_name(const std::string& name, const std::vector<std::string>& names) {
    const std::vector<std::string> near = nearest(name, names, 1);
    if (!near.empty()) return near.front();
    // A file named without its extension.
    for (const std::string& other : names)
        if (fs::path(other).stem().string() == name) return other;
    return "";
}

}  // namespace

std::string nearest_path(const std::string& path) {
    if (path.empty() || path.find('\0') != std::string::npos) return "";
    std::error_code ignored;
    fs::path found;
    bool changed = false;
    for (const fs::path& part : fs::path(path)) {
        if (part.empty()) continue;  // a slash at the end
        const fs::path next = found / part;
        if (fs::exists(next, ignored)) {
            found = next;
            continue;
        }
        std::vector<std::string> names = names_in(found);
        const std::string name = nearest_name(part.string(), names);
        if (name.empty()) return "";
        found /= name;
        changed = true;
    }
    return changed ? found.string() : "";
}

std::string path_suggestion(const std::string& path) {
    const std::string near = nearest_path(path);
    return near.empty() ? "" : fmt::format(": did you mean {}?", shown(near, 200));
}

}  // namespace longreach
