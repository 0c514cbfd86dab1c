// Sums over rows of attention, and the statistics made of them. All in f64 and in a fixed order.
#pragma once

#include <array>
#include <limits>
#include <span>
#include <vector>

#include "measure/probe.h"
#include "law/gap_counts.h"
#include "kernels/row_statistics.h"

namespace longreach::measure {

struct Mean {
    double sum = 0;
    int64_t count = 0;
    void add(double x) { sum += x, ++count; }
    void add(const Mean& other) { sum += other.sum, count += other.count; }
};

// Count, mean and sums of (x - mean)^k; parts are merged without reading the data again.
struct Moments {
    double count = 0, mean = 0, second = 0, third = 0, fourth = 0;
    void add(const Moments& other);
    void add(double x) { add(Moments{1, x}); }
    double deviation() const;
    double skew() const;
    double kurtosis() const;  // 3 for a normal distribution
};

// A mean over rows of documents. Its error takes documents as independent, not their rows.
struct DocumentMean {
    double sum = 0;                               // of all rows
    double squares = 0, products = 0, sizes = 0;  // S^2, S m and m^2 of documents with m rows and the sum S
    int64_t count = 0, documents = 0;             // count: rows
    void add(double sum_of_document, int64_t rows);
    void add(const DocumentMean& other);
    double mean() const { return sum / static_cast<double>(count); }
    double error() const;  // standard error; NaN with fewer than two documents
};

// Sampled queries of one head that share a bin: keys that they see, and law::RowGaps.
struct GapBin {
    Mean visible;
    std::array<Mean, law::gap_values.size()> keys;
    std::array<DocumentMean, law::gap_scales.size()> others;
    void add(const GapBin& other);
};

// The queries of one head that share a bin.
struct HeadBin {
    static constexpr int decades = distance_classes - 2;  // all but the query itself and the last class
    Mean inverse_top_weight, entropy, participation, mass_100, sink_mass, learned_sink_mass, output_norm;
    std::array<Mean, decades> decade_entropy;
    // By distance class, the query itself first: added by the queries that see some of it.
    std::array<Mean, distance_classes> decade_mass;
    Mean log_top_ratio, previous_mass, induction_mass, support;
    Mean gate, gate_below;
    double max_score = -std::numeric_limits<double>::infinity(), max_logit = max_score;
    Moments logits;
    void add(const HeadBin& other);
};

struct HeadSums {
    std::vector<HeadBin> bins;                      // bin k: 2^k <= n < 2^(k+1)
    std::vector<GapBin> gaps;                       // likewise
    std::vector<double> scores;                     // sampled z
    std::array<Moments, distance_classes> cosines;  // of sampled queries and keys
    HeadBin& bin(int64_t visible);
    void add(const HeadSums& other);
};

// The tokens whose own queries share a bin, at one head of keys and values.
struct KeyBin {
    Moments key_norm, value_norm;
    void add(const KeyBin& other);
};

// One head of the gated delta rule: its state after the n positions of a bin, and what it loses at each.
struct StateBin {
    Mean norm, rank;
    Mean decay;  // -g of every channel
    void add(const StateBin& other);
};
struct StateSums {
    std::vector<StateBin> bins;
    std::vector<Mean> channels;  // -g by channel; one channel for all if they share it
    void add(const StateSums& other);
};

struct LayerSums {
    std::vector<HeadSums> heads;
    std::vector<StateSums> states;          // by head of the delta rule
    std::vector<std::vector<KeyBin>> keys;  // by head of keys and values, by bin
    std::vector<Mean> projected_norm;       // by bin
    Mean pair_cosine, angle_ratio;
    bool gated = false, sink = false;
    void add(const LayerSums& other);
};

// Converts sums by layer to numbers, for transfers between ranks, and back.
std::vector<double> numbers_of(const std::vector<LayerSums>& layers);
std::vector<LayerSums> layers_of(std::span<const double> numbers);

// Appends the sums of a layer at a length as rows of probe.csv.
void append_rows(std::vector<ProbeRow>& rows, const LayerSums& sums, int64_t length, int64_t layer);
// Appends learned scalars: scales, taus, sinks, mixing weights; no gains and matrices.
void append_scalars(std::vector<ProbeRow>& rows, Ops& ops, const model::ParamTable& table,
                    const model::FlatParams& weights);

size_t bin_of(int64_t visible);
template <class Bin>
Bin& bin_at(std::vector<Bin>& bins, int64_t visible) {
    const size_t k = bin_of(visible);
    if (bins.size() <= k) bins.resize(k + 1);
    return bins[k];
}

}  // namespace longreach::measure
