// Planned memory: what is measured is what is placed, and parts that never live together share.
#include <doctest/doctest.h>

#include "model/fixture.h"
#include "model/small_models.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::byte* address(const Tensor& t) {
    return t.as<std::byte>();
}

}  // namespace

TEST_CASE("arena: aligned, apart, zeroed, exactly as measured") {
    const auto ops = make_cpu_ops({.threads = 1});
    model::Arena arena(*ops);
    std::vector<Tensor> placed;
    arena.group("first");
    placed.push_back(arena.reserve("a", DType::f32, {3, 5}));
    placed.push_back(arena.reserve("b", DType::i32, {1}));
    arena.group("second");
    placed.push_back(arena.reserve("c", DType::f64, {100}));
    CHECK(placed[0].cols() == 5);
    CHECK(arena.bytes() == 256 + 256 + 1024);
    arena.commit();
    for (const Tensor& t : placed) CHECK(reinterpret_cast<uintptr_t>(t.data()) % 64 == 0);
    CHECK(address(placed[1]) == address(placed[0]) + 256);
    CHECK(address(placed[2]) == address(placed[1]) + 256);
    for (double v : std::span(placed[2].f64(), 100)) CHECK(v == 0);

    REQUIRE(arena.entries().size() == 3);
    CHECK(arena.entries()[2].group == "second");
    CHECK(arena.entries()[2].name == "c");
    CHECK(arena.entries()[2].begin == 512);
    CHECK(arena.entries()[2].bytes == 1024);
    const std::string table = arena.table();
    CHECK(table.find("first") < table.find("second"));
    CHECK(table.find("second") < table.find("planned"));
    CHECK_THROWS_AS(arena.commit(), Error);
}

TEST_CASE("arena: rewound memory is given out again and the peak decides") {
    const auto ops = make_cpu_ops({.threads = 1});
    model::Arena arena(*ops);
    Tensor kept, training, evaluation, after;
    kept = arena.reserve("kept", DType::f32, {64});
    const int64_t mark = arena.mark();
    training = arena.reserve("training", DType::f32, {1024});
    const int64_t end = arena.mark();
    arena.rewind(mark);
    evaluation = arena.reserve("evaluation", DType::f32, {512});
    arena.rewind(std::max(end, arena.mark()));
    after = arena.reserve("after", DType::f32, {64});
    CHECK(arena.bytes() == 256 + 4096 + 256);
    arena.commit();
    CHECK(address(evaluation) == address(training));
    CHECK(address(training) == address(kept) + 256);
    CHECK(address(after) == address(training) + 4096);
}

TEST_CASE("arena: a tensor without memory can be sliced, but not read; nothing is reserved after commit") {
    const auto ops = make_cpu_ops({.threads = 1});
    model::Arena arena(*ops);
    const Tensor matrix = arena.reserve("matrix", DType::f32, {4, 6});
    const Tensor vector = arena.reserve("vector", DType::i32, {8});
    const Tensor row = matrix.row_range(2, 1), columns = matrix.col_range(1, 2), tail = vector.range(5, 3);
    CHECK(row);
    CHECK_FALSE(Tensor());
    CHECK_THROWS_AS(matrix.data(), Error);
    CHECK_THROWS_AS(tail.i32(), Error);
    arena.commit();
    CHECK(address(row) == address(matrix) + 2 * 6 * 4);
    CHECK(address(columns) == address(matrix) + 4);
    CHECK(address(tail) == address(vector) + 5 * 4);
    CHECK_THROWS_AS(arena.reserve("late", DType::f32, {1}), Error);
}

// A plan once left out the gradient buffers of x0 and first values.
TEST_CASE("the plan measures the gradient buffers of x0 and first values") {
    model::ModelConfig m = tiny_model();
    m.residual = {true, true, model::ValueMix::first};
    const ModelFixture fixture(m, {.sequences = 2, .length = 8});
    for (const char* name : {"dx0", "dfirst_values", "0.dskip"}) {
        CAPTURE(name);
        const auto& entries = fixture.arena().entries();
        CHECK(std::any_of(entries.begin(), entries.end(), [&](const auto& e) { return e.name == name; }));
    }
}

TEST_CASE("training memory grows with depth, evaluation memory only with what crosses layers") {
    const auto bytes = [](int64_t layers, bool training, bool unet) {
        model::ModelConfig m = tiny_model(layers);
        m.residual.unet = unet;
        model::Transformer model(m, 256);
        const auto ops = make_cpu_ops({.threads = 1});
        model::Arena arena(*ops);
        const model::PlanSize size{256, {256}};
        if (training)
            model.plan_training(arena, *ops, size, false);
        else
            model.plan_evaluation(arena, *ops, size, false);
        return arena.bytes();
    };
    CHECK(bytes(8, false, false) == bytes(2, false, false));
    CHECK(bytes(8, false, true) == bytes(2, false, true) + 3 * 256 * 16 * 4);
    // Each layer keeps at least two norms, q, k, v, the attention output and the hidden units.
    CHECK(bytes(8, true, false) >= bytes(2, true, false) + 6 * 256 * 4 * (2 * 16 + 3 * 16 + 16 + 24));
}

TEST_CASE("memory is linear in the length: nothing is T x T or tokens x vocabulary") {
    model::ModelConfig m = tiny_model(2);
    m.vocab_size = 50304;
    const auto bytes = [&](int64_t length, bool training) {
        model::Transformer model(m, length);
        const auto ops = make_cpu_ops({.threads = 1});
        model::Arena arena(*ops);
        model.plan_tables(arena);
        if (training)
            model.plan_training(arena, *ops, {length, {length}}, true);
        else
            model.plan_evaluation(arena, *ops, {length, {length}}, true);
        return static_cast<double>(arena.bytes());
    };
    for (bool training : {false, true}) {
        const double step = bytes(32768, training) - bytes(16384, training);
        CHECK(bytes(65536, training) - bytes(32768, training) <= 2.01 * step);
        CHECK(bytes(65536, training) < 65536.0 * 50304);
        CHECK(bytes(65536, training) < 65536.0 * 65536);
    }
}

TEST_CASE("a batch that the plan cannot hold is refused") {
    const model::ModelConfig m = tiny_model();
    ModelFixture fixture(m, {.sequences = 1, .length = 16});
    CHECK_NOTHROW(fixture.train(random_example(m.vocab_size, 1, 16, false)));
    CHECK_THROWS_AS(fixture.train(random_example(m.vocab_size, 1, 16, true)), Error);  // no mask was planned
    CHECK_THROWS_AS(fixture.train(random_example(m.vocab_size, 2, 16, false)), Error);
    CHECK_THROWS_AS(fixture.evaluate(random_example(m.vocab_size, 2, 16, false)), Error);
}
