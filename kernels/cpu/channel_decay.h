// Shared by the passes of attention whose channels decay. Include after attention_tiles.h in the same region.
//
//   z_ij = scale * sum over c of q_ic k_jc exp(C_ic - C_jc)        C falls along a sequence
//
// Positions are cut into blocks of channel_block, one or more panels of queries. Let a be the first position of the query's block and b the last one of the
// key's. Between different blocks
//
//   exp(C_i - C_j) = exp(C_i - C_a) exp(C_a - C_b) exp(C_b - C_j)             j <= b < a <= i
//
// No exponent is above 0: nothing overflows, however fast a channel decays, and a factor is 0 only where the whole is below
// the smallest f32. The third factor is multiplied into the keys once, the first into the queries of a block once; the second,
// d numbers for each pair of blocks, into the queries. Pairs of one block take their exponentials one by one.

// Keys of a tile: a multiple of channel_block, and of what a sequence in pieces may begin at.
inline constexpr int64_t key_stretch = 64;
static_assert(key_stretch % channel_block == 0 && channel_block % panel_cols == 0);

// One head of one sequence.
struct DecayedHead {
    int64_t width, count;  // d; keys of the sequence
    const float* keys;     // [count, d], rows key_stride apart
    int64_t key_stride;
    const double* sums;  // C of channel c and position j at c * sum_stride + j
    int64_t sum_stride;
    double *first, *last;  // [blocks][d]: C at the first and the last position of each block
    float* faded;          // [d][count]: k_jc exp(C_bc - C_jc)

    // index: of the head among those of all sequences.
    DecayedHead(const AttentionSpec& s, const Tensor& k, int64_t index)
        : width(s.head_dim), count(k.rows() / s.batch) {
        const int64_t sequence = index / s.heads, head = index % s.heads;
        const Tensor rows =
            k.row_range(sequence * count, count).col_range(head / (s.heads / s.kv_heads) * width, width);
        keys = rows.f32(), key_stride = rows.row_stride;
        sums = s.channel_sums.f64() + head * width * s.channel_sums.row_stride + sequence * count;
        sum_stride = s.channel_sums.row_stride;
        const int64_t heads = s.batch * s.heads;
        const auto address = reinterpret_cast<uintptr_t>(s.channel_memory.data());
        auto* anchors = reinterpret_cast<double*>((address + 63) / 64 * 64);
        first = anchors + index * 2 * blocks() * width;
        last = first + blocks() * width;
        faded = reinterpret_cast<float*>(anchors + heads * 2 * blocks() * width) + index * width * count;
    }
    double sum(int64_t channel, int64_t position) const { return sums[channel * sum_stride + position]; }

    int64_t blocks() const { return (count + channel_block - 1) / channel_block; }

    // exp(C_b - C_j) of one channel, of the keys of a block, as many as exist; others 0.
    LONGREACH_INLINE void fade(float* factors, int64_t channel, int64_t block) const {
        const int64_t begin = block * channel_block, n = smaller(channel_block, count - begin);
        const double *of_channel = sums + channel * sum_stride + begin, end = of_channel[n - 1];
        alignas(64) float exponent[channel_block] = {};
        for (int64_t x = 0; x < n; ++x)
            exponent[x] = static_cast<float>((end - of_channel[x]) * 1.4426950408889634);
        for (int64_t x = 0; x < channel_block; x += lanes) store(factors + x, exp2(load(exponent + x)));
    }
    void prepare(int64_t block) const {
        const int64_t begin = block * channel_block, n = smaller(channel_block, count - begin);
        for (int64_t c = 0; c < width; ++c) {
            first[block * width + c] = sum(c, begin);
            last[block * width + c] = sum(c, begin + n - 1);
            alignas(64) float factors[channel_block];
            fade(factors, c, block);
            for (int64_t x = 0; x < n; ++x)
                faded[c * count + begin + x] = keys[(begin + x) * key_stride + c] * factors[x];
        }
    }
};

// exp(C_i - C_j) of one channel for the queries `query` + x of a panel or block, of which `n` exist, and one key after the
// other. A vector of queries that all come before the key has no factor: first_after() is the number of the first other one.
struct PairFactors {
    alignas(64) double sums[channel_block] = {};  // of the queries, times log2(e)
    const double* of_keys;
    int64_t query, count;

    PairFactors(const DecayedHead& head, int64_t channel, int64_t first, int64_t n)
        : of_keys(head.sums + channel * head.sum_stride), query(first), count(n) {
        for (int64_t x = 0; x < n; ++x) sums[x] = of_keys[query + x] * 1.4426950408889634;
    }
    int first_after(int64_t key) const { return static_cast<int>(larger(0, key - query) / lanes); }
    // 0 where the key comes after the query. A lane past the end has a query of zeros: its factor is that of C = 0, held finite.
    LONGREACH_INLINE Vec at(int64_t key, int vector) const {
        alignas(64) float exponent[lanes];
        const double end = of_keys[key] * 1.4426950408889634;
        for (int x = 0; x < lanes; ++x) exponent[x] = static_cast<float>(sums[vector * lanes + x] - end);
        const auto from = static_cast<int32_t>(query) + vector * lanes;
        const VecInt seen = (from + lane_index() >= static_cast<int32_t>(key) - VecInt{}) &
                            (from + lane_index() < static_cast<int32_t>(query + count) - VecInt{});
        return seen ? exp2(load(exponent)) : Vec{};
    }
};

// Products of keys [begin, end) with a panel of queries, plain: [d][panel_cols], pair by pair: to [end - begin][panel_cols].
inline void multiply_pairs(float* to, const DecayedHead& head, const float* plain, int64_t query, int64_t n,
                           int64_t begin, int64_t end) {
    for (int64_t i = 0; i < (end - begin) * panel_cols; ++i) to[i] = 0.0f;
    for (int64_t c = 0; c < head.width; ++c) {
        const PairFactors factors(head, c, query, n);
        for (int64_t j = begin; j < end; ++j) {
            const Vec key = splat(head.keys[j * head.key_stride + c]);
            for (int half = factors.first_after(j); half < 2; ++half) {
                float* at = to + (j - begin) * panel_cols + half * lanes;
                const Vec faded = load(plain + c * panel_cols + half * lanes) * factors.at(j, half);
                store(at, fma(faded, key, load(at)));
            }
        }
    }
}

// Queries [begin, end) of one panel, and their products with keys.
struct DecayedPanel {
    const DecayedHead& head;
    int64_t begin, end, block;  // block: the one that they lie in
    float* plain;               // [d][panel_cols]: queries times ScoreRows::packing
    float* faded;               // the same times exp(C_i - C_a)
    float* scaled;              // the same times exp(C_a - C_b), b of a block of keys
    float* growth;              // [d][panel_cols]: exp(C_i - C_a)
    float* factor;              // [d, filled up to panels]: exp(C_a - C_b)

    static int64_t floats(int64_t width) { return 4 * width * panel_cols + round_up(width, panel_cols); }
    DecayedPanel(const DecayedHead& of, int64_t from, int64_t until, float* memory)
        : head(of), begin(from), end(until), block(from / channel_block) {
        const int64_t size = head.width * panel_cols;
        plain = memory, faded = plain + size, scaled = faded + size, growth = scaled + size;
        factor = growth + size;
        for (int64_t c = 0; c < round_up(head.width, panel_cols); ++c) factor[c] = 0.0f;
    }
    int64_t count() const { return end - begin; }

    // rows: of the first query on.
    void pack(const float* rows, int64_t stride, const float* packing) {
        pack_panel_transposed<PlainUnit>(plain, rows, stride, head.width, count(), packing);
        for (int64_t c = 0; c < head.width; ++c) {
            const double anchor = head.first[block * head.width + c];
            alignas(64) float exponent[panel_cols] = {};
            for (int64_t x = 0; x < count(); ++x)
                exponent[x] = static_cast<float>((head.sum(c, begin + x) - anchor) * 1.4426950408889634);
            for (int64_t x = 0; x < panel_cols; x += lanes) {
                const int64_t at = c * panel_cols + x;
                const Vec grown = exp2(load(exponent + x));
                store(growth + at, grown);
                store(faded + at, load(plain + at) * grown);
            }
        }
    }
    // Of the keys of an earlier block.
    void scale_to(int64_t key_block_number) const {
        const double *to = head.first + block * head.width, *from = head.last + key_block_number * head.width;
        for (int64_t c = 0; c < head.width; ++c)
            factor[c] = static_cast<float>((to[c] - from[c]) * 1.4426950408889634);
        for (int64_t c = 0; c < head.width; c += lanes) {
            const int n = static_cast<int>(smaller(lanes, head.width - c));
            store_first(factor + c, exp2(load_first(factor + c, n)), n);
        }
    }
    // scores [key_end - key][panel_cols]; key: the first of a block; no key past the last query.
    void multiply(float* scores, int64_t key, int64_t key_end) const {
        for (; key < key_end; key += channel_block, scores += channel_block * panel_cols) {
            const int64_t n = smaller(channel_block, key_end - key);
            if (key / channel_block == block)
                return multiply_pairs(scores, head, plain, begin, count(), key, key + n);
            scale_to(key / channel_block);
            for (int64_t c = 0; c < head.width; ++c)
                for (int64_t x = 0; x < panel_cols; x += lanes)
                    store(scaled + c * panel_cols + x, load(faded + c * panel_cols + x) * splat(factor[c]));
            Core<PlainUnit>::multiply_to<false>(scores, panel_cols, {head.faded + key, 1, head.count}, scaled,
                                                head.width, n);
        }
    }
};

// What prepare() makes of the keys of all heads.
inline void fade_keys(const AttentionSpec& s, const Tensor& k, Pool& pool) {
    const int64_t blocks = DecayedHead(s, k, 0).blocks();
    for_items(pool, s.batch * s.heads * blocks, 32 * channel_block * s.head_dim,
              [&](int64_t i) { DecayedHead(s, k, i / blocks).prepare(i % blocks); });
}

inline void check_channels(const AttentionSpec& s, const Tensor& k) {
    check(s.channel_sums.rows() == s.heads * s.head_dim && s.channel_sums.cols() == k.rows(),
          "attention: sums by channel are {}x{}", s.channel_sums.rows(), s.channel_sums.cols());
    check(s.normaliser == Normaliser::softmax && s.softcap == 0 && !s.row_square && !s.far_queries &&
              s.top_k == 0,
          "attention: sums by channel with what they do not know");
}
inline void check_channel_memory(const AttentionSpec& s, const Tensor& k) {
    check_channels(s, k);
    check(s.channel_memory.count() >= channel_floats(s, s.batch, k.rows()),
          "attention: {} floats for sums by channel", s.channel_memory.count());
}
