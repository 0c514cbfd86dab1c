// Learning-rate multipliers and momentum at the ends of every piece, against the formulas of the
// codes they come from.
#include <doctest/doctest.h>

#include <cmath>

#include "optim/optimizer_config.h"

using namespace longreach;

namespace {

optim::ScheduleConfig schedule(optim::ScheduleKind kind, double decay_fraction = 0.4, double final = 0,
                               int64_t warmup = 0) {
    optim::ScheduleConfig s;
    s.kind = kind;
    s.decay_fraction = decay_fraction;
    s.final = final;
    s.warmup_steps = warmup;
    return s;
}

}  // namespace

TEST_CASE("schedule: constant") {
    const optim::ScheduleConfig s = schedule(optim::ScheduleKind::constant);
    for (int64_t step : {0, 1, 50, 99}) CHECK(optim::schedule_multiplier(s, step, 100) == 1);
    CHECK(optim::schedule_multiplier(s, 0, 1) == 1);
}

TEST_CASE(
    "schedule: linear, nanoGPT speedrun form: 0.1 + 0.9 (N - it) / warmdown over the last warmdown steps") {
    constexpr int64_t total = 1000, warmdown = 400;
    const optim::ScheduleConfig s = schedule(optim::ScheduleKind::linear, 0.4, 0.1);
    for (int64_t it = 0; it < total; ++it) {
        const double expected = it < total - warmdown ? 1.0
                                                      : 0.1 + 0.9 * static_cast<double>(total - it) /
                                                                  static_cast<double>(warmdown);
        CHECK(optim::schedule_multiplier(s, it, total) == doctest::Approx(expected).epsilon(1e-15));
    }
    CHECK(optim::schedule_multiplier(s, 599, total) == 1);
    CHECK(optim::schedule_multiplier(s, 600, total) == 1);  // the decay begins here, at its full value
    CHECK(optim::schedule_multiplier(s, 601, total) == doctest::Approx(0.1 + 0.9 * 399 / 400));
    CHECK(optim::schedule_multiplier(s, 999, total) ==
          doctest::Approx(0.1 + 0.9 / 400));  // `final` itself is never reached
}

TEST_CASE("schedule: linear to zero over 1308 of 4578 steps") {
    const optim::ScheduleConfig s = schedule(optim::ScheduleKind::linear, 1308.0 / 4578.0);
    CHECK(optim::schedule_multiplier(s, 3269, 4578) == 1);
    CHECK(optim::schedule_multiplier(s, 3270, 4578) == 1);
    CHECK(optim::schedule_multiplier(s, 3271, 4578) == doctest::Approx(1307.0 / 1308.0).epsilon(1e-15));
    CHECK(optim::schedule_multiplier(s, 3270 + 654, 4578) == doctest::Approx(0.5).epsilon(1e-15));
    CHECK(optim::schedule_multiplier(s, 4577, 4578) == doctest::Approx(1.0 / 1308.0).epsilon(1e-15));
}

TEST_CASE("schedule: linear with nothing to decay, and with everything") {
    for (int64_t step : {0, 5, 9}) {
        CHECK(optim::schedule_multiplier(schedule(optim::ScheduleKind::linear, 0), step, 10) == 1);
        CHECK(optim::schedule_multiplier(schedule(optim::ScheduleKind::linear, 1), step, 10) ==
              doctest::Approx((10.0 - static_cast<double>(step)) / 10));
        // A share that rounds to no step.
        CHECK(optim::schedule_multiplier(schedule(optim::ScheduleKind::linear, 0.04), step, 10) == 1);
    }
}

TEST_CASE("schedule: cosine from 1 to `final`, after the warmup if there is one") {
    const optim::ScheduleConfig plain = schedule(optim::ScheduleKind::cosine, 0.4, 0.1);
    CHECK(optim::schedule_multiplier(plain, 0, 100) == 1);
    CHECK(optim::schedule_multiplier(plain, 50, 100) == doctest::Approx(0.55));
    CHECK(optim::schedule_multiplier(plain, 100, 100) == doctest::Approx(0.1));
    CHECK(optim::schedule_multiplier(plain, 25, 100) == doctest::Approx(0.1 + 0.45 * (1 + std::sqrt(0.5))));
    const optim::ScheduleConfig warm = schedule(optim::ScheduleKind::cosine, 0.4, 0, 20);
    CHECK(optim::schedule_multiplier(warm, 20, 100) == 1);
    CHECK(optim::schedule_multiplier(warm, 60, 100) == doctest::Approx(0.5));
    // A warmup as long as the run, or longer.
    CHECK(optim::schedule_multiplier(schedule(optim::ScheduleKind::cosine, 0.4, 0, 10), 9, 10) == 1);
    CHECK(optim::schedule_multiplier(schedule(optim::ScheduleKind::cosine, 0.4, 0, 50), 9, 10) ==
          doctest::Approx(0.2));
}

TEST_CASE("schedule: warmup is (step + 1) / warmup, so the first step moves and the last one is whole") {
    for (const optim::ScheduleKind kind :
         {optim::ScheduleKind::constant, optim::ScheduleKind::linear, optim::ScheduleKind::cosine}) {
        const optim::ScheduleConfig s = schedule(kind, 0.4, 0, 10);
        for (int64_t step = 0; step < 10; ++step)
            CHECK(optim::schedule_multiplier(s, step, 100) == static_cast<double>(step + 1) / 10);
        CHECK(optim::schedule_multiplier(s, 10, 100) == 1);
    }
}

TEST_CASE("schedule: never negative, never above 1, falling once the warmup is over") {
    for (const optim::ScheduleKind kind :
         {optim::ScheduleKind::constant, optim::ScheduleKind::linear, optim::ScheduleKind::cosine})
        for (double fraction : {0.0, 0.3, 1.0})
            for (double final : {0.0, 0.25, 1.0})
                for (int64_t warmup : {0, 3, 7})
                    for (int64_t total : {1, 2, 7, 50}) {
                        double before = 1;
                        for (int64_t step = 0; step < total; ++step) {
                            const double m = optim::schedule_multiplier(
                                schedule(kind, fraction, final, warmup), step, total);
                            CHECK(m >= 0);
                            CHECK(m <= 1);
                            if (step >= warmup) {
                                CHECK(m <= before);
                                before = m;
                            }
                        }
                    }
}

TEST_CASE("momentum warmup: from warmup_from at step 0 to momentum at step warmup_steps") {
    optim::MuonConfig muon;
    muon.momentum = 0.95;
    muon.warmup_from = 0.85;
    CHECK(optim::muon_momentum(muon, 0) == 0.95);  // no warmup
    muon.warmup_steps = 300;
    CHECK(optim::muon_momentum(muon, 0) == 0.85);
    CHECK(optim::muon_momentum(muon, 150) == doctest::Approx(0.90).epsilon(1e-15));
    CHECK(optim::muon_momentum(muon, 299) == doctest::Approx(0.85 + 0.10 * 299 / 300).epsilon(1e-15));
    CHECK(optim::muon_momentum(muon, 300) == 0.95);
    CHECK(optim::muon_momentum(muon, 100000) == 0.95);
}

TEST_CASE("schedule: fine-tuning, 100 steps up, 100 constant, 100 down to zero") {
    const optim::ScheduleConfig s = schedule(optim::ScheduleKind::linear, 0.3333333333, 0, 100);
    for (int64_t step = 0; step < 300; ++step) {
        const double n = static_cast<double>(step);
        const double expected = step < 100 ? (n + 1) / 100 : step < 200 ? 1.0 : (300 - n) / 100;
        CHECK(optim::schedule_multiplier(s, step, 300) == doctest::Approx(expected).epsilon(1e-12));
    }
}
