#include "train/gradient_tree.h"

#include <bit>

namespace longreach {

int64_t gradient_leaves(int64_t micro_batches) {
    int64_t leaves = 1;
    while (2 * leaves <= std::min(micro_batches, max_gradient_leaves)) leaves *= 2;
    return leaves;
}

void GradientTree::plan(Arena& arena, int64_t parameters, int64_t max_micro_batches) {
    arena.group("gradients");
    buffers_.clear();
    const int partial_sums = std::countr_zero(static_cast<uint64_t>(gradient_leaves(max_micro_batches))) + 1;
    for (int i = 0; i < partial_sums; ++i)
        buffers_.push_back({arena.reserve("gradient", DType::f32, {parameters})});
}

void GradientTree::begin_step(int64_t micro_batches) {
    micro_batches_ = micro_batches;
    leaves_ = gradient_leaves(micro_batches);
    depth_ = 0;
}

FlatParams GradientTree::begin(Ops& ops, int64_t m) {
    const bool first_of_leaf = m == 0 || leaf_of(m) != leaf_of(m - 1);
    if (first_of_leaf) ops.zero(buffers_[depth_].flat);
    return buffers_[depth_];
}

void GradientTree::end(Ops& ops, int64_t m) {
    const int64_t leaf = leaf_of(m);
    const bool last_of_leaf = m + 1 == micro_batches_ || leaf_of(m + 1) != leaf;
    if (!last_of_leaf) return;
    ++depth_;
    for (int64_t bits = leaf; bits & 1; bits >>= 1) {
        ops.add(buffers_[depth_ - 2].flat, buffers_[depth_ - 1].flat);
        --depth_;
    }
}

FlatParams GradientTree::result() const {
    check(depth_ == 1, "the gradient tree holds {} partial sums at the end of a step", depth_);
    return buffers_[0];
}

}  // namespace longreach
