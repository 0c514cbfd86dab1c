// The gated delta rule by its recurrence in double, position by position, forwards and backwards, for tests of kernels; one
// call with its operands, and the bounds of its results.
//
// Bounds. Keys have length 1 and beta is below 1, so that no step of the recurrence makes an error in the state larger.
// A step with a key r = b k of its own to read with, b from 1/2 to 1 by channel, multiplies the state by
// I - k k^T + k ((1 - b) k)^T: the first part is perpendicular to k, the second has the size of (1 - b) k, at most 1/2, so
// that lengths grow by at most sqrt(1 + 1/4) = exp(0.112). Decays of such cases are below -0.12.
// A step adds the error of sums of d + e + 2 * delta_chunk terms with roundings of random signs, and T steps add up as
// the root of their number: 4 sqrt(T (d + e + 2 delta_chunk)) u times the size of what is summed. Sizes are products of
// norms, the largest over all positions: a gradient <x, dx> may cancel, its terms do not. A state that hardly fades
// keeps the errors of T steps, and gradients pass through them twice: another factor of 2.
// With bf16 products a step also rounds both factors of the five products in which a position takes part, relative to the
// norms of rows: sums of roundings of random signs, 4 sqrt(10 T) times the deviation of one.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/support.h"

namespace longreach::test::delta {

struct Case {
    int64_t batch, length, heads, d, e;
    bool by_channel = false, documents = false, additive = false;
    double least = 1e-3, most = 3;  // -decay lies between them, evenly in its logarithm
    bool extremes = false;  // of three channels one keeps exp(-20), one all, and some decays are exactly 0
    bool erases = false;    // a key of its own reads the state, and there is no beta
    bool chained = false;   // a sequence starts from what the one before left
};

inline Case erasing(Case c) {
    c.erases = true;
    return c;
}
inline Case chained(Case c) {
    c.chained = true;
    return c;
}

// One call, its operands between guards.
struct Problem {
    Case c;
    int64_t rows, w;
    Floats q, k, v, decay, beta, dout, erase;
    Floats derase, o, states, state, dq, dk, dv, ddecay, dbeta;
    Ints starts;
    DeltaSpec spec;
    double input = 0;  // deviation of the relative rounding of a product's factors

    explicit Problem(const Case& which)
        : c(which),
          rows(c.batch * c.length),
          w(c.by_channel ? c.heads * c.d : c.heads),
          q(normal(rows, c.heads * c.d, 1, 1, 0, c.heads * c.d + 4)),
          k(normal(rows, c.heads * c.d, 2)),
          v(normal(rows, c.heads * c.e, 3, 1, 0, c.heads * c.e + 8)),
          decay(rows, w, w + 3),
          beta(rows, c.heads, c.heads + 1),
          dout(normal(rows, c.heads * c.e, 4)),
          erase(rows, c.heads * c.d, c.heads * c.d + 2),
          derase(rows, c.heads * c.d, c.heads * c.d + 3),
          o(rows, c.heads * c.e, c.heads * c.e + 5),
          states(c.batch * delta_chunks(c.length) * c.heads, c.d * c.e),
          state(c.batch * c.heads, c.d * c.e),
          dq(rows, c.heads * c.d, c.heads * c.d + 1),
          dk(rows, c.heads * c.d),
          dv(rows, c.heads * c.e),
          ddecay(rows, w),
          dbeta(rows, c.heads),
          starts(c.batch, c.length) {
        const Rng rng(13, Purpose::test, 5);
        uint64_t drawn = 0;
        for (int64_t i = 0; i < decay.count(); ++i)
            decay[i] = static_cast<float>(
                -std::exp(std::log(c.least) + std::log(c.most / c.least) * rng.uniform(drawn++)));
        for (int64_t i = 0; c.extremes && i < decay.count(); ++i) {
            const int64_t n = i / w, channel = i % w;
            if (channel % 3 < 2) decay[i] = channel % 3 == 0 ? -20.0f : 0.0f;
            if ((n + channel) % 37 == 7) decay[i] = -std::numeric_limits<float>::infinity();
        }
        for (int64_t i = 0; i < beta.count(); ++i) beta[i] = static_cast<float>(rng.uniform(drawn++));
        for (int64_t n = 0; n < rows; ++n)
            for (int64_t h = 0; h < c.heads; ++h) unit_length(n, h);
        for (int64_t n = 0; c.erases && n < rows; ++n) {
            for (int64_t i = 0; i < c.heads * c.d; ++i)
                erase.at(n, i) = static_cast<float>(0.5 + 0.5 * rng.uniform(drawn++)) * k.at(n, i);
            for (int64_t h = 0; h < c.heads; ++h) beta.at(n, h) = 1;
        }
        for (int64_t n = 0; n < rows; ++n) {
            const int64_t t = n % c.length;
            const bool starts_here = t == 0 || rng.uniform(drawn++) < 0.06 || (t >= 70 && t < 73);
            starts[n] = starts_here ? static_cast<int32_t>(t) : starts[n - 1];
        }
        spec = {.batch = c.batch, .length = c.length, .heads = c.heads, .key_dim = c.d, .value_dim = c.e};
        spec.query_scale = 0.25f;
        spec.additive = c.additive;
        spec.chained = c.chained;
        if (c.documents) spec.doc_start = starts.tensor();
        if (c.erases) {
            spec.erase = erase.tensor();
            spec.derase = derase.tensor();
        }
    }
    void unit_length(int64_t n, int64_t h) {
        double squares = 0;
        for (int64_t i = 0; i < c.d; ++i) squares += std::pow(double{k.at(n, h * c.d + i)}, 2);
        for (int64_t i = 0; i < c.d; ++i)
            k.at(n, h * c.d + i) = static_cast<float>(k.at(n, h * c.d + i) / std::sqrt(squares));
    }
    bool starts_at(int64_t n) const {
        if (c.chained && n % c.length == 0) return n == 0;
        return c.documents ? starts[n] == static_cast<int32_t>(n % c.length) : n % c.length == 0;
    }
    double keeps(int64_t n, int64_t h, int64_t i) const {
        return std::exp(double{decay.at(n, c.by_channel ? h * c.d + i : h)});
    }
    Tensor if_read(Floats& x) { return c.erases ? Tensor() : x.tensor(); }
    void forward(Ops& ops) {
        Floats workspace(1, ops.delta_workspace(spec, false) / 4);
        ops.delta_rule(o.tensor(), states.tensor(), state.tensor(), workspace.vector(), q.tensor(),
                       k.tensor(), v.tensor(), decay.tensor(), if_read(beta), spec);
    }
    void backward(Ops& ops) {
        Floats workspace(1, ops.delta_workspace(spec, true) / 4);
        ops.delta_rule_backward(dq.tensor(), dk.tensor(), dv.tensor(), ddecay.tensor(), if_read(dbeta),
                                workspace.vector(), dout.tensor(), states.tensor(), q.tensor(), k.tensor(),
                                v.tensor(), decay.tensor(), if_read(beta), spec);
    }
    double relative() const {
        const double steps = double(c.chained ? c.batch * c.length : c.length),
                     terms = double(c.d + c.e + 2 * delta_chunk);
        return 4 * std::sqrt(steps * (terms * unit * unit + 10 * input * input));
    }
};

// The recurrence and its transpose, one head at a time.
struct Exact {
    Doubles o, dq, dk, dv, ddecay, dbeta, derase, state;
    // Of the summands, the largest over all positions.
    double size_o = 0, size_dq = 0, size_dk = 0, size_dv = 0, size_ddecay = 0, size_dbeta = 0, size_state = 0;

    explicit Exact(const Problem& p)
        : o(p.o.rows(), p.o.cols()),
          dq(p.dq.rows(), p.dq.cols()),
          dk(p.dk.rows(), p.dk.cols()),
          dv(p.dv.rows(), p.dv.cols()),
          ddecay(p.ddecay.rows(), p.ddecay.cols()),
          dbeta(p.dbeta.rows(), p.dbeta.cols()),
          derase(p.derase.rows(), p.derase.cols()),
          state(p.state.rows(), p.state.cols()) {
        for (int64_t b = 0; b < p.c.batch; ++b)
            for (int64_t h = 0; h < p.c.heads; ++h) head(p, b, h);
    }

  private:
    using State = std::vector<double>;  // [d, e]
    // What a sequence left.
    State last_of(int64_t b, int64_t h, const Case& c) const {
        State s;
        for (int64_t i = 0; i < c.d * c.e; ++i) s.push_back(state.at(b * c.heads + h, i));
        return s;
    }
    static double norm(const State& s) {
        double squares = 0;
        for (double x : s) squares += x * x;
        return std::sqrt(squares);
    }
    static double row_norm(const Floats& x, int64_t n, int64_t begin, int64_t width) {
        double squares = 0;
        for (int64_t i = 0; i < width; ++i) squares += std::pow(double{x.at(n, begin + i)}, 2);
        return std::sqrt(squares);
    }

    void head(const Problem& p, int64_t b, int64_t h) {
        const Case& c = p.c;
        const int64_t d = c.d, e = c.e, first = b * c.length;
        const double scale = p.spec.query_scale, of_k = p.spec.key_scale;
        const auto key = [&](int64_t n, int64_t i) { return of_k * double{p.k.at(n, h * d + i)}; };
        const Floats& readers = c.erases ? p.erase : p.k;
        const auto reader = [&](int64_t n, int64_t i) { return of_k * double{readers.at(n, h * d + i)}; };
        const auto query = [&](int64_t n, int64_t i) { return scale * double{p.q.at(n, h * d + i)}; };
        std::vector<State> faded, after;  // S before and after k u^T is added
        std::vector<std::vector<double>> rests, us;
        double largest = 0, largest_value = 0;
        for (int64_t t = 0; t < c.length; ++t) {
            const int64_t n = first + t;
            const double beta = p.beta.at(n, h);
            State s = p.starts_at(n) ? State(static_cast<size_t>(d * e))
                      : t == 0       ? last_of(b - 1, h, c)
                                     : after.back();
            for (int64_t i = 0; i < d * e; ++i) s[size_t(i)] *= p.keeps(n, h, i / e);
            faded.push_back(s);
            std::vector<double> rest, u;
            for (int64_t j = 0; j < e; ++j) {
                double r = p.v.at(n, h * e + j);
                for (int64_t i = 0; i < d; ++i) r -= c.additive ? 0 : s[size_t(i * e + j)] * reader(n, i);
                rest.push_back(r);
                u.push_back(beta * r);
            }
            for (int64_t i = 0; i < d * e; ++i) s[size_t(i)] += key(n, i / e) * u[size_t(i % e)];
            for (int64_t j = 0; j < e; ++j)
                for (int64_t i = 0; i < d; ++i) o.at(n, h * e + j) += s[size_t(i * e + j)] * query(n, i);
            largest = std::max({largest, norm(s), norm(faded.back())});
            largest_value = std::max(largest_value, row_norm(p.v, n, h * e, e));
            size_o = std::max(size_o, scale * row_norm(p.q, n, h * d, d) * (largest + largest_value));
            after.push_back(s);
            rests.push_back(rest);
            us.push_back(u);
        }
        for (int64_t i = 0; i < d * e; ++i) state.at(b * c.heads + h, i) = after.back()[size_t(i)];
        size_state = std::max(size_state, largest + largest_value);

        State ds(static_cast<size_t>(d * e));
        double largest_ds = 0, largest_out = 0;
        for (int64_t t = c.length - 1; t >= 0; --t) {
            const int64_t n = first + t;
            const size_t at = static_cast<size_t>(t);
            const double beta = p.beta.at(n, h);
            for (int64_t i = 0; i < d; ++i)
                for (int64_t j = 0; j < e; ++j) {
                    const double out = p.dout.at(n, h * e + j);
                    dq.at(n, h * d + i) += scale * after[at][size_t(i * e + j)] * out;
                    ds[size_t(i * e + j)] += query(n, i) * out;
                }
            largest_out = std::max(largest_out, row_norm(p.dout, n, h * e, e));
            largest_ds = std::max(largest_ds, norm(ds));
            for (int64_t j = 0; j < e; ++j) {
                double du = 0;
                for (int64_t i = 0; i < d; ++i) du += ds[size_t(i * e + j)] * key(n, i);
                dbeta.at(n, h) += du * rests[at][size_t(j)];
                dv.at(n, h * e + j) = beta * du;
            }
            for (int64_t i = 0; i < d; ++i)
                for (int64_t j = 0; j < e; ++j) {
                    const size_t ij = size_t(i * e + j);
                    const double dr = c.additive ? 0 : dv.at(n, h * e + j);
                    dk.at(n, h * d + i) += of_k * ds[ij] * us[at][size_t(j)];
                    (c.erases ? derase : dk).at(n, h * d + i) -= of_k * faded[at][ij] * dr;
                    ds[ij] -= reader(n, i) * dr;
                    ddecay.at(n, c.by_channel ? h * d + i : h) += ds[ij] * faded[at][ij];
                    ds[ij] *= p.starts_at(n) ? 0 : p.keeps(n, h, i);
                }
        }
        const double both = largest + largest_value;
        size_dq = std::max(size_dq, 2 * scale * both * largest_out);
        size_dk = std::max(size_dk, 2 * largest_ds * both);
        size_dv = std::max(size_dv, 2 * largest_ds);
        size_dbeta = std::max(size_dbeta, 2 * largest_ds * both);
        size_ddecay = std::max(size_ddecay, 2 * largest_ds * both);
    }
};

}  // namespace longreach::test::delta
