// A CPU's attention where far keys have no weight: they are left out, and nothing else changes.
#include <algorithm>
#include <cmath>

#include "kernels/attention_variants.h"

using namespace longreach;
using namespace longreach::test;

namespace {

constexpr int64_t length = 1300;

Variant base() {
    return {.batch = 2, .length = length, .heads = 2, .kv_heads = 1, .head_dim = 16};
}
// A bias that falls by `slope` with every step of the distance, half of that for the second head.
Problem with_slope(Variant c, double slope) {
    c.gain_rows = c.bias_rows = c.heads;
    c.gain_gradient = c.bias_gradient = true;
    Problem p(c);
    for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t t = 0; t < p.entries; ++t) {
            p.gain.at(h, p.entries - 1 - t) = 1;
            p.bias.at(h, p.entries - 1 - t) = static_cast<float>(-slope / double(h + 1) * double(t));
        }
    return p;
}
// Gates that keep exp(-rate) at every step.
Problem with_gates(Variant c, double rate) {
    c.forget = c.forget_gradient = true;
    Problem p(c);
    for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t n = 0; n < c.tokens(); ++n) p.forget.at(h, n) = -1e3 - rate * double(n % c.length);
    return p;
}

std::vector<Problem> fading_problems() {
    std::vector<Problem> all;
    all.push_back(with_slope(base(), 1.0));
    all.push_back(with_gates(base(), 0.6));
    Variant c = base();
    c.factor_rows = c.heads;
    c.softcap = 12;
    c.sink = true;
    all.push_back(with_slope(c, 0.7));
    c = base();
    c.window = 900;
    c.documents = true;
    all.push_back(with_gates(c, 0.9));
    return all;
}

}  // namespace

TEST_CASE("a horizon: forward and backward against double, scores that fall by tables and by forget sums") {
    for (const Problem& problem : fading_problems()) {
        const ExactInputs inputs(problem);
        const Reference exact(problem, inputs);
        for_each_isa([&](Ops& ops) {
            Problem run = problem;
            run.execute(ops);
            check_against(run, exact);
        });
    }
}

TEST_CASE("a horizon: values and keys beyond it are not read") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for_each_isa([&](Ops& ops) {
        for (Problem p : {with_slope(base(), 1.0), with_gates(base(), 0.6)}) {
            // Where the first keys are, of the first sequence.
            for (int64_t n = 0; n < 96; ++n)
                for (int64_t i = 0; i < p.kv_cols; ++i) p.qkv.at(n, p.query_cols + p.kv_cols + i) = nan;
            p.forward(ops);
            for (int64_t i = 0; i < p.query_cols; ++i) {
                CHECK(std::isnan(p.o.at(100, i)));
                CHECK(std::isfinite(p.o.at(length - 1, i)));
            }
        }
    });
}

TEST_CASE("a horizon: with a key that is a NaN nothing about it is known, and it is met") {
    for_each_isa([&](Ops& ops) {
        Problem p = with_slope(base(), 1.0);
        p.qkv.at(5, p.query_cols + 3) = std::numeric_limits<float>::quiet_NaN();
        p.forward(ops);
        for (int64_t n : {5, 700, 1299}) CHECK(std::isnan(p.o.at(n, 0)));
    });
}

TEST_CASE("a horizon: the bits of a pass that leaves nothing out") {
    for_each_isa([](Ops& ops) {
        for (const Problem& problem : fading_problems()) {
            Problem near = problem, all = problem;
            near.forward(ops);
            all.c.maxima = true;  // of all scores
            all.forward(ops);
            CHECK(same_bits(near.o, all.o));
            CHECK(same_bits(near.lse, all.lse));
        }
    });
}
