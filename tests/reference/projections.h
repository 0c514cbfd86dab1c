// Queries, keys and values of a layer before convolutions, norms and positions: by matrices, from the latents of multi-head
// latent attention, or those of a gated attention unit.
#pragma once

#include <string>

#include "mixers/latent.h"
#include "reference/weights.h"

namespace longreach::reference {

template <class T>
Rows<T> silu(Rows<T> x) {
    for (Row<T>& row : x)
        for (T& a : row) a = a * sigmoid(a);
    return x;
}

// Gain and bias of a norm.
template <class T>
void affine(Row<T>& x, const std::string& name, const Weights<T>& weights, bool bias) {
    for (size_t c = 0; c < x.size(); ++c) {
        x[c] = weights.param(name + ".gain")[c] * x[c];
        if (bias) x[c] += weights.param(name + ".bias")[c];
    }
}

template <class T>
class Projections {
  public:
    // name: "layers.<l>.attention."
    Projections(const model::ModelConfig& config, const model::AttentionConfig& attention,
                const std::string& name, const Weights<T>& weights)
        : config_(config),
          a_(attention),
          latent_(attention.own<model::LatentConfig>()),
          gated_unit_(attention.mixer == "gau"),
          name_(name),
          weights_(weights) {}

    Rows<T> queries(const Rows<T>& x) const {
        if (gated_unit_) return of_z(x, "q");
        if (!latent_) return projected(x, "q");
        if (latent_.queries == 0) return weights_.linear(x, name_ + "q.weight");
        return weights_.linear(latent(x, "q_down"), name_ + "q_up.weight");
    }
    Rows<T> keys(const Rows<T>& x) const {
        return gated_unit_ ? of_z(x, "k") : latent_ ? keys_of_latents(x) : projected(x, "k");
    }
    Rows<T> values(const Rows<T>& x) const {
        if (gated_unit_) return silu(weights_.linear(x, name_ + "v.weight"));
        return latent_ ? weights_.linear(latent(x, "kv_down"), name_ + "v_up.weight") : projected(x, "v");
    }

  private:
    Rows<T> projected(const Rows<T>& x, const std::string& which) const {
        return weights_.linear(x, name_ + which + ".weight",
                               a_.bias == model::AttentionBias::none ? "" : name_ + which + ".bias");
    }

    // The one query or key of a gated attention unit, for every head.
    Rows<T> of_z(const Rows<T>& x, const std::string& which) const {
        Rows<T> all;
        for (const Row<T>& z : silu(weights_.linear(x, name_ + "z.weight"))) {
            Row<T> one = z;
            affine(one, name_ + which, weights_, true);
            all.emplace_back();
            for (int64_t h = 0; h < a_.heads; ++h)
                all.back().insert(all.back().end(), one.begin(), one.end());
        }
        return all;
    }

    // The normed latent, which `name` projects: that of keys and values, or that of queries.
    Rows<T> latent(const Rows<T>& x, const std::string& name) const {
        const bool layer_norm = config_.norm.kind == NormKind::layer;
        Rows<T> c = weights_.linear(x, name_ + name + ".weight");
        for (Row<T>& row : c) {
            row = rms_norm(layer_norm ? centred(row) : row, T(config_.norm.eps));
            if (config_.norm.gain) affine(row, name_ + name + "_norm", weights_, layer_norm);
        }
        return c;
    }
    // Every head's key: what it makes of the latent, then the channels that all heads share.
    Rows<T> keys_of_latents(const Rows<T>& x) const {
        const Rows<T> own = weights_.linear(latent(x, "kv_down"), name_ + "k_up.weight");
        const size_t own_channels = size_t(a_.head_dim - latent_.shared);
        Rows<T> shared(x.size()), k(x.size());
        if (latent_.shared > 0) shared = weights_.linear(x, name_ + "k_shared.weight");
        for (size_t p = 0; p < x.size(); ++p)
            for (size_t h = 0; h < size_t(a_.heads); ++h) {
                const Row<T> head = slice(own[p], h * own_channels, own_channels);
                k[p].insert(k[p].end(), head.begin(), head.end());
                k[p].insert(k[p].end(), shared[p].begin(), shared[p].end());
            }
        return k;
    }

    const model::ModelConfig& config_;
    const model::AttentionConfig& a_;
    const model::LatentConfig latent_;
    const bool gated_unit_;
    const std::string name_;
    const Weights<T>& weights_;
};

}  // namespace longreach::reference
