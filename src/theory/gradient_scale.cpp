#include "theory/gradient_scale.h"

#include <cmath>

#include "law/extreme_values.h"
#include "theory/score_law.h"

namespace longreach::theory {

namespace {

// The x > 0 where a rising function with value below 0 at 0 reaches 0.
template <class F>
double root_of_rising(const F& value) {
    double low = 0, high = 1;
    while (value(high) < 0 && high < 1e12) {
        low = high;
        high *= 2;
    }
    for (int i = 0; i < 80; ++i) {
        const double middle = (low + high) / 2;
        (value(middle) < 0 ? low : high) = middle;
    }
    return (low + high) / 2;
}

}  // namespace

double gaussian_gradient_scale(double n) {
    return root_of_rising([&](double a) { return a * a + std::log1p(2 * a * a) - std::log(n); });
}

double cosine_gradient_scale(int head_dim, double n) {
    // With K(A) = log E e^(A c) and R = exp(K(2A) - 2 K(A)) / n the derivative of A (1 - R) is
    // 1 - R (1 + 2 A (K'(2A) - K'(A))).
    const double root = std::sqrt(static_cast<double>(head_dim));
    const ScoreLaw law = cosine_law(head_dim, 40);
    const auto tilted = [&](double a, double& log_mean, double& mean) {
        double sum = 0, first = 0;
        for (size_t i = 0; i < law.at.size(); ++i) {
            const double c = law.at[i] / root, x = law.probability[i] * std::exp(a * (c - 1));
            sum += x;
            first += x * c;
        }
        log_mean = std::log(sum) + a;
        mean = first / sum;
    };
    return root_of_rising([&](double a) {
        double k, slope, k2, slope2;
        tilted(a, k, slope);
        tilted(2 * a, k2, slope2);
        return k2 - 2 * k + std::log1p(2 * a * (slope2 - slope)) - std::log(n);
    });
}

double gaussian_gradient(double n, double alpha) {
    return alpha * (1 - law::gaussian_participation_ratio(n, alpha));
}

}  // namespace longreach::theory
