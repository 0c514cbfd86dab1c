#include "law/gap_counts.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace longreach::law {

RowGaps row_gaps(std::span<const float> logits) {
    check(!logits.empty(), "gaps of no logits");
    const double largest = double{*std::max_element(logits.begin(), logits.end())};
    RowGaps row;
    for (double& others : row.others) others = -1;  // the largest itself
    for (const float y : logits) {
        const double gap = largest - double{y};
        for (size_t i = 0; i < gap_values.size(); ++i) row.keys[i] += gap <= gap_values[i] ? 1 : 0;
        double weight = std::exp(-gap_scales[0] * gap);
        for (double& others : row.others) {
            others += weight;
            weight *= weight;
        }
    }
    return row;
}

namespace {

constexpr size_t scales = gap_scales.size();

// log(C - 1) at a place between 0 and scales - 1, in steps of a factor of 2.
double log_others(const GapMeans& means, double place) {
    const size_t first = std::min(scales - 4, static_cast<size_t>(std::max(0.0, std::floor(place) - 1)));
    double sum = 0;
    for (size_t i = first; i < first + 4; ++i) {
        double part = std::log(std::max(1e-300, means.others[i]));
        for (size_t j = first; j < first + 4; ++j)
            if (j != i)
                part *= (place - static_cast<double>(j)) / (static_cast<double>(i) - static_cast<double>(j));
        sum += part;
    }
    return sum;
}

}  // namespace

double inverse_largest_weight(const GapMeans& means, double s) {
    check(s >= gap_scales.front() && s <= gap_scales.back(), "logits times {}", s);
    return 1 + std::exp(log_others(means, std::log2(s / gap_scales.front())));
}

std::optional<double> solve_gap_scale(const GapMeans& means, double level) {
    const double others = level - 1;
    size_t next = 1;  // the first scale that is too large
    while (next < scales && !(means.others[next] < others)) ++next;
    if (next == scales || !(others > 0) || !(means.others[next - 1] >= others)) return {};
    double low = static_cast<double>(next - 1), high = low + 1;
    for (int i = 0; i < 60; ++i) {
        const double middle = (low + high) / 2;
        (log_others(means, middle) >= std::log(others) ? low : high) = middle;
    }
    return gap_scales.front() * std::exp2(low);
}

namespace {

// The weights with which values of log s add up to the slope over log log n.
std::vector<double> slope_weights(std::span<const double> n) {
    std::vector<double> weights;
    double mean = 0, squares = 0;
    for (const double x : n) mean += std::log(std::log(x)) / static_cast<double>(n.size());
    for (const double x : n) weights.push_back(std::log(std::log(x)) - mean);
    for (const double w : weights) squares += w * w;
    check(squares > 0, "a slope over {} equal numbers", n.size());
    for (double& w : weights) w /= squares;
    return weights;
}

bool has_errors(const GapMeans& means) {
    return std::none_of(means.error.begin(), means.error.end(), [](double e) { return std::isnan(e); });
}

// Every mean one standard error higher.
GapMeans raised(GapMeans means) {
    for (size_t i = 0; i < scales; ++i) means.others[i] += means.error[i];
    return means;
}

// kept: the level is that of the first means at s = 1, and as uncertain as they are.
std::optional<GapFit> fit(std::span<const GapMeans> means, double level, bool kept) {
    std::vector<double> ns, found;
    std::vector<const GapMeans*> of;
    for (const GapMeans& m : means)
        if (const std::optional<double> s = solve_gap_scale(m, level)) {
            ns.push_back(m.n);
            found.push_back(*s);
            of.push_back(&m);
        }
    if (ns.size() < 3) return {};
    const std::vector<double> weights = slope_weights(ns);
    if (!std::all_of(of.begin(), of.end(), [](const GapMeans* m) { return has_errors(*m); }))
        return GapFit{level, fit_power_of_log(ns, found), NAN};
    const double higher = kept ? inverse_largest_weight(raised(means[0]), 1) : level;
    double variance = 0, by_level = 0;
    for (size_t i = 0; i < of.size(); ++i) {
        if (kept && of[i] == &means[0]) continue;  // s = 1, whatever the means
        const auto shift = [&](const GapMeans& m, double at) {
            return weights[i] * std::log(solve_gap_scale(m, at).value_or(NAN) / found[i]);
        };
        const double own = shift(raised(*of[i]), level);
        variance += own * own;
        if (kept) by_level += shift(*of[i], higher);
    }
    return GapFit{level, fit_power_of_log(ns, found), std::sqrt(variance + by_level * by_level)};
}

}  // namespace

PowerOfLog fit_power_of_log(std::span<const double> n, std::span<const double> s) {
    const std::vector<double> weights = slope_weights(n);
    PowerOfLog scale;
    double log_a = 0;
    for (size_t i = 0; i < n.size(); ++i) scale.p += weights[i] * std::log(s[i]);
    for (size_t i = 0; i < n.size(); ++i) log_a += std::log(s[i]) - scale.p * std::log(std::log(n[i]));
    scale.a = std::exp(log_a / static_cast<double>(n.size()));
    return scale;
}

std::optional<GapFit> fit_critical_scale(std::span<const GapMeans> means) {
    return fit(means, critical_level, false);
}

std::optional<GapFit> fit_kept_scale(std::span<const GapMeans> means) {
    if (means.empty()) return {};
    const double level = inverse_largest_weight(means[0], 1);
    if (level > means[0].n / 2) return {};
    return fit(means, level, true);
}

}  // namespace longreach::law
