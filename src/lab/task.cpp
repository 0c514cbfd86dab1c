// The training task, scored at the context of the last step. `longreach eval --tasks` scores tasks at other lengths and
// depths, and other tasks.
#include "base/text.h"
#include "measure/tasks.h"
#include "lab/evaluations.h"
#include "train/recorder.h"

namespace longreach::lab {

namespace {

class TaskEvaluation : public train::Evaluation {
  public:
    explicit TaskEvaluation(const train::Experiment& experiment)
        : Evaluation("task", experiment.eval.every, {measure::tasks_file.file()}), experiment_(experiment) {}

    void check_data(const train::Session& session) const override {
        task_generator(experiment_, &session.val_stream)
            .make(experiment_.block_tokens(), tasks::first_evaluation_sample);
    }

    void plan(model::Arena& arena, train::EvaluationPlan& plan) override {
        evaluator_.plan(arena, plan.size.tokens, experiment_.data.document_mask, plan.session.rank,
                        plan.session.ranks);
        for (const train::Stage& s : plan.stages) plan.size.lengths.push_back(s.context);
    }

    train::EvaluationEnd run(train::Session& session, train::Recorder& recorder) override {
        const train::Experiment& e = experiment_;
        measure::TaskRequest request;
        request.tasks = {e.data.task.kind};
        request.lengths = {session.schedule.stage_of(session.state.step - 1).context};
        request.samples = e.data.task.samples;
        request.batch_tokens = e.eval_batch_tokens(eval::piece_of(e.eval, session.ops));
        request.config = e.data.task;
        request.seed = e.task_seed();
        request.progress = [&](const std::string& text) { session.console.status(text); };
        eval::Pause pause = pause_on_signal();
        request.pause = &pause;
        const std::vector<measure::TaskRow> rows = evaluator_.run(
            session.ops, *session.comm, session.model, session.weights, session.val_stream, request);
        if (pause.stopped || !session.writes()) return {!pause.stopped};
        recorder.append(records()[0], measure::task_lines(rows, session.state.step));
        const measure::TaskRow& row = rows[0];
        session.console.line(
            fmt::format("{} at {}: accuracy {:.3f}{}, margin {:.2f}", row.task, row.length, row.accuracy,
                        row.accuracy_error ? fmt::format(" +- {:.3f}", *row.accuracy_error) : "",
                        row.margin.value_or(0)));
        return {true};
    }

    double flops(const model::Transformer& model, const std::vector<train::ValidationSet>&,
                 bool) const override {
        const int64_t context = experiment_.stages.back().context;
        const int64_t sequences = 2 * experiment_.data.task.samples;
        return model.evaluation_flops_per_token(context) * static_cast<double>(sequences * context);
    }

    std::string phrase(int64_t) const override {
        return fmt::format(" and {} of the task",
                           counted(static_cast<size_t>(experiment_.data.task.samples), "sample"));
    }

  private:
    const train::Experiment& experiment_;
    measure::TaskEvaluator evaluator_;
};

}  // namespace

bool scores_task(const train::Experiment& experiment) {
    const data::TaskConfig& task = experiment.data.task;
    return task.kind != data::TaskKind::none && task.samples > 0;
}

std::unique_ptr<train::Evaluation> task_evaluation(const train::Experiment& experiment) {
    return std::make_unique<TaskEvaluation>(experiment);
}

tasks::TaskGenerator task_generator(const train::Experiment& experiment, const data::TokenStream* haystack) {
    const data::TaskConfig& task = experiment.data.task;
    return {task.kind, task, experiment.model.vocab_size, experiment.task_seed(), haystack};
}

}  // namespace longreach::lab
