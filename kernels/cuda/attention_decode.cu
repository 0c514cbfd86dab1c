// Attention of one query per sequence against keys and values computed before;
// scores as attention_spec.h says.
//
// A block per sequence and head. Its warps take every fourth key; a lane holds the channels 32 apart, of the
// query and of the output. Each warp keeps a running maximum, the sum below it and the output relative to it;
// at the end the warps' results are added in the order of the warps. Keys and values are read once,
// which bounds a decoding step.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {
namespace {

constexpr int decode_warps = 4;
// Channels of a lane: of heads up to 256, and of latents that are one head to all queries.
constexpr int few_channels = 8, many_channels = 20;
constexpr float minus_infinity = -__builtin_huge_valf();

template <int most_channels>
struct DecodeShared {
    float top[decode_warps], sum[decode_warps];
    float output[decode_warps][most_channels * 32];
};

template <class T>
struct DecodeInputs {
    View<T> o;
    View<const T> q, k, v, far_q, far_k;
    View<const float> factor, gain, bias;  // data null: absent
    const float *square, *sink;
    const double* forget;  // [H, B*R] or null
    int64_t forget_step;
    bool factor_by_head, gain_by_head, bias_by_head;
    int64_t entries;  // of a distance table
};
struct DecodeShape {
    int64_t length, first, position, far_from;
    int heads, group, head_dim;  // group: query heads of a key head
    float scale, softcap;
};

template <class T, int most_channels>
KERNEL(decode_warps * 32)
void attention_decode_kernel(DecodeInputs<T> in, DecodeShape s) {
    DecodeShared<most_channels>& space = shared<DecodeShared<most_channels>>();
    const int head = static_cast<int>(blockIdx.x), d = s.head_dim;
    const int64_t sequence = blockIdx.y;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int64_t from = static_cast<int64_t>(head) * d, from_kv = static_cast<int64_t>(head / s.group) * d;
    const float factor = in.factor.data ? *in.factor.at(in.factor_by_head ? head : 0, sequence) : 1.0f;
    const float square = in.square ? in.square[sequence] : 0.0f;

    float near_query[most_channels], far_query[most_channels], output[most_channels];
#pragma unroll
    for (int m = 0; m < most_channels; ++m) {
        const int c = m * 32 + lane;
        near_query[m] = c < d ? widen(in.q.at(sequence, from)[c]) : 0.0f;
        far_query[m] = c < d && in.far_q.data ? widen(in.far_q.at(sequence, from)[c]) : 0.0f;
        output[m] = 0.0f;
    }
    float top = minus_infinity, sum = 0.0f;
    for (int64_t j = s.first + warp; j <= s.position; j += decode_warps) {
        const int64_t row = sequence * s.length + j, distance = s.position - j;
        const bool far = in.far_q.data && distance >= s.far_from;
        const T* key = far ? in.far_k.at(row, from_kv) : in.k.at(row, from_kv);
        const T* value = in.v.at(row, from_kv);
        float part = 0.0f;
#pragma unroll
        for (int m = 0; m < most_channels; ++m) {
            const int c = m * 32 + lane;
            if (c < d) part += (far ? far_query[m] : near_query[m]) * widen(key[c]);
        }
        float y = s.scale * warp_sum(part);
        if (s.softcap > 0.0f) y = s.softcap * tanhf(y / s.softcap);
        y *= factor;
        if (in.gain.data) {
            const int64_t entry = in.entries - 1 - distance;
            float gain = *in.gain.at(in.gain_by_head ? head : 0, entry);
            if (in.square) gain = sqrtf(fmaxf(0.0f, gain + square));
            y = gain * y + *in.bias.at(in.bias_by_head ? head : 0, entry) - 0.5f * square;
        }
        if (in.forget) {
            const double* sums = in.forget + head * in.forget_step + sequence * s.length;
            y += static_cast<float>(sums[s.position] - sums[j]);
        }
        const float before = top;
        top = fmaxf(top, y);
        const float shrink = expf(before - top), p = expf(y - top);
        sum = sum * shrink + p;
#pragma unroll
        for (int m = 0; m < most_channels; ++m) {
            const int c = m * 32 + lane;
            if (c < d) output[m] = output[m] * shrink + p * widen(value[c]);
        }
    }
    if (lane == 0) {
        space.top[warp] = top;
        space.sum[warp] = sum;
    }
#pragma unroll
    for (int m = 0; m < most_channels; ++m) {
        const int c = m * 32 + lane;
        if (c < d) space.output[warp][c] = output[m];
    }
    __syncthreads();
    // Some warp has seen a key, so the largest is a number. A sink is a logit without a value.
    float largest = in.sink ? in.sink[head] : minus_infinity;
    const float sink = largest;
#pragma unroll
    for (int w = 0; w < decode_warps; ++w) largest = fmaxf(largest, space.top[w]);
    float share[decode_warps], total = in.sink ? expf(sink - largest) : 0.0f;
#pragma unroll
    for (int w = 0; w < decode_warps; ++w) {
        share[w] = expf(space.top[w] - largest);
        total += share[w] * space.sum[w];
    }
    for (int c = static_cast<int>(threadIdx.x); c < d; c += decode_warps * 32) {
        float mixed = 0.0f;
#pragma unroll
        for (int w = 0; w < decode_warps; ++w) mixed += share[w] * space.output[w][c];
        in.o.at(sequence, from)[c] = narrow<T>(mixed / total);
    }
}

}  // namespace

void attention_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v, const AttentionSpec& spec,
                      int64_t first, int64_t position, Stream stream) {
    check(0 <= first && first <= position && position < spec.length, "attention of keys {} .. {} of {}",
          first, position, spec.length);
    check(o.rows() == spec.batch && q.rows() == spec.batch && k.rows() == spec.batch * spec.length &&
              v.rows() == k.rows(),
          "attention of {} queries to {} keys", q.rows(), k.rows());
    check(!spec.row_start, "attention of one query has no row starts");
    check(spec.normaliser == Normaliser::softmax, "a softmax over the scores of another normaliser");
    check(!spec.channel_sums, "attention: no GPU has sums by channel");
    check(!spec.forget || (spec.forget.rows() == spec.heads && spec.forget.cols() == k.rows()),
          "attention: forget sums {}x{}", spec.forget.rows(), spec.forget.cols());
    check(spec.head_dim <= many_channels * 32, "heads of {} channels", spec.head_dim);
    check(!spec.distance_gain || (spec.distance_gain.cols() > position &&
                                  spec.distance_bias.cols() == spec.distance_gain.cols()),
          "attention: distance tables of {} and {} entries at position {}", spec.distance_gain.cols(),
          spec.distance_bias.cols(), position);
    with_element(q.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const DecodeInputs<T> inputs{view<T>(o),
                                     view<const T>(q),
                                     view<const T>(k),
                                     view<const T>(v),
                                     view<const T>(spec.far_queries),
                                     view<const T>(spec.far_keys),
                                     view<const float>(spec.row_factor),
                                     view<const float>(spec.distance_gain),
                                     view<const float>(spec.distance_bias),
                                     spec.row_square.f32(),
                                     spec.sink.f32(),
                                     spec.forget.f64(),
                                     spec.forget.row_stride,
                                     spec.row_factor.rows() > 1,
                                     spec.distance_gain.rows() > 1,
                                     spec.distance_bias.rows() > 1,
                                     spec.distance_gain.cols()};
        const DecodeShape shape{spec.length,
                                first,
                                position,
                                spec.far_from,
                                static_cast<int>(spec.heads),
                                static_cast<int>(spec.heads / spec.kv_heads),
                                static_cast<int>(spec.head_dim),
                                spec.scale,
                                spec.softcap};
        const auto run = [&](auto channels) {
            constexpr int most_channels = decltype(channels)::value;
            launch(attention_decode_kernel<T, most_channels>,
                   {dim3(static_cast<unsigned>(spec.heads), static_cast<unsigned>(spec.batch)),
                    dim3(decode_warps * 32), sizeof(DecodeShared<most_channels>), stream},
                   inputs, shape);
        };
        if (spec.head_dim <= few_channels * 32)
            run(std::integral_constant<int, few_channels>());
        else
            run(std::integral_constant<int, many_channels>());
    });
}

}  // namespace longreach::cuda
