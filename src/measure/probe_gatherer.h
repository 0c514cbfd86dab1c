// Collects the data of a probe during an evaluation: sums over rows of attention, samples of pairs.
// Each batch has its own sums, which are added in the order of the batches on any number of ranks.
#pragma once

#include <map>

#include "measure/probe_sums.h"

namespace longreach::measure {

struct HostMatrix {
    std::vector<float> data;
    int64_t cols = 0;
    const float* row(int64_t r) const { return data.data() + r * cols; }
};

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
    // A layer's vectors on the host.
    struct HeadVectors {
        const AttentionSpec& spec;
        HostMatrix q, k, v, far_q, far_k;
        // Of head h: the query at row n of the batch, and the key `distance` rows before it.
        std::pair<const float*, const float*> pair(int64_t h, int64_t n, int64_t distance) const;
    };
    // Positions in the batch of two tokens of one sequence.
    struct TokenPair {
        int64_t early, late;
    };

    HostMatrix download(Ops& ops, const Tensor& x) const;
    std::vector<int32_t> keys_to_watch(const model::StepContext& run) const;
    std::vector<TokenPair> pairs_of(const model::Batch& batch) const;
    void add_rows(const model::StepContext& run, const model::AttentionView& view, LayerSums& sums) const;
    void add_norms(const model::StepContext& run, const model::AttentionView& view, LayerSums& sums) const;
    void add_gates(const model::StepContext& run, const model::AttentionView& view, LayerSums& sums) const;
    void add_scores(const model::StepContext& run, const HeadVectors& of, LayerSums& sums) const;
    void add_cosines(const model::StepContext& run, const HeadVectors& of, LayerSums& sums) const;
    void add_key_norms(const model::StepContext& run, const HeadVectors& of, LayerSums& sums) const;
    // The share of `samples` of each sequence of a batch.
    int64_t share(const model::Batch& batch, int64_t samples) const {
        const int64_t sequences = tokens_ / batch.length;
        return (samples + sequences - 1) / sequences;
    }
    int64_t visible(int64_t n, int64_t length) const {
        return n % length - start_[static_cast<size_t>(n)] + 1;
    }

    ProbeBuffers buffers_;
    size_t layers_;
    uint64_t seed_;
    int64_t tokens_;
    std::map<int64_t, std::vector<LayerSums>> sums_;  // by length: of all added batches
    std::vector<LayerSums> batch_;                    // of the current batch, by layer
    int64_t first_ = 0;                               // index of its first sequence
    std::vector<int32_t> start_;                      // first visible key of every query of the current layer
};

}  // namespace longreach::measure
