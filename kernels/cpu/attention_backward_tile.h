// One tile of queries in the backward passes of attention, packed in every form their products need, and these
// products. Include after attention_tiles.h in the same region.

// Rows of S^T and dS^T tiles lie this far apart: as left sides they are read across rows.
constexpr int64_t score_stride = query_tile + 16;
static_assert(lanes <= 16, "the gap between rows of a tile holds a vector");

// One tile of queries of one head, packed in every form the products need. Buffers are pieces
// of the thread's scratch.
struct BackwardTile {
    int64_t width, padded;
    float* q_transposed;     // [query_panels][d][panel_cols], times ScoreRows::packing
    float* dout_transposed;  // [query_panels][d][panel_cols]
    float* q;                // [padded / panel_cols][query_tile][panel_cols], times f without a softcap
    float* dout;             // [padded / panel_cols][query_tile][panel_cols]
    float* dq;               // [query_tile][padded], without scale and f
    float* p;                // [key_tile][score_stride]: S^T, then P^T
    float* ds;               // [key_tile][score_stride]: dP^T, then dS^T
    float* lse;              // [query_tile], in base 2
    float* delta;            // [query_tile]
    float* dfactor;          // [query_tile]: df / softcap, summed pair by pair with a softcap
    float* drow;             // [query_tile]: dL, summed over the keys of the block
    // [key_tile][score_stride] each, between zeros: dL^T and dL^T times z log2(e) for the gradients of the
    // tables; null: not wanted.
    float *dl = nullptr, *dlz = nullptr;
    // KeyBlock::sums, and the key of its first row; null: not wanted
    float* dcolumn = nullptr;
    int64_t block_begin = 0;

    BackwardTile(float* scratch, int64_t head_dim, bool gain, bool bias)
        : width(head_dim), padded(round_up(head_dim, panel_cols)) {
        q_transposed = scratch;
        dout_transposed = q_transposed + query_tile * width;
        q = dout_transposed + query_tile * width;
        dout = q + query_tile * padded;
        dq = dout + query_tile * padded;
        p = dq + query_tile * padded;
        ds = p + key_tile * score_stride;
        lse = ds + key_tile * score_stride;
        delta = lse + query_tile;
        dfactor = delta + query_tile;
        drow = dfactor + query_tile;
        float* diagonals = drow + query_tile;
        if (bias) dl = diagonals + lanes;
        if (gain) dlz = diagonals + diagonal_floats + lanes;
        if (bias || gain) std::memset(diagonals, 0, 2 * diagonal_floats * sizeof(float));
    }
    static constexpr int64_t diagonal_floats = 16 + key_tile * score_stride;
    static int64_t floats(int64_t head_dim, bool tables) {
        return query_tile * (2 * head_dim + 3 * round_up(head_dim, panel_cols) + 4) +
               2 * key_tile * score_stride + (tables ? 2 * diagonal_floats : 0);
    }

    // at_lse, at_delta: of the tile's first query.
    void load_queries(const QueryTile& t, const Tensor& queries, const Tensor& gradients, const float* at_lse,
                      const float* at_delta, const ScoreRows& score, bool factors) {
        const int64_t rows = t.end - t.begin;
        const float* from_q = queries.f32() + t.begin * queries.row_stride;
        const float* from_dout = gradients.f32() + t.begin * gradients.row_stride;
        pack_queries_transposed(q_transposed, from_q, queries.row_stride, rows, width, score.packing);
        pack_queries_transposed(dout_transposed, from_dout, gradients.row_stride, rows, width, nullptr);
        for (int64_t c = 0; c < padded; c += panel_cols) {
            pack_panel<PlainUnit>(q + c * query_tile, from_q + c, queries.row_stride, rows, width - c);
            pack_panel<PlainUnit>(dout + c * query_tile, from_dout + c, gradients.row_stride, rows,
                                  width - c);
            if (!factors) continue;
            for (int64_t i = 0; i < rows; ++i) {
                float* to = q + c * query_tile + i * panel_cols;
                store(to, load(to) * splat(score.factor[i]));
                store(to + lanes, load(to + lanes) * splat(score.factor[i]));
            }
        }
        std::memset(dq, 0, static_cast<size_t>(query_tile * padded) * sizeof(float));
        // Queries past the end: probability 0.
        for (int64_t i = 0; i < query_tile; ++i) {
            lse[i] = i < rows ? at_lse[i] * log2_e : __builtin_inff();
            delta[i] = i < rows ? at_delta[i] : 0.0f;
            dfactor[i] = drow[i] = 0.0f;
        }
    }
};

// Scores and gradients of probabilities of one panel: S^T = K Q^T and dP^T = V dO^T for the keys of `range`.
inline void score_panel(const BackwardTile& t, int64_t panel, const KeyRange& range, int64_t first_key,
                        const Tensor& k, const Tensor& v) {
    const auto product = [&](float* to, const Tensor& left, const float* right) {
        multiply_panel<PlainUnit>(
            left.f32() + range.begin * left.row_stride, left.row_stride, 1,
            right + panel * t.width * panel_cols, t.width,
            range.end - range.begin, [=](int64_t r, Vec low, Vec high) __attribute__((always_inline)) {
                store(to + r * score_stride, low);
                store(to + r * score_stride + lanes, high);
            });
    };
    const int64_t at = (range.begin - first_key) * score_stride + panel * panel_cols;
    product(t.p + at, k, t.q_transposed);
    product(t.ds + at, v, t.dout_transposed);
}

// Keys [from, until) of a panel are seen by none of its queries.
inline void clear_panel(const BackwardTile& t, int64_t panel, int64_t from, int64_t until,
                        int64_t first_key) {
    for (float* tile : {t.p, t.ds, t.dl, t.dlz}) {
        if (!tile) continue;
        for (int64_t j = from; j < until; ++j)
            for (int64_t lane = 0; lane < panel_cols; lane += lanes)
                store(tile + (j - first_key) * score_stride + panel * panel_cols + lane, Vec{});
    }
}

// table[t] += sum of tile[j][i] over the `keys` rows j and the queries i with distance i - j + first = t. The
// zeros around the rows let a vector of distances walk down the tile, one query to the right per key.
inline void add_diagonals(float* table, const float* tile, int64_t keys, int64_t first) {
    for (int64_t t = first - (keys - 1); t < first + query_tile; t += lanes) {
        const int64_t begin = larger(0, first - t - (lanes - 1));
        const int64_t end = smaller(keys, first - t + query_tile);
        const float* at = tile + (t - first);
        Vec sum[4] = {};
        int64_t j = begin;
        for (; j + 4 <= end; j += 4)
            for (int64_t x = 0; x < 4; ++x) sum[x] += load(at + (j + x) * (score_stride + 1));
        for (; j < end; ++j) sum[0] += load(at + j * (score_stride + 1));
        store(table + t, load(table + t) + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
    }
}

// A matrix in tiles: element (i, j) lies i * row_step + j * k_step behind `data`.
struct Strided {
    const float* data;
    int64_t row_step, k_step;
};
// c [rows, padded] += left [rows, depth] times the panels of `right`, which lie panel_floats apart.
inline void accumulate(float* c, int64_t padded, const Strided& left, const float* right,
                       int64_t panel_floats, int64_t rows, int64_t depth) {
    for (int64_t column = 0; column < padded; column += panel_cols, right += panel_floats) {
        float* to = c + column;
        multiply_panel<PlainUnit>(
            left.data, left.row_step, left.k_step, right, depth,
            rows, [=](int64_t r, Vec low, Vec high) __attribute__((always_inline)) {
                float* at = to + r * padded;
                store(at, load(at) + low);
                store(at + lanes, load(at + lanes) + high);
            });
    }
}
