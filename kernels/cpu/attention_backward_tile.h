// One tile of queries in the backward passes of attention, packed in every form their products need, and these
// products. Include after attention_tiles.h in the same region.

// Rows of f32 S^T and dS^T tiles lie this far apart: as left sides they are read across rows.
constexpr int64_t score_stride = query_tile + 16;
static_assert(lanes <= 16, "the gap between rows of a tile holds a vector");

// Keys whose scores with one panel of queries are in memory together. f32 scores of a whole tile serve as left sides;
// others are rounded to units, panel by panel, and where products are fast L1 must hold all that this takes: with 32 keys of
// 64 channels two blocks of scores (8 KiB), tiles of K and V (24), a panel of Q and of dO (8).
template <class Unit>
constexpr int64_t score_keys = Core<Unit>::turned ? 32 : key_tile;
template <class Unit>
constexpr int64_t score_row = Unit::floats == 1 ? score_stride : panel_cols;  // floats between their rows

struct Entmax;  // entmax.h

// One tile of queries of one head, packed in every form the products need. Buffers are pieces
// of the thread's scratch; [x / u] counts units. With tiles of AMX, whose left sides are contiguous along k, dS serves as a
// right side: dQ^T = K^T dS^T.
template <class Unit>
struct BackwardTile {
    int64_t width, padded;
    float* q_transposed;     // [query_panels][filled d / u][panel_cols], times ScoreRows::packing
    float* dout_transposed;  // [query_panels][filled d / u][panel_cols]
    float* q;                // [padded / panel_cols][query_tile / u][panel_cols], times f without a softcap
    float* dout;             // [padded / panel_cols][query_tile / u][panel_cols]
    float* dq;  // [query_tile][padded], or in tiles [query_panels][padded][panel_cols]; without scale and f
    float* p;   // S^T, then P^T: [key_tile][score_stride], or of one panel [score_keys][panel_cols]
    float* ds;  // likewise dP^T, then dS^T
    float* p_units;   // [key_tile][query_tile / u]: P^T in units along queries; `p` where they are f32
    float* ds_units;  // likewise
    // Units of dS^T along keys; unused where they are f32: [key_tile / u][query_tile], or in tiles
    // [query_panels][key_tile / u][panel_cols].
    float* ds_across;
    float* lse;      // [query_tile], in base 2
    float* delta;    // [query_tile]
    float* dfactor;  // [query_tile]: df / softcap, summed pair by pair with a softcap
    float* drow;     // [query_tile]: dL, summed over the keys of the block
    // [key_tile][score_stride] each, between zeros: dL^T and dL^T times z log2(e) for the gradients of the
    // tables; null: not wanted.
    float *dl = nullptr, *dlz = nullptr;
    // KeyBlock::sums, and the key of its first row; null: not wanted
    float* dcolumn = nullptr;
    int64_t block_begin = 0;
    const Entmax* entmax = nullptr;

    BackwardTile(float* scratch, int64_t head_dim, bool gain, bool bias)
        : width(head_dim), padded(round_up(head_dim, panel_cols)) {
        q_transposed = scratch;
        dout_transposed = q_transposed + query_tile * filled_units<Unit>(width);
        q = dout_transposed + query_tile * filled_units<Unit>(width);
        dout = q + query_panel_floats * padded / panel_cols;
        dq = dout + query_panel_floats * padded / panel_cols;
        p = dq + query_tile * padded;
        ds = p + score_keys<Unit> * score_row<Unit>;
        p_units = Unit::floats == 1 ? p : ds + score_keys<Unit> * score_row<Unit>;
        ds_units = Unit::floats == 1 ? ds : p_units + key_tile * unit_row;
        ds_across = p + score_floats;
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
    static constexpr int64_t unit_row = Unit::floats == 1 ? score_stride : query_tile / Unit::floats;
    static constexpr int64_t score_floats =
        2 * score_keys<Unit> * score_row<Unit> + (Unit::floats == 1 ? 0 : 2 * key_tile * unit_row);
    // Of one panel of q or dout.
    static constexpr int64_t query_panel_floats = query_tile / Unit::floats * panel_cols;
    static int64_t floats(int64_t head_dim, bool tables) {
        const int64_t whole = round_up(head_dim, panel_cols);
        return query_tile * (2 * filled_units<Unit>(head_dim) + whole + 4) +
               2 * query_panel_floats * whole / panel_cols + score_floats + across_floats +
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
            fill_panel<Unit>(q + at, units_of<Unit>(rows));
            fill_panel<Unit>(dout + at, units_of<Unit>(rows));
        }
        std::memset(dq, 0, static_cast<size_t>(query_tile * padded) * sizeof(float));
        // Queries past the end: probability 0.
        for (int64_t i = 0; i < query_tile; ++i) {
            lse[i] = i < rows ? at_lse[i] * log2_e : __builtin_inff();
            delta[i] = i < rows ? at_delta[i] : 0.0f;
            dfactor[i] = drow[i] = 0.0f;
        }
    }

    // Where the scores of a panel and of the keys from `key` on are: in a block that begins with key `block`. Keys count
    // from the first of the tile.
    int64_t score_at(int64_t panel, int64_t key, int64_t block) const {
        return Unit::floats == 1 ? key * score_stride + panel * panel_cols : (key - block) * panel_cols;
    }
    // Where units of dS^T along keys are: those of key pair `pair` and the queries from i on, up to a whole vector.
    float* across(int64_t pair, int64_t i) const {
        if constexpr (Core<Unit>::turned)
            return ds_across + (i / panel_cols * (key_tile / Unit::floats) + pair) * panel_cols +
                   i % panel_cols;
        else
            return ds_across + pair * query_tile + i;
    }
    float* units_at(float* units, int64_t panel, int64_t key) const {
        return units + key * unit_row + panel * panel_cols / Unit::floats;
    }

    // P^T and dS^T of a panel and the keys [begin, end), a block, rounded to the units of the products that take them.
    void round_panel(int64_t panel, int64_t begin, int64_t end) const {
        if constexpr (Unit::floats > 1) {
            for (int64_t j = begin; j < end; j += 2) {
                Vec row[2][2] = {};
                for (int64_t x = 0; x < smaller(2, end - j); ++x) {
                    const int64_t at = score_at(panel, j + x, begin);
                    row[x][0] = load(ds + at), row[x][1] = load(ds + at + lanes);
                    store(units_at(ds_units, panel, j + x), Unit::round_pair(row[x][0], row[x][1]));
                    store(units_at(p_units, panel, j + x),
                          Unit::round_pair(load(p + at), load(p + at + lanes)));
                }
                for (int half = 0; half < 2; ++half)
                    store(across(j / 2, panel * panel_cols + half * lanes),
                          Unit::interleave(row[0][half], row[1][half]));
            }
        }
    }
    // Keys [begin, end) of a panel are seen by none of its queries: their units are zeros.
    void clear_units(int64_t panel, int64_t begin, int64_t end) const {
        for (float* units : {p_units, ds_units})
            for (int64_t j = begin; j < end; ++j)
                for (int64_t i = 0; i < panel_cols / Unit::floats; i += lanes)
                    store(units_at(units, panel, j) + i, Vec{});
        if constexpr (Unit::floats > 1)
            for (int64_t pair = (begin + 1) / 2; pair < units_of<Unit>(end); ++pair)
                for (int64_t i = 0; i < panel_cols; i += lanes)
                    store(across(pair, panel * panel_cols + i), Vec{});
    }
    // Zeros after the units of `keys` keys, as far as products read them.
    void fill_units(int64_t keys) const {
        for (int64_t panel = 0; panel < query_panels; ++panel)
            clear_units(panel, keys, round_up(keys, step_floats<Unit>));
    }

    // dQ [query_tile][padded], once all products are added: in tiles it takes the place of q_transposed and
    // dout_transposed, which have its size.
    const float* rows_of_dq() const {
        if constexpr (Core<Unit>::turned) {
            for (int64_t panel = 0; panel < query_panels; ++panel) {
                float* to = q_transposed + panel * panel_cols * padded;
                const auto put = [=, this](int64_t r, int64_t c, Vec value, int) {
                    store(to + r * padded + c, value);
                };
                for_turned(dq + panel * padded * panel_cols, width, panel_cols, put);
            }
            return q_transposed;
        } else {
            return dq;
        }
    }
};

// Keys and values of consecutive positions as left sides of the products over channels.
struct KeyRows {
    int64_t begin;  // position of row 0
    LeftRows k, v;
};

// Scores and gradients of probabilities of one panel: S^T = K Q^T and dP^T = V dO^T for the keys of `range`, a block.
template <class Unit>
inline void score_panel(const BackwardTile<Unit>& t, int64_t panel, const KeyRange& range, int64_t first_key,
                        const KeyRows& rows) {
    const int64_t key = range.begin - first_key, at = t.score_at(panel, key, key);
    const auto product = [&](float* to, const LeftRows& left, const float* right) {
        Core<Unit>::template multiply_to<false>(to + at, score_row<Unit>, left.from(range.begin - rows.begin),
                                                right + panel * filled_units<Unit>(t.width) * panel_cols,
                                                units_of<Unit>(t.width), range.end - range.begin);
    };
    product(t.p, rows.k, t.q_transposed);
    product(t.ds, rows.v, t.dout_transposed);
}

// Keys [from, until) of a panel are seen by none of its queries.
template <class Unit>
inline void clear_panel(const BackwardTile<Unit>& t, int64_t panel, int64_t from, int64_t until,
                        int64_t first_key) {
    t.clear_units(panel, from - first_key, until - first_key);
    for (float* tile : {t.dl, t.dlz}) {
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

// c [rows, padded] += left [rows, depth units] times the panels of `right`, which lie panel_floats apart.
template <class Unit>
inline void accumulate(float* c, int64_t padded, const Strided& left, const float* right,
                       int64_t panel_floats, int64_t rows, int64_t depth) {
    for (int64_t column = 0; column < padded; column += panel_cols, right += panel_floats)
        Core<Unit>::template multiply_to<true>(c + column, padded, left, right, depth, rows);
}

// How many keys of a tile the queries of each panel see, from its first key on; at the diagonal later panels see more.
struct PanelKeys {
    int64_t of[query_panels];
    int64_t all() const { return of[query_panels - 1]; }
};

// K of a tile of keys as the product for dQ takes it: as a right side, padded / panel_cols panels of
// [key_tile / u][panel_cols], or in tiles K^T as a left side, rows of key_tile / u units.
template <class Unit>
inline void pack_keys_for_dq(float* to, const float* from, int64_t stride, int64_t keys, int64_t width) {
    if constexpr (Core<Unit>::turned) {
        pack_keys<Unit>(to, from, stride, keys, width);
    } else {
        for (int64_t c = 0; c < width; c += panel_cols, to += key_tile / Unit::floats * panel_cols)
            pack_panel<Unit>(to, from + c, stride, keys, width - c);
    }
}

// What panels [first, end) of a tile of queries, which see the same keys, get from them. k: of the first key.
template <class Unit>
inline void add_to_dq(const BackwardTile<Unit>& t, const float* k, int64_t keys, int64_t first, int64_t end,
                      int64_t queries) {
    constexpr int64_t key_units = key_tile / Unit::floats;
    if constexpr (Core<Unit>::turned) {
        for (int64_t p = first; p < end; ++p)
            Core<Unit>::template multiply_to<true>(t.dq + p * t.padded * panel_cols, panel_cols,
                                                   {k, key_units, 1}, t.across(0, p * panel_cols),
                                                   units_of<Unit>(keys), t.width);
    } else {
        const int64_t i = first * panel_cols;
        const Strided left =
            Unit::floats == 1 ? Strided{t.ds + i, 1, score_stride} : Strided{t.across(0, i), 1, query_tile};
        accumulate<Unit>(t.dq + i * t.padded, t.padded, left, k, key_units * panel_cols,
                         smaller(queries, end * panel_cols) - i, units_of<Unit>(keys));
    }
}

// What a tile of keys and one of queries add to dV, dK and dQ. dv, dk: rows of the first key; k: what pack_keys_for_dq
// made, from the first key on. Products with the zeros of unseen panels are left out. Tiles of AMX write rows in
// multiples of 16: they need `seen` in such multiples, but for the last.
template <class Unit>
inline void add_products(const BackwardTile<Unit>& t, float* dv, float* dk, const float* k,
                         const PanelKeys& seen, int64_t queries) {
    t.fill_units(seen.all());
    constexpr int64_t panel_units = panel_cols / Unit::floats;
    int64_t key = 0;
    for (int64_t p = 0, end = 0; p < query_panels && p * panel_cols < queries; p = end) {
        end = p + 1;
        while (end < query_panels && seen.of[end] == seen.of[p]) ++end;
        add_to_dq(t, k, seen.of[p], p, end, queries);
        // Keys that no earlier panel sees.
        const int64_t depth = units_of<Unit>(queries - p * panel_cols);
        const auto add = [&](float* to, float* left, const float* right) {
            accumulate<Unit>(to + key * t.padded, t.padded, {t.units_at(left, p, key), t.unit_row, 1},
                             right + p * panel_units * panel_cols, t.query_panel_floats, seen.of[p] - key,
                             depth);
        };
        add(dv, t.p_units, t.dout);
        add(dk, t.ds_units, t.q);
        key = seen.of[p];
    }
}
