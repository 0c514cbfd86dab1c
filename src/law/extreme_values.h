// Softmax over n independent random scores: how large its largest weight is, in exact integrals.
//
// Weights are proportional to exp(alpha z). 1 / (largest weight) says over how many keys attention spreads
// when the largest one sets the scale; the participation ratio sum w^2 is the inverse of another such count.
// Every n > 1 is accepted, whole or not.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace longreach::law {

double expected_largest_normal(double n);  // E[max] of n independent N(0, 1), n >= 1

// Scores z ~ N(0, 1).
double gaussian_inverse_largest_weight(double n, double alpha);  // E[1 / w_max]: n at alpha = 0, falls to 1
double gaussian_participation_ratio(double n, double alpha);     // E[sum w^2]: 1/n at alpha = 0, rises to 1
// alpha with E[1 / w_max] = target > 1; 0 where n <= target leaves no solution.
double solve_gaussian_scale(double n, double target);

// Scores z = sqrt(d) cos(q, k) for directions uniform on the sphere in d >= 2 dimensions.
class CosineScores {
  public:
    explicit CosineScores(int64_t head_dim, int64_t intervals = 20000);
    double inverse_largest_weight(double n, double alpha) const;
    double solve_scale(double n, double target) const;

  private:
    // By node, cosines ascending from -1 to 1: cosine, probability per unit of the grid parameter,
    // log P(cos < this one).
    std::vector<double> cosine_, density_, log_below_;
    double step_, root_dim_;
};

// Entry n-1 is solve(n) for n = 1 .. count, where `solve` is 0 up to n = target and smooth beyond: exact up
// to n = 64 and to the first n beyond target, then exact on a geometric grid with linear interpolation in
// log n between.
std::vector<double> solved_table(int64_t count, double target, const std::function<double(double)>& solve);

}  // namespace longreach::law
