// The table's operations row by row: norms, heads, neighbouring positions, the loss.
// Inputs stay below 5 times their scale (Problem checks it); a sum of C terms in f32 errs by at most C
// roundings of the sum of their sizes.
#include <algorithm>

#include "kernels/cuda/kernels.h"
#include "simt/row_table.h"

namespace longreach::test {

namespace {

double steps_of(int64_t terms) {
    return static_cast<double>(terms) + 16;
}
// A gradient of a parameter: starts below 5 and adds `terms` products below `size`.
Bound sum_bound(int64_t terms, double size) {
    return {static_cast<double>(terms) + 16, 5 + static_cast<double>(terms) * size};
}

struct NormParts {
    NormKind kind;
    bool gain, bias, normalised;
};
std::string name_of(const NormParts& n) {
    std::string name = n.kind == NormKind::rms ? "rms" : "layer";
    if (n.gain) name += ", gain";
    if (n.bias) name += ", bias";
    if (!n.normalised) name += ", only the result";
    return name;
}
// A warp per row, a block per row, and a block that reads again what its registers do not hold: packs and
// single elements of each.
const std::vector<Shape> norm_shapes = {{5, 24},       {9, 40, 8},  {3, 100, 3}, {2, 520, 8},
                                        {2, 1032, 16}, {2, 480, 3}, {2, 1111},   {1, 4104, 8}};

RowCase norms(const NormParts& parts) {
    return {
        "norm", name_of(parts), norm_shapes, [=](Problem& p) {
            const auto [rows, width, gap] = p.shape;
            const double steps = steps_of(width);
            // |n| < 6 where |x| < 5 and more than 20 normal numbers are a row; gain < 2.5, bias < 1.5.
            const int x = p.in(rows, width);
            const int gain = p.vec(width, 0.3, 1), bias = p.vec(width, 0.3);
            const int y = p.out(rows, width, {steps, 6 * 2.5 + 1.5});
            const int n = parts.normalised ? p.out(rows, width, {steps, 6}) : y;
            const int inverse = p.vec_out(rows, {steps, 3});
            const NormSpec spec{parts.kind, 1e-5f};
            const auto call = [=](const Tensors& t, auto norm) {
                norm(t[y], t[n], t[inverse], t[x], parts.gain ? t[gain] : Tensor(),
                     parts.bias ? t[bias] : Tensor(), spec);
            };
            p.run([=](Ops& cpu, const Tensors& t) { call(t, [&](const auto&... of) { cpu.norm(of...); }); },
                  [=](const Tensors& t) { call(t, [](const auto&... of) { cuda::norm(of..., nullptr); }); });
        }};
}
RowCase norms_backward(const NormParts& parts, Write write, bool in_place) {
    const std::string variant =
        name_of(parts) + (write == Write::add ? ", added" : "") + (in_place ? ", in place" : "");
    return {"norm_backward", variant, norm_shapes, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                // dx = r (g - mean g - n mean(g n)): r < 2, |g| < 12.5, and as rows of n have a mean square
                // of 1 and those of g one below 2.5^2, both means err by less than 2.5 C roundings.
                const Bound dx_bound{steps_of(width), 2 * (2.5 + 6 * 2.5) + 25};
                const int dy = in_place ? p.in_out(rows, width, dx_bound) : p.in(rows, width);
                const int dx = in_place              ? dy
                               : write == Write::add ? p.in_out(rows, width, dx_bound)
                                                     : p.out(rows, width, dx_bound);
                const int n = p.in(rows, width), inverse = p.vec(rows, 0.1, 1);
                for (int64_t r = 0; r < rows; ++r) {  // what a norm leaves
                    double squares = 0;
                    for (int64_t c = 0; c < width; ++c)
                        squares += p.values(n).at(r, c) * p.values(n).at(r, c);
                    const auto scale = static_cast<float>(std::sqrt(static_cast<double>(width) / squares));
                    for (int64_t c = 0; c < width; ++c) p.values(n).at(r, c) *= scale;
                }
                const int gain = p.vec(width, 0.3, 1);
                const int dgain = parts.gain ? p.vec_in_out(width, sum_bound(rows, 30)) : -1;
                const int dbias = parts.bias ? p.vec_in_out(width, sum_bound(rows, 5)) : -1;
                const Tensor space = p.workspace(cuda::norm_backward_workspace(rows, width));
                const NormSpec spec{parts.kind, 1e-5f};
                const auto if_any = [](const Tensors& t, int k) {
                    return k < 0 ? Tensor() : t[static_cast<size_t>(k)];
                };
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        cpu.norm_backward(t[dx], if_any(t, dgain), if_any(t, dbias), t[dy], t[n], t[inverse],
                                          parts.gain ? t[gain] : Tensor(), spec, write);
                    },
                    [=](const Tensors& t) {
                        cuda::norm_backward({t[dx], write, if_any(t, dgain), if_any(t, dbias)}, space, t[dy],
                                            t[n], t[inverse], parts.gain ? t[gain] : Tensor(), spec, nullptr);
                    });
            }};
}

struct HeadParts {
    std::string name;
    HeadNorm norm;
    bool gain, bias, learned_eps, rotary, shared_eps = false, own_angles = false;
};
const std::vector<HeadParts> head_parts = {
    {"rotary alone", HeadNorm::none, false, false, false, true},
    {"rms, rotary", HeadNorm::rms, false, false, false, true},
    {"rms, gain, rotary", HeadNorm::rms, true, false, false, true},
    {"rms, learned eps, rotary", HeadNorm::rms, false, false, true, true},
    {"rms, gain, one learned eps", HeadNorm::rms, true, false, true, false, true},
    {"layer, gain, bias, rotary", HeadNorm::layer, true, true, false, true},
    {"rotary of each head", HeadNorm::none, false, false, false, true, false, true}};

// The heads of one problem: width = heads * d. Angles for d/2 pairs, or for fewer where d is 24.
struct Heads {
    int64_t length, d, heads, pairs;
    int cosine, sine, gain, bias, log_eps;
    HeadParts parts;

    Heads(Problem& p, const HeadParts& which) : parts(which) {
        d = p.shape.width % 64 == 0 ? 64 : p.shape.width % 24 == 0 ? 24 : 10;
        heads = p.shape.width / d;
        length = p.shape.rows / 2;
        pairs = d == 24 ? 8 : d / 2;
        const int64_t columns = parts.own_angles ? heads * pairs : pairs;
        cosine = p.f32(length, columns);
        sine = p.f32(length, columns);
        for (int64_t i = 0; i < length * columns; ++i) {
            const float angle = p.values(cosine)[i];
            p.values(cosine)[i] = std::cos(angle);
            p.values(sine)[i] = std::sin(angle);
        }
        gain = p.vec(d, 0.3, 1);
        bias = p.vec(d, 0.3);
        log_eps = p.vec(parts.shared_eps ? 1 : heads, 0.3, -2);
    }
    HeadSpec spec(const Tensors& t) const {
        HeadSpec s{.length = length, .heads = heads, .head_dim = d, .norm = parts.norm, .eps = 1e-5f};
        if (parts.learned_eps) s.log_eps = t[log_eps];
        if (parts.gain) s.gain = t[gain];
        if (parts.bias) s.bias = t[bias];
        if (parts.rotary) {
            s.cosine = t[cosine];
            s.sine = t[sine];
            if (parts.own_angles) s.angle_heads = heads;
        }
        return s;
    }
};
const std::vector<Shape> head_shapes = {{8, 128, 8}, {10, 72}, {22, 30, 3}, {40, 24, 8}};

RowCase heads_forward(const HeadParts& parts) {
    return {"prepare_heads", parts.name, head_shapes, [=](Problem& p) {
                const Heads h(p, parts);
                const auto [rows, width, gap] = p.shape;
                const double steps = steps_of(h.d);
                // |n| < 6 (heads of 10 channels: below the root of 10), gain < 2.5, bias < 1.5, and a
                // rotation adds two of them.
                const int x = p.in_out(rows, width, {steps, 1.5 * (6 * 2.5 + 1.5)});
                const bool norm = parts.norm != HeadNorm::none;
                const int n = parts.gain ? p.out(rows, width, {steps, 6}) : -1;
                const int inverse = norm ? p.f32_out(rows, h.heads, {steps, 5}) : -1;
                const auto call = [=](const Tensors& t, auto prepare) {
                    prepare(t[x], n < 0 ? Tensor() : t[n], inverse < 0 ? Tensor() : t[inverse], h.spec(t));
                };
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        call(t, [&](const auto&... of) { cpu.prepare_heads(of...); });
                    },
                    [=](const Tensors& t) {
                        call(t, [](const auto&... of) { cuda::prepare_heads(of..., nullptr); });
                    });
            }};
}
RowCase heads_backward(const HeadParts& parts) {
    return {"prepare_heads_backward", parts.name, head_shapes, [=](Problem& p) {
                const Heads h(p, parts);
                const auto [rows, width, gap] = p.shape;
                const double d = static_cast<double>(h.d), steps = steps_of(h.d);
                // dx = r R^T (dy - y <y, dy> / d): r < 1.5, |dy|, |y| < 5, so <y, dy> / d errs by d roundings
                // of a mean below 4 (2.5 times more with a gain), and is multiplied by y.
                const int dx = p.in_out(rows, width, {steps, 1.5 * 1.5 * (12.5 + 5 * 4 * 2.5)});
                const int x = p.in(rows, width), n = p.in(rows, width),
                          inverse = p.f32(rows, h.heads, 0.1, 1);
                const int64_t terms = rows * h.heads;
                const int dgain = parts.gain ? p.vec_in_out(h.d, sum_bound(terms, 1.5 * 25)) : -1;
                const int dbias = parts.bias ? p.vec_in_out(h.d, sum_bound(terms, 1.5 * 5)) : -1;
                // exp(log_eps) / 2 < 0.4, r^2 < 2.3; <n, gradient at n> is d products with a mean size
                // below 4.
                const int dlog_eps =
                    parts.learned_eps
                        ? p.vec_in_out(parts.shared_eps ? 1 : h.heads,
                                       {steps, 5 + static_cast<double>(terms) * 0.4 * 2.3 * d * 4 * 2.5})
                        : -1;
                const Tensor space = p.workspace(cuda::prepare_heads_backward_workspace(rows, h.heads, h.d));
                const auto if_any = [](const Tensors& t, int k) {
                    return k < 0 ? Tensor() : t[static_cast<size_t>(k)];
                };
                const bool norm = parts.norm != HeadNorm::none;
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        cpu.prepare_heads_backward(t[dx], if_any(t, dgain), if_any(t, dbias),
                                                   if_any(t, dlog_eps), t[x], parts.gain ? t[n] : Tensor(),
                                                   norm ? t[inverse] : Tensor(), h.spec(t));
                    },
                    [=](const Tensors& t) {
                        cuda::prepare_heads_backward(
                            {t[dx], if_any(t, dgain), if_any(t, dbias), if_any(t, dlog_eps)}, space, t[x],
                            parts.gain ? t[n] : Tensor(), norm ? t[inverse] : Tensor(), h.spec(t), nullptr);
                    });
            }};
}

// Two sequences with documents of 4 positions.
int documents_of(Problem& p) {
    std::vector<int32_t> starts;
    for (int64_t i = 0; i < p.shape.rows; ++i)
        starts.push_back(static_cast<int32_t>(i % (p.shape.rows / 2) / 4 * 4));
    return p.integers(starts);
}
const std::vector<Shape> neighbour_shapes = {{8, 24}, {22, 40, 8}, {14, 33}, {40, 20, 3}};

RowCase convolutions(int64_t taps) {
    return {"short_conv", std::to_string(taps) + " taps", neighbour_shapes, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int documents = documents_of(p), x = p.in(rows, width), w = p.f32(taps, width);
                const int y = p.out(rows, width, {8, static_cast<double>(taps) * 25});
                p.run([=](Ops& cpu,
                          const Tensors& t) { cpu.short_conv(t[y], t[x], t[w], t[documents], rows / 2); },
                      [=](const Tensors& t) {
                          cuda::short_conv(t[y], t[x], t[w], t[documents], rows / 2, nullptr);
                      });
            }};
}
RowCase convolutions_backward(int64_t taps) {
    return {"short_conv_backward", std::to_string(taps) + " taps", neighbour_shapes, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int documents = documents_of(p), x = p.in(rows, width), w = p.f32(taps, width);
                const int dy = p.in(rows, width);
                const int dx = p.out(rows, width, {8, static_cast<double>(taps) * 25});
                // Products below 25 of normal numbers: their mean size is below 2 over so few rows.
                const int dw = p.f32_in_out(taps, width, sum_bound(rows, 2));
                const Tensor space = p.workspace(cuda::short_conv_backward_workspace(rows, taps, width));
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        cpu.short_conv_backward(t[dx], t[dw], t[dy], t[x], t[w], t[documents], rows / 2);
                    },
                    [=](const Tensors& t) {
                        cuda::short_conv_backward({t[dx], t[dw]}, space, t[dy], {t[x], t[w]}, t[documents],
                                                  rows / 2, nullptr);
                    });
            }};
}

RowCase smears() {
    return {"smear", "", neighbour_shapes, [](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int documents = documents_of(p), x = p.in(rows, width);
                const int w = p.vec(12), lambda = p.vec(1, 0.2);
                // The logit is a sum of 12 products of mean size below 2, through a slope of 1/4, lambda < 1
                // and a number below 5; then a product and a sum below 10.
                const int y = p.out(rows, width, {28, 12 * 2 * 0.25 * 5 + 10});
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        cpu.smear(t[y], t[x], t[w], t[lambda], t[documents], rows / 2);
                    },
                    [=](const Tensors& t) {
                        cuda::smear(t[y], t[x], t[w], t[lambda], t[documents], rows / 2, nullptr);
                    });
            }};
}
RowCase smears_backward() {
    return {"smear_backward", "", neighbour_shapes, [](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int documents = documents_of(p), x = p.in(rows, width), dy = p.in(rows, width);
                const int w = p.vec(12), lambda = p.vec(1, 0.2);
                // a = <dy_n, x_(n-1)>: C products of mean size below 2; times lambda s (1 - s) < 1/4 and w <
                // 5; the gate errs as in smear, by 28 roundings of 6, and weighs dy < 5 or a.
                const double a = 2 * static_cast<double>(width), steps = steps_of(width) + 28;
                const int dx = p.out(rows, width, {steps, 10 + a * 0.25 * 5 + a * 6 * 0.25});
                const Bound share{steps, 5 + static_cast<double>(rows) * a * (0.25 + 6 * 0.25) * 5};
                const int dw = p.vec_in_out(12, share), dlambda = p.vec_in_out(1, share);
                const Tensor space = p.workspace(cuda::smear_backward_workspace(rows, 12));
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        cpu.smear_backward(t[dx], t[dw], t[dlambda], t[dy], t[x], t[w], t[lambda],
                                           t[documents], rows / 2);
                    },
                    [=](const Tensors& t) {
                        cuda::smear_backward({t[dx], t[dw], t[dlambda]}, space, t[dy],
                                             {t[x], t[w], t[lambda]}, t[documents], rows / 2, nullptr);
                    });
            }};
}

RowCase losses(Softcap kind, float z_loss, bool gradient, bool weighted = false) {
    std::string variant = kind == Softcap::none ? "no cap" : kind == Softcap::tanh ? "tanh" : "sigmoid";
    if (z_loss > 0) variant += ", z-loss";
    if (!gradient) variant += ", no gradient";
    if (weighted) variant += ", weights";
    return {"cross_entropy", variant, {{5, 24}, {4, 33}, {3, 4104, 8}, {2, 4103}}, [=](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const LossSpec spec{.softcap = kind,
                                    .cap = 15,
                                    .shift = 2,
                                    .temperature = 7.5f,
                                    .z_loss = z_loss,
                                    .gradient_scale = 0.5f};
                // Logits below 15 as are the capped ones: e^(y - L) errs by 30 roundings of itself,
                // a sum of V of them by as many as a thread adds and its tree, at most 200 with the CPU's.
                // The gradient is 0.5 (share - 1) (1 + 2 z L), slope at most 1
                // (the sigmoid's: 15 / 4 / 7.5 = 1/2). Weights are below 1/2 + 6/4, and one rounding.
                const Bound bound = weighted ? Bound{201, 1.2} : Bound{200, 0.6};
                const int logits = gradient ? p.in_out(rows, width, bound, 3) : p.in(rows, width, 3);
                const int loss = p.vec_out(rows, {200, 60});
                std::vector<int32_t> numbers;
                for (int64_t r = 0; r < rows; ++r)
                    numbers.push_back(r == 1 ? -1 : static_cast<int32_t>((r * 7 + width - 1) % width));
                const int targets = p.integers(numbers);
                const int weights = weighted ? p.vec(rows, 0.25, 0.5) : -1;
                const auto weighed = [=](const Tensors& t) {
                    LossSpec with = spec;
                    if (weighted) with.weights = t[weights];
                    return with;
                };
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        cpu.cross_entropy(t[loss], t[logits], t[targets], weighed(t), gradient);
                    },
                    [=](const Tensors& t) {
                        cuda::cross_entropy(t[loss], t[logits], t[targets], weighed(t), gradient, nullptr);
                    });
            }};
}

// Packs and single elements; rows shorter than a block, and longer than one pass of it. Row 0 has its largest
// logit twice, row 1 one NaN that must not win, the last row nothing else.
RowCase tops() {
    return {"top1", "ties and NaN", {{5, 24}, {4, 33}, {3, 4104, 8}, {3, 4103, 3}}, [](Problem& p) {
                const auto [rows, width, gap] = p.shape;
                const int logits = p.in(rows, width, 3), best = p.integers_out(rows);
                Floats& x = p.values(logits);
                x.at(0, width / 2) = x.at(0, width - 1) = 20;
                x.at(1, width / 3) = std::nanf("");
                for (int64_t c = 0; c < width; ++c) x.at(rows - 1, c) = std::nanf("");
                p.run([=](Ops& cpu, const Tensors& t) { cpu.top1(t[best], t[logits]); },
                      [=](const Tensors& t) { cuda::top1(t[best], t[logits], nullptr); });
            }};
}

// Three sequences; numbers are below 5.
RowCase sums(bool of_keys) {
    return {
        "running_sums",
        of_keys ? "keys" : "",
        {{2, 3 * 7}, {1, 3 * 256, 3}, {4, 3 * 300, 8}},
        [=](Problem& p) {
            const auto [heads, tokens, gap] = p.shape;
            const int64_t length = tokens / 3;
            const int values = p.f32(heads, tokens), keys = p.f32(heads, tokens);
            // In f64, in another order: 2^-53 per addition.
            const double size = 5 * static_cast<double>(length + 1);
            const int out = p.doubles_out(heads, tokens, {0x1p-29 * static_cast<double>(length + 8), size});
            const auto call = [=](const Tensors& t, auto fill) {
                fill(t[out], Tensor(), t[values], of_keys ? t[keys] : Tensor(), length, 0);
            };
            p.run([=](Ops& cpu,
                      const Tensors& t) { call(t, [&](const auto&... of) { cpu.running_sums(of...); }); },
                  [=](const Tensors& t) {
                      call(t, [](const auto&... of) { cuda::running_sums(of..., nullptr); });
                  });
        },
        false};
}
RowCase sums_backward() {
    return {"running_sums_backward",
            "",
            {{2, 3 * 7}, {1, 3 * 256, 3}, {4, 3 * 300, 8}},
            [](Problem& p) {
                const auto [heads, tokens, gap] = p.shape;
                const int64_t length = tokens / 3;
                // In f64 up to the rounding of the results.
                const int dsums = p.f32(heads, tokens),
                          dvalues = p.f32_out(heads, tokens, {2, 5 * static_cast<double>(length)});
                p.run([=](Ops& cpu,
                          const Tensors& t) { cpu.running_sums_backward(t[dvalues], t[dsums], length); },
                      [=](const Tensors& t) {
                          cuda::running_sums_backward(t[dvalues], t[dsums], length, nullptr);
                      });
            },
            false};
}
RowCase at_terms(Write write) {
    return {"term_gradient",
            write == Write::add ? "add" : "set",
            {{21, 2}, {256, 1, 3}, {301, 4, 8}},
            [=](Problem& p) {
                const auto [tokens, heads, gap] = p.shape;
                const int derivative = p.f32(heads, tokens), gradient = p.f32(heads, tokens);
                const int dx =
                    write == Write::add ? p.in_out(tokens, heads, {4, 30}) : p.out(tokens, heads, {2, 25});
                p.run([=](Ops& cpu,
                          const Tensors& t) { cpu.term_gradient(t[dx], t[derivative], t[gradient], write); },
                      [=](const Tensors& t) {
                          cuda::term_gradient(t[dx], t[derivative], t[gradient], write, nullptr);
                      });
            }};
}

// Cosines and sines of the sums of three sequences, for 6 pairs whose frequencies rise from 0.
RowCase token_angles() {
    return {"token_angles",
            "",
            {{2, 3 * 7}, {1, 3 * 256, 3}, {4, 3 * 90, 8}},
            [](Problem& p) {
                const auto [heads, tokens, gap] = p.shape;
                const int64_t length = tokens / 3, pairs = 6;
                const int values = p.f32(heads, tokens, 0.1, 1), each = p.f32(1, pairs, 0.01, 0.1);
                const double size = 2 * static_cast<double>(length + 1);
                const int sums = p.doubles_out(heads, tokens, {0x1p-29 * static_cast<double>(length), size}),
                          theta = p.doubles_out(1, pairs, {0x1p-26, 1});
                // Equal angles but for additions in f64, so that the roundings to f32 remain.
                const int cosine = p.f32_out(tokens, heads * pairs, {2, 1}),
                          sine = p.f32_out(tokens, heads * pairs, {2, 1});
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        cpu.running_sums(t[sums], Tensor(), t[values], Tensor(), length, 0);
                        cpu.running_sums(t[theta], Tensor(), t[each], Tensor(), pairs, 0);
                        cpu.token_angles(t[cosine], t[sine], t[sums], t[theta], length, 0);
                    },
                    [=](const Tensors& t) {
                        cuda::running_sums(t[sums], Tensor(), t[values], Tensor(), length, 0, nullptr);
                        cuda::running_sums(t[theta], Tensor(), t[each], Tensor(), pairs, 0, nullptr);
                        cuda::token_angles(t[cosine], t[sine], t[sums], t[theta], length, 0, nullptr);
                    });
            },
            false};
}
RowCase token_angles_backward(Write write) {
    return {
        "token_angles_backward",
        write == Write::add ? "add" : "set",
        {{9, 2 * 64, 8}, {10, 4 * 30, 3}, {301, 2 * 16}},
        [=](Problem& p) {
            const auto [rows, width, gap] = p.shape;
            const int64_t heads = 2, d = width % 64 == 0 ? 64 : width % 30 == 0 ? 30 : 16, pairs = d / 2 - 1;
            const int dx = p.in(rows, width), x = p.in(rows, width), each = p.f32(1, pairs, 0.01, 0.1);
            const int theta = p.doubles_out(1, pairs, {0x1p-26, 4});
            // In f64 up to the rounding of the results; theta below 4, two products of numbers below 5.
            const Bound bound{2, static_cast<double>(width) * 4 * 50};
            const int dsums =
                write == Write::add ? p.f32_in_out(heads, rows, bound) : p.f32_out(heads, rows, bound);
            p.run(
                [=](Ops& cpu, const Tensors& t) {
                    cpu.running_sums(t[theta], Tensor(), t[each], Tensor(), pairs, 0);
                    cpu.token_angles_backward(t[dsums], t[dx], t[x], t[theta], d, write);
                },
                [=](const Tensors& t) {
                    cuda::running_sums(t[theta], Tensor(), t[each], Tensor(), pairs, 0, nullptr);
                    cuda::token_angles_backward(t[dsums], t[dx], t[x], t[theta], d, write, nullptr);
                });
        }};
}

// One query of 4 heads per sequence at position 20 of 24 cached rows, sees keys from 3 on.
RowCase decoding(const std::string& variant, bool tables, bool far, bool sink, float softcap) {
    return {
        "attention_decode", variant, {{2, 16}, {1, 40, 8}, {2, 10, 3}, {1, 96}, {1, 300}}, [=](Problem& p) {
            const auto [batch, d, gap] = p.shape;
            const int64_t length = 24, heads = 4, groups = 2, position = 20, first = 3;
            const int q = p.in(batch, heads * d), k = p.in(batch * length, groups * d),
                      v = p.in(batch * length, groups * d);
            const int far_q = p.in(batch, heads * d), far_k = p.in(batch * length, groups * d);
            const int factor = p.f32(heads, batch, 0.1, 1), gain = p.f32(1, length + 5, 0.1, 1);
            const int bias = p.f32(heads, length + 5, 0.2), square = p.vec(batch, 0.1);
            const int logits = p.vec(heads);
            // |z| = 0.1 / d |<q, k>| < 2.5 errs by d roundings of itself, at most 16 more through cap,
            // factor (< 1.5) and gain (< 1.5); a probability by twice that of both sides and by less than
            // 100 of its own and of the sums; |v| < 5.
            const double steps = 4 * 2.5 * 1.5 * 1.5 * (static_cast<double>(d) + 16) + 100;
            const int o = p.out(batch, heads * d, {steps, 5});
            const auto call = [=](const Tensors& t, auto attend) {
                AttentionSpec s{.batch = batch,
                                .length = length,
                                .heads = heads,
                                .kv_heads = groups,
                                .head_dim = d,
                                .scale = 0.1f / static_cast<float>(d),
                                .softcap = softcap};
                s.row_factor = t[factor];
                if (tables) {
                    s.distance_gain = t[gain];
                    s.distance_bias = t[bias];
                    s.row_square = t[square];
                }
                if (far) {
                    s.far_queries = t[far_q];
                    s.far_keys = t[far_k];
                    s.far_from = 9;
                }
                if (sink) s.sink = t[logits];
                attend(t[o], t[q], t[k], t[v], s, first, position);
            };
            p.run([=](Ops& cpu,
                      const Tensors& t) { call(t, [&](const auto&... of) { cpu.attention_decode(of...); }); },
                  [=](const Tensors& t) {
                      call(t, [](const auto&... of) { cuda::attention_decode(of..., nullptr); });
                  });
        }};
}

}  // namespace

std::vector<RowCase> row_cases() {
    std::vector<RowCase> cases;
    const NormParts rms{NormKind::rms, false, false, true}, with_gain{NormKind::rms, true, false, true},
        layer{NormKind::layer, true, true, true}, bare_layer{NormKind::layer, false, false, true};
    for (const NormParts& parts :
         {rms, with_gain, layer, bare_layer, NormParts{NormKind::rms, false, false, false}})
        cases.push_back(norms(parts));
    cases.push_back(norms_backward(rms, Write::set, true));
    cases.push_back(norms_backward(rms, Write::add, false));
    cases.push_back(norms_backward(with_gain, Write::add, false));
    cases.push_back(norms_backward(layer, Write::set, true));
    cases.push_back(norms_backward(bare_layer, Write::set, false));
    for (const HeadParts& parts : head_parts) {
        cases.push_back(heads_forward(parts));
        cases.push_back(heads_backward(parts));
    }
    for (int64_t taps : {1, 2, 5}) {
        cases.push_back(convolutions(taps));
        cases.push_back(convolutions_backward(taps));
    }
    cases.push_back(smears());
    cases.push_back(smears_backward());
    for (Softcap kind : {Softcap::none, Softcap::tanh, Softcap::sigmoid}) {
        cases.push_back(losses(kind, 0, true));
        cases.push_back(losses(kind, 1e-3f, true));
        cases.push_back(losses(kind, 1e-3f, true, true));
    }
    cases.push_back(losses(Softcap::tanh, 1e-3f, false));
    cases.push_back(tops());
    for (const bool of_keys : {false, true}) cases.push_back(sums(of_keys));
    cases.push_back(sums_backward());
    cases.push_back(token_angles());
    for (const Write write : {Write::set, Write::add}) {
        cases.push_back(at_terms(write));
        cases.push_back(token_angles_backward(write));
    }
    cases.push_back(decoding("plain", false, false, false, 0));
    cases.push_back(decoding("tables, far pairs", true, true, false, 0));
    cases.push_back(decoding("tables, softcap, sink", true, false, true, 3));
    return cases;
}

}  // namespace longreach::test
