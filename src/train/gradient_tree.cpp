#include "train/gradient_tree.h"

#include <bit>

namespace longreach::train {

int64_t gradient_leaves(int64_t micro_batches, int64_t most) {
    int64_t leaves = 1;
    while (2 * leaves <= std::min(micro_batches, most)) leaves *= 2;
    return leaves;
}

void GradientTree::plan(model::Arena& arena, int64_t parameters, int64_t max_micro_batches) {
    arena.group("gradients");
    buffers_.clear();
    const int64_t leaves = std::max<int64_t>(1, gradient_leaves(max_micro_batches, most_leaves_) / ranks_);
    const int partial_sums = std::countr_zero(static_cast<uint64_t>(leaves)) + 1;
    for (int i = 0; i < partial_sums; ++i)
        buffers_.push_back({arena.reserve("gradient", DType::f32, {parameters})});
}

void GradientTree::begin_step(int64_t micro_batches) {
    micro_batches_ = micro_batches;
    leaves_ = gradient_leaves(micro_batches, most_leaves_);
    check(leaves_ % ranks_ == 0, "{} leaves on {} ranks", leaves_, ranks_);
    depth_ = 0;
}

// With M micro-batches, the first one of leaf l is the smallest m with m L >= l M.
GradientTree::Range GradientTree::of(int rank) const {
    const int64_t each = leaves_ / ranks_;
    const auto first = [&](int64_t leaf) { return (leaf * micro_batches_ + leaves_ - 1) / leaves_; };
    return {first(rank * each), first((rank + 1) * each)};
}

model::FlatParams GradientTree::begin(int64_t m) const {
    const bool first_of_leaf = m == own().first || leaf_of(m) != leaf_of(m - 1);
    model::FlatParams buffer = buffers_[depth_];
    buffer.write = first_of_leaf ? Write::set : Write::add;
    return buffer;
}

int GradientTree::merges(int64_t m) const {
    const int64_t leaf = leaf_of(m);
    const bool last_of_leaf = m + 1 == own().end || leaf_of(m + 1) != leaf;
    if (!last_of_leaf) return -1;
    return std::countr_one(static_cast<uint64_t>(leaf - rank_ * (leaves_ / ranks_)));
}

void GradientTree::merge(Ops& ops, int64_t m, int64_t begin, int64_t end) const {
    const auto stretch = [&](size_t buffer) {
        return Tensor(buffers_[buffer].flat.f32() + begin, DType::f32, {end - begin});
    };
    size_t newest = depth_;
    for (int i = merges(m); i > 0; --i, --newest) ops.add(stretch(newest - 1), stretch(newest));
}

void GradientTree::advance(int64_t m) {
    const int merged = merges(m);
    if (merged >= 0) depth_ += static_cast<size_t>(1 - merged);
}

model::FlatParams GradientTree::result() const {
    check(depth_ == 1, "the gradient tree holds {} partial sums at the end of a step", depth_);
    return buffers_[0];
}

}  // namespace longreach::train
