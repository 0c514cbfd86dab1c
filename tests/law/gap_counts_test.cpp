// Gap counts of logits whose distribution is known, against the temperature that the distribution needs.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "law/extreme_values.h"
#include "law/gap_counts.h"

using namespace longreach;
using doctest::Approx;

namespace {

// A distribution of logits as the inverse of its tail: P(y > at(x)) = exp(-x). Exponential numbers x make logits of it.
class Tail {
  public:
    static constexpr double step = 1.0 / 128, longest = 48;
    explicit Tail(const std::function<double(double)>& at) {
        for (double x = 0; x <= longest; x += step) values_.push_back(at(x));
    }
    double at(double x) const {
        const double place = std::min(x, longest - step) / step;
        const size_t i = static_cast<size_t>(place);
        return values_[i] + (place - static_cast<double>(i)) * (values_[i + 1] - values_[i]);
    }
    // E[1 / max P] of n logits times s: 1 + n (n-1) int f(m) F(m)^(n-2) S(m) dm, S(m) = int_0^m f(x) exp(-s (y(m) - y(x))) dx
    // with the density f(x) = exp(-x) and F = 1 - f.
    double inverse_largest_weight(double n, double s) const {
        double inner = 0, sum = 0;
        for (size_t i = 1; i < values_.size(); ++i) {
            const double m = static_cast<double>(i) * step;
            inner = (inner + step / 2 * std::exp(step - m)) * std::exp(-s * (values_[i] - values_[i - 1])) +
                    step / 2 * std::exp(-m);
            const double log_density = -m + (n - 2) * std::log1p(-std::exp(-m));
            if (log_density > -80) sum += step * std::exp(log_density) * inner;
        }
        return 1 + n * (n - 1) * sum;
    }
    double scale(double n, double level) const {
        double low = 0, high = 1000;
        for (int i = 0; i < 60; ++i) {
            const double middle = (low + high) / 2;
            (inverse_largest_weight(n, middle) > level ? low : high) = middle;
        }
        return low;
    }

  private:
    std::vector<double> values_;
};

// The x of a rising function between two ends where it is `value`.
double inverse(double low, double high, double value, const std::function<double(double)>& of) {
    for (int i = 0; i < 60; ++i) {
        const double middle = (low + high) / 2;
        (of(middle) < value ? low : high) = middle;
    }
    return low;
}

const Tail& normal() {
    static const Tail tail([](double x) {
        return inverse(-9, 12, x, [](double y) { return -std::log(std::erfc(y / std::sqrt(2.0)) / 2); });
    });
    return tail;
}

// sqrt(d) cos of directions in d = 64 dimensions: the angle has the density sin^62.
const Tail& sphere() {
    constexpr int nodes = 20000;
    constexpr double width = std::numbers::pi / nodes;
    std::vector<double> below{0};  // P(angle < i width)
    const auto density = [](int i) { return std::pow(std::sin(i * width), 62); };
    for (int i = 1; i <= nodes; ++i) below.push_back(below.back() + (density(i - 1) + density(i)) / 2);
    static const Tail tail([&](double x) {
        const double at = std::exp(-x) * below.back();
        const auto i =
            std::max<std::ptrdiff_t>(1, std::lower_bound(below.begin(), below.end(), at) - below.begin());
        const double low = below[static_cast<size_t>(i - 1)], high = below[static_cast<size_t>(i)];
        return 8 * std::cos((static_cast<double>(i - 1) + (at - low) / (high - low)) * width);
    });
    return tail;
}

const Tail& exponential() {
    static const Tail tail([](double x) { return x; });
    return tail;
}

const Tail& heavy() {  // exp(-sqrt(y)), the tail falls slower than that of any exponential
    static const Tail tail([](double x) { return x * x / 8; });
    return tail;
}

constexpr int heads = 16, rows_in_all = 65536, first_bin = 4, last_bin = 15;  // bin k: 2^k <= n < 2^(k+1)

// Fewer rows where they are longer.
int64_t rows_of_bin(int k) {
    double all = 0;
    for (int i = first_bin; i <= last_bin; ++i) all += std::exp2(-0.75 * i);
    return std::llround(rows_in_all / heads * std::exp2(-0.75 * k) / all);
}

// Fills a row with logits; `uniform` gives numbers of [0, 1).
using Draw = std::function<void(std::span<float> row, const std::function<double()>& uniform)>;

Draw independent(const Tail& tail) {
    return [&tail](std::span<float> row, const std::function<double()>& uniform) {
        for (float& y : row) y = static_cast<float>(tail.at(-std::log1p(-uniform())));
    };
}

// One key is the query's own vertex of a simplex, all others are equally far.
constexpr double simplex_gap = 3;
void simplex(std::span<float> row, const std::function<double()>& uniform) {
    std::fill(row.begin(), row.end(), -1.0f);
    row[static_cast<size_t>(uniform() * static_cast<double>(row.size()))] = simplex_gap - 1;
}

// What a probe of 16 heads would count: rows of any n in each bin, and their spread.
std::vector<std::vector<law::GapMeans>> counted(const Draw& draw) {
    uint64_t state = 1;
    const auto uniform = [&] {  // splitmix64: there are 24 million numbers of each kind
        uint64_t x = state += 0x9e3779b97f4a7c15;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        return static_cast<double>((x ^ (x >> 31)) >> 11) * 0x1p-53;
    };
    std::vector<std::vector<law::GapMeans>> all(heads);
    std::vector<float> row;
    for (std::vector<law::GapMeans>& bins : all)
        for (int k = first_bin; k <= last_bin; ++k) {
            const int64_t rows = rows_of_bin(k);
            const double r = static_cast<double>(rows);
            law::GapMeans mean;
            law::ScaleList squares{};
            for (int64_t i = 0; i < rows; ++i) {
                const double n = std::floor(std::exp2(k) * (1 + (static_cast<double>(i) + 0.5) / r));
                row.resize(static_cast<size_t>(n));
                draw(row, uniform);
                const law::ScaleList others = law::row_gaps(row).others;
                mean.n += n / r;
                for (size_t s = 0; s < others.size(); ++s) {
                    mean.others[s] += others[s] / r;
                    squares[s] += others[s] * others[s] / r;
                }
            }
            for (size_t s = 0; s < squares.size(); ++s)
                mean.error[s] =
                    std::sqrt(std::max(0.0, squares[s] - mean.others[s] * mean.others[s]) / (r - 1));
            bins.push_back(mean);
        }
    return all;
}

using Fit = std::function<std::optional<law::GapFit>(std::span<const law::GapMeans>)>;

// The mean exponent of the heads, its error, and the share of heads whose exponent is within two errors of the true one.
struct Found {
    double p = 0, error = 0, within = 0;
};
Found found(const std::vector<std::vector<law::GapMeans>>& of_heads, size_t from, const Fit& fit,
            double truth) {
    Found result;
    for (const std::vector<law::GapMeans>& counts : of_heads) {
        const std::optional<law::GapFit> one = fit(std::span(counts).subspan(from));
        REQUIRE(one.has_value());
        result.p += one->scale.p / heads;
        result.error = std::hypot(result.error, one->error / heads);
        result.within += std::abs(one->scale.p - truth) <= 2 * one->error + 0.02 ? 1.0 / heads : 0;
    }
    return result;
}

// The exponent of exact scales at the n of the counts.
double exponent(const std::vector<law::GapMeans>& counts, size_t from,
                const std::function<double(double)>& scale) {
    std::vector<double> n, s;
    for (size_t i = from; i < counts.size(); ++i) {
        n.push_back(counts[i].n);
        s.push_back(scale(counts[i].n));
    }
    return law::fit_power_of_log(n, s).p;
}

constexpr size_t from_512 = 9 - first_bin;  // the bin that a context of 1024 tokens ends with

}  // namespace

TEST_CASE("the exponent of four kinds of logits, from their gap counts") {
    struct Kind {
        const char* name;
        Draw draw;
        std::function<double(double n, double s)> inverse_largest_weight;
        std::function<double(double n, double level)> scale;
        double p;  // of critical scales at these n
    };
    const law::CosineScores cosines(64);
    const auto of = [](const char* name, const Tail& tail, double p) {
        return Kind{name, independent(tail),
                    [&tail](double n, double s) { return tail.inverse_largest_weight(n, s); },
                    [&tail](double n, double level) { return tail.scale(n, level); }, p};
    };
    const std::vector<Kind> kinds{
        {"normal", independent(normal()), law::gaussian_inverse_largest_weight, law::solve_gaussian_scale,
         0.75},
        {"sphere", independent(sphere()),
         [&](double n, double s) { return cosines.inverse_largest_weight(n, s); },
         [&](double n, double level) { return cosines.solve_scale(n, level); }, 0.88},
        {"simplex", simplex, [](double n, double s) { return 1 + (n - 1) * std::exp(-s * simplex_gap); },
         [](double n, double level) { return std::log((n - 1) / (level - 1)) / simplex_gap; }, 1},
        of("exponential", exponential(), 0),
        of("heavy", heavy(), -1.19)};
    for (const Kind& kind : kinds) {
        INFO(std::string(kind.name));
        const auto heads_of_kind = counted(kind.draw);
        const auto& counts = heads_of_kind[0];
        const auto critical = [&](double n) { return kind.scale(n, law::critical_level); };
        const double truth = exponent(counts, 0, critical);
        const Found by_counts = found(heads_of_kind, 0, law::fit_critical_scale, truth);
        CAPTURE(truth);
        CAPTURE(by_counts.p);
        CHECK(std::abs(by_counts.p - truth) < 0.05);
        CHECK(by_counts.within >= 14.0 / heads);
        CHECK(std::abs(truth - kind.p) < 0.05);

        const double level = kind.inverse_largest_weight(counts[from_512].n, 1);
        const double kept_truth = exponent(counts, from_512, [&](double n) { return kind.scale(n, level); });
        const Found kept = found(heads_of_kind, from_512, law::fit_kept_scale, kept_truth);
        CAPTURE(kept_truth);
        CAPTURE(kept.p);
        CHECK(std::abs(kept.p - kept_truth) < 4 * kept.error + 0.02);
        CHECK(kept.error < 0.05);
        CHECK(kept.within >= 14.0 / heads);
    }
}

TEST_CASE("tails of the tests: the same inverse of the largest weight as the product's integrals") {
    for (const double n : {16.0, 1024.0, 65536.0})
        for (const double s : {0.5, 1.0, 3.0}) {
            CHECK(normal().inverse_largest_weight(n, s) ==
                  Approx(law::gaussian_inverse_largest_weight(n, s)).epsilon(0.002));
            CHECK(sphere().inverse_largest_weight(n, s) ==
                  Approx(law::CosineScores(64).inverse_largest_weight(n, s)).epsilon(0.002));
        }
    // Exponential logits: 1 + 1 / (s - 1) at any large n.
    CHECK(exponential().inverse_largest_weight(65536, 2) == Approx(2).epsilon(0.002));
}

TEST_CASE(
    "gaps of a row: keys at most that far below the largest, itself included, and the weights of the others") {
    const std::vector<float> logits{1.0f, 4.5f, 5.0f, -1000.0f, 3.0f, 5.0f, -INFINITY};
    const law::RowGaps gaps = law::row_gaps(logits);
    CHECK(gaps.keys == std::array<double, 5>{3, 3, 4, 5, 5});  // 0.5, 1, 2, 4, 8
    for (size_t i = 0; i < gaps.others.size(); ++i) {
        const double s = law::gap_scales[i];
        CHECK(gaps.others[i] ==
              Approx(1 + std::exp(-s / 2) + std::exp(-2 * s) + std::exp(-4 * s)).epsilon(1e-12));
    }
    CHECK(law::row_gaps(std::vector<float>{7.0f}).others == law::ScaleList{});
}

TEST_CASE("the mean of the inverse largest weight between scales, and the scale for one") {
    law::GapMeans means{1e6, {}, {}};
    for (size_t i = 0; i < means.others.size(); ++i) means.others[i] = 1 / (law::gap_scales[i] + 3);
    for (const double s : {0.13, 0.3, 1.0, 1.4, 5.0, 23.0, 50.0, 64.0}) {
        CHECK(law::inverse_largest_weight(means, s) == Approx(1 + 1 / (s + 3)).epsilon(1e-3));
        if (s < 64) CHECK(law::solve_gap_scale(means, 1 + 1 / (s + 3)).value() == Approx(s).epsilon(0.01));
    }
    CHECK(!law::solve_gap_scale(means, 1.5));     // below the smallest scale
    CHECK(!law::solve_gap_scale(means, 1.0001));  // beyond the largest
    CHECK(!law::solve_gap_scale(means, 1));
    // Equal logits: no temperature tells them apart.
    law::GapMeans equal{64, {}, {}};
    equal.others.fill(63);
    CHECK(!law::solve_gap_scale(equal, 2));
    CHECK(!law::fit_kept_scale(std::vector<law::GapMeans>(3, equal)));
    CHECK(!law::fit_critical_scale({}));
    CHECK(!law::fit_kept_scale({}));
}

TEST_CASE("the fit of a (log n)^p is exact for such a law, and its error grows with those of the means") {
    const std::vector<double> n{16, 100, 5000, 60000};
    std::vector<double> s;
    for (const double x : n) s.push_back(0.3 * std::pow(std::log(x), 0.7));
    const law::PowerOfLog scale = law::fit_power_of_log(n, s);
    CHECK(scale.a == Approx(0.3));
    CHECK(scale.p == Approx(0.7));

    // C - 1 = (2 sqrt(log n) / s)^2: the scales of every level are a multiple of sqrt(log n).
    std::vector<law::GapMeans> means;
    for (int k = 6; k < 14; ++k) {
        law::GapMeans& m = means.emplace_back();
        m.n = std::exp2(k);
        for (size_t i = 0; i < m.others.size(); ++i) {
            m.others[i] = 4 * std::log(m.n) / (law::gap_scales[i] * law::gap_scales[i]);
            m.error[i] = 0.01 * m.others[i];
        }
    }
    const law::GapFit critical = *law::fit_critical_scale(means), kept = *law::fit_kept_scale(means);
    CHECK(critical.scale.p == Approx(0.5));
    CHECK(critical.scale.a == Approx(2));
    CHECK(kept.scale.p == Approx(0.5));
    CHECK(kept.level == Approx(1 + 4 * std::log(64)));
    // log s is half of log(C - 1): off by 0.005 at each n, independently.
    double mean = 0, squares = 0;
    for (const law::GapMeans& m : means) mean += std::log(std::log(m.n)) / 8;
    for (const law::GapMeans& m : means) squares += std::pow(std::log(std::log(m.n)) - mean, 2);
    CHECK(critical.error == Approx(0.005 / std::sqrt(squares)).epsilon(0.01));
    CHECK(kept.error > critical.error);
    for (law::GapMeans& m : means)
        for (double& e : m.error) e *= 2;
    CHECK(law::fit_kept_scale(means)->error == Approx(2 * kept.error).epsilon(0.03));
    means[3].error[2] = NAN;
    CHECK(std::isnan(law::fit_critical_scale(means)->error));
}
