// One query of one head and its scores. Include after attention_tiles.h and loops.h in the same region.

inline constexpr int64_t key_block = 128;
// Rows that prefetch() asks for ahead of those that are computed.
inline constexpr int64_t rows_ahead = 64;
inline constexpr int64_t keys_in_turn = 16;  // of a head, before the next head's of the same keys

// Calls work with an element of the type of keys and values.
template <class Work>
auto with_element(const Tensor& keys, Work work) {
    return keys.dtype == DType::bf16 ? work(Bf16{}) : work(float{});
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

// reduce_add of every row at once: lane i is the sum of rows[i], with the same bits.
template <int block = lanes / 2>
LONGREACH_INLINE Vec reduce_rows(Vec (&rows)[lanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < block; ++i) {
        const Vec a = rows[i], b = rows[i + block];
        rows[i] = shuffle<[](int j) { return j & block ? j + lanes - block : j; }>(a, b) +
                  shuffle<[](int j) { return j & block ? j + lanes : j + block; }>(a, b);
    }
    if constexpr (block > 1) return reduce_rows<block / 2>(rows);
    return rows[0];
}

// Keys in a row, and keys of a list, as exponents() takes them.
struct KeyRun {
    int64_t begin;
    int64_t operator[](int64_t j) const { return begin + j; }
    int64_t ahead(int64_t j, int64_t) const { return begin + j + rows_ahead; }
};
struct KeyList {
    const int32_t* keys;
    int64_t operator[](int64_t j) const { return keys[j]; }
    int64_t ahead(int64_t j, int64_t count) const {
        return keys[j + rows_ahead < count ? j + rows_ahead : count - 1];
    }
};

// Products of a query with keys whose channels have decayed, AttentionSpec::channel_sums.
template <class Element, class Keys>
void decayed_products(float* y, const Query& at, const Keys& keys, int64_t count, const float* query,
                      const Rows<Element>& rows) {
    const AttentionSpec& s = at.spec;
    alignas(64) float exponent[key_block], of_channel[key_block];
    for (int64_t j = 0; j < count; ++j) y[j] = 0.0f;
    for (int64_t c = 0; c < s.head_dim; ++c) {
        const double* sums = s.channel_sums.f64() + (at.head * s.head_dim + c) * s.channel_sums.row_stride +
                             at.sequence * s.length;
        for (int64_t j = 0; j < count; ++j) {
            exponent[j] = static_cast<float>((sums[at.position] - sums[keys[j]]) * 1.4426950408889634);
            of_channel[j] = load(rows[keys[j]] + c, 1)[0];
        }
        for_vectors(count, [&](int64_t i, auto n) {
            const Vec key = load(of_channel + i, n) * exp2(load(exponent + i, n));
            store(y + i, fma(splat(query[c]), key, load(y + i, n)), n);
        });
    }
}

// The products of a query with keys.
template <class Element>
struct QueryProducts {
    const float *query, *far_query;
    Rows<Element> rows, far_rows;
    int64_t head_dim, position, far_from;

    QueryProducts() = default;
    QueryProducts(const Query& at, const Tensor& q, const Tensor& k)
        : query(at.query_of(q)),
          far_query(at.spec.far_queries ? at.query_of(at.spec.far_queries) : nullptr),
          rows(at.rows_of<Element>(k, 0)),
          far_rows(at.rows_of<Element>(far_query ? at.spec.far_keys : k, 0)),
          head_dim(at.spec.head_dim),
          position(at.position),
          far_from(at.spec.far_from) {}

    // With keys[begin, end) of the `count` that will be asked for.
    template <class Keys>
    void find(float* y, const Keys& keys, int64_t begin, int64_t end, int64_t count) const {
        const auto product = [&](int64_t j) __attribute__((always_inline)) {
            const bool far = far_query && position - keys[j] >= far_from;
            const auto& from = far ? far_rows : rows;
            prefetch(from[keys.ahead(j, count)], head_dim);
            return folded(products(far ? far_query : query, from[keys[j]], head_dim));
        };
        int64_t next = begin;
        for (; next + lanes <= end; next += lanes) {
            Vec sums[lanes];
            for (int i = 0; i < lanes; ++i) sums[i] = product(next + i);
            store(y + next, reduce_rows(sums));
        }
        for (; next < end; ++next) y[next] = reduce_add(product(next));
    }
};

// Exponents in base 2 from the products of `count` keys, at most key_block, in place; returns the largest.
template <class Keys>
float exponents_of(float* y, const Query& at, const Keys& keys, int64_t count) {
    const AttentionSpec& s = at.spec;
    const bool capped = s.softcap > 0;
    const float factor = at.of_row(s.row_factor, 1.0f);
    const Vec scale = splat(capped ? s.scale / s.softcap : s.scale * factor);
    const Vec cap = splat(s.softcap * factor);
    const float square = s.row_square ? s.row_square.f32()[at.row] : 0.0f;
    alignas(64) float gain[key_block], bias[key_block], fading[key_block] = {};
    if (s.distance_gain) {  // entry R-1-t belongs to distance t: ascending with the keys
        const auto row = [&](const Tensor& t) {
            return t.f32() + (t.rows() == 1 ? 0 : at.head) * t.row_stride + t.cols() - 1 - at.position;
        };
        const float *gains = row(s.distance_gain), *biases = row(s.distance_bias);
        for (int64_t j = 0; j < count; ++j) gain[j] = gains[keys[j]], bias[j] = biases[keys[j]];
    }
    if (s.forget) {
        const double* sums = s.forget.f64() + at.head * s.forget.row_stride + at.sequence * s.length;
        for (int64_t j = 0; j < count; ++j) fading[j] = static_cast<float>(sums[at.position] - sums[keys[j]]);
    }
    Vec most = splat(-__builtin_inff());
    for_vectors(count, [&](int64_t i, auto n) {
        Vec z = load(y + i, n) * scale;
        if (capped) z = tanh(z) * cap;
        if (s.distance_gain) {
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
// The same from the keys, into y.
template <class Element, class Keys>
float exponents(float* y, const Query& at, const Keys& keys, int64_t count, const Tensor& q,
                const Tensor& k) {
    const QueryProducts<Element> products(at, q, k);
    if (at.spec.channel_sums)
        decayed_products(y, at, keys, count, products.query, products.rows);
    else
        products.find(y, keys, 0, count, count);
    return exponents_of(y, at, keys, count);
}
// Of keys of either type.
template <class Keys>
float exponents(float* y, const Query& at, const Keys& keys, int64_t count, const Tensor& q,
                const Tensor& k) {
    return with_element(k,
                        [&]<class Element>(Element) { return exponents<Element>(y, at, keys, count, q, k); });
}
