#include "train/spike.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace longreach::train {

namespace {

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) return *middle;
    return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

void push(std::vector<double>& values, double value, int64_t window) {
    values.push_back(value);
    const auto most = static_cast<size_t>(window);
    if (values.size() > most) values.erase(values.begin(), values.end() - static_cast<std::ptrdiff_t>(most));
}

std::string finding(const char* name, const std::vector<double>& window, double value, double threshold) {
    const double deviation = robust_deviation(window, value);
    if (deviation <= threshold) return "";
    return fmt::format("{} {:.4g} is {:.0f} robust deviations above {:.4g}, the median of the last {} steps",
                       name, value, deviation, median(window), window.size());
}

}  // namespace

void SpikeConfig::fields(config::Fields& f) {
    f.choice<SpikeAction>("action", action,
                          {{SpikeAction::warn, "warn", "say so"},
                           {SpikeAction::skip, "skip", "say so and leave the weights as they are"},
                           {SpikeAction::stop, "stop", "end the run with exit code 7"}},
                          {"what follows a step whose loss or gradient norm is far above the usual", true});
    f.number("threshold", threshold, {.min = 0, .max = 1e9},
             {"a spike is more robust deviations (1.4826 times the median absolute one) above the median of "
              "the window",
              true});
    f.integer("window", window, {.min = 2, .max = 1024},
              {"recent steps that are compared with; a stage begins with none", true});
    f.integer("min_steps", min_steps, {.min = 2, .max = 1024},
              {"steps that must be in the window before anything is a spike", true});
}

void SpikeConfig::check(config::Problems& p) const {
    if (min_steps > window && p.is_set("train.spike.min_steps"))
        p.add("train.spike.min_steps", fmt::format("{} is above the window {}", min_steps, window),
              "train.spike.window");
}

void TrainConfig::fields(config::Fields& f) {
    f.section("spike", spike, {"steps whose loss or gradient norm is far above those before"});
}

void SpikeWindow::add(double loss, double norm, int64_t window) {
    push(losses, loss, window);
    push(norms, norm, window);
}

json::Value SpikeWindow::to_json() const {
    return json::Value::object({{"losses", json::Array(losses.begin(), losses.end())},
                                {"norms", json::Array(norms.begin(), norms.end())}});
}

SpikeWindow SpikeWindow::from_json(const json::Value& value) {
    const auto numbers = [&](const char* key) {
        const json::Value* found = value.find(key);
        const json::Array* array = found ? found->to_array() : nullptr;
        require(array != nullptr, ExitCode::checkpoint, "state.json: spike.{} is missing", key);
        std::vector<double> out;
        for (const json::Value& v : *array) {
            const auto number = v.to_number();
            require(number && std::isfinite(*number), ExitCode::checkpoint,
                    "state.json: spike.{} holds something else than numbers", key);
            out.push_back(*number);
        }
        return out;
    };
    SpikeWindow window{numbers("losses"), numbers("norms")};
    require(window.losses.size() == window.norms.size(), ExitCode::checkpoint,
            "state.json: spike has {} losses and {} norms", window.losses.size(), window.norms.size());
    return window;
}

double robust_deviation(const std::vector<double>& window, double value) {
    if (window.empty()) return 0;
    const double middle = median(window);
    std::vector<double> distances;
    for (const double v : window) distances.push_back(std::abs(v - middle));
    constexpr double normal = 1.4826;  // standard deviation of a normal distribution with MAD 1
    constexpr double smallest = 1e-3;  // of the median
    const double spread = std::max({normal * median(distances), smallest * std::abs(middle), 1e-30});
    return (value - middle) / spread;
}

std::string find_spike(const SpikeConfig& config, const SpikeWindow& window, double loss, double norm) {
    const int64_t steps = static_cast<int64_t>(window.losses.size());
    if (steps < std::min(config.min_steps, config.window)) return "";
    const std::string text = finding("loss", window.losses, loss, config.threshold);
    return text.empty() ? finding("gradient norm", window.norms, norm, config.threshold) : text;
}

}  // namespace longreach::train
