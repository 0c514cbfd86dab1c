// One training step: computes the gradient of its micro-batches, checks it for spikes, updates the weights.
//
// With several ranks, each computes its share of the micro-batches, and RankTraffic sums the gradients.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "data/batch_plan.h"
#include "data/loader.h"
#include "model/device_batch.h"
#include "optim/optimizer.h"
#include "train/gradient_tree.h"
#include "train/rank_agreement.h"
#include "train/rank_traffic.h"
#include "train/session.h"
#include "train/state_exchange.h"

namespace longreach::train {

struct StepOutcome {
    double loss = 0, gradient_norm = 0, lr = 0, largest_score = 0;
    std::optional<double> index_loss = {};  // per token and layer with an index of keys, mean of all passes
    std::vector<double> layer_gradient_norms = {};
    bool finite = false;   // whether loss and gradient norm are finite
    bool applied = false;  // false: nothing changed, not even the moments
    bool refused = false;  // a spike ends the run: the step does not count
};

class Stepper {
  public:
    Stepper(Session& session, RankAgreement& agreement);

    // Memory for the whole run: partial sums of the gradient, moments, buffers of RankTraffic.
    void plan_state(model::Arena& arena, const std::vector<Stage>& stages);
    void plan_score_maxima(model::Arena& arena);  // after the model's tables
    // A micro-batch, its losses and activations: memory that is shared with evaluations.
    void plan_activations(model::Arena& arena, const std::vector<Stage>& stages, bool recompute);

    const optim::Optimizer& optimizer() const { return optimizer_; }
    const data::BatchPlan& batch_plan() const { return batch_plan_; }
    int64_t bytes_sent_per_step() const { return traffic_.bytes_per_step(); }

    // Call after the memory is allocated.
    void connect();
    // Call after the state is loaded: the loader prefetches from session.state.step on.
    void start();
    // Trains step session.state.step and advances the state.
    StepOutcome step();
    // Waits until all weights have arrived.
    void settle() { traffic_.settle(); }
    // Moves the optimiser state to and from rank 0. Use it only between steps: it uses the gradient's memory.
    StateExchange state_exchange() { return {session_.ops, *session_.comm, optimizer_, tree_.sum().flat}; }

  private:
    // The result of the forward and backward passes of a step: computing it again gives the same bits.
    struct Gradient {
        std::vector<double> losses;  // sums, by micro-batch, of all ranks
        double loss = 0, norm = 0;
        std::optional<double> index_loss = {};
        std::vector<double> layer_norms;
    };
    std::unique_ptr<data::BatchSource> make_source() const;
    data::BatchRequest request_of(const Stage& stage, int64_t step, int64_t micro_batch) const;
    void request_until(int64_t step);                   // requests all micro-batches before `step`
    int64_t scored_per_step(const Stage& stage) const;  // tokens with a target
    // Of the losses of a micro-batch; empty: 1.
    std::span<const float> weigh(const data::MicroBatch& micro);
    Gradient measure(const Stage& stage, data::Loader& loader);
    void measure_again(const Stage& stage, const Gradient& first);
    void gather_scalars(int64_t micro_batches);
    void clip_scores(StepOutcome& outcome);

    Session& session_;
    RankAgreement& agreement_;
    data::BatchPlan batch_plan_;
    optim::Optimizer optimizer_;
    GradientTree tree_;
    RankTraffic traffic_;
    std::unique_ptr<data::BatchSource> source_;
    std::unique_ptr<data::Loader> loader_;
    model::DeviceBatch batch_;
    std::vector<float> position_weights_;  // of losses, by position in a sequence
    std::vector<float> token_weights_;     // of losses, of a micro-batch
    Tensor micro_losses_;                  // f64 [micro-batches]
    Tensor index_losses_;                  // likewise; empty without an index of keys
    Tensor maxima_;                        // f32 [R, scores watched]
    int64_t requested_step_ = 0;
    bool suspicious_ = false;  // the previous step was a spike or not finite
};

}  // namespace longreach::train
