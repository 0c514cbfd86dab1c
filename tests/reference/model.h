// The whole model once more, from its formulas, in scalar loops: the document of record.
//
// Losses per token of a ModelConfig, parameters read by name. Nothing is fused, cached, chunked or reused,
// and nothing is shared with src/model but the config structs and the names of the tensors. T is double, or a
// Dual to carry derivatives along.
//
// Letters: C width, H query heads, G key/value heads, d head size, F hidden width, V vocabulary, L layers.
// Sequences never see each other, so the model is written for one sequence: a Rows holds one row per
// position.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/model_config.h"
#include "reference/dual.h"

namespace longreach::reference {

// A micro-batch: B sequences of `length` positions, B * length entries in each vector.
struct Example {
    int64_t sequences = 1, length = 0;
    std::vector<int32_t> tokens;
    std::vector<int32_t> targets;  // -1: not scored
    std::vector<int32_t>
        doc_start;  // position in its sequence where a token's document starts; empty: no mask
};

// Matrices are [out, in], row by row.
template <class T>
using Params = std::map<std::string, std::vector<T>>;

template <class T>
class Model {
  public:
    using Row = std::vector<T>;
    using Rows = std::vector<Row>;

    Model(const ModelConfig& config, const Params<T>& params) : config_(config), params_(params) {}

    // One loss per token; 0 where the target is -1.
    std::vector<T> losses(const Example& e) const {
        std::vector<T> all;
        for (int64_t b = 0; b < e.sequences; ++b) {
            const auto part = [&](const std::vector<int32_t>& v) {
                return v.empty()
                           ? v
                           : std::vector<int32_t>(v.begin() + b * e.length, v.begin() + (b + 1) * e.length);
            };
            const Rows logits = head(stream(part(e.tokens), part(e.doc_start)));
            const std::vector<int32_t> targets = part(e.targets);
            for (size_t p = 0; p < targets.size(); ++p)
                all.push_back(targets[p] < 0 ? T(0) : loss(logits[p], static_cast<size_t>(targets[p])));
        }
        return all;
    }

    // Logits after the softcap, [positions][V].
    Rows logits(const std::vector<int32_t>& tokens, const std::vector<int32_t>& doc_start) const {
        return head(stream(tokens, doc_start));
    }

  private:
    // --- residual stream
    // --------------------------------------------------------------------------------------------
    Rows stream(const std::vector<int32_t>& tokens, const std::vector<int32_t>& doc_start) const {
        using std::exp;
        const Row& table = param("embedding.weight");
        const size_t width = static_cast<size_t>(config_.width);
        Rows x;
        for (int32_t token : tokens) {
            const auto row = table.begin() + token * config_.width;
            x.emplace_back(row, row + config_.width);
            // The embedding norm is RMS and learns nothing, whatever the norm of the blocks.
            if (config_.embedding_norm) x.back() = rms(x.back(), config_.norm.eps);
        }
        const Rows x0 = x;
        const int64_t layers = config_.layers;
        std::vector<Rows> outputs;  // of every block
        Rows first_values;
        for (int64_t l = 0; l < layers; ++l) {
            const std::string name = fmt::format("layers.{}.", l);
            // U-net: the last floor(L/2) blocks add the output of their mirror image first.
            if (config_.residual.unet && l >= layers - layers / 2) {
                const Rows& mirror = outputs[static_cast<size_t>(layers - 1 - l)];
                for (size_t p = 0; p < x.size(); ++p)
                    for (size_t c = 0; c < width; ++c) x[p][c] += mix(name + "skip_mix", c) * mirror[p][c];
            }
            // x = l0 x + l1 x0.
            if (config_.residual.x0) {
                for (size_t p = 0; p < x.size(); ++p)
                    for (size_t c = 0; c < width; ++c)
                        x[p][c] = mix(name + "x_mix", c) * x[p][c] + mix(name + "x0_mix", c) * x0[p][c];
            }
            add(x, attention(l, norm(x, name + "attention_norm"), first_values, doc_start));
            add(x, mlp(norm(x, name + "mlp_norm"), name + "mlp."));
            outputs.push_back(x);
        }
        return x;
    }

    static void add(Rows& x, const Rows& y) {
        for (size_t p = 0; p < x.size(); ++p)
            for (size_t c = 0; c < x[p].size(); ++c) x[p][c] += y[p][c];
    }

    // --- norms
    // ------------------------------------------------------------------------------------------------------
    // x / sqrt(mean(x^2) + eps)
    static Row rms(const Row& x, double eps) {
        using std::sqrt;
        T squares = 0;
        for (const T& v : x) squares += v * v;
        const T deviation = sqrt(squares / T(double(x.size())) + T(eps));
        Row y;
        for (const T& v : x) y.push_back(v / deviation);
        return y;
    }
    // The norm of the blocks and of the head; layer norm is the RMS norm of the centred row.
    Rows norm(const Rows& x, const std::string& name) const {
        Rows y;
        for (Row row : x) {
            if (config_.norm.kind == NormKind::layer) {
                T mean = 0;
                for (const T& v : row) mean += v / T(double(row.size()));
                for (T& v : row) v -= mean;
            }
            row = rms(row, config_.norm.eps);
            if (config_.norm.gain)
                for (size_t c = 0; c < row.size(); ++c) row[c] = param(name + ".gain")[c] * row[c];
            if (config_.norm.gain && config_.norm.kind == NormKind::layer)
                for (size_t c = 0; c < row.size(); ++c) row[c] += param(name + ".bias")[c];
            y.push_back(row);
        }
        return y;
    }

    // --- attention
    // --------------------------------------------------------------------------------------------------
    const AttentionConfig& layout(int64_t layer) const {
        if (layer == config_.layers - 1 && !config_.last.empty()) return config_.layouts.at(config_.last);
        if (config_.pattern.empty()) return config_.attention;
        return config_.layouts.at(config_.pattern[static_cast<size_t>(layer) % config_.pattern.size()]);
    }

    // theta_m of channel pair m; 0 where the pair is not rotated.
    static double frequency(const PositionConfig& position, int64_t m, int64_t head_dim) {
        const double pairs = double(head_dim) / 2;
        double kept = position.kind == PositionKind::rope ? pairs : 0;
        if (position.kind == PositionKind::p_rope)  // 1e-9: so that 0.7 of 10 pairs is 7 pairs
            kept = std::floor(position.fraction * pairs + 1e-9);
        if (double(m) >= kept) return 0;
        if (position.kind == PositionKind::p_rope && position.spacing == Spacing::linspace)
            return kept == 1 ? 1 : std::exp(-std::log(position.base) * double(m) / (kept - 1));
        return std::exp(-std::log(position.base) * double(m) / pairs);
    }

    // One head of a query or key: RMS norm over its channels, then the rotation of pairs (m, m + d/2) by p *
    // theta_m.
    static Row prepare(const AttentionConfig& a, Row x, size_t position) {
        if (a.qk.kind == QkKind::qk_rms) x = rms(x, a.qk.eps);
        const size_t half = x.size() / 2;
        for (size_t m = 0; m < half; ++m) {
            const double angle = double(position) * frequency(a.position, int64_t(m), a.head_dim);
            const T first = x[m], second = x[m + half];
            x[m] = first * T(std::cos(angle)) - second * T(std::sin(angle));
            x[m + half] = first * T(std::sin(angle)) + second * T(std::cos(angle));
        }
        return x;
    }

    static bool visible(const AttentionConfig& a, const std::vector<int32_t>& doc_start, size_t i, size_t j) {
        if (j > i) return false;
        if (a.window > 0 && int64_t(i - j) >= a.window) return false;
        return doc_start.empty() || int64_t(j) >= doc_start[i];
    }

    static T score(const AttentionConfig& a, const Row& q, const Row& k, size_t t) {
        T dot = 0;
        for (size_t c = 0; c < q.size(); ++c) dot += q[c] * k[c];
        const T z = dot / T(std::sqrt(double(a.head_dim)));
        if (a.distance.kind == DistanceKind::none) return z;
        const double m = 2 * std::log(1 + double(t) / a.distance.tau);
        return T(std::sqrt(1 + m)) * z - T(m);
    }

    Rows attention(int64_t layer, const Rows& x, Rows& first_values,
                   const std::vector<int32_t>& doc_start) const {
        using std::exp;
        const AttentionConfig& a = layout(layer);
        const std::string name = fmt::format("layers.{}.attention.", layer);
        const size_t positions = x.size(), d = size_t(a.head_dim), heads = size_t(a.heads);
        const size_t kv_heads = a.kv_heads > 0 ? size_t(a.kv_heads) : heads;
        const Rows q = linear(x, name + "q.weight"), k = linear(x, name + "k.weight");
        Rows v = linear(x, name + "v.weight");
        if (config_.residual.values == ValueMix::first) {
            if (layer == 0) {
                first_values = v;
            } else {
                for (size_t p = 0; p < positions; ++p)
                    for (size_t c = 0; c < v[p].size(); ++c) {
                        const T lambda = mix(name + "value_mix", c);
                        v[p][c] = (T(1) - lambda) * v[p][c] + lambda * first_values[p][c];
                    }
            }
        }
        Rows out(positions, Row(heads * d, T(0)));
        for (size_t h = 0; h < heads; ++h) {
            const size_t g = h / (heads / kv_heads);  // consecutive query heads share a key/value head
            Rows queries, keys;
            for (size_t p = 0; p < positions; ++p) {
                queries.push_back(prepare(a, slice(q[p], h * d, d), p));
                keys.push_back(prepare(a, slice(k[p], g * d, d), p));
            }
            for (size_t i = 0; i < positions; ++i) {
                Row scores(positions, T(0));
                double largest = -1e300;  // a constant as far as derivatives go: softmax ignores it
                for (size_t j = 0; j < positions; ++j) {
                    if (!visible(a, doc_start, i, j)) continue;
                    scores[j] = score(a, queries[i], keys[j], i - j);
                    largest = std::max(largest, value_of(scores[j]));
                }
                T total = 0;
                Row sum(d, T(0));
                for (size_t j = 0; j < positions; ++j) {
                    if (!visible(a, doc_start, i, j)) continue;
                    const T weight = exp(scores[j] - T(largest));
                    total += weight;
                    for (size_t c = 0; c < d; ++c) sum[c] += weight * v[j][g * d + c];
                }
                for (size_t c = 0; c < d; ++c) out[i][h * d + c] = sum[c] / total;
            }
        }
        return linear(out, name + "o.weight");
    }

    // --- feed-forward
    // -----------------------------------------------------------------------------------------------
    Rows mlp(const Rows& x, const std::string& name) const {
        Rows h = linear(x, name + "up.weight");
        const bool gated = config_.mlp.kind == MlpKind::swiglu;
        const Rows gate = gated ? linear(x, name + "gate.weight") : Rows();
        for (size_t p = 0; p < h.size(); ++p)
            for (size_t f = 0; f < h[p].size(); ++f)
                h[p][f] = gated ? silu(gate[p][f]) * h[p][f] : activation(h[p][f]);
        return linear(h, name + "down.weight");
    }
    static T sigmoid(const T& a) {
        using std::exp;
        return T(1) / (T(1) + exp(-a));
    }
    static T silu(const T& a) { return a * sigmoid(a); }
    T activation(const T& a) const {
        using std::erf;
        using std::tanh;
        switch (config_.mlp.kind) {
            case MlpKind::relu2:
                return value_of(a) > 0 ? a * a : T(0);
            case MlpKind::gelu:
                return T(0.5) * a * (T(1) + erf(a * T(1 / std::numbers::sqrt2)));
            case MlpKind::gelu_tanh:
                return T(0.5) * a *
                       (T(1) + tanh(T(std::sqrt(2 * std::numbers::inv_pi)) * (a + T(0.044715) * a * a * a)));
            case MlpKind::swiglu:
                break;
        }
        throw std::logic_error("swiglu has two inputs");
    }

    // --- head
    // -------------------------------------------------------------------------------------------------------
    Rows head(const Rows& x) const {
        using std::tanh;
        const SoftcapConfig& s = config_.head.softcap;
        Rows y = linear(norm(x, "final_norm"), config_.head.tied ? "embedding.weight" : "head.weight");
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

    // --- parameters
    // -------------------------------------------------------------------------------------------------
    const Row& param(const std::string& name) const {
        const auto it = params_.find(name);
        if (it == params_.end()) throw std::logic_error("no parameter named " + name);
        return it->second;
    }
    // A mixing weight is one number; given as one per channel, each channel uses its own (tests ask for the
    // parts a gradient is the sum of).
    T mix(const std::string& name, size_t channel) const {
        const Row& w = param(name);
        return w.size() == 1 ? w[0] : w.at(channel);
    }

    // y = W x, W [out, in]
    Rows linear(const Rows& x, const std::string& name) const {
        const Row& w = param(name);
        const size_t in = x.front().size(), out = w.size() / in;
        Rows y;
        for (const Row& row : x) {
            Row result(out, T(0));
            for (size_t o = 0; o < out; ++o)
                for (size_t c = 0; c < in; ++c) result[o] += w[o * in + c] * row[c];
            y.push_back(std::move(result));
        }
        return y;
    }
    static Row slice(const Row& x, size_t begin, size_t n) {
        return Row(x.begin() + int64_t(begin), x.begin() + int64_t(begin + n));
    }

    const ModelConfig& config_;
    const Params<T>& params_;
};

}  // namespace longreach::reference
