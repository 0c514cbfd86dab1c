// The evaluations that a run makes between its steps: losses by length, samples of the training task, probes of
// attention. The core knows them by this interface; src/lab/registry.cpp lists them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/transformer.h"
#include "train/validation_set.h"

namespace longreach::train {

class Recorder;
struct Session;

// The memory of the evaluations of a run.
struct EvaluationPlan {
    const Session& session;
    const std::vector<Stage>& stages;
    int64_t longest;       // no length is above it, except the shortest
    model::PlanSize size;  // of the passes that all evaluations share
};

struct EvaluationEnd {
    bool complete = false;        // on all ranks; false: a signal stopped it
    std::string not_finite = {};  // on rank 0: why the run cannot go on; empty: it can
};

class Evaluation {
  public:
    // records: the files to which it appends, relative to the run directory.
    Evaluation(std::string name, int64_t every, std::vector<std::string> records)
        : name_(std::move(name)), every_(every), records_(std::move(records)) {}
    virtual ~Evaluation() = default;

    // "losses of books": in validated.json, and between ranks.
    const std::string& name() const { return name_; }
    const std::vector<std::string>& records() const { return records_; }
    // Steps between two of them; 0: there is only the one after the last step.
    int64_t every() const { return every_; }
    // Whether one is due once `step` of `steps` steps are done.
    bool due(int64_t step, int64_t steps) const {
        return step == steps || (every_ > 0 && step % every_ == 0);
    }

    // Throws what run() would throw because of the data.
    virtual void check_data(const Session& session) const = 0;
    // Reserves its own memory, before that of the model's passes; adds the lengths of its own to plan.size.
    virtual void plan(model::Arena& arena, EvaluationPlan& plan) = 0;
    // Called by all ranks; rank 0 writes the records and the console. If a signal stops it, the next run() goes on
    // or starts over, and the records get the bytes of an evaluation that nothing stopped.
    virtual EvaluationEnd run(Session& session, Recorder& recorder) = 0;
    // final: of the one after the last step. A set that is not in `sets` counts as long enough.
    virtual double flops(const model::Transformer& model, const std::vector<ValidationSet>& sets,
                         bool final) const = 0;
    // What the plan of a run says about it; times: how many there are before the one at the end.
    virtual std::string phrase(int64_t times) const = 0;

  private:
    const std::string name_;
    const int64_t every_;
    const std::vector<std::string> records_;
};
using EvaluationList = std::vector<std::unique_ptr<Evaluation>>;

// In the order in which a run makes them. `experiment` must outlive them.
EvaluationList evaluations_of(const Experiment& experiment);
// The names of those that are due once `step` steps are done, in this order.
std::vector<std::string> due_after(const EvaluationList& evaluations, int64_t step, int64_t steps);

// A file to which only evaluations append.
struct EvaluationFile {
    std::string_view name;  // "val.csv"
    bool of_runs = true;    // false: only commands write it
    bool of_sets = false;   // each further validation set has one
    std::string (*header)();
    // The columns of a file with this first line (io::RecordColumns::known).
    std::vector<size_t> (*known)(std::string_view header_line);
};
std::span<const EvaluationFile> evaluation_files();
// By the path of a record: the file "val.csv" of "sets/books/val.csv".
const EvaluationFile& evaluation_file(std::string_view record);

// Whether a path in a run directory is that of a record of an evaluation, or of that of a further validation set.
bool is_evaluation_record(std::string_view path);
bool is_set_record(std::string_view path);

}  // namespace longreach::train
