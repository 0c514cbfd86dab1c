// RMS norm and LayerNorm over the rows of x [N, C].
//
//   n = (x - mean) * r,  r = (var + eps)^(-1/2),  y = gain * n + bias;  RMS: mean = 0, var = mean of squares.
//   g = gain * dy:  dx = r * (g - mean(g) - n * mean(g n))  (RMS without the term mean(g));
//   dgain += sum over rows of dy * n;  dbias += sum of dy.
//
// Saved: n [N, C], r [N]. Per element: forward 8 bytes (12 with a gain: y and n) and 4 FLOPs, backward 12
// bytes (16 when adding) and 8 FLOPs; the second pass over a row finds it in L1. Parallel over rows; backward
// over at most 128 fixed blocks of rows, whose dgain and dbias are folded in block order.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/fold.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

struct Moments {
    float mean, inverse;
};

Moments moments(const float* x, int64_t width, const NormSpec& spec) {
    float mean = 0;
    if (spec.kind == NormKind::layer)
        mean =
            sum_vectors(width, [&](int64_t i, auto n) { return load(x + i, n); }) / static_cast<float>(width);
    const Vec center = splat(mean);
    const auto centered = [&](int64_t i, auto n) { return load(x + i, n, mean) - center; };
    const double squares = sum_products(width, centered, centered);
    return {mean,
            static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + double{spec.eps}))};
}

// y and normalised may be null or equal; gain and bias may be null.
void norm_row(float* y, float* normalised, const float* x, const float* gain, const float* bias, Moments m,
              int64_t width) {
    const Vec center = splat(m.mean), scale = splat(m.inverse);
    for_vectors(width, [&](int64_t i, auto n) {
        Vec v = (load(x + i, n) - center) * scale;
        if (normalised) store(normalised + i, v, n);
        if (gain) v = v * load(gain + i, n);
        if (bias) v = v + load(bias + i, n);
        if (y) store(y + i, v, n);
    });
}

struct BackwardRow {
    float* dx;
    float *dgain, *dbias;  // this block's partial sums, or null
    const float *dy, *normalised, *gain;
    float inverse;
    int64_t width;
    bool centered, add;
};

void norm_backward_row(const BackwardRow& row) {
    const auto gradient = [&](int64_t i, auto n) {
        const Vec dy = load(row.dy + i, n);
        return row.gain ? dy * load(row.gain + i, n) : dy;
    };
    const float width = static_cast<float>(row.width);
    const Vec along = splat(
        sum_products(row.width, gradient, [&](int64_t i, auto n) { return load(row.normalised + i, n); }) /
        width);
    const Vec mean = splat(row.centered ? sum_vectors(row.width, gradient) / width : 0.0f);
    const Vec scale = splat(row.inverse);
    for_vectors(row.width, [&](int64_t i, auto n) {
        const Vec normalised = load(row.normalised + i, n), dy = load(row.dy + i, n);
        const Vec g = row.gain ? dy * load(row.gain + i, n) : dy;
        Vec dx = scale * (g - mean - normalised * along);
        if (row.dgain) store(row.dgain + i, load(row.dgain + i, n) + dy * normalised, n);
        if (row.dbias) store(row.dbias + i, load(row.dbias + i, n) + dy, n);
        if (row.add) dx = load(row.dx + i, n) + dx;
        store(row.dx + i, dx, n);
    });
}

}  // namespace

void CpuOps::do_norm(Tensor y, Tensor normalised, Tensor inverse, const Tensor& x, const Tensor& gain,
                     const Tensor& bias, const NormSpec& spec) {
    const int64_t rows = x.rows(), width = x.cols();
    check(y.rows() == rows && y.cols() == width, "norm of {}x{} into {}x{}", rows, width, y.rows(), y.cols());
    // Where y and normalised are one array, it is written once.
    const bool shared = normalised.data() == y.data();
    check(!shared || !(gain || bias), "norm with a gain or bias needs y and normalised apart");
    for_items(pool_, rows, width, [&](int64_t r) {
        const float* from = x.f32() + r * x.row_stride;
        const Moments m = moments(from, width, spec);
        if (inverse) inverse.f32()[r] = m.inverse;
        float* kept = normalised && !shared ? normalised.f32() + r * normalised.row_stride : nullptr;
        norm_row(y.f32() + r * y.row_stride, kept, from, gain.f32(), bias.f32(), m, width);
    });
}

void CpuOps::do_norm_backward(Tensor dx, Tensor dgain, Tensor dbias, const Tensor& dy,
                              const Tensor& normalised, const Tensor& inverse, const Tensor& gain,
                              const NormSpec& spec, Write write) {
    const int64_t rows = dy.rows(), width = dy.cols();
    check(dx.rows() == rows && dx.cols() == width && normalised.rows() == rows && normalised.cols() == width,
          "norm_backward of {}x{} into {}x{}", rows, width, dx.rows(), dx.cols());
    const int64_t stride = 2 * width;  // dgain | dbias of one block
    const int64_t blocks = fixed_blocks(rows, partial_doubles * 2, stride);
    float* partials = reinterpret_cast<float*>(partials_);
    for_items(pool_, blocks, width * piece(rows, blocks, 0).end, [&](int64_t b) {
        float* partial = partials + b * stride;
        if (dgain) std::fill_n(partial, width, 0.0f);
        if (dbias) std::fill_n(partial + width, width, 0.0f);
        const Range block = piece(rows, blocks, b);
        for (int64_t r = block.begin; r < block.end; ++r)
            norm_backward_row({.dx = dx.f32() + r * dx.row_stride,
                               .dgain = dgain ? partial : nullptr,
                               .dbias = dbias ? partial + width : nullptr,
                               .dy = dy.f32() + r * dy.row_stride,
                               .normalised = normalised.f32() + r * normalised.row_stride,
                               .gain = gain.f32(),
                               .inverse = inverse.f32()[r],
                               .width = width,
                               .centered = spec.kind == NormKind::layer,
                               .add = write == Write::add});
    });
    const int64_t strips = (width + lanes - 1) / lanes;
    for_items(pool_, strips, 2 * lanes * blocks, [&](int64_t s) {
        const Range columns{s * lanes, std::min<int64_t>(width, (s + 1) * lanes)};
        if (dgain) fold(dgain.f32(), partials, blocks, stride, columns);
        if (dbias) fold(dbias.f32(), partials + width, blocks, stride, columns);
    });
}

#include "kernels/cpu/isa_end.h"
