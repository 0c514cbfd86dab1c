// What every part of the reference model stands on: parameters by name, products and norms.
#pragma once

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "reference/dual.h"
#include "reference/inputs.h"

namespace longreach::reference {

template <class T>
class Weights {
  public:
    explicit Weights(const Params<T>& params) : params_(params) {
        for (const auto& [name, values] : params) split_ = split_ || name.ends_with(denominator_mark);
    }

    // Some parameter differs between numerators and denominator.
    bool split() const { return split_; }
    // The parameters of the denominator.
    Weights denominator() const {
        Weights w = *this;
        w.denominator_ = true;
        return w;
    }

    const Row<T>& param(const std::string& name) const {
        if (denominator_) {
            const auto it = params_.find(name + denominator_mark);
            if (it != params_.end()) return it->second;
        }
        const auto it = params_.find(name);
        if (it == params_.end()) throw std::logic_error("no parameter named " + name);
        return it->second;
    }
    // A mixing weight is one number; given as one per channel, each channel uses its own (tests ask for the
    // parts a gradient is the sum of).
    T mix(const std::string& name, size_t channel) const {
        const Row<T>& w = param(name);
        return w.size() == 1 ? w[0] : w.at(channel);
    }
    // One number for all heads, or one per head.
    T of_head(const std::string& name, size_t head) const { return mix(name, head); }

    // y = W x + b, W [out, in]; bias: the name of b, "" for none
    Rows<T> linear(const Rows<T>& x, const std::string& name, const std::string& bias = "") const {
        const Row<T>& w = param(name);
        const size_t in = x.front().size(), out = w.size() / in;
        Rows<T> y;
        for (const Row<T>& row : x) {
            Row<T> result = bias.empty() ? Row<T>(out, T(0)) : param(bias);
            for (size_t o = 0; o < out; ++o)
                for (size_t c = 0; c < in; ++c) result[o] += w[o * in + c] * row[c];
            y.push_back(std::move(result));
        }
        return y;
    }

  private:
    const Params<T>& params_;
    bool split_ = false, denominator_ = false;
};

template <class T>
T sigmoid(const T& a) {
    using std::exp;
    return T(1) / (T(1) + exp(-a));
}

// x / sqrt(mean(x^2) + eps)
template <class T>
Row<T> rms_norm(const Row<T>& x, const T& eps) {
    using std::sqrt;
    T squares = 0;
    for (const T& v : x) squares += v * v;
    const T deviation = sqrt(squares / T(double(x.size())) + eps);
    Row<T> y;
    for (const T& v : x) y.push_back(v / deviation);
    return y;
}
// x - mean(x)
template <class T>
Row<T> centred(Row<T> x) {
    T mean = 0;
    for (const T& v : x) mean += v / T(double(x.size()));
    for (T& v : x) v -= mean;
    return x;
}
// x / |x|, |x| kept off zero
template <class T>
Row<T> unit_vector(const Row<T>& x) {
    using std::sqrt;
    T squares = 1e-12;
    for (const T& v : x) squares += v * v;
    const T length = sqrt(squares);
    Row<T> y;
    for (const T& v : x) y.push_back(v / length);
    return y;
}
template <class T>
void add(Rows<T>& x, const Rows<T>& y) {
    for (size_t p = 0; p < x.size(); ++p)
        for (size_t c = 0; c < x[p].size(); ++c) x[p][c] += y[p][c];
}
template <class T>
Row<T> slice(const Row<T>& x, size_t begin, size_t n) {
    return Row<T>(x.begin() + int64_t(begin), x.begin() + int64_t(begin + n));
}

}  // namespace longreach::reference
