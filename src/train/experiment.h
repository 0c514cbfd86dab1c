// The root of the config, and the checks that span its sections. One JSON file is one experiment.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "config/fields.h"
#include "config/problems.h"
#include "data/data_config.h"
#include "eval/eval_config.h"
#include "eval/probe_config.h"
#include "model/model_config.h"
#include "optim/optimizer_config.h"
#include "train/parallel_config.h"
#include "train/positions.h"
#include "train/spike.h"

namespace longreach::train {

struct RunConfig {
    std::string name = "unnamed";
    std::string dir = "runs";
    int64_t seed = 1;
    std::string init_from;
    bool init_other_tokenizer = false;
    int64_t log_every = 10;
    bool events = true;
    void fields(config::Fields& f);
};

struct SeedConfig {
    int64_t init = -1;  // -1: run.seed
    int64_t data = -1;
    void fields(config::Fields& f);
};

struct StageConfig {
    int64_t steps = 0;  // exactly one of steps and tokens
    int64_t tokens = 0;
    int64_t context = 1024;
    int64_t batch_tokens = 0;
    int64_t window = 0;
    double lr = 1;
    json::Value mixture;  // null: as data.mixture
    void fields(config::Fields& f);
};

// The window of windowed layers grows in steps of `multiple` from `from` at the start of the run to
// `to` at its end.
struct WindowWarmupConfig {
    int64_t to = 0;  // 0: off
    int64_t from = 128;
    int64_t multiple = 128;
    void fields(config::Fields& f);
};

struct BatchConfig {
    int64_t tokens = 65536;
    int64_t micro_tokens = 0;
    int64_t leaves = 8;
    // Tokens of a micro-batch, in a stage whose steps have step_tokens.
    int64_t micro_of(int64_t step_tokens, int64_t context) const;
    void fields(config::Fields& f);
};

// The weights of the training losses by position p in the document (of which n = p + 1 tokens are seen), as a formula
// of p, n, L and T, divided by its mean over the positions of a sequence: a constant changes nothing. A function of
// the position alone, so neither other documents nor the cut into micro-batches and ranks change a weight.
struct LossConfig {
    std::string weight;  // "": 1
    void fields(config::Fields& f);
    // Of the positions of a sequence of `context` tokens; empty: 1. Throws law::FormulaError, or Error with the
    // position at which the formula gives no weight.
    std::vector<float> weights(int64_t context, int64_t train_context) const;
};

struct CheckpointConfig {
    int64_t every = 500;
    int64_t keep = 2;
    bool at_start = false;
    bool keep_optimizer = true;
    void fields(config::Fields& f);
};

enum class Device { automatic, cpu, cuda };
enum class PrecisionChoice { automatic, fp32, bf16 };
struct SystemConfig {
    Device device = Device::automatic;
    PrecisionChoice precision = PrecisionChoice::automatic;
    int64_t threads = 0;
    bool recompute = false;
    int64_t device_timeout = 60;  // seconds
    void fields(config::Fields& f);
};

// A stage with all defaults resolved.
struct Stage {
    int64_t first_step, steps;  // [first_step, first_step + steps)
    int64_t first_token;        // tokens consumed before it
    int64_t context;
    int64_t tokens_per_step;
    int64_t micro_tokens;  // tokens of one micro-batch; divides tokens_per_step
    int64_t window;
    double lr;
    int64_t micro_batches() const { return tokens_per_step / micro_tokens; }
    // Tokens that the run has consumed when `step` of this stage (or the first step after it) begins.
    int64_t tokens_before(int64_t step) const { return first_token + (step - first_step) * tokens_per_step; }
};

struct Experiment {
    RunConfig run;
    SeedConfig seed;
    model::ModelConfig model;
    data::DataConfig data;
    std::vector<StageConfig> stages;
    WindowWarmupConfig window_warmup;
    BatchConfig batch;
    LossConfig loss;
    PositionsConfig positions;
    optim::OptimizerConfig optimizer;
    TrainConfig train;
    eval::EvalConfig eval;
    eval::ProbeConfig probe;
    CheckpointConfig checkpoint;
    ParallelConfig parallel;
    SystemConfig system;
    void fields(config::Fields& f);
    // Fills in the fields that follow from others, then checks.
    void check(config::Problems& problems);

    uint64_t init_seed() const { return static_cast<uint64_t>(seed.init >= 0 ? seed.init : run.seed); }
    uint64_t data_seed() const { return static_cast<uint64_t>(seed.data >= 0 ? seed.data : run.seed); }
    std::vector<Stage> resolved_stages() const;
    Stage stage_at(int64_t step) const;  // the stage that trains step `step`; past the end: the last
    int64_t total_steps() const;
    int64_t window_at(int64_t step) const;  // widest window of windowed layers in that step; 0: as configured
    int64_t block_tokens() const;           // the data order's block: the largest stage context
    int64_t table_rows() const;             // the longest sequence of training or validation
    int64_t eval_batch_tokens(int64_t piece) const;  // tokens evaluated at once; piece: eval::piece_of()
    // The same for other micro-batches and lengths, rising.
    int64_t eval_batch_tokens(int64_t piece, int64_t micro_tokens, std::span<const int64_t> lengths) const;
    const std::vector<int64_t>& probe_lengths() const {
        return probe.lengths.empty() ? eval.lengths : probe.lengths;
    }
    // Every length at which a run evaluates the model.
    std::vector<int64_t> evaluated_lengths() const;
    std::vector<int64_t> every_length() const;  // of training and evaluation, rising
    uint64_t task_seed() const;
    // Where the weights of the sources change, for the order of the data.
    std::vector<data::Phase> phases() const;

  private:
    bool knows_layouts() const;  // every layer's layout exists
    std::vector<int64_t> layers_of_rope() const;
    // windowed: whether a layer has a window. Returns false if the checks that use the stages cannot run.
    bool check_stages(config::Problems& problems, bool windowed) const;
    void check_window_warmup(config::Problems& problems, bool windowed) const;
    void check_layers(config::Problems& problems) const;
    void check_rope(config::Problems& problems) const;
    void check_task(config::Problems& problems) const;
    void check_loss(config::Problems& problems) const;
};

}  // namespace longreach::train
