// A probe of attention on data.val.
#include <algorithm>

#include "base/text.h"
#include "measure/probe.h"
#include "lab/evaluations.h"
#include "train/recorder.h"

namespace longreach::lab {

namespace {

class ProbeEvaluation : public train::Evaluation {
  public:
    ProbeEvaluation(const train::Experiment& experiment, SharedEvaluator evaluator)
        : Evaluation("probe", experiment.probe.every, {measure::probe_file.file()}),
          experiment_(experiment),
          evaluator_(std::move(evaluator)) {}

    void check_data(const train::Session& session) const override {
        eval::LengthEvaluator::check_request(session.val_stream, request_for(session).evaluation());
    }

    void plan(model::Arena& arena, train::EvaluationPlan& plan) override {
        probe_.plan(arena, experiment_.model, std::min(experiment_.probe_lengths().back(), plan.longest),
                    experiment_.data.document_mask);
    }

    train::EvaluationEnd run(train::Session& session, train::Recorder& recorder) override {
        measure::ProbeRequest request = request_for(session);
        eval::Pause pause = pause_on_signal();
        request.pause = &pause;
        const measure::ProbeResult result =
            probe_.run(session.ops, *session.comm, session.model, session.weights, *evaluator_,
                       session.val_stream, request);
        if (pause.stopped || !session.writes()) return {!pause.stopped};
        recorder.append(records()[0], measure::probe_lines(result.rows, session.state.step));
        recorder.events().scores(session.state.step, result.scores);
        return {true};
    }

    double flops(const model::Transformer& model, const std::vector<train::ValidationSet>&,
                 bool) const override {
        const std::vector<int64_t>& lengths = experiment_.probe_lengths();
        const int64_t tokens = std::max(experiment_.probe.tokens, lengths.back());
        double flops = 0;
        for (const int64_t length : lengths)
            flops += model.evaluation_flops_per_token(length) * static_cast<double>(tokens);
        return flops;
    }

    std::string phrase(int64_t times) const override {
        return fmt::format("; {}", counted(static_cast<size_t>(times + 1), "probe"));
    }

  private:
    measure::ProbeRequest request_for(const train::Session& session) const {
        const train::Experiment& e = experiment_;
        measure::ProbeRequest request;
        request.lengths = e.probe_lengths();
        request.tokens = e.probe.tokens;
        request.document_mask = e.data.document_mask;
        request.pick = session.pick();
        request.seed = e.data_seed();
        request.progress = [&console = session.console](const std::string& text) {
            console.status("probe: " + text);
        };
        return request;
    }

    const train::Experiment& experiment_;
    const SharedEvaluator evaluator_;
    measure::Probe probe_;
};

}  // namespace

std::unique_ptr<train::Evaluation> probe_evaluation(const train::Experiment& experiment,
                                                    SharedEvaluator evaluator) {
    return std::make_unique<ProbeEvaluation>(experiment, std::move(evaluator));
}

}  // namespace longreach::lab
