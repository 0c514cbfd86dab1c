// Activations of the MLP and the mixing of two streams, element by element.
//
//   gelu       h = a P(a), P the normal distribution
//              dh/da = P(a) + a e^(-a^2/2) / sqrt(2 pi)
//   gelu_tanh  h = a s(2u), u = sqrt(2/pi) (a + 0.044715 a^3), s the sigmoid: (1 + tanh u) / 2 = s(2u)
//              dh/da = s + a s (1 - s) 2u'
//   relu2      h = max(0, a)^2, in place after a matrix product
//              da = dh 2 sqrt(h)
//   swiglu     h = gate s(gate) up, a = gate|up [N, 2F]
//              dup = dh gate s,  dgate = dh up s (1 + gate (1 - s))
//   mix        out = a x + b y, scalars a = offset + scale * param
//              dx = a dout,  dy += b dout,  da += scale <dout, x>
//
// Backward needs the argument a [N, F]; of mix, x and y where their coefficient is learned. In units of
// the element size: 2 accesses per element forward and 3 backward (swiglu 3 and 5, mix 3 and 4 to 6);
// 20 to 30 FLOPs. One pack of 16 bytes per thread; the dot products of mix_backward over fixed blocks,
// in double across packs.
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr float tanh_slope = 1.5957691216057308f;    // 2 sqrt(2/pi)
constexpr float tanh_cubic = 0.071354816272600254f;  // 2 sqrt(2/pi) * 0.044715
constexpr float inverse_sqrt_2pi = 0.39894228040143268f;
constexpr float inverse_sqrt_2 = 0.70710678118654752f;

DEVICE float below(float a) {
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
        // s (1 - s) is zero long before |a| = 20, and beyond the other factors may overflow.
        return fabsf(a) > 20.0f ? s.value : fmaf(a * twice_du, s.value * s.rest, s.value);
    }
};

// max(0, a)^2; its slope in terms of the value is 2 sqrt(h).
struct Relu2 {
    static DEVICE float value(float a) {
        return a <= 0.0f ? 0.0f : a * a;  // a NaN stays one
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

// A coefficient whose parameter the device reads.
struct Factor {
    const float* param;
    float scale, offset;
    explicit Factor(const Coefficient& c) : param(c.param.f32()), scale(c.scale), offset(c.offset) {}
    DEVICE float value() const { return param ? offset + scale * *param : offset; }
};

template <class T>
struct Mix {
    View<T> out;
    View<const T> x, y;
    Factor a, b;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const float by_x = a.value(), by_y = b.value();
        const Pack<n> from_y = load<n>(y.at(r, c));
        Pack<n> to = load<n>(x.at(r, c));
#pragma unroll
        for (int k = 0; k < n; ++k) to[k] = fmaf(by_x, to[k], by_y * from_y[k]);
        store(out.at(r, c), to);
    }
};

template <class T>
struct MixBackward {
    View<T> dx, dy;
    View<const T> dout, x, y;  // x, y null where no coefficient is learned
    Factor a, b;
    int64_t rows, packs;  // packs per row
};

// partials [2, blocks]: <dout, x> | <dout, y> over a block of packs.
template <class T, int n>
KERNEL(256)
void mix_backward_kernel(MixBackward<T> m, double* partials) {
    auto& results = shared<WarpResults<double, 256>>();
    const float by_x = m.a.value(), by_y = m.b.value();
    const Range block = piece_of(m.rows * m.packs, gridDim.x, blockIdx.x);
    double along_x = 0.0, along_y = 0.0;
    for (int64_t i = block.begin + threadIdx.x; i < block.end; i += 256) {
        const int64_t r = m.rows == 1 ? 0 : i / m.packs, c = (i - r * m.packs) * n;
        const Pack<n> d = load<n>(m.dout.at(r, c));
        // The dot products come first: dx may be dout.
        if (m.x.data) {
            const Pack<n> v = load<n>(m.x.at(r, c));
            float sum = 0.0f;
#pragma unroll
            for (int k = 0; k < n; ++k) sum = fmaf(d[k], v[k], sum);
            along_x += static_cast<double>(sum);
        }
        if (m.y.data) {
            const Pack<n> v = load<n>(m.y.at(r, c));
            float sum = 0.0f;
#pragma unroll
            for (int k = 0; k < n; ++k) sum = fmaf(d[k], v[k], sum);
            along_y += static_cast<double>(sum);
        }
        if (m.dy.data) {
            Pack<n> to = load<n>(m.dy.at(r, c));
#pragma unroll
            for (int k = 0; k < n; ++k) to[k] = fmaf(by_y, d[k], to[k]);
            store(m.dy.at(r, c), to);
        }
        if (m.dx.data) {
            Pack<n> to;
#pragma unroll
            for (int k = 0; k < n; ++k) to[k] = by_x * d[k];
            store(m.dx.at(r, c), to);
        }
    }
    if (!partials) return;
    along_x = block_sum<256>(along_x, results);
    along_y = block_sum<256>(along_y, results);
    if (threadIdx.x != 0) return;
    partials[blockIdx.x] = along_x;
    partials[gridDim.x + blockIdx.x] = along_y;
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
    check(a.rows() == rows && a.cols() == (kind == Activation::swiglu ? 2 * width : width),
          "activation {}x{} of {}x{}", rows, width, a.rows(), a.cols());
    with_element(h.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        if (kind == Activation::gelu) return apply<T, Gelu>(h, a, stream);
        if (kind == Activation::gelu_tanh) return apply<T, GeluTanh>(h, a, stream);
        const Tensor gate = a.col_range(0, width), up = a.col_range(width, width);
        map<T>(Swiglu<T>{view<T>(h), view<const T>(gate), view<const T>(up)}, rows, width,
               aligned(h, gate, up), stream);
    });
}

void activation_backward(Tensor da, const Tensor& dh, const Tensor& a, Activation kind, Stream stream) {
    const int64_t rows = dh.rows(), width = dh.cols();
    check(da.rows() == rows && a.rows() == rows && da.cols() == a.cols() &&
              a.cols() == (kind == Activation::swiglu ? 2 * width : width),
          "activation_backward {}x{} of {}x{}", rows, width, a.rows(), a.cols());
    with_element(dh.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        if (kind == Activation::gelu) return apply_backward<T, Gelu>(da, dh, a, stream);
        if (kind == Activation::gelu_tanh) return apply_backward<T, GeluTanh>(da, dh, a, stream);
        const Tensor gate = a.col_range(0, width), up = a.col_range(width, width);
        const Tensor dgate = da.col_range(0, width), dup = da.col_range(width, width);
        map<T>(SwigluBackward<T>{view<T>(dgate), view<T>(dup), view<const T>(dh), view<const T>(gate),
                                 view<const T>(up)},
               rows, width, aligned(dgate, dup, dh, gate, up), stream);
    });
}

void mix(Tensor out, const Coefficient& a, const Tensor& x, const Coefficient& b, const Tensor& y,
         Stream stream) {
    check(
        x.rows() == out.rows() && x.cols() == out.cols() && y.rows() == out.rows() && y.cols() == out.cols(),
        "mix of {}x{} and {}x{}", x.rows(), x.cols(), y.rows(), y.cols());
    const Extent extent(out, x, y);
    with_element(out.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        map<T>(Mix<T>{view<T>(out), view<const T>(x), view<const T>(y), Factor(a), Factor(b)}, extent.rows,
               extent.width, aligned(out, x, y), stream);
    });
}

void mix_backward(Tensor dx, Tensor dy, Tensor da, Tensor db, Tensor workspace, const Tensor& dout,
                  const Coefficient& a, const Tensor& x, const Coefficient& b, const Tensor& y,
                  Stream stream) {
    const Tensor read_x = da ? x : Tensor(), read_y = db ? y : Tensor();
    const int64_t blocks = flat_blocks(dout.count());
    double* partials = da || db ? workspace.as<double>() : nullptr;
    check(!partials || workspace.bytes() >= mix_backward_workspace(dout.count()),
          "mix_backward workspace of {} bytes", workspace.bytes());
    const Extent extent(dout, dx, dy, read_x, read_y);
    with_element(dout.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const bool vectors = extent.width % wide<T> == 0 && aligned(dout, dx, dy, read_x, read_y);
        with_pack<T>(vectors, [&](auto n) {
            constexpr int pack = decltype(n)::value;
            const MixBackward<T> arguments{
                view<T>(dx), view<T>(dy), view<const T>(dout), view<const T>(read_x), view<const T>(read_y),
                Factor(a),   Factor(b),   extent.rows,         extent.width / pack};
            launch(mix_backward_kernel<T, pack>,
                   {dim3(static_cast<unsigned>(blocks)), dim3(256), sizeof(WarpResults<double, 256>), stream},
                   arguments, partials);
        });
    });
    if (da)
        fold_totals({.partials = partials, .count = blocks, .add_to = da.f32(), .factor = a.scale}, 1,
                    stream);
    if (db)
        fold_totals({.partials = partials + blocks, .count = blocks, .add_to = db.f32(), .factor = b.scale},
                    1, stream);
}

}  // namespace longreach::cuda
