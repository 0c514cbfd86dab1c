// Loss spikes: steps whose loss or gradient norm lies far above those of the steps before.
//
// "Far" is counted in robust deviations: (x - median) / (1.4826 MAD) over a window of recent steps, MAD being
// the median absolute deviation; for a normal distribution that is the standard deviation, and a few outliers
// in the window do not move it. The window is part of the run's state, so a resumed run decides alike.
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

// In robust deviations; 0 if the window is empty. A window of nearly equal values counts as spread over a
// thousandth of its median.
double robust_deviation(const std::vector<double>& window, double value);

// "loss 9.2 is 31 robust deviations above the median 3.1 of the last 128 steps"; "" for no spike.
std::string find_spike(const SpikeConfig& config, const SpikeWindow& window, double loss, double norm);

}  // namespace longreach::train
