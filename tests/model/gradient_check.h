// Compares Transformer::forward_backward with the scalar reference: every loss, and the gradient of every
// tensor.
//
// The bound. u = 2^-24 is half an ulp of f32. A number on its way to a gradient passes through D operations,
// forward and back. Each hands on the relative errors of its inputs with a condition number of about one
// (norms, softmax over scores of order one, smooth activations) and adds its own: a sum of K products, in
// whatever order, errs by sqrt(K) u times the size of its terms, since roundings have random signs (a bound
// of K u holds for certain and is far too wide). Added up without hoping for cancellation between operations:
//
//     |gradient - reference| <= epsilon * S,     epsilon = D sqrt(K) u
//     D = 2 (20 L + 8): per layer two mixes, two norms, four products, value mix, query/key norm, rotary,
//     scores,
//         distance, softmax (3), weighted sum, activation (2), two residual additions; around the layers
//         embedding, its norm, final norm, head, softcap (2), log-sum-exp, loss; twice, for there and back
//     K = the longest sum: channels, hidden units, vocabulary, or tokens of the batch
//
// S is the size of what is summed, not the sum, which may cancel. A gradient is a sum over tokens n of
// d loss_n / d theta, and a mixing weight's a sum over channels as well, where whatever is normed later
// cancels almost wholly (<dx, x> = 0 where only the direction of x matters): S is the root of the sum of the
// squares of those parts, the largest over the tensor's compared coordinates. Queries and keys get theirs
// through P_ij (dP_ij - Delta_i), differences of numbers as large as those that the values' gradient is made
// of, which are almost zero where a query sees few keys: their S is at least that of the layer's values. A
// test in gradient_test.cpp holds the reference itself, evaluated in f32, to the same bound.
//
// Losses: an error epsilon / 2 (one way) of logits of size Y moves log-sum-exp and target by that much each:
// epsilon (1 + Y) (1 + 2 z_loss |LSE|).
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "model/fixture.h"
#include "reference/derivative.h"

namespace longreach::test {

inline double gradient_epsilon(const ModelConfig& m, int64_t tokens, double unit = 0x1p-24) {
    int64_t longest = std::max({m.width, m.mlp_hidden(), m.vocab_size, tokens});
    for (int64_t l = 0; l < m.layers; ++l)
        longest = std::max(longest, m.layer_attention(l).heads * m.layer_attention(l).head_dim);
    const double steps = 2 * (20 * static_cast<double>(m.layers) + 8);
    return steps * std::sqrt(static_cast<double>(longest)) * unit;
}

// What the reference says about one example: computed once, compared with many devices.
class Expected {
  public:
    Expected(const ModelConfig& config, const ParamTable& table, const reference::Params<double>& weights,
             const Example& example, int64_t coordinates_per_tensor, uint32_t stream = 0)
        : config_(config), example_(example) {
        const Rng rng(7, Purpose::test, stream);
        uint64_t drawn = 0;
        for (const Param& p : table.params()) {
            const int64_t n = p.count();
            for (int64_t i = 0; i < n; ++i)
                direction_[p.name].push_back(rng.uniform(drawn++) < 0.5 ? -1.0 : 1.0);
            if (is_mix(p.name)) {
                coordinates_.push_back({p.name, 0});
                continue;
            }
            const bool all = n <= coordinates_per_tensor;
            for (int64_t i = 0; i < std::min(n, coordinates_per_tensor); ++i)
                coordinates_.push_back(
                    {p.name, all ? static_cast<size_t>(i) : rng.below(drawn++, static_cast<uint64_t>(n))});
        }
        differentiate(weights);
        along_ = reference::directional_derivative(config, weights, direction_, example);

        const reference::Model<double> model(config, weights);
        for (int64_t b = 0; b < example.sequences; ++b) {
            const Example one = sequences_of(example, b, 1);
            for (const auto& row : model.logits(one.tokens, one.doc_start))
                for (double y : row) largest_logit_ = std::max(largest_logit_, std::abs(y));
        }
        epsilon_ = gradient_epsilon(config, example.sequences * example.length);
    }

    // Root of the summed squares of the parts of each tensor's gradient.
    const std::map<std::string, double>& parts() const { return parts_; }
    // S above.
    double size(const std::string& name) const {
        const double own = parts_.at(name);
        for (const char* end : {"q.weight", "k.weight"})
            if (name.ends_with(std::string("attention.") + end))
                return std::max(own, parts_.at(name.substr(0, name.size() - 8) + "v.weight"));
        return own;
    }
    double epsilon() const { return epsilon_; }
    const std::vector<reference::Coordinate>& coordinates() const { return coordinates_; }

    double gradient(size_t coordinate) const { return gradients_[coordinate]; }

    // Checks losses and gradients (of the plain sum of the losses); returns the largest error over its bound.
    double compare(ModelFixture& fixture, ModelFixture::Step& step) const {
        double worst = 0;
        // One line per tensor that is off: its worst coordinate.
        struct Miss {
            double ratio = 0, actual = 0, expected = 0;
            std::string where;
        };
        std::map<std::string, Miss> misses;
        const auto hold = [&](const std::string& group, const std::string& where, double actual,
                              double expected, double bound) {
            const double error = std::abs(actual - expected);
            const bool held = error <= bound;  // false for NaN
            const double ratio = error == 0 ? 0 : std::isfinite(error / bound) ? error / bound : 1e30;
            worst = std::max(worst, ratio);
            if (!held && ratio >= misses[group].ratio) misses[group] = {ratio, actual, expected, where};
        };
        const double lse = largest_logit_ + std::log(static_cast<double>(config_.vocab_size));
        const double loss_bound =
            epsilon_ * (1 + largest_logit_) * (1 + 2 * config_.head.z_loss * std::abs(lse));
        for (size_t n = 0; n < along_.losses.size(); ++n)
            hold("losses", fmt::format("{}", n), step.losses[n], along_.losses[n],
                 example_.targets[n] < 0 ? 0 : loss_bound);

        for (size_t i = 0; i < coordinates_.size(); ++i) {
            const auto& [name, index] = coordinates_[i];
            hold(name, fmt::format("{}", index), fixture.values(step.gradients, name)[index], gradient(i),
                 epsilon_ * size(name));
        }

        // Along a direction of signs the errors of all coordinates add with those signs, which they know
        // nothing of: at most four standard deviations.
        double actual = 0, expected = 0, variance = 0;
        for (const Param& p : fixture.params().params()) {
            const auto gradient = fixture.values(step.gradients, p.name);
            for (size_t i = 0; i < gradient.size(); ++i)
                actual += direction_.at(p.name)[i] * static_cast<double>(gradient[i]);
            variance += static_cast<double>(p.count()) * size(p.name) * size(p.name);
        }
        for (double s : along_.slopes) expected += s;
        hold("along a direction", "all", actual, expected, 4 * epsilon_ * std::sqrt(variance));
        std::string report;
        for (const auto& [group, miss] : misses)
            report += fmt::format("{} at {}: {} for {}, {:.3g} bounds off\n", group, miss.where, miss.actual,
                                  miss.expected, miss.ratio);
        CHECK(report == "");
        return worst;
    }

  private:
    static bool is_mix(const std::string& name) { return name.ends_with("_mix"); }

    // Gradients and sizes of all coordinates. Mixing weights are given to the reference as one per channel,
    // to see the parts of their gradient.
    void differentiate(reference::Params<double> weights) {
        std::vector<reference::Coordinate> parts;
        for (const auto& [name, index] : coordinates_) {
            if (!is_mix(name)) {
                parts.push_back({name, index});
                continue;
            }
            const AttentionConfig& first = config_.layer_attention(0);
            const int64_t channels =
                name.ends_with("value_mix") ? first.kv() * first.head_dim : config_.width;
            weights.at(name).assign(static_cast<size_t>(channels), weights.at(name)[0]);
            for (size_t c = 0; c < static_cast<size_t>(channels); ++c) parts.push_back({name, c});
        }
        const auto slopes = reference::token_derivatives(config_, weights, example_, parts);
        gradients_.assign(coordinates_.size(), 0);
        for (size_t i = 0, part = 0; i < coordinates_.size(); ++i) {
            const std::string& name = coordinates_[i].name;
            const size_t count = is_mix(name) ? weights.at(name).size() : 1;
            double squares = 0;
            for (const size_t end = part + count; part < end; ++part)
                for (double s : slopes[part]) {
                    gradients_[i] += s;
                    squares += s * s;
                }
            parts_[name] = std::max(parts_[name], std::sqrt(squares));
        }
    }

    ModelConfig config_;
    Example example_;
    std::vector<reference::Coordinate> coordinates_;
    std::vector<double> gradients_;  // per coordinate
    std::map<std::string, double> parts_;
    reference::Params<double> direction_;
    reference::Directional along_;
    double largest_logit_ = 0, epsilon_ = 0;
};

// The instruction sets of this machine.
inline std::vector<std::string> available_isas() {
    std::vector<std::string> found;
    for (const char* isa : {"", "avx2", "generic"}) {
        try {
            make_cpu_ops({.threads = 1, .isa = isa});
            found.push_back(isa);
        } catch (const Error& error) {
            if (error.code() != ExitCode::device) throw;
        }
    }
    return found;
}

}  // namespace longreach::test
