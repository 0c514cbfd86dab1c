// Adam over lists of tensors, f32. g is the gradient times gradient_scale.
//
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//
// 28 bytes and 14 FLOPs per parameter: one launch for up to 32 tensors, whose addresses and scalars travel as
// arguments; a block takes 4096 parameters of one tensor.
#include <cmath>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr int64_t adam_block = 4096;  // parameters
constexpr int adam_slots = 32;  // of a launch: their descriptions stay below the 4 KiB arguments may take

struct AdamTensor {
    float *param, *first, *second;
    const float* gradient;
    int64_t count;
    // keep = 1 - lr wd, rate = lr / (1 - b1^t)
    float keep, rate;
    unsigned begin;  // first block
    bool vectors;
};
struct AdamList {
    AdamTensor of[adam_slots];
    int slots;
    float gradient_scale, beta1, rest1, beta2, rest2, inverse_sqrt_c2, eps;  // c2 = 1 - b2^t
};

template <int n>
DEVICE void adam_pack(const AdamList& k, const AdamTensor& t, int64_t i) {
    const Pack<n> gradient = load<n>(t.gradient + i);
    Pack<n> param = load<n>(t.param + i), first = load<n>(t.first + i), second = load<n>(t.second + i);
#pragma unroll
    for (int e = 0; e < n; ++e) {
        const float g = gradient[e] * k.gradient_scale;
        first[e] = fmaf(k.beta1, first[e], k.rest1 * g);
        second[e] = fmaf(k.beta2, second[e], k.rest2 * g * g);
        const float step = t.rate * first[e] / fmaf(sqrtf(second[e]), k.inverse_sqrt_c2, k.eps);
        param[e] = t.keep * param[e] - step;
    }
    store(t.first + i, first);
    store(t.second + i, second);
    store(t.param + i, param);
}

KERNEL(256) void adam_kernel(AdamList list) {
    int slot = 0;
    while (slot + 1 < list.slots && blockIdx.x >= list.of[slot + 1].begin) ++slot;
    const AdamTensor& t = list.of[slot];
    const int64_t begin = static_cast<int64_t>(blockIdx.x - t.begin) * adam_block;
    const int64_t end = begin + adam_block < t.count ? begin + adam_block : t.count;
    if (t.vectors) {
        for (int64_t i = begin + threadIdx.x * 4; i < end; i += 256 * 4) adam_pack<4>(list, t, i);
    } else {
        for (int64_t i = begin + threadIdx.x; i < end; i += 256) adam_pack<1>(list, t, i);
    }
}

}  // namespace

void adam(std::span<const AdamSlot> slots, const AdamSpec& spec, Stream stream) {
    const double step = static_cast<double>(spec.step);
    const double c1 = 1.0 - std::pow(double{spec.beta1}, step), c2 = 1.0 - std::pow(double{spec.beta2}, step);
    AdamList list{.of = {},
                  .slots = 0,
                  .gradient_scale = spec.gradient_scale,
                  .beta1 = spec.beta1,
                  .rest1 = static_cast<float>(1.0 - double{spec.beta1}),
                  .beta2 = spec.beta2,
                  .rest2 = static_cast<float>(1.0 - double{spec.beta2}),
                  .inverse_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(c2)),
                  .eps = spec.eps};
    static_assert(sizeof(AdamList) <= 4096);
    unsigned blocks = 0;
    const auto flush = [&] {
        if (blocks > 0) launch(adam_kernel, {dim3(blocks), dim3(256), 0, stream}, list);
        list.slots = 0;
        blocks = 0;
    };
    for (const AdamSlot& slot : slots) {
        const int64_t count = slot.param.count();
        check(slot.gradient.count() == count && slot.first.count() == count && slot.second.count() == count,
              "adam slot of {} with {}, {}, {}", count, slot.gradient.count(), slot.first.count(),
              slot.second.count());
        check(slot.param.contiguous() && slot.gradient.contiguous() && slot.first.contiguous() &&
                  slot.second.contiguous(),
              "adam on a strided tensor of {}", count);
        if (count == 0) continue;
        list.of[list.slots++] = {
            .param = slot.param.f32(),
            .first = slot.first.f32(),
            .second = slot.second.f32(),
            .gradient = slot.gradient.f32(),
            .count = count,
            .keep = static_cast<float>(1.0 - double{slot.learning_rate} * slot.weight_decay),
            .rate = static_cast<float>(slot.learning_rate / c1),
            .begin = blocks,
            .vectors = count % 4 == 0 && aligned(slot.param, slot.gradient, slot.first, slot.second)};
        blocks += blocks_for(count, adam_block);
        if (list.slots == adam_slots) flush();
    }
    flush();
}

}  // namespace longreach::cuda
