// Shared by eval, probe and generate: the model of a
// checkpoint on a device, and the directory of its results.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "commands/commands.h"
#include "ranks/comm.h"
#include "eval/lengths.h"
#include "model/arena.h"
#include "model/held_weights.h"
#include "model/transformer.h"
#include "tokenizer/tokenizer.h"
#include "train/console.h"
#include "train/run_directory.h"
#include "train/validation_set.h"

namespace longreach::commands {

struct ModelOptions {
    std::string target, label;
    std::vector<std::string> set;  // overrides of the run's config, --rope among them
};

// Adds the target, --set and --rope. rope_note: appended to the help of --rope.
void add_model_options(Command& command, ModelOptions& options, const std::string& rope_note = "");
void add_label_option(Command& command, ModelOptions& options, const std::string& help);

// The lengths below `longest`, and `longest`.
std::vector<int64_t> lengths_up_to(const std::vector<int64_t>& lengths, int64_t longest);
// For sequences of up to `longest` tokens, in pieces those that are longer than one.
model::PlanSize evaluation_size(const std::vector<int64_t>& lengths, int64_t longest, int64_t piece);

// The tokenizer in the run directory of a checkpoint; null: the model reads bytes, or there is none.
std::shared_ptr<const tokenizer::Tokenizer> run_tokenizer(const io::Checkpoint& checkpoint);

class OpenedModel {
    std::string device_note_;  // set when ops is created

  public:
    // quiet: writes nothing to standard output. adjust: applies the
    // command's own options to the config of the run before it is checked.
    OpenedModel(const ModelOptions& options, bool quiet,
                const std::function<void(train::Experiment&)>& adjust);

    train::Console console;
    const io::Notice notice = [this](const std::string& text) { console.line(text); };
    const io::Notice progress = [this](const std::string& text) { console.status(text); };
    const io::Checkpoint checkpoint;
    const std::string directory;         // <run>/eval/<label>; empty without a label
    std::vector<std::string> overrides;  // of the run's config
    const train::Experiment experiment;
    const std::unique_ptr<Ops> ops;
    ranks::SingleComm comm;
    std::optional<model::Transformer> model;
    model::FlatParams weights;

    // set: a name in data.val_sets; empty: data.val.
    train::ValidationSet validation_set(const std::string& set) const;
    // Creates a model for sequences of up to `longest` tokens, without memory until load().
    void build(int64_t longest);
    // Reserves the memory of the model and of plan() for sequences of up to `longest` tokens, then
    // loads the weights. If memory is insufficient, the error names the longest length that fits.
    using Plan = std::function<void(model::Arena& arena, int64_t longest)>;
    // continues: texts will be continued token by token, for which the device holds the weights a second time if it gains
    // from that and there is memory.
    void load(const Plan& plan, int64_t longest, bool continues = false);
    model::HeldWeights held;
    // Writes the request to request.json in the label's directory. scored: of data.val, null if no losses
    // were measured. sets: the further sets that were scored. keep: does not replace an existing file.
    void write_request(const std::vector<int64_t>& lengths, int64_t tokens,
                       const std::vector<std::string>& tasks, const eval::ScoredTokens* scored,
                       const std::vector<std::string>& sets, bool keep);

  private:
    int64_t stage_window() const;
    void check_memory(const Plan& plan, int64_t longest);

    model::Arena arena_;
};

}  // namespace longreach::commands
