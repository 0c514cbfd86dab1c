// Windows that grow with the steps.
#include <doctest/doctest.h>

#include "train/tiny_run.h"

using namespace longreach;
using namespace longreach::test;

namespace {

train::Experiment warmed(int64_t steps, int64_t to, int64_t from = 128, int64_t multiple = 128) {
    train::Experiment e;
    e.stages.resize(1);
    e.stages[0].steps = steps;
    e.window_warmup.to = to;
    e.window_warmup.from = from;
    e.window_warmup.multiple = multiple;
    return e;
}

}  // namespace

TEST_CASE("window warmup: max(128, 1728 step / N rounded up to 128), from the first step to the last") {
    const train::Experiment e = warmed(1000, 1728);
    CHECK(e.window_at(0) == 128);
    CHECK(e.window_at(74) == 128);    // 127.9
    CHECK(e.window_at(75) == 256);    // 129.6
    CHECK(e.window_at(500) == 896);   // 864
    CHECK(e.window_at(999) == 1792);  // 1726.3
    int64_t before = 0;
    for (int64_t step = 0; step < 1000; ++step) {
        const int64_t window = e.window_at(step);
        CHECK(window % 128 == 0);
        CHECK(window >= before);
        CHECK(window >= 1728 * step / 1000);
        before = window;
    }
}

TEST_CASE("window warmup: without it windows are those of the stages") {
    train::Experiment e = warmed(4, 0);
    e.stages[0].window = 64;
    e.stages.push_back({});
    e.stages[1].steps = 2;
    CHECK(e.window_at(3) == 64);
    CHECK(e.window_at(4) == 0);
}
