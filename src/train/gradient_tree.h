// The gradient of a step as a fixed binary tree over numbered leaves.
//
// Micro-batches are numbered within the step; each belongs to one of L leaves (the largest power of two up to
// min(8, micro-batches)) and adds to it in order; leaves are combined pairwise. The shape depends only on the
// number of micro-batches, so the sum has the same bits however the leaves are spread over ranks. At most
// log2(L) + 1 partial sums exist at once (a binary counter: two sums of equal size are merged as soon as they
// exist).
#pragma once

#include <vector>

#include "model/arena.h"
#include "model/param_table.h"

namespace longreach {

inline constexpr int64_t max_gradient_leaves = 8;
int64_t gradient_leaves(int64_t micro_batches);

class GradientTree {
  public:
    // Serves steps of up to max_micro_batches.
    void plan(Arena& arena, int64_t parameters, int64_t max_micro_batches);

    void begin_step(int64_t micro_batches);
    // Where micro-batch m adds its gradient; micro-batches come in order.
    FlatParams begin(Ops& ops, int64_t m);
    void end(Ops& ops, int64_t m);
    FlatParams result() const;  // after the last micro-batch

  private:
    int64_t leaf_of(int64_t m) const { return m * leaves_ / micro_batches_; }

    std::vector<FlatParams> buffers_;
    int64_t micro_batches_ = 0, leaves_ = 0;
    size_t depth_ = 0;  // partial sums held; the current leaf adds to buffers_[depth_]
};

}  // namespace longreach
