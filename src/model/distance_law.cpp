#include "model/distance_law.h"

#include <bit>
#include <cmath>

#include "base/error.h"

namespace longreach::model {

namespace {

// For c heads, c a power of two, the slope of head h is 2^(-8 (h+1) / c). Any other number of heads takes the
// slopes of c heads, c the largest power of two below it, and then every second slope of 2c heads.
double alibi_slope(int64_t head, int64_t heads) {
    const auto whole = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
    const double c = static_cast<double>(whole);
    const double exponent = head < whole ? 8 * static_cast<double>(head + 1) / c
                                         : 4 * static_cast<double>(2 * (head - whole) + 1) / c;
    return std::exp2(-exponent);
}

}  // namespace

GainBias distance_transform(const DistanceConfig& distance, int64_t t, int64_t head, int64_t heads) {
    const double log_distance = std::log1p(static_cast<double>(t) / distance.tau);
    switch (distance.kind) {
        case DistanceKind::none:
            return {};
        case DistanceKind::scale_invariant: {
            const double m = 2 * log_distance;
            return {std::sqrt(1 + m), -distance.decay * m};
        }
        case DistanceKind::log_bias:
            return {1, -distance.decay * log_distance};
        case DistanceKind::si_interp: {
            const double share = 1 - distance.kappa;
            return {1 + 2 * share * log_distance, -(share + distance.p) * log_distance};
        }
        case DistanceKind::alibi:
            return {1, -alibi_slope(head, heads) * static_cast<double>(t)};
        case DistanceKind::kerple_log:
        case DistanceKind::kerple_power:
            break;
    }
    check(false, "this distance kind has no fixed form");
    return {};
}

double si_interp_row(const DistanceConfig& distance, double n) {
    return 2 * distance.kappa * std::log(distance.b * n + distance.c);
}

std::vector<double> alibi_slopes(int64_t heads) {
    std::vector<double> slopes;
    for (int64_t h = 0; h < heads; ++h) slopes.push_back(alibi_slope(h, heads));
    return slopes;
}

}  // namespace longreach::model
