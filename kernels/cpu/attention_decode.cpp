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
//
// The same query by query is attention to the top_k keys of whole sequences: a reference, exact and slow. All scores of a
// query are computed before the least that counts is found, bit by bit.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/stick_breaking.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

constexpr int64_t key_block = 128;
// Rows of other heads lie between those that a thread reads, so it asks for them this many ahead.
constexpr int64_t rows_ahead = 8;

// Calls work with an element of the type of keys and values.
template <class Work>
void with_element(const Tensor& keys, Work work) {
    keys.dtype == DType::bf16 ? work(Bf16{}) : work(float{});
}

template <class Element>
struct Rows {
    const Element* first;
    int64_t stride;
    const Element* operator[](int64_t i) const { return first + i * stride; }
};

struct Query {
    const AttentionSpec& spec;
    int64_t sequence, head, first, position;
    int64_t row;  // among the queries

    float of_row(const Tensor& t, float otherwise) const {
        return t ? t.f32()[(t.rows() == 1 ? 0 : head) * t.row_stride + row] : otherwise;
    }
    // This head's columns of a tensor of keys or values, the sequence's rows from `key` on.
    template <class Element>
    Rows<Element> rows_of(const Tensor& t, int64_t key) const {
        const int64_t group = head / (spec.heads / spec.kv_heads);
        return {t.as<const Element>() + (sequence * spec.length + key) * t.row_stride + group * spec.head_dim,
                t.row_stride};
    }
    const float* query_of(const Tensor& t) const {
        return t.f32() + row * t.row_stride + head * spec.head_dim;
    }
};

template <class Element>
float dot(const float* a, const Element* b, int64_t n) {
    return sum_vectors(n, [&](int64_t i, auto w) { return load(a + i, w) * load(b + i, w); });
}

// Exponents in base 2 of keys [begin, begin + count) into y; returns the largest.
template <class Element>
float exponents(float* y, const Query& at, int64_t begin, int64_t count, const Tensor& q, const Tensor& k) {
    const AttentionSpec& s = at.spec;
    // Of the keys before `near` the far ones count.
    const int64_t near = s.far_queries ? smaller(count, larger(0, at.position - s.far_from + 1 - begin)) : 0;
    const auto products = [&](const Tensor& queries, const Tensor& keys, int64_t from, int64_t to) {
        if (from == to) return;
        const float* query = at.query_of(queries);
        const auto rows = at.rows_of<Element>(keys, begin);
        for (int64_t j = from; j < to; ++j) {
            prefetch(rows[j + rows_ahead], s.head_dim);
            y[j] = dot(query, rows[j], s.head_dim);
        }
    };
    products(s.far_queries, s.far_keys, 0, near);
    products(q, k, near, count);
    const bool capped = s.softcap > 0;
    const float factor = at.of_row(s.row_factor, 1.0f);
    const Vec scale = splat(capped ? s.scale / s.softcap : s.scale * factor);
    const Vec cap = splat(s.softcap * factor);
    const float square = s.row_square ? s.row_square.f32()[at.row] : 0.0f;
    const float *gain = nullptr, *bias = nullptr;
    if (s.distance_gain) {  // entry R-1-t belongs to distance t: ascending with the keys
        const auto row = [&](const Tensor& t) {
            return t.f32() + (t.rows() == 1 ? 0 : at.head) * t.row_stride + t.cols() - 1 - at.position +
                   begin;
        };
        gain = row(s.distance_gain);
        bias = row(s.distance_bias);
    }
    alignas(64) float fading[key_block] = {};
    if (s.forget) {
        const double* sums = s.forget.f64() + at.head * s.forget.row_stride + at.sequence * s.length;
        for (int64_t j = 0; j < count; ++j)
            fading[j] = static_cast<float>(sums[at.position] - sums[begin + j]);
    }
    Vec most = splat(-__builtin_inff());
    for_vectors(count, [&](int64_t i, auto n) {
        Vec z = load(y + i, n) * scale;
        if (capped) z = tanh(z) * cap;
        if (gain) {
            Vec g = load(gain + i, n);
            if (s.row_square) g = sqrt(max(Vec{}, g + splat(square)));
            z = z * g + (load(bias + i, n) - splat(0.5f * square));
        }
        z = (z + load(fading + i, n)) * splat(log2_e);
        store(y + i, z, n);
        most = max(most, load(y + i, n, -__builtin_inff()));
    });
    return reduce_max(most);
}

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
            for (int i = 0; i < vectors; ++i) total[i] += weight * load(row + i * lanes, n);
        }
        for (int i = 0; i < vectors; ++i) store(o + c + i * lanes, total[i], n);
    };
    // Four sums at once, so that none waits for its own multiply-add.
    int64_t c = 0;
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
        const float here = exponents<Element>(y, at, begin, count, q, k);
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
        exponents<Element>(y, at, begin, count, q, k);
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

// A number that orders floats: a < b where ordered(a) < ordered(b).
uint32_t ordered(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Leaves the k largest of y, of equal ones the last, and makes the others -infinity.
void keep_largest(float* y, int64_t count, int64_t k) {
    if (count <= k) return;
    const auto at_least = [&](uint64_t bound) {
        int64_t n = 0;
        for (int64_t j = 0; j < count; ++j) n += ordered(y[j]) >= bound ? 1 : 0;
        return n;
    };
    uint32_t least = 0;  // the k-th largest
    for (uint32_t bit = 0x80000000u; bit > 0; bit >>= 1)
        if (at_least(least | bit) >= k) least |= bit;
    int64_t room = k - at_least(uint64_t{least} + 1);
    for (int64_t j = count; j-- > 0;) {
        const uint32_t own = ordered(y[j]);
        if (own < least || (own == least && room-- <= 0)) y[j] = -__builtin_inff();
    }
}

// Leaves `blocks` of the blocks of y: the last one and those with the largest means. The first element of y is key
// `first` of the sequence.
void keep_blocks(float* y, int64_t first, int64_t count, int64_t blocks, int64_t size) {
    const int64_t from = first / size, others = (first + count - 1) / size - from;
    const std::unique_ptr<float[]> means(new float[static_cast<size_t>(others + 1)]);
    const auto begin = [&](int64_t b) { return b == 0 ? 0 : (from + b) * size - first; };
    for (int64_t b = 0; b < others; ++b) {
        double sum = 0;
        for (int64_t j = begin(b); j < begin(b + 1); ++j) sum += double{y[j]};
        means[b] = static_cast<float>(sum / static_cast<double>(begin(b + 1) - begin(b)));
    }
    keep_largest(means.get(), others, blocks - 1);
    for (int64_t b = 0; b < others; ++b)
        if (means[b] == -__builtin_inff()) std::fill(y + begin(b), y + begin(b + 1), -__builtin_inff());
}

// Attention to the top_k keys; returns the natural log of the denominator.
template <class Element>
float attend_top(float* o, const Query& at, const Tensor& q, const Tensor& k, const Tensor& v) {
    const AttentionSpec& s = at.spec;
    const int64_t count = at.position - at.first + 1;
    const std::unique_ptr<float[]> y(new float[static_cast<size_t>(count)]);
    for (int64_t begin = 0; begin < count; begin += key_block)
        exponents<Element>(y.get() + begin, at, at.first + begin, smaller(key_block, count - begin), q, k);
    if (s.top_k_block > 0)
        keep_blocks(y.get(), at.first, count, s.top_k / s.top_k_block, s.top_k_block);
    else
        keep_largest(y.get(), count, s.top_k);
    float top = s.sink ? s.sink.f32()[at.head] * log2_e : -__builtin_inff();
    for (int64_t j = 0; j < count; ++j) top = y[j] > top ? y[j] : top;
    double sum = s.sink ? std::exp2(double{s.sink.f32()[at.head] * log2_e} - top) : 0;
    for (int64_t c = 0; c < s.head_dim; ++c) o[c] = 0.0f;
    const auto values = at.rows_of<Element>(v, at.first);
    for (int64_t j = 0; j < count; ++j) {
        if (y[j] == -__builtin_inff()) continue;
        const double p = std::exp2(double{y[j]} - top);
        sum += p;
        const Vec weight = splat(static_cast<float>(p));
        const Element* value = values[j];
        for_vectors(s.head_dim, [&](int64_t c, auto n) {
            store(o + c, load(o + c, n) + weight * load(value + c, n), n);
        });
    }
    const Vec inverse = splat(static_cast<float>(1 / sum));
    for_vectors(s.head_dim, [&](int64_t c, auto n) { store(o + c, load(o + c, n) * inverse, n); });
    return static_cast<float>((top + std::log2(sum)) / log2_e);
}

}  // namespace

void CpuOps::attention_to_top(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionSpec& spec) {
    const int32_t* starts = spec.row_start ? spec.row_start.i32() : nullptr;
    const int64_t tokens = spec.batch * spec.length;
    for_items(pool_, spec.heads * tokens, spec.head_dim * spec.length, [&](int64_t item) {
        const int64_t h = item / tokens, row = item % tokens;
        const Query at{spec, row / spec.length, h, starts ? starts[row] : 0, row % spec.length, row};
        lse.f32()[h * lse.row_stride + row] =
            attend_top<float>(o.f32() + row * o.row_stride + h * spec.head_dim, at, q, k, v);
    });
}

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
    if (spec.stick_breaking) check_sticks(spec);
    check(!spec.forget || (spec.forget.rows() == spec.heads && spec.forget.cols() == k.rows()),
          "attention: forget sums are {}x{}", spec.forget.rows(), spec.forget.cols());
    check(!spec.distance_gain || (spec.distance_gain.cols() > position &&
                                  spec.distance_bias.cols() == spec.distance_gain.cols()),
          "attention: distance tables of {} and {} entries at position {}", spec.distance_gain.cols(),
          spec.distance_bias.cols(), position);
    with_element(k, [&]<class Element>(Element) {
        for_items(pool_, spec.batch * spec.heads, spec.head_dim * (position - first + 1), [&](int64_t item) {
            const int64_t b = item / spec.heads, h = item % spec.heads;
            float* to = o.f32() + b * o.row_stride + h * spec.head_dim;
            const Query at{spec, b, h, first, position, b};
            if (spec.top_k > 0)
                attend_top<Element>(to, at, q, k, v);
            else
                (spec.stick_breaking ? attend_stick<Element> : attend<Element>)(to, at, q, k, v);
        });
    });
}

#include "kernels/cpu/isa_end.h"
