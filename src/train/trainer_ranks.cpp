// What a run of several ranks does besides: whether its steps can be shared, what rank 0 began with, the
// numbers that all need to take the same decisions.
#include <algorithm>
#include <array>
#include <bit>

#include "train/signals.h"
#include "train/trainer.h"

namespace longreach::train {

void Trainer::check_ranks() const {
    if (ranks_ == 1) return;
    require(std::has_single_bit(static_cast<unsigned>(ranks_)), ExitCode::usage,
            "{} ranks: the gradient is summed over a power of two of them", ranks_);
    require(ranks_ <= experiment_.batch.leaves, ExitCode::usage,
            "{} ranks, but batch.leaves={} parts of a step's gradient: set batch.leaves={}", ranks_,
            experiment_.batch.leaves, ranks_);
    for (const Stage& s : stages_) {
        if (s.micro_batches() >= ranks_) continue;
        const int64_t sequences = s.tokens_per_step / s.context;
        throw Error(ExitCode::usage,
                    fmt::format("{} ranks, but the steps at context {} have {} micro-batch{}", ranks_,
                                s.context, s.micro_batches(), s.micro_batches() == 1 ? "" : "es"),
                    sequences >= ranks_
                        ? fmt::format("set batch.micro_tokens to at most {}", s.tokens_per_step / ranks_)
                        : fmt::format("a step has only {} sequences: use fewer ranks, or more "
                                      "batch.tokens",
                                      sequences));
    }
}

StateExchange Trainer::state_exchange() {
    return {*ops_, *comm_, optimizer_, tree_.sum().flat};  // between steps nobody needs the gradients
}

void Trainer::share_start() {
    json::Value message = json::Value::object();
    json::Value done = json::Value::array();
    for (const Part part : done_) done.push(static_cast<int64_t>(part));
    message.set("resumed", resumed_)
        .set("moments", !optimizer_file_.empty())
        .set("done", done)
        .set("state", state_.to_json());
    const std::string told = share_text(json::write(message, json::Style::compact));
    const json::Value heard = json::parse(told, "rank 0's message", {.code = ExitCode::peer});
    done_.clear();
    for (const json::Value& part : heard.find("done")->as_array())
        done_.push_back(static_cast<Part>(part.as_int64()));
    resumed_ = heard.find("resumed")->to_bool().value_or(false);
    const bool moments = heard.find("moments")->to_bool().value_or(false);
    state_ = TrainState::from_json(*heard.find("state"));

    std::vector<ranks::Transfer> sends, receives;
    if (rank_ > 0) receives.push_back({0, weights_.flat});
    for (int r = 1; rank_ == 0 && r < ranks_; ++r) sends.push_back({r, weights_.flat});
    comm_->wait(comm_->exchange({ranks::CollectiveOp::broadcast, DType::f32, weights_.flat.count()}, sends,
                                receives));
    if (!moments) return;
    StateExchange state = state_exchange();
    if (speaks()) return load_optimizer(optimizer_file_, state);
    for (size_t i = 0; i < state.tensors().size(); ++i) state.deliver(nullptr);
}

std::string Trainer::share_text(const std::string& text) {
    return ranks::broadcast(*ops_, *comm_, messages_, text);
}

// One of the signals that ranks have received, if any has: from each to all.
void Trainer::share_signals() {
    const double signal = StopSignals::received();
    const auto of = [&](int rank) { return Tensor(signals_.f64() + rank, DType::f64, {1}); };
    ops_->upload(of(rank_), &signal);
    std::vector<ranks::Transfer> sends, receives;
    for (int r = 0; r < ranks_; ++r) {
        if (r == rank_) continue;
        sends.push_back({r, of(rank_)});
        receives.push_back({r, of(r)});
    }
    comm_->wait(comm_->exchange({ranks::CollectiveOp::all_gather, DType::f64, ranks_}, sends, receives));
    std::vector<double> signals(static_cast<size_t>(ranks_));
    ops_->download(signals.data(), signals_);
    agreed_signal_ = static_cast<int>(*std::max_element(signals.begin(), signals.end()));
}

// The losses of all micro-batches, the squares of all gradients, and who was asked to stop: from each to all.
void Trainer::share_scalars(int64_t micro_batches) {
    const double signal = StopSignals::received();
    ops_->upload(Tensor(signals_.f64() + rank_, DType::f64, {1}), &signal);
    const auto parts = [&](int rank) {
        const GradientTree::Range range = tree_.of(rank);
        return std::array{Tensor(micro_losses_.f64() + range.first, DType::f64, {range.end - range.first}),
                          optimizer_.squares(rank), Tensor(signals_.f64() + rank, DType::f64, {1})};
    };
    std::vector<ranks::Transfer> sends, receives;
    for (int r = 0; r < ranks_; ++r) {
        if (r == rank_) continue;
        for (const Tensor& t : parts(rank_)) sends.push_back({r, t});
        for (const Tensor& t : parts(r)) receives.push_back({r, t});
    }
    const int64_t pieces = static_cast<int64_t>(optimizer_.ownership().pieces().size());
    comm_->wait(comm_->exchange(
        {ranks::CollectiveOp::all_gather, DType::f64, micro_batches + pieces + ranks_}, sends, receives));
    std::vector<double> signals(static_cast<size_t>(ranks_));
    ops_->download(signals.data(), signals_);
    agreed_signal_ = static_cast<int>(*std::max_element(signals.begin(), signals.end()));
}

// Every rank clips every weight, so all of them have to be here.
void Trainer::clip_scores(StepOutcome& outcome) {
    const Tensor maxima = model_.score_maxima();
    if (ranks_ > 1) {
        traffic_.settle();
        std::vector<ranks::Transfer> sends, receives;
        const auto row = [&](int rank) { return maxima_.row_range(rank, 1); };
        ops_->copy(row(rank_), maxima.shaped({1, maxima.count()}));
        for (int r = 0; r < ranks_; ++r) {
            if (r == rank_) continue;
            sends.push_back({r, row(rank_)});
            receives.push_back({r, row(r)});
        }
        comm_->wait(
            comm_->exchange({ranks::CollectiveOp::all_gather, DType::f32, maxima_.count()}, sends, receives));
        std::vector<float> all(static_cast<size_t>(maxima_.count()));
        ops_->download(all.data(), maxima_);
        const size_t n = all.size() / static_cast<size_t>(ranks_);
        for (size_t i = n; i < all.size(); ++i) all[i % n] = std::max(all[i % n], all[i]);
        ops_->upload(maxima, all.data());
    }
    outcome.largest_score = model_.largest_score(*ops_);
    if (!outcome.applied) return;
    model_.clip_scores(*ops_, weights_, static_cast<float>(experiment_.optimizer.qk_clip.limit));
    if (ranks_ > 1) weights_.round(*ops_);
}

int Trainer::stop_signal() const {
    return ranks_ > 1 ? agreed_signal_ : StopSignals::received();
}

}  // namespace longreach::train
