#include "model/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace longreach::model {

namespace {

bool linear(const PositionConfig& position) {
    return position.kind == PositionKind::p_rope && position.spacing == Spacing::linspace;
}

// theta_m *= stretch^(-2m / (D - 2)): base becomes base * stretch^(D/(D-2)). The fastest pair never changes.
void stretch_base(std::vector<double>& theta, double stretch) {
    const double last = static_cast<double>(theta.size()) - 1;
    for (size_t m = 1; m < theta.size(); ++m) theta[m] *= std::pow(stretch, -static_cast<double>(m) / last);
}

// Channel pair that turns `rotations` times over the trained length, as a real number.
double pair_of_rotations(const PositionConfig& position, int64_t head_dim, size_t pairs, double trained,
                         double rotations) {
    const double per_factor_e =  // pairs over which theta falls by a factor of e
        (linear(position) ? static_cast<double>(pairs) - 1 : static_cast<double>(head_dim) / 2) /
        std::log(position.base);
    return per_factor_e * std::log(trained / (2 * std::numbers::pi * rotations));
}

void apply_yarn(std::vector<double>& theta, const PositionConfig& position, int64_t head_dim, double trained,
                double factor) {
    const auto pair = [&](double rotations) {
        return pair_of_rotations(position, head_dim, theta.size(), trained, rotations);
    };
    const double last_channel = 2 * static_cast<double>(theta.size()) - 1;
    const double low = std::max(std::floor(pair(32)), 0.0);
    // If even the slowest kept pair turns more than 32 times, no pair reaches the ramp.
    double high = std::max(std::min(std::ceil(pair(1)), last_channel), low);
    if (low == high) high += 0.001;
    for (size_t m = 0; m < theta.size(); ++m) {
        const double ramp = std::clamp((static_cast<double>(m) - low) / (high - low), 0.0, 1.0);
        theta[m] = theta[m] * ramp / factor + theta[m] * (1 - ramp);
    }
}

}  // namespace

std::vector<double> rotary_frequencies(const PositionConfig& position, int64_t head_dim) {
    const int64_t half = head_dim / 2;
    int64_t pairs = half;
    if (position.kind == PositionKind::nope) pairs = 0;
    if (position.kind == PositionKind::p_rope)  // the small addend keeps 0.7 * 10 from flooring to 6
        pairs = static_cast<int64_t>(std::floor(position.fraction * static_cast<double>(half) + 1e-9));
    std::vector<double> theta(static_cast<size_t>(pairs));
    for (int64_t m = 0; m < pairs; ++m) {
        const double exponent =
            linear(position) ? (pairs > 1 ? static_cast<double>(m) / static_cast<double>(pairs - 1) : 0.0)
                             : 2.0 * static_cast<double>(m) / static_cast<double>(head_dim);
        theta[static_cast<size_t>(m)] = std::pow(position.base, -exponent);
    }
    return theta;
}

RotaryPlan plan_rotary(const PositionConfig& position, int64_t head_dim, const PostHocConfig& post_hoc,
                       int64_t train_context, int64_t length) {
    RotaryPlan plan;
    plan.theta = rotary_frequencies(position, head_dim);
    if (length <= train_context || plan.theta.empty()) return plan;

    const double trained = static_cast<double>(train_context), tested = static_cast<double>(length);
    const double longer = tested / trained;
    const double factor = post_hoc.factor == 0 ? longer : post_hoc.factor;
    const double pairs = static_cast<double>(plan.theta.size());
    switch (post_hoc.kind) {
        case RopeMethod::none:
            break;
        case RopeMethod::pi:
            for (double& theta : plan.theta) theta /= factor;
            break;
        case RopeMethod::ntk:
            stretch_base(plan.theta, factor);
            break;
        case RopeMethod::ntk_dynamic: {
            const double k = post_hoc.factor == 0 ? 1 : post_hoc.factor;
            stretch_base(plan.theta, k * longer - (k - 1));
            break;
        }
        case RopeMethod::ntk_old:
            for (size_t m = 0; m < plan.theta.size(); ++m)
                plan.theta[m] *= std::pow(factor, -static_cast<double>(m) / pairs);
            break;
        case RopeMethod::ntk_su:
            for (size_t m = 0; m < plan.theta.size(); ++m)
                plan.theta[m] *= std::pow(factor, -static_cast<double>(m + 1) / pairs);
            break;
        case RopeMethod::ntk_mixed:
            for (size_t m = 0; m < plan.theta.size(); ++m)
                plan.theta[m] *=
                    std::pow(factor, -std::pow(static_cast<double>(m + 1) / pairs, post_hoc.exponent));
            break;
        case RopeMethod::yarn:
            apply_yarn(plan.theta, position, head_dim, trained, factor);
            break;
        case RopeMethod::rerope:
        case RopeMethod::leaky_rerope: {
            const int64_t window =
                post_hoc.window == 0 ? std::max<int64_t>(1, train_context / 4) : post_hoc.window;
            const double w = static_cast<double>(window);
            plan.far = window < length;  // the largest distance is length - 1
            plan.far_from = window;
            if (post_hoc.kind == RopeMethod::rerope) {
                plan.far_query_offset = w;
                break;
            }
            double k = post_hoc.leak;
            if (k == 0) k = w < trained ? (tested - w) / (trained - w) : longer;
            plan.far_query_offset = w - w / k;
            plan.far_query_rate = plan.far_key_rate = 1 / k;
            break;
        }
    }
    if (post_hoc.kind == RopeMethod::yarn || post_hoc.scale == TestScale::yarn_temp) {
        // The k of ntk_dynamic is not a ratio of lengths.
        const double ratio = post_hoc.kind == RopeMethod::ntk_dynamic ? longer : factor;
        const double stretch = 0.1 * std::log(ratio) + 1;
        plan.logit_factor = stretch * stretch;
    }
    return plan;
}

}  // namespace longreach::model
