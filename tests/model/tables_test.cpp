// Rotary frequencies, distance transform, and what layers share.
#include <doctest/doctest.h>

#include "model/small_models.h"
#include "model/tables.h"

using namespace longreach;
using namespace longreach::test;
using doctest::Approx;

namespace {

// Tables of a model on a device, with what is needed to read them back.
struct PlannedTables {
    std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    Arena arena{*ops};
    Tables tables;

    PlannedTables(const ModelConfig& config, int64_t rows) : tables(config, rows) {
        tables.plan(arena);
        arena.commit();
        tables.plan(arena);
        tables.fill(*ops);
    }
    std::vector<float> read(const Tensor& t) const {
        std::vector<float> host(static_cast<size_t>(t.count()));
        ops->download(host.data(), t);
        return host;
    }
};

}  // namespace

TEST_CASE("rotary frequencies: full rope") {
    const auto theta = rotary_frequencies({PositionKind::rope, 10000}, 128);
    REQUIRE(theta.size() == 64);
    CHECK(theta[0] == 1);
    CHECK(theta[32] == Approx(0.01));
    CHECK(theta[63] == Approx(std::pow(10000, -126.0 / 128)));
    for (size_t m = 1; m < theta.size(); ++m) CHECK(theta[m] < theta[m - 1]);
}

TEST_CASE("rotary frequencies: both forms of half-truncated rope at d = 128, published digits") {
    const auto linear = rotary_frequencies({PositionKind::p_rope, 1024, 0.5, Spacing::linspace}, 128);
    REQUIRE(linear.size() == 32);
    CHECK(linear[0] == 1);
    CHECK(linear[1] == Approx(0.799638).epsilon(1e-6));
    CHECK(linear[30] == Approx(0.00122126).epsilon(5e-6));
    CHECK(linear[31] == Approx(0.000976562).epsilon(1e-6));

    const auto geometric = rotary_frequencies({PositionKind::p_rope, 1048576, 0.5, Spacing::geometric}, 128);
    REQUIRE(geometric.size() == 32);
    CHECK(geometric[0] == 1);
    CHECK(geometric[1] == Approx(0.805245).epsilon(1e-6));
    CHECK(geometric[30] == Approx(0.00150607).epsilon(5e-6));
    CHECK(geometric[31] == Approx(0.00121275).epsilon(5e-6));
    // theta_m = 1024^(-m / (d/4))
    for (size_t m = 0; m < 32; ++m)
        CHECK(geometric[m] == Approx(std::pow(1024, -static_cast<double>(m) / 32)).epsilon(1e-14));
}

TEST_CASE("p-rope keeps the highest frequencies as they are; 1 is rope, 0 is nope") {
    const auto rope = rotary_frequencies({PositionKind::rope, 10000}, 64);
    const auto kept = [](double fraction, int64_t head_dim) {
        return rotary_frequencies({PositionKind::p_rope, 10000, fraction, Spacing::geometric}, head_dim);
    };
    CHECK(kept(1, 64) == rope);
    CHECK(kept(0, 64).empty());
    CHECK(rotary_frequencies({PositionKind::nope, 10000}, 64).empty());
    for (double fraction : {0.01, 0.25, 0.3, 0.5, 0.75, 0.99}) {
        const auto theta = kept(fraction, 64);
        CHECK(theta.size() == static_cast<size_t>(fraction * 32));
        CHECK(std::equal(theta.begin(), theta.end(), rope.begin()));
    }
    // floor(p d/2) where p d/2 is a whole number that binary fractions just miss.
    CHECK(kept(0.7, 20).size() == 7);
    CHECK(kept(0.29, 200).size() == 29);
    // One pair spaced linearly: no division by zero.
    CHECK(rotary_frequencies({PositionKind::p_rope, 1024, 0.5, Spacing::linspace}, 4) ==
          std::vector<double>{1});
}

TEST_CASE("distance transform: published values for tau = 10") {
    const DistanceConfig config{DistanceKind::scale_invariant, 10};
    const std::vector<int64_t> t = {0, 1, 3, 15, 63, 255, 1023, 4095, 16383, 65535};
    const std::vector<double> a = {1,       1.09116, 1.23480, 1.68303, 2.23064,
                                   2.74851, 3.20551, 3.61037, 3.97543, 4.30997};
    const std::vector<double> m = {0,       .19062,  .52473,   1.83258,  3.97575,
                                   6.55429, 9.27527, 12.03475, 14.80405, 17.57581};
    for (size_t i = 0; i < t.size(); ++i) {
        const GainBias g = distance_transform(config, t[i]);
        CHECK(std::abs(g.gain - a[i]) < 6e-6);
        CHECK(std::abs(g.bias + m[i]) < 6e-6);
    }
    const GainBias plain = distance_transform({DistanceKind::none, 10}, 100);
    CHECK(plain.gain == 1);
    CHECK(plain.bias == 0);
}

TEST_CASE("distance transform: unit Gaussian scores have the expected mass per decade") {
    // E[exp(a z - m)] = exp(a^2 / 2 - m), summed over distances.
    const DistanceConfig config{DistanceKind::scale_invariant, 10};
    const auto mass = [&](int64_t begin, int64_t end) {
        double total = 0;
        for (int64_t t = begin; t < end; ++t) {
            const GainBias g = distance_transform(config, t);
            total += std::exp(g.gain * g.gain / 2 + g.bias);
        }
        return total;
    };
    CHECK(mass(1, 10) == Approx(10.20182).epsilon(1e-6));
    CHECK(mass(10, 100) == Approx(28.44710).epsilon(1e-6));
    CHECK(mass(100, 1000) == Approx(36.62276).epsilon(1e-6));
    CHECK(mass(1000, 10000) == Approx(37.82298).epsilon(1e-6));
    CHECK(mass(10000, 100000) == Approx(37.94912).epsilon(1e-6));
}

TEST_CASE("tables on the device: cos and sin by position, gain and bias by distance, backwards") {
    ModelConfig m = tiny_model();
    m.attention.distance = {DistanceKind::scale_invariant, 3};
    const int64_t rows = 50;
    const PlannedTables planned(m, rows);
    const LayerTables layer = planned.tables.layer(0);
    const auto theta = rotary_frequencies(m.attention.position, m.attention.head_dim);
    REQUIRE(layer.cosine.rows() == rows);
    REQUIRE(layer.cosine.cols() == static_cast<int64_t>(theta.size()));
    const auto cosine = planned.read(layer.cosine), sine = planned.read(layer.sine);
    const auto gain = planned.read(layer.gain), bias = planned.read(layer.bias);
    for (int64_t p = 0; p < rows; ++p) {
        for (size_t k = 0; k < theta.size(); ++k) {
            const double angle = static_cast<double>(p) * theta[k];
            const size_t i = static_cast<size_t>(p) * theta.size() + k;
            CHECK(cosine[i] == static_cast<float>(std::cos(angle)));
            CHECK(sine[i] == static_cast<float>(std::sin(angle)));
        }
        const GainBias g = distance_transform(m.attention.distance, p);
        CHECK(gain[static_cast<size_t>(rows - 1 - p)] == static_cast<float>(g.gain));
        CHECK(bias[static_cast<size_t>(rows - 1 - p)] == static_cast<float>(g.bias));
    }
}

TEST_CASE("rotary scores depend on the difference of positions alone") {
    // In the f32 tables: turning by i - j in one step or as R_i^T R_j. Each entry is off by half an ulp of 1
    // at most, so a product of two by 2 u and their sum by 4 u.
    ModelConfig m = tiny_model();
    m.attention.head_dim = 64;
    const int64_t rows = 300;
    const PlannedTables planned(m, rows);
    const auto cosine = planned.read(planned.tables.layer(0).cosine);
    const auto sine = planned.read(planned.tables.layer(0).sine);
    const size_t pairs = 32;
    for (size_t i = 0; i < 300; i += 7)
        for (size_t j = 0; j <= i; j += 5)
            for (size_t k = 0; k < pairs; ++k) {
                const double ci = cosine[i * pairs + k], si = sine[i * pairs + k];
                const double cj = cosine[j * pairs + k], sj = sine[j * pairs + k];
                const double c = cosine[(i - j) * pairs + k], s = sine[(i - j) * pairs + k];
                CHECK(std::abs(ci * cj + si * sj - c) <= 5 * 0x1p-24);
                CHECK(std::abs(si * cj - ci * sj - s) <= 5 * 0x1p-24);
            }
}

TEST_CASE("layers that agree share tables, others have their own, nope has none") {
    ModelConfig m = tiny_model(4);
    AttentionConfig rope = m.attention, same = m.attention, nope = m.attention, slow = m.attention;
    same.position = {PositionKind::p_rope, 10000, 1, Spacing::geometric};  // every pair: rope by another name
    same.distance = {DistanceKind::scale_invariant, 10};
    nope.position.kind = PositionKind::nope;
    nope.distance = {DistanceKind::scale_invariant, 10};
    slow.position.base = 500000;
    slow.distance = {DistanceKind::scale_invariant, 1};
    m.layouts = {{"0", rope}, {"1", same}, {"2", nope}, {"3", slow}};
    m.pattern = {"0", "1", "2", "3"};
    const PlannedTables planned(m, 10);
    const auto layer = [&](int64_t l) { return planned.tables.layer(l); };
    CHECK(layer(0).cosine.data == layer(1).cosine.data);
    CHECK_FALSE(layer(0).gain);
    CHECK_FALSE(layer(2).cosine);
    CHECK_FALSE(layer(2).sine);
    CHECK(layer(1).gain.data == layer(2).gain.data);
    CHECK(layer(3).cosine.data != layer(0).cosine.data);
    CHECK(layer(3).bias.data != layer(2).bias.data);
}
