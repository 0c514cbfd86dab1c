// The gated delta rule in bf16, in chunks on tensor cores, forward and backward, against its recurrence in double. Each
// call runs four times, in the harness under as many schedules, and gives the same bits.
//
// Bounds: those of kernels/delta_reference.h with factors of bf16, and bf16 results err by their own rounding. They take
// the largest rows and states of all positions for each element, and say little of one of ordinary size. So the mean
// error, root of the mean square over a result relative to that of the result, has a bound too: no more than ten
// roundings of factors (see there) lie between operands and a result (with decays by channel also those of decayed rows
// and, for the gradients at decays, of products x dx; the bound is the same). Each is a random number up to 2^-9 of what it
// rounds, sqrt(1/3) of that in the root mean square; as there, a factor of 2 for gradients, which pass twice.
#include "cuda/delta_run.h"
#include "cuda/schedule.h"
#include "kernels/cuda_device.h"

using namespace longreach;
using namespace longreach::test;
using namespace longreach::test::delta;

namespace {

const double mean_bound = 2 * std::sqrt(10.0 / 3) * bf16_input;

// The largest of the errors in units of their bounds, and of the mean ones.
struct Errors {
    double largest = 0, mean = 0;
    // own: the rounding of the result itself.
    void add(const Floats& actual, const Doubles& exact, double bound, double own) {
        double errors = 0, squares = 0;
        for (int64_t i = 0; i < exact.count(); ++i) {
            const double error = std::abs(double{actual[i]} - exact[i]);
            errors += error * error;
            squares += exact[i] * exact[i];
            include(largest, error / (bound + own * std::abs(exact[i]) + tiny));
        }
        include(mean, std::sqrt(errors / (squares + tiny)) / mean_bound);
    }

  private:
    static constexpr double tiny = 1e-60;  // results may all be 0, and exactly so
    static void include(double& most, double x) {
        most = std::isnan(x) ? std::numeric_limits<double>::infinity() : std::max(most, x);
    }
};

Errors errors_of(const Problem& p, const Exact& exact) {
    const double relative = p.relative();
    Errors errors;
    errors.add(p.o, exact.o, relative * exact.size_o, bf16_input);
    errors.add(p.state, exact.state, relative * exact.size_state, 0);
    errors.add(p.dq, exact.dq, relative * exact.size_dq, bf16_input);
    errors.add(p.dk, exact.dk, relative * exact.size_dk, bf16_input);
    errors.add(p.dv, exact.dv, relative * exact.size_dv, bf16_input);
    errors.add(p.ddecay, exact.ddecay, relative * exact.size_ddecay, 0);
    errors.add(p.dbeta, exact.dbeta, relative * exact.size_dbeta, 0);
    return errors;
}

// The results of one form in the place of exact ones.
Exact in_place_of(const Exact& exact, const Problem& p) {
    Exact form = exact;
    const std::vector<std::pair<Doubles*, const Floats*>> results = {
        {&form.o, &p.o},   {&form.state, &p.state},   {&form.dq, &p.dq},      {&form.dk, &p.dk},
        {&form.dv, &p.dv}, {&form.ddecay, &p.ddecay}, {&form.dbeta, &p.dbeta}};
    for (const auto& [to, from] : results)
        for (int64_t i = 0; i < to->count(); ++i) (*to)[i] = double{(*from)[i]};
    return form;
}

struct Kind {
    const char* name;
    Case c;
    float key_scale = 1.0f;
    int64_t gap = 0, segments = 0;
};
// {batch, length, heads, d, e, by channel, documents, additive, least decay, most}
const std::vector<Kind> kinds = {
    {"one chunk", {1, 64, 1, 64, 64}},
    {"three chunks, columns past the first 64", {1, 150, 2, 64, 72}},
    {"heads of 128", {1, 130, 1, 128, 128}},
    {"fewer channels than tiles have", {2, 66, 2, 40, 24}, 1.0f, 8},
    {"fewer positions than a chunk", {2, 19, 1, 96, 8}},
    {"documents", {2, 150, 1, 64, 64, false, true}},
    {"documents, heads of 128", {1, 135, 1, 128, 64, false, true}},
    {"keys with a scale", {1, 70, 1, 64, 64}, 0.125f},
    {"decays that keep nearly everything", {1, 130, 1, 64, 64, false, false, false, 1e-12, 1e-6}},
    {"decays that keep nearly nothing", {1, 130, 1, 64, 64, false, false, false, 20, 2000}},
    {"decays of both kinds", {1, 130, 2, 64, 64, false, true, false, 1e-6, 300}},
    {"decays of 0 and of 1 together", {1, 130, 3, 64, 40, false, true, false, 1e-3, 3, true}},
    {"heads of 32", {1, 70, 2, 32, 48}},
    {"additive", {1, 150, 1, 64, 64, false, true, true}},
    {"additive, heads of 128", {1, 66, 1, 128, 128, false, false, true}},
    {"rows on any byte", {1, 70, 1, 64, 64}, 1.0f, 3},
};

// Segments of one to two chunks at once. Most decays keep about half of a state over a segment.
Case fading(Case c, double least = 1e-4, double most = 0.03) {
    c.least = least;
    c.most = most;
    return c;
}
const std::vector<Kind> segmented = {
    {"a chunk in each of five", fading({1, 261, 1, 64, 64}), 1.0f, 0, 5},
    {"two chunks in each of three, columns past the first 64", fading({1, 330, 1, 64, 72}), 0.125f, 0, 3},
    {"heads of 128", fading({1, 210, 1, 128, 64}), 1.0f, 0, 4},
    {"fewer channels than tiles have", fading({2, 200, 2, 40, 24}), 1.0f, 8, 4},
    {"more key channels than value channels", fading({1, 210, 1, 96, 8}), 1.0f, 0, 4},
    {"two", fading({1, 140, 1, 64, 64}), 1.0f, 0, 2},
    {"documents", fading({1, 261, 1, 64, 64, false, true}), 1.0f, 0, 5},
    {"decays that keep nearly everything", fading({1, 261, 1, 64, 64}, 1e-12, 1e-6), 1.0f, 0, 5},
    {"decays that keep nearly nothing", fading({1, 200, 1, 64, 64}, 20, 2000), 1.0f, 0, 4},
    {"decays of 0 and of 1 together", {1, 200, 1, 64, 40, false, true, false, 1e-3, 3, true}, 1.0f, 0, 4},
    {"additive", fading({1, 261, 1, 64, 64, false, false, true}), 1.0f, 0, 5},
};

// p's results in segments with those of whole sequences. Two segments have the same sums; with more, states take others.
template <class Report>
void compare_forms(Ops& ops, const Problem& p, const Kind& kind, const Exact& exact, Report report) {
    Problem whole = rounded(kind.c, kind.key_scale);
    whole.spec.segments = 1;
    DeviceRun(ops, whole, kind.gap).execute();
    report(errors_of(p, in_place_of(exact, whole)), ", to the whole sequence");
    Errors states;
    Doubles of_whole(whole.states.rows(), whole.states.cols());
    for (int64_t i = 0; i < of_whole.count(); ++i) of_whole[i] = double{whole.states[i]};
    states.add(p.states, of_whole, p.relative() * exact.size_state, 0);
    report(states, ", saved states");
    const bool same = same_bits(joined({&p.o, &p.states, &p.dq, &p.ddecay}),
                                joined({&whole.o, &whole.states, &whole.dq, &whole.ddecay}));
    if (kind.segments == 2) CHECK(same);
    if (kind.segments > 2 && kind.c.most < 1 && !kind.c.documents) CHECK(!same);
}

void check_kind(Ops& ops, const Kind& kind, int schedules = 4) {
    const std::string name = std::string(kind.name) + (kind.c.by_channel ? ", decays by channel" : "");
    CAPTURE(name);
    Problem p = rounded(kind.c, kind.key_scale);
    p.spec.segments = kind.segments;
    DeviceRun run(ops, p, kind.gap);
    set_schedule(0);
    run.execute();
    const Floats first = run.results();
    for (int k = 1; k < schedules; ++k) {
        set_schedule(k);
        run.execute();
        CHECK(same_bits(first, run.results()));
    }
    const Exact exact(p);
    const auto report = [&](const Errors& errors, const std::string& of) {
        CAPTURE(of);
        CHECK(errors.largest <= 1);
        CHECK(errors.mean <= 1);
        MESSAGE(name, of, ": ", errors.largest, " of the bound, ", errors.mean, " of that of the mean error");
    };
    report(errors_of(p, exact), "");
    if (kind.segments > 1) compare_forms(ops, p, kind, exact, report);
}

}  // namespace

TEST_CASE("the delta rule in bf16 agrees with its recurrence, under every schedule with the same bits") {
    const auto ops = make_cuda_ops({.precision = Precision::bf16});
    for (Kind kind : kinds)
        for (bool by_channel : {false, true}) {
            kind.c.by_channel = by_channel;
            check_kind(*ops, kind);
        }
}

TEST_CASE("segments of a sequence at once agree with the recurrence and with the whole sequence") {
    const auto ops = make_cuda_ops({.precision = Precision::bf16});
    // In brief each kind has one sort of decays, by turns; that with the only kernels of its size has both.
    bool turn = false;
    for (Kind kind : segmented) {
        turn = !turn;
        for (bool by_channel : {false, true}) {
            if (brief() && by_channel == turn && kind.c.d != 128) continue;
            kind.c.by_channel = by_channel;
            check_kind(*ops, kind, brief() ? 2 : 4);
        }
    }
}

TEST_CASE("long sequences of the delta rule in bf16") {
    if (in_harness()) return;
    const auto ops = make_cuda_ops({.precision = Precision::bf16});
    for (int64_t length : {1000, 4096})
        for (int64_t d : {64, 128})
            for (bool by_channel : {false, true})
                for (int64_t segments : {1, 0, 16})  // 0: of 4,096 positions four, by the shape
                    check_kind(
                        *ops,
                        {"long", {1, length, 2, d, 128, by_channel, length == 1000}, 1.0f, 0, segments});
}

void check_two_parts(Ops& ops, Problem p, int64_t prompt) {
    DeviceRun run(ops, p, 0);
    run.forward(0, prompt);
    run.forward(prompt, p.c.length - prompt);
    const Exact exact(p);
    Errors errors;
    errors.add(p.o, exact.o, p.relative() * exact.size_o, bf16_input);
    errors.add(p.state, exact.state, p.relative() * exact.size_state, 0);
    CHECK(errors.largest <= 1);
    CHECK(errors.mean <= 1);
}

// The second part begins with the state that the first one left.
TEST_CASE("a sequence in bf16 read in two parts is the whole sequence") {
    const auto ops = make_cuda_ops({.precision = Precision::bf16});
    for (int64_t prompt : {64, 70, 149}) {  // 149: one position is left, for the recurrence
        CAPTURE(prompt);
        check_two_parts(*ops, rounded({1, 150, 2, 64, 64, prompt != 64}), prompt);
    }
    for (bool by_channel : {false, true}) {  // both parts in segments
        CAPTURE(by_channel);
        Problem p = rounded(fading({1, 330, 1, 64, 72, by_channel}));
        p.spec.segments = 4;
        check_two_parts(*ops, std::move(p), 140);
    }
}
