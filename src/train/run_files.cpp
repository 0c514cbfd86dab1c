#include "train/run_files.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "config/field_info.h"
#include "data/tokenizer_file.h"
#include "io/checkpoint_dir.h"
#include "io/manifest.h"
#include "io/result_file.h"
#include "io/written_files.h"
#include "train/evaluation.h"
#include "train/run_directory.h"
#include "train/step_records.h"
#include "train/validated.h"

namespace longreach::train {

namespace {

constexpr uint64_t largest_config = 1 << 20;

using Names = std::vector<std::string_view>;

const Names& files_of_evaluations() {
    static const Names names = [] {
        Names all{"request.json", "asked.json", "sample.txt"};
        for (const EvaluationFile& file : evaluation_files()) all.push_back(file.name);
        return all;
    }();
    return names;
}

const Names& files_of_sets() {
    static const Names names = [] {
        Names all;
        for (const EvaluationFile& file : evaluation_files())
            if (file.of_sets) all.push_back(file.name);
        return all;
    }();
    return names;
}

const Names& files_of_runs() {
    static const Names names = [] {
        Names all = files_of_evaluations();
        all.insert(all.end(), {metrics_file.file(), timing_file.file(), "log.txt", validated_file,
                               partial_file, "origins.json", "build.json", "config.json", "lock"});
        return all;
    }();
    return names;
}

// "NAME", or "NAME.tmp.0123456789abcdef", where a process that was killed wrote it.
std::string_view without_temporary(std::string_view name) {
    constexpr std::string_view mark = ".tmp.";
    const size_t at = name.rfind(mark);
    if (at == std::string_view::npos || name.size() - at != mark.size() + 16 ||
        name.find_first_not_of("0123456789abcdef", at + mark.size()) != std::string_view::npos)
        return name;
    return name.substr(0, at);
}

class Lister {
  public:
    explicit Lister(std::string directory) : directory_(std::move(directory)) {}

    // Regular files of `below` whose name `own` accepts.
    template <class Own>
    void files(const std::string& below, Own own) {
        for (const std::string& name : names(below)) {
            const std::string path = below.empty() ? name : below + "/" + name;
            if (kind(path) == io::PathKind::file && own(without_temporary(name))) found.push_back(path);
        }
    }
    void listed(const std::string& below, const Names& own) {
        files(below,
              [&](std::string_view name) { return std::find(own.begin(), own.end(), name) != own.end(); });
    }
    // Directories in `below` whose name `own` accepts.
    template <class Own>
    std::vector<std::string> directories(const std::string& below, Own own) const {
        std::vector<std::string> out;
        for (const std::string& name : names(below)) {
            const std::string path = below.empty() ? name : below + "/" + name;
            if (kind(path) == io::PathKind::directory && own(name)) out.push_back(path);
        }
        return out;
    }

    std::vector<std::string> found;

  private:
    io::PathKind kind(const std::string& path) const {
        return io::kind_of(io::join_path(directory_, path), io::Links::refuse);
    }
    std::vector<std::string> names(const std::string& below) const {
        if (!below.empty() && kind(below) != io::PathKind::directory) return {};
        return io::list_directory(below.empty() ? directory_ : io::join_path(directory_, below));
    }
    std::string directory_;
};

// The records of the further validation sets of a run or of an evaluation.
void list_sets(Lister& lister, const std::string& below) {
    for (const std::string& set : lister.directories(below, config::is_plain_name))
        lister.listed(set, files_of_sets());
}

void list_checkpoints(Lister& lister) {
    const std::string root = "checkpoints";
    for (const std::string& checkpoint : lister.directories(root, io::is_checkpoint_name))
        lister.files(checkpoint, [](std::string_view name) {
            return name == io::manifest_name || io::is_checkpoint_file_name(name);
        });
    lister.listed(root, {"latest"});
}

}  // namespace

bool is_run(const std::string& directory) {
    const auto holds = [&](std::string_view name) {
        return io::kind_of(io::join_path(directory, name), io::Links::refuse) == io::PathKind::file;
    };
    if (!holds("config.json") || !holds("lock") || holds(io::manifest_name)) return false;
    try {
        const std::string path = io::join_path(directory, "config.json");
        const json::Value config = json::parse(io::read_file(path, largest_config, io::Links::refuse), path);
        const json::Value* resolved = config.find("resolved");
        return resolved != nullptr && resolved->to_bool() == true;
    } catch (const Error& error) {
        if (error.code() == ExitCode::disk) throw;
        return false;
    }
}

bool is_blank(const std::string& directory) {
    const io::PathKind kind = io::kind_of(directory, io::Links::follow);
    if (kind == io::PathKind::missing) return true;
    if (kind != io::PathKind::directory) return false;
    const std::vector<std::string> names = io::list_directory(directory);
    return std::all_of(names.begin(), names.end(), [](const std::string& name) {
        return name == "lock" || name == import_list || without_temporary(name) == "config.json";
    });
}

bool is_within(const std::string& path, const std::string& directory) {
    std::error_code failed;
    const std::string inner = std::filesystem::weakly_canonical(path, failed).string() + "/",
                      outer = std::filesystem::weakly_canonical(directory, failed).string() + "/";
    return !failed && inner.starts_with(outer);
}

std::vector<std::string> run_files(const std::string& directory) {
    Lister lister(directory);
    list_checkpoints(lister);
    for (const std::string& label : lister.directories("eval", is_label)) {
        lister.listed(label, files_of_evaluations());
        list_sets(lister, label + "/sets");
    }
    list_sets(lister, "sets");
    lister.files("events", [](std::string_view name) { return name.starts_with("events.out.tfevents."); });
    lister.files("ranks", [](std::string_view name) {
        return name.starts_with("rank_") && (name.ends_with(".log") || name.ends_with(".log.previous"));
    });
    lister.files("", [&](std::string_view name) {
        return (name == "report.html" || name == "tables.txt") &&
               io::is_result(io::join_path(directory, name));
    });
    const std::vector<std::string> imported = io::files_as_written(directory, import_list);
    if (!imported.empty())
        lister.found.insert(lister.found.end(), imported.begin(), imported.end() - 1);
    else if (io::kind_of(io::join_path(directory, "config.json"), io::Links::refuse) == io::PathKind::file)
        lister.listed("", {"tokenizer.json", "vocab.json", "merges.txt"});
    const size_t first = lister.found.size();
    lister.listed("", files_of_runs());
    // The config and the lock last.
    std::stable_partition(lister.found.begin() + static_cast<std::ptrdiff_t>(first), lister.found.end(),
                          [](const std::string& path) { return path != "config.json" && path != "lock"; });
    // The list of an import after the config: with a config and without it, a tokenizer would be the run's by its name.
    if (!imported.empty()) lister.found.push_back(imported.back());
    return std::move(lister.found);
}

}  // namespace longreach::train
