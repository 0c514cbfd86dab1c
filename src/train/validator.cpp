#include "train/validator.h"

#include <algorithm>

#include "train/validated.h"

namespace longreach::train {

Validator::Validator(Session& session, RankAgreement& agreement, Recorder& recorder)
    : session_(session), agreement_(agreement), recorder_(recorder) {
    if (!session.surroundings.no_data.empty()) return;
    for (const auto& evaluation : session.evaluations) evaluation->check_data(session);
}

void Validator::plan(model::Arena& arena, const std::vector<Stage>& stages, int64_t longest) {
    const Experiment& e = session_.experiment;
    EvaluationPlan plan{session_, stages, longest, {0, e.evaluated_lengths()}};
    std::vector<int64_t>& lengths = plan.size.lengths;
    while (lengths.size() > 1 && lengths.back() > longest) lengths.pop_back();
    const int64_t piece = eval::piece_of(e.eval, session_.ops);
    plan.size.tokens = e.eval_batch_tokens(piece, most_micro_tokens(stages), lengths);
    for (const int64_t length : e.eval.lengths)
        if (piece > 0 && length > piece && length <= lengths.back())
            plan.size.piece = piece, plan.size.room = length;
    for (const auto& evaluation : session_.evaluations) evaluation->plan(arena, plan);
    session_.model.plan_evaluation(arena, session_.ops, plan.size, e.data.document_mask);
}

bool Validator::due() const {
    return !due_after(session_.evaluations, session_.state.step, session_.schedule.steps()).empty();
}

bool Validator::pending() const {
    return !left().empty();
}

// A validated.json that the run did not write may name anything.
void Validator::set_done(const std::vector<std::string>& done) {
    done_.clear();
    for (const auto& evaluation : session_.evaluations)
        if (std::find(done.begin(), done.end(), evaluation->name()) != done.end())
            done_.push_back(evaluation->name());
}

std::vector<Evaluation*> Validator::left() const {
    const TrainState& state = session_.state;
    const int64_t steps = session_.schedule.steps();
    std::vector<Evaluation*> left;
    if (!state.pending || state.step > steps) return left;
    for (const auto& evaluation : session_.evaluations)
        if (evaluation->due(state.step, steps) &&
            std::find(done_.begin(), done_.end(), evaluation->name()) == done_.end())
            left.push_back(evaluation.get());
    return left;
}

EvaluationEnd Validator::run(Evaluation& evaluation) {
    const Stopwatch watch;
    const EvaluationEnd end = evaluation.run(session_, recorder_);
    const double seconds = watch.seconds();
    session_.spent.evaluating += seconds;
    if (!end.complete) return end;
    Measured& measured = session_.spent.evaluations[evaluation.name()];
    measured.seconds += seconds;
    measured.flops += session_.schedule.flops_after(evaluation, session_.state.step);
    return end;
}

void Validator::write_done() {
    io::write_file_atomically(session_.directory->file(validated_file),
                              format_validated({session_.state.step, done_, recorder_.evaluation_lengths()}));
}

Validator::End Validator::evaluate() {
    session_.model.set_stage_window(session_.experiment.window_at(session_.state.step - 1));
    for (Evaluation* const evaluation : left()) {
        const EvaluationEnd end = run(*evaluation);
        if (!end.complete) {
            if (session_.ranks > 1)
                agreement_.gather_with_signals(0, [](int) { return std::vector<Tensor>(); });
            return End::stopped;
        }
        if (const std::string text = agreement_.text(end.not_finite); !text.empty()) {
            session_.console.end_line(text);
            return End::not_finite;
        }
        done_.push_back(evaluation->name());
        if (session_.writes()) write_done();
    }
    session_.state.pending = false;
    recorder_.note_lengths();
    return End::complete;
}

}  // namespace longreach::train
