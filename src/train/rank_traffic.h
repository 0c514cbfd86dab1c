// The messages between the ranks of a run in a step: gradients to the ranks that own
// them, updated weights back.
//
//     backward    from the last segment to the first: this rank's sum -> the owners of its numbers
//     step        owners add the R sums as a binary tree over the ranks and update their weights
//     forward     from the first segment to the last: owners' weights -> all ranks; a layer waits for its own
//
// The tree continues that of the leaves (GradientTree), so the sum has the same bits at any number of ranks.
// In each direction a rank sends (R - 1)/R of the model, as much as a ring would. The transfers overlap with
// the computation of layers. Segments are bundled up to a size at which the latency of a message is small.
#pragma once

#include <optional>
#include <vector>

#include "ranks/comm.h"
#include "model/arena.h"
#include "model/parameter_traffic.h"
#include "optim/ownership.h"
#include "train/gradient_tree.h"
#include "train/parallel_config.h"

namespace longreach::train {

class RankTraffic final : public model::ParameterTraffic {
  public:
    // Minimum size of a bundle in bytes: it takes 1 ms at 1 GB/s, so 10 us of latency are 1% of it.
    static constexpr int64_t usual_bundle = int64_t{1} << 20;

    RankTraffic(const ParallelConfig& config, const optim::Ownership& ownership,
                const std::vector<model::Segment>& segments, int rank, int64_t bundle_bytes = usual_bundle);

    // One receive buffer: the gradients that this rank owns, once for every other rank.
    void plan(model::Arena& arena);
    void connect(Ops& ops, ranks::Comm& comm, const model::FlatParams& weights, const GradientTree& tree);

    // Call before the last pass of a step, which is that of micro-batch m: it completes this
    // rank's sum. Without this call done() sends nothing.
    void completes(int64_t m);
    void need(int64_t segment) override;
    void done(int64_t segment) override;

    // Call after the last pass. Afterwards the numbers that this rank owns in the sum of the tree are sums
    // over all ranks; if every rank updates everything, all numbers are.
    void finish_gradients();
    // Call after this rank has updated what it owns. Do not write its weights before the next settle().
    void send_weights();
    // Waits until all weights have arrived and are rounded.
    void settle();

    // Bytes that this rank sends in a step, a few scalars not counted. With equal shares this is
    // (R - 1)/R of the model in f32, twice.
    int64_t bytes_per_step() const;

  private:
    struct Bundle {
        model::Segment span;
        std::vector<std::vector<optim::Ownership::Range>>
            owned;             // by rank, from the start of the flat buffer
        int64_t incoming = 0;  // offset of what it receives from a rank, within the part of that rank
        std::optional<ranks::Comm::Ticket> gradients, weights;
    };
    size_t bundle_of(int64_t segment) const { return bundle_of_[static_cast<size_t>(segment)]; }
    void send_gradients(Bundle& bundle);
    void add_ranks(const Bundle& bundle);
    // Sends this rank's part of a flat buffer to all others, and receives theirs.
    ranks::Comm::Ticket share(const Bundle& bundle, const Tensor& flat, ranks::CollectiveOp op);
    void receive_weights(Bundle& bundle);
    Tensor received_from(int rank) const;

    ParallelConfig config_;
    const optim::Ownership& ownership_;
    std::vector<model::Segment> segments_;
    std::vector<size_t> bundle_of_;  // by segment
    std::vector<Bundle> bundles_;    // first to last
    int rank_;
    Tensor incoming_;  // f32 [R - 1, owned]
    Ops* ops_ = nullptr;
    ranks::Comm* comm_ = nullptr;
    model::FlatParams weights_;
    const GradientTree* tree_ = nullptr;
    int64_t completing_ = -1;
};

}  // namespace longreach::train
