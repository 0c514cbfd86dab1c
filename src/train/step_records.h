// The lines of metrics.jsonl and timing.jsonl, one per logged step; data/formats/records.md documents their members.
#pragma once

#include <cmath>

#include "io/record_columns.h"

namespace longreach::train {

// Reproducible: the same config and data give the same bytes.
struct MetricsRow {
    int64_t step = 0, tokens = 0;  // done and consumed, this step included
    int64_t context = 0;           // tokens per sequence
    double loss = NAN;             // nats per token
    std::optional<double> bits_per_byte = {};
    double grad_norm = NAN;  // before clipping
    double lr = NAN;         // multiplier of every learning rate
    int64_t skipped = 0;     // steps so far
    std::optional<int64_t> spikes = {}, spikes_skipped = {};
    std::optional<double> max_score = {};
    std::optional<double> index_loss = {};      // nats per token and layer with an index of keys
    std::vector<double> layer_grad_norms = {};  // of each layer's parameters, before clipping
};
inline constexpr io::RecordMembers metrics_file(
    "metrics.jsonl", io::plain("step", &MetricsRow::step), io::plain("tokens", &MetricsRow::tokens),
    io::plain("context", &MetricsRow::context), io::plain("loss", &MetricsRow::loss),
    io::plain("bits_per_byte", &MetricsRow::bits_per_byte), io::plain("grad_norm", &MetricsRow::grad_norm),
    io::plain("lr", &MetricsRow::lr), io::plain("skipped", &MetricsRow::skipped),
    io::plain("spikes", &MetricsRow::spikes), io::plain("spikes_skipped", &MetricsRow::spikes_skipped),
    io::plain("max_score", &MetricsRow::max_score), io::plain("index_loss", &MetricsRow::index_loss),
    io::plain("layer_grad_norms", &MetricsRow::layer_grad_norms));

// Values that depend on the clock.
struct TimingRow {
    int64_t step = 0;
    std::string time = {};                                                 // "2026-01-31T12:00:00Z"
    double seconds = NAN, evaluation_seconds = NAN, saving_seconds = NAN;  // of this process
    double tokens_per_second = NAN, flops_per_second = NAN;                // since the previous line
    double peak_fraction = NAN;                                            // of a measured matrix product
    double mfu = NAN;                                                      // of the datasheet; NaN: unknown
    int64_t memory_bytes = 0;                                              // resident
    std::optional<int64_t> ranks = {}, bytes_sent = {};                    // only with several ranks
};
inline constexpr io::RecordMembers timing_file(
    "timing.jsonl", io::plain("step", &TimingRow::step), io::plain("time", &TimingRow::time),
    io::plain("seconds", &TimingRow::seconds),
    io::plain("evaluation_seconds", &TimingRow::evaluation_seconds),
    io::plain("saving_seconds", &TimingRow::saving_seconds),
    io::plain("tokens_per_second", &TimingRow::tokens_per_second),
    io::plain("flops_per_second", &TimingRow::flops_per_second),
    io::plain("peak_fraction", &TimingRow::peak_fraction), io::plain("mfu", &TimingRow::mfu),
    io::plain("memory_bytes", &TimingRow::memory_bytes), io::plain("ranks", &TimingRow::ranks),
    io::plain("bytes_sent", &TimingRow::bytes_sent));

}  // namespace longreach::train
