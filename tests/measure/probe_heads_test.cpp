// What a probe says about heads, where the answer is known: weight by distance, the largest weights, the
// previous token, induction, norms of keys and values, cosines.
#include <cmath>
#include <numbers>

#include "law/gap_counts.h"
#include "measure/probe_layer.h"

using namespace longreach;
using namespace longreach::test;

namespace {

Layer uniform_layer(int64_t length, int64_t heads = 1) {
    Layer layer(1, length, heads);
    for (int64_t i = 0; i < layer.q.count(); ++i) layer.q[i] = 0;
    return layer;
}

void one_hot(Floats& to, int64_t row, int64_t channel, double value) {
    for (int64_t c = 0; c < to.cols(); ++c) to.at(row, c) = c == channel ? static_cast<float>(value) : 0.0f;
}

// E[z_(k) - z_(k+1)] of n independent N(0, 1), the k-th largest less the next:
//     binomial(n, k) times the integral of Phi(x)^(n-k) (1 - Phi(x))^k.
double expected_gap(double n, double k) {
    const double c = std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
    constexpr int steps = 4000;  // Simpson over [-9, 15]: 1e-9 of the value
    const double h = 24.0 / steps;
    double sum = 0;
    for (int i = 0; i <= steps; ++i) {
        const double above = 0.5 * std::erfc((-9 + i * h) / std::numbers::sqrt2);
        if (above >= 1) continue;
        const double weight = i == 0 || i == steps ? 1 : i % 2 ? 4 : 2;
        sum += weight * std::exp(c + (n - k) * std::log1p(-above) + k * std::log(above));
    }
    return sum * h / 3;
}

double root_log(double n) {
    return std::sqrt(2 * std::log(n));
}

}  // namespace

TEST_CASE("equal logits: the weight of a decade of distances is its share of the visible keys") {
    Layer layer = uniform_layer(300);
    for (const bool sink : {false, true}) {
        Floats logit(1, 1);  // as likely as a key
        if (sink) layer.spec.sink = logit.vector();
        const auto rows = rows_of(layer);
        for (int64_t first = 1; first < 300; first *= 2) {
            const int64_t last = std::min<int64_t>(2 * first - 1, 300);
            double all = 0;
            for (int64_t begin = 0, end = 1; begin < 300; begin = end, end *= 10) {
                CAPTURE(first);
                CAPTURE(begin);
                double expected = 0;
                for (int64_t n = first; n <= last; ++n)
                    expected += double(std::clamp<int64_t>(n - begin, 0, end - begin)) / double(n + sink);
                expected /= double(last - first + 1);
                const auto found = rows.find({0, fmt::format("decade_mass_{}", begin), first});
                CHECK((found == rows.end()) == (last <= begin));
                if (found == rows.end()) continue;
                // A weight is off by the roundings of its exponential and of an lse of at most log 301.
                CHECK(found->second.value == doctest::Approx(expected).epsilon(1e-5));
                CHECK(found->second.count == last - first + 1);
                all += found->second.value;
            }
            if (sink) all += rows.at({0, "learned_sink_mass", first}).value;
            CHECK(all == doctest::Approx(1).epsilon(1e-5));
        }
    }
}

TEST_CASE(
    "weights that fall by a factor per key: the ratio of the largest two, weight on the previous token") {
    Layer layer = uniform_layer(300);
    const double slope = 0.25;
    layer.by_distance([](double) { return 1; }, [=](double t) { return -slope * t; });
    const auto rows = rows_of(layer);
    double previous = 0;
    for (int n = 128; n < 256; ++n)
        previous += std::exp(-slope) * (1 - std::exp(-slope)) / (1 - std::exp(-slope * n)) / 128;
    CHECK(rows.at({0, "log_top_ratio", 128}).value == doctest::Approx(slope).epsilon(1e-5));
    CHECK(rows.at({0, "previous_mass", 128}).value == doctest::Approx(previous).epsilon(1e-5));
    // Of two keys the second weighs e^-slope of the first.
    CHECK(rows.at({0, "previous_mass", 2}).count == 2);
    // A single key has no second one and no previous one.
    CHECK(rows.count({0, "log_top_ratio", 1}) == 0);
    CHECK(rows.count({0, "previous_mass", 1}) == 0);
    CHECK(rows.at({0, "log_top_ratio", 0}).count == 299);
    // Without tokens there is nothing to induce from.
    CHECK(rows.count({0, "induction_mass", 0}) == 0);

    Layer equal = uniform_layer(40);
    CHECK(rows_of(equal).at({0, "log_top_ratio", 0}).value == 0);
}

TEST_CASE("an induction head and a previous-token head built by hand score 1 and, as the other, 0") {
    // Sixteen different tokens, then the same again.
    Layer induction(1, 32, 1), previous(1, 32, 1);
    const auto token = [](int64_t i) { return (7 * i + 3) % 16; };
    for (Layer* layer : {&induction, &previous}) {
        layer->has_tokens = true;
        for (int64_t i = 0; i < 32; ++i) layer->tokens[i] = static_cast<int32_t>(token(i));
    }
    // A query looks for its own token, a key says which token is before it. 4000 / sqrt(16) between the two.
    for (int64_t i = 0; i < 32; ++i) {
        one_hot(induction.q, i, token(i), 4000);
        one_hot(induction.k, i, i == 0 ? -1 : token(i - 1), 1);
    }
    previous.by_distance([](double) { return 1; }, [](double t) { return t == 1 ? 1000 : 0; });
    const auto of_induction = rows_of(induction), of_previous = rows_of(previous);
    CHECK(of_induction.at({0, "induction_mass", 0}).value == doctest::Approx(1).epsilon(1e-6));
    CHECK(of_induction.at({0, "induction_mass", 0}).count == 16);
    CHECK(of_induction.at({0, "induction_mass", 16}).value == doctest::Approx(1).epsilon(1e-6));
    CHECK(of_induction.at({0, "previous_mass", 16}).value < 0.05);
    CHECK(of_previous.at({0, "previous_mass", 0}).value == doctest::Approx(1).epsilon(1e-6));
    CHECK(of_previous.at({0, "previous_mass", 0}).count == 31);
    CHECK(of_previous.at({0, "induction_mass", 0}).value == 0);
}

TEST_CASE("which occurrence counts: the last of those before the previous token, if it is visible") {
    Layer layer = uniform_layer(6);
    layer.has_tokens = true;
    const int32_t tokens[] = {5, 5, 5, 7, 5, 7};
    std::copy(std::begin(tokens), std::end(tokens), layer.tokens.data());
    // Query 2 looks at key 1, query 4 at key 3 (not at 2 or 1), query 5 at key 4; each weighs 1/n.
    auto rows = rows_of(layer);
    CHECK(rows.at({0, "induction_mass", 0}).count == 3);
    CHECK(rows.at({0, "induction_mass", 0}).value ==
          doctest::Approx((1.0 / 3 + 1.0 / 5 + 1.0 / 6) / 3).epsilon(1e-5));
    // The same after the first token: query 2 no longer sees the occurrence at 0.
    Ints start(1, 6);
    for (int64_t i = 1; i < 6; ++i) start[i] = 1;
    layer.spec.row_start = start.tensor();
    rows = rows_of(layer);
    CHECK(rows.at({0, "induction_mass", 0}).count == 2);
    CHECK(rows.at({0, "induction_mass", 0}).value == doctest::Approx((1.0 / 4 + 1.0 / 5) / 2).epsilon(1e-5));
    CHECK(rows.at({0, "previous_mass", 0}).count == 4);

    // Occurrences of another sequence of the batch are none.
    Layer two(2, 3, 1);
    two.has_tokens = true;
    std::copy(std::begin(tokens), std::end(tokens), two.tokens.data());
    two.tokens[5] = 5;  // 7, 5, 5: only the direct predecessor is another 5
    CHECK(rows_of(two).at({0, "induction_mass", 0}).count == 1);
}

TEST_CASE("norms of keys and values: mean and deviation by head of keys and bin, against two passes") {
    Layer layer(2, 70, 4);
    layer.spec.kv_heads = 2;
    Ints start(2, 70);
    for (int64_t i = 0; i < 140; ++i) start[i] = i % 70 >= 50 ? 50 : 0;  // a document begins at 50
    layer.spec.row_start = start.tensor();
    const auto rows = rows_of(layer);
    const auto norm = [&](Floats& x, int64_t row, int64_t head) {
        double squares = 0;
        for (int64_t c = 0; c < Layer::channels; ++c)
            squares += std::pow(double{x.at(row, head * Layer::channels + c)}, 2);
        return std::sqrt(squares);
    };
    for (int64_t head = 0; head < 2; ++head)
        for (const bool keys : {true, false})
            for (int64_t bin = 0; bin <= 32; bin = bin == 0 ? 1 : 2 * bin) {
                Floats& x = keys ? layer.k : layer.v;
                std::vector<double> norms;
                for (int64_t i = 0; i < 140; ++i) {
                    const int64_t n = i % 70 - start[i] + 1;
                    if (bin == 0 || (n >= bin && n < 2 * bin)) norms.push_back(norm(x, i, head));
                }
                double mean = 0, squares = 0;
                for (const double v : norms) mean += v / double(norms.size());
                for (const double v : norms) squares += (v - mean) * (v - mean) / double(norms.size());
                const std::string name = keys ? "key_norm" : "value_norm";
                CAPTURE(name);
                CAPTURE(bin);
                CHECK(rows.at({head, name + "_mean", bin}).count == int64_t(norms.size()));
                // Both in f64; 140 numbers of one size.
                CHECK(rows.at({head, name + "_mean", bin}).value == doctest::Approx(mean).epsilon(1e-12));
                CHECK(rows.at({head, name + "_sd", bin}).value ==
                      doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
            }
    CHECK(rows.count({2, "key_norm_mean", 0}) == 0);  // two heads of keys, though four of queries
    CHECK(rows.count({3, "entropy", 0}) == 1);
}

TEST_CASE("cosines by distance: vectors that turn by an angle per position, longer and longer") {
    Layer layer(2, 300, 2);
    const double angle = 0.05;
    for (int64_t n = 0; n < 600; ++n)
        for (int64_t h = 0; h < 2; ++h)
            for (int64_t c = 0; c < Layer::channels; ++c) {
                const double at = angle * double(n % 300);
                const double x = c == 0 ? std::cos(at) : c == 1 ? std::sin(at) : 0;
                layer.q.at(n, h * Layer::channels + c) = static_cast<float>(3 * x);
                layer.k.at(n, h * Layer::channels + c) = static_cast<float>(double(1 + n) * x);
            }
    for (const bool far : {false, true}) {
        Floats minus(600, 2 * Layer::channels);
        for (int64_t i = 0; i < minus.count(); ++i) minus[i] = -layer.k[i];
        if (far) {  // pairs from 50 on see the opposite key
            layer.spec.far_queries = layer.q.tensor();
            layer.spec.far_keys = minus.tensor();
            layer.spec.far_from = 50;
        }
        const auto rows = rows_of(layer);
        for (int64_t begin = 0, end = 1; begin < 300; begin = end, end *= 10) {
            CAPTURE(begin);
            CAPTURE(far);
            double pairs = 0, mean = 0, squares = 0, fourth = 0;
            const auto cosine = [&](int64_t t) {
                return (far && t >= 50 ? -1 : 1) * std::cos(angle * double(t));
            };
            for (int64_t t = begin; t < std::min<int64_t>(end, 300); ++t) {  // 300 - t pairs at distance t
                pairs += double(300 - t);
                mean += double(300 - t) * cosine(t);
            }
            mean /= pairs;
            for (int64_t t = begin; t < std::min<int64_t>(end, 300); ++t) {
                squares += double(300 - t) / pairs * std::pow(cosine(t) - mean, 2);
                fourth += double(300 - t) / pairs * std::pow(cosine(t) - mean, 4);
            }
            for (int64_t h = 0; h < 2; ++h) {
                const measure::ProbeRow &found = rows.at({h, fmt::format("cosine_mean_{}", begin), 0}),
                                        &spread = rows.at({h, fmt::format("cosine_sd_{}", begin), 0});
                CHECK(found.count == 4096);
                // Six standard errors of 4096 draws: of the mean sd / 64, of the deviation
                // sqrt(fourth - sd^4) / (2 sd 64). Components are rounded to f32, which turns a vector by
                // 1e-7 and changes a cosine near 1 by 1e-14.
                CHECK(std::abs(found.value - mean) <= 6 * std::sqrt(squares) / 64 + 1e-7);
                const double sd = std::sqrt(squares);
                const double error = sd > 0 ? std::sqrt(fourth - squares * squares) / (2 * sd * 64) : 0;
                CHECK(std::abs(spread.value - sd) <= 6 * error + 1e-7);
            }
        }
        CHECK(rows.count({0, "cosine_mean_1000", 0}) == 0);
    }
}

TEST_CASE(
    "independent normal scores under r sqrt(2 log n): the largest weights are as far apart as theory says") {
    for (const double r : {0.5, 1.0, 2.0}) {
        CAPTURE(r);
        Layer layer(4, 1039, 24);
        layer.scale_rows([=](double n) { return r * root_log(n); });
        const auto rows = rows_of(layer);
        // The mean over heads of means over 4 * 16 rows of their own; n = 1024 ... 1039.
        double expected = 0, mean = 0, squares = 0;
        for (int n = 1024; n < 1040; ++n) expected += r * root_log(n) * expected_gap(n, 1) / 16;
        for (int64_t h = 0; h < 24; ++h) {
            const double x = rows.at({h, "log_top_ratio", 1024}).value;
            mean += x / 24;
            squares += x * x;
        }
        const double error = std::sqrt((squares - 24 * mean * mean) / 23 / 24);
        CHECK(std::abs(mean - expected) <= 5 * error);
        // An exponential's deviation is its mean: over 24 * 64 rows, 1/39 of it.
        CHECK(error < 1.5 * expected / std::sqrt(24.0 * 64));
    }
}

TEST_CASE("the k-th largest weight over the next: a mean of r / k in the limit, approached from above") {
    // -log(1 - Phi(z)) makes exponential numbers of normal ones, whose k-th gap is Exp(1) / k for every n
    // (Renyi), and dz = dx / h(z) with the normal hazard h(z) > z. So a gap has a mean of about
    // 1 / (k h(z)), z the (1 - (k + 1) / n)-quantile or more, which is at least
    // s - (log log n + log(4 pi) + 2 log(k + 1)) / (2 s) to first order, s = sqrt(2 log n).
    for (int k = 1; k <= 4; ++k) {
        double before = 1;
        for (const int exponent : {10, 13, 16, 20, 26, 32}) {
            const double n = std::pow(2.0, exponent), log_n = std::log(n);
            CAPTURE(k);
            CAPTURE(exponent);
            const double excess = root_log(n) * expected_gap(n, k) * k - 1;
            CHECK(excess > 0);
            CHECK(excess <
                  (std::log(log_n) + std::log(4 * std::numbers::pi) + 2 * std::log(k + 1.0)) / (4 * log_n));
            CHECK(excess < before);
            before = excess;
        }
    }
    // The gaps of drawn numbers, each against the exact mean within five standard errors.
    const Rng rng(5, Purpose::test, 3);
    constexpr int rows = 2000, n = 1024;
    double sum[5] = {}, squares[5] = {};
    std::vector<double> z(n);
    for (int row = 0; row < rows; ++row) {
        for (int i = 0; i < n; ++i)
            z[static_cast<size_t>(i)] = rng.normal(static_cast<uint64_t>(row * n + i));
        std::partial_sort(z.begin(), z.begin() + 5, z.end(), std::greater<>());
        for (size_t k = 1; k <= 4; ++k) {
            const double gap = z[k - 1] - z[k];
            sum[k] += gap / rows;
            squares[k] += gap * gap / rows;
        }
    }
    for (int k = 1; k <= 4; ++k)
        CHECK(std::abs(sum[k] - expected_gap(n, k)) <=
              5 * std::sqrt((squares[k] - sum[k] * sum[k]) / (rows - 1)));
}

TEST_CASE("gap counts: keys near the largest logit, whatever a score is made of") {
    constexpr int64_t length = 70, heads = 4;
    for (const int part : {0, 1, 2, 3, 4}) {
        CAPTURE(part);
        Layer layer(2, length, heads);
        layer.spec.kv_heads = 2;
        layer.spec.scale = 1.5f;
        Ints start(2, length);
        for (int64_t i = 0; i < 2 * length; ++i)
            start[i] = i % length >= 50 ? 50 : 0;  // a document begins at 50
        layer.spec.row_start = start.tensor();
        if (part == 1) layer.spec.softcap = 2;
        if (part == 2) layer.scale_rows([](double n) { return 0.3 * std::log(n); });
        if (part >= 3)
            layer.by_distance([](double t) { return 1 + 0.01 * t; }, [](double t) { return -0.05 * t; });
        Floats square(1, 2 * length);
        for (int64_t i = 0; i < 2 * length; ++i) square[i] = 0.02f * static_cast<float>(i);
        if (part == 4) layer.spec.row_square = square.vector();
        Doubles sums(heads, 2 * length);
        for (int64_t i = 0; i < sums.count(); ++i)
            sums[i] = 0.02 * double(i % (2 * length)) * double(1 + i % 3);
        Floats minus(2 * length, heads * Layer::channels);
        for (int64_t i = 0; i < minus.count(); ++i) minus[i] = -layer.k[i];
        if (part == 0) layer.spec.forget = sums.tensor();
        if (part == 1) {
            layer.spec.far_queries = layer.q.tensor();
            layer.spec.far_keys = minus.tensor();
            layer.spec.far_from = 20;
        }
        const auto logit = [&](int64_t h, int64_t n, int64_t t) {
            const double key = layer.k.at(n - t, h / 2 * Layer::channels + n % length % Layer::channels);
            double y = 1.5 * (part == 1 && t >= 20 ? -key : key);
            if (part == 1) y = 2 * std::tanh(y / 2);
            if (part == 2) y *= 0.3 * std::log(double(n % length + 1));
            if (part == 3) y *= 1 + 0.01 * double(t);
            if (part == 4) y *= std::sqrt(1 + 0.01 * double(t) + 0.02 * double(n));
            if (part >= 3) y -= 0.05 * double(t);
            return part == 0 ? y - sums.at(h, n - t) : y;
        };
        const auto rows = rows_of(layer);
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t bin = 2; bin <= 32; bin *= 2) {
                double queries = 0, visible = 0;
                // Gaps are differences of f32 numbers below 100: a key within 1e-4 of a limit may fall on either side.
                std::array<double, law::gap_values.size()> fewest{}, most{};
                law::ScaleList others{};
                for (int64_t n = 0; n < 2 * length; ++n) {
                    const int64_t seen = n % length - start[n] + 1;
                    if (seen < bin || seen >= 2 * bin) continue;
                    queries += 1, visible += double(seen);
                    double largest = -1e30;
                    for (int64_t t = 0; t < seen; ++t) largest = std::max(largest, logit(h, n, t));
                    for (size_t i = 0; i < others.size(); ++i)
                        for (int64_t t = 0; t < seen; ++t)
                            others[i] += std::exp(law::gap_scales[i] * (logit(h, n, t) - largest));
                    for (int64_t t = 0; t < seen; ++t)
                        for (size_t g = 0; g < most.size(); ++g) {
                            const double beyond = largest - logit(h, n, t) - law::gap_values[g];
                            fewest[g] += beyond <= -1e-4 ? 1 : 0;
                            most[g] += beyond <= 1e-4 ? 1 : 0;
                        }
                }
                CAPTURE(bin);
                CHECK(rows.at({h, "gap_visible", bin}).value == doctest::Approx(visible / queries));
                for (size_t g = 0; g < most.size(); ++g) {
                    const measure::ProbeRow& row =
                        rows.at({h, fmt::format("gap_keys_{}", law::gap_values[g]), bin});
                    CHECK(row.count == int64_t(queries));
                    CHECK(row.value >= fewest[g] / queries - 1e-9);
                    CHECK(row.value <= most[g] / queries + 1e-9);
                }
                // A gap is off by 1e-5, times a scale of at most 64.
                for (size_t i = 0; i < others.size(); ++i)
                    CHECK(rows.at({h, fmt::format("gap_others_{}", law::gap_scales[i]), bin}).value ==
                          doctest::Approx(others[i] / queries - 1).epsilon(1e-3));
            }
        CHECK(rows.count({0, "gap_visible", 1}) == 0);  // no other key
        CHECK(rows.count({0, "gap_visible", 0}) == 0);
    }
}

TEST_CASE("gap counts: no softmax over the visible keys, no counts") {
    Layer layer(1, 40, 1);
    CHECK(rows_of(layer).count({0, "gap_others_1", 16}) == 1);
    layer.spec.normaliser = Normaliser::stick_breaking;
    CHECK(rows_of(layer).count({0, "gap_others_1", 16}) == 0);
}

TEST_CASE("the other keys' weights over the largest are 1 / max P - 1; a sample of queries stands for all") {
    Layer layer(4, 1039, 8);
    const auto rows = rows_of(layer);
    for (int64_t h = 0; h < 8; ++h)
        for (const int64_t bin : {32, 128, 512}) {
            const measure::ProbeRow &others = rows.at({h, "gap_others_1", bin}),
                                    &error = rows.at({h, "gap_error_1", bin});
            const double exact = rows.at({h, "inverse_top_weight", bin}).value - 1;
            CAPTURE(bin);
            CHECK(others.count == 4 * std::min<int64_t>(bin, 256));
            CHECK(error.count == 4);
            // Half of the queries of 512: of each two neighbours, one.
            CHECK(others.value == doctest::Approx(exact).epsilon(bin < 512 ? 1e-5 : 0.05));
        }
}

TEST_CASE("the error of a mean over documents is that of their sums, not of their rows") {
    // Ten documents whose rows are all alike: ten values, however many rows each has.
    measure::DocumentMean alike, parts;
    const std::vector<double> values{1, 4, 2, 8, 5, 7, 1, 3, 3, 6};
    double mean = 0, squares = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        alike.add(20 * values[i], 20);
        measure::DocumentMean part;
        part.add(20 * values[i], 20);
        parts.add(part);
        mean += values[i] / 10;
    }
    for (const double v : values) squares += (v - mean) * (v - mean);
    CHECK(alike.mean() == doctest::Approx(mean));
    CHECK(alike.error() == doctest::Approx(std::sqrt(squares / 9 / 10)));
    CHECK(parts.error() == alike.error());
    CHECK(alike.count == 200);
    measure::DocumentMean one;
    one.add(5, 3);
    CHECK(std::isnan(one.error()));
    // Documents of different sizes: against the delta method for a ratio, term by term.
    measure::DocumentMean ratio;
    const std::vector<std::pair<double, int64_t>> documents{{3, 1}, {8, 4}, {1, 2}, {30, 9}};
    double off = 0;
    for (const auto& [sum, rows] : documents) ratio.add(sum, rows);
    for (const auto& [sum, rows] : documents) off += std::pow(sum - 42.0 / 16 * double(rows), 2);
    CHECK(ratio.error() == doctest::Approx(std::sqrt(off * 4 / 3) / 16));
}
