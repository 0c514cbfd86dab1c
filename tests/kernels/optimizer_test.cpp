// Adam and Muon against double precision.
#include "kernels/muon_reference.h"
#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

struct MuonProblem {
    Floats param, gradient, momentum;
    MuonProblem(int64_t rows, int64_t cols, uint32_t stream)
        : param(normal(rows, cols, stream)),
          gradient(normal(rows, cols, stream + 1)),
          momentum(normal(rows, cols, stream + 2)) {}
    MuonSlot slot(float learning_rate, float weight_decay) {
        return {param.tensor(), gradient.tensor(), momentum.tensor(), learning_rate, weight_decay};
    }
};

void run_muon(Ops& ops, const std::vector<MuonSlot>& slots, const MuonSpec& spec) {
    const int64_t floats = (ops.muon_workspace(slots) + 3) / 4;
    Floats workspace(1, floats);
    ops.muon(slots, workspace.vector(), spec);
    CHECK(workspace.guards_intact());
}

// Newton-Schulz alone: parameters zero, no momentum, learning rate -1, so that the parameters become O.
Floats orthogonalise(Ops& ops, Floats gradient, int iterations = 5) {
    Floats o(gradient.rows(), gradient.cols()), momentum(gradient.rows(), gradient.cols());
    const MuonSlot slot{o.tensor(), gradient.tensor(), momentum.tensor(), -1.0f, 0.0f};
    run_muon(ops, {slot}, {.momentum = 0.0f, .nesterov = false, .iterations = iterations});
    CHECK(o.guards_intact());
    return o;
}

}  // namespace

TEST_CASE("five Newton-Schulz steps on diagonal matrices: the published scalar table") {
    const auto check_diagonal = [](Ops& ops, std::vector<std::pair<double, double>> table) {
        // One more entry brings the Frobenius norm to 1.
        double squares = 0;
        for (auto [s, unused] : table) squares += s * s;
        const int64_t n = static_cast<int64_t>(table.size()) + (squares < 1 ? 1 : 0);
        Floats g(n, n + 3);
        for (size_t i = 0; i < table.size(); ++i)
            g.at(static_cast<int64_t>(i), static_cast<int64_t>(i)) = static_cast<float>(table[i].first);
        if (squares < 1) g.at(n - 1, n - 1) = static_cast<float>(std::sqrt(1 - squares));
        const Floats o = orthogonalise(ops, g);
        for (size_t i = 0; i < table.size(); ++i) {
            const auto [s, published] = table[i];
            // Running error: the f32 input and norm, then eight roundings of the terms per step.
            double value = s / (1 + 1e-7), error = 4 * unit * s;
            for (int k = 0; k < 5; ++k) {
                error = std::abs(polynomial_slope(value)) * error + 8 * unit * polynomial_size(value);
                value = polynomial(value);
            }
            CHECK(std::abs(value - published) <= 0.51e-5);  // five printed digits
            const int64_t j = static_cast<int64_t>(i);
            CHECK(std::abs(o.at(j, j) - value) <= error);
            CHECK(o.at(j, j + 1) == 0);
        }
    };
    for_each_isa([&](Ops& ops) {
        check_diagonal(ops, {{.001, .47054},
                             {.01, .69892},
                             {.05, .75812},
                             {.1, .71212},
                             {.3, 1.07959},
                             {.5, .76544},
                             {.7, 1.12032}});
        check_diagonal(ops, {{.9, .68201}});
        check_diagonal(ops, {{1, .69644}});
    });
}

TEST_CASE("Newton-Schulz agrees with double precision for every shape") {
    // 257 and 300: larger than the matrices that one thread takes alone.
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                              {1, 7},
                              {24, 100},
                              {100, 24},
                              {37, 37},
                              {257, 300},
                              {300, 257}}) {
        CAPTURE(rows);
        CAPTURE(cols);
        const Floats g = normal(rows, cols, 1);
        Matrix u(rows, cols);
        for (int64_t i = 0; i < g.count(); ++i) u.v[static_cast<size_t>(i)] = g[i];
        const Orthogonalised expected = newton_schulz(u, 5);
        for_each_isa([&](Ops& ops) {
            const Floats o = orthogonalise(ops, g);
            double squares = 0;
            for (int64_t i = 0; i < o.count(); ++i) {
                const double d = o[i] - expected.o.v[static_cast<size_t>(i)];
                squares += d * d;
            }
            CHECK(std::sqrt(squares) <= expected.error);
        });
    }
}

TEST_CASE(
    "Newton-Schulz on the short side agrees with double precision, and is as accurate as a textbook in f32") {
    const int64_t rows = 260, cols = 530;
    const Floats g = normal(rows, cols, 1);
    Floats turned(cols, rows);
    Matrix u(rows, cols);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) u.at(r, c) = turned.at(c, r) = g.at(r, c);
    for (const int iterations : {0, 1, 2, 5}) {
        CAPTURE(iterations);
        const Matrix expected = newton_schulz(u, iterations).o;
        const auto distance = [&](auto at) {
            double squares = 0;
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t c = 0; c < cols; ++c) squares += std::pow(at(r, c) - expected.at(r, c), 2);
            return std::sqrt(squares);
        };
        const Orthogonalised exact = newton_schulz_short_side<double>(u, iterations);
        const Orthogonalised textbook = newton_schulz_short_side<float>(u, iterations);
        CHECK(distance([&](int64_t r, int64_t c) { return exact.o.at(r, c); }) <= 1e-9);
        const double plain = distance([&](int64_t r, int64_t c) { return textbook.o.at(r, c); });
        // From the second iteration on the bound says little. Blocks of sums round less than a textbook's chains.
        const double bound = iterations > 1 ? plain : exact.error;
        CHECK(bound <= 0.01 * expected.frobenius());
        for_each_isa([&](Ops& ops) {
            const Floats o = orthogonalise(ops, g, iterations), ot = orthogonalise(ops, turned, iterations);
            CHECK(distance([&](int64_t r, int64_t c) { return o.at(r, c); }) <= bound);
            CHECK(distance([&](int64_t r, int64_t c) { return ot.at(c, r); }) <= bound);
        });
    }
}

TEST_CASE("bf16: the first Newton-Schulz steps stay within the rounding of what their products take") {
    const auto ops = bf16_ops(2);
    if (!ops) return;
    for (auto [rows, cols] : {std::pair<int64_t, int64_t>{24, 100}, {70, 33}, {9, 9}, {260, 257}})
        for (int iterations : {1, 2}) {
            CAPTURE(rows);
            CAPTURE(iterations);
            const Floats g = normal(rows, cols, 5);
            Matrix u(rows, cols);
            for (int64_t i = 0; i < g.count(); ++i) u.v[static_cast<size_t>(i)] = g[i];
            // A rounded input of a product acts as one that is stored rounded; x itself passes on exactly, which helps.
            const Orthogonalised expected = newton_schulz(u, iterations, bf16_input);
            CHECK(expected.error <= 0.15 * expected.o.frobenius());  // it says something
            const Floats o = orthogonalise(*ops, g, iterations);
            double squares = 0;
            for (int64_t i = 0; i < o.count(); ++i) {
                const double d = o[i] - expected.o.v[static_cast<size_t>(i)];
                squares += d * d;
            }
            CHECK(std::sqrt(squares) <= expected.error);
            CHECK(std::sqrt(squares) >= 1e-3 * expected.error);  // far above what f32 would leave
        }
}

TEST_CASE("singular values from 0.01 of the norm upwards end in [0.6818, 1.1344]") {
    // x = left * diag(s) * right with reflections as the orthogonal factors.
    const int64_t rows = 32, cols = 50;
    Matrix x(rows, cols);
    std::vector<double> s;
    double squares = 0;
    for (int64_t i = 0; i < rows; ++i) {
        s.push_back(std::pow(0.01, static_cast<double>(i) / static_cast<double>(rows - 1)));
        squares += s.back() * s.back();
    }
    // After division by the Frobenius norm the smallest is 0.01 / sqrt(squares);
    // lift them so that it is 0.011.
    for (double& v : s) v = std::max(v, 0.011 * std::sqrt(squares));
    for (int64_t i = 0; i < rows; ++i) x.at(i, i) = s[static_cast<size_t>(i)];
    const auto reflect = [](Matrix a, uint32_t stream) {  // (1 - 2 w w^T / |w|^2) a
        const Floats w = normal(1, a.rows, stream);
        double norm = 0;
        for (int64_t i = 0; i < a.rows; ++i) norm += double{w[i]} * w[i];
        for (int64_t c = 0; c < a.cols; ++c) {
            double along = 0;
            for (int64_t r = 0; r < a.rows; ++r) along += w[r] * a.at(r, c);
            for (int64_t r = 0; r < a.rows; ++r) a.at(r, c) -= 2 * w[r] * along / norm;
        }
        return a;
    };
    x = reflect(reflect(x, 1), 2);
    x = transpose(reflect(reflect(transpose(x), 3), 4));
    Floats g(rows, cols);
    for (int64_t i = 0; i < g.count(); ++i) g[i] = static_cast<float>(x.v[static_cast<size_t>(i)]);
    const double error = newton_schulz(x, 5).error;  // no singular value moves by more than the error's norm
    for_each_isa([&](Ops& ops) {
        const Floats f = orthogonalise(ops, g);
        Matrix o(rows, cols);
        for (int64_t i = 0; i < f.count(); ++i) o.v[static_cast<size_t>(i)] = f[i];
        for (double value : eigenvalues(product(1, o, transpose(o), 0, Matrix(rows, rows)))) {
            CHECK(std::sqrt(value) >= 0.6818 - error);
            CHECK(std::sqrt(value) <= 1.1344 + error);
        }
    });
}

TEST_CASE("muon: momentum forms, clipping, weight decay and learning rate") {
    for_each_isa([](Ops& ops) {
        for (bool nesterov : {false, true}) {
            for (bool averaged : {false, true}) {
                for (auto [rows, cols] : {std::pair<int64_t, int64_t>{24, 50}, {50, 24}}) {
                    MuonProblem p(rows, cols, 20);
                    const MuonProblem before = p;
                    const MuonSpec spec{
                        .momentum = 0.9f, .nesterov = nesterov, .averaged = averaged, .gradient_scale = 0.5f};
                    run_muon(ops, {p.slot(0.1f, 0.01f)}, spec);
                    const double mu = spec.momentum, share = averaged ? 1 - mu : 1;
                    Matrix u(rows, cols);
                    double most = 0;
                    for (int64_t i = 0; i < u.rows * u.cols; ++i) {
                        const double g = share * 0.5 * before.gradient[i], m = mu * before.momentum[i] + g;
                        u.v[static_cast<size_t>(i)] = nesterov ? g + mu * m : m;
                        // Three roundings of each term; 1 - mu is rounded once.
                        const double bound = 4 * unit * (std::abs(g) + std::abs(mu * before.momentum[i]));
                        most = std::max(most, std::abs(p.momentum[i] - m) / bound);
                    }
                    CHECK(most <= 1);
                    const Orthogonalised expected = newton_schulz(u, 5);
                    double squares = 0, size = 0;
                    for (int64_t i = 0; i < u.rows * u.cols; ++i) {
                        const double w = before.param[i] * (1 - double{0.01f});
                        const double d =
                            p.param[i] - (w - double{0.1f} * expected.o.v[static_cast<size_t>(i)]);
                        squares += d * d;
                        size += w * w;
                    }
                    CHECK(std::sqrt(squares) <= 0.1 * expected.error + 4 * unit * std::sqrt(size));
                }
            }
        }
    });
}

TEST_CASE("a zero gradient leaves the parameters where they are") {
    for_each_isa([](Ops& ops) {
        Floats zero(24, 40);
        const Floats o = orthogonalise(ops, zero);
        CHECK(same_bits(o, zero));
    });
}

TEST_CASE("muon does not depend on the number of threads or on the other matrices") {
    // Every parameter after one step, matrix after matrix.
    const auto run = [](Ops& ops) {
        std::vector<MuonProblem> problems;
        problems.emplace_back(24, 100, 1);
        problems.emplace_back(100, 24, 4);
        problems.emplace_back(257, 290, 7);
        problems.emplace_back(64, 64, 10);
        problems.emplace_back(300, 260, 13);
        std::vector<MuonSlot> slots;
        int64_t count = 0;
        for (MuonProblem& p : problems) {
            slots.push_back(p.slot(0.02f, 0.001f));
            count += p.param.count();
        }
        run_muon(ops, slots, {});
        Floats all(1, count);
        int64_t next = 0;
        for (const MuonProblem& p : problems)
            for (int64_t i = 0; i < p.param.count(); ++i) all[next++] = p.param[i];
        return all;
    };
    check_thread_independence(run);
    for_each_isa([&](Ops& ops) {
        MuonProblem alone(257, 290, 7);
        run_muon(ops, {alone.slot(0.02f, 0.001f)}, {});
        const Floats all = run(ops);
        const int64_t before = 2 * 24 * 100;
        CHECK(std::memcmp(alone.param.data(), all.data() + before,
                          static_cast<size_t>(alone.param.count()) * 4) == 0);
    });
}

TEST_CASE("adam agrees with a double-precision loop over five steps") {
    for_each_isa([](Ops& ops) {
        const AdamSpec base{.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .step = 1, .gradient_scale = 0.5f};
        const std::vector<int64_t> counts = {1, 24, 5000, 257};
        const std::vector<float> rates = {0.1f, 0.01f, 0.02f, 0.3f}, decays = {0.0f, 0.1f, 0.0f, 0.01f};
        std::vector<Floats> param, first, second;
        std::vector<std::vector<double>> w, m, v, size;  // the same in double; size: largest |w| so far
        for (size_t t = 0; t < counts.size(); ++t) {
            param.push_back(normal(1, counts[t], static_cast<uint32_t>(t)));
            first.emplace_back(1, counts[t]);
            second.emplace_back(1, counts[t]);
            w.emplace_back();
            for (int64_t i = 0; i < counts[t]; ++i) w[t].push_back(param[t][i]);
            size.push_back(w[t]);
            for (double& x : size[t]) x = std::abs(x);
            m.emplace_back(w[t].size());
            v.emplace_back(w[t].size());
        }
        const int steps = 5;
        for (int step = 1; step <= steps; ++step) {
            std::vector<Floats> gradient;
            std::vector<AdamSlot> slots;
            for (size_t t = 0; t < counts.size(); ++t) {
                // Magnitudes in [1, 2]: then |m| / sqrt(v) is at most 2 and cancellation in m
                // is at most twofold.
                gradient.push_back(
                    normal(1, counts[t], static_cast<uint32_t>(100 * step + static_cast<int>(t))));
                for (int64_t i = 0; i < counts[t]; ++i)
                    gradient[t][i] = std::copysign(1 + std::abs(std::sin(gradient[t][i])), gradient[t][i]);
            }
            for (size_t t = 0; t < counts.size(); ++t)
                slots.push_back({param[t].vector(), gradient[t].vector(), first[t].vector(),
                                 second[t].vector(), rates[t], decays[t]});
            AdamSpec spec = base;
            spec.step = step;
            ops.adam(slots, spec);
            for (size_t t = 0; t < counts.size(); ++t) {
                const double b1 = spec.beta1, b2 = spec.beta2;
                for (size_t i = 0; i < w[t].size(); ++i) {
                    const double g = double{spec.gradient_scale} * gradient[t][static_cast<int64_t>(i)];
                    m[t][i] = b1 * m[t][i] + (1 - b1) * g;
                    v[t][i] = b2 * v[t][i] + (1 - b2) * g * g;
                    const double m_hat = m[t][i] / (1 - std::pow(b1, step)),
                                 v_hat = v[t][i] / (1 - std::pow(b2, step));
                    w[t][i] = w[t][i] * (1 - double{rates[t]} * decays[t]) -
                              rates[t] * m_hat / (std::sqrt(v_hat) + double{spec.eps});
                    size[t][i] = std::max(size[t][i], std::abs(w[t][i]));
                }
            }
        }
        // m and v: step + 3 roundings of each term, so m_hat errs by (step + 3) units of 2 (the largest |g|,
        // in units of the smallest, which bounds sqrt(v_hat) below) and sqrt(v_hat) by half of (step + 3)
        // relative; six more in the quotient. w: the decay factor, its product and the difference.
        for (size_t t = 0; t < counts.size(); ++t) {
            const double per_step = rates[t] * 2 * unit * (1.5 * (steps + 3) + 6);
            CHECK(worst(
                      param[t], [&](int64_t i) { return w[t][static_cast<size_t>(i)]; },
                      [&](int64_t i) {
                          return steps *
                                 (per_step + 3 * unit * (size[t][static_cast<size_t>(i)] + 2 * rates[t]));
                      }) <= 1);
            CHECK(worst(
                      first[t], [&](int64_t i) { return m[t][static_cast<size_t>(i)]; },
                      [&](int64_t) { return (steps + 3) * unit; }) <= 1);
            CHECK(worst(
                      second[t], [&](int64_t i) { return v[t][static_cast<size_t>(i)]; },
                      [&](int64_t i) { return (steps + 3) * unit * v[t][static_cast<size_t>(i)]; }) <= 1);
            CHECK(param[t].guards_intact());
        }
    });
}

TEST_CASE("adam does not depend on the number of threads") {
    check_thread_independence([](Ops& ops) {
        Floats param = normal(1, 100003, 1), gradient = normal(1, 100003, 2), first = normal(1, 100003, 3),
               second = normal(1, 100003, 4, 0.01, 1.0);
        const Tensor p = param.vector(), g = gradient.vector(), m = first.vector(), v = second.vector();
        // Two slots of one array, so that blocks of different slots meet inside a thread's run.
        const auto part = [](const Tensor& t, int64_t begin, int64_t n) { return t.range(begin, n); };
        const std::vector<AdamSlot> slots = {
            {part(p, 0, 30001), part(g, 0, 30001), part(m, 0, 30001), part(v, 0, 30001), 0.1f, 0.0f},
            {part(p, 30001, 70002), part(g, 30001, 70002), part(m, 30001, 70002), part(v, 30001, 70002),
             0.01f, 0.1f}};
        ops.adam(slots, {.step = 3});
        return param;
    });
}
