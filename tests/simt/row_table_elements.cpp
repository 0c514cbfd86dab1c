// The table's operations element by element. Inputs stay below 5 times their scale (Problem checks it);
// a relative error of a few units is 4, one through an exponential or an error function, whose argument
// stays below 15, 16.
#include <algorithm>
#include <array>

#include "kernels/cuda/kernels.h"
#include "simt/row_table.h"

namespace longreach::test {

namespace {

// In f32 packs are 4 elements, in bf16 8: rows of whole packs with and without a gap, rows that are not, and
// a gap that no pack survives.
const std::vector<Shape> elementwise = {{3, 8}, {7, 40, 8}, {5, 33}, {4, 12, 3}, {70, 24, 8}};

DType other_than(DType type) {
    return type == DType::f32 ? DType::bf16 : DType::f32;
}

RowCase copies(const std::string& variant, bool from_other, bool to_other) {
    return {"copy", variant, elementwise, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int from = p.in_of(from_other ? other_than(p.type()) : p.type(), rows, width);
                const int to = p.out_of(to_other ? other_than(p.type()) : p.type(), rows, width, {});
                p.run([=](Ops& cpu, const Tensors& t) { cpu.copy(t[to], t[from]); },
                      [=](const Tensors& t) { cuda::copy(t[to], t[from], nullptr); });
            }};
}

RowCase adds(const std::string& variant, bool from_other) {
    return {"add", variant, elementwise, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int from = p.in_of(from_other ? other_than(p.type()) : p.type(), rows, width);
                const int to = p.in_out(rows, width, {1, 10});
                p.run([=](Ops& cpu, const Tensors& t) { cpu.add(t[to], t[from]); },
                      [=](const Tensors& t) { cuda::add(t[to], t[from], nullptr); });
            }};
}

RowCase lookups(const std::string& variant, bool rounded_table) {
    return {"embedding", variant, elementwise, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                std::vector<int32_t> numbers;
                for (int64_t i = 0; i < rows; ++i) numbers.push_back(static_cast<int32_t>(i * 5 % 9));
                const int tokens = p.integers(numbers);
                const int table = rounded_table ? p.in_of(DType::bf16, 9, width) : p.f32(9, width);
                const int x = p.out(rows, width, {});
                p.run([=](Ops& cpu, const Tensors& t) { cpu.embedding(t[x], t[table], t[tokens]); },
                      [=](const Tensors& t) { cuda::embedding(t[x], t[table], t[tokens], nullptr); });
            }};
}

// One gate per channel, or one per head of d channels.
RowCase gates(int64_t d) {
    return {"gate", d == 1 ? "per channel" : "per head", {{5, 40}, {7, 40, 8}, {6, 120, 3}}, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int u = p.in(rows, width / d), o = p.in(rows, width);
                const int y = p.out(rows, width, {16, 10});
                p.run([=](Ops& cpu, const Tensors& t) { cpu.gate(t[y], t[u], t[o], 2.0f); },
                      [=](const Tensors& t) { cuda::gate(t[y], t[u], t[o], 2.0f, nullptr); });
            }};
}
RowCase gates_backward(int64_t d, bool in_place) {
    std::string variant = d == 1 ? "per channel" : "per head of " + std::to_string(d);
    if (in_place) variant += ", in place";
    return {"gate_backward", variant, {{5, 40}, {7, 40, 8}, {6, 120, 3}}, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int u = p.in(rows, width / d), o = p.in(rows, width);
                const int dy = in_place ? p.in_out(rows, width, {16, 10}) : p.in(rows, width);
                const int dout = in_place ? dy : p.out(rows, width, {16, 10});
                // A sum of d terms dy 2 o s (1 - s), each below 12.5: d roundings more.
                const double terms = static_cast<double>(d);
                const int du = p.out(rows, width / d, {16 + terms, 12.5 * terms});
                p.run([=](Ops& cpu,
                          const Tensors& t) { cpu.gate_backward(t[dout], t[du], t[dy], t[u], t[o], 2.0f); },
                      [=](const Tensors& t) {
                          cuda::gate_backward(t[dout], t[du], t[dy], t[u], t[o], 2.0f, nullptr);
                      });
            }};
}

// Two heads of d channels for each value, whose length is at least 1.
RowCase own_values(int64_t d) {
    return {"exclude_own_value",
            "heads of " + std::to_string(d),
            {{5, 40}, {7, 40, 8}, {6, 120, 3}},
            [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int o = p.in(rows, 2 * width), v = p.in(rows, width, 1, 1.5);
                // |a v| <= |o| <= 4.5 sqrt(d); the shares err by d + 4 roundings of it.
                const double size = 4.5 * std::sqrt(static_cast<double>(d));
                const int y = p.out(rows, 2 * width, {2 * static_cast<double>(d + 6), size});
                p.run([=](Ops& cpu, const Tensors& t) { cpu.exclude_own_value(t[y], t[o], t[v], d); },
                      [=](const Tensors& t) { cuda::exclude_own_value(t[y], t[o], t[v], d, nullptr); });
            }};
}
RowCase own_values_backward(int64_t d, bool in_place) {
    const std::string variant = "heads of " + std::to_string(d) + (in_place ? ", in place" : "");
    return {"exclude_own_value_backward", variant, {{5, 40}, {7, 40, 8}, {6, 120, 3}}, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int o = p.in(rows, 2 * width), v = p.in(rows, width, 1, 1.5);
                const double steps = 2 * static_cast<double>(d + 6),
                             size = 4.5 * std::sqrt(static_cast<double>(d));
                const int dy = in_place ? p.in_out(rows, 2 * width, {steps, size}) : p.in(rows, 2 * width);
                const int dout = in_place ? dy : p.out(rows, 2 * width, {steps, size});
                // Of each of the two heads |2 a b v|, |a dy| and |b o|, which are at most 4 |o| |dy| / |v| together.
                const int dv = p.out(rows, width, {2 * steps, 2 * 4 * size * size});
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        cpu.exclude_own_value_backward(t[dout], t[dv], t[dy], t[o], t[v], d);
                    },
                    [=](const Tensors& t) {
                        cuda::exclude_own_value_backward(t[dout], t[dv], t[dy], t[o], t[v], d, nullptr);
                    });
            }};
}

const char* name_of(Activation kind) {
    switch (kind) {
        case Activation::gelu:
            return "gelu";
        case Activation::gelu_tanh:
            return "gelu_tanh";
        case Activation::swiglu:
            return "swiglu";
        case Activation::geglu_tanh:
            return "geglu_tanh";
        case Activation::silu:
            return "silu";
    }
    return "";
}
RowCase activations(Activation kind) {
    return {"activation", name_of(kind), elementwise, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const bool halves = is_gated(kind);  // gate|up, a product below 10 * 10
                const int a = p.in(rows, halves ? 2 * width : width, 2);
                const int h = p.out(rows, width, {16, halves ? 100.0 : 10.0});
                p.run([=](Ops& cpu, const Tensors& t) { cpu.activation(t[h], t[a], kind); },
                      [=](const Tensors& t) { cuda::activation(t[h], t[a], kind, nullptr); });
            }};
}
RowCase activations_backward(Activation kind) {
    return {"activation_backward", name_of(kind), elementwise, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                // |slope| < 1.2 of both gelu and of silu; of swiglu at most 1.1 in the gate, times up < 10, and gate
                // < 10; of geglu_tanh 1.2.
                const bool halves = is_gated(kind);
                const int64_t columns = halves ? 2 * width : width;
                const int a = p.in(rows, columns, 2), dh = p.in(rows, width);
                const int da = p.out(rows, columns, {16, halves ? 60.0 : 6.0});
                p.run(
                    [=](Ops& cpu, const Tensors& t) { cpu.activation_backward(t[da], t[dh], t[a], kind); },
                    [=](const Tensors& t) { cuda::activation_backward(t[da], t[dh], t[a], kind, nullptr); });
            }};
}

RowCase relu2() {
    return {"relu2", "", elementwise, [](Problem& p) {
                const int h = p.in_out(p.shape.rows, p.shape.width, {1, 25});
                p.run(
                    [=](Ops&, const Tensors& t) {
                        for (int64_t i = 0; i < t[h].count(); ++i) {
                            const double a = t[h].f32()[i];
                            t[h].f32()[i] = static_cast<float>(a > 0 ? a * a : 0);
                        }
                    },
                    [=](const Tensors& t) { cuda::relu2(t[h], nullptr); });
            }};
}
RowCase relu2_backward() {
    return {"relu2_backward", "", elementwise, [](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int h = p.in(rows, width);
                for (int64_t i = 0; i < p.values(h).count(); ++i)
                    p.values(h)[i] = std::max(0.0f, p.values(h)[i]);  // a square of relu, below 5
                const int da = p.in_out(rows, width, {4, 5 * 2 * 2.3});
                p.run(
                    [=](Ops&, const Tensors& t) {
                        for (int64_t i = 0; i < t[h].count(); ++i)
                            t[da].f32()[i] =
                                static_cast<float>(t[da].f32()[i] * 2 * std::sqrt(double{t[h].f32()[i]}));
                    },
                    [=](const Tensors& t) { cuda::relu2_backward(t[da], t[h], nullptr); });
            }};
}

Coefficient learned(const Tensor& param) {
    return {.param = param, .scale = 0.5f, .offset = 0.25f};  // below 2.75
}
RowCase mixes(bool with_params) {
    return {"mix", with_params ? "learned" : "constant", elementwise, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int x = p.in(rows, width), y = p.in(rows, width), a = p.vec(1), b = p.vec(1);
                const int out = p.out(rows, width, {4, 2 * 2.75 * 5});
                const auto call = [=](const Tensors& t, auto mix) {
                    const Coefficient constant{.offset = -2.0f};
                    mix(t[out], with_params ? learned(t[a]) : constant, t[x],
                        with_params ? learned(t[b]) : constant, t[y]);
                };
                p.run(
                    [=](Ops& cpu, const Tensors& t) { call(t, [&](const auto&... of) { cpu.mix(of...); }); },
                    [=](const Tensors& t) { call(t, [](const auto&... of) { cuda::mix(of..., nullptr); }); });
            }};
}
RowCase mixes_backward(bool of_a, bool of_b) {
    const std::string variant = of_a   ? of_b ? "both learned" : "a learned"
                                : of_b ? "b learned"
                                       : "nothing learned";
    const std::vector<Shape> shapes = {{3, 8}, {7, 40, 8}, {5, 33}, {4, 12, 3}, {40, 512}};  // 2 blocks
    return {"mix_backward", variant, shapes, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int dout = p.in(rows, width), x = p.in(rows, width), y = p.in(rows, width);
                const int a = p.vec(1), b = p.vec(1);
                const int dx = p.out(rows, width, {2, 2.75 * 5});
                const int dy = p.in_out(rows, width, {4, 5 + 2.75 * 5});
                // A dot product: sums of one access in f32, of those in f64. The size of all terms together
                // is below the product of the roots of the sums of squares, so below 1.5 a term.
                const Bound dot{16, 5 + 0.5 * 1.5 * static_cast<double>(rows * width)};
                const int da = of_a ? p.vec_in_out(1, dot) : -1, db = of_b ? p.vec_in_out(1, dot) : -1;
                const auto call = [=](const Tensors& t, auto backward) {
                    const auto if_any = [&](int k) { return k < 0 ? Tensor() : t[static_cast<size_t>(k)]; };
                    backward(t[dx], t[dy], if_any(da), if_any(db), t[dout], learned(t[a]), t[x],
                             learned(t[b]), t[y]);
                };
                const Tensor space = p.workspace(cuda::mix_backward_workspace(rows * width));
                p.run([=](Ops& cpu,
                          const Tensors& t) { call(t, [&](const auto&... of) { cpu.mix_backward(of...); }); },
                      [=](const Tensors& t) {
                          call(t, [&](const Tensor& dx_, const Tensor& dy_, const Tensor& da_,
                                      const Tensor& db_, const auto&... of) {
                              cuda::mix_backward({dx_, dy_, da_, db_}, space, of..., nullptr);
                          });
                      });
            }};
}

}  // namespace

std::vector<RowCase> element_cases() {
    std::vector<RowCase> cases = {
        {"zero",
         "",
         {{3, 8}, {5, 33}, {7, 1}},
         [](Problem& p) {
             const int to = p.in_out(p.shape.rows, p.shape.width, {});
             p.run([=](Ops& cpu, const Tensors& t) { cpu.zero(t[to]); },
                   [=](const Tensors& t) { cuda::zero(t[to], nullptr); });
         }},
        copies("same type", false, false),
        copies("from the other type", true, false),
        copies("to the other type", false, true),
        adds("same type", false),
        adds("of the other type", true),
        lookups("of an f32 table", false),
        lookups("of a rounded table", true),
        {"embedding_backward",
         "",
         {{3, 8}, {40, 40, 8}, {50, 33}, {130, 12, 3}, {132, 8, 8}},
         [](Problem& p) {
             const auto [rows, width, gap] = p.shape;
             std::vector<int32_t> numbers;
             for (int64_t i = 0; i < rows; ++i) numbers.push_back(static_cast<int32_t>(i * i % 9));
             const int tokens = p.integers(numbers), dx = p.in(rows, width);
             const int dtable = p.f32_in_out(9, width, {40, 20});  // 15 rows a token
             const Tensor space = p.workspace(cuda::embedding_backward_workspace(rows, width));
             p.run([=](Ops& cpu, const Tensors& t) { cpu.embedding_backward(t[dtable], t[dx], t[tokens]); },
                   [=](const Tensors& t) {
                       cuda::embedding_backward(t[dtable], space, t[dx], t[tokens], nullptr);
                   });
         }},
        {"add_bias", "", elementwise,
         [](Problem& p) {
             const auto [rows, width, gap] = p.shape;
             const int y = p.in_out(rows, width, {1, 10}), bias = p.vec(width);
             p.run([=](Ops& cpu, const Tensors& t) { cpu.add_bias(t[y], t[bias]); },
                   [=](const Tensors& t) { cuda::add_bias(t[y], t[bias], nullptr); });
         }},
        {"add_bias_backward", "", elementwise,
         [](Problem& p) {
             const auto [rows, width, gap] = p.shape;
             const int dy = p.in(rows, width);
             const int dbias =
                 p.vec_in_out(width, {static_cast<double>(rows) + 1, 5 * static_cast<double>(rows + 1)});
             const Tensor space = p.workspace(cuda::add_bias_backward_workspace(rows, width));
             p.run([=](Ops& cpu, const Tensors& t) { cpu.add_bias_backward(t[dbias], t[dy]); },
                   [=](const Tensors& t) { cuda::add_bias_backward(t[dbias], space, t[dy], nullptr); });
         }},
        gates(1),
        gates(20),
        gates(8),
        gates_backward(1, false),
        gates_backward(20, false),
        gates_backward(8, true),
        own_values(8),
        own_values(10),
        own_values_backward(8, true),
        own_values_backward(10, false),
        relu2(),
        relu2_backward(),
        mixes(false),
        mixes(true),
        mixes_backward(false, false),
        mixes_backward(true, false),
        mixes_backward(false, true),
        mixes_backward(true, true)};
    for (Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::swiglu,
                            Activation::geglu_tanh, Activation::silu}) {
        cases.push_back(activations(kind));
        cases.push_back(activations_backward(kind));
    }
    return cases;
}

}  // namespace longreach::test
