// Heads of queries, keys or values after projection, in place.
//
//   Per head of d channels: n = (x - mean) * r, r = (var + eps)^(-1/2) (rms: mean = 0, var the mean of the
//   squares; none: n = x); a = gain * n + bias; for pairs m < pairs, (a[m], a[m + d/2]) turns by the angle of
//   its position: y1 = a1 cos - a2 sin, y2 = a1 sin + a2 cos. Other pairs keep a.
//
//   Backward, R the rotation, h = R^T dy:
//     none                dx = h
//     rms without a gain  dx = r R^T (dy - y <y, dy> / d): the norm commutes with R, so y alone suffices
//     with a gain         g = gain * h: dx = r (g - n mean(g n)), layer: less mean(g);
//                         dgain += h n, dbias += h over tokens and heads
//     eps = e^u           du += eps * sum of -1/2 r^2 <n, gradient at n>
//
// Saved: y in place, r [N, heads], with a gain n. In units of the element size: 2 accesses per element and 5
// FLOPs forward (3 and 7 with a gain), 3 and 9 backward. A head belongs to a group of 1 to 32 lanes, each of
// which holds the same packs of both halves, so that a rotation stays inside a thread. Forward one group per
// head; backward fixed blocks of rows, head by head, the sums in registers until the block ends.
#include <algorithm>

#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

template <class T>
struct Heads {
    View<T> x;           // forward in place; backward the gradient
    View<T> normalised;  // with a gain
    View<const T> kept;  // backward: the prepared heads
    View<float> inverse;
    View<const float> cosine, sine;
    const float *gain, *bias, *log_eps;
    bool shared_eps;
    HeadNorm norm;
    float eps;
    int rows, length, heads, half, pairs, group;
    int sharing;  // consecutive heads with the same angles
};

// A thread's share of one head: packs p * group + lane of the first half, and those d/2 channels on.
template <int n, int packs>
struct Share {
    Pack<n> first[packs], second[packs];
};

template <int n, int packs, class T>
DEVICE Share<n, packs> load_share(const T* head, int lane, int group, int half, bool active) {
    Share<n, packs> share;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
        const int m = (p * group + lane) * n;
        if (active && m < half) {
            share.first[p] = load<n>(head + m);
            share.second[p] = load<n>(head + half + m);
        } else {
#pragma unroll
            for (int k = 0; k < n; ++k) share.first[p][k] = share.second[p][k] = 0.0f;
        }
    }
    return share;
}
template <int n, int packs, class T>
DEVICE void store_share(T* head, const Share<n, packs>& share, int lane, int group, int half, bool active) {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
        const int m = (p * group + lane) * n;
        if (!active || m >= half) continue;
        store(head + m, share.first[p]);
        store(head + half + m, share.second[p]);
    }
}

// Turned by the angles of a position; direction -1: back.
template <int n, int packs, class T>
DEVICE void turn(Share<n, packs>& share, const Heads<T>& a, int position, int head, int lane,
                 float direction) {
    const int column = head < a.sharing ? 0 : head / a.sharing * a.pairs;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
        const int m = (p * a.group + lane) * n;
        if (m >= a.pairs) continue;
        const Pack<n> c = load<n>(a.cosine.at(position, column + m)),
                      s = load<n>(a.sine.at(position, column + m));
#pragma unroll
        for (int k = 0; k < n; ++k) {
            const float x1 = share.first[p][k], x2 = share.second[p][k], turned = direction * s[k];
            // Written out, since a compiler chooses by what surrounds it, and a gain of 1 would change bits.
            share.first[p][k] = fmaf(x1, c[k], -(x2 * turned));
            share.second[p][k] = fmaf(x1, turned, x2 * c[k]);
        }
    }
}

// Sum of term(first, second) of two shares over a head.
template <int n, int packs, class Term>
DEVICE float head_sum(const Share<n, packs>& a, const Share<n, packs>& b, int group, Term term) {
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < packs; ++p)
#pragma unroll
        for (int k = 0; k < n; ++k)
            sum += term(a.first[p][k], b.first[p][k]) + term(a.second[p][k], b.second[p][k]);
    return lanes_sum(sum, group);
}
// Every element of a share in turn: body(element of a, element of b).
template <int n, int packs, class Body>
DEVICE void each(Share<n, packs>& a, const Share<n, packs>& b, Body body) {
#pragma unroll
    for (int p = 0; p < packs; ++p)
#pragma unroll
        for (int k = 0; k < n; ++k) {
            body(a.first[p][k], b.first[p][k]);
            body(a.second[p][k], b.second[p][k]);
        }
}

struct Product {
    DEVICE float operator()(float a, float b) const { return a * b; }
};

// eps of a head.
template <class T>
DEVICE float eps_of(const Heads<T>& a, int head) {
    return a.log_eps ? expf(a.log_eps[a.shared_eps ? 0 : head]) : a.eps;
}

template <class T, int n, int packs>
KERNEL(256)
void prepare_heads_kernel(Heads<T> a) {
    const int64_t item = (static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x) / a.group;
    const bool active = item < static_cast<int64_t>(a.rows) * a.heads;
    const int row = active ? static_cast<int>(item) / a.heads : 0;
    const int head = active ? static_cast<int>(item) % a.heads : 0;
    const int lane = static_cast<int>(threadIdx.x) % a.group, d = 2 * a.half;
    T* x = a.x.at(row, head * d);
    auto share = load_share<n, packs>(x, lane, a.group, a.half, active);
    if (a.norm != HeadNorm::none) {
        const float width = static_cast<float>(d);
        if (a.norm == HeadNorm::layer) {
            const float mean = head_sum(share, share, a.group, [](float v, float) { return v; }) / width;
#pragma unroll
            for (int p = 0; p < packs; ++p) {
                if ((p * a.group + lane) * n >= a.half) continue;  // what pads the head stays zero
#pragma unroll
                for (int k = 0; k < n; ++k) {
                    share.first[p][k] -= mean;
                    share.second[p][k] -= mean;
                }
            }
        }
        const float squares = head_sum(share, share, a.group, Product{});
        const float inverse = 1.0f / sqrtf(squares / width + eps_of(a, head));
        if (active && lane == 0) *a.inverse.at(row, head) = inverse;
        each(share, share, [&](float& v, float) { v *= inverse; });
        if (a.gain) {
            store_share(a.normalised.at(row, head * d), share, lane, a.group, a.half, active);
            each(share, load_share<n, packs>(a.gain, lane, a.group, a.half, true),
                 [](float& v, float gain) { v *= gain; });
            if (a.bias)
                each(share, load_share<n, packs>(a.bias, lane, a.group, a.half, true),
                     [](float& v, float bias) { v += bias; });
        }
    }
    turn(share, a, row % a.length, head, lane, 1.0f);
    store_share(x, share, lane, a.group, a.half, active);
}

template <int n, int packs>
struct BackwardShared {
    float sums[256 * 2 * n * packs];  // [groups, d]
    WarpResults<double, 256> results;
};

// A block's sums over its rows and heads: of_gain [blocks, 2d] dgain | dbias or null,
// of_eps [heads, blocks] or null.
template <class T, int n, int packs>
KERNEL(256)
void prepare_heads_backward_kernel(Heads<T> a, float* of_gain, double* of_eps) {
    auto& space = shared<BackwardShared<n, packs>>();
    const int lane = static_cast<int>(threadIdx.x) % a.group, d = 2 * a.half;
    const int groups = 256 / a.group, own = static_cast<int>(threadIdx.x) / a.group;
    const Range block = piece_of(a.rows, gridDim.x, blockIdx.x);
    const int begin = static_cast<int>(block.begin), end = static_cast<int>(block.end);
    const float width = static_cast<float>(d);
    Share<n, packs> dgain{}, dbias{}, gain{};
    if (a.gain) gain = load_share<n, packs>(a.gain, lane, a.group, a.half, true);
    for (int head = 0; head < a.heads; ++head) {
        double of_head = 0.0;
        for (int base = begin; base < end; base += groups) {
            const bool active = base + own < end;
            const int row = active ? base + own : begin, position = row % a.length;
            T* dx = a.x.at(row, head * d);
            auto g = load_share<n, packs>(dx, lane, a.group, a.half, active);
            if (a.norm != HeadNorm::none) {
                const float inverse = *a.inverse.at(row, head);
                float along;
                if (a.gain) {
                    turn(g, a, position, head, lane, -1.0f);
                    const auto v =
                        load_share<n, packs>(a.normalised.at(row, head * d), lane, a.group, a.half, active);
                    if (of_gain) {
#pragma unroll
                        for (int p = 0; p < packs; ++p)
#pragma unroll
                            for (int k = 0; k < n; ++k) {
                                dgain.first[p][k] = fmaf(g.first[p][k], v.first[p][k], dgain.first[p][k]);
                                dgain.second[p][k] = fmaf(g.second[p][k], v.second[p][k], dgain.second[p][k]);
                            }
                        each(dbias, g, [](float& sum, float h) { sum += h; });
                    }
                    each(g, gain, [](float& h, float w) { h *= w; });
                    along = head_sum(g, v, a.group, Product{});
                    const float mean = a.norm == HeadNorm::layer
                                           ? head_sum(g, g, a.group, [](float h, float) { return h; }) / width
                                           : 0.0f;
                    const float projection = along / width;
                    each(g, v,
                         [&](float& h, float normal) { h = inverse * (h - mean - normal * projection); });
                } else {
                    const auto y =
                        load_share<n, packs>(a.kept.at(row, head * d), lane, a.group, a.half, active);
                    along = head_sum(y, g, a.group, Product{});
                    const float projection = along / width;
                    each(g, y, [&](float& h, float normal) { h = inverse * (h - normal * projection); });
                    turn(g, a, position, head, lane, -1.0f);
                }
                if (active && lane == 0) of_head -= 0.5 * inverse * inverse * along;
            } else {
                turn(g, a, position, head, lane, -1.0f);
            }
            store_share(dx, g, lane, a.group, a.half, active);
        }
        if (of_eps) {
            const double sum = block_sum<256>(of_head, space.results);
            if (threadIdx.x == 0) of_eps[static_cast<int64_t>(head) * gridDim.x + blockIdx.x] = sum;
        }
    }
    if (!of_gain) return;
    for (int which = 0; which < 2; ++which) {
        store_share(space.sums + own * d, which == 0 ? dgain : dbias, lane, a.group, a.half, true);
        __syncthreads();
        for (int c = static_cast<int>(threadIdx.x); c < d; c += 256) {
            float sum = space.sums[c];
            for (int g = 1; g < groups; ++g) sum += space.sums[g * d + c];
            of_gain[(static_cast<int64_t>(blockIdx.x) * 2 + which) * d + c] = sum;
        }
        __syncthreads();
    }
}

void check_shapes(const Tensor& x, const Tensor& normalised, const Tensor& inverse, const HeadSpec& spec) {
    check(spec.head_dim % 2 == 0 && spec.head_dim <= 256 && spec.heads * spec.head_dim == x.cols(),
          "{} heads of {} in {} columns", spec.heads, spec.head_dim, x.cols());
    check(x.rows() * spec.heads < int64_t{1} << 31, "{} heads", x.rows() * spec.heads);
    check(spec.norm == HeadNorm::none || (inverse.rows() == x.rows() && inverse.cols() == spec.heads),
          "inverse is {}x{}", inverse.rows(), inverse.cols());
    check(spec.angle_heads > 0 && spec.heads % spec.angle_heads == 0 &&
              spec.cosine.cols() % spec.angle_heads == 0,
          "{} angles of {} heads for {}", spec.cosine.cols(), spec.angle_heads, spec.heads);
    check(!spec.cosine || (spec.cosine.cols() / spec.angle_heads <= spec.head_dim / 2 &&
                           spec.cosine.rows() >= spec.length && spec.sine.cols() == spec.cosine.cols() &&
                           spec.sine.rows() == spec.cosine.rows()),
          "rotary tables {}x{} for length {}", spec.cosine.rows(), spec.cosine.cols(), spec.length);
    check(!spec.gain || (spec.norm != HeadNorm::none && spec.gain.count() == spec.head_dim &&
                         normalised.rows() == x.rows() && normalised.cols() == x.cols()),
          "a gain of {} on heads of {}, normalised is {}x{}", spec.gain.count(), spec.head_dim,
          normalised.rows(), normalised.cols());
    check(!spec.bias || (spec.gain && spec.bias.count() == spec.head_dim), "a bias of {} on heads of {}",
          spec.bias.count(), spec.head_dim);
    check(spec.norm != HeadNorm::layer || (spec.gain && spec.bias), "a layer norm without gain and bias");
    check(!spec.log_eps || (spec.norm == HeadNorm::rms &&
                            (spec.log_eps.count() == 1 || spec.log_eps.count() == spec.heads)),
          "{} learned eps for {} heads", spec.log_eps.count(), spec.heads);
}

// body(arguments, n, packs): as many lanes per head as its half has packs.
template <class Body>
void with_heads(const Tensor& in_place, const Tensor& kept, const Tensor& normalised, const Tensor& inverse,
                const HeadSpec& spec, Body body) {
    with_element(in_place.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const int64_t half_dim = spec.head_dim / 2, pairs = spec.cosine.cols() / spec.angle_heads;
        const bool vectors =
            half_dim % wide<T> == 0 && pairs % wide<T> == 0 &&
            aligned(in_place, kept, normalised, spec.gain, spec.bias, spec.cosine, spec.sine);
        with_pack<T>(vectors, [&](auto n) {
            constexpr int pack = decltype(n)::value, packs = pack == 1 ? 4 : 1;
            int group = 1;
            while (group * pack < half_dim && group < 32) group *= 2;
            const Heads<T> arguments{.x = view<T>(in_place),
                                     .normalised = view<T>(normalised),
                                     .kept = view<const T>(kept),
                                     .inverse = view<float>(inverse),
                                     .cosine = view<const float>(spec.cosine),
                                     .sine = view<const float>(spec.sine),
                                     .gain = spec.gain.f32(),
                                     .bias = spec.bias.f32(),
                                     .log_eps = spec.log_eps.f32(),
                                     .shared_eps = spec.log_eps.count() == 1,
                                     .norm = spec.norm,
                                     .eps = spec.eps,
                                     .rows = static_cast<int>(in_place.rows()),
                                     .length = static_cast<int>(spec.length),
                                     .heads = static_cast<int>(spec.heads),
                                     .half = static_cast<int>(half_dim),
                                     .pairs = static_cast<int>(pairs),
                                     .group = group,
                                     .sharing = static_cast<int>(spec.heads / spec.angle_heads)};
            body(arguments, n, std::integral_constant<int, packs>{});
        });
    });
}

}  // namespace

void prepare_heads(Tensor x, Tensor normalised, Tensor inverse, const HeadSpec& spec, Stream stream) {
    check_shapes(x, normalised, inverse, spec);
    if (spec.norm == HeadNorm::none && !spec.cosine) return;
    with_heads(x, Tensor(), normalised, inverse, spec, [&](const auto& arguments, auto n, auto packs) {
        using T = std::remove_pointer_t<decltype(arguments.x.data)>;
        const int64_t threads = int64_t{arguments.rows} * arguments.heads * arguments.group;
        launch(prepare_heads_kernel<T, decltype(n)::value, decltype(packs)::value>,
               {dim3(blocks_for(threads, 256)), dim3(256), 0, stream}, arguments);
    });
}

void prepare_heads_backward(const HeadGradients& d, Tensor workspace, const Tensor& x,
                            const Tensor& normalised, const Tensor& inverse, const HeadSpec& spec,
                            Stream stream) {
    check_shapes(x, normalised, inverse, spec);
    check(d.x.rows() == x.rows() && d.x.cols() == x.cols(), "dx is {}x{}", d.x.rows(), d.x.cols());
    check((!d.gain || spec.gain) && (!d.bias || spec.bias) && (!d.log_eps || spec.log_eps),
          "a gradient of something the heads do not have");
    check(!d.log_eps || d.log_eps.count() == spec.log_eps.count(), "{} gradients of {} learned eps",
          d.log_eps.count(), spec.log_eps.count());
    if (spec.norm == HeadNorm::none && !spec.cosine) return;
    const int64_t blocks = row_blocks(x.rows()), head_dim = spec.head_dim, heads = spec.heads;
    const bool sums = d.gain || d.bias || d.log_eps;
    check(!sums || workspace.bytes() >= prepare_heads_backward_workspace(x.rows(), heads, head_dim),
          "prepare_heads_backward workspace of {} bytes", workspace.bytes());
    double* of_eps = workspace.as<double>();
    float* of_gain = reinterpret_cast<float*>(of_eps + (sums ? blocks * heads : 0));
    with_heads(d.x, x, normalised, inverse, spec, [&](const auto& arguments, auto n, auto packs) {
        using T = std::remove_pointer_t<decltype(arguments.x.data)>;
        constexpr int pack = decltype(n)::value, per_lane = decltype(packs)::value;
        launch(
            prepare_heads_backward_kernel<T, pack, per_lane>,
            {dim3(static_cast<unsigned>(blocks)), dim3(256), sizeof(BackwardShared<pack, per_lane>), stream},
            arguments, d.gain || d.bias ? of_gain : nullptr, d.log_eps ? of_eps : nullptr);
    });
    if (d.gain) fold_columns(d.gain.f32(), of_gain, blocks, 2 * head_dim, head_dim, stream);
    if (d.bias) fold_columns(d.bias.f32(), of_gain + head_dim, blocks, 2 * head_dim, head_dim, stream);
    if (!d.log_eps) return;
    const int64_t sharing = heads / d.log_eps.count();  // heads with the same eps
    fold_totals({.partials = of_eps,
                 .count = sharing * blocks,
                 .step = sharing * blocks,
                 .add_to = d.log_eps.f32(),
                 .log_factor = spec.log_eps.f32()},
                d.log_eps.count(), stream);
}

}  // namespace longreach::cuda
