#include "base/rng.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace longreach;

TEST_CASE("philox reproduces the published known-answer vectors") {
    CHECK(philox({0, 0}, {0, 0, 0, 0}) == Philox4{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
    CHECK(philox({0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}) ==
          Philox4{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
    CHECK(philox({0xa4093822u, 0x299f31d0u}, {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}) ==
          Philox4{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("normal numbers have the moments of N(0,1) within five standard errors") {
    const Rng rng(7, Purpose::test);
    const int n = 20000;
    double sum = 0, squares = 0;
    for (int i = 0; i < n; ++i) {
        const double x = rng.normal(static_cast<uint64_t>(i));
        sum += x;
        squares += x * x;
    }
    CHECK(std::abs(sum / n) < 5.0 / std::sqrt(n));
    CHECK(std::abs(squares / n - 1) < 5.0 * std::sqrt(2.0 / n));
}

TEST_CASE("a permutation visits every element once, for every small size") {
    for (uint64_t n = 1; n <= 70; ++n) {
        const Permutation permutation(n, 3, 0);
        std::vector<bool> seen(n, false);
        for (uint64_t i = 0; i < n; ++i) {
            const uint64_t x = permutation(i);
            REQUIRE(x < n);
            REQUIRE(!seen[x]);
            seen[x] = true;
        }
    }
}

TEST_CASE("another seed, stream or purpose gives other numbers") {
    const Rng a(1, Purpose::test), b(2, Purpose::test), c(1, Purpose::test, 1), d(1, Purpose::init);
    CHECK(a.bits(0) != b.bits(0));
    CHECK(a.bits(0) != c.bits(0));
    CHECK(a.bits(0) != d.bits(0));
}
