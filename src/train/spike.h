// Loss spikes: steps whose loss or gradient norm is far above those of the steps before.
//
// The distance is measured in robust deviations: (x - median) / (1.4826 MAD) over a window of recent steps,
// where MAD is the median absolute deviation. For a normal distribution 1.4826 MAD is the standard deviation,
// and a few outliers in the window do not change it. The window is part of the state of the run, so a resumed
// run takes the same decisions.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "config/fields.h"
#include "config/problems.h"

namespace longreach::train {

enum class SpikeAction { warn, skip, stop };

struct SpikeConfig {
    SpikeAction action = SpikeAction::warn;
    double threshold = 20;
    int64_t window = 128;
    int64_t min_steps = 100;
    void fields(config::Fields& f);
    void check(config::Problems& problems) const;
};

struct TrainConfig {
    SpikeConfig spike;
    void fields(config::Fields& f);
};

// Losses and gradient norms of the newest finite steps of a stage, oldest first.
struct SpikeWindow {
    std::vector<double> losses, norms;

    void add(double loss, double norm, int64_t window);
    json::Value to_json() const;
    static SpikeWindow from_json(const json::Value& value);  // Error(ExitCode::checkpoint)
    bool operator==(const SpikeWindow&) const = default;
};

// The distance of `value` above the median, in robust deviations; 0 if the window is empty. The deviation is
// at least a thousandth of the median, in case the values are nearly equal.
double robust_deviation(const std::vector<double>& window, double value);

// "loss 9.2 is 31 robust deviations above 3.1, the median of the last 128 steps"; "" for no spike.
std::string find_spike(const SpikeConfig& config, const SpikeWindow& window, double loss, double norm);

}  // namespace longreach::train
