// A product of few rows with a matrix that is read once, as when texts are continued token by token: y [m, n] = x [m, k] w^T.
// Include after tiles.h in the same region.
//
// Packing w takes longer than multiplying it with a few rows. Squares of w are transposed in registers instead, and every row
// of x is multiplied with each. From rows_in_place rows on a thread packs one panel, multiplies it and packs the next into the
// same memory. A sum is the same chain over k as in products of more rows.

inline constexpr int rows_in_place = 4;
inline constexpr int most_few_rows = 16;
// Weights that one turn of a thread takes for up to twice rows_in_place rows, about 10 us.
inline constexpr int64_t few_rows_turn = 1 << 16;

// `rows` rows of x times n rows of w, of which a panel's columns are used: finish(row, left, right) as in multiply_tile.
// w lies `stride` floats from row to row, and k counts floats.
template <int rows, class Unit, class Finish>
LONGREACH_INLINE void multiply_few(const Left& x, const float* w, int64_t stride, int64_t k, int64_t n,
                                   Finish finish) {
    constexpr int64_t step = lanes * Unit::floats, line = 16;
    // Short rows end before the hardware has seen that they are read in order: the rows of the next panel are asked for, a
    // line of each in turn. Without it, weights that had left L2 took 1.3 to 1.6 times as long.
    constexpr int64_t turns = step < line ? line / step : 1;
    const int64_t ahead = stride <= 512 ? panel_cols * stride : line;
    // Rows past the last are the last one again, and their sums not wanted.
    const float* from[panel_cols];
    for (int64_t j = 0; j < panel_cols; ++j) from[j] = w + smaller(j, n - 1) * stride;
    Vec sum[2][rows] = {};
    const auto square = [&](int64_t i, auto rest, int64_t units) __attribute__((always_inline)) {
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            for (int64_t j = i / step % turns; j < lanes; j += turns)
                __builtin_prefetch(from[half * lanes + j] + i + ahead);
            Vec block[lanes];
#pragma GCC unroll 16
            for (int j = 0; j < lanes; ++j) block[j] = Unit::along(from[half * lanes + j] + i, rest);
            transpose(block);
#pragma GCC unroll 16
            for (int u = 0; u < units; ++u)
#pragma GCC unroll 4
                for (int r = 0; r < rows; ++r)
                    sum[half][r] =
                        Unit::multiply_add(Unit::broadcast(x.data[r * x.row_step + i / Unit::floats + u]),
                                           block[u], sum[half][r]);
        }
    };
    int64_t i = 0;
    for (; i + step <= k; i += step) square(i, std::integral_constant<int64_t, step>(), lanes);
    if (i < k) square(i, k - i, units_of<Unit>(k - i));
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) finish(r, sum[0][r], sum[1][r]);
}

// The same for up to rows_in_place rows, their number known at run time.
template <class Unit, class Finish>
void multiply_few(int64_t rows, const Left& x, const float* w, int64_t stride, int64_t k, int64_t n,
                  Finish finish) {
    static_assert(rows_in_place == 4);
    if (rows == 1) return multiply_few<1, Unit>(x, w, stride, k, n, finish);
    if (rows == 2) return multiply_few<2, Unit>(x, w, stride, k, n, finish);
    if (rows == 3) return multiply_few<3, Unit>(x, w, stride, k, n, finish);
    multiply_few<4, Unit>(x, w, stride, k, n, finish);
}
