#include "train/evaluation.h"

#include <algorithm>

#include "base/error.h"
#include "config/field_info.h"

namespace longreach::train {

namespace {

const EvaluationFile* find_file(std::string_view name) {
    const std::span<const EvaluationFile> files = evaluation_files();
    const auto found =
        std::find_if(files.begin(), files.end(), [&](const EvaluationFile& f) { return f.name == name; });
    return found == files.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::string> due_after(const EvaluationList& evaluations, int64_t step, int64_t steps) {
    std::vector<std::string> names;
    for (const auto& evaluation : evaluations)
        if (evaluation->due(step, steps)) names.push_back(evaluation->name());
    return names;
}

const EvaluationFile& evaluation_file(std::string_view record) {
    const EvaluationFile* file = find_file(record.substr(record.rfind('/') + 1));
    check(file != nullptr, "no evaluation writes {}", record);
    return *file;
}

bool is_set_record(std::string_view path) {
    if (!path.starts_with(sets_directory)) return false;
    path.remove_prefix(sets_directory.size());
    const size_t slash = path.find('/');
    if (slash == path.npos || !config::is_plain_name(path.substr(0, slash))) return false;
    const EvaluationFile* file = find_file(path.substr(slash + 1));
    return file != nullptr && file->of_runs && file->of_sets;
}

bool is_evaluation_record(std::string_view path) {
    const EvaluationFile* file = find_file(path);
    return (file != nullptr && file->of_runs) || is_set_record(path);
}

}  // namespace longreach::train
