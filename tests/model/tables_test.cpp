// Tables on the device and what layers share.
#include <doctest/doctest.h>

#include "model/angles.h"
#include "model/laws_of_configs.h"
#include "model/small_models.h"
#include "model/tables.h"

using namespace longreach;
using namespace longreach::test;
using doctest::Approx;

namespace {

// Tables of a model on a device, with what is needed to read them back.
struct PlannedTables {
    std::unique_ptr<Ops> ops = make_cpu_ops({.threads = 1});
    model::Arena arena{*ops};
    model::Tables tables;

    PlannedTables(const model::ModelConfig& config, int64_t rows) : tables(config, rows) {
        tables.plan(arena);
        arena.commit();
        tables.fill(*ops);
    }
    std::vector<float> read(const Tensor& t) const {
        std::vector<float> host(static_cast<size_t>(t.count()));
        ops->download(host.data(), t);
        return host;
    }
};

}  // namespace

TEST_CASE("tables on the device: cos and sin by position, gain and bias by distance, backwards") {
    model::ModelConfig m = tiny_model();
    const ScoreParameters tau{{"tau", starts(3)}};
    add_law(m.attention, "scale_invariant", tau);
    const int64_t rows = 50;
    const PlannedTables planned(m, rows);
    const model::LayerTables layer = planned.tables.layer(0);
    const auto theta = rotary_frequencies({}, m.attention.head_dim);
    REQUIRE(layer.queries.cosine.rows() == rows);
    REQUIRE(layer.queries.cosine.cols() == static_cast<int64_t>(theta.size()));
    const auto cosine = planned.read(layer.queries.cosine), sine = planned.read(layer.queries.sine);
    const auto gain = planned.read(layer.score.gain.value.filled),
               bias = planned.read(layer.score.bias.value.filled);
    for (int64_t p = 0; p < rows; ++p) {
        for (size_t k = 0; k < theta.size(); ++k) {
            const double angle = static_cast<double>(p) * theta[k];
            const size_t i = static_cast<size_t>(p) * theta.size() + k;
            CHECK(cosine[i] == static_cast<float>(std::cos(angle)));
            CHECK(sine[i] == static_cast<float>(std::sin(angle)));
        }
        const GainBias g = distance_transform("scale_invariant", tau, p);
        CHECK(gain[static_cast<size_t>(rows - 1 - p)] == static_cast<float>(g.gain));
        CHECK(bias[static_cast<size_t>(rows - 1 - p)] == static_cast<float>(g.bias));
    }
}

TEST_CASE("placed tokens have the angles of their positions, until tables of a length take their place") {
    model::ModelConfig m = tiny_model();
    PlannedTables planned(m, 50);
    m.attention.angle = "(3*p + 1)*base^(-2*m/d)";
    m.attention.params["base"].init = 10000;
    const PlannedTables written(m, 50);
    const auto tables = [](const PlannedTables& of) {
        const model::Rotation queries = of.tables.layer(0).queries;
        return std::pair{of.read(queries.cosine), of.read(queries.sine)};
    };
    const auto plain = tables(planned);
    std::vector<int64_t> positions(50);
    for (size_t i = 0; i < 50; ++i) positions[i] = static_cast<int64_t>(3 * i + 1);
    planned.tables.place(*planned.ops, positions, 200);
    CHECK(tables(planned) == tables(written));
    CHECK(tables(planned) != plain);
    planned.tables.use_length(*planned.ops, 0);
    CHECK(tables(planned) == plain);
}

TEST_CASE("rotary scores depend on the difference of positions alone") {
    // In the f32 tables: turning by i - j in one step or as R_i^T R_j. Each entry is off by half an ulp of 1
    // at most, so a product of two by 2 u and their sum by 4 u.
    model::ModelConfig m = tiny_model();
    m.attention.head_dim = 64;
    const int64_t rows = 300;
    const PlannedTables planned(m, rows);
    const auto cosine = planned.read(planned.tables.layer(0).queries.cosine);
    const auto sine = planned.read(planned.tables.layer(0).queries.sine);
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

TEST_CASE("a growth multiplies the product of a pair by exp(g(i) - g(j)), at every length of the sequence") {
    model::ModelConfig m = one_layer({}, 16, 64);
    m.attention.angle = "xpos";
    m.attention.params["span"].init = 100;
    const int64_t rows = 200, pairs = 8;
    PlannedTables planned(m, rows);
    std::vector<float> before;
    for (const int64_t length : {64, 200}) {
        planned.tables.use_length(*planned.ops, length);
        const model::LayerTables layer = planned.tables.layer(0);
        const auto qc = planned.read(layer.queries.cosine), qs = planned.read(layer.queries.sine),
                   kc = planned.read(layer.keys.cosine), ks = planned.read(layer.keys.sine);
        CHECK(before != qc);  // the middle of the sequence has moved
        before = qc;
        for (int64_t i = 0; i < length; i += 7)
            for (int64_t j = 0; j <= i; j += 5)
                for (int64_t k = 0; k < pairs; ++k) {
                    const double share = 2.0 * static_cast<double>(k) / 16;
                    const auto t = static_cast<double>(i - j);
                    const double fade = std::pow((share + 0.4) / 1.4, t / 100);
                    const double turn = t * std::pow(10000.0, -share);
                    const auto q = static_cast<size_t>(i * pairs + k),
                               key = static_cast<size_t>(j * pairs + k);
                    const double cosine = double{qc[q]} * kc[key] + double{qs[q]} * ks[key];
                    const double sine = double{qs[q]} * kc[key] - double{qc[q]} * ks[key];
                    // Every entry is rounded once, to within u of the length of its pair: 2 u a product, two of them.
                    CHECK(std::abs(cosine - fade * std::cos(turn)) <= 5 * 0x1p-24 * fade);
                    CHECK(std::abs(sine - fade * std::sin(turn)) <= 5 * 0x1p-24 * fade);
                }
    }
}

TEST_CASE("layers that agree share tables, others have their own, nope has none") {
    model::ModelConfig m = tiny_model(4);
    model::AttentionConfig rope = m.attention, same = m.attention, nope = m.attention, slow = m.attention;
    set_angle(same, {"p_rope", 10000, 1});  // every pair: rope by another name
    add_law(same, "scale_invariant");
    nope.angle = "nope";
    add_law(nope, "scale_invariant");
    set_angle(slow, {"rope", 500000});
    add_law(slow, "scale_invariant", {{"tau", starts(1)}});
    m.layouts = {{"0", rope}, {"1", same}, {"2", nope}, {"3", slow}};
    m.pattern = {"0", "1", "2", "3"};
    const PlannedTables planned(m, 10);
    const auto layer = [&](int64_t l) { return planned.tables.layer(l); };
    CHECK(layer(0).queries.cosine.data() == layer(1).queries.cosine.data());
    CHECK_FALSE(layer(0).score.gain.value.filled);
    CHECK_FALSE(layer(2).queries.cosine);
    CHECK_FALSE(layer(2).queries.sine);
    CHECK(layer(1).score.gain.value.filled.data() == layer(2).score.gain.value.filled.data());
    CHECK(layer(3).queries.cosine.data() != layer(0).queries.cosine.data());
    CHECK(layer(3).score.bias.value.filled.data() != layer(2).score.bias.value.filled.data());
}
