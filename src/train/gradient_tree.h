// Sums the gradient of a step in a fixed binary tree over numbered leaves.
//
// Micro-batches are numbered within the step. Each belongs to one of L leaves, where L is the largest power
// of two up to min(most leaves, micro-batches); a leaf adds its micro-batches in order, and leaves are
// combined pairwise. The shape depends only on the number of micro-batches, so the sum has the same bits for
// any distribution of the leaves over ranks: each of R ranks has L/R consecutive leaves, a whole subtree, and
// RankTraffic combines the sums of the ranks pairwise in turn. A rank holds at most log2(L/R) + 1 partial
// sums at once (a binary counter: two sums of equal size are merged as soon as they exist).
#pragma once

#include <vector>

#include "model/arena.h"
#include "model/param_table.h"

namespace longreach::train {

int64_t gradient_leaves(int64_t micro_batches, int64_t most);

class GradientTree {
  public:
    // most_leaves and ranks are powers of two.
    explicit GradientTree(int64_t most_leaves = 8, int rank = 0, int ranks = 1)
        : most_leaves_(most_leaves), rank_(rank), ranks_(ranks) {}

    // Reserves memory for steps of up to max_micro_batches.
    void plan(model::Arena& arena, int64_t parameters, int64_t max_micro_batches);

    void begin_step(int64_t micro_batches);
    // The micro-batches of a rank: [first, end).
    struct Range {
        int64_t first, end;
    };
    Range of(int rank) const;
    Range own() const { return of(rank_); }

    // The buffer that micro-batch m sets to its gradient, or adds it to. A rank calls this for its micro-batches in order.
    model::FlatParams begin(int64_t m) const;
    // Merges the partial sums that m completes, in the range [begin, end) of the flat buffer: ranges may be
    // merged one by one as their gradients become ready. advance(m) ends the micro-batch.
    void merge(Ops& ops, int64_t m, int64_t begin, int64_t end) const;
    void advance(int64_t m);
    void end(Ops& ops, int64_t m) {
        merge(ops, m, 0, buffers_.front().flat.count());
        advance(m);
    }
    // The sum of this rank. The buffer is known from the start; its value is complete after the last
    // micro-batch of the rank.
    model::FlatParams sum() const { return buffers_.front(); }
    model::FlatParams result() const;  // the same; checks that it is complete

  private:
    int64_t leaf_of(int64_t m) const { return m * leaves_ / micro_batches_; }
    // Number of merges after m, if m ends its leaf; -1: it does not.
    int merges(int64_t m) const;

    std::vector<model::FlatParams> buffers_;
    int64_t most_leaves_;
    int rank_, ranks_;
    int64_t micro_batches_ = 0, leaves_ = 0;
    size_t depth_ = 0;  // partial sums held; the current leaf adds to buffers_[depth_]
};

}  // namespace longreach::train
