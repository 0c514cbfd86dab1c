// One tile of queries in the backward passes of attention, packed in every form their products need, and these
// products. Include after attention_tiles.h in the same region.

// Rows of S^T and dS^T tiles lie this far apart: as left sides they are read across rows.
constexpr int64_t score_stride = query_tile + 16;
static_assert(lanes <= 16, "the gap between rows of a tile holds a vector");

// One tile of queries of one head, packed in every form the products need. Buffers are pieces
// of the thread's scratch; [x / u] counts units.
template <class Unit>
struct BackwardTile {
    int64_t width, padded;
    float* q_transposed;     // [query_panels][d / u][panel_cols], times ScoreRows::packing
    float* dout_transposed;  // [query_panels][d / u][panel_cols]
    float* q;                // [padded / panel_cols][query_tile / u][panel_cols], times f without a softcap
    float* dout;             // [padded / panel_cols][query_tile / u][panel_cols]
    float* dq;               // [query_tile][padded], without scale and f
    float* p;                // [key_tile][score_stride]: S^T, then P^T, then its units along queries
    float* ds;               // [key_tile][score_stride]: dP^T, then dS^T, then its units along queries
    float* ds_across;  // [key_tile / u][query_tile]: units of dS^T along keys; unused where they are f32
    float* lse;        // [query_tile], in base 2
    float* delta;      // [query_tile]
    float* dfactor;    // [query_tile]: df / softcap, summed pair by pair with a softcap
    float* drow;       // [query_tile]: dL, summed over the keys of the block
    // [key_tile][score_stride] each, between zeros: dL^T and dL^T times z log2(e) for the gradients of the
    // tables; null: not wanted.
    float *dl = nullptr, *dlz = nullptr;
    // KeyBlock::sums, and the key of its first row; null: not wanted
    float* dcolumn = nullptr;
    int64_t block_begin = 0;

    BackwardTile(float* scratch, int64_t head_dim, bool gain, bool bias)
        : width(head_dim), padded(round_up(head_dim, panel_cols)) {
        q_transposed = scratch;
        dout_transposed = q_transposed + query_tile * units_of<Unit>(width);
        q = dout_transposed + query_tile * units_of<Unit>(width);
        dout = q + query_panel_floats * padded / panel_cols;
        dq = dout + query_panel_floats * padded / panel_cols;
        p = dq + query_tile * padded;
        ds = p + key_tile * score_stride;
        ds_across = ds + key_tile * score_stride;
        lse = ds_across + across_floats;
        delta = lse + query_tile;
        dfactor = delta + query_tile;
        drow = dfactor + query_tile;
        float* diagonals = drow + query_tile;
        if (bias) dl = diagonals + lanes;
        if (gain) dlz = diagonals + diagonal_floats + lanes;
        if (bias || gain) std::memset(diagonals, 0, 2 * diagonal_floats * sizeof(float));
    }
    static constexpr int64_t diagonal_floats = 16 + key_tile * score_stride;
    static constexpr int64_t across_floats = Unit::floats == 1 ? 0 : key_tile / Unit::floats * query_tile;
    // Of one panel of q or dout.
    static constexpr int64_t query_panel_floats = query_tile / Unit::floats * panel_cols;
    static int64_t floats(int64_t head_dim, bool tables) {
        const int64_t whole = round_up(head_dim, panel_cols);
        return query_tile * (2 * units_of<Unit>(head_dim) + whole + 4) +
               2 * query_panel_floats * whole / panel_cols + 2 * key_tile * score_stride + across_floats +
               (tables ? 2 * diagonal_floats : 0);
    }

    // at_lse, at_delta: of the tile's first query.
    void load_queries(const QueryTile& t, const Tensor& queries, const Tensor& gradients, const float* at_lse,
                      const float* at_delta, const ScoreRows& score, bool factors) {
        const int64_t rows = t.end - t.begin;
        const float* from_q = queries.f32() + t.begin * queries.row_stride;
        const float* from_dout = gradients.f32() + t.begin * gradients.row_stride;
        pack_queries_transposed<Unit>(q_transposed, from_q, queries.row_stride, rows, width, score.packing);
        pack_queries_transposed<Unit>(dout_transposed, from_dout, gradients.row_stride, rows, width, nullptr);
        for (int64_t c = 0, at = 0; c < padded; c += panel_cols, at += query_panel_floats) {
            pack_panel<Unit>(q + at, from_q + c, queries.row_stride, rows, width - c,
                             factors ? score.factor : nullptr);
            pack_panel<Unit>(dout + at, from_dout + c, gradients.row_stride, rows, width - c);
        }
        std::memset(dq, 0, static_cast<size_t>(query_tile * padded) * sizeof(float));
        // Queries past the end: probability 0.
        for (int64_t i = 0; i < query_tile; ++i) {
            lse[i] = i < rows ? at_lse[i] * log2_e : __builtin_inff();
            delta[i] = i < rows ? at_delta[i] : 0.0f;
            dfactor[i] = drow[i] = 0.0f;
        }
    }

    // P^T and dS^T of `keys` keys, rounded to the units of the products that take them.
    void round_scores(int64_t keys) const {
        if constexpr (Unit::floats > 1) {
            for (int64_t j = 0; j < keys; j += 2)
                for (int64_t i = 0; i < query_tile; i += lanes) {
                    const float* row = ds + j * score_stride + i;
                    store(ds_across + j / 2 * query_tile + i,
                          Unit::interleave(load(row), j + 1 < keys ? load(row + score_stride) : Vec{}));
                }
            for (float* tile : {p, ds})  // in place: unit i / 2 lies before the numbers that are read next
                for (int64_t j = 0; j < keys; ++j)
                    for (int64_t i = 0; i < query_tile; i += 2 * lanes) {
                        float* row = tile + j * score_stride;
                        store(row + i / 2, Unit::round_pair(load(row + i), load(row + i + lanes)));
                    }
        }
    }
};

// Keys and values of consecutive positions as left sides of the products over channels.
struct KeyRows {
    int64_t begin;  // position of row 0
    LeftRows k, v;
};

// Scores and gradients of probabilities of one panel: S^T = K Q^T and dP^T = V dO^T for the keys of `range`.
template <class Unit>
inline void score_panel(const BackwardTile<Unit>& t, int64_t panel, const KeyRange& range, int64_t first_key,
                        const KeyRows& rows) {
    const int64_t units = units_of<Unit>(t.width);
    const auto product = [&](float* to, const LeftRows& left, const float* right) {
        multiply_panel<Unit>(
            left.data + (range.begin - rows.begin) * left.stride, left.stride, 1,
            right + panel * units * panel_cols, units,
            range.end - range.begin, [=](int64_t r, Vec low, Vec high) __attribute__((always_inline)) {
                store(to + r * score_stride, low);
                store(to + r * score_stride + lanes, high);
            });
    };
    const int64_t at = (range.begin - first_key) * score_stride + panel * panel_cols;
    product(t.p + at, rows.k, t.q_transposed);
    product(t.ds + at, rows.v, t.dout_transposed);
}

// Keys [from, until) of a panel are seen by none of its queries.
template <class Unit>
inline void clear_panel(const BackwardTile<Unit>& t, int64_t panel, int64_t from, int64_t until,
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

// A matrix in tiles: unit (i, j) lies i * row_step + j * k_step behind `data`.
struct Strided {
    const float* data;
    int64_t row_step, k_step;
};
// c [rows, padded] += left [rows, depth units] times the panels of `right`, which lie panel_floats apart.
template <class Unit>
inline void accumulate(float* c, int64_t padded, const Strided& left, const float* right,
                       int64_t panel_floats, int64_t rows, int64_t depth) {
    for (int64_t column = 0; column < padded; column += panel_cols, right += panel_floats) {
        float* to = c + column;
        multiply_panel<Unit>(
            left.data, left.row_step, left.k_step, right, depth,
            rows, [=](int64_t r, Vec low, Vec high) __attribute__((always_inline)) {
                float* at = to + r * padded;
                store(at, load(at) + low);
                store(at + lanes, load(at + lanes) + high);
            });
    }
}

// How many keys of a tile the queries of each panel see, from its first key on; at the diagonal later panels see more.
struct PanelKeys {
    int64_t of[query_panels];
    int64_t all() const { return of[query_panels - 1]; }
};

// What a tile of keys and one of queries add to dV, dK and dQ. dv, dk: rows of the first key; k: its panels, which lie
// panel_floats apart. Products with the zeros of unseen panels are left out.
template <class Unit>
inline void add_products(const BackwardTile<Unit>& t, float* dv, float* dk, const float* k,
                         int64_t panel_floats, const PanelKeys& seen, int64_t queries) {
    t.round_scores(seen.all());
    constexpr int64_t panel_units = panel_cols / Unit::floats;
    const Strided by_query =
        Unit::floats == 1 ? Strided{t.ds, 1, score_stride} : Strided{t.ds_across, 1, query_tile};
    int64_t key = 0;
    for (int64_t p = 0, end = 0; p < query_panels && p * panel_cols < queries; p = end) {
        end = p + 1;
        while (end < query_panels && seen.of[end] == seen.of[p]) ++end;
        const int64_t first = p * panel_cols, rows = smaller(queries, end * panel_cols) - first;
        accumulate<Unit>(t.dq + first * t.padded, t.padded,
                         {by_query.data + first, by_query.row_step, by_query.k_step}, k, panel_floats, rows,
                         units_of<Unit>(seen.of[p]));
        // Keys that no earlier panel sees.
        const int64_t depth = units_of<Unit>(queries - first), at = key * score_stride + p * panel_units;
        const auto add = [&](float* to, const float* left, const float* right) {
            accumulate<Unit>(to + key * t.padded, t.padded, {left + at, score_stride, 1},
                             right + p * panel_units * panel_cols, t.query_panel_floats, seen.of[p] - key,
                             depth);
        };
        add(dv, t.p, t.dout);
        add(dk, t.ds, t.q);
        key = seen.of[p];
    }
}
