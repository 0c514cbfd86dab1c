#include "train/stepper.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "mixers/key_index.h"
#include "train/batch_source.h"

namespace longreach::train {

Stepper::Stepper(Session& session, RankAgreement& agreement)
    : session_(session),
      agreement_(agreement),
      batch_plan_(session.blocks(), session.experiment.phases(), session.experiment.block_tokens(),
                  session.experiment.data_seed(), session.experiment.data.shuffle),
      optimizer_(session.experiment.optimizer, session.model.params(),
                 {session.rank, session.ranks, session.experiment.parallel.shard_optimizer}),
      tree_(session.experiment.batch.leaves, session.rank, session.ranks),
      traffic_(session.experiment.parallel, optimizer_.ownership(), session.model.segments(), session.rank),
      source_(make_source()) {
    const optim::QkClipConfig& clip = session.experiment.optimizer.qk_clip;
    const auto& params = session.model.params().params();
    if (std::all_of(params.begin(), params.end(), [&](const model::Param& p) {
            return !session.experiment.optimizer.trains(p.name) || model::KeyIndex::owns(p.name);
        }))
        session.model.train_indexes_alone();
    if (clip.limit > 0) session.model.watch_scores(clip.measure == optim::ScoreMeasure::absolute);
}

void Stepper::plan_state(model::Arena& arena, const std::vector<Stage>& stages) {
    tree_.plan(arena, session_.model.params().size(), most_micro_batches(stages));
    traffic_.plan(arena);
    optimizer_.plan(arena, session_.ops);
}

void Stepper::plan_score_maxima(model::Arena& arena) {
    const int64_t watched = session_.model.score_maxima().count();
    if (session_.ranks > 1 && watched > 0)
        maxima_ = arena.reserve("score_maxima of all ranks", DType::f32, {session_.ranks, watched});
}

void Stepper::plan_activations(model::Arena& arena, const std::vector<Stage>& stages, bool recompute) {
    const bool documents = session_.experiment.data.document_mask;
    model::PlanSize size{most_micro_tokens(stages), {}};
    size.recompute = recompute;
    for (const Stage& s : stages) size.lengths.push_back(s.context);
    arena.group("batch, training");
    batch_.plan(arena, size.tokens,
                {.documents = documents, .loss_weights = !session_.experiment.loss.weight.empty()});
    micro_losses_ = arena.reserve("losses", DType::f64, {most_micro_batches(stages)});
    session_.model.plan_training(arena, session_.ops, size, documents);
    if (session_.model.indexed_layers() > 0)
        index_losses_ = arena.reserve("index losses", DType::f64, {most_micro_batches(stages)});
}

void Stepper::connect() {
    data::LoaderOptions options;
    options.max_tokens = most_micro_tokens(session_.schedule.stages());
    options.documents = session_.experiment.data.document_mask;
    loader_ = std::make_unique<data::Loader>(*source_, options);
    traffic_.connect(session_.ops, *session_.comm, session_.weights, tree_);
}

void Stepper::start() {
    optimizer_.set_updates(session_.state.updates);
    requested_step_ = session_.state.step;
}

std::unique_ptr<data::BatchSource> Stepper::make_source() const {
    const Experiment& e = session_.experiment;
    return batch_source_type(e.data).make(e, {session_.train_stream, batch_plan_});
}

data::BatchRequest Stepper::request_of(const Stage& stage, int64_t step, int64_t micro_batch) const {
    const int64_t first = stage.tokens_before(step) + micro_batch * stage.micro_tokens;
    return {static_cast<uint64_t>(first), stage.micro_tokens / stage.context, stage.context};
}

void Stepper::request_until(int64_t step) {
    for (; requested_step_ < std::min(step, session_.schedule.steps()); ++requested_step_) {
        const Stage& s = session_.schedule.stage_of(requested_step_);
        tree_.begin_step(s.micro_batches());
        for (int64_t m = tree_.own().first; m < tree_.own().end; ++m)
            loader_->request(request_of(s, requested_step_, m));
    }
}

int64_t Stepper::scored_per_step(const Stage& stage) const {
    return stage.tokens_per_step / stage.context * source_->scored_per_sequence(stage.context);
}

// Shares the losses of all micro-batches and the squares of all gradients among all ranks.
void Stepper::gather_scalars(int64_t micro_batches) {
    const auto pieces = static_cast<int64_t>(optimizer_.ownership().pieces().size());
    const int64_t indexes = index_losses_ ? micro_batches : 0;
    agreement_.gather_with_signals(micro_batches + indexes + pieces, [&](int rank) {
        const GradientTree::Range own = tree_.of(rank);
        std::vector<Tensor> parts{micro_losses_.range(own.first, own.end - own.first)};
        if (index_losses_) parts.push_back(index_losses_.range(own.first, own.end - own.first));
        parts.push_back(optimizer_.squares(rank));
        return parts;
    });
}

std::span<const float> Stepper::weigh(const data::MicroBatch& micro) {
    const Experiment& e = session_.experiment;
    const auto length = static_cast<size_t>(micro.request.length);
    if (position_weights_.size() != length)
        position_weights_ = e.loss.weights(micro.request.length, e.model.train_context);
    token_weights_.clear();
    for (size_t i = 0; i < micro.tokens.size() && !position_weights_.empty(); ++i) {
        const size_t start = micro.doc_start.empty() ? 0 : static_cast<size_t>(micro.doc_start[i]);
        token_weights_.push_back(position_weights_[i % length - start]);
    }
    return token_weights_;
}

// Adds the gradients of this rank's micro-batches, which the loader delivers, to the tree. Then computes the
// gradient norm and the losses over all ranks.
Stepper::Gradient Stepper::measure(const Stage& stage, data::Loader& loader) {
    Ops& ops = session_.ops;
    model::Transformer& model = session_.model;
    const bool several = session_.ranks > 1;
    if (session_.experiment.optimizer.qk_clip.limit > 0) model.clear_maxima(ops);
    const int64_t n = stage.micro_tokens;
    const double scored = static_cast<double>(scored_per_step(stage));
    const float scale = static_cast<float>(1.0 / scored);
    tree_.begin_step(stage.micro_batches());
    const GradientTree::Range own = tree_.own();
    for (int64_t m = own.first; m < own.end; ++m) {
        const data::MicroBatch micro = loader.take();
        const model::Batch batch =
            batch_.upload(ops, stage.context, micro.tokens, micro.targets, micro.doc_start, weigh(micro));
        const model::FlatParams gradients = tree_.begin(m);
        const bool last = m + 1 == own.end;
        // Weights still arrive during the first pass; gradients are sent during the last.
        RankTraffic* const traffic = several && (m == own.first || last) ? &traffic_ : nullptr;
        if (several && last) traffic_.completes(m);
        const int64_t window = session_.experiment.window_at(session_.state.step);
        ops.replay(fmt::format("{} {} {} {} {} {} {}", stage.context, n, stage.tokens_per_step, window,
                               gradients.flat.data(), gradients.write == Write::set, traffic != nullptr),
                   [&] { model.forward_backward(ops, session_.weights, gradients, batch, scale, traffic); });
        several&& last ? tree_.advance(m) : tree_.end(ops, m);
        ops.sum(micro_losses_.range(m, 1), model.training_losses(n));
        if (index_losses_) ops.sum(index_losses_.range(m, 1), model.index_losses(n));
    }
    if (several) traffic_.finish_gradients();
    // Queued before the only wait of a step, which is for its losses and this measurement.
    optimizer_.measure(ops, tree_.result());
    if (several) gather_scalars(stage.micro_batches());
    Gradient gradient;
    gradient.losses.resize(static_cast<size_t>(stage.micro_batches()));
    ops.download(gradient.losses.data(), micro_losses_.first(stage.micro_batches()));
    for (const double loss : gradient.losses) gradient.loss += loss;
    gradient.loss /= scored;
    if (index_losses_) {
        std::vector<double> sums(static_cast<size_t>(stage.micro_batches()));
        ops.download(sums.data(), index_losses_.first(stage.micro_batches()));
        gradient.index_loss = std::accumulate(sums.begin(), sums.end(), 0.0) /
                              static_cast<double>(stage.tokens_per_step * model.trained_indexes());
    }
    optim::Optimizer::GradientNorms norms = optimizer_.gradient_norms(ops);
    gradient.norm = norms.whole;
    gradient.layer_norms = std::move(norms.layers);
    return gradient;
}

// Computes the step again from the same weights and data. Different bits mean that the machine miscalculated,
// either now or the first time.
void Stepper::measure_again(const Stage& stage, const Gradient& first) {
    const std::unique_ptr<data::BatchSource> source = make_source();
    data::LoaderOptions options;
    options.max_tokens = stage.micro_tokens;
    options.documents = session_.experiment.data.document_mask;
    options.background = false;
    data::Loader loader(*source, options);
    const int64_t step = session_.state.step;
    tree_.begin_step(stage.micro_batches());
    for (int64_t m = tree_.own().first; m < tree_.own().end; ++m) loader.request(request_of(stage, step, m));
    const Gradient second = measure(stage, loader);
    const auto same = [](double a, double b) {
        return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
    };
    bool equal = std::equal(first.losses.begin(), first.losses.end(), second.losses.begin(), same);
    // A library that chooses its own order of summation need not give the same norm twice.
    if (session_.ranks == 1 || session_.experiment.parallel.reduction == Reduction::tree)
        equal = equal && same(first.norm, second.norm);
    if (equal) return;
    throw Error(
        ExitCode::corruption,
        fmt::format("step {} was computed twice and gave other bits (loss {} and {}, gradient norm {} "
                    "and {}): hardware suspected",
                    step + 1, first.loss, second.loss, first.norm, second.norm),
        "check the machine's memory and temperature; on another one the same command resumes from "
        "the newest checkpoint");
}

// Every rank clips every weight, so all weights must have arrived.
void Stepper::clip_scores(StepOutcome& outcome) {
    Ops& ops = session_.ops;
    model::Transformer& model = session_.model;
    if (session_.ranks > 1) {
        const Tensor maxima = model.score_maxima();
        traffic_.settle();
        const auto row = [&](int rank) { return maxima_.row_range(rank, 1); };
        ops.copy(row(session_.rank), maxima.shaped({1, maxima.count()}));
        agreement_.gather(DType::f32, maxima_.count(), [&](int rank) { return std::vector{row(rank)}; });
        std::vector<float> all(static_cast<size_t>(maxima_.count()));
        ops.download(all.data(), maxima_);
        const size_t n = all.size() / static_cast<size_t>(session_.ranks);
        for (size_t i = n; i < all.size(); ++i) all[i % n] = std::max(all[i % n], all[i]);
        ops.upload(maxima, all.data());
    }
    outcome.largest_score = model.largest_score(ops);
    if (!outcome.applied) return;
    model.clip_scores(ops, session_.weights, static_cast<float>(session_.experiment.optimizer.qk_clip.limit));
    if (session_.ranks > 1) session_.weights.round(ops);
}

StepOutcome Stepper::step() {
    const Experiment& e = session_.experiment;
    const SpikeConfig& spikes = e.train.spike;
    TrainState& state = session_.state;
    const Stage& stage = session_.schedule.stage_of(state.step);
    // Losses at another context are not comparable.
    if (state.step == stage.first_step) state.spike_window = {};
    request_until(state.step + 2);
    session_.model.set_stage_window(e.window_at(state.step));
    if (e.positions.range > 0)
        session_.model.place(session_.ops, e.positions.drawn(e.data_seed(), state.step, stage.context),
                             e.positions.range);
    const Gradient gradient = measure(stage, *loader_);

    StepOutcome outcome;
    outcome.loss = gradient.loss;
    outcome.index_loss = gradient.index_loss;
    outcome.layer_gradient_norms = gradient.layer_norms;
    outcome.lr =
        optim::schedule_multiplier(e.optimizer.schedule, state.step, session_.schedule.steps()) * stage.lr;
    outcome.finite = std::isfinite(gradient.loss) && std::isfinite(gradient.norm);
    const std::string spike =
        outcome.finite ? find_spike(spikes, state.spike_window, gradient.loss, gradient.norm) : "";
    const bool suspicious = !outcome.finite || !spike.empty();
    // In a row of suspicious steps, only the first is computed again: a lasting change of level makes such a
    // row, and a machine fault cannot give equal bits for that long.
    const bool first = suspicious && !suspicious_;
    suspicious_ = suspicious;
    if (first) {
        measure_again(stage, gradient);
        const char* end = !outcome.finite                      ? "the update is skipped"
                          : spikes.action == SpikeAction::warn ? "training continues"
                          : spikes.action == SpikeAction::skip ? "the update is skipped"
                                                               : "the run ends (train.spike.action: stop)";
        session_.console.warn(
            fmt::format("step {}: {}; computed again with the same bits; {}", state.step + 1,
                        outcome.finite ? spike : "the loss or the gradient norm is not finite", end));
    }
    if (!spike.empty() && spikes.action == SpikeAction::stop) {
        outcome.refused = true;
        if (session_.writes())
            session_.console.end_line(fmt::format("step {}: {}; {}", state.step + 1, spike,
                                                  session_.earlier_checkpoint(state.step + 1)));
        return outcome;
    }
    const bool skip = !spike.empty() && spikes.action == SpikeAction::skip;
    if (std::isfinite(outcome.loss)) {
        outcome.gradient_norm = gradient.norm;
        outcome.applied = !skip && optimizer_.update(session_.ops, session_.weights, tree_.result(),
                                                     gradient.norm, outcome.lr, state.step);
        if (outcome.applied && session_.ranks > 1) traffic_.send_weights();
        if (e.optimizer.qk_clip.limit > 0) clip_scores(outcome);
        if (outcome.applied && session_.ranks == 1) session_.weights.round(session_.ops);
    }
    // The window includes spikes: after a permanent change of level it follows within half its length.
    if (outcome.finite) state.spike_window.add(gradient.loss, gradient.norm, spikes.window);
    state.step += 1;
    state.tokens += stage.tokens_per_step;
    state.updates = optimizer_.updates();
    state.bad_in_a_row = outcome.finite ? 0 : state.bad_in_a_row + 1;
    state.skipped += outcome.finite ? 0 : 1;
    state.spikes += spike.empty() ? 0 : 1;
    state.spikes_skipped += skip ? 1 : 0;
    return outcome;
}

}  // namespace longreach::train
