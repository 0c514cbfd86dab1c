#include "theory/sampled_softmax.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/pool.h"
#include "base/rng.h"

namespace longreach::theory {

namespace {

std::array<double, 3> softmax_numbers(std::span<const double> z, double largest, double alpha) {
    double sum = 0, squares = 0, logs = 0;
    for (double value : z) {
        const double log_x = alpha * (value - largest), x = std::exp(log_x);
        sum += x;
        squares += x * x;
        logs += x * log_x;
    }
    return {sum, squares / (sum * sum), std::log(sum) - logs / sum};
}

struct Moments {
    double mean = 0, error = 0;
};

Moments moments(std::span<const double> values) {
    const double count = static_cast<double>(values.size());
    double sum = 0, squares = 0;
    for (double value : values) sum += value;
    const double mean = sum / count;
    for (double value : values) squares += (value - mean) * (value - mean);
    return {mean, std::sqrt(squares / (count - 1) / count)};
}

// Means of at most `most` batches of consecutive values.
std::vector<double> batch_means(std::span<const double> values, size_t most) {
    const size_t batches = std::min(values.size(), most);
    std::vector<double> means(batches);
    for (size_t b = 0; b < batches; ++b) {
        const size_t begin = b * values.size() / batches, end = (b + 1) * values.size() / batches;
        for (size_t i = begin; i < end; ++i) means[b] += values[i] / static_cast<double>(end - begin);
    }
    return means;
}

// The possible contribution to the mean of values above the largest sample:
// their share 1 / n times their mean excess, under a power law fitted to the
// largest twentieth (Hill). sign -1: of values below the smallest sample.
double missing_tail(std::vector<double> values, double mean, double sign) {
    for (double& value : values) value = sign * (value - mean);
    const size_t tail = std::max<size_t>(values.size() / 20, 1);
    if (tail >= values.size()) return 0;
    std::partial_sort(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(tail) + 1, values.end(),
                      std::greater<>());
    if (!(values[tail] > 0)) return 0;
    double inverse_index = 0;
    for (size_t i = 0; i < tail; ++i)
        inverse_index += std::log(values[i] / values[tail]) / static_cast<double>(tail);
    const double index = 1 / std::clamp(inverse_index, 1e-9, 1 / 1.2);  // at 1 and below there is no mean
    return values[0] * index / (index - 1) / static_cast<double>(values.size());
}

}  // namespace

double Estimate::deviations(double exact) const {
    if (!(error > 0)) return std::numeric_limits<double>::quiet_NaN();
    return (mean - exact) / error / (mean < exact ? stretch_below : stretch_above);
}

Estimate estimate_mean(std::span<const double> values) {
    constexpr size_t resamplings = 500, tail = 5;  // the outermost percent on either side
    constexpr double normal_quantile = 2.3263;     // of a percent
    const Moments all = moments(values);
    Estimate out{all.mean, all.error};
    if (!(all.error > 0)) return out;
    const std::vector<double> batches = batch_means(values, 512);
    const double center = moments(batches).mean;
    const Rng rng(0, Purpose::theory, 1u << 31);
    std::vector<double> drawn(batches.size()), ratios;
    for (uint64_t k = 0; k < resamplings; ++k) {
        for (size_t i = 0; i < drawn.size(); ++i)
            drawn[i] = batches[rng.below(k * drawn.size() + i, batches.size())];
        const Moments again = moments(drawn);
        if (again.error > 0) ratios.push_back((again.mean - center) / again.error);
    }
    if (ratios.size() <= 2 * tail) return out;
    std::sort(ratios.begin(), ratios.end());
    const std::vector<double> every(values.begin(), values.end());
    const double below = missing_tail(every, all.mean, 1) / all.error;
    const double above = missing_tail(every, all.mean, -1) / all.error;
    out.stretch_below = std::max(1.0, -ratios[tail] / normal_quantile) * std::hypot(1.0, below);
    out.stretch_above =
        std::max(1.0, ratios[ratios.size() - 1 - tail] / normal_quantile) * std::hypot(1.0, above);
    return out;
}

std::vector<SoftmaxEstimates> sampled_softmax(int64_t n, const std::vector<double>& alphas, int64_t samples,
                                              const std::function<void(int64_t, std::span<double>)>& draw) {
    check(n >= 1 && samples >= 2, "{} samples of {} scores", samples, n);
    const size_t kinds = alphas.size();
    std::vector<std::array<double, 3>> numbers(static_cast<size_t>(samples) * kinds);
    Pool pool(usable_threads());
    std::vector<std::vector<double>> spaces(static_cast<size_t>(pool.threads()));
    pool.run(samples, [&](int64_t sample, int worker) {
        std::vector<double>& z = spaces[static_cast<size_t>(worker)];
        z.resize(static_cast<size_t>(n));
        draw(sample, z);
        const double largest = *std::max_element(z.begin(), z.end());
        for (size_t kind = 0; kind < kinds; ++kind)
            numbers[static_cast<size_t>(sample) * kinds + kind] = softmax_numbers(z, largest, alphas[kind]);
    });
    std::vector<SoftmaxEstimates> out(kinds);
    for (size_t kind = 0; kind < kinds; ++kind) {
        std::array<Estimate, 3> estimates;
        for (size_t which = 0; which < 3; ++which) {
            std::vector<double> values;
            for (size_t i = kind; i < numbers.size(); i += kinds) values.push_back(numbers[i][which]);
            estimates[which] = estimate_mean(values);
        }
        out[kind] = {estimates[0], estimates[1], estimates[2]};
    }
    return out;
}

}  // namespace longreach::theory
