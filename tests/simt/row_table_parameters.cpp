// The table's operations without activations: what decides scores, sums, optimisers. f32 by contract, and the
// CPU's tests of them run on the kernels with their own bounds; here they meet the schedules.
#include <array>

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

RowCase factors(bool backward) {
    return {
        backward ? "row_factors_backward" : "row_factors", "", lengths,
        [=](Problem& p) {
            const auto [heads, length, gap] = p.shape;
            const int shape = p.vec(length, 1, 2), r = p.vec(heads), b = p.vec(heads);
            const auto spec = [=](const Tensors& t) {
                return RowFactorSpec{.length = length, .shape = t[shape], .r = t[r], .b = t[b]};
            };
            if (!backward) {
                const int factor = p.f32_out(heads, length, {4, 7 * 5 + 5});
                p.run([=](Ops& cpu, const Tensors& t) { cpu.row_factors(t[factor], spec(t)); },
                      [=](const Tensors& t) { cuda::row_factors(t[factor], spec(t), nullptr); });
                return;
            }
            // Summed in f64: the rounding of the result, whose size is that of the terms at most.
            const int dfactor = p.f32(heads, length);
            const double terms = static_cast<double>(length);
            const int dr = p.vec_in_out(heads, {4, 5 + terms * 3}), db = p.vec_in_out(heads, {4, 5 + terms});
            const Tensor space = p.workspace(cuda::row_factors_backward_workspace(heads, length));
            p.run([=](Ops& cpu,
                      const Tensors& t) { cpu.row_factors_backward(t[dr], t[db], t[dfactor], spec(t)); },
                  [=](const Tensors& t) {
                      cuda::row_factors_backward(t[dr], t[db], space, t[dfactor], spec(t), nullptr);
                  });
        },
        false};
}

RowCase tables(DistanceForm form, const std::string& name, bool backward) {
    return {backward ? "distance_tables_backward" : "distance_tables", name, lengths,
            [=](Problem& p) {
                const auto [heads, length, gap] = p.shape;
                const bool kerple = form == DistanceForm::kerple_log || form == DistanceForm::kerple_power;
                const bool gains = form == DistanceForm::scale_invariant;
                const int log_tau = p.vec(1, 0.2, 1), decay = p.vec(1, 0.2, 1);
                const int of_p = p.vec(heads, 0.04, 0.8), of_a = p.vec(heads, 0.08, 0.6);  // p < 1, a < 1
                const auto spec = [=](const Tensors& t) {
                    DistanceFormSpec s{.form = form, .length = length};
                    (kerple ? s.p : s.log_tau) = kerple ? t[of_p] : t[log_tau];
                    (kerple ? s.a : s.decay) = kerple ? t[of_a] : t[decay];
                    return s;
                };
                const double t_power = form == DistanceForm::kerple_power ? static_cast<double>(length) : 25;
                if (!backward) {
                    // In f64, rounded once on either side; a power stays below t, two times a logarithm
                    // below 25.
                    const int gain = gains ? p.f32_out(1, length, {2, 5}) : -1;
                    const int bias = p.f32_out(kerple ? heads : 1, length, {2, 2 * t_power});
                    const auto call = [=](const Tensors& t, auto fill) {
                        fill(gain < 0 ? Tensor() : t[static_cast<size_t>(gain)], t[bias], spec(t));
                    };
                    p.run(
                        [=](Ops& cpu, const Tensors& t) {
                            call(t, [&](const auto&... of) { cpu.distance_tables(of...); });
                        },
                        [=](const Tensors& t) {
                            call(t, [](const auto&... of) { cuda::distance_tables(of..., nullptr); });
                        });
                    return;
                }
                const int dgain = gains ? p.f32(1, length) : -1, dbias = p.f32(kerple ? heads : 1, length);
                // Terms of a size below t^p log t times dbias, summed in f64 and rounded once.
                const Bound sum{4, 5 + static_cast<double>(length) * t_power * 10};
                const int64_t outputs = kerple ? heads : 1;
                const int first = p.vec_in_out(outputs, sum), second = p.vec_in_out(outputs, sum);
                const Tensor space = p.workspace(cuda::distance_tables_backward_workspace(outputs, length));
                const auto results = [=](const Tensors& t) {
                    const Tensor none;
                    return kerple ? std::array{none, none, t[first], t[second]}
                                  : std::array{t[first], t[second], none, none};
                };
                const auto table = [=](const Tensors& t) {
                    return dgain < 0 ? Tensor() : t[static_cast<size_t>(dgain)];
                };
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        const auto to = results(t);
                        cpu.distance_tables_backward(to[0], to[1], to[2], to[3], table(t), t[dbias], spec(t));
                    },
                    [=](const Tensors& t) {
                        const auto to = results(t);
                        cuda::distance_tables_backward({to[0], to[1], to[2], to[3]}, space, table(t),
                                                       t[dbias], spec(t), nullptr);
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

RowCase sums(bool squares) {
    return {squares ? "sum_squares" : "sum",
            "",
            {{1, 7}, {1, 8000}, {1, 16391}, {1, 33000}},
            [=](Problem& p) {
                const int64_t count = p.shape.width;
                const int x = p.vec(count);
                // In f64 but for the sum of one access in f32: its roundings.
                const int total = p.total_out({8, static_cast<double>(count) * 1.2});
                const Tensor space = p.workspace(cuda::sum_workspace(count));
                p.run(
                    [=](Ops& cpu, const Tensors& t) {
                        squares ? cpu.sum_squares(t[total], t[x]) : cpu.sum(t[total], t[x]);
                    },
                    [=](const Tensors& t) {
                        squares ? cuda::sum_squares(t[total], space, t[x], nullptr)
                                : cuda::sum(t[total], space, t[x], nullptr);
                    });
            },
            false};
}

}  // namespace

std::vector<RowCase> parameter_cases() {
    std::vector<RowCase> cases = {
        starts("window", 5, 0, false),
        starts("chunks and documents", 0, 8, true),
        starts("all of them", 9, 16, true),
        factors(false),
        factors(true),
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
        sums(false),
        sums(true),
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
    for (bool backward : {false, true}) {
        cases.push_back(tables(DistanceForm::scale_invariant, "scale invariant", backward));
        cases.push_back(tables(DistanceForm::log_bias, "logarithm", backward));
        cases.push_back(tables(DistanceForm::kerple_log, "kerple logarithm", backward));
        cases.push_back(tables(DistanceForm::kerple_power, "kerple power", backward));
    }
    return cases;
}

}  // namespace longreach::test
