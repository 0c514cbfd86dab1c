// A run from its first step to its last: plan, resume, train, validate, save.
//
// Of several ranks each computes its share of every step; rank 0 alone has the run directory and speaks.
#pragma once

#include <chrono>
#include <limits>
#include <memory>
#include <optional>

#include "data/batch_plan.h"
#include "data/loader.h"
#include "data/token_stream.h"
#include "ranks/team.h"
#include "eval/lengths.h"
#include "eval/probe.h"
#include "eval/tasks.h"
#include "io/record_file.h"
#include "model/device_batch.h"
#include "model/transformer.h"
#include "optim/optimizer.h"
#include "train/console.h"
#include "train/event_log.h"
#include "train/experiment.h"
#include "train/gradient_tree.h"
#include "train/rank_traffic.h"
#include "train/run_directory.h"
#include "train/train_state.h"
#include "train/validated.h"

namespace longreach::train {

// Under which circumstances a run is planned.
struct Surroundings {
    int local_ranks = 1;       // ranks that share this machine's memory
    int64_t memory = 0;        // bytes of the device that is planned for; 0: what is free
    std::string no_data = {};  // why the data are not looked at; empty: they are
};

class Trainer {
  public:
    // Opens the data, plans memory and prints the plan; allocates nothing, touches no run directory, and
    // throws if the experiment cannot run.
    Trainer(const Experiment& experiment, Console& console, Ops& ops, int rank = 0, int ranks = 1,
            const Surroundings& surroundings = {});
    ~Trainer();

    uint64_t data_fingerprint() const { return train_stream_.fingerprint(); }

    // ok, stopped (a signal; a checkpoint is saved) or numerics (gave up; nothing more is saved),
    // the same on all ranks. directory: null on all ranks but 0. team: notified after each step
    // and around slow operations.
    ExitCode run(RunDirectory* directory, ranks::Comm& comm, ranks::Team& team);

  private:
    struct StepOutcome {
        double loss = 0, gradient_norm = 0, lr = 0, largest_score = 0;
        bool finite = false;   // loss and gradient norm are
        bool applied = false;  // false: nothing changed, not even the moments
        bool refused = false;  // a spike that ends the run: the step does not count
    };
    // What a forward and backward pass over a step says: the same bits however often it is made.
    struct Measured {
        std::vector<double> losses;  // sums, by micro-batch of all ranks
        double loss = 0, gradient_norm = 0;
    };
    // Time taken by something whose FLOPs are known.
    struct Spent {
        double seconds = 0, flops = 0;
    };
    // longest: evaluations at longer lengths are left out.
    void plan(model::Arena& arena, int64_t longest = std::numeric_limits<int64_t>::max());
    int64_t needed(const model::Arena& arena) const;
    bool halve_micro_batches();
    std::vector<int64_t> evaluated_up_to(int64_t longest) const;
    int64_t evaluated_tokens(int64_t longest) const;  // of a batch of evaluations at lengths up to this
    int64_t most_micro_tokens() const;                // of all stages
    int64_t most_micro_batches() const;
    void check_data() const;
    void describe();
    void allocate();
    void start();             // resume, init_from or fresh weights
    void start_from_files();  // rank 0's part of it
    void share_start();       // what rank 0 began with, to the other ranks
    StateExchange state_exchange();
    bool speaks() const { return directory_ != nullptr; }
    void open_records();
    ExitCode advance();  // a step and what follows it
    StepOutcome train_step();
    Measured measure_step(const Stage& stage, data::Loader& loader);
    void measure_again(const Stage& stage, const Measured& first);
    std::unique_ptr<data::BatchSource> make_source() const;
    data::BatchRequest request_of(const Stage& stage, int64_t step, int64_t micro_batch) const;
    void share_scalars(int64_t micro_batches);
    void share_signals();
    std::string share_text(const std::string& text);  // rank 0's, on all
    void clip_scores(StepOutcome& outcome);
    int stop_signal() const;           // one that all ranks know of; 0: none
    void request_until(int64_t step);  // announces the micro-batches of all steps before `step` to the loader
    void record_step(const StepOutcome& outcome, bool last);
    // Evaluations after a step: each part is false if it was stopped by a signal.
    ExitCode finish_step();
    ExitCode evaluate();
    bool run_part(Part part, std::string& not_finite);
    bool validate(std::string& not_finite);
    bool validate_task();
    bool probe();
    eval::ProbeRequest probe_request() const;
    // Without fingerprints in its records, a run can compare only the tokens that it scored before.
    eval::EvalPick pick() const { return state_.fingerprints ? experiment_.eval.pick : eval::EvalPick::head; }
    eval::Pause make_pause() const;
    uint64_t evaluation_context() const;  // what the results of a validation depend on
    std::vector<Part> parts_left() const;
    void record_done();
    // A signal has been received: saves if need be.
    ExitCode stop();
    bool save();  // false: something is not finite, and nothing was saved
    std::string newest_checkpoint_before(int64_t step) const;
    // The record files of this run and whether only evaluations append to them.
    struct Record {
        const char* name;
        io::RecordFile* file;
        bool evaluations;
    };
    std::vector<Record> records();
    void note_lengths();
    // FLOPs of all that is to come, and what it costs.
    double training_flops(int64_t from_step) const;
    double validation_flops(bool final) const;
    double probe_flops() const;
    double seconds_left(double flops_per_second) const;
    std::string evaluation_plan() const;
    void check_memory();       // before allocating: throws with what would fit
    void check_ranks() const;  // throws if the micro-batches do not go round
    void compare_memory();
    int64_t held_bytes() const;
    const Stage& stage_of(int64_t step) const;
    int64_t scored_per_step(const Stage& stage) const;  // tokens with a target

    const Experiment& experiment_;
    const Surroundings surroundings_;
    RunDirectory* directory_ = nullptr;
    Console& console_;
    std::vector<Stage> stages_;
    int64_t total_steps_;
    Ops* ops_;
    int rank_, ranks_;
    ranks::Comm* comm_ = nullptr;
    ranks::Team* team_ = nullptr;
    data::TokenStream train_stream_, val_stream_;
    data::BatchPlan batch_plan_;
    model::Transformer model_;
    optim::Optimizer optimizer_;
    GradientTree tree_;
    RankTraffic traffic_;
    eval::LengthEvaluator evaluator_;
    eval::Probe probe_;
    eval::TaskEvaluator task_evaluator_;
    model::Arena arena_;
    model::FlatParams weights_;
    model::DeviceBatch batch_;
    Tensor micro_losses_;
    Tensor signals_;   // f64 [R], the signal each rank has received
    Tensor messages_;  // i32, room for what rank 0 tells the others
    Tensor maxima_;    // f32 [R, scores watched]
    int agreed_signal_ = 0;
    std::string optimizer_file_;  // of the checkpoint to resume from
    bool resumed_ = false;
    std::unique_ptr<data::BatchSource> source_;
    std::unique_ptr<data::Loader> loader_;
    int64_t requested_step_ = 0;
    TrainState state_;
    io::RecordFile metrics_, timing_, val_csv_, positions_csv_, probe_csv_, tasks_csv_;
    // A run that an earlier version began keeps the columns of its files.
    size_t val_columns_ = 0, positions_columns_ = 0, tasks_columns_ = 0;
    EventLog events_;
    double peak_flops_ = 0;
    int64_t held_before_plan_ = 0;  // bytes
    bool memory_compared_ = false;
    int failed_saves_ = 0;  // in a row
    int64_t saved_step_ = -1;
    std::vector<Part> done_;                        // of the evaluations after this step
    std::map<std::string, int64_t> resumed_bytes_;  // lengths of record files, where validated.json says more
    bool suspicious_ = false;                       // the step before was a spike or not finite

    // What the clock decides: since the last recorded step.
    std::chrono::steady_clock::time_point started_;
    double busy_seconds_ = 0;  // in training steps
    int64_t busy_tokens_ = 0;
    double busy_flops_ = 0;
    // Since this process began to train.
    Spent validations_, probes_;
    double evaluation_seconds_ = 0, saving_seconds_ = 0;
    int64_t saves_ = 0;
};

}  // namespace longreach::train
