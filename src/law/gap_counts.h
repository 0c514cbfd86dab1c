// How a temperature must grow with the number of keys, from counts of the keys near the largest one.
//
// A query sees n keys with logits y_j. Their gaps are g_j = max y - y_j, and N(g) is the number of keys with
// g_j <= g. With logits s y the largest weight of the softmax is max P = 1 / sum_j exp(-s g_j). Hence
//     C(n, s) = E[1 / max P] = E sum_j exp(-s g_j) = int_0^inf s exp(-s g) E[N(g)] dg,
// and the mean counts alone say over how many keys attention spreads at any temperature. C falls from n at s = 0 to
// 1. A law keeps the concentration if C(n, s(n)) is the same number C for every n: this equation defines s(n) here,
// and s(n) = a (log n)^p is fitted to its solutions.
//
// At C = 2 all other keys together weigh as much as the largest: above this critical scale attention collapses to one
// key, below it the largest keys are not told apart (Karakida and Hayase 2026, where the growth of N decides p). For n
// independent logits and a constant C, as n grows:
//     upper tail exp(-y^k)         s ~ (log n)^(1 - 1/k): the largest keys are that much closer to each other
//     normal, and cosines (k = 2)  s ~ sqrt(2 log n) / sd, p = 1/2; of cosines in d dimensions while log n << d
//     exponential (k = 1)          N(g) - 1 = exp(g) - 1 for every n, so that s = C / (C - 1), p = 0
//     simplex                      all keys but one at the gap D: s = log((n - 1) / (C - 1)) / D, p = 1 at C = 2
// Over n from 16 to 65,536 exact integrals give 0.75 for normal logits at C = 2 and 0.88 for cosines in 64 dimensions.
// At a larger C, p is larger over any range of n: normal logits have s ~ (sqrt(2 log n) - c) / sd with a c that grows
// with C. A model whose heads are not concentrated therefore needs more than its critical exponent to stay as it is.
//
// Assumed: n is the number of visible keys; logits at another temperature are s times these, as they are if s follows
// the whole law of the layer; no sink takes part.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <vector>

namespace longreach::law {

inline constexpr std::array<double, 5> gap_values{0.5, 1, 2, 4, 8};
// Scales s, each twice the one before.
inline constexpr std::array<double, 10> gap_scales{0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64};
using ScaleList = std::array<double, gap_scales.size()>;

// Of one query; there must be logits. `others` counts the keys but the largest softly: exp(-s g) in place of a limit at the
// gap 1 / s. Its mean is C(n, s) - 1 without a sum over gaps that is cut into steps.
struct RowGaps {
    std::array<double, gap_values.size()> keys{};  // N(g)
    ScaleList others{};
};
RowGaps row_gaps(std::span<const float> logits);

// Means over queries that see about n keys.
struct GapMeans {
    double n = 0;
    ScaleList others{};
    ScaleList error{};  // standard errors; NaN: unknown
};

// C(n, s), for s within gap_scales: log(C - 1) is a cubic in log s between the nearest four of them.
double inverse_largest_weight(const GapMeans& means, double s);
// s with C(n, s) = level; nothing if it is beyond gap_scales.
std::optional<double> solve_gap_scale(const GapMeans& means, double level);

// s(n) = a (log n)^p
struct PowerOfLog {
    double a = 0, p = 0;
};
// Least squares of log s over log log n. Two different n > 1 at least.
PowerOfLog fit_power_of_log(std::span<const double> n, std::span<const double> s);

struct GapFit {
    double level = 0;  // C
    PowerOfLog scale;
    double error = 0;  // of p; NaN: unknown
};
inline constexpr double critical_level = 2;
// The scale with C = 2 at these n; with the concentration that the first of them has at s = 1, if C is at most half of n
// there: more even attention cannot be kept. Nothing with fewer than three solutions. The error takes means of different n
// as independent; where they share documents, whose level moves all n alike, the slope p is known better than that.
std::optional<GapFit> fit_critical_scale(std::span<const GapMeans> means);
std::optional<GapFit> fit_kept_scale(std::span<const GapMeans> means);

}  // namespace longreach::law
