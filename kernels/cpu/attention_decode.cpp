// Attention of one query per sequence against keys and values computed before;
// scores as attention_spec.h says.
//
//   4 d FLOPs and one exp2 per visible key; every key and value is read once, which takes most of the time.
//
// Keys and values are f32 or bf16 (DeviceTraits::cached), which is half the memory to read; the query, weights and sums
// are f32 with either.
//
// Online softmax over blocks of keys, in base 2; the output row itself is the running sum. Parallel over
// (sequence, some of its heads); one thread computes a head from its first key to its last. Heads that one thread
// computes take turns at a few keys each, because their channels lie in the same rows: memory is then read from end to
// end, at two to three times the rate of one head's channels after the other's, and heads that share keys find them in
// the cache. This changes no sum.

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
    for (; c + 2 * lanes <= d; c += 2 * lanes) add.template operator()<2>(c, Whole{});
    for_vectors(d - c, [&](int64_t i, auto n) { add.template operator()<1>(c + i, n); });
}

constexpr int64_t most_heads = 16;  // that take turns

// The heads [head, head + heads) of a sequence; `o` and `at` belong to the first.
struct Heads {
    float* o;
    Query at;
    int64_t count;
    Query of(int64_t i) const { return {at.spec, at.sequence, at.head + i, at.first, at.position, at.row}; }
    float* output(int64_t i) const { return o + i * at.spec.head_dim; }
};

// The weights of a block of keys, relative to the largest score so far, and their sum.
struct RunningSoftmax {
    float top, sum, shrink;
    explicit RunningSoftmax(const Query& at)
        // A sink acts as a first key without a value.
        : top(at.spec.sink ? at.spec.sink.f32()[at.head] * log2_e : -__builtin_inff()),
          sum(top > -__builtin_inff() ? 1.0f : 0.0f),
          shrink(0.0f) {}
    RunningSoftmax() = default;
    void add(float* y, int64_t count, float here) {
        const float before = top;
        top = here > top ? here : top;
        const Vec shift = splat(top);
        shrink = sum > 0 ? exp2(splat(before) - shift)[0] : 0.0f;
        sum = sum * shrink + sum_vectors(count, [&](int64_t i, auto n) {
                  const Vec p = exp2(load(y + i, n, -__builtin_inff()) - shift);
                  store(y + i, p, n);
                  return p;
              });
    }
};

template <class Element>
void attend(const Heads& heads, const Tensor& q, const Tensor& k, const Tensor& v) {
    const Query& all = heads.at;
    const int64_t d = all.spec.head_dim;
    alignas(64) float y[most_heads][key_block];
    RunningSoftmax softmax[most_heads];
    QueryProducts<Element> products[most_heads];
    for (int64_t h = 0; h < heads.count; ++h) {
        softmax[h] = RunningSoftmax(heads.of(h));
        products[h] = QueryProducts<Element>(heads.of(h), q, k);
        for (int64_t c = 0; c < d; ++c) heads.output(h)[c] = 0.0f;
    }
    for (int64_t begin = all.first; begin <= all.position; begin += key_block) {
        const int64_t count = smaller(key_block, all.position + 1 - begin);
        const auto in_turns = [&](auto work) __attribute__((always_inline)) {
            for (int64_t j = 0; j < count; j += keys_in_turn)
                for (int64_t h = 0; h < heads.count; ++h) work(h, j, smaller(count, j + keys_in_turn));
        };
        if (all.spec.channel_sums)
            for (int64_t h = 0; h < heads.count; ++h)
                decayed_products(y[h], heads.of(h), KeyRun{begin}, count, products[h].query,
                                 products[h].rows);
        else
            in_turns([&](int64_t h, int64_t j, int64_t end) {
                products[h].find(y[h], KeyRun{begin}, j, end, count);
            });
        for (int64_t h = 0; h < heads.count; ++h)
            softmax[h].add(y[h], count, exponents_of(y[h], heads.of(h), KeyRun{begin}, count));
        in_turns([&](int64_t h, int64_t j, int64_t end) {
            add_values(heads.output(h), j == 0 ? softmax[h].shrink : 1.0f, d, y[h] + j, end - j,
                       heads.of(h).template rows_of<Element>(v, begin + j));
        });
    }
    for (int64_t h = 0; h < heads.count; ++h) {
        const Vec inverse = splat(1.0f / softmax[h].sum);
        float* o = heads.output(h);
        for_vectors(d, [&](int64_t c, auto n) { store(o + c, load(o + c, n) * inverse, n); });
    }
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

// Into how many parts the heads of each sequence are divided: as few as keep the threads evenly busy.
int64_t parts_of_heads(const AttentionSpec& spec, int64_t threads) {
    int64_t parts = (spec.heads + most_heads - 1) / most_heads;
    while (parts < spec.heads && spec.batch * parts % threads != 0 && spec.batch * parts < 4 * threads)
        ++parts;
    return parts;
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
    const int64_t parts = parts_of_heads(spec, pool_.threads());
    with_element(k, [&]<class Element>(Element) {
        const int64_t elements = spec.head_dim * (position - first + 1) * spec.heads / parts;
        for_items(pool_, spec.batch * parts, elements, [&](int64_t item) {
            const int64_t b = item / parts, part = item % parts;
            const int64_t h = part * spec.heads / parts, end = (part + 1) * spec.heads / parts;
            const Heads heads{
                o.f32() + b * o.row_stride + h * spec.head_dim, {spec, b, h, first, position, b}, end - h};
            if (spec.normaliser == Normaliser::softmax) return attend<Element>(heads, q, k, v);
            for (int64_t i = 0; i < heads.count; ++i)
                (sticks ? attend_stick<Element> : attend_entmax<Element>)(heads.output(i), heads.of(i), q, k,
                                                                          v);
        });
    });
}

#include "kernels/cpu/isa_end.h"
