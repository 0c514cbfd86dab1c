#include "train/rank_agreement.h"

#include <algorithm>
#include <bit>

#include "base/text.h"
#include "train/signals.h"

namespace longreach::train {

namespace {

// Room for a TrainState as text, in words of 4 bytes: less than 2 KiB, plus two numbers for each step of
// the window of the spike detection.
int64_t message_words(const Experiment& experiment) {
    return 4096 + 16 * experiment.train.spike.window;
}

void check_ranks(const Experiment& experiment, const std::vector<Stage>& stages, int ranks) {
    if (ranks == 1) return;
    require(std::has_single_bit(static_cast<unsigned>(ranks)), ExitCode::usage,
            "{} ranks: the gradient is summed over a power of two of them", ranks);
    require(ranks <= experiment.batch.leaves, ExitCode::usage,
            "{} ranks, but batch.leaves={} parts of a step's gradient: set batch.leaves={}", ranks,
            experiment.batch.leaves, ranks);
    for (const Stage& s : stages) {
        if (s.micro_batches() >= ranks) continue;
        const int64_t sequences = s.tokens_per_step / s.context;
        throw Error(ExitCode::usage,
                    fmt::format("{} ranks, but the steps at context {} have {} micro-batch{}", ranks,
                                s.context, s.micro_batches(), s.micro_batches() == 1 ? "" : "es"),
                    sequences >= ranks
                        ? fmt::format("set batch.micro_tokens to at most {}", s.tokens_per_step / ranks)
                        : fmt::format("a step has only {}: use fewer ranks, or more batch.tokens",
                                      counted(static_cast<size_t>(sequences), "sequence")));
    }
}

}  // namespace

RankAgreement::RankAgreement(const Session& session) : session_(session) {
    check_ranks(session.experiment, session.schedule.stages(), session.ranks);
}

void RankAgreement::plan(model::Arena& arena) {
    arena.group("ranks");
    signals_ = arena.reserve("signals", DType::f64, {session_.ranks});
    if (session_.ranks > 1)
        messages_ = arena.reserve("messages", DType::i32, {message_words(session_.experiment)});
}

std::string RankAgreement::text(const std::string& own) const {
    return ranks::broadcast(session_.ops, *session_.comm, messages_, own);
}

void RankAgreement::gather(DType type, int64_t count, const PartsOf& parts_of) const {
    std::vector<ranks::Transfer> sends, receives;
    const std::vector<Tensor> own = parts_of(session_.rank);
    for (int r = 0; r < session_.ranks; ++r) {
        if (r == session_.rank) continue;
        for (const Tensor& t : own) sends.push_back({r, t});
        for (const Tensor& t : parts_of(r)) receives.push_back({r, t});
    }
    ranks::Comm& comm = *session_.comm;
    comm.wait(comm.exchange({ranks::CollectiveOp::all_gather, type, count}, sends, receives));
}

void RankAgreement::gather_with_signals(int64_t count, const PartsOf& parts_of) {
    const double own = StopSignals::received();
    session_.ops.upload(signals_.range(session_.rank, 1), &own);
    gather(DType::f64, count + session_.ranks, [&](int rank) {
        std::vector<Tensor> parts = parts_of(rank);
        parts.push_back(signals_.range(rank, 1));
        return parts;
    });
    std::vector<double> signals(static_cast<size_t>(session_.ranks));
    session_.ops.download(signals.data(), signals_);
    agreed_ = static_cast<int>(*std::max_element(signals.begin(), signals.end()));
}

int RankAgreement::stop_signal() const {
    return session_.ranks > 1 ? agreed_ : StopSignals::received();
}

}  // namespace longreach::train
