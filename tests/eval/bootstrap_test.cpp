// The bootstrap's standard error against the one known in closed form.
#include <doctest/doctest.h>

#include <cmath>

#include "base/rng.h"
#include "eval/lengths.h"

using namespace longreach;

namespace {

// 1000 resamples estimate a standard deviation to 1 / sqrt(2000) = 2.2% of itself; five of those.
constexpr double five_sigma = 0.112;

std::vector<eval::DocumentSums> documents_of(size_t n, bool equal_sizes) {
    const Rng rng(31, Purpose::test);
    std::vector<eval::DocumentSums> documents;
    for (size_t i = 0; i < n; ++i) {
        const int64_t count = equal_sizes ? 100 : 20 + static_cast<int64_t>(rng.below(1000 + i, 400));
        const double hits = std::floor(static_cast<double>(count) * (0.2 + 0.5 * rng.uniform(100000 + i)));
        documents.push_back({{static_cast<double>(count) * (3 + 0.5 * rng.normal(i)), count}, hits});
    }
    return documents;
}

// What document d adds to the sum of a mean per token.
double loss_of(const eval::DocumentSums& d) {
    return d.loss.sum;
}
double hits_of(const eval::DocumentSums& d) {
    return d.hits;
}

// The standard error of the mean of equally many values per document.
double error_of_mean(const std::vector<eval::DocumentSums>& documents,
                     double (*part)(const eval::DocumentSums&)) {
    const double n = static_cast<double>(documents.size());
    const auto mean_of = [&](const eval::DocumentSums& d) {
        return part(d) / static_cast<double>(d.loss.count);
    };
    double mean = 0, variance = 0;
    for (const eval::DocumentSums& d : documents) mean += mean_of(d) / n;
    for (const eval::DocumentSums& d : documents) variance += std::pow(mean_of(d) - mean, 2) / n;
    return std::sqrt(variance / n);
}

// Linearised: residuals sum_d - ratio * count_d, over the total count. Its own error is of order 1/n.
double error_of_ratio(const std::vector<eval::DocumentSums>& documents,
                      double (*part)(const eval::DocumentSums&)) {
    double sum = 0, count = 0, squares = 0;
    for (const eval::DocumentSums& d : documents) {
        sum += part(d);
        count += static_cast<double>(d.loss.count);
    }
    for (const eval::DocumentSums& d : documents)
        squares += std::pow(part(d) - sum / count * static_cast<double>(d.loss.count), 2);
    return std::sqrt(squares) / count;
}

}  // namespace

TEST_CASE("bootstrap: documents of equal size have the standard error of a mean") {
    for (size_t n : {20, 200, 2000}) {
        const std::vector<eval::DocumentSums> documents = documents_of(n, true);
        for (uint64_t seed : {1, 2, 3}) {
            const eval::MeanErrors errors = eval::bootstrap_errors(documents, seed);
            CHECK(std::abs(errors.loss / error_of_mean(documents, loss_of) - 1) < five_sigma);
            CHECK(std::abs(errors.top1 / error_of_mean(documents, hits_of) - 1) < five_sigma);
        }
    }
}

TEST_CASE("bootstrap: documents of unequal size have the standard error of a ratio") {
    const std::vector<eval::DocumentSums> documents = documents_of(1000, false);
    const eval::MeanErrors errors = eval::bootstrap_errors(documents, 5);
    CHECK(std::abs(errors.loss / error_of_ratio(documents, loss_of) - 1) < five_sigma);
    CHECK(std::abs(errors.top1 / error_of_ratio(documents, hits_of) - 1) < five_sigma);
}

TEST_CASE("bootstrap: both errors are of the same resampled documents") {
    std::vector<eval::DocumentSums> documents = documents_of(50, false);
    for (eval::DocumentSums& d : documents) d.loss.sum = 2 * d.hits;  // twice the same mean, to the bit
    const eval::MeanErrors errors = eval::bootstrap_errors(documents, 9);
    CHECK(errors.top1 > 0);
    CHECK(errors.loss == 2 * errors.top1);
}

TEST_CASE(
    "bootstrap: a pure function of documents and seed; equal documents have the error 0, one has none") {
    const std::vector<eval::DocumentSums> documents = documents_of(100, false);
    const auto errors_of = [](const std::vector<eval::DocumentSums>& of, uint64_t seed) {
        const eval::MeanErrors errors = eval::bootstrap_errors(of, seed);
        return std::pair(errors.loss, errors.top1);
    };
    CHECK(errors_of(documents, 1) == errors_of(documents, 1));
    CHECK(errors_of(documents, 1).first != errors_of(documents, 2).first);
    CHECK(errors_of(documents, 1).second != errors_of(documents, 2).second);
    for (const auto& few : {std::vector<eval::DocumentSums>(), {documents[0]}}) {
        CHECK(std::isnan(errors_of(few, 1).first));
        CHECK(std::isnan(errors_of(few, 1).second));
    }
    CHECK(errors_of(std::vector<eval::DocumentSums>(10, {{30.0, 10}, 5}), 1) == std::pair(0.0, 0.0));
}
