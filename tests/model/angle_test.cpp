// Angles written as formulas: `angle` of a layout and `angle` of an evaluation.
#include <doctest/doctest.h>

#include "model/angles.h"
#include "model/fixture.h"
#include "model/gradient_check.h"
#include "model/small_models.h"

using namespace longreach;
using namespace longreach::test;

namespace {

model::ModelConfig with_angle(const std::string& angle, int64_t head_dim = 16) {
    model::ModelConfig m = one_layer({}, head_dim, 512);
    m.attention.angle = angle;
    return m;
}

std::string key_of(const model::ModelConfig& m) {
    return model::trained_angle(m, 0).key();
}

model::PostHocConfig change_to(json::Value angle) {
    model::PostHocConfig change;
    change.angle = std::move(angle);
    return change;
}

// Scaled from 512 tokens to `context`.
model::ModelConfig scaled(const char* kind, int64_t head_dim, int64_t context) {
    model::ModelConfig m = one_layer({}, head_dim, context);
    m.attention.angle_scaling.kind = kind;
    m.attention.angle_scaling.original_context = 512;
    return m;
}

law::Angle change_by(const model::ModelConfig& m, const char* kind, int64_t length) {
    model::PostHocConfig change;
    change.kind = kind;
    return model::changed_angle(m, 0, change, length);
}
std::string key_changed(const model::ModelConfig& m, const char* kind, int64_t length) {
    return change_by(m, kind, length).key();
}

// What is wrong, after the key that is to blame.
template <class Body>
std::string problem(Body body) {
    try {
        body();
    } catch (const model::ScoreError& e) {
        return e.path("a") + ": " + e.what();
    }
    return "";
}
std::string trained_problem(const model::ModelConfig& m) {
    return problem([&] { model::trained_angle(m, 0); });
}
std::string changed_problem(json::Value angle) {
    return problem(
        [&] { model::changed_angle(one_layer({}, 16, 512), 0, change_to(std::move(angle)), 1024); });
}

}  // namespace

TEST_CASE("named angles are formulas: rope, both forms of p-rope, nope") {
    const auto named = [](const Turning& turning) { return key_of(one_layer(turning, 16, 512)); };
    CHECK(named({"rope", 300}) == key_of(with_angle("p * 300^(-2*m/d)")));
    CHECK(named({"p_rope", 300}) == key_of(with_angle("p * 300^(-2*m/d) * (m < 4)")));
    CHECK(named({"p_rope_linspace", 300}) == key_of(with_angle("where(m < 4, p * 300^(-m/3), 0)")));
    CHECK(named({"nope"}) == key_of(with_angle("0*p")));
    CHECK(model::trained_angle(with_angle("0*p"), 0).near.empty());
    CHECK(model::trained_angle(with_angle("p * (m < 3)"), 0).near.size() == 3);
}

TEST_CASE("parameters of an angle: of a name, and of a formula") {
    model::ModelConfig named = with_angle("rope");
    named.attention.params["base"].init = 300;
    CHECK(key_of(named) == key_of(with_angle("p * 300^(-2*m/d)")));
    model::ModelConfig own = with_angle("p * b^(-2*m/d)");
    own.attention.params["b"].init = "100*log2(8)";
    CHECK(key_of(own) == key_of(named));
    // The score has parameters of its own as well.
    own.attention.score = "z * s*log(n)";
    own.attention.params["s"].init = 0.4;
    CHECK_NOTHROW(model::layer_score(own, 0));
    CHECK(model::layer_score(own, 0).law.parameters().size() == 1);
}

TEST_CASE("an angle that is not proportional to the position trains as any other") {
    model::ModelConfig m = tiny_model(2);
    m.attention.angle = "30*log1p(p/30) * 100^(-2*m/d)";
    ModelFixture fixture(m, {.sequences = 2, .length = 40});
    const auto trained = fixture.train(random_example(m.vocab_size, 2, 40, false));
    for (const float loss : trained.losses) CHECK(std::isfinite(loss));
    CHECK(problem([&] { model::changed_angle(m, 0, change_to("p*theta/2"), 1 << 20); }) ==
          "eval.angle: theta: the trained angle is not proportional to p: [p*theta/2]");
    CHECK_NOTHROW(model::changed_angle(m, 0, change_to("p * 100^(-2*m/d)"), 1 << 20));
}

TEST_CASE("eval.angle: every method of eval.rope.kind written out gives the same angles") {
    const model::ModelConfig m = one_layer({}, 64, 512);
    for (const law::NamedAngle& named : law::angle_library()) {
        if (named.trains) continue;
        CAPTURE(named.name);
        model::PostHocConfig keyed;
        keyed.kind = named.name;
        for (const int64_t length : {512, 513, 4096}) {
            const std::string by_key = model::changed_angle(m, 0, keyed, length).key();
            CHECK(model::changed_angle(m, 0, change_to(named.name), length).key() == by_key);
        }
    }
    const auto same = [&](const char* kind, json::Value written) {
        model::PostHocConfig keyed;
        keyed.kind = kind;
        CHECK(model::changed_angle(m, 0, keyed, 4096).key() ==
              model::changed_angle(m, 0, change_to(std::move(written)), 4096).key());
    };
    same("pi", "p * (theta/(T/L))");
    same("ntk", "p * (theta * (T/L)^(-m/(R - 1)))");
    same("rerope", json::Value::object({{"far_query", "128*theta"}, {"far_key", "0"}, {"far_from", 128}}));
}

TEST_CASE("angle_scaling: the angles of a change of an evaluation, trained with") {
    for (const char* kind : {"pi", "ntk", "yarn", "llama3"}) {
        CAPTURE(kind);
        const std::string by_evaluation = key_changed(one_layer({}, 64, 512), kind, 2048);
        model::ModelConfig m = scaled(kind, 64, 2048);
        CHECK(key_of(m) == by_evaluation);
        m.attention.angle_scaling.original_context = 0;
        m.attention.angle_scaling.factor = 4;
        CHECK(key_of(m) == by_evaluation);
        // Of an angle written out.
        m.attention.angle = "p * 10000^(-2*m/d)";
        CHECK(key_of(m) == by_evaluation);
        m.attention.angle = "nope";
        CHECK(model::trained_angle(m, 0).near.empty());
        CHECK(model::trained_temperature(m, 0) == 1);
    }
    model::ModelConfig m = scaled("pi", 64, 2048);
    m.attention.angle = "30*log1p(p/30)";
    CHECK(trained_problem(m) ==
          "a.angle_scaling.kind: theta: the trained angle is not proportional to p: [p * (theta/k)]");
}

TEST_CASE("a change of an evaluation on top of angle_scaling is one change from the original angles") {
    const model::ModelConfig original = one_layer({}, 64, 512);
    for (const char* kind : {"pi", "ntk", "yarn", "llama3"}) {
        CAPTURE(kind);
        const auto once = law::frequencies(change_by(original, kind, 8192).near).value();
        const auto twice = law::frequencies(change_by(scaled(kind, 64, 2048), kind, 8192).near).value();
        // Two roundings of a power more.
        for (size_t m = 0; m < once.size(); ++m)
            CHECK(twice[m] == doctest::Approx(once[m]).scale(0).epsilon(1e-14));
    }
    CHECK(key_changed(scaled("yarn", 64, 2048), "ntk", 2048) == key_of(scaled("yarn", 64, 2048)));
    CHECK(
        problem([&] { change_by(scaled("pi", 64, 2048), "yarn", 8192); }) ==
        "eval.rope.kind: yarn counts the turns of pairs over the context before scaling, and the angles are "
        "trained with pi: choose pi");
    CHECK(problem([&] { model::changed_angle(scaled("yarn", 64, 2048), 0, change_to("llama3"), 8192); }) ==
          "eval.angle: llama3 counts the turns of pairs over the context before scaling, and the angles are "
          "trained with yarn: choose yarn");
    CHECK(model::changed_angle(scaled("yarn", 64, 2048), 0, change_to("yarn"), 8192).key() ==
          key_changed(scaled("yarn", 64, 2048), "yarn", 8192));
    // A factor is one of the angles as trained, so that 1 leaves them alone.
    model::PostHocConfig twofold;
    twofold.kind = "yarn";
    twofold.factor = 2;
    CHECK(model::changed_angle(scaled("yarn", 64, 2048), 0, twofold, 8192).key() ==
          key_of(scaled("yarn", 64, 4096)));
}

TEST_CASE("the temperature of yarn: in training, and what a longer text adds") {
    const auto of = [](double k) { return std::pow(0.1 * std::log(k) + 1, 2); };
    model::ModelConfig m = scaled("yarn", 64, 2048);
    CHECK(model::layer_score(m, 0).base == doctest::Approx(of(4) / 8));
    model::PostHocConfig yarn;
    yarn.kind = "yarn";
    const auto factor = [&] {
        law::Values v;
        v[law::Variable::T] = 8192;
        return law::evaluate(model::layer_score(m, 0, yarn.score_change(true)).factor, v);
    };
    CHECK(factor() == doctest::Approx(of(16) / of(4)));
    m.attention.angle_scaling.attention_factor = 1.5;
    CHECK(model::layer_score(m, 0).base == doctest::Approx(2.25 / 8));
    CHECK(factor() == doctest::Approx(of(16) / of(4)));
    CHECK(model::layer_score(scaled("llama3", 64, 2048), 0).base == 0.125);
    yarn.kind = "none";
    yarn.scale = "yarn_temp";
    m = scaled("pi", 64, 2048);
    CHECK(factor() == doctest::Approx(of(4)));
}

TEST_CASE("a growth that f32 cannot hold is found, with the pair and the position") {
    const law::Angle angle = model::trained_angle(with_angle("xpos"), 0);
    CHECK(angle.unrepresentable_growth(1 << 16).empty());
    CHECK(angle.unrepresentable_growth(1 << 17) ==
          "the growth of pair 0 changes by 160.4 between the middle of 131072 positions and position 0, by "
          "more than 82");
    model::ModelConfig nan = with_angle("");
    nan.attention.angle = json::Value::object({{"growth", "log(p)"}});
    CHECK(model::trained_angle(nan, 0).unrepresentable_growth(8) ==
          "the growth of pair 0 changes by -inf between the middle of 8 positions and position 0, by more "
          "than 82");
}

TEST_CASE("a growth is kept by a method that changes the angles") {
    model::ModelConfig m = with_angle("xpos");
    model::PostHocConfig yarn;
    yarn.kind = "yarn";
    CHECK(model::changed_angle(m, 0, yarn, 4096).growth.size() == 8);
    CHECK(model::changed_angle(m, 0, yarn, 4096).key() != model::trained_angle(m, 0).key());
    // Nothing turns, but pairs fade.
    model::ModelConfig still = with_angle("");
    still.attention.angle = json::Value::object({{"growth", "-p/8*(m < 3)"}});
    CHECK(model::trained_angle(still, 0).near.size() == 3);
}

TEST_CASE("an evaluation with an angle written out equals the one with its name") {
    model::ModelConfig m = tiny_model(2);
    m.train_context = 16;
    const Example example = random_example(m.vocab_size, 2, 40, false);
    const auto losses = [&](const model::PostHocConfig& change) {
        ModelFixture fixture(m, {.sequences = 2, .length = 40, .post_hoc = change});
        fixture.model().use_length(fixture.ops(), 40);
        return fixture.evaluate(example);
    };
    model::PostHocConfig keyed;
    keyed.kind = "rerope";
    keyed.window = 5;
    CHECK(losses(change_to(json::Value::object(
              {{"near", "p*theta"}, {"far_query", "5*theta"}, {"far_key", "0"}, {"far_from", "L/3"}}))) ==
          losses(keyed));
    CHECK(losses(change_to("p*theta")) == losses({}));
    keyed.kind = "yarn";
    keyed.window = 0;
    model::PostHocConfig written = change_to("yarn");
    written.score = "yarn_temp";
    // A law of the score is a table of its own; the keys multiply s_base itself.
    const std::vector<float> by_law = losses(written), by_key = losses(keyed);
    for (size_t n = 0; n < by_key.size(); ++n)
        CHECK(std::abs(by_law[n] - by_key[n]) <= gradient_epsilon(m, 2 * 40) * (1 + 4));
    CHECK(losses(change_to("yarn")) != losses(keyed));
    // The temperature multiplies products, not what is added to them.
    add_law(m.attention, "alibi");
    const model::LayerScore plain = model::layer_score(m, 0);
    const model::LayerScore warm = model::layer_score(m, 0, keyed.score_change(true));
    CHECK(law::same(plain.bias.formula, warm.bias.formula));
    CHECK(law::same(plain.row.formula, warm.row.formula));
    CHECK(warm.factor != nullptr);
}

TEST_CASE("wrong angles: the message, and the key to blame") {
    CHECK(trained_problem(with_angle("p * bse^(-2*m/d)")) ==
          "a.angle: unknown name 'bse': did you mean e?: p * [bse]^(-2*m/d)");
    CHECK(trained_problem(with_angle("yarn")) ==
          "a.angle: yarn changes another angle: see angle_scaling, or after training eval.angle");
    CHECK(trained_problem(with_angle("p*T")) ==
          "a.angle: unknown name 'T'; known are p, m, d, l, layers, L, pi, e, egamma: p*[T]");
    model::ModelConfig m = with_angle("p*b");
    m.attention.params["b"].init = "1 +";
    CHECK(trained_problem(m) == "a.params.b.init: the formula ends where an operand is expected: 1 +[]");
    m.attention.params["b"].init = 1;
    m.attention.params["b"].learn = model::Learning::head;
    CHECK(trained_problem(m) == "a.params.b.learn: an angle does not learn");
    m.attention.params["b"].learn = model::Learning::no;
    m.attention.params["b"].positive = true;
    CHECK(trained_problem(m) == "a.params.b: an angle takes only init");
    m = with_angle("p*m");
    m.attention.params["m"].init = 1;
    CHECK(trained_problem(m) == "a.params.m: this is the name of a variable of angles");

    m = with_angle("");
    m.attention.angle = nullptr;
    CHECK(trained_problem(m) ==
          "a.angle: expected a formula, the name of an angle, or an object of near and growth");
    m.attention.angle = json::Value::object({{"grow", "p"}});
    CHECK(trained_problem(m) == "a.angle.grow: unknown: known are near and growth");
    m.attention.angle = json::Value::object({{"growth", "p*q"}});
    CHECK(trained_problem(m) ==
          "a.angle.growth: unknown name 'q'; known are p, m, d, l, layers, L, pi, e, egamma: p*[q]");
    m = with_angle("rope");
    m.attention.output_norm = {model::OutputNorm::position, false, "p*m"};
    CHECK(problem([&] { model::output_factor(m, 0); }) ==
          "a.output_norm.factor: one factor serves all channels: it cannot depend on m");
    m.attention.output_norm.factor = "0*p";
    CHECK(problem([&] { model::output_factor(m, 0); }) ==
          "a.output_norm.factor: the factor is 0 at every position");

    CHECK(changed_problem(3) ==
          "eval.angle: expected a formula, the name of an angle, or an object of near, "
          "far_query, far_key and far_from");
    CHECK(changed_problem("yran") == "eval.angle: no angle is named yran: did you mean yarn?");
    CHECK(changed_problem(json::Value::object({{"far", "p"}})) ==
          "eval.angle.far: unknown: known are near, far_query, far_key and far_from");
    CHECK(changed_problem(json::Value::object({{"far_query", "p"}})) ==
          "eval.angle: needs far_key: far pairs have far_query, far_key and far_from");
    CHECK(changed_problem(json::Value::object({{"far_query", "p"}, {"far_key", "p"}, {"far_from", "m"}})) ==
          "eval.angle.far_from: far_from is one distance: it cannot depend on m: [m]");
    CHECK(changed_problem(json::Value::object({{"far_query", "p"}, {"far_key", "p"}, {"far_from", 0}})) ==
          "eval.angle.far_from: far_from is 0: expected a distance of at least 1: [0]");
}

TEST_CASE("the first position at which an angle is not finite") {
    CHECK(model::trained_angle(with_angle("log(p)", 4), 0).first_not_finite(10) ==
          "near(0) of pair 0 is -inf");
    CHECK(model::trained_angle(with_angle("sqrt(5 - p*(m == 1))", 4), 0).first_not_finite(10) ==
          "near(6) of pair 1 is -nan");
    CHECK(model::trained_angle(with_angle("p*1e300", 4), 0).first_not_finite(10).empty());
    CHECK(model::trained_angle(with_angle("rope"), 0).first_not_finite(1 << 20).empty());
}
