// The evaluations of a run between steps: losses by length, the training task, a probe of attention.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "eval/lengths.h"
#include "eval/probe.h"
#include "eval/tasks.h"
#include "train/rank_agreement.h"
#include "train/recorder.h"
#include "train/session.h"

namespace longreach::train {

class Validator {
  public:
    // Throws if an evaluation of this run cannot be made: now, not at the first one hours later.
    Validator(Session& session, RankAgreement& agreement, Recorder& recorder);

    // Lengths above `longest` are left out, except the shortest length.
    void plan(model::Arena& arena, const std::vector<Stage>& stages, int64_t longest);

    enum class End { complete, stopped, not_finite };
    // Makes the evaluations due after session.state.step that are not done. Complete: none is pending.
    End evaluate();
    std::vector<Part> parts_left() const;
    const std::vector<Part>& done() const { return done_; }
    void set_done(const std::vector<Part>& done) { done_ = done; }

  private:
    void check_data() const;
    bool run_part(const Part& part, std::string& not_finite);
    // These return false if stopped by a signal.
    bool validate(const ValidationSet& set, std::string& not_finite);
    bool validate_task();
    bool probe();
    eval::ProbeRequest probe_request() const;
    eval::EvalPick pick() const;
    uint64_t context(
        const ValidationSet& set) const;  // hash of all inputs that determine the results of a validation
    void write_done();

    Session& session_;
    RankAgreement& agreement_;
    Recorder& recorder_;
    eval::LengthEvaluator evaluator_;
    eval::Probe probe_;
    eval::TaskEvaluator task_evaluator_;
    std::vector<Part> done_;  // among the evaluations after this step
};

}  // namespace longreach::train
