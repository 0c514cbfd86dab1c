// Parts of matrix products, for gemm.cpp and few_rows.cpp: blocks of k, packed sides, and where sums go.
// Include after tiles.h in the same region.

// Units along k per block: a panel of 256 x 32 units (32 KiB) and a left tile stay in L1.
inline constexpr int64_t block_units = 256;
// Most rows and k blocks of a left side that one task packs for itself: 96 x 4 x 256 units (408 KiB) stay in
// L2, a panel's block loaded into L1 serves 96 rows, and a tile of c is revisited while it is in L1.
inline constexpr int64_t most_rows = 96;
inline constexpr int64_t most_blocks = 4;
// Packed left rows lie 16 units further apart than a block is long, so that they spread over the cache sets.
inline constexpr int64_t left_stride = block_units + 16;
inline constexpr int64_t line_floats = 16;  // of a cache line

// The blocks of k, in floats: of equal length but for the last.
struct Blocks {
    int64_t count, length;

    template <class Unit>
    static Blocks of(int64_t k, int64_t most_units = block_units) {
        const int64_t count = (k + most_units * Unit::floats - 1) / (most_units * Unit::floats);
        return {count, round_up((k + count - 1) / count, sum_lanes * Unit::floats)};
    }
    int64_t length_of(int64_t block, int64_t k) const { return smaller(length, k - block * length); }
};

// Memory without gaps that is needed next, fetched from its beginning on.
struct Run {
    const float *at, *end;
    LONGREACH_INLINE Ahead take(int64_t units) {
        if (at >= end) return {end, 0};
        const Ahead ahead{at, line_floats};
        at += units * line_floats;
        return ahead;
    }
};

// Turns sums into elements of c: rows [0, rows) of a column panel of which n columns exist.
struct Writer {
    float* c;
    int64_t c_stride;
    const float* h;
    int64_t h_stride;
    int64_t n;
    float alpha, beta;
    Finish finish;
    bool past_caches;  // all rows are aligned to vectors, and nothing is read from c

    LONGREACH_INLINE Vec finished(Vec value, const float* at_h, int64_t count) const {
        if (finish == Finish::relu2) {
            const Vec positive = max(Vec{}, value);  // in this order a NaN stays one
            return positive * positive;
        }
        if (finish == Finish::relu2_backward)
            return value * (splat(2.0f) * sqrt(PlainUnit::along(at_h, count)));
        return value;
    }
    LONGREACH_INLINE void put(float* to, const float* at_h, int64_t count, Vec sum) const {
        if (count <= 0) return;
        Vec value = splat(alpha) * sum;
        if (beta != 0.0f) value = fma(splat(beta), PlainUnit::along(to, count), value);
        value = finished(value, at_h, count);
        if (count < lanes) return store_first(to, value, static_cast<int>(count));
        past_caches ? store_past_caches(to, value) : store(to, value);
    }
    LONGREACH_INLINE void operator()(int64_t r, Vec left, Vec right) const {
        float* to = c + r * c_stride;
        const float* at_h = h + r * h_stride;
        put(to, at_h, n, left);
        put(to + lanes, at_h + lanes, n - lanes, right);
    }
};

// One left block, already packed, times one panel over one k block.
template <class Unit, class Fetch>
void multiply_left_panel(const Left& a, const float* panel, int64_t units, int64_t rows, const Writer& writer,
                         Fetch ahead) {
    float* c = writer.c;
    const int64_t stride = writer.c_stride;
    const auto multiply = [&](auto finish) __attribute__((always_inline)) {
        Core<Unit>::multiply(a, panel, units, rows, ahead, finish);
    };
    const bool plain = writer.n >= panel_cols && writer.finish == Finish::none && writer.alpha == 1.0f;
    if (plain && writer.past_caches) {
        multiply([=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            store_past_caches(c + r * stride, left);
            store_past_caches(c + r * stride + lanes, right);
        });
    } else if (plain && writer.beta == 0.0f) {
        multiply([=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            store(c + r * stride, left);
            store(c + r * stride + lanes, right);
        });
    } else if (plain && writer.beta == 1.0f) {
        multiply([=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            float* to = c + r * stride;
            store(to, load(to) + left);
            store(to + lanes, load(to + lanes) + right);
        });
    } else {
        multiply(writer);
    }
}

// Packs k block [k_begin, k_begin + k_count) of columns [col, col + panel_cols) of the right side.
template <class Unit>
void pack_right(float* to, const MatrixProduct& p, int64_t k_begin, int64_t k_count, int64_t col) {
    const int64_t n = smaller(panel_cols, p.n - col);
    if (p.b.transposed)
        pack_panel_transposed<Unit>(to, p.b.data + col * p.b.row_stride + k_begin, p.b.row_stride, k_count,
                                    n);
    else
        pack_panel<Unit>(to, p.b.data + k_begin * p.b.row_stride + col, p.b.row_stride, k_count, n);
    fill_panel<Unit>(to, units_of<Unit>(k_count));
}

inline Writer writer_at(const MatrixProduct& p, int64_t row, int64_t col, float beta, bool last,
                        bool past_caches = false) {
    return {.c = p.c + row * p.c_stride + col,
            .c_stride = p.c_stride,
            .h = p.h ? p.h + row * p.h_stride + col : p.c,
            .h_stride = p.h_stride,
            .n = p.n - col,
            .alpha = p.alpha,
            .beta = beta,
            .finish = last ? p.finish : Finish::none,
            .past_caches = past_caches};
}

// Left rows and a panel of a task of multiply_rows in its scratch, in floats.
inline constexpr int64_t left_floats =
    most_blocks * ((most_rows + tile_rows - 1) / tile_rows * tile_rows) * left_stride;
inline constexpr int64_t panel_floats = block_units * panel_cols;

// The left side of a k block for a task of `cols` columns: packed to `to`, which rounds it to bf16 or puts a transposed one
// in order. Packing rows of f32 only spreads them over the cache sets. Where few panels read them, that takes longer than
// it gains: with rows as they are, products to 128 columns took 0.98 of the time in a training step, Muon 0.93. Rows 4 KiB
// apart would share one set.
template <class Unit>
Left left_side(float* to, const Factor& a, int64_t k_begin, int64_t k_count, int64_t row, int64_t rows,
               int64_t cols) {
    const bool in_place =
        std::is_same_v<Unit, PlainUnit> && !a.transposed && cols <= 256 && a.row_stride % 1024 != 0;
    if (in_place) return {a.data + row * a.row_stride + k_begin, tile_rows * a.row_stride, a.row_stride, 1};
    return Core<Unit>::pack_left(to, left_stride, a, k_begin, k_count, row, rows);
}
