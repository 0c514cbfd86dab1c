// Newton-Schulz as Muon uses it, in double precision by the textbook, with bounds on what f32 and
// bf16 make of it.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/support.h"

namespace longreach::test {

// Newton-Schulz on one singular value, with its derivative and the size of its terms.
inline constexpr double c1 = 3.4445, c3 = -4.7750, c5 = 2.0315;
inline double polynomial(double s) {
    return s * (c1 + s * s * (c3 + s * s * c5));
}
inline double polynomial_slope(double s) {
    return c1 + s * s * (3 * c3 + s * s * 5 * c5);
}
inline double polynomial_size(double s) {
    return std::abs(s) * (c1 + s * s * (-c3 + s * s * c5));
}

// Row-major matrices in double, by the textbook.
struct Matrix {
    int64_t rows, cols;
    std::vector<double> v;
    Matrix(int64_t r, int64_t c) : rows(r), cols(c), v(static_cast<size_t>(r * c)) {}
    double& at(int64_t r, int64_t c) { return v[static_cast<size_t>(r * cols + c)]; }
    double at(int64_t r, int64_t c) const { return v[static_cast<size_t>(r * cols + c)]; }
    double frobenius() const {
        double sum = 0;
        for (double x : v) sum += x * x;
        return std::sqrt(sum);
    }
};
inline Matrix transpose(const Matrix& a) {
    Matrix t(a.cols, a.rows);
    for (int64_t r = 0; r < a.rows; ++r)
        for (int64_t c = 0; c < a.cols; ++c) t.at(c, r) = a.at(r, c);
    return t;
}
// alpha a b + beta c.
inline Matrix product(double alpha, const Matrix& a, const Matrix& b, double beta, const Matrix& c) {
    Matrix out(a.rows, b.cols);
    for (int64_t i = 0; i < a.rows; ++i) {
        for (int64_t k = 0; k < a.cols; ++k)
            for (int64_t j = 0; j < b.cols; ++j) out.at(i, j) += alpha * a.at(i, k) * b.at(k, j);
        for (int64_t j = 0; j < b.cols; ++j) out.at(i, j) += beta * c.at(i, j);
    }
    return out;
}

struct Orthogonalised {
    Matrix o;
    double error;  // bound on |computed result - o|_F
};
// Error of f32: a product with inner length k errs by at most k units of the product of absolute matrices,
// whose Frobenius norm is at most that of the factors multiplied. An error passes through an iteration with a
// factor of at most 3.4445: the iteration applies an odd polynomial to the singular values, its derivative is
// in Frobenius norm at most the largest slope, and that is the slope at 0 (|slope| < 3.4445 up to 1.18).
// stored: relative error of the type that x, a and b are kept in, beyond f32; 2^-8 for bf16.
inline Orthogonalised newton_schulz(Matrix u, int iterations, double stored = 0) {
    const bool turned = u.rows > u.cols;
    Matrix x = turned ? transpose(u) : u;
    const double norm = x.frobenius() + 1e-7;
    for (double& v : x.v) v /= norm;
    double error = 8 * unit + stored;  // momentum, direction and scaling, relative to |x| = 1
    for (int i = 0; i < iterations; ++i) {
        const Matrix a = product(1, x, transpose(x), 0, Matrix(x.rows, x.rows));
        const Matrix b = product(c5, a, a, c3, a);
        const double s = static_cast<double>(x.rows + 4) * unit, l = static_cast<double>(x.cols + 4) * unit;
        const double fx = x.frobenius(), fa = a.frobenius(), fb = b.frobenius();
        const double a_error = l * fx * fx + stored * fa;
        // Spectral norms: |x| <= 1.2, |a| <= 1.44.
        const double b_error =
            c5 * (s * fa * fa + 2 * 1.44 * a_error) - c3 * (a_error + 2 * unit * fa) + stored * fb;
        error = c1 * error + 1.2 * b_error + s * fb * fx + 4 * unit * c1 * fx;
        x = product(1, b, x, c1, x);
        error += stored * (x.frobenius() + error);
    }
    return {turned ? transpose(x) : x, error};
}

// The same on the short side alone, for x with no more rows than columns: A = P P A and Q = P Q, then x = Q x, each product
// mirrored at its diagonal. Exact in `Real` but for the roundings of its sums.
// error: with f32 in the place of `Real`, to first order in its unit. A rounding of a product counts k units of the product
// of absolute matrices; mirroring an error multiplies its norm by at most sqrt(2).
template <class Real>
Orthogonalised newton_schulz_short_side(Matrix x, int iterations) {
    const double norm = x.frobenius() + 1e-7;
    for (double& v : x.v) v = static_cast<Real>(v / norm);
    const int64_t s = x.rows, l = x.cols;
    const auto multiply = [](const Matrix& a, const Matrix& b) {
        Matrix out(a.rows, b.cols);
        for (int64_t i = 0; i < a.rows; ++i) {
            std::vector<Real> row(static_cast<size_t>(b.cols));
            for (int64_t k = 0; k < a.cols; ++k)
                for (int64_t j = 0; j < b.cols; ++j)
                    row[static_cast<size_t>(j)] +=
                        static_cast<Real>(a.at(i, k)) * static_cast<Real>(b.at(k, j));
            for (int64_t j = 0; j < b.cols; ++j) out.at(i, j) = row[static_cast<size_t>(j)];
        }
        return out;
    };
    const auto mirrored = [](Matrix a) {
        for (int64_t i = 0; i < a.rows; ++i)
            for (int64_t j = 0; j < i; ++j) a.at(j, i) = a.at(i, j);
        return a;
    };
    const double root = std::sqrt(2.0), by_s = static_cast<double>(s) * unit,
                 by_l = static_cast<double>(l) * unit;
    Matrix a = mirrored(multiply(x, transpose(x))), q(s, s);
    for (int64_t i = 0; i < s; ++i) q.at(i, i) = 1;
    double a_error = root * by_l, q_error = 0;
    for (int i = 0; i < iterations; ++i) {
        Matrix p = multiply(a, a);
        const double fa = a.frobenius();
        for (int64_t j = 0; j < s * s; ++j) {
            const size_t at = static_cast<size_t>(j);
            p.v[at] = static_cast<Real>(c5 * p.v[at] + c3 * a.v[at]);
            if (j % (s + 1) == 0) p.v[at] = static_cast<Real>(p.v[at] + c1);
        }
        p = mirrored(p);
        // Spectral norms by the polynomial over [0, |a|], whose largest value is at 0.
        const double p_error = root * (c5 * (2 * fa * a_error + by_s * fa * fa) - c3 * a_error) +
                               4 * unit * (c5 * fa * fa - c3 * fa + c1 * std::sqrt(static_cast<double>(s)));
        const auto passed = [&](const Matrix& b, double b_error) {  // of p b
            return root * (c1 * b_error + p_error * b.frobenius() + by_s * p.frobenius() * b.frobenius());
        };
        q_error = passed(q, q_error);
        q = mirrored(multiply(p, q));
        const Matrix t = mirrored(multiply(p, a));
        const double t_error = passed(a, a_error);
        a_error = passed(t, t_error);
        a = mirrored(multiply(p, t));
    }
    const double qf = q.frobenius();
    return {multiply(q, x), q_error + by_s * qf + 8 * unit * qf};
}

// Eigenvalues of a symmetric matrix by Jacobi rotations.
inline std::vector<double> eigenvalues(Matrix a) {
    const int64_t n = a.rows;
    for (int sweep = 0; sweep < 30; ++sweep)
        for (int64_t p = 0; p < n; ++p)
            for (int64_t q = p + 1; q < n; ++q) {
                if (std::abs(a.at(p, q)) < 1e-15) continue;
                const double angle = 0.5 * std::atan2(2 * a.at(p, q), a.at(q, q) - a.at(p, p));
                const double c = std::cos(angle), s = std::sin(angle);
                for (int64_t k = 0; k < n; ++k) {
                    const double x = a.at(p, k), y = a.at(q, k);
                    a.at(p, k) = c * x - s * y;
                    a.at(q, k) = s * x + c * y;
                }
                for (int64_t k = 0; k < n; ++k) {
                    const double x = a.at(k, p), y = a.at(k, q);
                    a.at(k, p) = c * x - s * y;
                    a.at(k, q) = s * x + c * y;
                }
            }
    std::vector<double> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(a.at(i, i));
    return values;
}

}  // namespace longreach::test
