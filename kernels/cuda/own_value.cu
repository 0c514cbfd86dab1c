// The output of attention without its part along the token's own value (Ops::exclude_own_value).
//
//   a = <o, v> / <v, v>      y = o - a v            per head; v of the G key/value heads serves H / G heads
//   Backward: b = <dy, v> / <v, v>   do = dy - b v   dv = sum over its heads of (2 a b v - a dy - b o)
//
// In units of the element size: 2 accesses per element forward and 3 backward, and those of v. One group of lanes per
// token and key/value head keeps the value and its gradient in registers and goes through the heads that read it.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr int most_channels = 8;  // of a lane: 256 channels of 32 lanes

template <class T>
struct OwnValue {
    View<T> y, dv;
    View<const T> dy, o, v;
    int items;  // tokens times key/value heads
    int kv_heads, each, head_dim, group;
};

// The channels of a head that a lane has, in packs of n.
template <int n>
struct Channels {
    static constexpr int packs = most_channels / n;
    Pack<n> x[packs];
};
template <int n, class T>
DEVICE Channels<n> channels_at(const T* head, int first, int step, int width) {
    Channels<n> c;
#pragma unroll
    for (int p = 0; p < Channels<n>::packs; ++p) {
        if (first + p * step < width) {
            c.x[p] = load<n>(head + first + p * step);
        } else {
#pragma unroll
            for (int k = 0; k < n; ++k) c.x[p][k] = 0.0f;
        }
    }
    return c;
}
template <int n, class T>
DEVICE void put_channels(T* head, const Channels<n>& c, int first, int step, int width) {
#pragma unroll
    for (int p = 0; p < Channels<n>::packs; ++p)
        if (first + p * step < width) store(head + first + p * step, c.x[p]);
}
template <int n>
DEVICE float dot(const Channels<n>& a, const Channels<n>& b, int group) {
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < Channels<n>::packs; ++p)
#pragma unroll
        for (int k = 0; k < n; ++k) sum = fmaf(a.x[p][k], b.x[p][k], sum);
    return lanes_sum(sum, group);
}

template <class T, int n, bool backward>
KERNEL(256)
void own_value_kernel(OwnValue<T> a) {
    const int groups = 256 / a.group;
    const int item = static_cast<int>(blockIdx.x) * groups + static_cast<int>(threadIdx.x) / a.group;
    const bool active = item < a.items;
    const int row = active ? item / a.kv_heads : 0, g = active ? item % a.kv_heads : 0;
    const int first = static_cast<int>(threadIdx.x) % a.group * n, step = a.group * n;
    const int width = active ? a.head_dim : 0;
    const Channels<n> value = channels_at<n>(a.v.at(row, g * a.head_dim), first, step, width);
    const float inverse = 1.0f / fmaxf(dot(value, value, a.group), own_value_floor);
    Channels<n> dvalue = channels_at<n>(a.v.at(row), first, step, 0);
#pragma unroll 1
    for (int e = 0; e < a.each; ++e) {
        const int column = (g * a.each + e) * a.head_dim;
        const Channels<n> head = channels_at<n>(a.o.at(row, column), first, step, width);
        const float share = dot(head, value, a.group) * inverse;
        Channels<n> to = head;
        float taken = share;
        if constexpr (backward) {
            to = channels_at<n>(a.dy.at(row, column), first, step, width);
            taken = dot(to, value, a.group) * inverse;
            const float twice = 2.0f * share * taken;
#pragma unroll
            for (int p = 0; p < Channels<n>::packs; ++p)
#pragma unroll
                for (int k = 0; k < n; ++k)
                    dvalue.x[p][k] += twice * value.x[p][k] - share * to.x[p][k] - taken * head.x[p][k];
        }
#pragma unroll
        for (int p = 0; p < Channels<n>::packs; ++p)
#pragma unroll
            for (int k = 0; k < n; ++k) to.x[p][k] = fmaf(-taken, value.x[p][k], to.x[p][k]);
        put_channels(a.y.at(row, column), to, first, step, width);  // dout may be dy
    }
    if constexpr (backward) put_channels(a.dv.at(row, g * a.head_dim), dvalue, first, step, width);
}

template <class T, bool backward>
void run(OwnValue<T> a, const Tensor& o, const Tensor& v, int64_t head_dim, bool are_aligned, Stream stream) {
    check(v.rows() == o.rows() && v.cols() % head_dim == 0 && o.cols() % v.cols() == 0 &&
              head_dim <= 32 * most_channels && v.rows() * (v.cols() / head_dim) < int64_t{1} << 30,
          "own values {}x{} of {}x{}, heads of {}", v.rows(), v.cols(), o.rows(), o.cols(), head_dim);
    a.o = view<const T>(o);
    a.v = view<const T>(v);
    a.kv_heads = static_cast<int>(v.cols() / head_dim);
    a.each = static_cast<int>(o.cols() / v.cols());
    a.head_dim = static_cast<int>(head_dim);
    a.items = static_cast<int>(v.rows()) * a.kv_heads;
    with_pack<T>(head_dim % wide<T> == 0 && are_aligned, [&](auto n) {
        constexpr int pack = decltype(n)::value;
        a.group = 1;
        while (a.group * pack < head_dim && a.group < 32) a.group *= 2;
        launch(own_value_kernel<T, pack, backward>,
               {dim3(blocks_for(a.items, 256 / a.group)), dim3(256), 0, stream}, a);
    });
}

}  // namespace

void exclude_own_value(Tensor y, const Tensor& o, const Tensor& v, int64_t head_dim, Stream stream) {
    with_element(o.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        OwnValue<T> a{};
        a.y = view<T>(y);
        run<T, false>(a, o, v, head_dim, aligned(y, o, v), stream);
    });
}

void exclude_own_value_backward(Tensor dout, Tensor dv, const Tensor& dy, const Tensor& o, const Tensor& v,
                                int64_t head_dim, Stream stream) {
    with_element(o.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        OwnValue<T> a{};
        a.y = view<T>(dout);
        a.dv = view<T>(dv);
        a.dy = view<const T>(dy);
        run<T, true>(a, o, v, head_dim, aligned(dout, dv, dy, o, v), stream);
    });
}

}  // namespace longreach::cuda
