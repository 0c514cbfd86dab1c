#include "theory/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "law/extreme_values.h"
#include "theory/cosine.h"
#include "theory/gaussian.h"
#include "theory/gradient_scale.h"
#include "theory/score_law.h"

namespace longreach::theory {

namespace {

const double missing = std::numeric_limits<double>::quiet_NaN();
const std::vector<double> powers = {0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3};  // r
const std::vector<double> targets = {1.5, 2, 4, 8, 16};                    // C

std::vector<std::string> headed(const std::string& first, const std::vector<double>& values,
                                const char* name) {
    std::vector<std::string> out = {first};
    for (double value : values) out.push_back(fmt::format("{}={}", name, value));
    return out;
}

// One row per n, one column per r.
template <class F>
table::DataTable by_power(const StudyOptions& options, const char* name, const char* title, const F& value) {
    table::DataTable table{name, title, headed("n", powers, "r"), {}};
    for (int64_t keys : options.ns) {
        const double n = static_cast<double>(keys);
        table.rows.push_back({table::Cell(n)});
        for (double r : powers) table.rows.back().push_back(value(n, r));
    }
    return table;
}

const std::vector<std::string> sampled_columns = {"exact", "sampled", "standard_error", "deviations"};

void append_sampled(std::vector<table::Cell>& row, double exact, const Estimate& sampled) {
    for (double value : {exact, sampled.mean, sampled.error, sampled.deviations(exact)}) row.push_back(value);
}

template <class Exact, class Which>
table::DataTable sampled_by_power(const StudyOptions& options, const char* name, const char* title,
                                  const Exact& exact, const Which& which) {
    table::DataTable table{name, title, {"n", "r", "alpha"}, {}};
    table.header.insert(table.header.end(), sampled_columns.begin(), sampled_columns.end());
    for (int64_t keys : options.ns) {
        const double n = static_cast<double>(keys);
        std::vector<double> alphas;
        for (double r : powers) alphas.push_back(r * freezing_scale(n));
        const std::vector<SoftmaxEstimates> estimates =
            sampled_gaussian(keys, alphas, options.samples, options.seed);
        for (size_t i = 0; i < powers.size(); ++i) {
            table.rows.push_back({n, powers[i], alphas[i]});
            append_sampled(table.rows.back(), exact(n, alphas[i]), which(estimates[i]));
        }
    }
    return table;
}

plot::HeatMap phase_map(const PhaseDiagram& diagram, const std::vector<double>& values, const char* what,
                        const char* symbol) {
    plot::HeatMap map;
    map.title = fmt::format("{}, n = {}, d = {}", what, diagram.n, diagram.d);
    map.x_label = "\u03c1 (cosine between tokens)";
    map.y_label = "\u03b3 (scale over log n)";
    map.value_label = symbol;
    map.y_max = diagram.gamma_max;
    map.columns = map.rows = static_cast<int>(diagram.cells);
    map.values = values;
    map.curve_label = "\u03b3 = 1 / (1 \u2212 \u03c1)";
    for (int i = 0; i < 400; ++i) {
        const double rho = i / 400.0;
        map.curve.emplace_back(rho, critical_gamma(rho));
    }
    return map;
}

}  // namespace

std::vector<table::DataTable> extreme_tables(const StudyOptions& options) {
    table::DataTable rules{"extreme_rules", "E[1/w_max] of n normal scores under other scales", {"n"}, {}};
    for (const ScaleRule& rule : scale_rules()) rules.header.push_back(rule.name);
    table::DataTable scales{
        "extreme_scales", "scale alpha with E[1/w_max] = C, n normal scores", headed("n", targets, "C"), {}};
    table::DataTable ratios{
        "extreme_scale_ratios", "the same over sqrt(2 ln n)", headed("n", targets, "C"), {}};
    for (int64_t keys : options.ns) {
        const double n = static_cast<double>(keys);
        rules.rows.push_back({table::Cell(n)});
        for (const ScaleRule& rule : scale_rules())
            rules.rows.back().push_back(law::gaussian_inverse_largest_weight(n, rule.alpha(n)));
        scales.rows.push_back({table::Cell(n)});
        ratios.rows.push_back({table::Cell(n)});
        for (double target : targets) {
            const double alpha = n > target ? law::solve_gaussian_scale(n, target) : missing;
            scales.rows.back().push_back(alpha);
            ratios.rows.back().push_back(alpha / freezing_scale(n));
        }
    }
    return {by_power(options, "extreme", "E[1/w_max] of n normal scores, alpha = r sqrt(2 ln n)",
                     [](double n, double r) {
                         return law::gaussian_inverse_largest_weight(n, r * freezing_scale(n));
                     }),
            by_power(options, "extreme_limit", "for large n: leading order (r < 1), r/(r - 1) (r > 1)",
                     inverse_largest_limit),
            rules,
            scales,
            ratios,
            sampled_by_power(options, "extreme_sampled", "E[1/w_max], exact and sampled",
                             law::gaussian_inverse_largest_weight,
                             [](const SoftmaxEstimates& e) { return e.inverse_largest; })};
}

std::vector<table::DataTable> participation_tables(const StudyOptions& options) {
    return {by_power(options, "participation", "E[sum w^2] of n normal scores, alpha = r sqrt(2 ln n)",
                     [](double n, double r) {
                         return law::gaussian_participation_ratio(n, r * freezing_scale(n));
                     }),
            by_power(options, "participation_limit", "for large n: the power of n (r < 1), 1 - 1/r (r >= 1)",
                     participation_limit),
            sampled_by_power(options, "participation_sampled", "E[sum w^2], exact and sampled",
                             law::gaussian_participation_ratio,
                             [](const SoftmaxEstimates& e) { return e.participation; })};
}

std::vector<table::DataTable> entropy_tables(const StudyOptions& options) {
    return {by_power(options, "entropy", "entropy of n normal scores in nats, alpha = r sqrt(2 ln n)",
                     [](double n, double r) { return gaussian_entropy(n, r * freezing_scale(n)); }),
            by_power(options, "entropy_limit", "for large n: (1 - r^2) ln n, 0 from r = 1 on", entropy_limit),
            sampled_by_power(options, "entropy_sampled", "entropy, exact and sampled", gaussian_entropy,
                             [](const SoftmaxEstimates& e) { return e.entropy; })};
}

std::vector<table::DataTable> cosine_tables(const StudyOptions& options) {
    table::DataTable scales{"cosine_scales",
                            "scale alpha of sqrt(d) cos with E[1/w_max] = C, and of normal scores",
                            {"d", "C"},
                            {}};
    for (int64_t n : options.ns) scales.header.push_back(fmt::format("n={}", n));
    const auto scale_row = [&](const table::Cell& first, double target, const auto& solve) {
        scales.rows.push_back({first, target});
        for (int64_t keys : options.ns) {
            const double n = static_cast<double>(keys);
            scales.rows.back().push_back(n > target ? solve(n, target) : missing);
        }
    };
    const std::vector<double> spreads = {2, 4};
    for (double target : spreads) scale_row(std::string("normal"), target, law::solve_gaussian_scale);
    for (int64_t d : options.dims) {
        const law::CosineScores scores(d);
        for (double target : spreads)
            scale_row(static_cast<double>(d), target,
                      [&](double n, double c) { return scores.solve_scale(n, c); });
    }

    table::DataTable contexts{
        "cosine_contexts",
        "number of keys from which cosines of d dimensions need a scale so much above that of "
        "normal scores for E[1/w_max] = C; empty: not up to 1e9",
        {"d", "C"},
        {}};
    const std::vector<double> excesses = {0.05, 0.1, 0.2, 0.5};
    for (double excess : excesses) contexts.header.push_back(fmt::format("+{:.0f}%", 100 * excess));
    for (int64_t d : options.dims) {
        const law::CosineScores scores(d);
        for (double target : spreads) {
            contexts.rows.push_back({static_cast<double>(d), target});
            for (double excess : excesses)
                contexts.rows.back().push_back(std::ceil(cosine_context(scores, target, excess)));
        }
    }

    table::DataTable sampled{"cosine_sampled",
                             "cosines at the scale with E[1/w_max] = 4 of normal scores, exact and sampled",
                             {"d", "n", "alpha", "quantity"},
                             {}};
    sampled.header.insert(sampled.header.end(), sampled_columns.begin(), sampled_columns.end());
    for (int64_t d : options.dims) {
        const law::CosineScores scores(d);
        for (int64_t keys : options.ns) {
            // A key takes d numbers; beyond this limit sampling takes minutes.
            if (keys <= 4 || keys * d > 600000) continue;
            const double n = static_cast<double>(keys), alpha = law::solve_gaussian_scale(n, 4);
            const int dim = static_cast<int>(d);
            const SoftmaxEstimates e = sampled_cosine(dim, keys, {alpha}, options.samples, options.seed)[0];
            const auto row = [&](const char* quantity, double exact, const Estimate& estimate) {
                sampled.rows.push_back({static_cast<double>(d), n, alpha, std::string(quantity)});
                append_sampled(sampled.rows.back(), exact, estimate);
            };
            row("1/w_max", scores.inverse_largest_weight(n, alpha), e.inverse_largest);
            row("sum w^2", cosine_participation(dim, n, alpha), e.participation);
            row("entropy", cosine_entropy(dim, n, alpha), e.entropy);
        }
    }
    return {scales, contexts, sampled};
}

std::vector<table::DataTable> gradient_tables(const StudyOptions& options) {
    table::DataTable normal{
        "gradient",
        "alpha (1 - sum w^2) of normal scores: its maximum with sum w^2 = exp(alpha^2)/n, the "
        "exact value there and at alpha = r sqrt(2 ln n)",
        {"n", "alpha", "alpha/sqrt(ln n)", "exact", "exact r=1", "exact r=2", "exact r=3"},
        {}};
    table::DataTable cosine{
        "gradient_cosine", "the same for cosines: multiplier A of the cosine, and over ln n", {"n"}, {}};
    for (int64_t d : options.dims) {
        cosine.header.push_back(fmt::format("A d={}", d));
        cosine.header.push_back(fmt::format("A/ln n d={}", d));
    }
    for (int64_t keys : options.ns) {
        const double n = static_cast<double>(keys), alpha = gaussian_gradient_scale(n);
        normal.rows.push_back({n, alpha, alpha / std::sqrt(std::log(n)), gaussian_gradient(n, alpha)});
        for (double r : {1.0, 2.0, 3.0})
            normal.rows.back().push_back(gaussian_gradient(n, r * freezing_scale(n)));
        cosine.rows.push_back({table::Cell(n)});
        for (int64_t d : options.dims) {
            const double a = cosine_gradient_scale(static_cast<int>(d), n);
            cosine.rows.back().push_back(a);
            cosine.rows.back().push_back(a / std::log(n));
        }
    }
    return {normal, cosine};
}

table::DataTable phase_table(const PhaseDiagram& diagram) {
    table::DataTable table{fmt::format("phase_n{}_d{}", diagram.n, diagram.d),
                           "",
                           {"rho", "gamma", "gamma_over_critical", "lambda", "eta", "lambda_simplex",
                            "lambda_limit", "eta_limit"},
                           {}};
    for (int64_t row = 0; row < diagram.cells; ++row)
        for (int64_t column = 0; column < diagram.cells; ++column) {
            const size_t cell = static_cast<size_t>(row * diagram.cells + column);
            const double rho = diagram.rho(column), gamma = diagram.gamma(row);
            table.rows.push_back({rho, gamma, gamma / critical_gamma(rho), diagram.angle_ratio[cell],
                                  diagram.gradient_norm[cell],
                                  simplex_angle_ratio(static_cast<double>(diagram.n), rho, gamma),
                                  simplex_angle_ratio_limit(rho, gamma),
                                  simplex_gradient_norm_limit(static_cast<double>(diagram.d), rho, gamma)});
        }
    return table;
}

plot::HeatMap angle_ratio_map(const PhaseDiagram& diagram) {
    return phase_map(diagram, diagram.angle_ratio, "Angles after attention over angles before", "\u03bb");
}

plot::HeatMap gradient_norm_map(const PhaseDiagram& diagram) {
    return phase_map(diagram, diagram.gradient_norm, "Gradient passed through attention", "\u03b7");
}

}  // namespace longreach::theory
