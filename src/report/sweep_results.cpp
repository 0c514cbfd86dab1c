#include "report/sweep_results.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "config/loader.h"
#include "io/checkpoint_dir.h"
#include "io/file.h"
#include "report/csv_table.h"
#include "train/experiment.h"

namespace longreach {

namespace {

constexpr uint64_t largest_sweep_json = uint64_t{16} << 20;

template <class Convert>
auto member(const json::Value& object, const char* key, const std::string& path, Convert convert) {
    const json::Value* value = object.find(key);
    auto converted = value ? convert(*value) : decltype(convert(*value)){};
    require(static_cast<bool>(converted), ExitCode::data, "{}: {} is missing or of the wrong kind", path,
            key);
    return converted;
}

void add_unique(std::vector<std::string>& names, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

// One run of sweep.json.
struct Entry {
    std::string variant;
    int64_t seed;
    std::string directory;
};

// False if there is no such file.
bool add_losses(const Entry& run, const std::string& evaluation, const std::string& path,
                SweepResults& results) {
    if (kind_of(path, Links::follow) != PathKind::file) return false;
    CsvTable table = CsvTable::read(path);
    table.keep_largest("step");
    for (size_t i = 0; i < table.rows(); ++i) {
        const auto length = table.integer(i, "length");
        const auto loss = table.number(i, "loss");
        require(length && loss, ExitCode::data, "{}: a row has no length or no loss", path);
        results.losses.push_back(
            {run.variant, run.seed, evaluation, *length, *loss, table.number(i, "top1")});
    }
    return table.rows() > 0;
}

void add_tasks(const Entry& run, const std::string& evaluation, const std::string& path,
               SweepResults& results) {
    if (kind_of(path, Links::follow) != PathKind::file) return;
    CsvTable table = CsvTable::read(path);
    table.keep_largest("step");
    for (size_t i = 0; i < table.rows(); ++i)
        results.tasks.push_back({run.variant, run.seed, evaluation, table.text(i, "task"),
                                 table.integer(i, "length").value_or(0), table.text(i, "depth"),
                                 table.integer(i, "samples").value_or(0), table.number(i, "accuracy"),
                                 table.number(i, "margin"), table.number(i, "loss")});
}

// Whether the run has trained all steps its config asks for; until then its val.csv is of a run under way.
bool is_trained(const std::string& directory) {
    const std::string config = join_path(directory, "config.json");
    const std::vector<int64_t> steps = checkpoint_steps(join_path(directory, "checkpoints"));
    if (steps.empty() || kind_of(config, Links::follow) != PathKind::file) return false;
    return steps[0] >= load_config<Experiment>({.file = config}).value.total_steps();
}

std::string cell(const std::optional<double>& value) {
    return value ? fmt::format("{}", *value) : "";
}

}  // namespace

bool is_sweep_directory(const std::string& path) {
    return kind_of(join_path(path, sweep_file), Links::follow) == PathKind::file;
}

SweepResults read_sweep(const std::string& path) {
    const std::string file = join_path(path, sweep_file);
    const json::Value root = json::parse(read_file(file, largest_sweep_json, Links::follow), file,
                                         {.max_bytes = largest_sweep_json, .code = ExitCode::data});
    SweepResults results;
    results.directory = path;
    const auto as_text = [](const json::Value& v) { return v.to_string(); };
    const auto as_array = [](const json::Value& v) { return v.to_array(); };
    const auto as_integer = [](const json::Value& v) { return v.to_int64(); };
    results.name = *member(root, "name", file, as_text);
    if (const json::Value* baseline = root.find("baseline"); baseline && baseline->to_string())
        results.baseline = *baseline->to_string();
    results.evaluations.push_back("plain");
    for (const json::Value& one : *member(root, "runs", file, as_array)) {
        const Entry run{*member(one, "variant", file, as_text), *member(one, "seed", file, as_integer),
                        join_path(path, *member(one, "directory", file, as_text))};
        add_unique(results.variants, run.variant);
        ++results.runs;
        bool plain = false;
        const size_t before = results.losses.size();
        for (const json::Value& value : *member(one, "evaluations", file, as_array)) {
            require(value.is_string(), ExitCode::data, "{}: a label is no string", file);
            const std::string& label = value.as_string();
            add_unique(results.evaluations, label);
            const std::string directory = join_path(join_path(run.directory, "eval"), label);
            const bool found = add_losses(run, label, join_path(directory, "val.csv"), results);
            plain = plain || (found && label == "plain");
            add_tasks(run, label, join_path(directory, "tasks.csv"), results);
        }
        if (!plain && is_trained(run.directory))
            add_losses(run, "plain", join_path(run.directory, "val.csv"), results);
        results.measured += results.losses.size() > before;
    }
    return results;
}

void write_sweep_csv(const std::string& path) {
    const SweepResults results = read_sweep(path);
    std::string losses = "variant,seed,evaluation,length,loss,top1\n";
    for (const SweepLoss& l : results.losses)
        losses += fmt::format("{},{},{},{},{},{}\n", l.variant, l.seed, l.evaluation, l.length, l.loss,
                              cell(l.top1));
    write_file_atomically(join_path(path, "results.csv"), losses);
    std::string tasks = "variant,seed,evaluation,task,length,depth,samples,accuracy,margin,loss\n";
    for (const SweepTask& t : results.tasks)
        tasks += fmt::format("{},{},{},{},{},{},{},{},{},{}\n", t.variant, t.seed, t.evaluation, t.task,
                             t.length, t.depth, t.samples, cell(t.accuracy), cell(t.margin), cell(t.loss));
    write_file_atomically(join_path(path, "results_tasks.csv"), tasks);
}

}  // namespace longreach
