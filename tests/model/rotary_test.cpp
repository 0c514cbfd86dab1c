// Rotary frequencies as trained, and the changes beyond the trained length.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "config/acts.h"
#include "config/loader.h"
#include "model/printed.h"
#include "model/angles.h"

using namespace longreach;
using namespace longreach::test;
using doctest::Approx;

namespace {

const Turning rope;
const std::vector<std::string> every_method = {"none",   "pi",        "ntk",         "ntk_old",
                                               "ntk_su", "ntk_mixed", "ntk_dynamic", "yarn",
                                               "llama3", "rerope",    "leaky_rerope"};

model::PostHocConfig method(const std::string& kind, double factor = 0) {
    model::PostHocConfig post_hoc;
    post_hoc.kind = kind;
    post_hoc.factor = factor;
    return post_hoc;
}

// What rope over `channels` channels with this base would have, at every index.
std::vector<double> plain_rope(double base, int64_t channels) {
    return rotary_frequencies({"rope", base}, channels);
}

// Equal up to roundings of a power and its exponent: |log theta| < 16, half an ulp each of a few operations.
void check_same(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    for (size_t m = 0; m < a.size(); ++m) {
        CAPTURE(m);
        CHECK(a[m] == Approx(b[m]).scale(0).epsilon(1e-14));
    }
}

}  // namespace

TEST_CASE("rotary frequencies: full rope") {
    const auto theta = rotary_frequencies({}, 128);
    REQUIRE(theta.size() == 64);
    CHECK(theta[0] == 1);
    CHECK(theta[32] == Approx(0.01));
    CHECK(theta[63] == Approx(std::pow(10000, -126.0 / 128)));
    for (size_t m = 1; m < theta.size(); ++m) CHECK(theta[m] < theta[m - 1]);
}

TEST_CASE("rotary frequencies: both forms of half-truncated rope at d = 128, published digits") {
    const auto linear = rotary_frequencies({"p_rope_linspace", 1024}, 128);
    REQUIRE(linear.size() == 32);
    CHECK(linear[0] == 1);
    CHECK(linear[1] == Approx(0.799638).epsilon(1e-6));
    CHECK(linear[30] == Approx(0.00122126).epsilon(5e-6));
    CHECK(linear[31] == Approx(0.000976562).epsilon(1e-6));

    const auto geometric = rotary_frequencies({"p_rope", 1048576}, 128);
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
    const auto rope = rotary_frequencies({}, 64);
    const auto kept = [](double fraction, int64_t head_dim) {
        return rotary_frequencies({"p_rope", 10000, fraction}, head_dim);
    };
    CHECK(kept(1, 64) == rope);
    CHECK(kept(0, 64).empty());
    CHECK(rotary_frequencies({"nope"}, 64).empty());
    for (double fraction : {0.01, 0.25, 0.3, 0.5, 0.75, 0.99}) {
        const auto theta = kept(fraction, 64);
        CHECK(theta.size() == static_cast<size_t>(fraction * 32));
        CHECK(std::equal(theta.begin(), theta.end(), rope.begin()));
    }
    // floor(p d/2) where p d/2 is a whole number that binary fractions just miss.
    CHECK(kept(0.7, 20).size() == 7);
    CHECK(kept(0.29, 200).size() == 29);
    // One pair spaced linearly: no division by zero.
    CHECK(rotary_frequencies({"p_rope_linspace", 1024}, 4) == std::vector<double>{1});
}

TEST_CASE("up to the trained length, and without rotary, every method leaves a layer as it was") {
    const std::vector<Turning> turnings = {
        rope, {"p_rope"}, {"p_rope_linspace", 1024}, {"p_rope", 10000, 0}, {"nope"}};
    const auto unchanged = [](const TurnPlan& plan, const std::vector<double>& theta) {
        return plan.theta == theta && !plan.far && plan.logit_factor == 1;
    };
    for (const std::string& kind : every_method)
        for (const std::string scale : {"none", "clip_logn", "yarn_temp"})
            for (double factor : {0.0, 4.0})
                for (const Turning& turning : turnings) {
                    CAPTURE(kind);
                    model::PostHocConfig post_hoc = method(kind, factor);
                    post_hoc.scale = scale;
                    const std::vector<double> trained = rotary_frequencies(turning, 64);
                    for (int64_t length : {1, 511, 512})
                        CHECK(unchanged(plan_rotary(turning, 64, post_hoc, 512, length), trained));
                    const bool changes = !trained.empty() && !(kind == "none" && scale != "yarn_temp");
                    CHECK(unchanged(plan_rotary(turning, 64, post_hoc, 512, 2048), trained) != changes);
                    CHECK(plan_rotary(turning, 64, post_hoc, 512, 2048).theta.size() == trained.size());
                }
}

TEST_CASE("pi: every frequency is divided by the factor") {
    const std::vector<double> trained = rotary_frequencies(rope, 64);
    const TurnPlan by_length = plan_rotary(rope, 64, method("pi"), 512, 4096);
    const TurnPlan by_factor = plan_rotary(rope, 64, method("pi", 8), 512, 1024);
    for (size_t m = 0; m < trained.size(); ++m) CHECK(by_length.theta[m] == trained[m] / 8);
    CHECK(by_factor.theta == by_length.theta);
    CHECK(by_length.logit_factor == 1);
}

TEST_CASE("ntk: published bases; the slowest pair is divided by the factor, the fastest by nothing") {
    // theta_m = base'^(-2m/128), so base' = theta_m^(-64/m).
    const auto base = [](int64_t length, size_t m) {
        return std::pow(plan_rotary(rope, 128, method("ntk"), 512, length).theta[m],
                        -64.0 / static_cast<double>(m));
    };
    for (size_t m : {size_t{1}, size_t{20}, size_t{63}}) {
        CHECK(prints_as(base(16 * 512, m), "167198.739"));
        CHECK(prints_as(base(8 * 512, m), "82684.62"));
    }
    const std::vector<double> theta = plan_rotary(rope, 128, method("ntk", 8), 512, 600).theta;
    CHECK(theta[0] == 1);
    CHECK(theta[63] == Approx(rotary_frequencies(rope, 128)[63] / 8).scale(0).epsilon(1e-14));
}

TEST_CASE("ntk: with p-rope the base is that of rope over the rotated channels") {
    // Geometric spacing, half of 128 channels, base 1024^2: rope over 64 channels with base 1024.
    const double stretched = 1024 * std::pow(8, 64.0 / 62);
    check_same(plan_rotary({"p_rope", 1048576}, 128, method("ntk", 8), 512, 600).theta,
               plain_rope(stretched, 64));
    // Linear spacing: the slowest pair 1/base becomes 1/(8 base).
    check_same(plan_rotary({"p_rope_linspace", 1024}, 128, method("ntk", 8), 512, 600).theta,
               rotary_frequencies({"p_rope_linspace", 8 * 1024}, 128));
    // A single pair has no slower one.
    CHECK(plan_rotary({"p_rope_linspace", 1024}, 4, method("ntk", 8), 512, 600).theta ==
          std::vector<double>{1});
}

TEST_CASE("ntk_dynamic: the stretch of the current length") {
    for (int64_t length : {513, 1024, 4096}) {
        const double longer = static_cast<double>(length) / 512;
        const auto theta = [&](const std::string& kind, double factor) {
            return plan_rotary(rope, 128, method(kind, factor), 512, length).theta;
        };
        CHECK(theta("ntk_dynamic", 0) == theta("ntk", 0));
        CHECK(theta("ntk_dynamic", 1) == theta("ntk", 0));
        check_same(theta("ntk_dynamic", 4), plain_rope(10000 * std::pow(4 * longer - 3, 128.0 / 126), 128));
    }
}

TEST_CASE("ntk_old, ntk_su, ntk_mixed: formulas") {
    const std::vector<double> trained = rotary_frequencies(rope, 128);
    const auto theta = [](const model::PostHocConfig& post_hoc) {
        return plan_rotary(rope, 128, post_hoc, 512, 4096).theta;
    };
    check_same(theta(method("ntk_old")), plain_rope(80000, 128));
    check_same(theta(method("ntk_old", 3)), plain_rope(30000, 128));

    const std::vector<double> su = theta(method("ntk_su"));
    const double lambda = std::pow(8, 1.0 / 64);
    for (size_t m = 0; m < 64; ++m)
        CHECK(su[m] == Approx(trained[m] / std::pow(lambda, m + 1)).scale(0).epsilon(1e-13));

    model::PostHocConfig mixed = method("ntk_mixed", 12);
    for (double b : {0.625, 0.75}) {
        mixed.exponent = b;
        const std::vector<double> got = theta(mixed);
        const double a = std::log(12) / std::pow(64, b);
        for (size_t m = 0; m < 64; ++m)
            CHECK(got[m] == Approx(trained[m] * std::exp(-a * std::pow(m + 1, b))).scale(0).epsilon(1e-13));
        CHECK(got[63] == Approx(trained[63] / 12).scale(0).epsilon(1e-14));
    }
    CHECK(method("ntk_mixed").exponent == 0.625);
}

TEST_CASE("formulas of changed angles round as direct evaluation does: equal bit for bit") {
    const std::vector<Turning> turnings = {
        rope, {"rope", 500000}, {"p_rope", 10000, 0.7}, {"p_rope_linspace", 1024}};
    for (const Turning& turning : turnings)
        for (const int64_t head_dim : {4, 64, 128})
            for (const int64_t length : {513, 1000, 65536}) {
                const std::vector<double> trained = rotary_frequencies(turning, head_dim);
                const double k = static_cast<double>(length) / 512;
                const double pairs = static_cast<double>(trained.size()), last = std::max(1.0, pairs - 1);
                const auto check = [&](const char* kind, const auto& factor) {
                    CAPTURE(kind);
                    const TurnPlan plan = plan_rotary(turning, head_dim, method(kind), 512, length);
                    REQUIRE(plan.theta.size() == trained.size());
                    for (size_t m = 0; m < trained.size(); ++m)
                        CHECK(plan.theta[m] == factor(trained[m], static_cast<double>(m)));
                };
                const bool linear = turning.angle == "p_rope_linspace";
                for (size_t m = 0; m < trained.size(); ++m) {
                    const double at = static_cast<double>(m);
                    const double exponent = linear ? at / last : 2 * at / static_cast<double>(head_dim);
                    CHECK(trained[m] == std::pow(turning.base, -exponent));
                }
                check("pi", [&](double theta, double) { return theta / k; });
                check("ntk", [&](double theta, double m) { return theta * std::pow(k, -m / last); });
                check("ntk_old", [&](double theta, double m) { return theta * std::pow(k, -m / pairs); });
                check("ntk_su",
                      [&](double theta, double m) { return theta * std::pow(k, -(m + 1) / pairs); });
                check("ntk_mixed", [&](double theta, double m) {
                    return theta * std::pow(k, -std::pow((m + 1) / pairs, 0.625));
                });
                check("ntk_dynamic", [&](double theta, double m) { return theta * std::pow(k, -m / last); });
                check("rerope", [&](double theta, double) { return theta; });
            }
}

TEST_CASE("yarn: fixtures of the reference code") {
    const std::vector<double> trained = rotary_frequencies(rope, 128);
    const TurnPlan far = plan_rotary(rope, 128, method("yarn"), 4096, 65536);
    const std::vector<std::pair<size_t, std::string>> published = {
        {0, "1.00000"}, {20, ".0562341"}, {33, ".00460044"}, {46, "8.33451e-5"}, {63, "7.21739e-6"}};
    for (const auto& [m, theta] : published) {
        CAPTURE(m);
        CHECK(prints_as(far.theta[m], theta));
    }
    CHECK(prints_as(std::sqrt(far.logit_factor), "1.277259"));
    CHECK(prints_as(far.logit_factor, "1.631390"));
    CHECK_FALSE(far.far);

    const auto check_ramp = [&](const TurnPlan& plan, size_t low, size_t high, double factor) {
        for (size_t m = 0; m <= low; ++m) CHECK(plan.theta[m] == trained[m]);
        for (size_t m = low + 1; m < high; ++m) {
            CHECK(plan.theta[m] < trained[m]);
            CHECK(plan.theta[m] > trained[m] / factor);
        }
        for (size_t m = high; m < 64; ++m) CHECK(plan.theta[m] == trained[m] / factor);
    };
    check_ramp(far, 20, 46, 16);
    const TurnPlan eight = plan_rotary(rope, 128, method("yarn"), 512, 4096);
    check_ramp(eight, 6, 31, 8);
    CHECK(prints_as(std::sqrt(eight.logit_factor), "1.207944"));
    CHECK(prints_as(eight.logit_factor, "1.459129"));
}

TEST_CASE("yarn: with p-rope the ramp is at the same rotations") {
    // Kept pairs of geometric p-rope have the frequencies and indices they have in full rope.
    const std::vector<double> full = plan_rotary(rope, 128, method("yarn"), 512, 4096).theta;
    const std::vector<double> kept = plan_rotary({"p_rope"}, 128, method("yarn"), 512, 4096).theta;
    REQUIRE(kept.size() == 32);
    CHECK(std::equal(kept.begin(), kept.end(), full.begin()));
    // By linear spacing: rope over 64 channels with base 1024^(64/62).
    check_same(plan_rotary({"p_rope_linspace", 1024}, 128, method("yarn"), 512, 4096).theta,
               plan_rotary({"rope", std::pow(1024, 64.0 / 62)}, 64, method("yarn"), 512, 4096).theta);
    // Four pairs that all turn more than 32 times keep their frequencies.
    const Turning few{"p_rope", 10000, 4.0 / 64};
    CHECK(plan_rotary(few, 128, method("yarn"), 4096, 65536).theta == rotary_frequencies(few, 128));
}

TEST_CASE("yarn_temp: the factor alone, by the ratio of lengths or by k") {
    model::PostHocConfig post_hoc = method("none");
    post_hoc.scale = "yarn_temp";
    const TurnPlan plan = plan_rotary(rope, 128, post_hoc, 512, 4096);
    CHECK(plan.theta == rotary_frequencies(rope, 128));
    CHECK(prints_as(plan.logit_factor, "1.459129"));
    post_hoc.factor = 16;
    CHECK(prints_as(plan_rotary(rope, 128, post_hoc, 512, 4096).logit_factor, "1.631390"));
    post_hoc.kind = "rerope";
    CHECK(prints_as(plan_rotary(rope, 128, post_hoc, 512, 4096).logit_factor, "1.631390"));
    // k of ntk_dynamic is no ratio of lengths, and yarn's own factor comes once.
    post_hoc.kind = "ntk_dynamic";
    CHECK(prints_as(plan_rotary(rope, 128, post_hoc, 512, 4096).logit_factor, "1.459129"));
    post_hoc.kind = "yarn";
    CHECK(prints_as(plan_rotary(rope, 128, post_hoc, 512, 4096).logit_factor, "1.631390"));
}

namespace {

// Rotary distance of query i and key j as a far pair.
double far_distance(const TurnPlan& plan, double i, double j) {
    return angle_at(plan.far_query, i) - angle_at(plan.far_key, j);
}

}  // namespace

TEST_CASE("rerope: near and far agree at the window, beyond it the distance stands still") {
    for (int64_t window : {1, 100, 128, 511, 3000}) {
        model::PostHocConfig post_hoc = method("rerope");
        post_hoc.window = window;
        const TurnPlan plan = plan_rotary(rope, 64, post_hoc, 512, 4096);
        CHECK(plan.far);
        CHECK(plan.far_from == window);
        CHECK(plan.theta == rotary_frequencies(rope, 64));
        CHECK(plan.logit_factor == 1);
        const double w = static_cast<double>(window);
        for (double j : {0.0, 1.0, 700.0})
            for (double beyond : {0.0, 1.0, 396.0}) CHECK(far_distance(plan, j + w + beyond, j) == w);
    }
    model::PostHocConfig post_hoc = method("rerope");
    CHECK(plan_rotary(rope, 64, post_hoc, 512, 4096).far_from == 128);  // L_train / 4
    CHECK(plan_rotary(rope, 64, post_hoc, 2, 4).far_from == 1);
    // No pair is as far apart as the sequence is long.
    post_hoc.window = 4096;
    CHECK_FALSE(plan_rotary(rope, 64, post_hoc, 512, 4096).far);
    post_hoc.window = 4095;
    CHECK(plan_rotary(rope, 64, post_hoc, 512, 4096).far);
}

TEST_CASE("leaky_rerope: beyond the window distances grow by 1/k; k = 1 is rope, k = infinity rerope") {
    model::PostHocConfig post_hoc = method("leaky_rerope");
    post_hoc.window = 128;
    const auto plan_with = [&](double leak) {
        post_hoc.leak = leak;
        return plan_rotary(rope, 64, post_hoc, 512, 4096);
    };
    const double w = 128, pairs[][2] = {{128, 0}, {129, 0}, {4095, 0}, {4095, 3967}, {2000, 345}};
    for (double k : {2.0, 8.0, 10.5})
        for (const auto& [i, j] : pairs)
            CHECK(far_distance(plan_with(k), i, j) == Approx(w + (i - j - w) / k).epsilon(1e-14));

    const TurnPlan one = plan_with(1);
    CHECK(one.far_query_offset == 0);
    CHECK(one.far_query_rate == 1);
    CHECK(one.far_key_rate == 1);

    const TurnPlan still = plan_with(1e9);
    post_hoc.kind = "rerope";
    const TurnPlan rerope = plan_rotary(rope, 64, post_hoc, 512, 4096);
    CHECK(still.far_from == rerope.far_from);
    for (const auto& [i, j] : pairs)
        // (t - w) / k is below 4e-6; angles are below 4096 with ulps of 5e-13.
        CHECK(std::abs(far_distance(still, i, j) - far_distance(rerope, i, j)) <= (i - j - w) / 1e9 + 1e-12);
}

TEST_CASE("leaky_rerope: by itself k keeps every distance in the trained range") {
    for (int64_t window : {0, 1, 100, 256, 511})
        for (int64_t length : {513, 4096, 65536}) {
            model::PostHocConfig post_hoc = method("leaky_rerope");
            post_hoc.window = window;
            const TurnPlan plan = plan_rotary(rope, 64, post_hoc, 512, length);
            const double largest = far_distance(plan, static_cast<double>(length - 1), 0);
            CHECK(largest < 512);
            CHECK(largest >= 511 - 1e-9);
            const double from = static_cast<double>(plan.far_from);
            CHECK(far_distance(plan, from + 7, 7) == Approx(from).epsilon(1e-13));
        }
    // A window that already is beyond it leaves the ratio of lengths.
    model::PostHocConfig wide = method("leaky_rerope");
    wide.window = 600;
    CHECK(plan_rotary(rope, 64, wide, 512, 4096).far_key_rate == 1.0 / 8);
}

namespace {

class Recorder final : public config::Problems {
  public:
    explicit Recorder(std::set<std::string> written) : written_(std::move(written)) {}
    bool is_set(std::string_view path) const override { return written_.count(std::string(path)) > 0; }
    void add(std::string_view path, std::string, std::string_view) override {
        paths.insert(std::string(path));
    }
    std::set<std::string> paths;

  private:
    std::set<std::string> written_;
};

std::set<std::string> problems(const model::PostHocConfig& post_hoc) {
    Recorder recorder({"r.factor", "r.window", "r.leak", "r.exponent", "r.scale", "r.layers"});
    model::PostHocConfig held = post_hoc;
    config::check_acts(config::describe_fields([&](config::Fields& f) { f.section("r", held, {}); }),
                       recorder);
    post_hoc.check("r", recorder);
    return recorder.paths;
}

}  // namespace

TEST_CASE("post-hoc settings without effect are reported, and those with an effect are not") {
    // A written field is refused exactly where no plan changes with it.
    for (const std::string& kind : every_method)
        for (const std::string scale : {"none", "clip_logn", "yarn_temp"}) {
            CAPTURE(kind);
            CAPTURE(scale);
            const auto changes = [&](const auto& set) {
                model::PostHocConfig before = method(kind), after = before;
                before.scale = after.scale = scale;
                set(after);
                const TurnPlan a = plan_rotary(rope, 64, before, 512, 4096);
                const TurnPlan b = plan_rotary(rope, 64, after, 512, 4096);
                return a.theta != b.theta || a.far_from != b.far_from || a.far_key_rate != b.far_key_rate ||
                       a.logit_factor != b.logit_factor;
            };
            std::set<std::string> expected;
            if (!changes([](model::PostHocConfig& c) { c.factor = 3; })) expected.insert("r.factor");
            if (!changes([](model::PostHocConfig& c) { c.window = 77; })) expected.insert("r.window");
            if (!changes([](model::PostHocConfig& c) { c.leak = 3; })) expected.insert("r.leak");
            if (!changes([](model::PostHocConfig& c) { c.exponent = 1; })) expected.insert("r.exponent");
            if (kind == "yarn" && scale == "yarn_temp") expected.insert("r.scale");
            model::PostHocConfig post_hoc = method(kind);
            post_hoc.scale = scale;
            if (!post_hoc.active()) expected.insert("r.layers");
            CHECK(problems(post_hoc) == expected);
        }
}

TEST_CASE("post-hoc factors below 1 are refused") {
    model::PostHocConfig post_hoc = method("leaky_rerope", 0.5);
    post_hoc.scale = "yarn_temp";
    post_hoc.leak = 0.5;
    const std::set<std::string> found = problems(post_hoc);
    CHECK(found.count("r.factor") == 1);
    CHECK(found.count("r.leak") == 1);
}

TEST_CASE("post-hoc section is read by its field names") {
    const auto load = [](const std::string& text) {
        return config::load_config<model::PostHocConfig>({.file = "c.json", .overrides = {}, .text = text},
                                                         [](model::PostHocConfig&, config::Problems&) {})
            .value;
    };
    const model::PostHocConfig read =
        load(R"({"kind": "leaky_rerope", "factor": 2.5, "window": 64, "leak": 9, "scale": "clip_logn"})");
    CHECK(read.kind == "leaky_rerope");
    CHECK(read.factor == 2.5);
    CHECK(read.window == 64);
    CHECK(read.leak == 9);
    CHECK(load(R"({"kind": "ntk_mixed", "exponent": 0.75})").exponent == 0.75);
    CHECK(read.scale == "clip_logn");
    for (const std::string& name : every_method) CHECK(load("{\"kind\": \"" + name + "\"}").kind == name);
    // Every angle that changes another has its word, and every word but none an angle.
    for (const law::NamedAngle& named : law::angle_library())
        if (!named.trains)
            CHECK(std::find(every_method.begin(), every_method.end(), named.name) != every_method.end());
    for (const std::string& name : every_method) CHECK((name == "none" || law::find_angle(name) != nullptr));
}
