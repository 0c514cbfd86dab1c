// Losses by length on one validation set, and the event file's histograms of weights with those on data.val. Stopped
// by a signal, it leaves its sums in validation.partial, from which the next run goes on.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/hash.h"
#include "base/text.h"
#include "config/field_info.h"
#include "eval/tables.h"
#include "lab/evaluations.h"
#include "train/recorder.h"
#include "train/validated.h"

namespace longreach::lab {

namespace {

constexpr uint64_t largest_partial = uint64_t{1} << 32;

template <class T>
void hash_value(Xxh64& hash, T value) {
    hash.update(&value, sizeof value);
}

// Hash of all inputs that determine the results; of the weights themselves, because their step does not show whether
// they have changed since.
uint64_t context_of(const train::Session& session, const train::ValidationSet& set) {
    const train::Experiment& e = session.experiment;
    Xxh64 hash;
    const std::string settings = json::write(config::to_json(config::describe(e.eval)), json::Style::compact);
    hash.update(settings.data(), settings.size());
    hash_value(hash, session.state.step);
    hash_value(hash, set.stream.fingerprint());
    hash_value(hash, static_cast<int64_t>(e.system.precision));
    hash_value(hash, static_cast<int64_t>(session.ops.native_queue().device < 0));
    std::vector<float> host;
    for (const model::Param& p : session.model.params().params()) {
        host.resize(static_cast<size_t>(p.count()));
        session.ops.download(host.data(), session.weights.view(p));
        hash.update(host.data(), host.size() * sizeof(float));
    }
    return hash.digest();
}

class LossesEvaluation : public train::Evaluation {
  public:
    LossesEvaluation(const train::Experiment& experiment, const std::string& set, SharedEvaluator evaluator)
        : Evaluation(set.empty() ? "losses" : "losses of " + set, experiment.eval.every,
                     {train::record_of_set(set, eval::val_file.file()),
                      train::record_of_set(set, eval::positions_file.file())}),
          experiment_(experiment),
          set_(set),
          evaluator_(std::move(evaluator)) {}

    void check_data(const train::Session& session) const override {
        train::check_lengths(experiment_, *find_set(session.val_sets));
    }

    void plan(model::Arena& arena, train::EvaluationPlan& plan) override {
        if (set_.empty())
            evaluator_->plan(arena, plan.size.tokens, experiment_.data.document_mask || plan.size.room > 0,
                             plan.session.rank, plan.session.ranks);
    }

    train::EvaluationEnd run(train::Session& session, train::Recorder& recorder) override {
        const train::ValidationSet& set = *find_set(session.val_sets);
        const bool writes = session.writes();
        if (writes) session.directory->check_names();
        eval::EvalRequest request = request_for(session);
        eval::Pause pause = pause_on_signal();
        pause.resumable = true;
        pause.context = [&] { return context_of(session, set); };
        const std::string partial = writes ? session.directory->file(train::partial_file) : "";
        const bool begun = writes && io::kind_of(partial, io::Links::refuse) == io::PathKind::file;
        if (begun) pause.sums = io::read_file(partial, largest_partial, io::Links::refuse);
        request.pause = &pause;
        const std::vector<eval::LengthResult> results =
            evaluator_->run(session.ops, *session.comm, session.model, session.weights, set.stream, request);
        if (pause.stopped && writes) io::write_file_atomically(partial, pause.sums);
        if (pause.stopped || !writes) return {!pause.stopped};
        if (begun) io::remove_file(partial);
        record(session, recorder, results);
        return {true, report(session, results)};
    }

    double flops(const model::Transformer& model, const std::vector<train::ValidationSet>& sets,
                 bool final) const override {
        const eval::EvalConfig& e = experiment_.eval;
        const auto set = find_set(sets);
        const int64_t longest = e.lengths.back();
        const int64_t wanted = std::min(final ? e.final_tokens : e.tokens,
                                        set == sets.end() ? std::numeric_limits<int64_t>::max()
                                                          : static_cast<int64_t>(set->stream.tokens()));
        double flops = 0;
        for (const int64_t length : e.lengths) {
            int64_t tokens = wanted / longest * longest;
            if (e.align == eval::EvalAlign::suffix) {
                const int64_t scored =
                    e.suffix_tokens > 0 ? e.suffix_tokens : std::max<int64_t>(1, e.lengths.front() / 2);
                tokens = wanted / scored * length;
            }
            flops += model.evaluation_flops_per_token(length) * static_cast<double>(tokens);
        }
        return flops;
    }

    // That of data.val speaks for all sets.
    std::string phrase(int64_t times) const override {
        if (!set_.empty()) return "";
        const eval::EvalConfig& e = experiment_.eval;
        std::string text = "validation: ";
        if (times > 0)
            text +=
                fmt::format("{} of {} tokens, then ", counted(static_cast<size_t>(times), "time"), e.tokens);
        text += fmt::format("once {} tokens at the end, at {}", e.final_tokens,
                            counted(e.lengths.size(), "length"));
        if (const size_t sets = experiment_.data.val_sets.size(); sets > 0)
            text += fmt::format(", on data.val and {}", counted(sets, "further set"));
        return text;
    }

  private:
    std::vector<train::ValidationSet>::const_iterator find_set(
        const std::vector<train::ValidationSet>& sets) const {
        return std::find_if(sets.begin(), sets.end(),
                            [&](const train::ValidationSet& set) { return set.name == set_; });
    }

    eval::EvalRequest request_for(const train::Session& session) const {
        const train::Experiment& e = experiment_;
        const bool last = session.schedule.last(session.state.step);
        const int64_t piece = eval::piece_of(e.eval, session.ops);
        eval::EvalRequest request = eval::make_request(e.eval, last ? e.eval.final_tokens : e.eval.tokens,
                                                       e.eval_batch_tokens(piece), e.data.document_mask);
        request.piece = piece;
        request.pick = session.pick();
        request.seed = e.data_seed();
        request.progress = [&console = session.console, prefix = set_.empty() ? "" : set_ + ": "](
                               const std::string& text) { console.status(prefix + text); };
        return request;
    }

    void record(const train::Session& session, train::Recorder& recorder,
                const std::vector<eval::LengthResult>& results) const {
        const train::TrainState& state = session.state;
        const double bytes_per_token = find_set(session.val_sets)->stream.bytes_per_token();
        recorder.append(records()[0], eval::val_lines(results, state.step, state.tokens, bytes_per_token));
        recorder.append(records()[1], eval::positions_lines(results, state.step));
        recorder.events().validation(state.step, set_, results);
        if (set_.empty())
            recorder.events().weights(state.step, session.ops, session.model.params(), session.weights);
    }

    // Prints the losses. Returns what is wrong if one is not finite.
    std::string report(const train::Session& session, const std::vector<eval::LengthResult>& results) const {
        const int64_t step = session.state.step;
        const std::string name =
            fmt::format("validation at step {}{}", step, set_.empty() ? "" : " on " + set_);
        std::string text = name + ":";
        for (const eval::LengthResult& r : results)
            text += fmt::format("  {} {:.4f}", r.length, r.loss.mean());
        session.console.line(text);
        for (const eval::LengthResult& r : results)
            if (!std::isfinite(r.loss.mean()))
                return fmt::format("{}: the loss at length {} is not finite; {}", name, r.length,
                                   session.earlier_checkpoint(step));
        return "";
    }

    const train::Experiment& experiment_;
    const std::string set_;  // a name in data.val_sets; empty: data.val
    const SharedEvaluator evaluator_;
};

}  // namespace

std::unique_ptr<train::Evaluation> losses_evaluation(const train::Experiment& experiment,
                                                     const std::string& set, SharedEvaluator evaluator) {
    return std::make_unique<LossesEvaluation>(experiment, set, std::move(evaluator));
}

}  // namespace longreach::lab
