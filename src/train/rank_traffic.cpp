#include "train/rank_traffic.h"

#include <algorithm>

namespace longreach::train {

namespace {

Tensor stretch(const Tensor& flat, int64_t begin, int64_t count) {
    void* data = flat.as<std::byte>() + begin * size_of(flat.dtype);
    return Tensor(data, flat.dtype, {count});
}

}  // namespace

RankTraffic::RankTraffic(const ParallelConfig& config, const optim::Ownership& ownership,
                         const std::vector<model::Segment>& segments, int rank, int64_t bundle_bytes)
    : config_(config), ownership_(ownership), segments_(segments), bundle_of_(segments.size()), rank_(rank) {
    // From the last segment to the first, the order in which the backward pass completes them.
    for (size_t s = segments.size(); s-- > 0;) {
        const bool full =
            !bundles_.empty() && (bundles_.back().span.end - bundles_.back().span.begin) * 4 >= bundle_bytes;
        if (bundles_.empty() || full) bundles_.push_back({segments[s], {}, 0, {}, {}});
        bundles_.back().span.begin = segments[s].begin;
        bundle_of_[s] = bundles_.size() - 1;
    }
    std::reverse(bundles_.begin(), bundles_.end());
    for (size_t& b : bundle_of_) b = bundles_.size() - 1 - b;
    int64_t incoming = 0;
    for (Bundle& bundle : bundles_) {
        for (int r = 0; r < ownership.ranks(); ++r)
            bundle.owned.push_back(ownership.ranges(r, bundle.span.begin, bundle.span.end));
        bundle.incoming = incoming;
        for (const optim::Ownership::Range& range : bundle.owned[static_cast<size_t>(rank)])
            incoming += range.count;
    }
}

void RankTraffic::plan(model::Arena& arena) {
    if (ownership_.ranks() == 1 || config_.reduction == Reduction::all_reduce) return;
    arena.group("gradients");
    incoming_ = arena.reserve("gradients of other ranks", DType::f32,
                              {ownership_.ranks() - 1, std::max<int64_t>(1, ownership_.elements(rank_))});
}

void RankTraffic::connect(Ops& ops, ranks::Comm& comm, const model::FlatParams& weights,
                          const GradientTree& tree) {
    check(comm.ranks() == ownership_.ranks() && comm.rank() == rank_, "rank {} of {} meets rank {} of {}",
          rank_, ownership_.ranks(), comm.rank(), comm.ranks());
    ops_ = &ops;
    comm_ = &comm;
    weights_ = weights;
    tree_ = &tree;
}

Tensor RankTraffic::received_from(int rank) const {
    return incoming_.row_range(rank < rank_ ? rank : rank - 1, 1);
}

void RankTraffic::completes(int64_t m) {
    completing_ = m;
}

void RankTraffic::need(int64_t segment) {
    receive_weights(bundles_[bundle_of(segment)]);
}

void RankTraffic::done(int64_t segment) {
    if (completing_ < 0) return;
    const model::Segment& s = segments_[static_cast<size_t>(segment)];
    tree_->merge(*ops_, completing_, s.begin, s.end);
    Bundle& bundle = bundles_[bundle_of(segment)];
    if (s.begin == bundle.span.begin) send_gradients(bundle);  // this segment completes the bundle
}

void RankTraffic::send_gradients(Bundle& bundle) {
    const Tensor sum = tree_->sum().flat;
    const int64_t count = bundle.span.end - bundle.span.begin;
    if (config_.reduction == Reduction::all_reduce) {
        bundle.gradients = comm_->all_reduce(stretch(sum, bundle.span.begin, count));
        return;
    }
    std::vector<ranks::Transfer> sends, receives;
    for (int r = 0; r < comm_->ranks(); ++r) {
        if (r == rank_) continue;
        for (const optim::Ownership::Range& range : bundle.owned[static_cast<size_t>(r)])
            sends.push_back({r, stretch(sum, range.begin, range.count)});
        int64_t at = bundle.incoming;
        for (const optim::Ownership::Range& range : bundle.owned[static_cast<size_t>(rank_)]) {
            receives.push_back({r, stretch(received_from(r), at, range.count)});
            at += range.count;
        }
    }
    bundle.gradients =
        comm_->exchange({ranks::CollectiveOp::reduce_scatter, DType::f32, count}, sends, receives);
}

// The ranks are the leaves of a binary tree. a + b and b + a have the same bits, so if one operand
// contains this rank's own part, the sum is stored there.
void RankTraffic::add_ranks(const Bundle& bundle) {
    const Tensor sum = tree_->sum().flat;
    const int ranks = comm_->ranks();
    int64_t at = bundle.incoming;
    for (const optim::Ownership::Range& range : bundle.owned[static_cast<size_t>(rank_)]) {
        std::vector<Tensor> parts;
        for (int r = 0; r < ranks; ++r)
            parts.push_back(r == rank_ ? stretch(sum, range.begin, range.count)
                                       : stretch(received_from(r), at, range.count));
        for (int width = 1; width < ranks; width *= 2) {
            for (int r = 0; r < ranks; r += 2 * width) {
                Tensor& left = parts[static_cast<size_t>(r)];
                const Tensor right = parts[static_cast<size_t>(r + width)];
                const bool keep_right = rank_ >= r + width && rank_ < r + 2 * width;
                ops_->add(keep_right ? right : left, keep_right ? left : right);
                if (keep_right) left = right;
            }
        }
        at += range.count;
    }
}

ranks::Comm::Ticket RankTraffic::share(const Bundle& bundle, const Tensor& flat, ranks::CollectiveOp op) {
    std::vector<ranks::Transfer> sends, receives;
    for (int r = 0; r < comm_->ranks(); ++r) {
        if (r == rank_) continue;
        for (const optim::Ownership::Range& range : bundle.owned[static_cast<size_t>(rank_)])
            sends.push_back({r, stretch(flat, range.begin, range.count)});
        for (const optim::Ownership::Range& range : bundle.owned[static_cast<size_t>(r)])
            receives.push_back({r, stretch(flat, range.begin, range.count)});
    }
    return comm_->exchange({op, DType::f32, bundle.span.end - bundle.span.begin}, sends, receives);
}

void RankTraffic::finish_gradients() {
    completing_ = -1;
    for (size_t b = bundles_.size(); b-- > 0;) {  // in the order of sending
        Bundle& bundle = bundles_[b];
        check(bundle.gradients.has_value(), "a step ends without the gradients of a segment");
        comm_->wait(*bundle.gradients);
        bundle.gradients.reset();
        if (config_.reduction == Reduction::tree) add_ranks(bundle);
    }
    if (config_.reduction == Reduction::all_reduce || config_.shard_optimizer) return;
    std::vector<ranks::Comm::Ticket> tickets;
    for (const Bundle& bundle : bundles_)
        tickets.push_back(share(bundle, tree_->sum().flat, ranks::CollectiveOp::all_gather));
    for (ranks::Comm::Ticket ticket : tickets) comm_->wait(ticket);
}

void RankTraffic::send_weights() {
    if (!config_.shard_optimizer) return weights_.round(*ops_);
    for (Bundle& bundle : bundles_)
        bundle.weights = share(bundle, weights_.flat, ranks::CollectiveOp::all_gather);
}

void RankTraffic::receive_weights(Bundle& bundle) {
    if (!bundle.weights.has_value()) return;
    comm_->wait(*bundle.weights);
    bundle.weights.reset();
    const int64_t begin = bundle.span.begin, count = bundle.span.end - begin;
    if (weights_.rounded)
        ops_->copy(stretch(weights_.rounded, begin, count), stretch(weights_.flat, begin, count));
}

void RankTraffic::settle() {
    for (Bundle& bundle : bundles_) receive_weights(bundle);
}

int64_t RankTraffic::bytes_per_step() const {
    const int64_t ranks = ownership_.ranks(), own = ownership_.elements(rank_);
    int64_t all = 0, whole = 0;
    for (int r = 0; r < ranks; ++r) all += ownership_.elements(r);
    for (const Bundle& bundle : bundles_)
        whole += 2 * (ranks - 1) * (bundle.span.end - bundle.span.begin) * 4 / ranks;
    const int64_t back = (ranks - 1) * own * 4;
    if (config_.reduction == Reduction::all_reduce) return whole + (config_.shard_optimizer ? back : 0);
    return (all - own) * 4 + back;
}

}  // namespace longreach::train
