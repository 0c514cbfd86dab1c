// Shared by attention forward and backward: tile sizes, visibility, the score of a product. Include
// after tiles.h and simd_math.h in the same region.
//
// Scores are kept transposed, S^T [keys, queries]: a vector holds 16 (8, 4) neighbouring queries of one key.
// Row maxima and row sums of the softmax are then plain vector operations, keys and values serve as left
// sides of the products straight from memory, and only queries (once per tile) are ever transposed.

// Queries per tile, and keys per tile: a multiple of every tile_rows and of the rows of two tiles of AMX, so that full
// tiles have no short register tiles.
inline constexpr int64_t query_tile = 64;
inline constexpr int64_t key_tile = 96;
inline constexpr int64_t query_panels = query_tile / panel_cols;
inline constexpr float log2_e = 1.4426950408889634f;
inline constexpr float ln_2 = 0.6931471805599453f;

// The queries [begin, end) of a tile and what they see. Indices are positions among the keys of the sequence.
struct QueryTile {
    int64_t begin = 0, end = 0;
    alignas(64)
        int32_t start[query_tile];  // first visible key of each query; queries past the end repeat the last

    // first: of the queries of this sequence, which `before` keys precede. row_start: of this sequence, counted from its
    // first query; null: every query sees all earlier keys.
    QueryTile(int64_t first, int64_t length, const int32_t* row_start, int64_t before = 0)
        : begin(before + first), end(before + smaller(first + query_tile, length)) {
        for (int64_t i = 0; i < query_tile; ++i)
            start[i] = row_start
                           ? static_cast<int32_t>(before) + row_start[smaller(begin + i, end - 1) - before]
                           : 0;
    }
    int64_t first_key() const { return start[0]; }
};

// Keys [begin, end) that some query of a panel of the tile sees, within keys [key_begin, key_end).
struct KeyRange {
    int64_t begin, end;
    bool masked;  // some query of the panel does not see all of them

    KeyRange(int64_t first, int64_t last, bool some_hidden) : begin(first), end(last), masked(some_hidden) {}
    // begin - key_begin: a multiple of `floats`, those of one step of a product along the keys.
    KeyRange(const QueryTile& q, int64_t panel, int64_t key_begin, int64_t key_end, int64_t floats) {
        const int64_t first = q.begin + panel * panel_cols, last = smaller(first + panel_cols, q.end) - 1;
        const int32_t* start = q.start + panel * panel_cols;
        begin = key_begin + larger(0, start[0] - key_begin) / floats * floats;
        end = first < q.end ? smaller(key_end, last + 1) : begin;
        masked = end - 1 > first || start[panel_cols - 1] > begin;
    }
    bool empty() const { return begin >= end; }
};

// The row of a [1 or heads, columns] tensor that belongs to a head.
LONGREACH_INLINE float* row_of_head(const Tensor& t, int64_t head) {
    return t.f32() + (t.rows() == 1 ? 0 : head) * t.row_stride;
}

// The forget sum of a query or key, times log2(e), as two f32: attention_spec.h says why.
LONGREACH_INLINE void split_sum(double sum, float& high, float& low) {
    const double exponent = sum * 1.4426950408889634;
    high = static_cast<float>(exponent);
    low = static_cast<float>(exponent - double{high});
}
// Those of one sequence; null without any.
LONGREACH_INLINE const double* sums_of_head(const AttentionSpec& spec, int64_t head, int64_t first_key) {
    return spec.forget ? spec.forget.f64() + head * spec.forget.row_stride + first_key : nullptr;
}

// What one tile of queries and keys takes from tables: gain and bias by distance, entry u belongs to distance
// lowest + u; forget sums by key, entry u belongs to key first_key + u.
struct TableSlice {
    static constexpr int64_t size = query_tile + key_tile;
    alignas(64) float gain[size];
    alignas(64) float bias[size];  // times log2(e)
    int64_t lowest = 0;
    alignas(64) float high[key_tile];
    alignas(64) float low[key_tile];
    int64_t first_key = 0;

    // The tables of one head, as AttentionSpec stores them (entry R-1-t belongs to distance
    // t); null without any.
    struct Tables {
        const float* gain = nullptr;
        const float* bias = nullptr;
        int64_t entries = 0;
        Tables(const AttentionSpec& spec, int64_t head) {
            if (!spec.distance_gain) return;
            gain = row_of_head(spec.distance_gain, head);
            bias = row_of_head(spec.distance_bias, head);
            entries = spec.distance_gain.cols();
        }
    };

    // For queries from `query` on and keys [key_begin, key_end). Distances without an entry are those of
    // pairs that are masked or do not exist; zeros keep them finite.
    void cut(const Tables& tables, int64_t query, int64_t key_begin, int64_t key_end) {
        lowest = query - (key_end - 1);
        const int64_t count = query_tile + key_end - key_begin - 1;
        const int64_t zeros = smaller(count, larger(0, -lowest));
        const int64_t until = larger(zeros, smaller(count, tables.entries - lowest));
        const int64_t last = tables.entries - 1 - lowest;  // where entry u = 0 is in the reversed tables
        for (int64_t u = 0; u < zeros; ++u) gain[u] = bias[u] = 0.0f;
        for (int64_t u = zeros; u < until; ++u) gain[u] = tables.gain[last - u];
        for (int64_t u = zeros; u < until; ++u) bias[u] = tables.bias[last - u] * log2_e;
        for (int64_t u = until; u < count; ++u) gain[u] = bias[u] = 0.0f;
    }
    // sums: of the sequence.
    void cut_forget(const double* sums, int64_t key_begin, int64_t key_end) {
        first_key = key_begin;
        for (int64_t u = 0; u < key_end - key_begin; ++u) split_sum(sums[key_begin + u], high[u], low[u]);
    }
};

// How much of AttentionSpec's score a pass computes. Factors of whole queries (scale, row factor without a
// softcap) are multiplied into the packed queries in every form.
enum class Form {
    plain,     // the product is the exponent
    forget,    // and forget sums
    distance,  // gain and bias by distance
    general  // all of these, softcap, gain with a row's square, in the backward pass gradients of the tables
};

inline Form form_of(const AttentionSpec& spec) {
    if (spec.softcap > 0 || spec.row_square || (spec.distance_gain && spec.forget)) return Form::general;
    return spec.distance_gain ? Form::distance : spec.forget ? Form::forget : Form::plain;
}

// What the scores of one tile of queries take from their rows; rows past the end get neutral values.
struct ScoreRows {
    alignas(64) float packing[query_tile];  // times q: the product with k is then z log2(e) f, or z / softcap
    alignas(64) float factor[query_tile];   // f
    alignas(64) float cap[query_tile];      // softcap log2(e) f; only with a softcap
    alignas(64) float square[query_tile];   // w
    alignas(64) float high[query_tile];     // forget sums, times log2(e)
    alignas(64) float low[query_tile];
    bool capped, squared, tabled, forgets;

    // first: the tile's first token among all N; rows: how many of its queries exist; earlier: by how much the key at its
    // position comes later among all keys.
    ScoreRows(const AttentionSpec& spec, int64_t head, int64_t first, int64_t rows, int64_t earlier = 0)
        : capped(spec.softcap > 0),
          squared(bool(spec.row_square)),
          tabled(bool(spec.distance_gain)),
          forgets(bool(spec.forget)) {
        for (int64_t i = 0; i < query_tile; ++i) factor[i] = 1.0f, square[i] = 0.0f;
        if (forgets) {
            const double* sums = sums_of_head(spec, head, first + earlier);
            for (int64_t i = 0; i < query_tile; ++i) split_sum(i < rows ? sums[i] : 0.0, high[i], low[i]);
        }
        if (spec.row_factor) {
            const float* f = row_of_head(spec.row_factor, head) + first;
            for (int64_t i = 0; i < rows; ++i) factor[i] = f[i];
        }
        if (squared)
            for (int64_t i = 0; i < rows; ++i) square[i] = spec.row_square.f32()[first + i];
        if (capped) {
            for (int64_t i = 0; i < query_tile; ++i) packing[i] = spec.scale / spec.softcap;
            for (int64_t i = 0; i < query_tile; ++i) cap[i] = spec.softcap * log2_e * factor[i];
        } else {
            for (int64_t i = 0; i < query_tile; ++i) packing[i] = spec.scale * log2_e * factor[i];
        }
    }
};

// One vector of scores between the product of queries and keys and the exponential.
struct Score {
    Vec tangent;  // tanh(z / softcap); only with a softcap
    Vec z;        // the score with its row factor, times log2(e)
    Vec gain;
    Vec y;  // gain z + bias: the exponent in base 2
};

// at: the query of lane 0 within the tile; u: its distance in the slice; key: position.
template <Form form>
LONGREACH_INLINE Score score_of(Vec product, const ScoreRows& rows, int64_t at, const TableSlice& slice,
                                int64_t u, int64_t key) {
    Score s{.tangent = Vec{}, .z = product, .gain = splat(1.0f), .y = product};
    if constexpr (form == Form::general) {
        if (rows.capped) {
            s.tangent = tanh(product);
            s.y = s.z = s.tangent * load(rows.cap + at);
        }
    }
    if (form == Form::distance || (form == Form::general && rows.tabled)) {
        s.gain = load(slice.gain + u);
        Vec bias = load(slice.bias + u);
        if constexpr (form == Form::general) {
            if (rows.squared) {
                const Vec w = load(rows.square + at);
                s.gain = sqrt(max(Vec{}, s.gain + w));
                bias -= w * splat(0.5f * log2_e);
            }
        }
        s.y = fma(s.gain, s.z, bias);
    }
    if (form == Form::forget || (form == Form::general && rows.forgets)) {
        const int64_t k = key - slice.first_key;
        s.y += (load(rows.high + at) - splat(slice.high[k])) + (load(rows.low + at) - splat(slice.low[k]));
    }
    return s;
}

// `y` where the query of each lane sees the key, -infinity elsewhere. query: position of lane 0;
// start: of the lanes.
LONGREACH_INLINE Vec mask_unseen(Vec y, int64_t key, int64_t query, const int32_t* start) {
    const VecInt j = static_cast<int32_t>(key) - VecInt{};
    const VecInt i = static_cast<int32_t>(query) + lane_index();
    const VecInt first = *reinterpret_cast<const VecInt*>(start);
    return ((j <= i) & (j >= first)) ? y : splat(-__builtin_inff());
}

// Packs `rows` rows of `width` floats, row i times factor[i], as the right side of products that sum over
// `width`: query_panels panels of [filled units of width, panel_cols].
template <class Unit>
inline void pack_queries_transposed(float* to, const float* from, int64_t stride, int64_t rows, int64_t width,
                                    const float* factor) {
    for (int64_t p = 0; p < query_panels; ++p) {
        const int64_t first = p * panel_cols, n = larger(0, smaller(panel_cols, rows - first));
        float* panel = to + first * filled_units<Unit>(width);
        pack_panel_transposed<Unit>(panel, from + first * stride, stride, width, n,
                                    factor ? factor + first : nullptr);
        fill_panel<Unit>(panel, units_of<Unit>(width));
    }
}

// The transpose of columns [width][panel_cols], rows [0, rows) of at most panel_cols: put(row, column, vector, count).
template <class Put>
LONGREACH_INLINE void for_turned(const float* columns, int64_t width, int64_t rows, Put put) {
    for (int64_t i = 0; i < rows; i += lanes)
        for (int64_t c = 0; c < width; c += lanes) {
            Vec block[lanes] = {};
            const int count = static_cast<int>(smaller(lanes, width - c));
            for (int j = 0; j < count; ++j) block[j] = load(columns + (c + j) * panel_cols + i);
            transpose(block);
            for (int64_t r = 0; r < smaller(lanes, rows - i); ++r) put(i + r, c, block[r], count);
        }
}

// Rows of a [T, d] tensor as a left side that is summed over channels, from one position on.
struct LeftRows {
    const float* data = nullptr;
    int64_t stride = 0;

    Strided from(int64_t row) const { return {data + row * stride, stride, 1}; }
    // f32 is read where it is; other units are packed into `memory`: floats<Unit>(d) for each row.
    template <class Unit>
    static LeftRows of(float* memory, const Tensor& from, int64_t begin, int64_t end) {
        const float* source = from.f32() + begin * from.row_stride;
        if constexpr (Unit::floats == 1) return {source, from.row_stride};
        const int64_t stride = floats<Unit>(from.cols());
        pack_rows<Unit>(memory, stride, source, from.row_stride, end - begin, from.cols());
        return {memory, stride};
    }
    template <class Unit>
    static int64_t floats(int64_t head_dim) {
        return Unit::floats == 1 ? 0 : round_up(units_of<Unit>(head_dim), lanes);
    }
};

// Channels of `keys` rows, at most key_tile, as a left side that is summed over the keys: key_tile / 2 units of each of
// round_up(width, lanes) channels. Only of units that have two floats.
template <class Unit>
inline Strided pack_keys(float* to, const float* from, int64_t stride, int64_t keys, int64_t width) {
    if constexpr (Core<Unit>::turned) {
        Core<Unit>::pack_turned(to, key_tile / Unit::floats, from, stride, keys, width);
        return {to, key_tile / Unit::floats, 1};
    } else {
        pack_columns<Unit>(to, round_up(width, lanes), from, stride, keys, width);
        return {to, 1, round_up(width, lanes)};
    }
}

// Keys [begin, end), a tile, as left sides: of the scores row by row, of the output summed over keys.
struct KeyTile {
    int64_t begin;
    LeftRows keys, far_keys;
    Strided values;  // a row per channel

    // f32 is read where it is; other units are packed into `memory`. k, far_k (may be empty), v: [T, d].
    template <class Unit>
    static KeyTile of(float* memory, const Tensor& k, const Tensor& far_k, const Tensor& v, int64_t begin,
                      int64_t end) {
        KeyTile tile = of_keys<Unit>(memory, k, far_k, begin, end);
        memory += 2 * key_tile * LeftRows::floats<Unit>(k.cols());
        tile.values = values_of<Unit>(memory, v, begin, end);
        return tile;
    }
    // Without values.
    template <class Unit>
    static KeyTile of_keys(float* memory, const Tensor& k, const Tensor& far_k, int64_t begin, int64_t end) {
        KeyTile tile{begin, LeftRows::of<Unit>(memory, k, begin, end), {}, {}};
        memory += key_tile * LeftRows::floats<Unit>(k.cols());
        if (far_k) tile.far_keys = LeftRows::of<Unit>(memory, far_k, begin, end);
        return tile;
    }
    template <class Unit>
    static Strided values_of(float* memory, const Tensor& v, int64_t begin, int64_t end) {
        const float* values = v.f32() + begin * v.row_stride;
        if constexpr (Unit::floats == 1)
            return {values, 1, v.row_stride};
        else
            return pack_keys<Unit>(memory, values, v.row_stride, end - begin, v.cols());
    }
    template <class Unit>
    static int64_t floats(int64_t head_dim) {
        if constexpr (Unit::floats == 1) return 0;
        return key_tile * (2 * LeftRows::floats<Unit>(head_dim) + round_up(head_dim, lanes) / Unit::floats);
    }
};

// Rows of tensors that the thread reads or writes soon, at most four stretches of them. It fetches them into L2 one by one
// between exponentials: without, attention at 512 tokens took 1.2 times as long with tensors in memory as with tensors in L2.
class RowsAhead {
  public:
    static constexpr int64_t keys_per_row = 4;  // of a loop over keys

    explicit RowsAhead(int64_t head_dim) : width_(head_dim) {}
    // Rows [begin, end) that exist; those added last come first.
    void add(const Tensor& t, int64_t begin, int64_t end) {
        if (begin < end) parts_[count_++] = {t.f32() + begin * t.row_stride, t.row_stride, end - begin};
    }
    LONGREACH_INLINE void fetch_row() {
        if (count_ == 0) return;
        Part& part = parts_[count_ - 1];
        for (int64_t c = 0; c < width_; c += 16) __builtin_prefetch(part.next + c, 0, 2);
        part.next += part.stride;
        if (--part.rows == 0) --count_;
    }

  private:
    struct Part {
        const float* next;
        int64_t stride, rows;
    };
    int64_t width_;
    int count_ = 0;
    Part parts_[4];
};

// Keys of each sequence that precede its first query.
inline int64_t keys_before(const AttentionSpec& s, const Tensor& k) {
    return s.batch > 0 ? k.rows() / s.batch - s.length : 0;
}

// What both passes assume about a spec. before: keys_before(), 0 in a backward pass.
inline void check_attention(const AttentionSpec& s, int64_t before = 0) {
    const int64_t tokens = s.batch * s.length, keys = tokens + s.batch * before;
    const auto by_head = [&](const Tensor& t, int64_t columns) {
        return !t || ((t.rows() == 1 || t.rows() == s.heads) && t.cols() >= columns);
    };
    check(by_head(s.row_factor, tokens), "attention: row_factor is {}x{}", s.row_factor.rows(),
          s.row_factor.cols());
    check(bool(s.distance_gain) == bool(s.distance_bias), "attention: one distance table without the other");
    check(by_head(s.distance_gain, before + s.length) && by_head(s.distance_bias, before + s.length) &&
              s.distance_gain.cols() == s.distance_bias.cols(),
          "attention: distance tables are {}x{} and {}x{} for length {}", s.distance_gain.rows(),
          s.distance_gain.cols(), s.distance_bias.rows(), s.distance_bias.cols(), before + s.length);
    check(!s.row_square || s.distance_gain, "attention: row_square without distance tables");
    check(!s.row_square || s.row_square.count() == tokens, "attention: {} row squares", s.row_square.count());
    check(!s.forget || (s.forget.rows() == s.heads && s.forget.cols() == keys),
          "attention: forget sums are {}x{}", s.forget.rows(), s.forget.cols());
    check(!s.sink || s.sink.count() == s.heads, "attention: {} sinks", s.sink.count());
}
