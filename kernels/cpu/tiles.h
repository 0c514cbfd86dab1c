// How products multiply what they have packed: in vector registers, as micro_gemm.h says, or bf16 in the tiles of AMX.
// Include after micro_gemm.h and gemm.h in the same region.
//
// Core<Unit> is what gemm.cpp and attention ask: how rows of the left side are packed, to what multiple of units along k
// both sides are filled with zeros, and the product of packed rows with a panel.

// A left side: unit (i, j) lies i * row_step + j * k_step after `data`.
struct Strided {
    const float* data;
    int64_t row_step, k_step;
    // From unit j of each row on.
    Strided from_unit(int64_t j) const { return {data + j * k_step, row_step, k_step}; }
};

// Whole vectors are multiplied: nothing is filled up but what packing writes anyway.
template <class Unit>
struct Core {
    static constexpr int64_t rows = tile_rows;   // of a register tile
    static constexpr int64_t units = 1;          // along k, of one step
    static constexpr int64_t rows_together = 1;  // rows are written in multiples of this
    static constexpr bool turned = false;        // whether a left side has to be contiguous along k
    struct Ready {};                             // what a thread has while it multiplies

    // Rows [row, row + rows) of k floats from k_begin on, each row `stride` floats from the one before it.
    static Left pack_left(float* to, int64_t stride, const Factor& a, int64_t k_begin, int64_t k, int64_t row,
                          int64_t count) {
        if (a.transposed) {
            const int64_t tile_step = units_of<Unit>(k) * tile_rows + tile_slack;
            pack_strips<tile_rows, Unit>(to, tile_step, a.data + k_begin * a.row_stride + row, a.row_stride,
                                         k, count);
            return {to, tile_step, 1, tile_rows};
        }
        pack_rows<Unit>(to, stride, a.data + row * a.row_stride + k_begin, a.row_stride, count, k);
        return {to, tile_rows * stride, stride, 1};
    }
    template <class Fetch, class Finish>
    LONGREACH_INLINE static void multiply(const Left& a, const float* panel, int64_t k, int64_t count,
                                          Fetch ahead, Finish finish) {
        multiply_panel<Unit>(a, panel, k, count, ahead, finish);
    }
    // to [count, panel_cols], rows `stride` floats apart, = or += `count` rows of k units times a panel.
    template <bool add>
    LONGREACH_INLINE static void multiply_to(float* to, int64_t stride, const Strided& a, const float* panel,
                                             int64_t k, int64_t count) {
        multiply_panel<Unit>(
            a.data, a.row_step, a.k_step, panel, k,
            count, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
                float* at = to + r * stride;
                store(at, add ? load(at) + left : left);
                store(at + lanes, add ? load(at + lanes) + right : right);
            });
    }
};

#if defined(LONGREACH_ISA_AVX512)
// bf16 in tiles: 16 rows of 64 bytes. A tile of the left side has 16 rows of 16 units, one of the right side 16 units of
// 16 columns, which is half a panel, and one of sums 16 x 16 f32. Four tiles of sums stay in registers while k advances:
// each of two left and two right tiles is loaded once per step of 16 units and multiplied twice.
//
// A step of TDPBF16PS adds the 16 products of even k to each other and those of odd k, two chains of multiply-adds from
// zero on, then one chain to the other and that to the sum; each rounds to nearest. A product of a sum of k passes at
// most min(16, ceil(k / 2)) - 1 roundings in its chain, one where chains meet and ceil(k / 32) - 1 between steps, as the
// first adds to zero: never more than k, so the bound of Bf16Unit holds. Denormal numbers are zero here too.
//
// Rows do not meet: how many share a tile changes no bit. The last tile is filled with rows of zeros.
struct TileUnit : Bf16Unit {};

// What a thread tells the CPU before its first tile: eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
inline constexpr TileShapes tile_shapes;
static_assert(sizeof(TileShapes) == 64);

template <>
struct Core<TileUnit> {
    static constexpr int64_t side = 16;        // rows of a tile, and units of 4 bytes in a row
    static constexpr int64_t rows = 2 * side;  // of a register tile
    static constexpr int64_t units = side;
    static constexpr int64_t rows_together = side;
    static constexpr bool turned = true;
    static_assert(panel_cols == 2 * side && lanes == side);

    // A thread gives its tiles back, or every switch to another would save their 8 KiB.
    struct Ready {
        Ready() { _tile_loadconfig(&tile_shapes); }
        ~Ready() { _tile_release(); }
        Ready(const Ready&) = delete;
        Ready& operator=(const Ready&) = delete;
    };

    static Left pack_left(float* to, int64_t stride, const Factor& a, int64_t k_begin, int64_t k, int64_t row,
                          int64_t count) {
        if (a.transposed) {
            pack_turned(to, stride, a.data + k_begin * a.row_stride + row, a.row_stride, k, count);
        } else {
            pack_rows<TileUnit>(to, stride, a.data + row * a.row_stride + k_begin, a.row_stride, count, k);
            for (int64_t r = count; r < round_up(count, side); ++r)
                for (int64_t u = 0; u < units_of<TileUnit>(k); u += lanes) store(to + r * stride + u, Vec{});
        }
        return {to, rows * stride, stride, 1};
    }
    // The same from the transpose, a row-major [k, count] source, whose rows are read in order to visit each page once.
    static void pack_turned(float* to, int64_t to_stride, const float* from, int64_t stride, int64_t k,
                            int64_t count) {
        for (int64_t i = 0; i < k; i += lanes * TileUnit::floats, to += lanes)
            for (int64_t r = 0; r < count; r += lanes) {
                Vec block[lanes];
                for (int j = 0; j < lanes; ++j) {
                    const int64_t at = i + j * TileUnit::floats;
                    const float* row = from + at * stride + r;
                    block[j] = at < k ? TileUnit::across(row, at + 1 < k ? row + stride : nullptr, count - r)
                                      : Vec{};
                }
                transpose(block);
                for (int j = 0; j < lanes; ++j) store(to + (r + j) * to_stride, block[j]);
            }
    }

    // sums [32, panel_cols], or the first 16 rows of it, = or += 32 or 16 packed rows times a panel.
    template <int row_tiles, bool add, class Fetch>
    LONGREACH_INLINE static void multiply_tiles(float* sums, int64_t stride, const float* a, int64_t a_stride,
                                                const float* b, int64_t steps, [[maybe_unused]] Fetch ahead) {
        constexpr int64_t b_bytes = panel_cols * 4;
        const int64_t a_bytes = a_stride * 4, bytes = stride * 4;
        std::atomic_signal_fence(
            std::memory_order_seq_cst);  // g++ does not know that these loads read memory
        if constexpr (add) {
            _tile_loadd(0, sums, bytes);
            _tile_loadd(1, sums + side, bytes);
        } else {
            _tile_zero(0);
            _tile_zero(1);
        }
        if constexpr (row_tiles == 2 && add) {
            _tile_loadd(2, sums + side * stride, bytes);
            _tile_loadd(3, sums + side * stride + side, bytes);
        } else if constexpr (row_tiles == 2) {
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int64_t step = 0; step < steps; ++step, a += side, b += side * panel_cols) {
            _tile_loadd(6, b, b_bytes);
            _tile_loadd(4, a, a_bytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + side, b_bytes);
            _tile_dpbf16ps(1, 4, 7);
            if constexpr (row_tiles == 2) {
                _tile_loadd(5, a + side * a_stride, a_bytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            if constexpr (!std::is_same_v<Fetch, NothingAhead>)
                for (int64_t i = 0; i < side; ++i, ahead.at += ahead.step) __builtin_prefetch(ahead.at, 0, 2);
        }
        _tile_stored(0, sums, bytes);
        _tile_stored(1, sums + side, bytes);
        if constexpr (row_tiles == 2) {
            _tile_stored(2, sums + side * stride, bytes);
            _tile_stored(3, sums + side * stride + side, bytes);
        }
    }
    // Needs a Ready. The panel goes on with zeros up to a multiple of 16 units.
    template <class Fetch, class Finish>
    LONGREACH_INLINE static void multiply(const Left& a, const float* panel, int64_t k, int64_t count,
                                          Fetch ahead, Finish finish) {
        alignas(64) float sums[rows * panel_cols];
        const int64_t steps = (k + side - 1) / side;
        for (int64_t r = 0; r < count; r += rows) {
            const int64_t here = smaller(rows, count - r);
            const float* left = a.data + r * a.row_step;
            here > side
                ? multiply_tiles<2, false>(sums, panel_cols, left, a.row_step, panel, steps, ahead(r / rows))
                : multiply_tiles<1, false>(sums, panel_cols, left, a.row_step, panel, steps, ahead(r / rows));
            for (int64_t i = 0; i < here; ++i) {
                const float* row = sums + i * panel_cols;
                finish(r + i, load(row), load(row + lanes));
            }
        }
    }
    // The same straight to memory. Rows up to a multiple of 16 are read and written: those past `count` must exist, in
    // `to` and in `a`, and are overwritten with sums that mean nothing.
    template <bool add>
    LONGREACH_INLINE static void multiply_to(float* to, int64_t stride, const Strided& a, const float* panel,
                                             int64_t k, int64_t count) {
        const int64_t steps = (k + side - 1) / side;
        int64_t r = 0;
        for (; count - r > side; r += rows)
            multiply_tiles<2, add>(to + r * stride, stride, a.data + r * a.row_step, a.row_step, panel, steps,
                                   NothingAhead{});
        if (r < count)
            multiply_tiles<1, add>(to + r * stride, stride, a.data + r * a.row_step, a.row_step, panel, steps,
                                   NothingAhead{});
    }
};
#endif

// Floats along k of one step of a product.
template <class Unit>
inline constexpr int64_t step_floats = Core<Unit>::units* Unit::floats;
// Units of k floats with the zeros that fill the last step.
template <class Unit>
LONGREACH_INLINE int64_t filled_units(int64_t k) {
    return round_up(units_of<Unit>(k), Core<Unit>::units);
}
// Zeros after the packed units of a panel, up to whole steps of a register tile.
template <class Unit>
LONGREACH_INLINE void fill_panel(float* panel, int64_t units) {
    for (int64_t u = units; u < round_up(units, Core<Unit>::units); ++u)
        for (int64_t c = 0; c < panel_cols; c += lanes) store(panel + u * panel_cols + c, Vec{});
}

// Calls work with the unit of a product.
template <class Work>
LONGREACH_INLINE void with_products(Products products, Work work) {
#if defined(LONGREACH_ISA_AVX512)
    if (products == Products::bf16_tiles) return work(TileUnit{});
#endif
    with_unit(products == Products::f32 ? Precision::fp32 : Precision::bf16, work);
}
