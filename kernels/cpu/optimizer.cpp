// Adam and Muon over lists of tensors, f32.
//
//   Adam   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//          w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//
// g is the gradient times gradient_scale. Adam moves 28 bytes and takes 14 FLOPs per parameter.
// Adam is parallel over fixed blocks of all tensors together.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

constexpr int64_t adam_block = 1 << 12;  // parameters: four arrays of 16 KiB, in L2

int64_t blocks_of(const AdamSlot& slot) {
    return (slot.param.count() + adam_block - 1) / adam_block;
}

// The scalars of one slot, with the bias corrections folded in:
// lr / c1 * m / (sqrt(v) / sqrt(c2) + eps), c = 1 - beta^t.
struct AdamScalars {
    float gradient_scale, beta1, rest1, beta2, rest2, keep, rate, inverse_sqrt_c2, eps;
};
AdamScalars adam_scalars(const AdamSlot& slot, const AdamSpec& spec) {
    const double step = static_cast<double>(spec.step);
    const double c1 = 1.0 - std::pow(double{spec.beta1}, step), c2 = 1.0 - std::pow(double{spec.beta2}, step);
    return {.gradient_scale = spec.gradient_scale,
            .beta1 = spec.beta1,
            .rest1 = static_cast<float>(1.0 - double{spec.beta1}),
            .beta2 = spec.beta2,
            .rest2 = static_cast<float>(1.0 - double{spec.beta2}),
            .keep = static_cast<float>(1.0 - double{slot.learning_rate} * slot.weight_decay),
            .rate = static_cast<float>(slot.learning_rate / c1),
            .inverse_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(c2)),
            .eps = spec.eps};
}

void adam_span(const AdamSlot& slot, const AdamScalars& k, int64_t begin, int64_t count) {
    float *param = slot.param.f32() + begin, *first = slot.first.f32() + begin,
          *second = slot.second.f32() + begin;
    const float* gradient = slot.gradient.f32() + begin;
    for_vectors(count, [&](int64_t i, auto n) {
        const Vec g = load(gradient + i, n) * splat(k.gradient_scale);
        const Vec m = fma(splat(k.beta1), load(first + i, n), splat(k.rest1) * g);
        const Vec v = fma(splat(k.beta2), load(second + i, n), splat(k.rest2) * g * g);
        const Vec step = splat(k.rate) * m / fma(sqrt(v), splat(k.inverse_sqrt_c2), splat(k.eps));
        store(first + i, m, n);
        store(second + i, v, n);
        store(param + i, splat(k.keep) * load(param + i, n) - step, n);
    });
}

// Blocks [begin, end) of the slots laid end to end.
void adam_blocks(std::span<const AdamSlot> slots, const AdamSpec& spec, Range range) {
    int64_t first = 0;  // number of the slot's first block
    for (const AdamSlot& slot : slots) {
        const int64_t blocks = blocks_of(slot);
        const int64_t from = std::max(range.begin - first, int64_t{0}),
                      to = std::min(range.end - first, blocks);
        if (from < to) {
            const AdamScalars scalars = adam_scalars(slot, spec);
            const int64_t begin = from * adam_block, end = std::min(to * adam_block, slot.param.count());
            adam_span(slot, scalars, begin, end - begin);
        }
        first += blocks;
    }
}

}  // namespace

void CpuOps::adam(std::span<const AdamSlot> slots, const AdamSpec& spec) {
    int64_t blocks = 0, parameters = 0;
    for (const AdamSlot& slot : slots) {
        const int64_t count = slot.param.count();
        check(slot.gradient.count() == count && slot.first.count() == count && slot.second.count() == count,
              "adam slot of {} with {}, {}, {}", count, slot.gradient.count(), slot.first.count(),
              slot.second.count());
        check(slot.param.contiguous() && slot.gradient.contiguous() && slot.first.contiguous() &&
                  slot.second.contiguous(),
              "adam on a strided tensor of {}", count);
        blocks += blocks_of(slot);
        parameters += count;
    }
    // Elementwise: who does which block changes nothing, so every thread takes one run of blocks.
    const int64_t runs = threads_;
#pragma omp parallel for schedule(static) num_threads(threads_) if (parameters > parallel_threshold)
    for (int64_t r = 0; r < runs; ++r) adam_blocks(slots, spec, piece(blocks, runs, r));
}

#include "kernels/cpu/isa_end.h"
