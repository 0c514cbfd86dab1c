// One attention layer over n overlapping tokens: does it
// pull them together, and does gradient pass through it?
//
// Query, key and value are the tokens on the sphere, y_i = x_i / |x_i|; no mask, no residual stream:
//   A_ij = softmax_j(beta <y_i, y_j>),  x'_i = sum_j A_ij y_j,  y'_i = x'_i / |x'_i|,  beta = gamma log n.
// Tokens with mutual cosine rho collapse for gamma below 1 / (1 - rho) and stay unchanged above
// it: the weight n^gamma of the token itself competes with n n^(rho gamma) of the others.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace longreach::theory {

struct PhasePoint {
    // Mean over pairs of (1 - <y'_i, y'_j>) / (1 - <y_i, y_j>): 0 collapsed, 1 unchanged.
    double angle_ratio = 0;
    // |dX'/dX|_F^2 / (n d), of the unnormalised tokens.
    double gradient_norm = 0;
};

// Row-major [n, d].
struct Tokens {
    int64_t n = 0, d = 0;
    std::vector<double> x;
};

// x_i = sqrt(rho) z_0 / |z_0| + sqrt(1 - rho) z_i with z ~ N(0, I / d): |x_i|^2 = 1 and <x_i, x_j> = rho on
// average. z does not depend on rho.
Tokens overlapping_tokens(int64_t n, int64_t d, double rho, uint64_t seed);

double critical_gamma(double rho);  // 1 / (1 - rho)

// Exact, in O(n^3) from the inner products of the tokens.
class PhaseModel {
  public:
    explicit PhaseModel(const Tokens& tokens);
    PhasePoint at(double beta) const;
    double inner_product(int64_t i, int64_t j) const { return gram_[static_cast<size_t>(i * n_ + j)]; }

  private:
    // For one token i, in the notation of at(): a_j, g_j, sum_k a_k G_jk^2 [n]; x'_i, sum_j a_j G_ij y_j [d].
    struct Row {
        const double *weights, *overlap, *squares, *mean, *moved;
    };
    // Sum over m of the squared norms of dx'_i / dx_m.
    double gradient_norm(int64_t i, double beta, const Row& row) const;
    // For the tokens x' [n, d], the mean over pairs of (1 - cosine after) / (1 - cosine before).
    double angle_ratio(std::vector<double> out) const;

    int64_t n_, d_;
    std::vector<double> y_, y_transposed_;    // [n, d], [d, n]
    std::vector<double> length2_;             // |x_i|^2
    std::vector<double> gram_, gram_square_;  // <y_i, y_j>, <y_i, y_j>^2
};

// angle_ratio for |x_i| = 1 and <y_i, y_j> = rho exactly for all i != j, and its limit for n -> infinity.
double simplex_angle_ratio(double n, double rho, double gamma);
double simplex_angle_ratio_limit(double rho, double gamma);
double simplex_gradient_norm_limit(double d, double rho, double gamma);

// Values at the centres of the cells of 0 < rho < 1, 0 < gamma < gamma_max; row-major [gamma, rho].
struct PhaseDiagram {
    int64_t n = 0, d = 0, cells = 0;
    double gamma_max = 0;
    std::vector<double> angle_ratio, gradient_norm;
    double rho(int64_t column) const {
        return (static_cast<double>(column) + 0.5) / static_cast<double>(cells);
    }
    double gamma(int64_t row) const {
        return gamma_max * (static_cast<double>(row) + 0.5) / static_cast<double>(cells);
    }
};

// Calls progress(done) after each column of cells.
PhaseDiagram phase_diagram(int64_t n, int64_t d, int64_t cells, double gamma_max, uint64_t seed,
                           const std::function<void(int64_t)>& progress);

// Where the values pass 1/2, as gamma (1 - rho): 1 at the critical gamma. Interpolated between rows, the mean over the
// columns that pass it; NaN if none does.
double transition(const PhaseDiagram& diagram, const std::vector<double>& values);

}  // namespace longreach::theory
