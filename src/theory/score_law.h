// Softmax over n independent scores of one distribution:
// expectations of smooth functions of the weights, as integrals.
//
// Weights are w = x / sum x with x = exp(alpha z). The method is 1/S = int_0^inf
// e^(-s S) ds, under which the n scores separate: E e^(-s S) = E[e^(-s x)]^n.
#pragma once

#include <vector>

namespace longreach::theory {

// A distribution of scores with mean 0 as nodes and their probabilities.
// `finest` is the largest alpha for which the nodes are dense enough.
struct ScoreLaw {
    std::vector<double> at, probability;  // at rises
    double finest = 0;
};

ScoreLaw gaussian_law(double finest_alpha);
// z = sqrt(d) cos(q, k), directions uniform on the sphere in d >= 2 dimensions.
ScoreLaw cosine_law(int head_dim, double finest_alpha);

double expected_participation(const ScoreLaw& law, double n, double alpha);  // E[sum w^2]
double expected_entropy(const ScoreLaw& law, double n, double alpha);        // E[-sum w log w], nats

}  // namespace longreach::theory
