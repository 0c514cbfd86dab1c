#include "report/sweep_results.h"

#include "config/loader.h"
#include "io/file.h"
#include "train/experiment.h"

namespace longreach::report {

namespace {

// Whether the newest validation is that of the trained model rather than of a run still training.
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

template <class Columns, class Row>
void write_csv(const std::string& directory, const Columns& columns, const std::vector<Row>& rows) {
    std::string text = columns.header() + "\n";
    for (const Row& row : rows) text += columns.line(row) + "\n";
    io::write_file_atomically(io::join_path(directory, columns.file()), text);
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
            for (const LossRow& r : losses)
                out.losses.push_back({run.group, run.seed, label, r.length, r.loss, r.top1, r.top1_error,
                                      r.standard_error, r.measure.count, r.measure.documents,
                                      r.measure.fingerprint, r.apart, sweep.set, r.measure.key()});
            for (const TaskCell& r : rows_under(run, label, &Results::tasks))
                out.tasks.push_back({run.group, run.seed, label, r.task, r.length, r.depth, r.samples,
                                     r.accuracy, r.margin, r.loss, r.measure.fingerprint, r.apart,
                                     r.measure.key()});
        }
        out.measured += out.losses.size() > before;
    }
    return out;
}

void write_sweep_csv(const std::string& directory) {
    const Collection sweep = collect({directory});
    const SweepResults results = sweep_results(sweep);
    write_csv(directory, results_file, results.losses);
    write_csv(directory, results_tasks_file, results.tasks);
    std::vector<SweepLoss> of_sets;
    for (const std::string& set : sweep.sets) {
        const SweepResults more = sweep_results(set_view(sweep, set));
        of_sets.insert(of_sets.end(), more.losses.begin(), more.losses.end());
    }
    if (!of_sets.empty()) write_csv(directory, results_sets_file, of_sets);
}

}  // namespace longreach::report
