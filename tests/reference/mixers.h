// The mixers that do not attend: their layers, their tensors, and what the bounds of their gradients count.
#pragma once

#include <string>

#include "reference/delta.h"
#include "reference/simplicial.h"

namespace longreach::reference {

template <class T>
Rows<T> mix(const model::ModelConfig& config, int64_t layer, const Weights<T>& weights, const Rows<T>& x,
            Sequence<T>& sequence) {
    const model::AttentionConfig& a = attention_of(config, layer);
    if (a.mixer == "simplicial") return Simplicial<T>(config, a, layer, weights).forward(x, sequence);
    return Delta<T>(config, a, layer, weights).forward(x, sequence);
}

// layer: "layers.0."
inline void mixer_parameters(ParameterList& to, const model::AttentionConfig& a, const std::string& layer) {
    if (a.mixer == "simplicial") return simplicial_parameters(to, a, layer + "simplicial.");
    delta_parameters(to, a, layer + "delta.");
}

// Consecutive operations that a layer has more than one of attention.
inline int64_t mixer_steps(const model::AttentionConfig& a) {
    return a.mixer == "simplicial" ? simplicial_steps : delta_steps(a);
}

// Terms of its longest sum, of a sequence of this many tokens.
inline int64_t mixer_terms(const model::AttentionConfig& a, int64_t tokens) {
    return a.mixer == "simplicial" ? simplicial_terms(a, tokens) : delta_terms(a);
}

}  // namespace longreach::reference
