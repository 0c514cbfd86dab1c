// One layer of the gated delta rule of the reference model: the recurrence, position by position.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "mixers/delta_layer.h"
#include "model/model_config.h"
#include "reference/attention.h"
#include "reference/parameter_list.h"
#include "reference/weights.h"

namespace longreach::reference {

template <class T>
class Delta {
  public:
    Delta(const model::ModelConfig& config, const model::AttentionConfig& layer, int64_t index,
          const Weights<T>& weights)
        : config_(config),
          delta_(layer.own<model::DeltaConfig>()),
          name_(fmt::format("layers.{}.delta.", index)),
          weights_(weights),
          heads_(size_t(layer.heads)),
          d_(size_t(layer.head_dim)),
          e_(size_t(delta_.value_dim > 0 ? delta_.value_dim : layer.head_dim)),
          by_channel_(layer.mixer != "gdn"),
          erases_(layer.mixer == "gdn2") {}

    Rows<T> forward(const Rows<T>& x, Sequence<T>& sequence) const {
        using std::exp;
        using std::sqrt;
        const std::vector<int32_t>& starts = sequence.doc_start;
        const Rows<T> q = read("q", x, 0, starts), k = read("k", x, heads_ * d_, starts),
                      v = read("v", x, 2 * heads_ * d_, starts);
        const Rows<T> decay = projected(x, "decay"), z = projected(x, "gate"),
                      beta = projected(x, erases_ ? "erase" : "beta"),
                      write = erases_ ? projected(x, "write") : Rows<T>();
        const T most = delta_.negative_eigenvalues ? 2 : 1;  // of beta, or of what is erased
        Rows<T> out(x.size(), Row<T>(heads_ * e_, T(0)));
        double ratios = 0;  // squares of |S| |q| / |o|, the condition of the norm of o
        for (size_t h = 0; h < heads_; ++h) {
            const T rate = exp(weights_.param(name_ + "a_log")[h]);
            Rows<T> state = first_state(sequence);
            for (size_t t = 0; t < x.size(); ++t) {
                if (t > 0 && !starts.empty() && starts[t] == int32_t(t))
                    state = Rows<T>(d_, Row<T>(e_, T(0)));
                const Row<T> key = unit(slice(k[t], h * d_, d_)), query = unit(slice(q[t], h * d_, d_));
                for (size_t c = 0; c < d_; ++c) {
                    const size_t at = by_channel_ ? h * d_ + c : h;
                    const T keeps =
                        exp(-rate * softplus(decay[t][at] + weights_.param(name_ + "time_bias")[at]));
                    for (T& s : state[c]) s = s * keeps;
                }
                Row<T> u;
                for (size_t j = 0; j < e_; ++j) {
                    T seen = 0;
                    for (size_t c = 0; c < d_; ++c)
                        seen += state[c][j] * key[c] * (erases_ ? most * sigmoid(beta[t][h * d_ + c]) : T(1));
                    const T& value = v[t][h * e_ + j];
                    u.push_back(erases_
                                    ? sigmoid(write[t][h * e_ + j]) * value - seen
                                    : most * sigmoid(beta[t][h]) * (delta_.additive ? value : value - seen));
                }
                for (size_t c = 0; c < d_; ++c)
                    for (size_t j = 0; j < e_; ++j) state[c][j] += key[c] * u[j];
                Row<T> o(e_, T(0));
                for (size_t c = 0; c < d_; ++c)
                    for (size_t j = 0; j < e_; ++j) o[j] += state[c][j] * query[c] / T(std::sqrt(double(d_)));
                if constexpr (std::is_same_v<T, double>) ratios += ratio(state, o);
                o = rms_norm(o, T(config_.norm.eps));
                for (size_t j = 0; j < e_; ++j) {
                    const T u_gate = z[t][h * e_ + j], gate = sigmoid(u_gate);
                    out[t][h * e_ + j] =
                        o[j] * weights_.param(name_ + "norm.gain")[j] * (by_channel_ ? gate : u_gate * gate);
                }
            }
            leave(state, sequence);
        }
        sequence.largest_scores =
            std::max(sequence.largest_scores, std::sqrt(ratios / double(heads_ * x.size())));
        return weights_.linear(out, name_ + "o.weight");
    }

  private:
    bool passes(const Sequence<T>& sequence) const {
        return sequence.states != nullptr && delta_.start == model::StateStart::previous;
    }
    Rows<T> first_state(const Sequence<T>& sequence) const {
        if (!passes(sequence) || sequence.next_state == sequence.states->size())
            return Rows<T>(d_, Row<T>(e_, T(0)));
        Rows<T> state;
        for (const Row<double>& row : (*sequence.states)[sequence.next_state])
            state.emplace_back(row.begin(), row.end());
        return state;
    }
    // For the next sequence, in place of what this one began with.
    void leave(const Rows<T>& state, Sequence<T>& sequence) const {
        if (!passes(sequence)) return;
        if (sequence.next_state == sequence.states->size()) sequence.states->emplace_back();
        Rows<double>& kept = (*sequence.states)[sequence.next_state++];
        kept.assign(d_, Row<double>(e_));
        for (size_t c = 0; c < d_; ++c)
            for (size_t j = 0; j < e_; ++j) kept[c][j] = value_of(state[c][j]);
    }
    // |S|^2 / d over |o|^2 + e eps, of a query of length 1.
    double ratio(const Rows<double>& state, const Row<double>& o) const {
        double squares = 0, read = double(e_) * config_.norm.eps;
        for (const Row<double>& row : state)
            for (double s : row) squares += s * s / double(d_);
        for (double y : o) read += y * y;
        return squares / read;
    }
    static T softplus(const T& x) {
        using std::exp;
        using std::log;
        return value_of(x) > 30 ? x : log(T(1) + exp(x));
    }
    // x / sqrt(|x|^2 + 1e-6)
    static Row<T> unit(const Row<T>& x) {
        using std::sqrt;
        T squares = 1e-6;
        for (const T& v : x) squares += v * v;
        Row<T> y;
        for (const T& v : x) y.push_back(v / sqrt(squares));
        return y;
    }
    Rows<T> projected(const Rows<T>& x, const std::string& which) const {
        if (!by_channel_ || (which != "decay" && which != "gate"))
            return weights_.linear(x, name_ + which + ".weight");
        return weights_.linear(weights_.linear(x, name_ + which + "_down.weight"),
                               name_ + which + "_up.weight");
    }
    // Queries, keys or values: projected, convolved by their columns of the taps, silu.
    Rows<T> read(const std::string& which, const Rows<T>& x, size_t column,
                 const std::vector<int32_t>& starts) const {
        const Rows<T> rows = weights_.linear(x, name_ + which + ".weight");
        const size_t channels = rows.front().size(), all = heads_ * (2 * d_ + e_);
        Rows<T> y = rows;
        for (size_t t = 0; t < rows.size(); ++t)
            for (size_t c = 0; c < channels; ++c) {
                if (delta_.conv > 0) {
                    y[t][c] = 0;
                    for (size_t m = 0; m < size_t(delta_.conv) && m <= t; ++m)
                        if (starts.empty() || int64_t(t - m) >= starts[t])
                            y[t][c] +=
                                weights_.param(name_ + "conv.weight")[m * all + column + c] * rows[t - m][c];
                }
                y[t][c] = y[t][c] * sigmoid(y[t][c]);
            }
        return y;
    }

    const model::ModelConfig& config_;
    model::DeltaConfig delta_;
    std::string name_;
    const Weights<T>& weights_;
    size_t heads_, d_, e_;
    bool by_channel_, erases_;
};

inline void delta_parameters(ParameterList& to, const model::AttentionConfig& a, const std::string& name) {
    using Start = Parameter::Start;
    const model::DeltaConfig delta = a.own<model::DeltaConfig>();
    const int64_t width = to.m.width, d = a.head_dim, e = delta.value_dim > 0 ? delta.value_dim : d,
                  heads = a.heads;
    const bool by_channel = a.mixer != "gdn", erases = a.mixer == "gdn2";
    to.matrix(name + "q.weight", heads * d, width);
    to.matrix(name + "k.weight", heads * d, width);
    to.matrix(name + "v.weight", heads * e, width);
    if (delta.conv > 0)
        to.all.push_back({name + "conv.weight", {delta.conv, heads * (2 * d + e)}, Start::first_row, 1});
    to.matrix(name + (erases ? "erase.weight" : "beta.weight"), erases ? heads * d : heads, width);
    if (erases) to.matrix(name + "write.weight", heads * e, width);
    if (by_channel) {
        to.matrix(name + "decay_down.weight", d, width);
        to.matrix(name + "decay_up.weight", heads * d, d);
        to.matrix(name + "gate_down.weight", e, width);
        to.matrix(name + "gate_up.weight", heads * e, e);
    } else {
        to.matrix(name + "decay.weight", heads, width);
        to.matrix(name + "gate.weight", heads * e, width);
    }
    to.all.push_back({name + "a_log", {heads}, Start::log_to, 16, by_channel ? 1.0 : 0.0});
    to.all.push_back({name + "time_bias", {by_channel ? heads * d : heads}, Start::time_step, 0.1, 0.001});
    to.norm(name + "norm", e, false);
    to.matrix(name + "o.weight", width, heads * e, to.m.init.zero_projections);
}

// Convolution, silu (2), decay (5) and beta (2), the norm of o, its gain and gate (4), and of the recurrence what
// attention has no counterpart of: decays, the difference, its product with beta, the running sum (6). A gate of what is
// erased has the steps of beta, one of what is written three more.
inline int64_t delta_steps(const model::AttentionConfig& a) {
    return a.mixer == "gdn2" ? 23 : 20;
}

inline int64_t delta_terms(const model::AttentionConfig& a) {
    return a.heads * std::max(a.head_dim, a.own<model::DeltaConfig>().value_dim);
}

}  // namespace longreach::reference
