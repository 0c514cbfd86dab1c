#include "theory/law_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "base/rng.h"

namespace longreach::theory {

namespace {

// Scores of one query: row * gain(t) * z + bias(t), or with row_square.
struct Scores {
    std::vector<double> gain, bias;
    double softcap = 0;

    Scores(const law::BoundLaw& law, int64_t head, int64_t n) : softcap(law.law().softcap) {
        gain = law.gain(head, n);
        bias = law.bias(head, n);
        const double row = law.row(head, n).back();
        const double square = law.law().row_square ? law.row_square(head, n).back() : 0;
        for (double& g : gain) g = row * (law.law().row_square ? std::sqrt(g + square) : g);
    }
    double at(size_t t, double z) const {
        return gain[t] * (softcap > 0 ? softcap * std::tanh(z / softcap) : z) + bias[t];
    }
};

// 0: distance 0; k: [10^(k-1), 10^k).
size_t decade_of(int64_t t) {
    size_t decade = 0;
    for (; t > 0; t /= 10) ++decade;
    return decade;
}

size_t decade_begin(size_t decade) {
    size_t begin = decade == 0 ? 0 : 1;
    for (size_t i = 1; i < decade; ++i) begin *= 10;
    return begin;
}

// Softmax over some keys: weight i is exp(y_i - largest) / sum.
struct Weights {
    double largest = 0, sum = 0, entropy = 0;

    explicit Weights(std::span<const double> y) : largest(*std::max_element(y.begin(), y.end())) {
        double logs = 0;
        for (const double v : y) {
            sum += std::exp(v - largest);
            logs += std::exp(v - largest) * (v - largest);
        }
        entropy = std::log(sum) - logs / sum;
    }
};

std::string decade_name(size_t decade) {
    if (decade == 0) return "t 0";
    const std::string zeros(decade - 1, '0');
    return decade == 1 ? "t 1-9" : fmt::format("t 1{}-{}", zeros, std::string(decade, '9'));
}

}  // namespace

Concentration concentration(const law::BoundLaw& law, int64_t head, int64_t n, int64_t samples,
                            uint64_t seed) {
    const Scores scores(law, head, n);
    const double scale = law.law().of_dot ? 1 / std::sqrt(static_cast<double>(law.model().head_dim)) : 1;
    const auto count = static_cast<size_t>(n);
    std::vector<double> inverse(static_cast<size_t>(samples)), entropy(inverse.size());
    std::vector<double> y(count), mass(decade_of(n - 1) + 1), range_entropy(mass.size());
    for (size_t s = 0; s < inverse.size(); ++s) {
        const Rng rng(seed, Purpose::theory, static_cast<uint32_t>(s));
        for (size_t t = 0; t < count; ++t) y[t] = scores.at(t, scale * rng.normal(t));
        const Weights all(y);
        inverse[s] = all.sum;
        entropy[s] = all.entropy;
        for (size_t decade = 0; decade < mass.size(); ++decade) {
            const size_t begin = decade_begin(decade), end = std::min(count, decade_begin(decade + 1));
            const Weights within({y.data() + begin, end - begin});
            mass[decade] +=
                within.sum * std::exp(within.largest - all.largest) / all.sum / static_cast<double>(samples);
            range_entropy[decade] += within.entropy / static_cast<double>(samples);
        }
    }
    return {n, estimate_mean(inverse), estimate_mean(entropy), mass, range_entropy};
}

std::vector<table::DataTable> law_tables(const law::BoundLaw& law, const LawStudy& study) {
    const int64_t longest = study.ns.back();
    const auto head_name = [&](const char* what, int64_t h) {
        return study.heads.size() == 1 ? std::string(what) : fmt::format("{}, head {}", what, h);
    };
    table::DataTable values{"law", "the law at n keys and at distance t, n = t + 1", {"n"}, {}};
    for (const int64_t n : study.ns) values.rows.push_back({table::count_cell(n)});
    for (const int64_t h : study.heads) {
        const std::vector<double> row = law.row(h, longest), gain = law.gain(h, longest),
                                  bias = law.bias(h, longest);
        for (const char* what : {"row(n)", "gain(t)", "bias(t)"}) values.header.push_back(head_name(what, h));
        for (size_t i = 0; i < study.ns.size(); ++i) {
            const auto at = static_cast<size_t>(study.ns[i] - 1);
            // + 0.0: not "-0"
            values.rows[i].insert(values.rows[i].end(), {row[at] + 0.0, gain[at] + 0.0, bias[at] + 0.0});
        }
    }
    table::DataTable spread{
        "law_concentration",
        "attention over n keys with independent normal scores: number of keys that the "
        "largest weight leaves, entropy in nats, weight by decade of the distance, entropy within the decade",
        {"n", "head", "E[1/w_max]", "error", "entropy"},
        {}};
    const size_t decades = decade_of(longest - 1) + 1;
    for (size_t d = 0; d < decades; ++d) spread.header.push_back(decade_name(d));
    for (size_t d = 1; d < decades; ++d) spread.header.push_back("entropy, " + decade_name(d));
    for (const int64_t n : study.ns)
        for (const int64_t h : study.heads) {
            if (n < 2) continue;
            const Concentration c = concentration(law, h, n, study.samples, study.seed);
            spread.rows.push_back(
                {table::count_cell(n), table::count_cell(h), table::significant_cell(c.inverse_largest.mean),
                 table::significant_cell(c.inverse_largest.error), table::significant_cell(c.entropy.mean)});
            for (size_t d = 0; d < decades; ++d)
                spread.rows.back().push_back(d < c.mass.size() ? table::number_cell(c.mass[d], 3)
                                                               : table::Cell(""));
            for (size_t d = 1; d < decades; ++d)
                spread.rows.back().push_back(d < c.mass.size() ? table::number_cell(c.range_entropy[d], 3)
                                                               : table::Cell(""));
        }
    return {values, spread};
}

std::vector<plot::LineChart> law_charts(const law::BoundLaw& law, const LawStudy& study) {
    const int64_t longest = study.ns.back();
    std::vector<plot::LineChart> charts;
    using Table = std::vector<double> (law::BoundLaw::*)(int64_t, int64_t) const;
    const struct {
        const char *id, *title, *x, *y;
        Table table;
    } kinds[] = {
        {"row", "Factor of every score of a query", "keys counted, n", "factor", &law::BoundLaw::row},
        {"gain", "Factor by distance", "distance + 1", "gain", &law::BoundLaw::gain},
        {"bias", "Added by distance", "distance + 1", "bias", &law::BoundLaw::bias}};
    for (const auto& kind : kinds) {
        plot::LineChart chart;
        chart.id = kind.id;
        chart.title = kind.title;
        chart.x_label = kind.x;
        chart.y_label = kind.y;
        chart.log_x = true;
        bool constant = true;
        for (size_t i = 0; i < study.heads.size(); ++i) {
            const std::vector<double> table = (law.*kind.table)(study.heads[i], longest);
            plot::ChartLine line{.series = i};
            line.markers = false;
            // Eighty points on a logarithmic axis; every one of the first.
            for (int64_t n = 1; n <= longest;
                 n = std::max(n + 1, static_cast<int64_t>(1.12 * static_cast<double>(n)))) {
                const double y = table[static_cast<size_t>(n - 1)];
                line.points.push_back(
                    {.x = static_cast<double>(n), .y = y, .text = fmt::format("{:.4g}", y)});
                constant = constant && y == table[0];
            }
            chart.lines.push_back(std::move(line));
        }
        if (!constant) charts.push_back(std::move(chart));
    }
    return charts;
}

}  // namespace longreach::theory
