// The checkpoints of a run: loads the one it starts from and saves new ones.
#pragma once

#include <map>
#include <string>

#include "train/rank_agreement.h"
#include "train/recorder.h"
#include "train/session.h"
#include "train/stepper.h"
#include "train/validator.h"

namespace longreach::train {

class Saver {
  public:
    Saver(Session& session, RankAgreement& agreement, Stepper& stepper, Recorder& recorder,
          Validator& validator)
        : session_(session),
          agreement_(agreement),
          stepper_(stepper),
          recorder_(recorder),
          validator_(validator) {}

    // Fills weights, state and moments: from the newest checkpoint, from run.init_from, or fresh.
    void start();
    void open_records();  // at the lengths that belong to the state
    // Returns false if a value is not finite; then nothing was saved.
    bool save();
    bool saved(int64_t step) const { return saved_step_ == step; }

  private:
    void start_from_files();  // on rank 0
    bool resume();            // false: the run has no checkpoint
    void share_start();       // sends the start of rank 0 to the other ranks
    void check_resumed() const;
    void keep_tokenizer() const;
    // "saved", "postponed" or "not finite".
    std::string write(StateExchange& moments, bool weights_only);

    Session& session_;
    RankAgreement& agreement_;
    Stepper& stepper_;
    Recorder& recorder_;
    Validator& validator_;
    bool resumed_ = false;
    std::string optimizer_file_;                    // of the checkpoint to resume from
    std::map<std::string, int64_t> later_lengths_;  // of record files, as validated.json gives them
    int failed_saves_ = 0;                          // in a row
    int64_t saved_step_ = -1;
};

}  // namespace longreach::train
