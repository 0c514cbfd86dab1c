// Blocks of keys by their mean score: the product with a block's mean key where a score is linear in the key and knows no
// distance, which costs 1 / top_k_block of the scores; otherwise the mean of all scores. Include after attention_top_search.h and
// attention_query.h in the same region; <memory> before it.

// VisibleKeys keys of a block, as a part of the sequence.
struct BlockSpan {
    int64_t begin, end;
    BlockSpan(const Query& at, int64_t block, int64_t size)
        : begin(larger(at.first, block * size)), end(smaller(at.position + 1, (block + 1) * size)) {}
};

// The mean exponent of a span.
inline float mean_exponent(const Query& at, const BlockSpan& span, const Tensor& q, const Tensor& k) {
    alignas(64) float y[key_block];
    float sum = 0;
    for (int64_t begin = span.begin; begin < span.end; begin += key_block) {
        const int64_t count = smaller(key_block, span.end - begin);
        exponents(y, at, KeyRun{begin}, count, q, k);
        sum += sum_vectors(count, [&](int64_t i, auto w) { return load(y + i, w); });
    }
    return sum / static_cast<float>(span.end - span.begin);
}

// Means of the keys and of the forget sums of each whole block, where they decide a block's mean score.
struct BlockMeans {
    int64_t blocks = 0;              // of a sequence
    std::unique_ptr<float[]> keys;   // [B * G * blocks][d]
    std::unique_ptr<double[]> sums;  // [B * H][blocks]
    bool any() const { return blocks > 0; }

    BlockMeans(Pool& pool, const AttentionSpec& s, const Tensor& k) {
        const Form form = form_of(s);
        if (s.top_k_block == 0 || s.top_k == s.top_k_block || s.far_keys ||
            (form != Form::plain && form != Form::forget))
            return;
        const int64_t size = s.top_k_block, d = s.head_dim;
        blocks = s.length / size;
        keys.reset(new float[static_cast<size_t>(s.batch * s.kv_heads * blocks * d)]);
        for_items(pool, s.batch * s.kv_heads * blocks, d * size, [&](int64_t item) {
            const int64_t head = item / blocks % s.kv_heads;
            const int64_t row = item / blocks / s.kv_heads * s.length + item % blocks * size;
            const float* from = k.f32() + row * k.row_stride + head * d;
            const Vec share = splat(1.0f / static_cast<float>(size));
            for_vectors(d, [&](int64_t c, auto w) {
                Vec sum{};
                for (int64_t j = 0; j < size; ++j) sum += load(from + j * k.row_stride + c, w);
                store(keys.get() + item * d + c, sum * share, w);
            });
        });
        if (!s.forget) return;
        sums.reset(new double[static_cast<size_t>(s.batch * s.heads * blocks)]);
        for_items(pool, s.batch * s.heads * blocks, size, [&](int64_t item) {
            const int64_t head = item / blocks % s.heads;
            const double* from =
                sums_of_head(s, head, item / blocks / s.heads * s.length) + item % blocks * size;
            double sum = 0;
            for (int64_t j = 0; j < size; ++j) sum += from[j];
            sums[item] = sum / static_cast<double>(size);
        });
    }
    Tensor keys_of(const Item& item, int64_t head_dim) const {
        const int64_t kv_head = item.head / (item.spec.heads / item.spec.kv_heads);
        float* first = keys.get() + (item.sequence * item.spec.kv_heads + kv_head) * blocks * head_dim;
        return Tensor(first, DType::f32, {blocks, head_dim});
    }
    const double* sums_of(const Item& item) const {
        return sums ? sums.get() + (item.sequence * item.spec.heads + item.head) * blocks : nullptr;
    }
};

// The block at work is complete: collects it, of the queries of one vector.
inline void collect_block(const TopSearch& s, int64_t at, int64_t block) {
    const QueryTile& q = s.q;
    for (int64_t i = at; i < smaller(at + lanes, s.visible.rows); ++i) {
        const int64_t count = (block + 1) * s.block - larger(block * s.block, q.start[i]);
        if (count > 0 && block < (q.begin + i) / s.block)
            s.collection.add(i, s.means[i] / static_cast<float>(count), block);
        s.means[i] = 0;
    }
}

// Collects the blocks that begin before the first key of a panel.
inline void collect_open_blocks(const TopSearch& s) {
    for (int64_t at = 0; at < s.visible.rows; at += lanes) {
        const int64_t first = s.q.start[at / panel_cols * panel_cols];
        if (first % s.block != 0) collect_block(s, at, first / s.block);
    }
}

// Adds scores of keys to those of their blocks, and collects the blocks that begin in `range`.
template <Form form>
void add_to_blocks(const TopSearch& s, const float* scores, int64_t panel, const KeyRange& range,
                   const TableSlice& slice) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t distance = s.q.begin + at - range.begin - slice.lowest;
        Vec sum = load(s.means + at);
        for (int64_t j = range.end - range.begin; j-- > 0;) {
            const int64_t key = range.begin + j;
            const Vec y =
                score_of<form>(load(scores + j * panel_cols + lane), s.rows, at, slice, distance - j, key).y;
            sum += s.visible.has(key, at) ? y : Vec{};
            if (key % s.block != 0) continue;
            store(s.means + at, sum);
            collect_block(s, at, key / s.block);
            sum = Vec{};
        }
        store(s.means + at, sum);
    }
}
