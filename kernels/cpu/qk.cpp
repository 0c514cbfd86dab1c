// Queries and keys after projection, in place on the first (H+G)*d columns of qkv [N, Q].
//
//   per head: r = (mean(x^2) + eps)^(-1/2) or 1; x' = r x; for pairs m < pairs, (x'[m], x'[m + d/2]) turns by
//   the angle of its position: y1 = x1 cos - x2 sin, y2 = x1 sin + x2 cos. Other pairs keep x'. Backward, R
//   the rotation and y the prepared value: dx = r R^T (dy - y <y, dy> / d); without norm dx = R^T dy. (The
//   norm has no gain, so it commutes with R and y alone suffices.)
//
// Saved: y in place and r [N, H+G]. Per element 8 bytes and 5 FLOPs forward, 12 bytes and 9 FLOPs backward.
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

Rotation rotation_at(const QkSpec& spec, int64_t token) {
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

void check_shapes(const Tensor& qkv, const Tensor& inverse, const QkSpec& spec) {
    const int64_t heads = spec.heads + spec.kv_heads;
    check(spec.head_dim % 2 == 0 && heads * spec.head_dim <= qkv.cols(), "{} heads of {} in {} columns",
          heads, spec.head_dim, qkv.cols());
    check(!spec.norm || (inverse.rows() == qkv.rows() && inverse.cols() == heads), "inverse is {}x{}",
          inverse.rows(), inverse.cols());
    check(!spec.cosine || (spec.cosine.cols() <= spec.head_dim / 2 && spec.cosine.rows() >= spec.length &&
                           spec.sine.cols() == spec.cosine.cols() && spec.sine.rows() == spec.cosine.rows()),
          "rotary tables {}x{} for length {}", spec.cosine.rows(), spec.cosine.cols(), spec.length);
}

}  // namespace

void CpuOps::qk_prepare(Tensor qkv, Tensor inverse, const QkSpec& spec) {
    check_shapes(qkv, inverse, spec);
    const int64_t rows = qkv.rows(), heads = spec.heads + spec.kv_heads, d = spec.head_dim;
    if (!spec.norm && !spec.cosine) return;
#pragma omp parallel for schedule(static) num_threads(threads_) if (rows * heads * d > parallel_threshold)
    for (int64_t r = 0; r < rows; ++r) {
        const Rotation turn = rotation_at(spec, r);
        const int64_t next = r + 1 < rows ? qkv.row_stride : 0;
        for (int64_t h = 0; h < heads; ++h) {
            float* x = qkv.f32() + r * qkv.row_stride + h * d;
            prefetch(x + next, d);
            float scale = 1.0f;
            if (spec.norm) {
                const double squares = sum_vectors(d, [&](int64_t i, auto n) {
                    const Vec v = load(x + i, n);
                    return v * v;
                });
                scale =
                    static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(d) + double{spec.eps}));
                inverse.f32()[r * inverse.row_stride + h] = scale;
            }
            prepare_head(x, scale, turn, d / 2);
        }
    }
}

void CpuOps::qk_prepare_backward(Tensor dqkv, const Tensor& qkv, const Tensor& inverse, const QkSpec& spec) {
    check_shapes(qkv, inverse, spec);
    check(dqkv.rows() == qkv.rows() && dqkv.cols() >= (spec.heads + spec.kv_heads) * spec.head_dim,
          "dqkv is {}x{}", dqkv.rows(), dqkv.cols());
    const int64_t rows = qkv.rows(), heads = spec.heads + spec.kv_heads, d = spec.head_dim;
    if (!spec.norm && !spec.cosine) return;
#pragma omp parallel for schedule(static) num_threads(threads_) if (rows * heads * d > parallel_threshold)
    for (int64_t r = 0; r < rows; ++r) {
        const Rotation turn = rotation_at(spec, r);
        const int64_t next = r + 1 < rows ? 1 : 0;
        for (int64_t h = 0; h < heads; ++h) {
            float* dx = dqkv.f32() + r * dqkv.row_stride + h * d;
            const float* y = qkv.f32() + r * qkv.row_stride + h * d;
            prefetch(dx + next * dqkv.row_stride, d);
            prefetch(y + next * qkv.row_stride, d);
            float along = 0.0f, scale = 1.0f;
            if (spec.norm) {
                along = sum_vectors(d, [&](int64_t i, auto n) { return load(y + i, n) * load(dx + i, n); }) /
                        static_cast<float>(d);
                scale = inverse.f32()[r * inverse.row_stride + h];
            }
            prepare_head_backward(dx, y, along, scale, turn, d / 2);
        }
    }
}

#include "kernels/cpu/isa_end.h"
