// What the reference model is given: a batch, parameters by name, the layers of a config, and a change after training.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace longreach::reference {

// A micro-batch: B sequences of `length` positions, B * length entries in each vector.
struct Example {
    int64_t sequences = 1, length = 0;
    std::vector<int32_t> tokens;
    std::vector<int32_t> targets;  // -1: not scored
    std::vector<int32_t>
        doc_start;  // position in its sequence where a token's document starts; empty: no mask
    std::vector<float> loss_weights{};  // factor of each loss in the gradient; empty: 1
};

// Matrices are [out, in], row by row.
template <class T>
using Params = std::map<std::string, std::vector<T>>;

template <class T>
using Row = std::vector<T>;
template <class T>
using Rows = std::vector<Row<T>>;

// A parameter that decides scores acts twice in a softmax: on the numerators and on the denominator, with
// opposite signs. A second parameter under its name and this mark, of the same size, acts on the denominator
// instead of it: tests that ask what a gradient is the sum of see both halves.
inline const std::string denominator_mark = "/denominator";

inline constexpr size_t smear_channels = 12;  // of the embedding that decide how much of it is smeared

// Layout of a layer: "" for the plain attention section.
inline std::string layout_of(const model::ModelConfig& m, int64_t layer) {
    if (layer == m.layers - 1 && !m.last.empty()) return m.last;
    return m.pattern.empty() ? "" : m.pattern[static_cast<size_t>(layer) % m.pattern.size()];
}
inline const model::AttentionConfig& attention_of(const model::ModelConfig& m, int64_t layer) {
    const std::string name = layout_of(m, layer);
    return name.empty() ? m.attention : m.layouts.at(name);
}

// The names and formulas of a score.
inline std::vector<std::string> laws_of(const model::AttentionConfig& a) {
    if (a.score.is_null()) return {};
    if (const std::string* text = a.score.to_string()) return {*text};
    std::vector<std::string> laws;
    for (const json::Value& text : a.score.as_array()) laws.push_back(text.as_string());
    return laws;
}

// A change of a trained model for sequences longer than L_train; without effect up to it.
struct PostHoc {
    enum class Kind {
        none,
        pi,           // theta / s
        ntk,          // base s^(d/(d-2))
        ntk_old,      // base k
        ntk_su,       // theta_m / k^(2m/d), m from 1
        ntk_mixed,    // theta_m exp(-a m^b), a (d/2)^b = log k, m from 1
        ntk_dynamic,  // base (k s - (k - 1))^(d/(d-2))
        yarn,
        llama3,
        rerope,       // distance min(t, w)
        leaky_rerope  // distance t, beyond w: w + (t - w) / leak
    } kind = Kind::none;
    double factor = 0;  // s or k; 0: s = length / L_train, and 1 where k = 1 changes something
    double window = 0, leak = 1;
    double exponent = 0.625;    // b of ntk_mixed
    double fast = 0, slow = 1;  // yarn, llama3: turns over L_train; 0: 32, llama3 4
    bool truncate = true;       // yarn
    int64_t top_k = 0;          // keys of a query, at every length; 0: all
    int64_t top_k_block = 0;    // they are taken in blocks of this many; 0: one by one
    bool top_by_index = false;  // the index of a layer chooses them
    bool clip_logn = false;     // scores times max(1, log n / log L_train)
};

}  // namespace longreach::reference
