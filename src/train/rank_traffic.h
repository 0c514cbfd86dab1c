// What the ranks of a run send each other in a step: gradients to the ranks that own
// them, updated weights back.
//
//     backward    segment by segment, last first: my sum of the segment -> the owners of its numbers
//     step        owners add the R sums as a binary tree over the ranks, update what they own
//     forward     segment by segment, first first: owners' weights -> everybody; a layer waits for its own
//
// The tree continues that of the leaves (GradientTree), so the sum has the same bits at any number of ranks.
// Each way a rank sends (R - 1)/R of the model: what a ring would send. All of it is in flight while layers
// compute. Segments are bundled up to a size at which a message's latency no longer counts.
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
    // Least size of a bundle in bytes: at 1 GB/s a millisecond, of which 10 us of latency are 1%.
    static constexpr int64_t usual_bundle = int64_t{1} << 20;

    RankTraffic(const ParallelConfig& config, const optim::Ownership& ownership,
                const std::vector<model::Segment>& segments, int rank, int64_t bundle_bytes = usual_bundle);

    // One receive buffer of the size of all gradients but this rank's own.
    void plan(model::Arena& arena);
    void connect(Ops& ops, ranks::Comm& comm, const model::FlatParams& weights, const GradientTree& tree);

    // The pass of micro-batch m completes this rank's sum; before the last pass of a step,
    // or nothing is sent.
    void completes(int64_t m);
    void need(int64_t segment) override;
    void done(int64_t segment) override;

    // After the last pass: in the sum of the tree, what this rank owns is the sum over all ranks; where every
    // rank updates everything, all of it is.
    void finish_gradients();
    // After an update of what this rank owns. Its weights may not be written until the next settle().
    void send_weights();
    // All weights have arrived, and are rounded.
    void settle();

    // Bytes that this rank sends in a step besides a few scalars, as its pieces are; the formula for equal
    // shares: (R - 1)/R of the model in f32, twice.
    int64_t bytes_per_step() const;

  private:
    struct Bundle {
        model::Segment span;
        std::vector<std::vector<optim::Ownership::Range>>
            owned;             // by rank, from the start of the flat buffer
        int64_t incoming = 0;  // where what it receives from each rank begins, within that rank's part
        std::optional<ranks::Comm::Ticket> gradients, weights;
    };
    size_t bundle_of(int64_t segment) const { return bundle_of_[static_cast<size_t>(segment)]; }
    void send_gradients(Bundle& bundle);
    void add_ranks(const Bundle& bundle);
    // Owners' parts of a flat buffer go to all others.
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
