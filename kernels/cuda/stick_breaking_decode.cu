// Stick-breaking attention of one query per sequence against keys and values computed before; scores as
// attention_spec.h says, weights as stick_breaking.cuh does.
//
// A block per sequence and head. It meets 128 keys at a time, from the one before the query back to the first or
// until the stick is used up: warps sum products over channels, a thread breaks the stick at its key, and then
// threads have channels and add the values in order of the keys. Keys and values are read once.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stick_breaking.cuh"

namespace longreach::cuda {
namespace {

constexpr int most_channels = 640;  // of latents that are one head to all queries

struct StickDecodeShared {
    float query[most_channels];
    float score[stick_threads];  // <q, k>, then P
    float left[stick_warps];     // sums of b over a warp's keys
};

template <class T>
struct StickDecode {
    View<T> o;
    View<const T> q, k, v;
    View<const float> factor, gain, bias;  // data null: absent
    bool factor_by_head, gain_by_head, bias_by_head;
    int64_t entries;  // of a distance table
    int length, first, position, group, channels;
    float scale, softcap;

    // y2 of a key, from <q, k>.
    DEVICE float logit(float s, int head, int64_t sequence, int key) const {
        float y = scale * s;
        if (softcap > 0.0f) y = softcap * tanhf(y / softcap);
        if (factor.data) y *= *factor.at(factor_by_head ? head : 0, sequence);
        if (gain.data) {
            const int64_t entry = entries - 1 - (position - key);
            y = *gain.at(gain_by_head ? head : 0, entry) * y + *bias.at(bias_by_head ? head : 0, entry);
        }
        return y * log2_e;
    }
};

template <class T>
KERNEL(stick_threads)
void stick_decode_kernel(StickDecode<T> in) {
    auto& space = shared<StickDecodeShared>();
    const int head = static_cast<int>(blockIdx.x), d = in.channels;
    const int64_t sequence = blockIdx.y;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int64_t from = static_cast<int64_t>(head) * d, from_kv = static_cast<int64_t>(head / in.group) * d;
    constexpr int each = most_channels / stick_threads;  // channels of a thread
    float output[each] = {};
    for (int c = thread; c < d; c += stick_threads) space.query[c] = widen(in.q.at(sequence, from)[c]);
    float broken = 0.0f;
    for (int end = in.position; end > in.first && !(broken > used_up); end -= stick_threads) {
        const int begin = end - stick_threads;  // may lie before the first key, and before the sequence
        const auto row_of = [&](int slot) { return sequence * in.length + begin + slot; };
        __syncthreads();  // the query is there, and nobody needs the weights before
        for (int slot = warp * 32; slot < warp * 32 + 32; ++slot) {
            if (begin + slot < in.first) continue;
            const T* key = in.k.at(row_of(slot), from_kv);
            float part = 0.0f;
            for (int c = lane; c < d; c += 32) part = fmaf(space.query[c], widen(key[c]), part);
            const float sum = warp_sum(part);
            if (lane == 0) space.score[slot] = sum;
        }
        __syncwarp();
        const bool seen = begin + thread >= in.first;
        const float y2 = seen ? in.logit(space.score[thread], head, sequence, begin + thread) : 0.0f;
        const Break b = break_at(y2);
        const NearerSum left = sum_of_nearer(seen ? b.left : 0.0f, lane);
        if (lane == 0) space.left[warp] = left.total;
        __syncthreads();
        float nearer = 0.0f, total = 0.0f;  // over the warps above, over all
#pragma unroll
        for (int w = stick_warps - 1; w >= 0; --w) {
            if (w > warp) nearer += space.left[w];
            total += space.left[w];
        }
        space.score[thread] = seen ? exp2_approx(b.taken - (broken + (nearer + left.nearer))) : 0.0f;
        broken += total;
        __syncthreads();
#pragma unroll
        for (int m = 0; m < each; ++m) {
            const int c = m * stick_threads + thread;
            if (c >= d) continue;
            for (int slot = stick_threads - 1; slot >= 0 && begin + slot >= in.first; --slot)
                output[m] = fmaf(space.score[slot], widen(in.v.at(row_of(slot), from_kv)[c]), output[m]);
        }
    }
#pragma unroll
    for (int m = 0; m < each; ++m) {
        const int c = m * stick_threads + thread;
        if (c < d) in.o.at(sequence, from)[c] = narrow<T>(output[m]);
    }
}

}  // namespace

void stick_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionSpec& spec,
                  int64_t first, int64_t position, Stream stream) {
    const Tensor &gain = spec.distance_gain, &bias = spec.distance_bias;
    check(0 <= first && first <= position && position < spec.length && spec.length <= int64_t{1} << 30,
          "attention of keys {} .. {} of {}", first, position, spec.length);
    check(o.rows() == spec.batch && q.rows() == spec.batch && k.rows() == spec.batch * spec.length &&
              v.rows() == k.rows(),
          "attention of {} queries to {} keys", q.rows(), k.rows());
    check(!spec.row_start, "attention of one query has no row starts");
    check(!spec.sink && !spec.row_square && !spec.forget && !spec.far_queries && !spec.far_keys,
          "stick-breaking attention has no sinks, row squares, forget sums or far pairs");
    check(spec.head_dim <= most_channels, "heads of {} channels", spec.head_dim);
    check(!gain || (gain.cols() > position && bias.cols() == gain.cols()),
          "attention: distance tables of {} and {} entries at position {}", gain.cols(), bias.cols(),
          position);
    with_element(q.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const StickDecode<T> in{.o = view<T>(o),
                                .q = view<const T>(q),
                                .k = view<const T>(k),
                                .v = view<const T>(v),
                                .factor = view<const float>(spec.row_factor),
                                .gain = view<const float>(gain),
                                .bias = view<const float>(bias),
                                .factor_by_head = spec.row_factor.rows() > 1,
                                .gain_by_head = gain.rows() > 1,
                                .bias_by_head = bias.rows() > 1,
                                .entries = gain.cols(),
                                .length = static_cast<int>(spec.length),
                                .first = static_cast<int>(first),
                                .position = static_cast<int>(position),
                                .group = static_cast<int>(spec.heads / spec.kv_heads),
                                .channels = static_cast<int>(spec.head_dim),
                                .scale = spec.scale,
                                .softcap = spec.softcap};
        launch(stick_decode_kernel<T>,
               {dim3(static_cast<unsigned>(spec.heads), static_cast<unsigned>(spec.batch)),
                dim3(stick_threads), sizeof(StickDecodeShared), stream},
               in);
    });
}

}  // namespace longreach::cuda
