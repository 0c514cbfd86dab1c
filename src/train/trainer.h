// A run from its first step to its last: plan, start, then step, record, save and evaluate in turn.
//
//     Session         what all parts share: experiment, data, model, state
//     Schedule        stages, FLOPs, time left
//     Stepper         one training step
//     Recorder        the record files
//     Validator       evaluations between steps
//     Saver           checkpoints
//     RankAgreement   what all ranks must know to decide alike
//     MemoryPlan      one allocation for all of it
//
// With several ranks, each computes its share of every step; only rank 0 has the run directory and prints.
#pragma once

#include <optional>

#include "train/memory_plan.h"
#include "train/rank_agreement.h"
#include "train/recorder.h"
#include "train/saver.h"
#include "train/session.h"
#include "train/stepper.h"
#include "train/validator.h"

namespace longreach::train {

class Trainer {
  public:
    // Opens the data, plans memory and prints the plan; allocates nothing, accesses no run directory, and
    // throws if the experiment cannot run.
    Trainer(const Experiment& experiment, Console& console, Ops& ops, int rank = 0, int ranks = 1,
            const Surroundings& surroundings = {});

    DataIdentity data() const {
        return session_.surroundings.no_data.empty()
                   ? DataIdentity::of(session_.train_stream, session_.val_sets)
                   : DataIdentity{};
    }

    // How long the run may take on this device, from the rate of its matrix products; empty if there is no room to measure it.
    std::string time_line() const;

    // Throws what starting from run.init_from would throw.
    void check_initial_weights(const io::Notice& notice) const {
        check_weights(session_.initial_checkpoint(notice), session_.model.params());
    }

    // ok, stopped (a signal; a checkpoint is saved) or numerics (gave up; nothing more is saved), the same on
    // all ranks. directory: null on all ranks but 0. team: notified after each step and around slow
    // operations such as saving a checkpoint.
    ExitCode run(RunDirectory* directory, ranks::Comm& comm, ranks::Team& team);

  private:
    void reserve(model::Arena& arena, const MemoryPlan::Work& work);
    void describe() const;
    void allocate();
    ExitCode advance();      // a step and what follows it
    ExitCode finish_step();  // saves if due, then evaluates
    ExitCode evaluate();
    ExitCode stop();  // a signal has been received: saves if needed

    Session session_;
    RankAgreement agreement_;
    Stepper stepper_;
    Recorder recorder_;
    Validator validator_;
    Saver saver_;
    MemoryPlan memory_;
};

}  // namespace longreach::train
