// One step of a run: gradients, what is suspicious about them, the update.
#include <bit>
#include <cmath>

#include "tasks/task_batches.h"
#include "train/trainer.h"

namespace longreach::train {

std::unique_ptr<data::BatchSource> Trainer::make_source() const {
    if (experiment_.data.task.kind == data::TaskKind::none)
        return std::make_unique<data::StreamBatches>(train_stream_, batch_plan_);
    return std::make_unique<tasks::TaskBatches>(experiment_.task_generator(&train_stream_));
}

data::BatchRequest Trainer::request_of(const Stage& stage, int64_t step, int64_t micro_batch) const {
    const int64_t first = stage.tokens_before(step) + micro_batch * stage.micro_tokens;
    return {static_cast<uint64_t>(first), stage.micro_tokens / stage.context, stage.context};
}

void Trainer::request_until(int64_t step) {
    for (; requested_step_ < std::min(step, total_steps_); ++requested_step_) {
        const Stage& s = stage_of(requested_step_);
        tree_.begin_step(s.micro_batches());
        for (int64_t m = tree_.own().first; m < tree_.own().end; ++m)
            loader_->request(request_of(s, requested_step_, m));
    }
}

// Gradients of this rank's micro-batches, which the loader delivers, into the tree; then, of all ranks, their
// norm and the losses.
Trainer::Measured Trainer::measure_step(const Stage& stage, data::Loader& loader) {
    if (experiment_.optimizer.qk_clip.limit > 0) model_.clear_maxima(*ops_);
    const int64_t n = stage.micro_tokens;
    const double scored = static_cast<double>(scored_per_step(stage));
    const float scale = static_cast<float>(1.0 / scored);
    tree_.begin_step(stage.micro_batches());
    const GradientTree::Range own = tree_.own();
    for (int64_t m = own.first; m < own.end; ++m) {
        const data::MicroBatch micro = loader.take();
        const model::Batch batch =
            batch_.upload(*ops_, stage.context, micro.tokens, micro.targets, micro.doc_start);
        const model::FlatParams gradients = tree_.begin(*ops_, m);
        const bool last = m + 1 == own.end;
        if (ranks_ > 1 && (m == own.first || last)) {
            // Weights still arrive during the first pass, gradients leave during the last.
            if (last) traffic_.completes(m);
            model_.forward_backward(*ops_, weights_, gradients, batch, scale, &traffic_);
            last ? tree_.advance(m) : tree_.end(*ops_, m);
        } else {
            const int64_t window = experiment_.window_at(state_.step);
            ops_->replay(fmt::format("{} {} {} {} {}", stage.context, n, stage.tokens_per_step, window,
                                     gradients.flat.data),
                         [&] { model_.forward_backward(*ops_, weights_, gradients, batch, scale); });
            tree_.end(*ops_, m);
        }
        ops_->sum(Tensor(micro_losses_.f64() + m, DType::f64, {1}), model_.training_losses(n));
    }
    if (ranks_ > 1) traffic_.finish_gradients();
    // Queued before the first wait: the only one of a step is for its losses and this.
    optimizer_.measure(*ops_, tree_.result());
    if (ranks_ > 1) share_scalars(stage.micro_batches());
    Measured measured;
    measured.losses.resize(static_cast<size_t>(stage.micro_batches()));
    ops_->download(measured.losses.data(), micro_losses_.first(stage.micro_batches()));
    for (const double loss : measured.losses) measured.loss += loss;
    measured.loss /= scored;
    measured.gradient_norm = optimizer_.gradient_norm(*ops_);
    return measured;
}

// The same step from the same weights and data. Other bits mean that the machine
// miscalculated, now or before.
void Trainer::measure_again(const Stage& stage, const Measured& first) {
    const std::unique_ptr<data::BatchSource> source = make_source();
    data::LoaderOptions options;
    options.max_tokens = stage.micro_tokens;
    options.documents = experiment_.data.document_mask;
    options.background = false;
    data::Loader loader(*source, options);
    tree_.begin_step(stage.micro_batches());
    for (int64_t m = tree_.own().first; m < tree_.own().end; ++m)
        loader.request(request_of(stage, state_.step, m));
    const Measured second = measure_step(stage, loader);
    const auto same = [](double a, double b) {
        return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
    };
    bool equal = std::equal(first.losses.begin(), first.losses.end(), second.losses.begin(), same);
    // A library that sums in an order of its own need not give the same norm twice.
    if (ranks_ == 1 || experiment_.parallel.reduction == Reduction::tree)
        equal = equal && same(first.gradient_norm, second.gradient_norm);
    if (equal) return;
    throw Error(
        ExitCode::corruption,
        fmt::format("step {} was computed twice and gave other bits (loss {} and {}, gradient norm {} "
                    "and {}): hardware suspected",
                    state_.step + 1, first.loss, second.loss, first.gradient_norm, second.gradient_norm),
        "check the machine's memory and temperature; on another one the same command resumes from "
        "the newest checkpoint");
}

Trainer::StepOutcome Trainer::train_step() {
    const Stage& stage = stage_of(state_.step);
    const SpikeConfig& spikes = experiment_.train.spike;
    // Another context has other losses.
    if (state_.step == stage.first_step) state_.spike_window = {};
    request_until(state_.step + 2);
    model_.set_stage_window(experiment_.window_at(state_.step));
    const Measured measured = measure_step(stage, *loader_);

    StepOutcome outcome;
    outcome.loss = measured.loss;
    outcome.lr =
        optim::schedule_multiplier(experiment_.optimizer.schedule, state_.step, total_steps_) * stage.lr;
    outcome.finite = std::isfinite(measured.loss) && std::isfinite(measured.gradient_norm);
    const std::string spike =
        outcome.finite ? find_spike(spikes, state_.spike_window, measured.loss, measured.gradient_norm) : "";
    const bool suspicious = !outcome.finite || !spike.empty();
    // Of several in a row the first is enough: a lasting change of level is a row,
    // and no fault of the machine.
    const bool first = suspicious && !suspicious_;
    suspicious_ = suspicious;
    if (first) {
        measure_again(stage, measured);
        const char* end = !outcome.finite                      ? "the update is skipped"
                          : spikes.action == SpikeAction::warn ? "training goes on"
                          : spikes.action == SpikeAction::skip ? "the update is skipped"
                                                               : "the run ends (train.spike.action: stop)";
        console_.line(
            fmt::format("warning: step {}: {}; computed again with the same bits; {}", state_.step + 1,
                        outcome.finite ? spike : "the loss or the gradient norm is not finite", end));
    }
    if (!spike.empty() && spikes.action == SpikeAction::stop) {
        outcome.refused = true;
        if (speaks()) console_.line(newest_checkpoint_before(state_.step + 1));
        return outcome;
    }
    const bool skip = !spike.empty() && spikes.action == SpikeAction::skip;
    if (std::isfinite(outcome.loss)) {
        outcome.gradient_norm = measured.gradient_norm;
        outcome.applied = !skip && optimizer_.update(*ops_, weights_, tree_.result(), measured.gradient_norm,
                                                     outcome.lr, state_.step);
        if (outcome.applied && ranks_ > 1) traffic_.send_weights();
        if (experiment_.optimizer.qk_clip.limit > 0) clip_scores(outcome);
        if (outcome.applied && ranks_ == 1) weights_.round(*ops_);
    }
    // Spikes too: when the level has changed for good, the window follows after half its length.
    if (outcome.finite) state_.spike_window.add(measured.loss, measured.gradient_norm, spikes.window);
    state_.step += 1;
    state_.tokens += stage.tokens_per_step;
    state_.updates = optimizer_.updates();
    state_.bad_in_a_row = outcome.finite ? 0 : state_.bad_in_a_row + 1;
    state_.skipped += outcome.finite ? 0 : 1;
    state_.spikes += spike.empty() ? 0 : 1;
    state_.spikes_skipped += skip ? 1 : 0;
    busy_tokens_ += stage.tokens_per_step;
    busy_flops_ +=
        model_.training_flops_per_token(stage.context) * static_cast<double>(stage.tokens_per_step);
    return outcome;
}

}  // namespace longreach::train
