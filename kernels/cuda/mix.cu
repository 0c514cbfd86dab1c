// Mixing of two streams.
//
//   out = a x + b y, scalars a = offset + scale * param
//   dx = a dout,  dy += b dout,  da += scale <dout, x>,  db likewise
//
// Saved: x and y where their coefficient is learned. Accesses per element: 3 forward, 4 to 6 backward; FLOPs: 3,
// and 2 more per dot product. One pack of 16 bytes per thread; the dot products run over fixed blocks, in f32
// within a pack and in f64 across packs.
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

// A coefficient whose parameter is in device memory.
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

void mix_backward(const MixGradients& d, Tensor workspace, const Tensor& dout, const Coefficient& a,
                  const Tensor& x, const Coefficient& b, const Tensor& y, Stream stream) {
    const Tensor read_x = d.a ? x : Tensor(), read_y = d.b ? y : Tensor();
    const int64_t blocks = flat_blocks(dout.count());
    double* partials = d.a || d.b ? workspace.as<double>() : nullptr;
    check(!partials || workspace.bytes() >= mix_backward_workspace(dout.count()),
          "mix_backward workspace of {} bytes", workspace.bytes());
    const Extent extent(dout, d.x, d.y, read_x, read_y);
    with_element(dout.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const bool vectors = extent.width % wide<T> == 0 && aligned(dout, d.x, d.y, read_x, read_y);
        with_pack<T>(vectors, [&](auto n) {
            constexpr int pack = decltype(n)::value;
            const MixBackward<T> arguments{
                view<T>(d.x), view<T>(d.y), view<const T>(dout), view<const T>(read_x), view<const T>(read_y),
                Factor(a),    Factor(b),    extent.rows,         extent.width / pack};
            launch(mix_backward_kernel<T, pack>,
                   {dim3(static_cast<unsigned>(blocks)), dim3(256), sizeof(WarpResults<double, 256>), stream},
                   arguments, partials);
        });
    });
    if (d.a)
        fold_totals({.partials = partials, .count = blocks, .add_to = d.a.f32(), .factor = a.scale}, 1,
                    stream);
    if (d.b)
        fold_totals({.partials = partials + blocks, .count = blocks, .add_to = d.b.f32(), .factor = b.scale},
                    1, stream);
}

}  // namespace longreach::cuda
