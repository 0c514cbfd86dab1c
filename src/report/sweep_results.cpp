#include "report/sweep_results.h"

#include <algorithm>

#include "base/text.h"
#include "config/loader.h"
#include "io/file.h"
#include "train/experiment.h"

namespace longreach::report {

namespace {

// Whether the newest validation is that of the trained model: those before are of a run under way.
bool validated_at_the_end(const RunRecord& run) {
    const std::string config = io::join_path(run.path, "config.json");
    if (run.validated == 0 || io::kind_of(config, io::Links::follow) != io::PathKind::file) return false;
    return run.validated >= config::load_config<train::Experiment>({.file = config}).value.total_steps();
}

template <class Row>
std::vector<Row> rows_under(const RunRecord& run, const std::string& label, std::vector<Row> Results::*kind) {
    const auto found = run.evaluations.find(label);
    if (found == run.evaluations.end()) return {};
    return newest(found->second.*kind);
}

std::string cell(double value) {
    return std::isnan(value) ? "" : fmt::format("{}", value);
}
// Names of this program hold neither commas nor control characters; those of others must not add cells.
std::string cell(std::string text) {
    std::replace(text.begin(), text.end(), ',', ';');
    return one_line(text);
}
std::string cell(const std::optional<double>& value) {
    return value ? fmt::format("{}", *value) : "";
}

}  // namespace

SweepResults sweep_results(const Collection& sweep) {
    SweepResults out;
    for (const RunRecord& run : sweep.runs) {
        const size_t before = out.losses.size();
        for (const std::string& label : sweep.labels) {
            std::vector<LossRow> losses = rows_under(run, label, &Results::losses);
            if (losses.empty() && label == "plain" && validated_at_the_end(run))
                losses = newest(run.own.losses);
            for (const LossRow& row : losses) out.losses.push_back({row, run.group, run.seed, label});
            for (const TaskCell& row : rows_under(run, label, &Results::tasks))
                out.tasks.push_back({row, run.group, run.seed, label});
        }
        out.measured += out.losses.size() > before;
    }
    return out;
}

void write_sweep_csv(const std::string& directory) {
    const SweepResults results = sweep_results(collect({directory}));
    std::string losses =
        "variant,seed,evaluation,length,loss,top1,standard_error,scored,documents,fingerprint\n";
    for (const SweepLoss& l : results.losses)
        losses += fmt::format("{},{},{},{},{},{},{},{},{},{}\n", cell(l.variant), l.seed, cell(l.evaluation),
                              l.length, l.loss, cell(l.top1), cell(l.standard_error), cell(l.measure.count),
                              cell(l.measure.documents), cell(l.measure.fingerprint));
    io::write_file_atomically(io::join_path(directory, "results.csv"), losses);
    std::string tasks =
        "variant,seed,evaluation,task,length,depth,samples,accuracy,margin,loss,fingerprint\n";
    for (const SweepTask& t : results.tasks)
        tasks += fmt::format("{},{},{},{},{},{},{},{},{},{},{}\n", cell(t.variant), t.seed,
                             cell(t.evaluation), cell(t.task), t.length, cell(t.percent()), t.samples,
                             cell(t.accuracy), cell(t.margin), t.loss, cell(t.measure.fingerprint));
    io::write_file_atomically(io::join_path(directory, "results_tasks.csv"), tasks);
}

}  // namespace longreach::report
