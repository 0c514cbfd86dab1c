#include "theory/sampled_softmax.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"

namespace longreach {

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

}  // namespace

std::vector<SoftmaxEstimates> sampled_softmax(int64_t n, const std::vector<double>& alphas, int64_t samples,
                                              const std::function<void(int64_t, std::span<double>)>& draw) {
    check(n >= 1 && samples >= 2, "{} samples of {} scores", samples, n);
    const size_t kinds = alphas.size();
    std::vector<std::array<double, 3>> numbers(static_cast<size_t>(samples) * kinds);
#pragma omp parallel
    {
        std::vector<double> z(static_cast<size_t>(n));
#pragma omp for schedule(dynamic)
        for (int64_t sample = 0; sample < samples; ++sample) {
            draw(sample, z);
            const double largest = *std::max_element(z.begin(), z.end());
            for (size_t kind = 0; kind < kinds; ++kind)
                numbers[static_cast<size_t>(sample) * kinds + kind] =
                    softmax_numbers(z, largest, alphas[kind]);
        }
    }
    const double count = static_cast<double>(samples);
    std::vector<SoftmaxEstimates> out(kinds);
    for (size_t kind = 0; kind < kinds; ++kind) {
        std::array<Estimate, 3> estimates;
        for (size_t which = 0; which < 3; ++which) {
            double sum = 0, squares = 0;
            for (size_t i = kind; i < numbers.size(); i += kinds) sum += numbers[i][which];
            const double mean = sum / count;
            for (size_t i = kind; i < numbers.size(); i += kinds)
                squares += (numbers[i][which] - mean) * (numbers[i][which] - mean);
            estimates[which] = {mean, std::sqrt(squares / (count - 1) / count)};
        }
        out[kind] = {estimates[0], estimates[1], estimates[2]};
    }
    return out;
}

}  // namespace longreach
