// Heads of queries, keys or values after projection, in place.
//
//   per head: r = (mean(x^2) + eps)^(-1/2) or 1; x' = r x; for pairs m < pairs, (x'[m], x'[m + d/2]) turns by
//   the angle of its position: y1 = x1 cos - x2 sin, y2 = x1 sin + x2 cos. Other pairs keep x'. Backward, R
//   the rotation and y the prepared value: dx = r R^T (dy - y <y, dy> / d); without norm dx = R^T dy. (The
//   norm has no gain, so it commutes with R and y alone suffices.)
//
// Saved: y in place and r [N, heads]. Per element 8 bytes and 5 FLOPs forward, 12 bytes and 9 FLOPs backward.
// Parallel over tokens; a token's heads share one row of the tables.
#include <cmath>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// One token's row of the tables.
struct Rotation {
    const float *cosine, *sine;
    int64_t pairs;
};

Rotation rotation_at(const HeadSpec& spec, int64_t token) {
    if (!spec.cosine) return {nullptr, nullptr, 0};
    const int64_t position = token % spec.length;
    return {spec.cosine.f32() + position * spec.cosine.row_stride,
            spec.sine.f32() + position * spec.sine.row_stride, spec.cosine.cols()};
}

void prepare_head(float* x, float inverse, const Rotation& turn, int64_t half) {
    const Vec scale = splat(inverse);
    for_vectors(turn.pairs, [&](int64_t i, auto n) {
        const Vec c = load(turn.cosine + i, n), s = load(turn.sine + i, n);
        const Vec x1 = scale * load(x + i, n), x2 = scale * load(x + half + i, n);
        store(x + i, x1 * c - x2 * s, n);
        store(x + half + i, x1 * s + x2 * c, n);
    });
    if (inverse == 1.0f) return;
    for (float* rest : {x + turn.pairs, x + half + turn.pairs})
        for_vectors(half - turn.pairs,
                    [&](int64_t i, auto n) { store(rest + i, scale * load(rest + i, n), n); });
}

// along = <y, dy> / d, or 0 without norm.
void prepare_head_backward(float* dx, const float* y, float along, float inverse, const Rotation& turn,
                           int64_t half) {
    const Vec scale = splat(inverse), projection = splat(along);
    const auto gradient = [&](int64_t i, auto n) {
        return scale * (load(dx + i, n) - load(y + i, n) * projection);
    };
    for_vectors(turn.pairs, [&](int64_t i, auto n) {
        const Vec c = load(turn.cosine + i, n), s = load(turn.sine + i, n);
        const Vec g1 = gradient(i, n), g2 = gradient(half + i, n);
        store(dx + i, g1 * c + g2 * s, n);
        store(dx + half + i, g2 * c - g1 * s, n);
    });
    for (int64_t begin : {turn.pairs, half + turn.pairs})
        for_vectors(half - turn.pairs,
                    [&](int64_t i, auto n) { store(dx + begin + i, gradient(begin + i, n), n); });
}

void check_shapes(const Tensor& x, const Tensor& inverse, const HeadSpec& spec) {
    check(spec.head_dim % 2 == 0 && spec.heads * spec.head_dim == x.cols(), "{} heads of {} in {} columns",
          spec.heads, spec.head_dim, x.cols());
    check(spec.norm == HeadNorm::none || (inverse.rows() == x.rows() && inverse.cols() == spec.heads),
          "inverse is {}x{}", inverse.rows(), inverse.cols());
    check(!spec.cosine || (spec.cosine.cols() <= spec.head_dim / 2 && spec.cosine.rows() >= spec.length &&
                           spec.sine.cols() == spec.cosine.cols() && spec.sine.rows() == spec.cosine.rows()),
          "rotary tables {}x{} for length {}", spec.cosine.rows(), spec.cosine.cols(), spec.length);
}

}  // namespace

void CpuOps::prepare_heads(Tensor x, Tensor, Tensor inverse, const HeadSpec& spec) {
    check_shapes(x, inverse, spec);
    const int64_t rows = x.rows(), d = spec.head_dim;
    const bool normed = spec.norm != HeadNorm::none;
    if (!normed && !spec.cosine) return;
#pragma omp parallel for schedule(static) \
    num_threads(threads_) if (rows * spec.heads * d > parallel_threshold)
    for (int64_t r = 0; r < rows; ++r) {
        const Rotation turn = rotation_at(spec, r);
        const int64_t next = r + 1 < rows ? x.row_stride : 0;
        for (int64_t h = 0; h < spec.heads; ++h) {
            float* head = x.f32() + r * x.row_stride + h * d;
            prefetch(head + next, d);
            float scale = 1.0f;
            if (normed) {
                const double squares = sum_vectors(d, [&](int64_t i, auto n) {
                    const Vec v = load(head + i, n);
                    return v * v;
                });
                scale =
                    static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(d) + double{spec.eps}));
                inverse.f32()[r * inverse.row_stride + h] = scale;
            }
            prepare_head(head, scale, turn, d / 2);
        }
    }
}

void CpuOps::prepare_heads_backward(Tensor dx, Tensor, Tensor, Tensor, const Tensor& x, const Tensor&,
                                    const Tensor& inverse, const HeadSpec& spec) {
    check_shapes(x, inverse, spec);
    check(dx.rows() == x.rows() && dx.cols() == x.cols(), "dx is {}x{}", dx.rows(), dx.cols());
    const int64_t rows = x.rows(), d = spec.head_dim;
    const bool normed = spec.norm != HeadNorm::none;
    if (!normed && !spec.cosine) return;
#pragma omp parallel for schedule(static) \
    num_threads(threads_) if (rows * spec.heads * d > parallel_threshold)
    for (int64_t r = 0; r < rows; ++r) {
        const Rotation turn = rotation_at(spec, r);
        const int64_t next = r + 1 < rows ? 1 : 0;
        for (int64_t h = 0; h < spec.heads; ++h) {
            float* gradient = dx.f32() + r * dx.row_stride + h * d;
            const float* y = x.f32() + r * x.row_stride + h * d;
            prefetch(gradient + next * dx.row_stride, d);
            prefetch(y + next * x.row_stride, d);
            float along = 0.0f, scale = 1.0f;
            if (normed) {
                along = sum_vectors(
                            d, [&](int64_t i, auto n) { return load(y + i, n) * load(gradient + i, n); }) /
                        static_cast<float>(d);
                scale = inverse.f32()[r * inverse.row_stride + h];
            }
            prepare_head_backward(gradient, y, along, scale, turn, d / 2);
        }
    }
}

#include "kernels/cpu/isa_end.h"
