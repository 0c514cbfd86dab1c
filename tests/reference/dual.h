// Forward-mode differentiation: a number and its derivatives in `lanes` directions, exact to
// the rounding of Real.
//
// Every rule is the textbook one, f(a + b e) = f(a) + f'(a) b e with e^2 = 0. Comparisons look
// at the value alone.
#pragma once

#include <array>
#include <cmath>
#include <numbers>

namespace longreach::reference {

template <class Real, int lanes>
struct Dual {
    Real value = 0;
    std::array<Real, lanes> slope{};

    Dual() = default;
    Dual(double constant) : value(static_cast<Real>(constant)) {}

    // The same point moved along f: value f(a), derivative f'(a) times a's.
    Dual chain(Real f, Real derivative) const {
        Dual r;
        r.value = f;
        for (int i = 0; i < lanes; ++i) r.slope[i] = derivative * slope[i];
        return r;
    }

    Dual& operator+=(const Dual& b) {
        value += b.value;
        for (int i = 0; i < lanes; ++i) slope[i] += b.slope[i];
        return *this;
    }
    Dual& operator-=(const Dual& b) {
        value -= b.value;
        for (int i = 0; i < lanes; ++i) slope[i] -= b.slope[i];
        return *this;
    }
    friend Dual operator+(Dual a, const Dual& b) { return a += b; }
    friend Dual operator-(Dual a, const Dual& b) { return a -= b; }
    friend Dual operator-(const Dual& a) { return a.chain(-a.value, -1); }
    friend Dual operator*(const Dual& a, const Dual& b) {
        Dual r;
        r.value = a.value * b.value;
        for (int i = 0; i < lanes; ++i) r.slope[i] = a.slope[i] * b.value + a.value * b.slope[i];
        return r;
    }
    friend Dual operator/(const Dual& a, const Dual& b) {
        Dual r;
        r.value = a.value / b.value;
        for (int i = 0; i < lanes; ++i) r.slope[i] = (a.slope[i] - r.value * b.slope[i]) / b.value;
        return r;
    }

    friend Dual exp(const Dual& a) {
        const Real e = std::exp(a.value);
        return a.chain(e, e);
    }
    friend Dual log(const Dual& a) { return a.chain(std::log(a.value), 1 / a.value); }
    friend Dual sqrt(const Dual& a) {
        const Real root = std::sqrt(a.value);
        return a.chain(root, 1 / (2 * root));
    }
    friend Dual tanh(const Dual& a) {
        const Real t = std::tanh(a.value);
        return a.chain(t, 1 - t * t);
    }
    friend Dual sin(const Dual& a) { return a.chain(std::sin(a.value), std::cos(a.value)); }
    friend Dual cos(const Dual& a) { return a.chain(std::cos(a.value), -std::sin(a.value)); }
    friend Dual erf(const Dual& a) {
        const Real two_over_root_pi = static_cast<Real>(2 * std::numbers::inv_sqrtpi);
        return a.chain(std::erf(a.value), two_over_root_pi * std::exp(-a.value * a.value));
    }
};

inline double value_of(double a) {
    return a;
}
template <class Real, int lanes>
double value_of(const Dual<Real, lanes>& a) {
    return a.value;
}

}  // namespace longreach::reference
