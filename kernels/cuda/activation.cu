// Activations of the MLP: a function of each element of the hidden layer [N, F], and its derivative.
//
//   gelu       h = a P(a), P the normal distribution
//              da = dh (P(a) + a e^(-a^2/2) / sqrt(2 pi))
//   gelu_tanh  h = a s(2u), u = sqrt(2/pi) (a + 0.044715 a^3), s the sigmoid: (1 + tanh u) / 2 = s(2u)
//              da = dh (s + a s (1 - s) 2u')
//   relu2      h = max(0, a)^2, in place after a matrix product
//              da = dh 2 sqrt(h)
//   silu       h = a s(a)
//              da = dh s (1 + a (1 - s))
//   swiglu     h = gate s(gate) up, a = gate|up [N, 2F]
//              dup = dh gate s,  dgate = dh up s (1 + gate (1 - s))
//   geglu_tanh h = gelu_tanh(gate) up, a = gate|up [N, 2F]
//              dup = dh gelu_tanh(gate),  dgate = dh up gelu_tanh'(gate)
//
// Saved    the argument a; of relu2 the value h instead.
// Traffic  elements read and written per element of h: 2 forward and 3 backward, gated 3 and 5.
// FLOPs    20 to 30 per element, most of them in an exponential; relu2 2 and 3. Memory is the bound.
// Threads  one pack of 16 bytes each (map in vec.cuh), computed in f32. No element depends on another, so any
//          decomposition gives the same bits.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

// --- functions of one number: value(a), and slope(a) = d value / da

constexpr float tanh_slope = 1.5957691216057308f;    // 2 sqrt(2/pi)
constexpr float tanh_cubic = 0.071354816272600254f;  // 2 sqrt(2/pi) * 0.044715
constexpr float inverse_sqrt_2pi = 0.39894228040143268f;
constexpr float inverse_sqrt_2 = 0.70710678118654752f;

DEVICE float below(float a) {  // P(a)
    return 0.5f * erfcf(-a * inverse_sqrt_2);
}
struct Gelu {
    static DEVICE float value(float a) { return a * below(a); }
    static DEVICE float slope(float a) { return fmaf(a * expf(-0.5f * a * a), inverse_sqrt_2pi, below(a)); }
};
struct GeluTanh {
    static DEVICE float value(float a) { return a * logistic(a * fmaf(a * a, tanh_cubic, tanh_slope)).value; }
    static DEVICE float slope(float a) {
        const float square = a * a;
        const Logistic s = logistic(a * fmaf(square, tanh_cubic, tanh_slope));
        const float twice_du = fmaf(square, 3 * tanh_cubic, tanh_slope);
        // s (1 - s) is zero long before |a| = 20; beyond that the other factors may overflow.
        return fabsf(a) > 20.0f ? s.value : fmaf(a * twice_du, s.value * s.rest, s.value);
    }
};
struct Silu {
    static DEVICE float value(float a) { return a * logistic(a).value; }
    static DEVICE float slope(float a) {
        const Logistic s = logistic(a);
        return s.value * fmaf(a, s.rest, 1.0f);
    }
};
struct Relu2 {
    static DEVICE float value(float a) { return a <= 0.0f ? 0.0f : a * a; }  // NaN stays NaN
};

// --- kernels: what one thread of map_rows does with the n elements at row r, column c

template <class T, class Function>
struct Apply {
    View<T> h;
    View<const T> a;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        Pack<n> x = load<n>(a.at(r, c));
#pragma unroll
        for (int k = 0; k < n; ++k) x[k] = Function::value(x[k]);
        store(h.at(r, c), x);
    }
};
template <class T, class Function>
struct ApplyBackward {
    View<T> da;
    View<const T> dh, a;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const Pack<n> x = load<n>(a.at(r, c));
        Pack<n> d = load<n>(dh.at(r, c));
#pragma unroll
        for (int k = 0; k < n; ++k) d[k] *= Function::slope(x[k]);
        store(da.at(r, c), d);
    }
};

template <class T>
struct Relu2Backward {
    View<T> da;
    View<const T> h;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        Pack<n> d = load<n>(da.at(r, c));
        const Pack<n> value = load<n>(h.at(r, c));
#pragma unroll
        for (int k = 0; k < n; ++k) d[k] *= 2.0f * sqrtf(value[k]);
        store(da.at(r, c), d);
    }
};

template <class T>
struct Swiglu {
    View<T> h;
    View<const T> gate, up;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const Pack<n> g = load<n>(gate.at(r, c));
        Pack<n> u = load<n>(up.at(r, c));
#pragma unroll
        for (int k = 0; k < n; ++k) u[k] *= g[k] * logistic(g[k]).value;
        store(h.at(r, c), u);
    }
};
template <class T>
struct SwigluBackward {
    View<T> dgate, dup;
    View<const T> dh, gate, up;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const Pack<n> g = load<n>(gate.at(r, c)), u = load<n>(up.at(r, c)), d = load<n>(dh.at(r, c));
        Pack<n> to_gate, to_up;
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const Logistic s = logistic(g[k]);
            to_up[k] = d[k] * (g[k] * s.value);
            to_gate[k] = d[k] * u[k] * (s.value * fmaf(g[k], s.rest, 1.0f));
        }
        store(dup.at(r, c), to_up);
        store(dgate.at(r, c), to_gate);
    }
};

template <class T>
struct Geglu {
    View<T> h;
    View<const T> gate, up;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const Pack<n> g = load<n>(gate.at(r, c));
        Pack<n> u = load<n>(up.at(r, c));
#pragma unroll
        for (int k = 0; k < n; ++k) u[k] *= GeluTanh::value(g[k]);
        store(h.at(r, c), u);
    }
};
template <class T>
struct GegluBackward {
    View<T> dgate, dup;
    View<const T> dh, gate, up;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const Pack<n> g = load<n>(gate.at(r, c)), u = load<n>(up.at(r, c)), d = load<n>(dh.at(r, c));
        Pack<n> to_gate, to_up;
#pragma unroll
        for (int k = 0; k < n; ++k) {
            to_up[k] = d[k] * GeluTanh::value(g[k]);
            to_gate[k] = d[k] * u[k] * GeluTanh::slope(g[k]);
        }
        store(dgate.at(r, c), to_gate);
        store(dup.at(r, c), to_up);
    }
};

// --- launchers

template <class T, class Function>
void apply(const Tensor& h, const Tensor& a, Stream stream) {
    const Extent extent(h, a);
    map<T>(Apply<T, Function>{view<T>(h), view<const T>(a)}, extent.rows, extent.width, aligned(h, a),
           stream);
}
template <class T, class Function>
void apply_backward(const Tensor& da, const Tensor& dh, const Tensor& a, Stream stream) {
    const Extent extent(da, dh, a);
    map<T>(ApplyBackward<T, Function>{view<T>(da), view<const T>(dh), view<const T>(a)}, extent.rows,
           extent.width, aligned(da, dh, a), stream);
}

}  // namespace

void relu2(Tensor h, Stream stream) {
    with_element(h.dtype,
                 [&](auto element) { apply<typename decltype(element)::type, Relu2>(h, h, stream); });
}

void relu2_backward(Tensor da, const Tensor& h, Stream stream) {
    check(da.rows() == h.rows() && da.cols() == h.cols(), "relu2_backward of {}x{} at {}x{}", da.rows(),
          da.cols(), h.rows(), h.cols());
    with_element(da.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const Extent extent(da, h);
        map<T>(Relu2Backward<T>{view<T>(da), view<const T>(h)}, extent.rows, extent.width, aligned(da, h),
               stream);
    });
}

void activation(Tensor h, const Tensor& a, Activation kind, Stream stream) {
    const int64_t rows = h.rows(), width = h.cols();
    check(a.rows() == rows && a.cols() == (is_gated(kind) ? 2 * width : width), "activation {}x{} of {}x{}",
          rows, width, a.rows(), a.cols());
    with_element(h.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        if (kind == Activation::gelu) return apply<T, Gelu>(h, a, stream);
        if (kind == Activation::gelu_tanh) return apply<T, GeluTanh>(h, a, stream);
        if (kind == Activation::silu) return apply<T, Silu>(h, a, stream);
        const Tensor gate = a.col_range(0, width), up = a.col_range(width, width);
        const bool vectors = aligned(h, gate, up);
        if (kind == Activation::geglu_tanh)
            return map<T>(Geglu<T>{view<T>(h), view<const T>(gate), view<const T>(up)}, rows, width, vectors,
                          stream);
        map<T>(Swiglu<T>{view<T>(h), view<const T>(gate), view<const T>(up)}, rows, width, vectors, stream);
    });
}

void activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind, Stream stream) {
    const int64_t rows = dh.rows(), width = dh.cols();
    check(da.rows() == rows && a.rows() == rows && da.cols() == a.cols() &&
              a.cols() == (is_gated(kind) ? 2 * width : width),
          "activation_backward {}x{} of {}x{}", rows, width, a.rows(), a.cols());
    with_element(dh.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        if (kind == Activation::gelu) return apply_backward<T, Gelu>(da, dh, a, stream);
        if (kind == Activation::gelu_tanh) return apply_backward<T, GeluTanh>(da, dh, a, stream);
        if (kind == Activation::silu) return apply_backward<T, Silu>(da, dh, a, stream);
        const Tensor gate = a.col_range(0, width), up = a.col_range(width, width);
        const Tensor dgate = da.col_range(0, width), dup = da.col_range(width, width);
        const bool vectors = aligned(dgate, dup, dh, gate, up);
        if (kind == Activation::geglu_tanh)
            return map<T>(GegluBackward<T>{view<T>(dgate), view<T>(dup), view<const T>(dh),
                                           view<const T>(gate), view<const T>(up)},
                          rows, width, vectors, stream);
        map<T>(SwigluBackward<T>{view<T>(dgate), view<T>(dup), view<const T>(dh), view<const T>(gate),
                                 view<const T>(up)},
               rows, width, vectors, stream);
    });
}

}  // namespace longreach::cuda
