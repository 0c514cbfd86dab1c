// When contrasts are decided: levels and looks by hand, and how often simulated sweeps say what is not true.
#include "decide/looks.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "base/rng.h"

using namespace longreach;

namespace {

decide::Question question(std::vector<double> differences, double margin = 0.05) {
    return {std::move(differences), margin};
}

// Differences that alternate around a mean, so that n of them have the deviation `spread` and a bit.
std::vector<double> around(double mean, double spread, size_t count) {
    std::vector<double> out;
    for (size_t i = 0; i < count; ++i) out.push_back(mean + (i % 2 == 0 ? spread : -spread));
    return out;
}

}  // namespace

TEST_CASE("looks: the interval of one contrast at four seeds, by hand") {
    // Mean 2, deviation sqrt(2/3), error 1/sqrt(6); the level is a quarter of 0.05: t with 3 degrees is 5.392.
    const decide::Answer a = decide::decide({question({1, 3, 2, 2})})[0];
    CHECK(a.look == 1);
    CHECK(a.seeds == 4);
    CHECK(a.confidence == doctest::Approx(0.9875));
    CHECK(a.interval.mean == 2);
    CHECK(a.interval.high - 2 == doctest::Approx(5.392 / std::sqrt(6)).epsilon(1e-3));
    CHECK(a.open());  // 2 / 0.408 is 4.899
    CHECK(decide::decide({question({1.2, 3, 2.1, 2})})[0].differs);
}

TEST_CASE("looks: only the first 4, 8, 14 and 20 seeds count, and a decided contrast keeps its look") {
    CHECK(decide::decide({question({1, 3, 2})})[0].look == 0);
    CHECK(decide::decide({question({})})[0].open());
    // Decided at the first look whatever comes later.
    std::vector<double> turning = around(1, 0.01, 4);
    const decide::Answer first = decide::decide({question(turning)})[0];
    CHECK(first.differs);
    for (int i = 0; i < 16; ++i) turning.push_back(-5);
    const decide::Answer later = decide::decide({question(turning)})[0];
    CHECK(later.look == 1);
    CHECK(later.interval.low == first.interval.low);
    // Open until there are enough; seven seeds are looked at as four.
    CHECK(decide::decide({question(around(0.1, 0.1, 7))})[0].seeds == 4);
    const decide::Answer open = decide::decide({question(around(0.1, 0.1, 7))})[0];
    CHECK(open.open());
    const decide::Answer twenty = decide::decide({question(around(0.1, 0.1, 23))})[0];
    CHECK(twenty.differs);
    CHECK(twenty.look == 3);
    CHECK(twenty.seeds == 14);
}

TEST_CASE("looks: inside the margins is a verdict of its own") {
    const decide::Answer within = decide::decide({question(around(0, 0.02, 20))})[0];
    CHECK(within.within);
    CHECK_FALSE(within.differs);
    CHECK(within.interval.high < 0.05);
    CHECK(decide::decide({question(around(0, 0.02, 20), 0.001)})[0].open());
    // Both at once: a difference that is certain and small.
    const decide::Answer both = decide::decide({question(around(0.01, 0.001, 4))})[0];
    CHECK((both.differs && both.within));
}

TEST_CASE("looks: every contrast of a sweep takes its share, and a difference gives back half of it") {
    const std::vector<double> certain = around(1, 0.001, 4), unclear = around(0.1, 0.1, 4);
    const auto confidence = [&](size_t differences, size_t others) {
        std::vector<decide::Question> questions(differences, question(certain));
        questions.resize(differences + others, question(unclear));
        return decide::decide(questions).back().confidence;
    };
    CHECK(confidence(0, 1) == doctest::Approx(1 - 0.05 / 4));
    CHECK(confidence(0, 6) == doctest::Approx(1 - 0.05 / 6 / 4));
    CHECK(confidence(4, 2) == doctest::Approx(1 - 0.05 / 4 / 4));
    // Those that were decided have the level they were decided at.
    CHECK(decide::decide({question(certain), question(unclear)})[0].confidence ==
          doctest::Approx(1 - 0.05 / 8));
    // A contrast that has not begun counts too.
    CHECK(decide::decide({question(unclear), question({})})[0].confidence == doctest::Approx(1 - 0.05 / 8));
    // Inside the margins gives nothing back: a difference may yet be found by mistake.
    CHECK(decide::decide({question(around(0, 1e-4, 4)), question(unclear)})[1].confidence ==
          doctest::Approx(1 - 0.05 / 8));
}

TEST_CASE("looks: a difference that is not finite ends them") {
    std::vector<double> values = around(1, 2, 20);
    values[9] = std::numeric_limits<double>::quiet_NaN();
    const decide::Answer a = decide::decide({question(values)})[0];
    CHECK(a.look == 2);
    CHECK(a.open());
}

namespace {

constexpr double margin = 0.05, spread = 0.03;
constexpr size_t contrasts = 6, seeds = 20;
constexpr int sweeps = 1000;
// A rate of 5% gives at most this many of 1000, but for one time in about 700 (three standard deviations).
const double most_false = sweeps * 0.05 + 3 * std::sqrt(sweeps * 0.05 * 0.95);

struct Rates {
    int with_false = 0;             // sweeps with a verdict that is not true
    int differing = 0, within = 0;  // contrasts
};

using Noise = std::function<double(const Rng&, uint64_t index)>;

double normal_noise(const Rng& rng, uint64_t index) {
    return rng.normal(index);
}
double exponential_noise(const Rng& rng, uint64_t index) {
    return -std::log1p(-rng.uniform(index)) - 1;
}

// Simulates sweeps whose contrasts all have the same second arm, as those with a baseline.
Rates simulate(const std::vector<double>& truth, const Noise& noise, const Noise& of_baseline) {
    Rates rates;
    for (int sweep = 0; sweep < sweeps; ++sweep) {
        const Rng rng(static_cast<uint64_t>(sweep), Purpose::test);
        std::vector<decide::Question> questions;
        for (size_t c = 0; c < contrasts; ++c) {
            questions.push_back(question({}, margin));
            for (size_t s = 0; s < seeds; ++s)
                questions[c].differences.push_back(
                    truth[c] + spread * (noise(rng, (c + 1) * seeds + s) - of_baseline(rng, s)));
        }
        bool any_false = false;
        const std::vector<decide::Answer> answers = decide::decide(questions);
        for (size_t c = 0; c < contrasts; ++c) {
            const decide::Answer& a = answers[c];
            const int sign = a.interval.low > 0 ? 1 : -1;
            any_false |= a.differs && sign * truth[c] <= 0;
            any_false |= a.within && std::abs(truth[c]) >= margin;
            rates.differing += a.differs;
            rates.within += a.within;
        }
        rates.with_false += any_false;
    }
    return rates;
}

struct World {
    const char* name;
    std::vector<double> truth;
};
const World worlds[] = {
    {"no difference", {0, 0, 0, 0, 0, 0}},
    {"at the margin", {margin, -margin, margin, -margin, margin, -margin}},
    {"beyond it", {3 * margin, 3 * margin, -3 * margin, 3 * margin, 3 * margin, 3 * margin}},
    {"all but one beyond", {1, 1, 1, 1, 1, 0}},
    {"of every kind", {0, 0, margin, -margin, margin / 4, 3 * margin}}};

}  // namespace

TEST_CASE(
    "looks: at most 5% of simulated sweeps have a false verdict, with normal noise and with skewed noise") {
    for (const World& world : worlds)
        for (const bool skewed : {false, true}) {
            const Noise noise = skewed ? exponential_noise : normal_noise;
            const Rates rates = simulate(world.truth, noise, noise);
            CAPTURE(world.name);
            CAPTURE(skewed);
            CAPTURE(rates.differing);
            CAPTURE(rates.within);
            CHECK(rates.with_false <= most_false);
        }
}

TEST_CASE("looks: the simulated sweeps do decide") {
    const Rates none = simulate(worlds[0].truth, normal_noise, normal_noise);
    CHECK(none.within > contrasts * sweeps * 8 / 10);
    const Rates beyond = simulate(worlds[2].truth, normal_noise, normal_noise);
    CHECK(beyond.differing == contrasts * sweeps);
}

TEST_CASE("looks: noise that is skewed in one arm alone is beyond a t interval, and how far") {
    // The differences of like runs are symmetric, however skewed the runs are. An exponential on one side against a
    // constant on the other is the worst of what the looks may meet: false verdicts in 167 of 1000 sweeps.
    const Noise nothing = [](const Rng&, uint64_t) { return 0.0; };
    const Rates skewed = simulate(worlds[0].truth, exponential_noise, nothing);
    CHECK(skewed.with_false > most_false);
    CHECK(skewed.with_false < 200);
    // Noise of the other arm, of the same size, makes up for it.
    CHECK(simulate(worlds[0].truth, exponential_noise, normal_noise).with_false <= most_false);
    CHECK(simulate(worlds[0].truth, normal_noise, exponential_noise).with_false <= most_false);
}
