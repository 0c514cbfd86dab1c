// The scale at which softmax passes the most gradient: the maximum of alpha (1
// - sum w^2), with sum w^2 replaced by E[x^2] / (n E[x]^2), x = exp(alpha z).
//
// The replacement is valid while many keys share the weight. With the true
// E[sum w^2] there is no such maximum: above sqrt(2 log n) it tends to 1 -
// 1/r, and alpha (1 - E[sum w^2]) keeps rising towards sqrt(2 log n).
#pragma once

namespace longreach::theory {

// Scores N(0, 1): e^(alpha^2) (1 + 2 alpha^2) = n.
double gaussian_gradient_scale(double n);
// For cosines in d dimensions; the result multiplies the cosine itself (alpha sqrt(d)).
double cosine_gradient_scale(int head_dim, double n);

// alpha (1 - E[sum w^2]), exact, for normal scores.
double gaussian_gradient(double n, double alpha);

}  // namespace longreach::theory
