// What tests ask of the reference model, compiled once: the model is a template of the number it computes with, and a
// minute of the compiler's time.
//
// Derivatives of the losses are exact: along parameters one at a time, or along a direction through all.
#pragma once

#include <string>
#include <vector>

#include "reference/inputs.h"

namespace longreach::reference {

// One loss per token; 0 where the target is -1.
std::vector<double> losses(const model::ModelConfig& config, const Params<double>& params,
                           const Example& example, const PostHoc& change = {});
// Logits of one sequence after the softcap, [positions][V].
Rows<double> logits(const model::ModelConfig& config, const Params<double>& params,
                    const std::vector<int32_t>& tokens, const std::vector<int32_t>& doc_start);
// Root mean square of the scores, biases apart, of the layer where it is largest.
double score_size(const model::ModelConfig& config, const Params<double>& params,
                  const std::vector<int32_t>& tokens, const std::vector<int32_t>& doc_start);

struct Coordinate {
    std::string name;
    size_t index = 0;
};
// d (weight_n loss_n) / d coordinate for every coordinate, then every token n, computed in Real: double or float.
template <class Real = double>
std::vector<std::vector<double>> token_derivatives(const model::ModelConfig& config,
                                                   const Params<double>& params, const Example& example,
                                                   const std::vector<Coordinate>& coordinates);

// Losses per token, and the derivatives of weight times loss along `direction`.
struct Directional {
    std::vector<double> losses, slopes;
};
Directional directional_derivative(const model::ModelConfig& config, const Params<double>& params,
                                   const Params<double>& direction, const Example& example);

}  // namespace longreach::reference
