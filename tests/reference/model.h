// The whole model once more, from its formulas, in scalar loops: the document of record.
//
// Losses per token of a ModelConfig, parameters read by name. Nothing is fused, cached, chunked or reused,
// and nothing is shared with src/model but the config structs and the names of the tensors. T is double, or a
// Dual to carry derivatives along.
//
// Letters: C width, H query heads, G key/value heads, d head size, F hidden width, V vocabulary, L layers.
// Sequences never see each other, so the model is written for one sequence: a Rows holds
// one row per position.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "model/model_config.h"
#include "reference/attention.h"
#include "reference/dual.h"
#include "reference/mixers.h"
#include "reference/weights.h"

namespace longreach::reference {

template <class T>
class Model {
  public:
    using Row = reference::Row<T>;
    using Rows = reference::Rows<T>;

    Model(const model::ModelConfig& config, const Params<T>& params, const PostHoc& change = {})
        : config_(config), weights_(params), change_(change) {}

    // One loss per token; 0 where the target is -1.
    std::vector<T> losses(const Example& e) const {
        std::vector<T> all;
        std::vector<reference::Rows<double>> states;
        for (int64_t b = 0; b < e.sequences; ++b) {
            const auto part = [&](const std::vector<int32_t>& v) {
                return v.empty()
                           ? v
                           : std::vector<int32_t>(v.begin() + b * e.length, v.begin() + (b + 1) * e.length);
            };
            Row index_losses(size_t(e.length), T(0));
            const Rows logits =
                head(stream(part(e.tokens), part(e.doc_start), nullptr, &index_losses, &states));
            const std::vector<int32_t> targets = part(e.targets);
            for (size_t p = 0; p < targets.size(); ++p)
                all.push_back((targets[p] < 0 ? T(0) : loss(logits[p], static_cast<size_t>(targets[p]))) +
                              index_losses[p]);
        }
        return all;
    }

    // Logits after the softcap, [positions][V].
    Rows logits(const std::vector<int32_t>& tokens, const std::vector<int32_t>& doc_start) const {
        return head(stream(tokens, doc_start));
    }
    // Root mean square of the scores, biases apart, of the layer where it is largest.
    double score_size(const std::vector<int32_t>& tokens, const std::vector<int32_t>& doc_start) const {
        double size = 0;
        stream(tokens, doc_start, &size);
        return size;
    }

  private:
    // --- residual stream
    Rows stream(const std::vector<int32_t>& tokens, const std::vector<int32_t>& doc_start,
                double* score_size = nullptr, Row* index_losses = nullptr,
                std::vector<reference::Rows<double>>* states = nullptr) const {
        Sequence<T> sequence{tokens, doc_start, {}, {}, 0, states};
        const size_t width = static_cast<size_t>(config_.width);
        Rows x = embedded(tokens, doc_start);
        const Rows x0 = x;
        const int64_t layers = config_.layers;
        std::vector<Rows> outputs;  // of every block
        for (int64_t i = 0; i < config_.loops * layers; ++i) {
            const int64_t l = i % layers;
            const std::string name = fmt::format("layers.{}.", l);
            // U-net: the last floor(L/2) blocks add the output of their mirror image first.
            if (config_.residual.unet && l >= layers - layers / 2) {
                const Rows& mirror = outputs[static_cast<size_t>(layers - 1 - l)];
                for (size_t p = 0; p < x.size(); ++p)
                    for (size_t c = 0; c < width; ++c)
                        x[p][c] += weights_.mix(name + "skip_mix", c) * mirror[p][c];
            }
            // x = l0 x + l1 x0.
            if (config_.residual.x0) {
                for (size_t p = 0; p < x.size(); ++p)
                    for (size_t c = 0; c < width; ++c)
                        x[p][c] = weights_.mix(name + "x_mix", c) * x[p][c] +
                                  weights_.mix(name + "x0_mix", c) * x0[p][c];
            }
            x = block(std::move(x), l, name, sequence);
            outputs.push_back(x);
        }
        if (score_size != nullptr) *score_size = sequence.largest_scores;
        if (index_losses != nullptr && !sequence.index_losses.empty()) *index_losses = sequence.index_losses;
        if (config_.residual.backout >= 0) {
            const Rows& taken = outputs.at(static_cast<size_t>(config_.residual.backout));
            for (size_t p = 0; p < x.size(); ++p)
                for (size_t c = 0; c < width; ++c) x[p][c] -= weights_.mix("backout_mix", c) * taken[p][c];
        }
        return x;
    }

    Rows embedded(const std::vector<int32_t>& tokens, const std::vector<int32_t>& doc_start) const {
        const Row& table = weights_.param("embedding.weight");
        Rows plain;
        for (int32_t token : tokens) {
            const auto row = table.begin() + token * config_.width;
            plain.emplace_back(row, row + config_.width);
        }
        Rows x = plain;
        // x_p += lambda sigmoid(<w, first channels of x_p>) x_(p-1), within the document.
        if (config_.residual.smear)
            for (size_t p = 1; p < x.size(); ++p) {
                if (!doc_start.empty() && doc_start[p] == int32_t(p)) continue;
                T u = 0;
                for (size_t c = 0; c < smear_channels; ++c)
                    u += weights_.param("smear.weight")[c] * plain[p][c];
                for (size_t c = 0; c < x[p].size(); ++c)
                    x[p][c] += weights_.mix("smear_mix", c) * sigmoid(u) * plain[p - 1][c];
            }
        if (config_.positions > 0)
            for (size_t p = 0; p < x.size(); ++p)
                for (size_t c = 0; c < x[p].size(); ++c)
                    x[p][c] += weights_.param("position_embedding.weight")[p * x[p].size() + c];
        // The embedding norm is RMS and learns nothing, whatever the norm of the blocks.
        if (config_.embedding_norm)
            for (Row& row : x) row = rms_norm(row, T(config_.norm.eps));
        return x;
    }

    Rows block(Rows x, int64_t layer, const std::string& name, Sequence<T>& sequence) const {
        const model::AttentionConfig& a = attention_of(config_, layer);
        const model::NormPlacement placement = config_.norm.placement;
        const bool hybrid = placement == model::NormPlacement::hybrid,
                   alone = placement == model::NormPlacement::after,
                   peri = placement == model::NormPlacement::peri || alone;
        const bool pre_norm = a.pre_norm && !hybrid && !alone;
        const Rows read = pre_norm ? norm(x, name + "attention_norm") : x;
        const bool gated_unit = a.mixer == "gau";
        Rows y;
        if (a.mixer == "attention" || gated_unit)
            y = Attention<T>(config_, a, layout_of(config_, layer), layer, weights_, change_)
                    .forward(read, sequence);
        else
            y = mix(config_, layer, weights_, read, sequence);
        if (peri || a.post_norm) y = norm(y, name + "attention_post_norm", true);
        add(x, y);
        if (gated_unit) return x;  // without an MLP
        const Rows n = alone ? x : norm(x, name + "mlp_norm");
        y = mlp(n, name + "mlp.");
        if (peri) y = norm(y, name + "mlp_post_norm", true);
        if (hybrid) x = n;
        add(x, y);
        return x;
    }

    // The norm of the blocks and of the head; layer norm is the RMS norm of the centred row. A norm after a
    // module always has a gain.
    Rows norm(const Rows& x, const std::string& name, bool after = false) const {
        Rows y;
        const bool layer_norm = config_.norm.kind == NormKind::layer, gain = config_.norm.gain || after;
        for (Row row : x) {
            row = rms_norm(layer_norm ? centred(row) : row, T(config_.norm.eps));
            if (gain)
                for (size_t c = 0; c < row.size(); ++c) row[c] = weights_.param(name + ".gain")[c] * row[c];
            if (gain && layer_norm)
                for (size_t c = 0; c < row.size(); ++c) row[c] += weights_.param(name + ".bias")[c];
            y.push_back(row);
        }
        return y;
    }

    // --- feed-forward
    Rows mlp(const Rows& x, const std::string& name) const {
        const bool gated = config_.mlp.gated(), bias = config_.mlp.bias;
        Rows h = weights_.linear(x, name + "up.weight", bias ? name + "up.bias" : "");
        const Rows gate =
            gated ? weights_.linear(x, name + "gate.weight", bias ? name + "gate.bias" : "") : Rows();
        for (size_t p = 0; p < h.size(); ++p)
            for (size_t f = 0; f < h[p].size(); ++f)
                h[p][f] = gated ? activation(gate[p][f]) * h[p][f] : activation(h[p][f]);
        return weights_.linear(h, name + "down.weight", bias ? name + "down.bias" : "");
    }
    // Of a, or of the gate.
    T activation(const T& a) const {
        using std::erf;
        using std::tanh;
        switch (config_.mlp.kind) {
            case model::MlpKind::relu2:
                return value_of(a) > 0 ? a * a : T(0);
            case model::MlpKind::gelu:
                return T(0.5) * a * (T(1) + erf(a * T(1 / std::numbers::sqrt2)));
            case model::MlpKind::gelu_tanh:
            case model::MlpKind::geglu_tanh:
                return T(0.5) * a *
                       (T(1) + tanh(T(std::sqrt(2 * std::numbers::inv_pi)) * (a + T(0.044715) * a * a * a)));
            case model::MlpKind::swiglu:
                return a * sigmoid(a);
        }
        throw std::logic_error("no such activation");
    }

    // --- head
    Rows head(const Rows& x) const {
        using std::tanh;
        const model::SoftcapConfig& s = config_.head.softcap;
        Rows y =
            weights_.linear(norm(x, "final_norm"), config_.head.tied ? "embedding.weight" : "head.weight");
        for (Row& row : y)
            for (T& v : row) {
                if (s.kind == Softcap::tanh) v = T(s.cap) * tanh(v / T(s.cap));
                if (s.kind == Softcap::sigmoid) v = T(s.cap) * sigmoid((v + T(s.shift)) / T(s.temperature));
            }
        return y;
    }
    // log sum exp y - y_target + z_loss * (log sum exp y)^2
    T loss(const Row& y, size_t target) const {
        using std::exp;
        using std::log;
        double largest = -1e300;
        for (const T& v : y) largest = std::max(largest, value_of(v));
        T total = 0;
        for (const T& v : y) total += exp(v - T(largest));
        const T lse = T(largest) + log(total);
        return lse - y[target] + T(config_.head.z_loss) * lse * lse;
    }

    const model::ModelConfig& config_;
    Weights<T> weights_;
    PostHoc change_;
};

}  // namespace longreach::reference
