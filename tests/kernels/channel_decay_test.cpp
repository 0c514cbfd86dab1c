// Attention whose channels decay, against the reference of attention_variants.h and itself.
#include <algorithm>

#include "kernels/decoded_variants.h"
#include "kernels/random_variants.h"
#include "kernels/statistics_reference.h"

using namespace longreach;
using namespace longreach::test;

namespace {

// A random combination of what such attention knows.
Variant decayed_variant(uint64_t seed) {
    Variant c = random_variant(seed);
    c.softcap = 0;
    c.row_square = c.far = c.maxima = c.absolute = false;
    c.gain_gradient = c.bias_gradient = false;
    c.channels = true;
    c.channel_gradient = seed % 5 != 0;
    return c;
}

Problem executed(const Variant& c, Ops& ops) {
    Problem run(c);
    run.execute(ops);
    return run;
}

// Several tiles of keys and an odd length.
Variant base() {
    Variant c{.batch = 2, .length = 203, .heads = 4, .kv_heads = 2, .head_dim = 12};
    c.channels = c.channel_gradient = true;
    return c;
}

}  // namespace

TEST_CASE("random variants with sums by channel, and their gradients, against double") {
    std::vector<std::unique_ptr<Ops>> ops;
    for (const std::string& isa : instruction_sets())
        for (int threads : {1, 2, 3}) ops.push_back(make_test_ops({.threads = threads, .isa = isa}));
    for (uint64_t seed = 1; seed <= random_variants / 2; ++seed) {
        CAPTURE(seed);
        const Variant c = decayed_variant(seed);
        const Problem problem(c);
        const ExactInputs inputs(problem);
        check_against(executed(c, *ops[seed % ops.size()]), Reference(problem, inputs));
    }
}

TEST_CASE("sums by channel: the same bits at every number of threads, and in bf16 those of f32") {
    check_thread_independence([](Ops& ops) { return executed(base(), ops).results(); });
    for (const char* isa : bf16_sets()) {
        const auto narrow = bf16_ops(2, isa), plain = make_test_ops({.threads = 1, .isa = isa});
        CHECK(same_bits(executed(base(), *narrow).results(), executed(base(), *plain).results()));
    }
}

// A plan knows their shape alone. Planned as attention without them, a step of long sequences had too little memory.
TEST_CASE("sums by channel: the workspace of a shape is that of the tensor") {
    const auto ops = make_test_ops({.threads = 2});
    Problem p(base());
    AttentionSpec shape = p.plain_spec(), whole = p.plain_spec();
    shape.channel_sums = Tensor(nullptr, DType::f64, {p.channel.rows(), p.channel.cols()});
    whole.channel_sums = p.channel.tensor();
    CHECK(ops->attention_workspace(shape, {}) == ops->attention_workspace(whole, {}));
    CHECK(ops->attention_workspace(shape, {}) != ops->attention_workspace(p.plain_spec(), {}));
}

TEST_CASE("channels that keep everything are attention without sums") {
    for_each_isa([](Ops& ops) {
        Problem p(base());
        for (int64_t i = 0; i < p.channel.count(); ++i) p.channel[i] = -1234.5;
        p.execute(ops);
        Variant c = base();
        c.channels = c.channel_gradient = false;
        const Problem plain(c);
        check_against(executed(c, ops), Reference(plain, ExactInputs(plain)));
        CHECK(Reference(plain, ExactInputs(plain)).o.worst(p.o) <= 1);
        CHECK(Reference(plain, ExactInputs(plain)).dqkv.worst(p.dqkv) <= 1);
    });
}

TEST_CASE("channels that forget everything at once leave no infinity and no NaN") {
    for_each_isa([](Ops& ops) {
        Problem p(base());
        for (int64_t r = 0; r < p.channel.rows(); ++r)
            for (int64_t n = 0; n < p.channel.cols(); ++n) p.channel.at(r, n) = -1e5 * double(n);
        p.execute(ops);
        check_against(p, Reference(p, ExactInputs(p)));
    });
}

TEST_CASE("sums by channel, one query at a time, against double") {
    for (uint64_t seed = 1; seed <= random_variants / 6; ++seed) {
        CAPTURE(seed);
        Variant c = decayed_variant(seed);
        c.documents = false;
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            decoded(p, ops);
            CHECK(Reference(p, ExactInputs(p)).o.worst(p.o) <= 1);
        });
    }
}

TEST_CASE("sums by channel: the last queries of a sequence alone have the bits that they have among all") {
    for_each_isa([](Ops& ops) {
        for (const int64_t size : {int64_t{64}, int64_t{77}}) {
            CAPTURE(size);
            Variant c = base();
            c.batch = 1;
            c.sink = true;
            Problem p(c);
            p.forward(ops);
            Floats o(c.length, p.query_cols), lse(c.heads, c.length);
            for (int64_t at = 0; at < c.length; at += size) {
                const int64_t count = std::min(size, c.length - at);
                AttentionSpec piece = p.spec();
                piece.length = count;
                piece.channel_sums = piece.channel_sums.col_range(0, at + count);
                ops.attention(o.tensor().row_range(at, count), lse.tensor().col_range(at, count), Tensor(),
                              p.part(p.qkv, 0).row_range(at, count), p.part(p.qkv, 1).first_rows(at + count),
                              p.part(p.qkv, 2).first_rows(at + count), piece);
            }
            CHECK(same_bits(o, p.o));
            CHECK(same_bits(lse, p.lse));
        }
    });
}

TEST_CASE("row statistics with sums by channel against double") {
    for (uint64_t seed = 1; seed <= random_variants / 6; ++seed) {
        CAPTURE(seed);
        Variant c = random_statistics_variant(seed, 300'000);
        c.softcap = 0;
        c.row_square = c.far = c.sticks = false;
        c.alpha = 0;
        c.channels = true;
        for_each_isa([&](Ops& ops) {
            Problem p(c);
            p.forward(ops);
            const Floats actual = statistics_of(p, ops);
            CHECK(StatisticsReference(p, ExactInputs(p), p.lse).all.worst(actual) <= 1);
        });
    }
}

TEST_CASE("the reference's gradients of sums by channel are the derivatives of its loss") {
    Variant c = base();
    c.batch = 1;
    c.length = 20;
    c.head_dim = 4;
    c.factor_rows = c.heads;
    c.forget = true;
    Problem problem(c);
    for (int64_t i = 0; i < problem.channel.count(); ++i) problem.channel[i] = -0.1 * double(i % c.length);
    ExactInputs inputs(problem);
    const Reference exact(problem, inputs);
    const auto compare = [&](std::vector<double>& input, size_t at, double derivative) {
        const double h = 1e-5, before = input[at];
        input[at] = before + h;
        const double above = Reference(problem, inputs).loss;
        input[at] = before - h;
        const double below = Reference(problem, inputs).loss;
        input[at] = before;
        CHECK(std::abs((above - below) / (2 * h) - derivative) <= 1e-7 * (1 + std::abs(derivative)));
    };
    for (size_t i = 0; i < inputs.channel.size(); i += 7) compare(inputs.channel, i, exact.dchannel.value[i]);
    for (size_t i = 0; i < exact.dqkv.value.size(); i += 13) compare(inputs.qkv, i, exact.dqkv.value[i]);
}
