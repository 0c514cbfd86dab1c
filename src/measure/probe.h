// Statistics of attention by layer, head and number of visible keys.
//
// Ops::attention_statistics computes them per row of attention. Here rows become
// means, maxima and pooled moments over the queries that see 2^k <= n < 2^(k+1) keys;
// samples of pairs become quantiles and cosines. data/formats/records.md lists the statistics.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "eval/lengths.h"
#include "io/record_columns.h"

namespace longreach::measure {

// One line of probe.csv.
struct ProbeRow {
    int64_t length = 0;  // 0: independent of the length
    int64_t layer = 0;   // -1: of the whole model
    int64_t head = 0;    // -1: of the whole layer
    int64_t bin = 0;     // smallest n of the queries in it; 0: all queries
    std::string statistic;
    double value = 0;
    int64_t count = 0;  // number of values summarised
    int64_t step = 0;
};
inline constexpr io::RecordColumns probe_file(
    "probe.csv", 8, io::required("step", &ProbeRow::step), io::required("length", &ProbeRow::length),
    io::required("layer", &ProbeRow::layer), io::required("head", &ProbeRow::head),
    io::required("bin", &ProbeRow::bin), io::required("statistic", &ProbeRow::statistic),
    io::required("value", &ProbeRow::value), io::plain("count", &ProbeRow::count));

struct ProbeRequest {
    std::vector<int64_t> lengths;
    int64_t tokens = 0;  // at each length; 0: one sequence of the largest
    // Of longer sequences, which are read for their states alone; 0: all are read as a whole.
    int64_t piece = 0;
    bool document_mask = true;
    eval::EvalPick pick = eval::EvalPick::spread;
    uint64_t seed = 0;                                   // of the samples
    std::function<void(const std::string&)> progress{};  // may be empty
    eval::Pause* pause = nullptr;                        // null: cannot be stopped
    eval::EvalRequest evaluation() const;
    // Tokens of the largest batch, for lengths of up to `longest`.
    int64_t batch_tokens(int64_t longest) const { return piece > 0 ? std::min(piece, longest) : longest; }
};

struct ProbeResult {
    std::vector<ProbeRow> rows;
    // Sampled scores z of every layer at the largest length.
    std::vector<std::vector<double>> scores;
};

// Device memory for a batch of N tokens.
struct ProbeBuffers {
    Tensor statistics;  // f32 [row_statistics * heads * N], of the layer with most heads
    Tensor watched;     // i32 [watched_keys * N]
    Tensor rows;        // f32 [N * widest matrix]: buffer for downloads
    Tensor projected;   // [N, C] output of a layer's attention to the residual stream, before a norm
    Tensor state{};     // f32 [H d e] of the delta rule's largest layer, for one sequence; empty without one
};

class Probe {
  public:
    // Device buffers for batches of up to `tokens` tokens.
    void plan(model::Arena& arena, const model::ModelConfig& model, int64_t tokens, bool document_mask);
    // Called by all ranks with the same arguments; rank 0 gets the result, the others an empty one.
    ProbeResult run(Ops& ops, ranks::Comm& comm, model::Transformer& model, const model::FlatParams& weights,
                    const eval::LengthEvaluator& evaluator, const data::TokenStream& stream,
                    const ProbeRequest& request) const;

  private:
    ProbeBuffers buffers_;
    model::DeviceBatch batch_;  // of texts that a probe makes itself
};

std::vector<std::string> probe_lines(std::vector<ProbeRow> rows, int64_t step);
// For the terminal: two tables with a line per length, layer and head, for the bin with the most queries,
// and one of the roles of heads.
std::string probe_table(const std::vector<ProbeRow>& rows);

}  // namespace longreach::measure
