// The bootstrap's standard error against the one known in closed form.
#include <doctest/doctest.h>

#include <cmath>

#include "base/rng.h"
#include "eval/lengths.h"

using namespace longreach;

namespace {

// 1000 resamples estimate a standard deviation to 1 / sqrt(2000) = 2.2% of itself; five of those.
constexpr double five_sigma = 0.112;

std::vector<eval::LossSum> documents_of(size_t n, bool equal_sizes) {
    const Rng rng(31, Purpose::test);
    std::vector<eval::LossSum> documents;
    for (size_t i = 0; i < n; ++i) {
        const int64_t count = equal_sizes ? 100 : 20 + static_cast<int64_t>(rng.below(1000 + i, 400));
        documents.push_back({static_cast<double>(count) * (3 + 0.5 * rng.normal(i)), count});
    }
    return documents;
}

}  // namespace

TEST_CASE("bootstrap: documents of equal size have the standard error of a mean") {
    for (size_t n : {20, 200, 2000}) {
        const std::vector<eval::LossSum> documents = documents_of(n, true);
        double mean = 0, variance = 0;
        for (const eval::LossSum& d : documents) mean += d.mean() / static_cast<double>(n);
        for (const eval::LossSum& d : documents)
            variance += (d.mean() - mean) * (d.mean() - mean) / static_cast<double>(n);
        const double expected = std::sqrt(variance / static_cast<double>(n));
        for (uint64_t seed : {1, 2, 3})
            CHECK(std::abs(eval::bootstrap_error(documents, seed) / expected - 1) < five_sigma);
    }
}

TEST_CASE("bootstrap: documents of unequal size have the standard error of a ratio") {
    const std::vector<eval::LossSum> documents = documents_of(1000, false);
    eval::LossSum total;
    for (const eval::LossSum& d : documents) {
        total.sum += d.sum;
        total.count += d.count;
    }
    // Linearised: residuals sum_d - ratio * count_d, over the total count. Its own error is of order 1/n.
    double squares = 0;
    for (const eval::LossSum& d : documents) {
        const double residual = d.sum - total.mean() * static_cast<double>(d.count);
        squares += residual * residual;
    }
    const double expected = std::sqrt(squares) / static_cast<double>(total.count);
    CHECK(std::abs(eval::bootstrap_error(documents, 5) / expected - 1) < five_sigma);
}

TEST_CASE(
    "bootstrap: a pure function of documents and seed; equal documents have the error 0, one has none") {
    const std::vector<eval::LossSum> documents = documents_of(50, false);
    CHECK(eval::bootstrap_error(documents, 1) == eval::bootstrap_error(documents, 1));
    CHECK(eval::bootstrap_error(documents, 1) != eval::bootstrap_error(documents, 2));
    CHECK(std::isnan(eval::bootstrap_error({}, 1)));
    CHECK(std::isnan(eval::bootstrap_error({documents[0]}, 1)));
    CHECK(eval::bootstrap_error(std::vector<eval::LossSum>(10, {30.0, 10}), 1) == 0);
}
