// The table's operations of the gated delta rule, two heads of two sequences. Inputs stay below 5 times their scale.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/kernels.h"
#include "simt/row_table.h"

namespace longreach::test {

namespace {

constexpr int64_t heads = 2, sequences = 2;

// Sequences of up to two chunks, key channels by the width.
const std::vector<Shape> shapes = {{2 * 7, 4}, {2 * 66, 8, 8}, {2 * 33, 12, 3}};
// And wide keys, of which the kernels have instances of their own.
std::vector<Shape> shapes_of(bool by_channel, bool documents) {
    std::vector<Shape> all = shapes;
    if (!by_channel && !documents) all.push_back({2 * 3, 132});
    return all;
}

RowCase gates(bool by_channel) {
    return {"delta_gates",
            by_channel ? "by channel" : "by head",
            {{3, 4}, {40, 40, 8}, {300, 6, 3}},
            [=](Problem& p) {
                const auto [rows, d, gap] = p.shape;
                const int64_t width = by_channel ? heads * d : heads;
                const float beta_max = by_channel ? 2 : 1;
                const int u = p.in(rows, width, 2), ub = p.in(rows, heads, 2);
                const int a_log = p.vec(heads, 0.5), bias = p.vec(width);
                // exp of at most 2.5 times a softplus below 15; both sides err by a few units of the result.
                const int decay = p.f32_out(rows, width, {64, 200}), beta = p.f32_out(rows, heads, {64, 2});
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        cpu.delta_gates(t[decay], t[beta], t[u], t[ub], {t[a_log], t[bias], beta_max});
                    },
                    [=](const Tensors& t) {
                        cuda::delta_gates(t[decay], t[beta], t[u], t[ub], t[a_log], t[bias], beta_max,
                                          nullptr);
                    });
            }};
}

RowCase gates_backward(bool by_channel) {
    return {"delta_gates_backward",
            by_channel ? "by channel" : "by head",
            {{3, 4}, {40, 40, 8}, {300, 6, 3}},
            [=](Problem& p) {
                const auto [rows, d, gap] = p.shape;
                const int64_t width = by_channel ? heads * d : heads;
                const float beta_max = by_channel ? 2 : 1;
                const int u = p.in(rows, width, 2), ub = p.in(rows, heads, 2);
                const int a_log = p.vec(heads, 0.5), bias = p.vec(width);
                const int ddecay = p.f32(rows, width), dbeta = p.f32(rows, heads);
                const int du = p.out(rows, width, {64, 65}), dub = p.out(rows, heads, {64, 4});
                const double terms = static_cast<double>(rows * std::max<int64_t>(1, width / heads));
                const int dbias = p.vec_in_out(width, {terms + 64, 5 + 65 * terms});
                const int da_log = p.vec_in_out(heads, {terms + 64, 5 + 1000 * terms});
                const Tensor space = p.workspace(cuda::delta_gates_backward_workspace(width));
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        cpu.delta_gates_backward(t[du], t[dub], t[da_log], t[dbias], t[ddecay], t[dbeta],
                                                 t[u], t[ub], {t[a_log], t[bias], beta_max});
                    },
                    [=](const Tensors& t) {
                        cuda::delta_gates_backward({.u = t[du],
                                                    .ub = t[dub],
                                                    .a_log = t[da_log],
                                                    .bias = t[dbias],
                                                    .ddecay = t[ddecay],
                                                    .dbeta = t[dbeta]},
                                                   space, t[u], t[ub], t[a_log], t[bias], beta_max, nullptr);
                    });
            }};
}

// Keys of length about 1, so that states stay small; values of 36 channels are more than one block has.
struct Inputs {
    int64_t rows, length, d, e, w;
    int q, k, v, decay, beta, starts;
    Inputs(Problem& p, bool by_channel)
        : rows(p.shape.rows),
          length(rows / sequences),
          d(p.shape.width),
          e(d == 12 ? 36 : std::min<int64_t>(d, 20)),
          w(by_channel ? heads * d : heads),
          q(p.in(rows, heads * d, 0.3)),
          k(p.in(rows, heads * d, 0.7 / std::sqrt(static_cast<double>(d)))),
          v(p.in(rows, heads * e)),
          decay(p.f32(rows, w, 0.05, -0.3)),
          beta(p.f32(rows, heads, 0.08, 0.5)) {
        std::vector<int32_t> all;
        for (int64_t i = 0; i < rows; ++i)
            all.push_back(static_cast<int32_t>(i % length < 5 ? 0 : i % length < 40 ? 5 : 40));
        starts = p.integers(all);
    }
    DeltaSpec spec(const Tensors& t, bool documents, bool additive) const {
        return {.batch = sequences,
                .length = length,
                .heads = heads,
                .key_dim = d,
                .value_dim = e,
                .query_scale = 0.5f,
                .additive = additive,
                .doc_start = documents ? t[starts] : Tensor()};
    }
    cuda::DeltaInputs of(const Tensors& t) const {
        return {.q = t[q], .k = t[k], .v = t[v], .decay = t[decay], .beta = t[beta]};
    }
    int64_t states() const { return sequences * delta_chunks(length) * heads; }
};
// Sums of d or e terms, over a chunk and the positions that a state remembers; sizes as seen with these inputs.
constexpr Bound rule_bound{4000, 10}, gradient_bound{8000, 50};

const char* name_of(bool documents, bool additive) {
    return additive ? "additive" : documents ? "documents" : "";
}

RowCase rule(bool by_channel, bool documents, bool additive) {
    return {"delta_rule", name_of(documents, additive), shapes_of(by_channel, documents), [=](Problem& p) {
                const Inputs in(p, by_channel);
                const int o = p.out(in.rows, heads * in.e, rule_bound);
                const int states = p.f32_out(in.states(), in.d * in.e, rule_bound);
                const int state = p.f32_out(sequences * heads, in.d * in.e, rule_bound);
                const Tensor room =
                    p.workspace(cuda::delta_workspace(in.spec({}, false, additive), false, p.type()));
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        const DeltaSpec spec = in.spec(t, documents, additive);
                        Floats space(1, cpu.delta_workspace(spec, false) / 4);
                        cpu.delta_rule(t[o], t[states], t[state], space.vector(), t[in.q], t[in.k], t[in.v],
                                       t[in.decay], t[in.beta], spec);
                    },
                    [=](const Tensors& t) {
                        cuda::delta_rule(t[o], {.of_chunks = t[states], .last = t[state]}, room, in.of(t),
                                         in.spec(t, documents, additive), nullptr);
                    });
            }};
}

RowCase rule_backward(bool by_channel, bool documents, bool additive) {
    return {"delta_rule_backward", name_of(documents, additive), shapes_of(by_channel, documents),
            [=](Problem& p) {
                const Inputs in(p, by_channel);
                const int dout = p.in(in.rows, heads * in.e), states = p.f32(in.states(), in.d * in.e, 0.2);
                const int dq = p.out(in.rows, heads * in.d, gradient_bound),
                          dk = p.out(in.rows, heads * in.d, gradient_bound),
                          dv = p.out(in.rows, heads * in.e, gradient_bound);
                const int ddecay = p.f32_out(in.rows, in.w, gradient_bound),
                          dbeta = p.f32_out(in.rows, heads, gradient_bound);
                const Tensor space =
                    p.workspace(cuda::delta_workspace(in.spec({}, false, additive), true, p.type()));
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        const DeltaSpec spec = in.spec(t, documents, additive);
                        Floats room(1, cpu.delta_workspace(spec, true) / 4);
                        cpu.delta_rule_backward(t[dq], t[dk], t[dv], t[ddecay], t[dbeta], room.vector(),
                                                t[dout], t[states], t[in.q], t[in.k], t[in.v], t[in.decay],
                                                t[in.beta], spec);
                    },
                    [=](const Tensors& t) {
                        cuda::delta_rule_backward(
                            {.q = t[dq], .k = t[dk], .v = t[dv], .decay = t[ddecay], .beta = t[dbeta]}, space,
                            t[dout], t[states], in.of(t), in.spec(t, documents, additive), nullptr);
                    });
            }};
}

}  // namespace

std::vector<RowCase> delta_cases() {
    std::vector<RowCase> cases;
    for (bool by_channel : {false, true}) {
        cases.push_back(gates(by_channel));
        cases.push_back(gates_backward(by_channel));
        for (bool documents : {false, true}) {
            cases.push_back(rule(by_channel, documents, false));
            cases.push_back(rule_backward(by_channel, documents, false));
        }
        cases.push_back(rule(by_channel, true, true));
        cases.push_back(rule_backward(by_channel, true, true));
    }
    return cases;
}

}  // namespace longreach::test
