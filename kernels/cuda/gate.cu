// Sigmoid gates on the output of attention.
//
//   y = factor * s * o, s = 1 / (1 + e^-u), u one number per head or per channel.
//   Backward: do = factor * s * dy;  du = factor * s (1 - s) * o dy, per head summed over its d channels.
//   Times its input: y = factor * u s * o, do = factor * u s * dy, du = factor * s (1 + u (1 - s)) * o dy.
//
// In units of the element size: 2 accesses per element forward (3 with u per channel) and 3 backward (5); one
// multiplication, and per channel the exponential. Forward and per channel one pack of 16 bytes per thread;
// backward per head one group of lanes per head. No sum crosses a head.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

// The gate at u is plain * times; its derivative is plain * slope.
struct Gate {
    float plain, times, slope;
};
DEVICE Gate gate_at(float u, const GateSpec& spec) {
    const Logistic s = logistic(u);
    const float plain = spec.factor * s.value;
    if (!spec.times_input) return {plain, 1.0f, s.rest};
    return {plain, u, fmaf(u, s.rest, 1.0f)};
}

template <class T>
struct ChannelGate {
    View<T> y;
    View<const T> u, o;
    GateSpec spec;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const Pack<n> logit = load<n>(u.at(r, c));
        Pack<n> v = load<n>(o.at(r, c));
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const Gate g = gate_at(logit[k], spec);
            v[k] = g.plain * g.times * v[k];
        }
        store(y.at(r, c), v);
    }
};
template <class T>
struct ChannelGateBackward {
    View<T> dout, du;
    View<const T> dy, u, o;
    GateSpec spec;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const Pack<n> logit = load<n>(u.at(r, c)), from = load<n>(o.at(r, c));
        Pack<n> d = load<n>(dy.at(r, c)), to_logit;
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const Gate g = gate_at(logit[k], spec);
            d[k] *= g.plain;
            to_logit[k] = d[k] * g.slope * from[k];
            d[k] *= g.times;
        }
        store(du.at(r, c), to_logit);
        store(dout.at(r, c), d);
    }
};

// A pack lies in one head: n divides d.
template <class T>
struct HeadGate {
    View<T> y;
    View<const T> u, o;
    GateSpec spec;
    int head_dim;
    template <int n>
    DEVICE void at(int64_t r, int64_t c) const {
        const Gate g = gate_at(widen(*u.at(r, static_cast<int>(c) / head_dim)), spec);
        const float gate = g.plain * g.times;
        Pack<n> v = load<n>(o.at(r, c));
#pragma unroll
        for (int k = 0; k < n; ++k) v[k] *= gate;
        store(y.at(r, c), v);
    }
};

template <class T>
struct HeadGateBackward {
    View<T> dout, du;
    View<const T> dy, u, o;
    GateSpec spec;
    int items;  // tokens times heads
    int heads, head_dim, group;
};
template <class T, int n>
KERNEL(256)
void head_gate_backward_kernel(HeadGateBackward<T> a) {
    const int groups = 256 / a.group;
    const int item = static_cast<int>(blockIdx.x) * groups + static_cast<int>(threadIdx.x) / a.group;
    const bool active = item < a.items;
    const int row = active ? item / a.heads : 0, head = active ? item % a.heads : 0;
    const int lane = static_cast<int>(threadIdx.x) % a.group, step = a.group * n;
    const int width = active ? a.head_dim : 0;
    const Gate g = gate_at(widen(*a.u.at(row, head)), a.spec);
    const float gate = g.plain * g.times;
    const T *from = a.o.at(row, head * a.head_dim), *gradient = a.dy.at(row, head * a.head_dim);
    T* to = a.dout.at(row, head * a.head_dim);
    float along = 0.0f;
#pragma unroll 1
    for (int c = lane * n; c < width; c += step) {
        Pack<n> d = load<n>(gradient + c);
        const Pack<n> v = load<n>(from + c);
#pragma unroll
        for (int k = 0; k < n; ++k) {
            along = fmaf(d[k], v[k], along);
            d[k] *= gate;
        }
        store(to + c, d);  // dout may be dy: every element is read once, before
    }
    along = lanes_sum(along, a.group);
    if (active && lane == 0) *a.du.at(row, head) = narrow<T>(g.plain * g.slope * along);
}

void check_shapes(const Tensor& y, const Tensor& u, const Tensor& o) {
    check(y.rows() == o.rows() && y.cols() == o.cols() && u.rows() == o.rows() && u.cols() > 0 &&
              o.cols() % u.cols() == 0,
          "gate {}x{} on {}x{} into {}x{}", u.rows(), u.cols(), o.rows(), o.cols(), y.rows(), y.cols());
}

}  // namespace

void gate(Tensor y, const Tensor& u, const Tensor& o, const GateSpec& spec, Stream stream) {
    check_shapes(y, u, o);
    with_element(o.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        if (u.cols() == o.cols()) {
            const Extent extent(y, u, o);
            map<T>(ChannelGate<T>{view<T>(y), view<const T>(u), view<const T>(o), spec}, extent.rows,
                   extent.width, aligned(y, u, o), stream);
            return;
        }
        const int64_t d = o.cols() / u.cols();
        map<T>(HeadGate<T>{view<T>(y), view<const T>(u), view<const T>(o), spec, static_cast<int>(d)},
               o.rows(), o.cols(), d % wide<T> == 0 && aligned(y, o), stream);
    });
}

void gate_backward(Tensor dout, Tensor du, const Tensor& dy, const Tensor& u, const Tensor& o,
                   const GateSpec& spec, Stream stream) {
    check_shapes(dy, u, o);
    check_shapes(dout, du, o);
    check(du.cols() == u.cols(), "gradient {}x{} of a gate {}x{}", du.rows(), du.cols(), u.rows(), u.cols());
    check(o.rows() * u.cols() < int64_t{1} << 30, "gates of {} heads", o.rows() * u.cols());
    with_element(o.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        if (u.cols() == o.cols()) {
            const Extent extent(dout, du, dy, u, o);
            map<T>(ChannelGateBackward<T>{view<T>(dout), view<T>(du), view<const T>(dy), view<const T>(u),
                                          view<const T>(o), spec},
                   extent.rows, extent.width, aligned(dout, du, dy, u, o), stream);
            return;
        }
        const int64_t heads = u.cols(), d = o.cols() / heads;
        with_pack<T>(d % wide<T> == 0 && aligned(dout, dy, o), [&](auto n) {
            constexpr int pack = decltype(n)::value;
            int group = 1;
            while (group * pack < d && group < 32) group *= 2;
            const HeadGateBackward<T> arguments{view<T>(dout),
                                                view<T>(du),
                                                view<const T>(dy),
                                                view<const T>(u),
                                                view<const T>(o),
                                                spec,
                                                static_cast<int>(o.rows() * heads),
                                                static_cast<int>(heads),
                                                static_cast<int>(d),
                                                group};
            launch(head_gate_backward_kernel<T, pack>,
                   {dim3(blocks_for(arguments.items, 256 / group)), dim3(256), 0, stream}, arguments);
        });
    });
}

}  // namespace longreach::cuda
