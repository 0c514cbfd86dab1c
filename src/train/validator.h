// Makes the evaluations of a run between its steps, and keeps which of them are done.
#pragma once

#include <string>
#include <vector>

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
    // Whether an evaluation is due after the steps done so far; whether one of those is not done.
    bool due() const;
    bool pending() const;
    const std::vector<std::string>& done() const { return done_; }  // names
    void set_done(const std::vector<std::string>& done);

  private:
    std::vector<Evaluation*> left() const;
    EvaluationEnd run(Evaluation& evaluation);
    void write_done();

    Session& session_;
    RankAgreement& agreement_;
    Recorder& recorder_;
    std::vector<std::string> done_;  // among the evaluations after this step
};

}  // namespace longreach::train
