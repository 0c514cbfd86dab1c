#include "theory/phase.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/pool.h"
#include "base/rng.h"

namespace longreach::theory {

namespace {

constexpr int64_t block = 16;  // rows of a product that one task computes
int64_t blocks_of(int64_t rows) {
    return (rows + block - 1) / block;
}
constexpr int64_t strip = 128;  // its columns at a time: block x strip doubles stay in the L1 cache

// c [rows, n] = a [rows, k] b [k, n], row-major and contiguous. Terms are added in the order of k.
void multiply(double* c, const double* a, const double* b, int64_t rows, int64_t k, int64_t n) {
    std::fill_n(c, rows * n, 0.0);
    for (int64_t from = 0; from < n; from += strip) {
        const int64_t width = std::min(strip, n - from);
        for (int64_t p = 0; p < k; p += 4) {
            const int64_t depth = std::min<int64_t>(4, k - p);
            for (int64_t row = 0; row < rows; ++row) {
                double* out = c + row * n + from;
                const double* left = a + row * k + p;
                const double* right = b + p * n + from;
                if (depth == 4) {
                    const double l0 = left[0], l1 = left[1], l2 = left[2], l3 = left[3];
                    const double *r1 = right + n, *r2 = r1 + n, *r3 = r2 + n;
                    for (int64_t j = 0; j < width; ++j)
                        out[j] = (((out[j] + l0 * right[j]) + l1 * r1[j]) + l2 * r2[j]) + l3 * r3[j];
                } else {
                    for (int64_t q = 0; q < depth; ++q)
                        for (int64_t j = 0; j < width; ++j) out[j] += left[q] * right[q * n + j];
                }
            }
        }
    }
}

std::vector<double> transposed(const std::vector<double>& x, int64_t rows, int64_t columns) {
    std::vector<double> out(x.size());
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j)
            out[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * columns + j)];
    return out;
}

double dot(const double* a, const double* b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

void normalise_rows(std::vector<double>& x, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; ++i) {
        double* row = x.data() + i * columns;
        const double scale = 1 / std::sqrt(dot(row, row, columns));
        for (int64_t j = 0; j < columns; ++j) row[j] *= scale;
    }
}

// -1 if gamma is below its critical value, 0 at it, 1 above.
int side_of_critical(double rho, double gamma) {
    const double excess = gamma * (1 - rho) - 1;
    return std::abs(excess) < 1e-12 ? 0 : excess < 0 ? -1 : 1;
}

}  // namespace

Tokens overlapping_tokens(int64_t n, int64_t d, double rho, uint64_t seed) {
    const Rng rng(seed, Purpose::theory, 3);
    Tokens tokens{n, d, std::vector<double>(static_cast<size_t>(n * d))};
    std::vector<double> common(static_cast<size_t>(d));
    for (int64_t k = 0; k < d; ++k) common[static_cast<size_t>(k)] = rng.normal(static_cast<uint64_t>(k));
    normalise_rows(common, 1, d);
    const double own = std::sqrt((1 - rho) / static_cast<double>(d)), shared = std::sqrt(rho);
    Pool(usable_threads()).run(blocks_of(n), [&](int64_t b, int) {
        for (int64_t i = b * block * d; i < std::min((b + 1) * block, n) * d; ++i)
            tokens.x[static_cast<size_t>(i)] =
                shared * common[static_cast<size_t>(i % d)] + own * rng.normal(static_cast<uint64_t>(i + d));
    });
    return tokens;
}

double critical_gamma(double rho) {
    return 1 / (1 - rho);
}

PhaseModel::PhaseModel(const Tokens& tokens) : n_(tokens.n), d_(tokens.d), y_(tokens.x) {
    check(n_ >= 2 && d_ >= 1 && static_cast<int64_t>(y_.size()) == n_ * d_,
          "{} tokens of size {} in {} numbers", n_, d_, y_.size());
    for (int64_t i = 0; i < n_; ++i)
        length2_.push_back(dot(&y_[static_cast<size_t>(i * d_)], &y_[static_cast<size_t>(i * d_)], d_));
    normalise_rows(y_, n_, d_);
    y_transposed_ = transposed(y_, n_, d_);
    gram_.resize(static_cast<size_t>(n_ * n_));
    Pool(usable_threads()).run(blocks_of(n_), [&](int64_t b, int) {
        const int64_t first = b * block;
        multiply(gram_.data() + first * n_, y_.data() + first * d_, y_transposed_.data(),
                 std::min(block, n_ - first), d_, n_);
    });
    gram_square_ = gram_;
    for (double& g : gram_square_) g *= g;
}

PhasePoint PhaseModel::at(double beta) const {
    // For row i with weights a_j = A_ij and g_j = <y_j, x'_i>, X = |x'_i|^2, C = sum_j a_j
    // (y_j - x')(y_j - x')^T:
    //   dx'_i/dx_i = (a_i I + beta C) P_i / |x_i|,  P_m = I - y_m y_m^T
    //   dx'_i/dx_m = a_m (I + beta (y_m - x'_i) y_i^T) P_m / |x_m|
    // C = sum_j a_j y_j y_j^T - x' x'^T turns its traces into products of matrices:
    //   tr C = 1 - X,  tr C^2 = sum_jk a_j a_k G_jk^2 - 2 sum_j a_j g_j^2 + X^2
    //   y_i^T C y_i = sum_j a_j G_ij^2 - g_i^2,  C y_i = sum_j a_j G_ij y_j - g_i x'
    const size_t n = static_cast<size_t>(n_), d = static_cast<size_t>(d_);
    const double channels = static_cast<double>(d_);
    std::vector<double> out(n * d), row_norm(n);
    Pool pool(usable_threads());
    struct Space {
        std::vector<double> a, squares, overlap, pulled, moved;
    };
    std::vector<Space> spaces(static_cast<size_t>(pool.threads()));
    pool.run(blocks_of(n_), [&](int64_t b, int worker) {
        auto& [a, squares, overlap, pulled, moved] = spaces[static_cast<size_t>(worker)];
        const size_t rows_of_block = static_cast<size_t>(block);
        for (std::vector<double>* matrix : {&a, &squares, &overlap, &pulled})
            matrix->resize(rows_of_block * n);
        moved.resize(rows_of_block * d);
        const int64_t first = b * block;
        const int64_t rows = std::min(block, n_ - first);
        for (int64_t row = 0; row < rows; ++row) {
            const double* g = gram_.data() + (first + row) * n_;
            double* w = a.data() + row * n_;
            double sum = 0;
            for (size_t j = 0; j < n; ++j) sum += w[j] = std::exp(beta * (g[j] - 1));
            for (size_t j = 0; j < n; ++j) w[j] /= sum;
            double* p = pulled.data() + row * n_;
            for (size_t j = 0; j < n; ++j) p[j] = w[j] * g[j];
        }
        double* x = out.data() + first * d_;
        multiply(x, a.data(), y_.data(), rows, n_, d_);                         // x'_i
        multiply(overlap.data(), x, y_transposed_.data(), rows, d_, n_);        // g_j
        multiply(squares.data(), a.data(), gram_square_.data(), rows, n_, n_);  // sum_k a_k G_jk^2
        multiply(moved.data(), pulled.data(), y_.data(), rows, n_, d_);         // sum_j a_j G_ij y_j
        for (int64_t row = 0; row < rows; ++row)
            row_norm[static_cast<size_t>(first + row)] =
                gradient_norm(first + row, beta,
                              {a.data() + row * n_, overlap.data() + row * n_, squares.data() + row * n_,
                               x + row * d_, moved.data() + row * d_});
    });
    PhasePoint point;
    for (const double norm : row_norm) point.gradient_norm += norm;
    point.gradient_norm /= static_cast<double>(n_) * channels;
    point.angle_ratio = angle_ratio(std::move(out));
    return point;
}

double PhaseModel::gradient_norm(int64_t i, double beta, const Row& row) const {
    const double* gram = gram_.data() + i * n_;
    const double *w = row.weights, *g = row.overlap;
    const double channels = static_cast<double>(d_), x2 = dot(row.mean, row.mean, d_);
    double trace2 = x2 * x2, along = -g[i] * g[i], others = 0;
    for (int64_t m = 0; m < n_; ++m) {
        trace2 += w[m] * (row.squares[m] - 2 * g[m] * g[m]);
        along += w[m] * gram[m] * gram[m];
        if (m == i) continue;
        const double uu = 1 - 2 * g[m] + x2, vv = 1 - gram[m] * gram[m];
        const double uv = (gram[m] - g[i]) - (1 - g[m]) * gram[m];
        others += w[m] * w[m] / length2_[static_cast<size_t>(m)] *
                  ((channels - 1) + 2 * beta * uv + beta * beta * uu * vv);
    }
    double cy2 = 0;
    for (int64_t k = 0; k < d_; ++k) {
        const double c = row.moved[k] - g[i] * row.mean[k];
        cy2 += c * c;
    }
    const double own =
        w[i] * w[i] * (channels - 1) + 2 * w[i] * beta * (1 - x2 - along) + beta * beta * (trace2 - cy2);
    return others + own / length2_[static_cast<size_t>(i)];
}

double PhaseModel::angle_ratio(std::vector<double> out) const {
    const size_t n = static_cast<size_t>(n_);
    std::vector<double> row_ratio(n);
    normalise_rows(out, n_, d_);
    const std::vector<double> out_transposed = transposed(out, n_, d_);
    Pool pool(usable_threads());
    std::vector<std::vector<double>> cosines(static_cast<size_t>(pool.threads()));
    pool.run(blocks_of(n_), [&](int64_t b, int worker) {
        std::vector<double>& cosine = cosines[static_cast<size_t>(worker)];
        cosine.resize(static_cast<size_t>(block) * n);
        const int64_t first = b * block;
        const int64_t rows = std::min(block, n_ - first);
        multiply(cosine.data(), out.data() + first * d_, out_transposed.data(), rows, d_, n_);
        for (int64_t row = 0; row < rows; ++row) {
            const double* gram = gram_.data() + (first + row) * n_;
            const double* c = cosine.data() + row * n_;
            double sum = 0;
            for (int64_t j = first + row + 1; j < n_; ++j) sum += (1 - c[j]) / (1 - gram[j]);
            row_ratio[static_cast<size_t>(first + row)] = sum;
        }
    });
    double sum = 0;
    for (const double ratio : row_ratio) sum += ratio;
    return sum * (2 / (static_cast<double>(n_) * static_cast<double>(n_ - 1)));
}

double simplex_angle_ratio(double n, double rho, double gamma) {
    // Own weight p, weight w = p n^(-gamma (1 - rho)) on each other token.
    const double u = std::exp(-gamma * (1 - rho) * std::log(n));
    const double p = 1 / (1 + (n - 1) * u), w = p * u, c = p - w, sum = 1 + (n - 1) * rho;
    // 1 - rho' = c^2 (1 - rho) / |x'|^2
    return c * c / (c * c + 2 * c * w * sum + w * w * n * sum);
}

double simplex_angle_ratio_limit(double rho, double gamma) {
    const int side = side_of_critical(rho, gamma);
    return side < 0 ? 0 : side > 0 ? 1 : 1 / (1 + 3 * rho);
}

double simplex_gradient_norm_limit(double d, double rho, double gamma) {
    const int side = side_of_critical(rho, gamma);
    return (side < 0 ? 0 : side > 0 ? 1 : 0.25) * (1 - 1 / d);
}

PhaseDiagram phase_diagram(int64_t n, int64_t d, int64_t cells, double gamma_max, uint64_t seed,
                           const std::function<void(int64_t)>& progress) {
    PhaseDiagram diagram{n, d, cells, gamma_max, {}, {}};
    diagram.angle_ratio.resize(static_cast<size_t>(cells * cells));
    diagram.gradient_norm.resize(diagram.angle_ratio.size());
    const double log_n = std::log(static_cast<double>(n));
    for (int64_t column = 0; column < cells; ++column) {
        const PhaseModel model(overlapping_tokens(n, d, diagram.rho(column), seed));
        for (int64_t row = 0; row < cells; ++row) {
            const PhasePoint point = model.at(diagram.gamma(row) * log_n);
            diagram.angle_ratio[static_cast<size_t>(row * cells + column)] = point.angle_ratio;
            diagram.gradient_norm[static_cast<size_t>(row * cells + column)] = point.gradient_norm;
        }
        if (progress) progress(column + 1);
    }
    return diagram;
}

double transition(const PhaseDiagram& diagram, const std::vector<double>& values) {
    double sum = 0;
    int64_t columns = 0;
    for (int64_t column = 0; column < diagram.cells; ++column)
        for (int64_t row = 0; row + 1 < diagram.cells; ++row) {
            const double here = values[static_cast<size_t>(row * diagram.cells + column)],
                         next = values[static_cast<size_t>((row + 1) * diagram.cells + column)];
            if (here >= 0.5 || next < 0.5) continue;
            const double share = (0.5 - here) / (next - here);
            const double gamma = diagram.gamma(row) + share * (diagram.gamma(row + 1) - diagram.gamma(row));
            sum += gamma * (1 - diagram.rho(column));
            ++columns;
            break;
        }
    return sum / static_cast<double>(columns);
}

}  // namespace longreach::theory
