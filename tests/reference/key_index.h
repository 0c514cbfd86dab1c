// The index of keys of an attention layer, from its formulas.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "reference/weights.h"

namespace longreach::reference {

template <class T>
struct KeyIndex {
    const Weights<T>& weights;
    std::string name;        // "layers.0.attention.index."
    size_t heads, channels;  // no heads: there is no index

    // By query and key; its input passes no derivative on. turn(row, position, sign) turns every head; sign -1: keys.
    template <class Turn>
    Rows<T> scores(const Rows<T>& x, Turn turn) const {
        if (heads == 0) return {};
        Rows<T> input;
        for (const Row<T>& row : x) {
            input.emplace_back();
            for (const T& v : row) input.back().push_back(T(value_of(v)));
        }
        Rows<T> q = weights.linear(input, name + "q.weight"), k = weights.linear(input, name + "k.weight");
        const Rows<T> w = weights.linear(input, name + "w.weight");
        for (size_t p = 0; p < x.size(); ++p) q[p] = turn(q[p], p, 1), k[p] = turn(k[p], p, -1);
        Rows<T> all(x.size(), Row<T>(x.size(), T(0)));
        for (size_t i = 0; i < x.size(); ++i)
            for (size_t j = 0; j <= i; ++j)
                for (size_t h = 0; h < heads; ++h) {
                    T z = 0;
                    for (size_t c = 0; c < channels; ++c) z += q[i][h * channels + c] * k[j][c];
                    if (value_of(z) > 0)
                        all[i][j] += w[i][h] * z * T(1 / std::sqrt(double(heads * channels)));
                }
        return all;
    }

    // Adds to `losses`, by query, numbers of value 0 with the derivatives of what the index learns: the divergence of its
    // softmax from the heads' weights over the keys that are seen. mean: these weights up to a factor by query.
    template <class Seen>
    static void learn(Row<T>& losses, const Rows<T>& scores, const std::vector<std::vector<double>>& mean,
                      Seen seen) {
        using std::exp;
        using std::log;
        losses.resize(std::max(losses.size(), scores.size()), T(0));
        for (size_t i = 0; i < scores.size(); ++i) {
            double mass = 0;
            for (const double weight : mean[i]) mass += weight;
            T sum = 0, taken = 0;
            for (size_t j = 0; j <= i; ++j) {
                if (!seen(i, j)) continue;
                sum += exp(scores[i][j]);
                taken += T(mean[i][j] / mass) * scores[i][j];
            }
            const T loss = log(sum) - taken;
            losses[i] += loss - T(value_of(loss));
        }
    }
};

}  // namespace longreach::reference
