// The table's operations without activations: what decides scores, sums, optimisers. f32 by contract, and the
// CPU's tests of them run on the kernels with their own bounds; here they meet the schedules.

#include "kernels/cuda/kernels.h"
#include "simt/row_table.h"

namespace longreach::test {

namespace {

// One block of rows, more than one, and the edges of a block of 256.
const std::vector<Shape> lengths = {{2, 37}, {1, 256}, {3, 257}, {1, 20000}};

RowCase starts(const std::string& variant, int64_t window, int64_t chunk, bool documents) {
    return {"row_starts",
            variant,
            {{3, 37}, {2, 256}, {1, 257}},
            [=](Problem& p) {
                const auto [sequences, length, gap] = p.shape;
                std::vector<int32_t> starts;
                for (int64_t i = 0; i < sequences * length; ++i)
                    starts.push_back(static_cast<int32_t>(i % length / 10 * 10));
                const int from = p.integers(starts), to = p.integers_out(sequences * length);
                const auto call = [=](const Tensors& t, auto row_starts) {
                    row_starts(t[to], documents ? t[from] : Tensor(), length, window, chunk);
                };
                p.run([=](Ops& cpu,
                          const Tensors& t) { call(t, [&](const auto&... of) { cpu.row_starts(of...); }); },
                      [=](const Tensors& t) {
                          call(t, [](const auto&... of) { cuda::row_starts(of..., nullptr); });
                      });
            },
            false};
}

// a_h sqrt(1 + table) + log1p(entry / tau) * w[entry % 3 or so]: every kind of input, and functions of each arity.
LawProgram program() {
    LawProgram p;
    const auto add = [&](LawOp op, int operand = 0, double value = 0) {
        if (op == LawOp::number) {
            operand = p.number_count;
            p.numbers[p.number_count++] = value;
        }
        p.code[p.count++] = {op, static_cast<int16_t>(operand)};
    };
    add(LawOp::parameter, 0);
    add(LawOp::number, 0, 1);
    add(LawOp::table, 0);
    add(LawOp::abs);
    add(LawOp::add);
    add(LawOp::sqrt);
    add(LawOp::multiply);
    add(LawOp::entry);
    add(LawOp::parameter, 1);
    add(LawOp::divide);
    add(LawOp::log1p);
    add(LawOp::entry);
    add(LawOp::number, 0, 0.25);
    add(LawOp::multiply);
    add(LawOp::element, 2);
    add(LawOp::number, 0, -1);
    add(LawOp::number, 0, 1);
    add(LawOp::clamp);
    add(LawOp::multiply);
    add(LawOp::add);
    return p;
}

RowCase evaluate(bool backwards) {
    return {"evaluate_law", backwards ? "by distance" : "by row", lengths,
            [=](Problem& p) {
                const auto [heads, length, gap] = p.shape;
                const int a = p.vec(heads), tau = p.vec(1, 0.2, 10), w = p.vec(4);
                const int constant = p.in_of(DType::f64, 1, length);
                // In f64, rounded once on either side; below 5 sqrt(6) + log1p(20000 / 9). Two columns stay as they are.
                const int table = p.f32_in_out(heads, length + 2, {2, 20});
                const auto call = [=](const Tensors& t, auto fill) {
                    LawSpec spec{.program = program(),
                                 .length = length,
                                 .first = 1,
                                 .backwards = backwards,
                                 .parameters = {t[a], t[tau], t[w]},
                                 .sizes = {1, 1, 4},
                                 .tables = {t[constant]}};
                    fill(t[table].col_range(backwards ? 2 : 0, length), spec);
                };
                p.run([=](Ops& cpu,
                          const Tensors& t) { call(t, [&](const auto&... of) { cpu.evaluate_law(of...); }); },
                      [=](const Tensors& t) {
                          call(t, [](const auto&... of) { cuda::evaluate_law(of..., nullptr); });
                      });
            },
            false};
}

// Documents of 10 positions.
std::vector<int32_t> starts_of(int64_t rows, int64_t length) {
    std::vector<int32_t> starts;
    for (int64_t i = 0; i < rows; ++i) starts.push_back(static_cast<int32_t>(i % length / 10 * 10));
    return starts;
}

// (a + table) x + entry y, x and y of every token and head.
RowCase evaluate_by_token(bool documents) {
    return {"evaluate_law",
            documents ? "by token, documents" : "by token",
            {{3, 37}, {2, 256}, {1, 257}},
            [=](Problem& p) {
                const auto [heads, length, gap] = p.shape;
                const int a = p.vec(heads), constant = p.in_of(DType::f64, 1, length);
                const int x = p.in(2 * length, heads), y = p.in(2 * length, heads);
                const int starts = p.integers(starts_of(2 * length, length));
                // In f64, rounded once on either side; below 10 * 5 + 257 * 5.
                const int out = p.f32_out(heads, 2 * length, {2, 1400});
                LawProgram program;
                const auto add = [&](LawOp op, int operand = 0) {
                    program.code[program.count++] = {op, static_cast<int16_t>(operand)};
                };
                add(LawOp::parameter);
                add(LawOp::table);
                add(LawOp::add);
                add(LawOp::token, 0);
                add(LawOp::multiply);
                add(LawOp::entry);
                add(LawOp::token, 1);
                add(LawOp::multiply);
                add(LawOp::add);
                const auto call = [=](const Tensors& t, auto fill) {
                    LawSpec spec{.program = program,
                                 .first = 1,
                                 .parameters = {t[a]},
                                 .sizes = {1},
                                 .tables = {t[constant]},
                                 .by_token = {length, documents ? t[starts] : Tensor()},
                                 .tokens = {t[x], t[y]}};
                    fill(t[out], spec);
                };
                p.run([=](Ops& cpu,
                          const Tensors& t) { call(t, [&](const auto&... of) { cpu.evaluate_law(of...); }); },
                      [=](const Tensors& t) {
                          call(t, [](const auto&... of) { cuda::evaluate_law(of..., nullptr); });
                      });
            }};
}

RowCase rows(bool documents) {
    return {"law_rows",
            documents ? "documents" : "",
            {{3, 37}, {2, 256}, {1, 257}},
            [=](Problem& p) {
                const auto [heads, length, gap] = p.shape;
                const int table = p.f32(heads, length + 1),
                          starts = p.integers(starts_of(2 * length, length));
                const int factor = p.f32_out(heads, 2 * length, {});
                const auto call = [=](const Tensors& t, auto fill) {
                    fill(t[factor], t[table],
                         LawEntries{.length = length, .start = documents ? t[starts] : Tensor()});
                };
                p.run([=](Ops& cpu,
                          const Tensors& t) { call(t, [&](const auto&... of) { cpu.law_rows(of...); }); },
                      [=](const Tensors& t) {
                          call(t, [](const auto&... of) { cuda::law_rows(of..., nullptr); });
                      });
            },
            false};
}

RowCase gradient(bool by_row, int64_t size, bool shared) {
    return {
        "law_gradient",
        fmt::format("{}, {} elements{}", by_row ? "by row" : "by distance", size, shared ? ", shared" : ""),
        lengths,
        [=](Problem& p) {
            const auto [heads, length, gap] = p.shape;
            const int64_t columns = by_row ? 2 * length : length, owners = shared ? 1 : heads;
            const int derivative = p.f32(shared ? 1 : heads, length), upstream = p.f32(heads, columns);
            std::vector<int32_t> reads;
            for (int64_t i = 0; i < length; ++i) reads.push_back(static_cast<int32_t>(i * i % size));
            const int elements = p.integers(reads), starts = p.integers(starts_of(columns, length));
            // Summed in f64; the rounding of the result, whose size is that of the terms at most.
            const Bound bound{4, 5 + static_cast<double>(columns * (shared ? heads : 1)) * 25};
            const int to = size > 1 ? p.f32_in_out(owners, size, bound) : p.vec_in_out(owners, bound);
            const Tensor space = p.workspace(cuda::law_gradient_workspace(heads, columns, size));
            const auto entries = [=](const Tensors& t) {
                return by_row ? LawEntries{.length = length, .start = t[starts]} : LawEntries{};
            };
            const auto element = [=](const Tensors& t) { return size > 1 ? t[elements] : Tensor(); };
            p.run(
                [=](Ops& cpu, const Tensors& t) {
                    cpu.law_gradient(t[to], t[derivative], t[upstream], entries(t), element(t));
                },
                [=](const Tensors& t) {
                    cuda::law_gradient({t[to], t[derivative], t[upstream], element(t)}, entries(t), space,
                                       nullptr);
                });
        },
        false};
}

RowCase clips(int64_t heads, int64_t kv_heads) {
    return {"qk_clip",
            heads == kv_heads ? "a key head each" : "shared key heads",
            {{1, 24}, {1, 33}, {1, 260}},
            [=](Problem& p) {
                const int64_t d = 6, width = p.shape.width;
                // 100 is the limit and the maxima are 40 to 160: sqrt(limit / maximum), three roundings.
                const int wq = p.f32_in_out(heads * d, width, {4, 5});
                const int wk = p.f32_in_out(kv_heads * d, width, {4, 5});
                const int maxima = p.vec(heads, 15, 100);
                p.run([=](Ops& cpu, const Tensors& t) { cpu.qk_clip(t[wq], t[wk], t[maxima], d, 100.0f); },
                      [=](const Tensors& t) { cuda::qk_clip(t[wq], t[wk], t[maxima], d, 100.0f, nullptr); });
            },
            false};
}

// In f64 but for the sum of one access in f32: its roundings.
Bound bound_of_sum(int64_t count) {
    return {8, static_cast<double>(count) * 1.2};
}
RowCase sum() {
    return {"sum",
            "",
            {{1, 7}, {1, 8000}, {1, 16391}, {1, 33000}},
            [](Problem& p) {
                const int64_t count = p.shape.width;
                const int x = p.vec(count);
                const int total = p.total_out(bound_of_sum(count));
                const Tensor space = p.workspace(cuda::sum_workspace(count));
                p.run([=](Ops& cpu, const Tensors& t) { cpu.sum(t[total], t[x]); },
                      [=](const Tensors& t) { cuda::sum(t[total], space, t[x], nullptr); });
            },
            false};
}
RowCase sums_of_squares() {
    return {"sum_squares",
            "",
            {{1, 7}, {1, 16391}, {1, 33000}},
            [](Problem& p) {
                const int64_t count = p.shape.width;
                const int x = p.vec(count), y = p.vec(100);
                const int totals = p.doubles_out(1, 3, bound_of_sum(count));
                const auto parts = [=](const Tensors& t) {
                    return std::vector<Tensor>{t[x].range(0, count), t[y].range(0, 100),
                                               t[x].range(3, count - 3)};
                };
                const Tensor space = p.workspace(2 * cuda::sum_workspace(count) + cuda::sum_workspace(100));
                p.run([=](Ops& cpu, const Tensors& t) { cpu.sum_squares(t[totals], parts(t)); },
                      [=](const Tensors& t) { cuda::sum_squares(t[totals], space, parts(t), nullptr); });
            },
            false};
}

}  // namespace

std::vector<RowCase> parameter_cases() {
    std::vector<RowCase> cases = {
        starts("window", 5, 0, false),
        starts("chunks and documents", 0, 8, true),
        starts("all of them", 9, 16, true),
        evaluate(false),
        evaluate(true),
        evaluate_by_token(false),
        evaluate_by_token(true),
        rows(false),
        rows(true),
        gradient(false, 1, false),
        gradient(true, 1, true),
        gradient(true, 5, false),
        gradient(false, 5, true),
        {"head_maxima",
         "",
         {{2, 37}, {3, 1100}, {1, 2}},
         [](Problem& p) {
             const auto [heads, rows, gap] = p.shape;
             const int maxima = p.f32(heads, rows), out = p.vec_in_out(heads, {});
             p.run([=](Ops& cpu, const Tensors& t) { cpu.head_maxima(t[out], t[maxima]); },
                   [=](const Tensors& t) { cuda::head_maxima(t[out], t[maxima], nullptr); });
         },
         false},
        clips(4, 4),
        clips(4, 2),
        sum(),
        sums_of_squares(),
        {"adam",
         "",
         {{1, 7}, {3, 40}, {2, 5001}},
         [](Problem& p) {
             const auto [rows, width, gap] = p.shape;
             // m / (sqrt(v) + eps) stays below 30 at a rate of 0.01; ten roundings of that and
             // of numbers below 5.
             const Bound bound{10, 30};
             const int param = p.vec_in_out(rows * width, bound), gradient = p.vec(rows * width);
             const int first = p.vec_in_out(rows * width, bound), second = p.vec_in_out(rows * width, bound);
             for (int64_t i = 0; i < rows * width; ++i)
                 p.values(second)[i] = std::abs(p.values(second)[i]) + 0.03f;
             const AdamSpec spec{.step = 3, .gradient_scale = 0.5f};
             const auto slot = [=](const Tensors& t) {
                 return std::vector<AdamSlot>{{t[param], t[gradient], t[first], t[second], 0.01f, 0.1f}};
             };
             p.run([=](Ops& cpu, const Tensors& t) { cpu.adam(slot(t), spec); },
                   [=](const Tensors& t) { cuda::adam(slot(t), spec, nullptr); });
         },
         false}};
    return cases;
}

}  // namespace longreach::test
