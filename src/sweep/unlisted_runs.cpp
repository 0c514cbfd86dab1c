#include "sweep/unlisted_runs.h"

#include "base/error.h"
#include "base/text.h"
#include "io/file.h"

namespace longreach::sweep {

std::vector<std::string> unlisted_runs(const std::string& directory, const std::set<std::string>& listed) {
    std::vector<std::string> names;
    if (io::kind_of(directory, io::Links::follow) != io::PathKind::directory) return names;
    for (const std::string& name : io::list_directory(directory)) {
        const std::string run = io::join_path(directory, name);
        if (listed.count(name) == 0 &&
            io::kind_of(io::join_path(run, "config.json"), io::Links::refuse) == io::PathKind::file &&
            io::kind_of(io::join_path(run, "metrics.jsonl"), io::Links::refuse) == io::PathKind::file)
            names.push_back(name);
    }
    return names;
}

std::string unlisted_note(const std::string& directory, const std::set<std::string>& listed) {
    std::vector<std::string> names = unlisted_runs(directory, listed);
    if (names.empty()) return "";
    const size_t count = names.size();
    constexpr size_t shown = 4;
    if (count > shown) names.resize(shown);
    const std::string more = count > shown ? fmt::format(" and {} more", count - shown) : "";
    return fmt::format(
        "{} of earlier commands not in the tables: {}{}; a sweep with their seeds and variants lists them again",
        counted(count, "run"), join(names, ", "), more);
}

}  // namespace longreach::sweep
