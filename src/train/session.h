// What the parts of a run share: experiment, data, model, state, run directory and communicator.
#pragma once

#include <chrono>
#include <string>

#include "data/token_stream.h"
#include "model/transformer.h"
#include "ranks/team.h"
#include "train/console.h"
#include "train/evaluation.h"
#include "train/experiment.h"
#include "train/run_directory.h"
#include "train/schedule.h"
#include "train/train_state.h"
#include "train/validation_set.h"

namespace longreach::train {

// The circumstances under which a run is planned.
struct Surroundings {
    int local_ranks = 1;       // ranks that share this machine's memory
    int64_t memory = 0;        // bytes of the device that is planned for; 0: use the free memory
    std::string no_data = {};  // why the data are not opened; empty: they are opened
    bool plan_shown = true;    // the memory plan, whole
};

struct Session {
    Session(const Experiment& experiment, Console& console, Ops& ops, int rank, int ranks,
            const Surroundings& surroundings);

    const Experiment& experiment;
    Console& console;
    Ops& ops;
    const int rank, ranks;
    const Surroundings surroundings;
    const data::TokenStream train_stream;
    const std::vector<ValidationSet> val_sets;
    const data::TokenStream& val_stream = val_sets[0].stream;  // of data.val
    model::Transformer model;
    const EvaluationList evaluations;
    const Schedule schedule;
    model::FlatParams weights;
    TrainState state;
    TimeSpent spent;
    double peak_flops = 0;  // FLOP/s of this device, measured on a matrix product

    // Set when the run begins; planning needs none of them.
    RunDirectory* directory = nullptr;  // null on all ranks but 0
    ranks::Comm* comm = nullptr;
    ranks::Team* team = nullptr;

    // The checkpoint that run.init_from names. Error(ExitCode::data) if another tokenizer made its tokens
    // and run.init_other_tokenizer does not accept that.
    io::Checkpoint initial_checkpoint(const io::Notice& notice) const;
    // Of the training data; if they are not opened, one block for each source.
    std::vector<data::BlockTable> blocks() const;
    bool writes() const { return directory != nullptr; }
    // If the records of a run have no fingerprints, it must keep scoring the tokens it scored before.
    eval::EvalPick pick() const { return state.fingerprints ? experiment.eval.pick : eval::EvalPick::head; }
    // "go back to <checkpoint>", the newest checkpoint of a step before `step`.
    std::string earlier_checkpoint(int64_t step) const;
};

// Seconds on a monotonic clock.
class Stopwatch {
  public:
    double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point begin_ = Clock::now();
};

}  // namespace longreach::train
