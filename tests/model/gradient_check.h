// Compares Transformer::forward_backward with the scalar reference: every loss, and the
// gradient of every tensor.
//
// The bound. u = 2^-24 is half an ulp of f32. A number passes through D operations, forward and backward,
// before it reaches a gradient. Each operation passes on the relative errors of its inputs with a condition
// number of about one (norms, smooth activations) and adds its own error: a sum of K products, in any order,
// has an error of sqrt(K) u times the size of its terms, since roundings have random signs (a bound of K u is
// certain but far too wide). A softmax turns absolute errors of scores into relative errors of its weights:
// its condition number is Z, the size of the scores (root mean square in the layer where it is largest, at
// least one; biases by distance are exact to u and left out). A layer of the delta rule norms what it reads from
// its state: its Z is the size of the state over that of what is read, again as root mean square. Differences of two
// heads multiply Z by the size of the heads over that of the difference, likewise token by token: a norm after them makes a
// small difference as large as others. Without other cancellation between operations, the errors add up to:
//
//     |gradient - reference| <= epsilon * S,     epsilon = D sqrt(K) u Z
//     D = 2 (20 L + 8 + extras), L counted in every pass through the layers: per layer two mixes, two norms,
//         four products, value mix, query/key norm, rotary, scores, distance, softmax (3), weighted sum,
//         activation (2), two residual additions; around the layers embedding, its norm, final norm, head,
//         softcap (2), log-sum-exp, loss; twice, for the forward and the backward pass. Extras are operations
//         beyond these: see extra_steps
//     K = the longest sum: channels, hidden units, vocabulary, or tokens of the batch
//
// S is the size of the summands, not of their sum, which may cancel: the root of the sum of the squares of
// the parts of a gradient, and of these the largest over the compared coordinates of the tensor. The parts:
//   - the tokens: one for every loss;
//   - for one number that acts on many channels (mixing weights, the gates and sinks of a head), the
//     channels: if the scaled value is normed later, they cancel almost completely, since <dx, x> = 0 if
//     only the direction of x matters;
//   - for parameters that determine scores (queries, keys, their norms and convolutions), the numerators and
//     the denominator of the softmax: its gradient is P_ij (dP_ij - Delta_i), a difference that is almost zero
//     if a query sees few keys, or similar keys.
// A constant added to all keys of a query does not change its softmax, and if the output is normed, the
// numerator alone has no effect either (<do, o> = 0). Biases of key norms, and of the key of a gated attention
// unit, therefore have at least the S of the gains: both are sums of the same numbers, which gains weight with
// what they multiply, normed keys of size one or a z below one. Tests hold the reference itself, evaluated in
// f32, to the same bound.
//
// Losses: an error epsilon / 2 (forward only) of logits of size Y changes log-sum-exp and target by as much:
// epsilon (1 + Y) (1 + 2 z_loss |LSE|).
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "mixers/latent.h"
#include "model/fixture.h"
#include "model/laws_of_configs.h"
#include "reference/evaluate.h"
#include "reference/mixers.h"
#include "reference/scores.h"

namespace longreach::test {

// Of the laws of a score: no more than the 8 of any formula, which are a few by row and as many by distance.
inline int64_t law_steps(const model::AttentionConfig& a) {
    const auto learned = [&](const char* name) {
        const auto it = a.params.find(name);
        return it != a.params.end() && it->second.learn != model::Learning::by_law &&
               it->second.learn != model::Learning::no;
    };
    int64_t steps = 0;
    for (const std::string& law : reference::laws_of(a)) {
        const bool by_distance =
            std::find(distance_laws.begin(), distance_laws.end(), law) != distance_laws.end();
        if (reference::token_law(law) != nullptr && law != "adaptive_logn")
            continue;     // the terms have their own
        if (by_distance)  // if it learns: tau, division, logarithm, product or root
            steps += learned("tau") || learned("c") || law.starts_with("kerple") ? 4 : 0;
        else if (law::find_law(law) != nullptr || law == "z * r" || law.find("*tanh(z/") != law.npos)
            steps += 2;  // r shape + b and the product with it; division and tanh of a softcap
        else
            steps += 8;
    }
    return std::min<int64_t>(steps, 8);
}

// Consecutive operations of a layer beyond the twenty that are counted for every layer.
inline int64_t extra_steps(const model::ModelConfig& m, const model::AttentionConfig& a) {
    int64_t steps = 0;
    const bool peri =
        m.norm.placement == model::NormPlacement::peri || m.norm.placement == model::NormPlacement::after;
    if (a.post_norm || peri) steps += 2;  // norm, gain
    if (peri) steps += 2;
    if (m.mlp.bias) steps += 2;
    if (m.positions > 0) ++steps;
    if (!a.attends()) return steps + reference::mixer_steps(a);
    // Silu (2), gain, bias and the sum over the heads' copies; product, silu and product of the gate (4); without the
    // norm, the two products, the activation (2) and the residual addition of an MLP.
    if (a.mixer == "gau") steps += 9 - 6;
    if (a.conv.size > 0) ++steps;
    const model::LatentConfig latent = a.own<model::LatentConfig>();
    if (latent) steps += latent.queries > 0 ? 6 : 3;  // a product, a norm, its gain
    switch (a.qk.kind) {
        case model::QkKind::kna_w:
        case model::QkKind::qk_rms_w:
        case model::QkKind::qk_rms_full:
        case model::QkKind::qk_ln:
            steps += 1;  // gain
            break;
        case model::QkKind::qkv_rms_w:
        case model::QkKind::qkv_ln:
            steps += 3;  // gain, and norm and gain of the values
            break;
        default:
            break;
    }
    steps += law_steps(a);
    if (a.sink != model::SinkKind::none) ++steps;
    if (a.differential) steps += 4;  // product, sigmoid, product with it, difference
    if (a.output_norm.kind == model::OutputNorm::exclusive)
        steps += 5;  // two dot products, quotient, product, difference
    else if (a.output_norm.kind != model::OutputNorm::none)
        steps += a.output_norm.gain ? 2 : 1;
    steps += 5 * static_cast<int64_t>(
                     reference::terms_of(a).size());  // product, bias, log sigmoid, sum, difference
    // Product, bias, two functions, sum; three exponentials, and products with them.
    steps += 11 * static_cast<int64_t>(reference::fading_of(a).size());
    // Product, bias, two functions, sum; angle, cosine or sine, product with it.
    steps += 8 * static_cast<int64_t>(reference::written_terms(a, true).size());
    if (a.normaliser != model::Normaliser::softmax)
        steps += 3;  // logarithms, running sums of keys and gradients; of entmax theta and two sums
    if (a.gate.kind != model::GateKind::none) steps += 3;  // product, sigmoid, product with it
    if (a.bias != model::AttentionBias::none) steps += 2;
    if (m.residual.value_embeddings > 0) ++steps;
    return steps;
}

inline double gradient_epsilon(const model::ModelConfig& m, int64_t tokens, double unit = 0x1p-24) {
    int64_t longest = std::max({m.width, m.mlp_hidden(), m.vocab_size, tokens});
    int64_t steps = 20 * m.loops * m.layers + 8;
    for (int64_t i = 0; i < m.loops * m.layers; ++i) {
        const model::AttentionConfig& a = m.layer_attention(i % m.layers);
        const model::LatentConfig latent = a.own<model::LatentConfig>();
        longest = std::max({longest, a.heads * a.head_dim, latent.width, latent.queries});
        if (!a.attends()) longest = std::max(longest, reference::mixer_terms(a, tokens));
        steps += extra_steps(m, a);
    }
    if (m.residual.smear) steps += 3;  // product, sigmoid, sum
    if (m.residual.backout >= 0) ++steps;
    return 2 * static_cast<double>(steps) * std::sqrt(static_cast<double>(longest)) * unit;
}

// The results of the reference for one example: computed once, compared with many devices.
class Expected {
  public:
    Expected(const model::ModelConfig& config, const reference::Params<double>& weights,
             const Example& example, int64_t coordinates_per_tensor, uint32_t stream = 0)
        : config_(config), example_(example) {
        const Rng rng(7, Purpose::test, stream);
        uint64_t drawn = 0;
        for (const auto& [name, values] : weights) {
            const int64_t n = static_cast<int64_t>(values.size());
            for (int64_t i = 0; i < n; ++i)
                direction_[name].push_back(rng.uniform(drawn++) < 0.5 ? -1.0 : 1.0);
            const bool all = n <= coordinates_per_tensor;
            for (int64_t i = 0; i < std::min(n, coordinates_per_tensor); ++i)
                coordinates_.push_back(
                    {name, all ? static_cast<size_t>(i) : rng.below(drawn++, static_cast<uint64_t>(n))});
        }
        differentiate(weights);
        along_ = reference::directional_derivative(config_, weights, direction_, example);

        for (int64_t b = 0; b < example.sequences; ++b) {
            const Example one = sequences_of(example, b, 1);
            for (const auto& row : reference::logits(config_, weights, one.tokens, one.doc_start))
                for (double y : row) largest_logit_ = std::max(largest_logit_, std::abs(y));
            score_size_ =
                std::max(score_size_, reference::score_size(config_, weights, one.tokens, one.doc_start));
        }
        epsilon_ = gradient_epsilon(config, example.sequences * example.length) * score_size_;
    }

    // The root of the summed squares of the parts of each tensor's gradient.
    const std::map<std::string, double>& parts() const { return parts_; }
    // The S of the bound above.
    double size(const std::string& name) const {
        const double own = parts_.at(name);
        const bool of_key = name.ends_with("k_norm.bias") ||
                            (name.ends_with("attention.k.bias") && attention_of(name).mixer == "gau");
        if (!of_key) return own;
        return std::max(own, parts_.at(name.substr(0, name.size() - 4) + "gain"));
    }
    double epsilon() const { return epsilon_; }
    double loss_bound() const {
        const double lse = largest_logit_ + std::log(static_cast<double>(config_.vocab_size));
        return epsilon_ * (1 + largest_logit_) * (1 + 2 * config_.head.z_loss * std::abs(lse));
    }
    const std::vector<reference::Coordinate>& coordinates() const { return coordinates_; }

    double gradient(size_t coordinate) const { return gradients_[coordinate]; }

    // Checks losses and gradients (of the plain sum of the losses). Returns the largest error divided by
    // its bound.
    double compare(ModelFixture& fixture, ModelFixture::Step& step) const {
        double worst = 0;
        // The worst coordinate of each tensor that exceeds its bound.
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
        for (size_t n = 0; n < along_.losses.size(); ++n)
            hold("losses", fmt::format("{}", n), step.losses[n], along_.losses[n],
                 example_.targets[n] < 0 ? 0 : loss_bound());

        for (size_t i = 0; i < coordinates_.size(); ++i) {
            const auto& [name, index] = coordinates_[i];
            hold(name, fmt::format("{}", index), fixture.values(step.gradients, name)[index], gradient(i),
                 epsilon_ * size(name));
        }

        // Along a direction of random signs, the errors of all coordinates add with those signs, of which
        // they are independent: at most four standard deviations.
        double actual = 0, expected = 0, variance = 0;
        for (const model::Param& p : fixture.params().params()) {
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
    // The layer a parameter belongs to.
    const model::AttentionConfig& attention_of(const std::string& name) const {
        const std::string prefix = "layers.";
        if (!name.starts_with(prefix)) return config_.layer_attention(0);
        return config_.layer_attention(std::stoll(name.substr(prefix.size())));
    }
    static bool decides_scores(const std::string& name) {
        for (const char* part : {"attention.q.", "attention.k.", "simplicial.q.", "simplicial.k.",
                                 "simplicial.k2.", "attention.z.", "q_norm.", "k_norm.", "q_conv.", "k_conv.",
                                 "terms.", "q_down", "q_up.", "kv_down", "k_up.", "k_shared."})
            if (name.find(part) != std::string::npos) return true;
        return false;
    }
    // Into how many numbers one number of a tensor is split, so that each acts on one channel.
    size_t channels_of(const std::string& name) const {
        const model::AttentionConfig& a = attention_of(name);
        if (name.ends_with("value_mix") || name.ends_with("value_embedding_mix"))
            return static_cast<size_t>(a.kv() * a.head_dim);
        if (name.ends_with("_mix")) return static_cast<size_t>(config_.width);
        const bool head_gate =
            a.gate.kind == model::GateKind::headwise || a.gate.kind == model::GateKind::sparse;
        if (name.ends_with("attention.sink") || name.ends_with("attention.difference.weight") ||
            (name.ends_with("attention.gate.weight") && head_gate))
            return static_cast<size_t>(a.head_dim);
        return 1;
    }

    // Computes gradients and sizes of all coordinates, with a model whose parameters are the parts.
    void differentiate(const reference::Params<double>& weights) {
        reference::Params<double> parts = weights;
        for (const auto& [name, values] : weights) {
            if (decides_scores(name)) parts[name + reference::denominator_mark] = values;
            const size_t channels = channels_of(name);
            if (channels == 1) continue;
            // Each row of a gate's matrix (each sink, the only entry of a mix) once per channel.
            const size_t row = row_length(name);
            std::vector<double>& many = parts.at(name);
            many.clear();
            for (size_t begin = 0; begin < values.size(); begin += row)
                for (size_t c = 0; c < channels; ++c)
                    for (size_t i = begin; i < begin + row; ++i) many.push_back(values[i]);
        }
        std::vector<reference::Coordinate> all;
        std::vector<size_t> ends;
        for (const auto& [name, index] : coordinates_) {
            const size_t row = row_length(name), channels = channels_of(name);
            for (size_t c = 0; c < channels; ++c)
                all.push_back({name, (index / row * channels + c) * row + index % row});
            if (decides_scores(name)) all.push_back({name + reference::denominator_mark, index});
            ends.push_back(all.size());
        }
        const auto slopes = reference::token_derivatives(config_, parts, example_, all);
        gradients_.assign(coordinates_.size(), 0);
        for (size_t i = 0, part = 0; i < coordinates_.size(); ++i) {
            double squares = 0;
            for (; part < ends[i]; ++part)
                for (double s : slopes[part]) {
                    gradients_[i] += s;
                    squares += s * s;
                }
            double& largest = parts_[coordinates_[i].name];
            largest = std::max(largest, std::sqrt(squares));
        }
    }
    // Row length of a tensor that is split by channel.
    size_t row_length(const std::string& name) const {
        if (name.ends_with("attention.difference.weight")) return static_cast<size_t>(config_.width);
        if (!name.ends_with("attention.gate.weight")) return 1;
        const bool sparse = attention_of(name).gate.kind == model::GateKind::sparse;
        return static_cast<size_t>(sparse ? model::sparse_gate_channels : config_.width);
    }

    model::ModelConfig config_;
    Example example_;
    std::vector<reference::Coordinate> coordinates_;
    std::vector<double> gradients_;  // per coordinate
    std::map<std::string, double> parts_;
    reference::Params<double> direction_;
    reference::Directional along_;
    double largest_logit_ = 0, score_size_ = 1, epsilon_ = 0;
};

// The instruction sets of this machine.
inline std::vector<std::string> available_isas() {
    std::vector<std::string> found;
    for (const char* isa : {"", "avx2", "neon", "generic"}) {
        try {
            make_test_ops({.threads = 1, .isa = isa});
            found.push_back(isa);
        } catch (const Error& error) {
            if (error.code() != ExitCode::device) throw;
        }
    }
    return found;
}

}  // namespace longreach::test
