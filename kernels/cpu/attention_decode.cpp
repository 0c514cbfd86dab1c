// Attention of one query per sequence against keys and values computed before;
// scores as attention_spec.h says.
//
//   4 d FLOPs and one exp2 per visible key; every key and value is read once, which takes most of the time.
//
// Keys and values are f32 or bf16 (DeviceTraits::cached), which is half the memory to read; the query, weights and sums
// are f32 with either.
//
// Online softmax over blocks of keys, in base 2; the output row itself is the running sum. Parallel over
// (sequence, head); one thread computes a head from its first key to its last.

#include <cmath>
#include <memory>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/attention_query.h"
#include "kernels/cpu/entmax.h"
#include "kernels/cpu/stick_breaking.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// o [d] = shrink * o + the sum of `count` rows of values times their weights y, one after the other.
template <class Element>
void add_values(float* o, float shrink, int64_t d, const float* y, int64_t count, Rows<Element> values) {
    const auto add = [&]<int vectors>(int64_t c, auto n) __attribute__((always_inline)) {
        Vec total[vectors];
        for (int i = 0; i < vectors; ++i) total[i] = load(o + c + i * lanes, n) * splat(shrink);
        for (int64_t j = 0; j < count; ++j) {
            const Element* row = values[j] + c;
            prefetch(values[j + rows_ahead] + c, vectors * lanes);
            const Vec weight = splat(y[j]);
            for (int i = 0; i < vectors; ++i) total[i] = fma(weight, load(row + i * lanes, n), total[i]);
        }
        for (int i = 0; i < vectors; ++i) store(o + c + i * lanes, total[i], n);
    };
    // Eight sums at once, so that none waits for its own multiply-add.
    int64_t c = 0;
    for (; c + 8 * lanes <= d; c += 8 * lanes) add.template operator()<8>(c, Whole{});
    for (; c + 4 * lanes <= d; c += 4 * lanes) add.template operator()<4>(c, Whole{});
    for_vectors(d - c, [&](int64_t i, auto n) { add.template operator()<1>(c + i, n); });
}

template <class Element>
void attend(float* o, const Query& at, const Tensor& q, const Tensor& k, const Tensor& v) {
    const int64_t d = at.spec.head_dim;
    alignas(64) float y[key_block];
    // A sink acts as a first key without a value.
    float top = at.spec.sink ? at.spec.sink.f32()[at.head] * log2_e : -__builtin_inff();
    float sum = top > -__builtin_inff() ? 1.0f : 0.0f;
    for (int64_t c = 0; c < d; ++c) o[c] = 0.0f;
    for (int64_t begin = at.first; begin <= at.position; begin += key_block) {
        const int64_t count = begin + key_block <= at.position + 1 ? key_block : at.position + 1 - begin;
        const float here = exponents<Element>(y, at, KeyRun{begin}, count, q, k);
        const float before = top;
        top = here > top ? here : top;
        const Vec shift = splat(top);
        const float shrink = sum > 0 ? exp2(splat(before) - shift)[0] : 0.0f;
        sum = sum * shrink + sum_vectors(count, [&](int64_t i, auto n) {
                  const Vec p = exp2(load(y + i, n, -__builtin_inff()) - shift);
                  store(y + i, p, n);
                  return p;
              });
        add_values(o, shrink, d, y, count, at.rows_of<Element>(v, begin));
    }
    const Vec inverse = splat(1.0f / sum);
    for_vectors(d, [&](int64_t c, auto n) { store(o + c, load(o + c, n) * inverse, n); });
}

// From the key before the query's own back to the first, or until the stick is used up.
template <class Element>
void attend_stick(float* o, const Query& at, const Tensor& q, const Tensor& k, const Tensor& v) {
    alignas(64) float y[key_block], left[key_block];
    for (int64_t c = 0; c < at.spec.head_dim; ++c) o[c] = 0.0f;
    float broken = 0;
    for (int64_t end = at.position; end > at.first && !(broken > used_up);) {
        const int64_t count = smaller(key_block, end - at.first), begin = end - count;
        exponents<Element>(y, at, KeyRun{begin}, count, q, k);
        for_vectors(count, [&](int64_t i, auto n) {
            const Break b = break_at(load(y + i, n));
            store(y + i, b.taken, n);
            store(left + i, b.left, n);
        });
        float here = 0;
        for (int64_t j = count - 1; j >= 0; --j) {
            y[j] -= broken + here;
            here += left[j];
        }
        broken += here;
        for_vectors(count, [&](int64_t i, auto n) { store(y + i, exp2(load(y + i, n)), n); });
        add_values(o, 1.0f, at.spec.head_dim, y, count, at.rows_of<Element>(v, begin));
        end = begin;
    }
}

// All scores first: theta needs them. Blocks of keys without a weight are left out.
template <class Element>
void attend_entmax(float* o, const Query& at, const Tensor& q, const Tensor& k, const Tensor& v) {
    const int64_t d = at.spec.head_dim, keys = at.position + 1 - at.first;
    const Entmax e(at.spec, at.head);
    const std::unique_ptr<float[]> scores(new float[static_cast<size_t>(keys)]);
    float top = e.sink > -1e30f ? e.sink : -1e30f;
    for (int64_t begin = 0; begin < keys; begin += key_block) {
        alignas(64) float y[key_block];
        const int64_t count = smaller(key_block, keys - begin);
        const float here = exponents<Element>(y, at, KeyRun{at.first + begin}, count, q, k);
        top = here > top ? here : top;
        for (int64_t j = 0; j < count; ++j) scores[begin + j] = y[j];
    }
    const auto each_block = [&](auto work) {
        for (int64_t begin = 0; begin < keys; begin += key_block)
            work(scores.get() + begin, smaller(key_block, keys - begin), at.first + begin);
    };
    Vec theta[1] = {splat(top)};
    const auto add = [&](const Vec(&from)[1], Weights(&total)[1]) {
        each_block([&](const float* y, int64_t count, int64_t) {
            Sums p, s;
            for_parts(count, [&](int part, int64_t i, auto n) {
                const Weights w = weights_at(e, load(y + i, n, -__builtin_inff()) - from[0]);
                p.part[part] += w.p, s.part[part] += w.s;
            });
            total[0].p += splat(reduce_add(p)), total[0].s += splat(reduce_add(s));
        });
    };
    e.squares ? find_thresholds<true>(e, theta, add) : find_thresholds<false>(e, theta, add);
    for (int64_t c = 0; c < d; ++c) o[c] = 0.0f;
    each_block([&](float* y, int64_t count, int64_t key) {
        Vec sum{};
        for_vectors(count, [&](int64_t i, auto n) {
            const Vec p = weights_at(e, load(y + i, n, -__builtin_inff()) - theta[0]).p;
            store(y + i, p, n);
            sum += p;
        });
        if (!all_zero(sum)) add_values(o, 1.0f, d, y, count, at.rows_of<Element>(v, key));
    });
}

}  // namespace

void CpuOps::do_attention_decode(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v,
                                 const AttentionSpec& spec, int64_t first, int64_t position) {
    check(0 <= first && first <= position && position < spec.length, "attention of keys {} .. {} of {}",
          first, position, spec.length);
    check(o.rows() == spec.batch && q.rows() == spec.batch && k.rows() == spec.batch * spec.length &&
              v.rows() == k.rows(),
          "attention of {} queries to {} keys", q.rows(), k.rows());
    check(!spec.row_start, "attention of one query has no row starts");
    check(k.dtype == v.dtype && (!spec.far_keys || spec.far_keys.dtype == k.dtype),
          "attention to keys and values of different types");
    const bool sticks = spec.normaliser == Normaliser::stick_breaking;
    if (sticks) check_sticks(spec);
    if (spec.normaliser == Normaliser::entmax) check_entmax(spec);
    check(!spec.forget || (spec.forget.rows() == spec.heads && spec.forget.cols() == k.rows()),
          "attention: forget sums are {}x{}", spec.forget.rows(), spec.forget.cols());
    check(!spec.channel_sums || (spec.channel_sums.rows() == spec.heads * spec.head_dim &&
                                 spec.channel_sums.cols() == k.rows() && !sticks && spec.top_k == 0),
          "attention: sums by channel are {}x{}", spec.channel_sums.rows(), spec.channel_sums.cols());
    check(!spec.distance_gain || (spec.distance_gain.cols() > position &&
                                  spec.distance_bias.cols() == spec.distance_gain.cols()),
          "attention: distance tables of {} and {} entries at position {}", spec.distance_gain.cols(),
          spec.distance_bias.cols(), position);
    if (spec.top_k > 0) return decode_to_top(o, q, k, v, spec, first, position);
    with_element(k, [&]<class Element>(Element) {
        for_items(pool_, spec.batch * spec.heads, spec.head_dim * (position - first + 1), [&](int64_t item) {
            const int64_t b = item / spec.heads, h = item % spec.heads;
            float* to = o.f32() + b * o.row_stride + h * spec.head_dim;
            const Query at{spec, b, h, first, position, b};
            (sticks                                  ? attend_stick<Element>
             : spec.normaliser == Normaliser::entmax ? attend_entmax<Element>
                                                     : attend<Element>)(to, at, q, k, v);
        });
    });
}

#include "kernels/cpu/isa_end.h"
