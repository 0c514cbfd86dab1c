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
#include "dist/team.h"
#include "eval/lengths.h"
#include "eval/probe.h"
#include "eval/tasks.h"
#include "io/record_file.h"
#include "model/transformer.h"
#include "optim/optimizer.h"
#include "train/console.h"
#include "train/event_log.h"
#include "train/experiment.h"
#include "train/gradient_tree.h"
#include "train/rank_traffic.h"
#include "train/run_directory.h"
#include "train/train_state.h"

namespace longreach {

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

    // ok, stopped (a signal; a checkpoint is saved) or numerics (gave up; nothing more is saved). directory:
    // null on all ranks but 0. team: hears of the steps done, and of what takes long.
    ExitCode run(RunDirectory* directory, Comm& comm, Team& team);

  private:
    struct StepOutcome {
        double loss = 0, gradient_norm = 0, lr = 0, largest_score = 0;
        bool applied = false;
    };
    // longest: evaluations at longer lengths are left out.
    void plan(Arena& arena, int64_t longest = std::numeric_limits<int64_t>::max());
    int64_t needed(const Arena& arena) const;
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
    StepOutcome train_step();
    void share_scalars(int64_t micro_batches);
    void clip_scores(StepOutcome& outcome);
    int stop_signal() const;           // one that all ranks know of; 0: none
    void request_until(int64_t step);  // announces the micro-batches of all steps before `step` to the loader
    void record_step(const StepOutcome& outcome, bool last);
    void validate(bool final);
    void probe();
    ProbeRequest probe_request() const;
    void save();
    void check_memory();       // before allocating: throws with what would fit
    void check_ranks() const;  // throws if the micro-batches do not go round
    void compare_memory();
    int64_t held_bytes() const;
    const Stage& stage_of(int64_t step) const;
    bool scores_task() const;  // validations score the task trained on
    void validate_task();
    int64_t scored_per_step(const Stage& stage) const;  // tokens with a target

    const Experiment& experiment_;
    const Surroundings surroundings_;
    RunDirectory* directory_ = nullptr;
    Console& console_;
    std::vector<Stage> stages_;
    int64_t total_steps_;
    Ops* ops_;
    int rank_, ranks_;
    Comm* comm_ = nullptr;
    Team* team_ = nullptr;
    TokenStream train_stream_, val_stream_;
    BatchPlan batch_plan_;
    Transformer model_;
    Optimizer optimizer_;
    GradientTree tree_;
    RankTraffic traffic_;
    LengthEvaluator evaluator_;
    Probe probe_;
    TaskEvaluator task_evaluator_;
    Arena arena_;
    FlatParams weights_;
    Tensor tokens_, targets_, doc_start_, micro_losses_;
    Tensor signals_;   // f64 [R], the signal each rank has received
    Tensor messages_;  // i32, room for what rank 0 tells the others
    Tensor maxima_;    // f32 [R, scores watched]
    int agreed_signal_ = 0;
    std::string optimizer_file_;  // of the checkpoint to resume from
    bool resumed_ = false;
    std::unique_ptr<BatchSource> source_;
    std::unique_ptr<Loader> loader_;
    int64_t requested_step_ = 0;
    TrainState state_;
    RecordFile metrics_, timing_, val_csv_, positions_csv_, probe_csv_, tasks_csv_;
    size_t val_columns_ = 0;  // of val.csv; a run that an earlier version began keeps its columns
    EventLog events_;
    std::vector<double> host_losses_;
    double peak_flops_ = 0;
    int64_t held_before_plan_ = 0;  // bytes
    bool memory_compared_ = false;
    int failed_saves_ = 0;  // in a row

    // What the clock decides: since the last recorded step.
    std::chrono::steady_clock::time_point started_;
    double busy_seconds_ = 0;  // in training steps
    int64_t busy_tokens_ = 0;
    double busy_flops_ = 0;
};

}  // namespace longreach
