// Collects the data of a probe during an evaluation: sums over rows of attention, samples of pairs.
// Each batch has its own sums, which are added in the order of the batches on any number of ranks.
// Of a sequence in pieces it sees the states alone: everything else compares tokens of a whole sequence.
#pragma once

#include <map>

#include "measure/probe_sums.h"

namespace longreach::measure {

// tokens: evaluated at each length, a multiple of it.
class Gatherer final : public eval::BatchObserver {
  public:
    Gatherer(const ProbeBuffers& buffers, int64_t layers, uint64_t seed, int64_t tokens)
        : buffers_(buffers), layers_(static_cast<size_t>(layers)), seed_(seed), tokens_(tokens) {}

    void attention(const model::StepContext& run, const model::AttentionView& view) override;
    void delta(const model::StepContext& run, const model::DeltaView& view) override;
    void block(const model::StepContext& run, int64_t layer, const Tensor& x) override;
    void begin(int64_t first_sequence) override;
    std::vector<double> take() override;
    void add(int64_t length, std::span<const double> seen) override;
    const std::map<int64_t, std::vector<LayerSums>>& lengths() const { return sums_; }

  private:
    ProbeBuffers buffers_;
    size_t layers_;
    uint64_t seed_;
    int64_t tokens_;
    std::map<int64_t, std::vector<LayerSums>> sums_;  // by length: of all added batches
    std::vector<LayerSums> batch_;                    // of the current batch, by layer
    int64_t first_ = 0;                               // index of its first sequence
};

}  // namespace longreach::measure
