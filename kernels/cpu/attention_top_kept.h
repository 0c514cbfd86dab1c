// What a call has, and the attention of one query to the keys that it keeps. Include after attention_top_blocks.h and
// index_scores.h in the same region; <cmath> and <memory> before it.

// The instantiations of one form.
struct TopPasses {
    using Pass = void (*)(const TopSearch&, const float*, int64_t, const KeyRange&, const TableSlice&);
    Pass masked, whole, blocks;
};
template <Form form>
constexpr TopPasses top_passes_of = {collect_panel<form, true>, collect_panel<form, false>,
                                     add_to_blocks<form>};

// One call over whole sequences.
struct TopCall {
    const Tensor &o, &lse, &q, &k, &v;
    const AttentionSpec& spec;
    const BlockMeans& means;
    const TopPasses& passes;
};

// Memory of a thread. scores, keys: those of one query that it keeps, of blocks and of an index.
struct TopWorkspace {
    Collection collection;
    std::unique_ptr<float[]> scores;
    std::unique_ptr<int32_t[]> keys;
    std::unique_ptr<float[]> index;  // of IndexTile

    TopWorkspace(const AttentionSpec& s, int64_t queries)
        : collection(queries, s.top_k_block > 0 ? s.top_k / s.top_k_block - 1 : s.top_k,
                     s.top_k_block > 0 ? s.length / s.top_k_block + 1 : s.length) {
        if (s.top_k_block == 0 && !s.index) return;
        const auto kept = static_cast<size_t>(smaller(s.top_k, s.length));
        scores.reset(new float[kept]);
        keys.reset(new int32_t[kept]);
        if (s.index) index.reset(new float[static_cast<size_t>(IndexTile::floats(s.index))]);
    }
};

// o [d] = the sum of the rows of n keys times their weights y.
template <class Element>
void sum_rows(float* o, const float* y, const int32_t* keys, int64_t n, Rows<Element> values, int64_t d) {
    const auto sum = [&]<int vectors>(int64_t c, auto width) __attribute__((always_inline)) {
        Vec total[vectors] = {};
        for (int64_t j = 0; j < n; ++j) {
            const Vec weight = splat(y[j]);
            const Element* row = values[keys[j]] + c;
            prefetch(values[keys[smaller(j + rows_ahead, n - 1)]] + c, vectors * lanes);
#pragma GCC unroll 8
            for (int i = 0; i < vectors; ++i) total[i] = fma(weight, load(row + i * lanes, width), total[i]);
        }
        for (int i = 0; i < vectors; ++i) store(o + c + i * lanes, total[i], width);
    };
    // Four sums at once, so that none waits for its own multiply-add.
    int64_t c = 0;
    for (; c + 4 * lanes <= d; c += 4 * lanes) sum.template operator()<4>(c, Whole{});
    for_vectors(d - c, [&](int64_t i, auto width) { sum.template operator()<1>(c + i, width); });
}

// o = P v over n keys with the exponents y, which become weights; returns the natural log of the denominator.
inline float attend_to(float* o, const Query& at, float* y, const int32_t* keys, int64_t n, const Tensor& v) {
    // A sink acts as a first key without a value.
    const float sink = at.spec.sink ? at.spec.sink.f32()[at.head] * log2_e : -__builtin_inff();
    Vec most = splat(sink);
    for_vectors(n, [&](int64_t i, auto w) { most = max(most, load(y + i, w, -__builtin_inff())); });
    const Vec top = splat(reduce_max(most));
    const float sum = exp2(splat(sink) - top)[0] + sum_vectors(n, [&](int64_t i, auto w) {
                          const Vec p = exp2(load(y + i, w, -__builtin_inff()) - top);
                          store(y + i, p, w);
                          return p;
                      });
    with_element(v, [&]<class Element>(Element) {
        sum_rows(o, y, keys, n, at.rows_of<Element>(v, 0), at.spec.head_dim);
    });
    const Vec inverse = splat(1.0f / sum);
    for_vectors(at.spec.head_dim, [&](int64_t i, auto w) { store(o + i, load(o + i, w) * inverse, w); });
    return top[0] * ln_2 + std::log(sum);
}

// To n listed keys, whose scores it computes.
inline float attend_listed(float* o, const Query& at, TopWorkspace& work, const int32_t* keys, int64_t n,
                           const Tensor& q, const Tensor& k, const Tensor& v) {
    for (int64_t j = 0; j < n; j += key_block)
        exponents(work.scores.get() + j, at, KeyList{keys + j}, smaller(key_block, n - j), q, k);
    return attend_to(o, at, work.scores.get(), keys, n, v);
}

// What query `i` of the collection attends to; returns the natural log of the denominator.
inline float attend_collected(float* o, const Query& at, TopWorkspace& work, int64_t i, const Tensor& q,
                              const Tensor& k, const Tensor& v) {
    const int64_t kept = work.collection.finish(i), size = at.spec.top_k_block;
    const int32_t* blocks = work.collection.keys(i);
    if (at.spec.index) return attend_listed(o, at, work, blocks, kept, q, k, v);
    if (size == 0) return attend_to(o, at, work.collection.scores(i), blocks, kept, v);
    int64_t n = 0;
    for (int64_t b = -1; b < kept; ++b) {
        const BlockSpan span(at, b < 0 ? at.position / size : blocks[b], size);
        for (int64_t begin = span.begin; begin < span.end; begin += key_block) {
            const int64_t count = smaller(key_block, span.end - begin);
            exponents(work.scores.get() + n, at, KeyRun{begin}, count, q, k);
            for (int64_t j = 0; j < count; ++j) work.keys[n++] = static_cast<int32_t>(begin + j);
        }
    }
    return attend_to(o, at, work.scores.get(), work.keys.get(), n, v);
}
