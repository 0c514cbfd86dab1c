// One layer of 2-simplicial attention of the reference model: a softmax over all pairs of visible keys.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include "mixers/simplicial_layer.h"
#include "model/model_config.h"
#include "reference/attention.h"
#include "reference/parameter_list.h"
#include "reference/weights.h"

namespace longreach::reference {

template <class T>
class Simplicial {
  public:
    Simplicial(const model::ModelConfig& config, const model::AttentionConfig& layer, int64_t index,
               const Weights<T>& weights)
        : config_(config),
          heads_(size_t(layer.heads)),
          windows_(layer.own<model::SimplicialConfig>()),
          name_(fmt::format("layers.{}.simplicial.", index)),
          weights_(weights),
          d_(size_t(layer.head_dim)) {}

    Rows<T> forward(const Rows<T>& x, Sequence<T>& sequence) const {
        using std::exp;
        const bool split = weights_.split();
        const Products above(*this, weights_, x), below(*this, split ? weights_.denominator() : weights_, x);
        const Rows<T> v = weights_.linear(x, name_ + "v.weight"),
                      v2 = weights_.linear(x, name_ + "v2.weight");
        Rows<T> out(x.size(), Row<T>(heads_ * d_, T(0)));
        double squares = 0, pairs = 0;
        for (size_t from = 0; from < out.front().size(); from += d_)  // head by head
            for (size_t i = 0; i < x.size(); ++i) {
                const int64_t start = sequence.doc_start.empty() ? 0 : sequence.doc_start[i];
                T total = 0;
                for (int64_t j = std::max(start, int64_t(i) - windows_.window + 1); j <= int64_t(i); ++j)
                    for (int64_t m = std::max(start, int64_t(i) - windows_.second_window + 1);
                         m <= int64_t(i); ++m) {
                        const T score = above.score(from, i, size_t(j), size_t(m)), weight = exp(score);
                        total += split ? exp(below.score(from, i, size_t(j), size_t(m))) : weight;
                        for (size_t c = from; c < from + d_; ++c)
                            out[i][c] += weight * v[size_t(j)][c] * v2[size_t(m)][c];
                        if constexpr (std::is_same_v<T, double>) {
                            squares += score * score;
                            ++pairs;
                        }
                    }
                for (size_t c = from; c < from + d_; ++c) out[i][c] = out[i][c] / total;
            }
        if (pairs > 0)
            sequence.largest_scores = std::max(sequence.largest_scores, std::sqrt(squares / pairs));
        return weights_.linear(out, name_ + "o.weight");
    }

  private:
    struct Products {
        size_t d;
        Rows<T> q, k, k2;
        Products(const Simplicial& layer, const Weights<T>& weights, const Rows<T>& x)
            : d(layer.d_),
              q(layer.normed(weights.linear(x, layer.name_ + "q.weight"))),
              k(layer.normed(weights.linear(x, layer.name_ + "k.weight"))),
              k2(layer.normed(weights.linear(x, layer.name_ + "k2.weight"))) {}
        T score(size_t from, size_t i, size_t j, size_t m) const {
            T sum = 0;
            for (size_t c = from; c < from + d; ++c) sum += q[i][c] * k[j][c] * k2[m][c];
            return sum / T(std::sqrt(double(d)));
        }
    };
    Rows<T> normed(Rows<T> rows) const {
        for (Row<T>& row : rows)
            for (size_t from = 0; from < row.size(); from += d_) {
                const Row<T> head = rms_norm(slice(row, from, d_), T(config_.norm.eps));
                std::copy(head.begin(), head.end(), row.begin() + int64_t(from));
            }
        return rows;
    }

    const model::ModelConfig& config_;
    size_t heads_;
    model::SimplicialConfig windows_;
    std::string name_;
    const Weights<T>& weights_;
    size_t d_;
};

inline void simplicial_parameters(ParameterList& to, const model::AttentionConfig& a,
                                  const std::string& name) {
    const int64_t width = to.m.width, heads = a.heads * a.head_dim;
    for (const char* part : {"q", "k", "v", "k2", "v2"}) to.matrix(name + part + ".weight", heads, width);
    to.matrix(name + "o.weight", width, heads, to.m.init.zero_projections);
}

// The third factor of a score, the second of a value.
inline constexpr int64_t simplicial_steps = 2;

// The pairs of a query.
inline int64_t simplicial_terms(const model::AttentionConfig& a, int64_t tokens) {
    const model::SimplicialConfig windows = a.own<model::SimplicialConfig>();
    return std::max(a.heads * a.head_dim,
                    std::min(tokens, windows.window) * std::min(tokens, windows.second_window));
}

}  // namespace longreach::reference
