// qk_prepare and its gradient against double precision: the forward by its definition, the gradient by
// complex steps.
#include <complex>

#include "kernels/support.h"

using namespace longreach;
using namespace longreach::test;

namespace {

using Complex = std::complex<double>;

struct Problem {
    QkSpec spec;
    int64_t rows, heads;  // heads: those of queries and keys together
    Floats qkv, dqkv, inverse, cosine, sine;

    Problem(int64_t batch, int64_t length, int64_t query_heads, int64_t kv_heads, int64_t d, int64_t pairs,
            bool norm)
        : rows(batch * length),
          heads(query_heads + kv_heads),
          qkv(normal(rows, (heads + kv_heads) * d, 1, 1.5)),
          dqkv(normal(rows, (heads + kv_heads) * d, 2)),
          inverse(rows, heads),
          cosine(length + 3, std::max<int64_t>(pairs, 1)),
          sine(length + 3, std::max<int64_t>(pairs, 1)) {
        for (int64_t p = 0; p < cosine.rows(); ++p)
            for (int64_t m = 0; m < pairs; ++m) {
                const double angle =
                    static_cast<double>(p) *
                    std::pow(10000.0, -2.0 * static_cast<double>(m) / static_cast<double>(d));
                cosine.at(p, m) = static_cast<float>(std::cos(angle));
                sine.at(p, m) = static_cast<float>(std::sin(angle));
            }
        spec = {.length = length,
                .heads = query_heads,
                .kv_heads = kv_heads,
                .head_dim = d,
                .norm = norm,
                .eps = 1e-3f,
                .cosine = {},
                .sine = {}};
        if (pairs > 0) {
            spec.cosine = cosine.tensor();
            spec.sine = sine.tensor();
        }
    }
    Tensor inverse_or_none() { return spec.norm ? inverse.tensor() : Tensor(); }

    // Head h of row r by the definition.
    template <class T>
    std::vector<T> reference(std::vector<T> x, int64_t r) const {
        const size_t d = x.size(), half = d / 2;
        if (spec.norm) {
            T square = 0;
            for (const T& v : x) square += v * v / static_cast<double>(d);
            for (T& v : x) v /= std::sqrt(square + double{spec.eps});
        }
        const int64_t pairs = spec.cosine ? spec.cosine.cols() : 0;
        for (int64_t m = 0; m < pairs; ++m) {
            const double c = cosine.at(r % spec.length, m), s = sine.at(r % spec.length, m);
            const size_t i = static_cast<size_t>(m);
            const T x1 = x[i], x2 = x[i + half];
            x[i] = x1 * c - x2 * s;
            x[i + half] = x1 * s + x2 * c;
        }
        return x;
    }
};

std::vector<Problem> problems() {
    std::vector<Problem> all;
    for (bool norm : {false, true}) {
        all.emplace_back(3, 5, 3, 3, 24, 12, norm);  // every pair turns, half a head is no whole vector
        all.emplace_back(1, 7, 4, 2, 64, 16, norm);  // p-RoPE, fewer key heads
        all.emplace_back(1, 1, 2, 1, 10, 3, norm);
        all.emplace_back(2, 3, 1, 1, 128, 0, norm);  // no rotary
    }
    return all;
}

}  // namespace

TEST_CASE("qk_prepare agrees with its definition and leaves the values alone") {
    for_each_isa([](Ops& ops) {
        for (Problem& p : problems()) {
            const int64_t d = p.spec.head_dim;
            CAPTURE(d);
            CAPTURE(p.spec.norm);
            const Floats before = p.qkv;
            ops.qk_prepare(p.qkv.tensor(), p.inverse_or_none(), p.spec);
            // The mean of d squares errs by d units, its inverse root by half of that; the rotation adds two
            // products.
            const double step = static_cast<double>(d + 8) * unit;
            for (int64_t r = 0; r < p.rows; ++r) {
                for (int64_t h = 0; h < p.heads; ++h) {
                    std::vector<double> x;
                    for (int64_t i = 0; i < d; ++i) x.push_back(before.at(r, h * d + i));
                    const double r_norm = p.spec.norm ? double{p.inverse.at(r, h)} : 1.0;
                    const std::vector<double> y = p.reference(x, r);
                    for (int64_t i = 0; i < d; ++i) {
                        const double pair = std::abs(x[static_cast<size_t>(i)]) +
                                            std::abs(x[static_cast<size_t>((i + d / 2) % d)]);
                        REQUIRE(std::abs(p.qkv.at(r, h * d + i) - y[static_cast<size_t>(i)]) <=
                                step * pair * r_norm);
                    }
                }
                for (int64_t i = p.heads * d; i < p.qkv.cols(); ++i)
                    REQUIRE(p.qkv.at(r, i) == before.at(r, i));
            }
        }
    });
}

TEST_CASE("the gradient of qk_prepare agrees with complex steps and leaves the values alone") {
    for_each_isa([](Ops& ops) {
        for (Problem& p : problems()) {
            const int64_t d = p.spec.head_dim;
            CAPTURE(d);
            CAPTURE(p.spec.norm);
            const Floats x = p.qkv, dy = p.dqkv;
            ops.qk_prepare(p.qkv.tensor(), p.inverse_or_none(), p.spec);
            ops.qk_prepare_backward(p.dqkv.tensor(), p.qkv.tensor(), p.inverse_or_none(), p.spec);
            const double step = static_cast<double>(d + 8) * unit;
            for (int64_t r = 0; r < p.rows; ++r) {
                for (int64_t h = 0; h < p.heads; ++h) {
                    std::vector<Complex> head;
                    double mean = 0;  // of |y dy|
                    for (int64_t i = 0; i < d; ++i) {
                        head.push_back(x.at(r, h * d + i));
                        mean += std::abs(p.qkv.at(r, h * d + i) * double{dy.at(r, h * d + i)}) /
                                static_cast<double>(d);
                    }
                    const double r_norm = p.spec.norm ? double{p.inverse.at(r, h)} : 1.0;
                    for (int64_t i = 0; i < d; ++i) {
                        const double tiny = 1e-30;
                        head[static_cast<size_t>(i)] += Complex(0, tiny);
                        const std::vector<Complex> y = p.reference(head, r);
                        head[static_cast<size_t>(i)] -= Complex(0, tiny);
                        double expected = 0, size = 0;
                        for (int64_t k = 0; k < d; ++k)
                            expected += dy.at(r, h * d + k) * y[static_cast<size_t>(k)].imag() / tiny;
                        for (int64_t k : {i, (i + d / 2) % d})
                            size += std::abs(double{dy.at(r, h * d + k)}) +
                                    std::abs(double{p.qkv.at(r, h * d + k)}) * mean * (p.spec.norm ? 1 : 0);
                        // y and r carry one step of error each and y enters twice; the dot product adds a
                        // third.
                        REQUIRE(std::abs(p.dqkv.at(r, h * d + i) - expected) <= 3 * step * r_norm * size);
                    }
                }
                for (int64_t i = p.heads * d; i < p.dqkv.cols(); ++i) REQUIRE(p.dqkv.at(r, i) == dy.at(r, i));
            }
        }
    });
}

TEST_CASE("scores depend on the distance alone") {
    // The same query and key vector at every position: <q_i, k_j> must be a function of i - j.
    for_each_isa([](Ops& ops) {
        const int64_t length = 40, d = 64;
        Problem p(1, length, 1, 1, d, d / 2, true);
        for (int64_t r = 1; r < length; ++r)
            for (int64_t i = 0; i < 2 * d; ++i) p.qkv.at(r, i) = p.qkv.at(0, i);
        ops.qk_prepare(p.qkv.tensor(), p.inverse.tensor(), p.spec);
        const auto score = [&](int64_t i, int64_t j) {
            double sum = 0;
            for (int64_t c = 0; c < d; ++c) sum += double{p.qkv.at(i, c)} * p.qkv.at(j, d + c);
            return sum;
        };
        // |q| = |k| = sqrt(d) after the norm. Rounding of one table entry or rotation errs by a few units of
        // an element; against a vector of length sqrt(d) that is at most 6 units * d.
        for (int64_t t : {0, 1, 5, 17})
            for (int64_t j = 0; j + t < length; ++j)
                CHECK(std::abs(score(j + t, j) - score(t, 0)) <= 2 * 6 * unit * static_cast<double>(d));
    });
}

TEST_CASE("qk_prepare and its gradient do not depend on the number of threads") {
    const auto make = [] { return Problem(3, 50, 3, 3, 64, 32, true); };
    check_thread_independence([&](Ops& ops) {
        Problem p = make();
        ops.qk_prepare(p.qkv.tensor(), p.inverse.tensor(), p.spec);
        return p.qkv;
    });
    check_thread_independence([&](Ops& ops) {
        Problem p = make();
        ops.qk_prepare(p.qkv.tensor(), p.inverse.tensor(), p.spec);
        ops.qk_prepare_backward(p.dqkv.tensor(), p.qkv.tensor(), p.inverse.tensor(), p.spec);
        return p.dqkv;
    });
}
