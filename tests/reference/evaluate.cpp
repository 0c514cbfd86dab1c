#include "reference/evaluate.h"

#include <algorithm>

#include "reference/model.h"

namespace longreach::reference {

namespace {
double weight_of(const Example& example, size_t token) {
    return example.loss_weights.empty() ? 1 : double{example.loss_weights[token]};
}
}  // namespace

std::vector<double> losses(const model::ModelConfig& config, const Params<double>& params,
                           const Example& example, const PostHoc& change) {
    return Model<double>(config, params, change).losses(example);
}

Rows<double> logits(const model::ModelConfig& config, const Params<double>& params,
                    const std::vector<int32_t>& tokens, const std::vector<int32_t>& doc_start) {
    return Model<double>(config, params).logits(tokens, doc_start);
}

double score_size(const model::ModelConfig& config, const Params<double>& params,
                  const std::vector<int32_t>& tokens, const std::vector<int32_t>& doc_start) {
    return Model<double>(config, params).score_size(tokens, doc_start);
}

template <class Real>
std::vector<std::vector<double>> token_derivatives(const model::ModelConfig& config,
                                                   const Params<double>& params, const Example& example,
                                                   const std::vector<Coordinate>& coordinates) {
    constexpr int lanes = 16;
    using Number = Dual<Real, lanes>;
    Params<Number> numbers;
    for (const auto& [name, values] : params) numbers[name].assign(values.begin(), values.end());
    std::vector<std::vector<double>> out;
    for (size_t begin = 0; begin < coordinates.size(); begin += lanes) {
        const size_t n = std::min<size_t>(lanes, coordinates.size() - begin);
        const auto seed = [&](Real value) {
            for (size_t i = 0; i < n; ++i)
                numbers.at(coordinates[begin + i].name).at(coordinates[begin + i].index).slope[i] = value;
        };
        seed(1);
        const std::vector<Number> losses = Model<Number>(config, numbers).losses(example);
        seed(0);
        for (size_t i = 0; i < n; ++i) {
            out.emplace_back();
            for (size_t token = 0; token < losses.size(); ++token)
                out.back().push_back(weight_of(example, token) * double{losses[token].slope[i]});
        }
    }
    return out;
}
template std::vector<std::vector<double>> token_derivatives<double>(const model::ModelConfig&,
                                                                    const Params<double>&, const Example&,
                                                                    const std::vector<Coordinate>&);
template std::vector<std::vector<double>> token_derivatives<float>(const model::ModelConfig&,
                                                                   const Params<double>&, const Example&,
                                                                   const std::vector<Coordinate>&);

Directional directional_derivative(const model::ModelConfig& config, const Params<double>& params,
                                   const Params<double>& direction, const Example& example) {
    using Number = Dual<double, 1>;
    Params<Number> numbers;
    for (const auto& [name, values] : params) {
        std::vector<Number>& to = numbers[name];
        to.assign(values.begin(), values.end());
        for (size_t i = 0; i < to.size(); ++i) to[i].slope[0] = direction.at(name)[i];
    }
    Directional result;
    for (const Number& loss : Model<Number>(config, numbers).losses(example)) {
        result.losses.push_back(loss.value);
        result.slopes.push_back(weight_of(example, result.slopes.size()) * loss.slope[0]);
    }
    return result;
}

}  // namespace longreach::reference
