// c [m, n] = alpha * a [m, k] b [k, n] + beta * c and its finishes; 2*m*n*k FLOPs.
//
//   linear                  y [N, out] = x w^T      right side w, transposed
//   linear_backward_input   dx [N, in] = dy w       right side w
//   linear_backward_weight  dw [out, in] = or += dy^T x  left side transposed, k = tokens
//
// k is cut into blocks. The first tasks pack the right side into panels (in chunks where it is larger than the space for it);
// the others take blocks of rows, copy the left rows to their own scratch (left_side says when and why) and run the register
// tiles of micro_gemm.h or tiles.h, which prefetch the next operands. No task waits for another: one that finds a panel not
// packed yet, because its thread is late or lost its core, packs it itself. Few rows have a way of their own (few_rows.h).
//
// A large c that is written once goes past the caches: a line of c in a cache would be read from memory before it is
// written, and evicted before the next operation reads it. Tiles also prefetch what relu2_backward multiplies with and the
// left rows that their thread is likely to take next.
//
// A weight gradient with a narrow side has few rows but a long k, and little to share: tasks are pieces of c
// times pieces of k, each packs both sides for itself, and where k is cut a second loop adds up the parts in their order.
//
// All cuts of k depend on the shape alone, and every element is one chain of multiply-adds per block, the
// blocks added in order: neither threads nor the cut into rows and columns can change a bit.
#include <atomic>
#include <type_traits>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/items.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Units along k per block: a panel of 256 x 32 units (32 KiB) and a left tile stay in L1.
constexpr int64_t block_units = 256;
// Most rows and k blocks of a left side that one task packs for itself: 96 x 4 x 256 units (408 KiB) stay in
// L2, a panel's block loaded into L1 serves 96 rows, and a tile of c is revisited while it is in L1.
constexpr int64_t most_rows = 96;
constexpr int64_t most_blocks = 4;
// Packed left rows lie 16 units further apart than a block is long, so that they spread over the cache sets.
constexpr int64_t left_stride = block_units + 16;
// Largest piece of c in a task that packs both sides, and units along k of its blocks: 384 x 96 units of left (144 KiB) stay
// in L2, a panel of right (12 KiB) and a tile of left in L1. With 192 rows and 192 units, which fill L2 alike, weight
// gradients took 1.05 times as long.
constexpr int64_t piece_rows = 384;
constexpr int64_t piece_cols = 256;
constexpr int64_t piece_units = 96;
// Least number of tasks of a product, where its shape allows: enough for many threads to finish together.
constexpr int64_t wanted_tasks = 16;

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

// Memory needed next, which register tiles prefetch: `lines` columns of one cache line each, as many rows deep as a tile
// multiplies units. Interleaved rows (bf16: two per unit) count as further lines.
struct Stream {
    const float* data = nullptr;
    int64_t stride = 0, lines = 0, rows_per_unit = 1;
    static constexpr int64_t line = 16;  // floats

    static Stream of(const float* from, int64_t row_stride, int64_t cols, int64_t rows_per_unit) {
        return {from, row_stride, (cols + line - 1) / line * rows_per_unit, rows_per_unit};
    }
    // The k block at k_begin of columns [col, col + cols) of a row-major [k, n] matrix.
    template <class Unit>
    static Stream of(const Factor& f, int64_t k_begin, int64_t col, int64_t cols) {
        return of(f.data + k_begin * f.row_stride + col, f.row_stride, cols, Unit::floats);
    }
    static Stream nothing(const float* anywhere) { return {anywhere, 0, 1, 1}; }
    // Line i, from the unit `first` on.
    LONGREACH_INLINE Ahead operator()(int64_t i, int64_t first = 0, int64_t pace = 1) const {
        const int64_t step = stride * rows_per_unit;
        return {data + i / rows_per_unit * line + i % rows_per_unit * stride + first * step, step, pace};
    }
};

// Memory without gaps that is needed next, fetched from its beginning on.
struct Run {
    const float *at, *end;
    LONGREACH_INLINE Ahead take(int64_t units) {
        if (at >= end) return {end, 0};
        const Ahead ahead{at, Stream::line};
        at += units * Stream::line;
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

// The right side, packed for all tasks: panels from column `col` on, of `blocks` k blocks from `block` on.
struct Right {
    float* data;
    std::atomic<uint64_t>* packed_for;  // by panel and block: equal to `number` once it is packed
    uint64_t number;
    int64_t col, block, blocks;
    int64_t block_step, panel_step;  // floats from block to block and from panel to panel

    float* at(int64_t column, int64_t which) const {
        return data + (column - col) / panel_cols * panel_step + (which - block) * block_step;
    }
    bool packed(int64_t column, int64_t which) const {
        return packed_for[(column - col) / panel_cols * blocks + which - block].load(
                   std::memory_order_acquire) == number;
    }
    // Packs number i of the panels and blocks.
    template <class Unit>
    void pack(const MatrixProduct& p, const Blocks& of, int64_t i) const {
        const int64_t column = col + i / blocks * panel_cols, which = block + i % blocks;
        pack_right<Unit>(at(column, which), p, which * of.length, of.length_of(which, p.k), column);
        packed_for[i].store(number, std::memory_order_release);
    }
};

Writer writer_at(const MatrixProduct& p, int64_t row, int64_t col, float beta, bool last,
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

// A piece of c, rows [row, row + rows) and columns [col, col + cols), and the k blocks [first, last)
// to add to it.
struct Piece {
    int64_t first, last, row, rows, col, cols;
};

// Left rows and a panel of a task of multiply_rows in its scratch, in floats.
constexpr int64_t left_floats =
    most_blocks * ((most_rows + tile_rows - 1) / tile_rows * tile_rows) * left_stride;
constexpr int64_t panel_floats = block_units * panel_cols;

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

// Adds k blocks to a piece of c; `scratch` has room for the left rows.
template <class Unit>
void multiply_rows(const MatrixProduct& p, const Blocks& blocks, const Right& right, const Piece& piece,
                   Run next_left, float* scratch) {
    [[maybe_unused]] const typename Core<Unit>::Ready ready;
    float* own_panel = scratch + left_floats;
    const bool past = blocks.count == 1 && p.beta == 0.0f && goes_past_caches(p.c, p.c_stride, p.m, p.n);
    const int64_t first = piece.first, last = piece.last, row = piece.row, rows = piece.rows;
    Left left[most_blocks];
    for (int64_t block = first; block < last;
         ++block, scratch += round_up(rows, Core<Unit>::rows) * left_stride)
        left[block - first] = left_side<Unit>(scratch, p.a, block * blocks.length,
                                              blocks.length_of(block, p.k), row, rows, piece.cols);
    for (int64_t col = piece.col; col < piece.col + piece.cols; col += panel_cols)
        for (int64_t block = first; block < last; ++block) {
            const bool more = block + 1 < last;
            const float* next = more ? right.at(col, block + 1) : right.at(col + panel_cols, first);
            const int64_t k_count = blocks.length_of(block, p.k);
            const float* panel = right.at(col, block);
            if (!right.packed(col, block)) {
                pack_right<Unit>(own_panel, p, block * blocks.length, k_count, col);
                panel = own_panel;
            }
            const Stream panel_ahead = Stream::of(next, panel_cols, panel_cols, 1);
            const bool reads_h = p.finish == Finish::relu2_backward && !more;
            const Stream h_ahead =
                reads_h ? Stream::of(p.h + row * p.h_stride + col + panel_cols, p.h_stride, panel_cols, 1)
                        : Stream{};
            const int64_t units = units_of<Unit>(k_count);
            multiply_left_panel<Unit>(
                left[block - first], panel, units, rows,
                writer_at(p, row, col, block == 0 ? p.beta : 1.0f, block == blocks.count - 1, past),
                [&](int64_t t) __attribute__((always_inline)) {
                    if (t < panel_ahead.lines) return panel_ahead(t);
                    t -= panel_ahead.lines;
                    return t < h_ahead.lines ? h_ahead(t) : next_left.take(units);
                });
        }
    if (past) drain_stores();
}

// A piece of c = or += its k blocks of the product; both sides are packed here. While vectors multiply one block, they
// fetch the next one's sources. Tiles of AMX have too few steps to fetch all of it: they were 8% faster without.
template <class Unit>
void multiply_piece(const MatrixProduct& p, const Blocks& blocks, const Piece& piece, float beta,
                    float* scratch) {
    const auto [first, last, row, rows, col, cols] = piece;
    [[maybe_unused]] const typename Core<Unit>::Ready ready;
    float* panel = scratch + piece_rows * left_stride;
    const int64_t tiles = (rows + Core<Unit>::rows - 1) / Core<Unit>::rows;
    for (int64_t block = first; block < last; ++block) {
        const int64_t k_begin = block * blocks.length, k_count = blocks.length_of(block, p.k);
        const int64_t units = units_of<Unit>(k_count);
        const Left left = left_side<Unit>(scratch, p.a, k_begin, k_count, row, rows, cols);
        const int64_t k_next = block + 1 < last ? k_begin + k_count : k_begin;
        const Stream left_ahead =
            p.a.transposed ? Stream::of<Unit>(p.a, k_next, row, rows) : Stream::nothing(panel);
        const Stream right_ahead =
            p.b.transposed ? Stream::nothing(panel) : Stream::of<Unit>(p.b, k_next, col, cols);
        // The lines are spread over all tiles: with one per unit until all were fetched, a product took 3 to 10% longer.
        const int64_t lines = left_ahead.lines + right_ahead.lines;
        const int64_t pace = larger(1, tiles * ((cols + panel_cols - 1) / panel_cols) / lines);
        for (int64_t i = 0; i < cols; i += panel_cols) {
            const int64_t above = p.lower ? larger(0, col + i - row) / Core<Unit>::rows : 0;  // the diagonal
            const int64_t skipped = above * Core<Unit>::rows;
            if (skipped >= rows) continue;
            pack_right<Unit>(panel, p, k_begin, k_count, col + i);
            multiply_left_panel<Unit>(
                {left.data + above * left.tile_step, left.tile_step, left.row_step, left.k_step}, panel,
                units, rows - skipped,
                writer_at(p, row + skipped, col + i, block == first ? beta : 1.0f, false),
                [=](int64_t t) __attribute__((always_inline)) {
                    if constexpr (Core<Unit>::turned) {
                        return NothingAhead{};
                    } else {
                        const int64_t at = t + i / panel_cols * tiles, line = smaller(at / pace, lines - 1);
                        const int64_t from = at % pace * ((units + pace - 1) / pace);
                        return line < left_ahead.lines ? left_ahead(line, from, pace)
                                                       : right_ahead(line - left_ahead.lines, from, pace);
                    }
                });
        }
    }
}

// Row r of c = beta * c + the sum of `parts` matrices [m, n], one after the other in memory, in their order.
void add_parts(const MatrixProduct& p, const float* part, int64_t parts, int64_t r) {
    for (int64_t col = 0; col < p.n; col += lanes) {
        const int64_t count = p.n - col;
        const float* from = part + r * p.n + col;
        float* to = p.c + r * p.c_stride + col;
        Vec sum = PlainUnit::along(from, count);
        if (p.beta != 0.0f) sum += splat(p.beta) * PlainUnit::along(to, count);
        for (int64_t i = 1; i < parts; ++i) sum += PlainUnit::along(from + i * p.m * p.n, count);
        count >= lanes ? store(to, sum) : store_first(to, sum, static_cast<int>(count));
    }
}

// How a product whose right side is shared is cut. A function of the shape.
struct RowCut {
    int64_t rows, row_tasks, col_tasks;
    int64_t block_step;    // floats of one block of a panel
    int64_t chunk_blocks;  // packed at a time: all columns where at least most_blocks blocks of them fit
    int64_t chunk_cols;

    // whole: rows of a register tile. Vectors also have tiles of four, of rows that are not in strips.
    RowCut(const MatrixProduct& p, const Blocks& blocks, int64_t block_length, int64_t space,
           int64_t most_panels, int64_t whole) {
        rows = p.a.transposed ? round_up((p.m + 15) / 16, whole)
                              : round_up((p.m + 63) / 64, whole > tile_rows ? whole : 4);
        rows = larger(round_up(48, whole), smaller(most_rows, rows));
        row_tasks = (p.m + rows - 1) / rows;
        // Few rows: columns are cut as well, at the price of packing the left rows again.
        col_tasks = (wanted_tasks + row_tasks - 1) / row_tasks;
        block_step = block_length * panel_cols;
        const int64_t cols = round_up(p.n, panel_cols);
        const int64_t fit = space / (cols * block_length) / most_blocks * most_blocks;
        chunk_blocks = smaller(blocks.count, larger(most_blocks, smaller(fit, 4 * most_blocks)));
        const int64_t panels = smaller(space / (chunk_blocks * block_step), most_panels / chunk_blocks);
        chunk_cols = smaller(cols, panels * panel_cols);
    }
};

// How a weight gradient is cut: pieces of c, and k into `splits`. A function of the shape.
struct PieceCut {
    int64_t rows, cols, row_pieces, col_pieces;
    int64_t split_blocks, splits;

    PieceCut(const MatrixProduct& p, const Blocks& blocks, int64_t space, int64_t whole) {
        row_pieces = (p.m + piece_rows - 1) / piece_rows;
        rows = round_up((p.m + row_pieces - 1) / row_pieces, whole);
        col_pieces = (p.n + piece_cols - 1) / piece_cols;
        cols = round_up((p.n + col_pieces - 1) / col_pieces, panel_cols);
        const int64_t pieces = row_pieces * col_pieces;
        const int64_t wanted = smaller((wanted_tasks + pieces - 1) / pieces, larger(1, space / (p.m * p.n)));
        split_blocks = (blocks.count + wanted - 1) / wanted;
        splits = (blocks.count + split_blocks - 1) / split_blocks;
    }
    int64_t tasks() const { return row_pieces * col_pieces * splits; }
};

// Each turn packs panels of its own, for a few rows none; a thread's panel stays in L1.
template <class Unit, class Scratch>
void multiply_few_rows(Pool& pool, const MatrixProduct& p, Scratch scratch_of) {
    const Blocks blocks = Blocks::of<Unit>(p.k);
    const int64_t weights = few_rows_turn / larger(1, p.m / rows_in_place);
    const int64_t cols = larger(1, weights / p.k / panel_cols) * panel_cols;
    pool.run((p.n + cols - 1) / cols, [&](int64_t turn, int thread) {
        float *own_left = scratch_of(thread), *panel = own_left + left_floats;
        for (int64_t col = turn * cols; col < smaller(p.n, (turn + 1) * cols); col += panel_cols) {
            const auto row = [&](int64_t j) { return p.b.data + smaller(j, p.n) * p.b.row_stride; };
            Run next{row(col + panel_cols), row(col + 2 * panel_cols)};
            for (int64_t block = 0; block < blocks.count; ++block) {
                const int64_t k_begin = block * blocks.length, k_count = blocks.length_of(block, p.k);
                const Left x = left_side<Unit>(own_left, p.a, k_begin, k_count, 0, p.m, panel_cols);
                const Writer writer =
                    writer_at(p, 0, col, block == 0 ? p.beta : 1.0f, block == blocks.count - 1);
                if (p.m <= rows_in_place) {
                    multiply_few<Unit>(p.m, x, row(col) + k_begin, p.b.row_stride, k_count, p.n - col,
                                       writer);
                    continue;
                }
                const int64_t units = units_of<Unit>(k_count);
                pack_right<Unit>(panel, p, k_begin, k_count, col);
                multiply_left_panel<Unit>(x, panel, units, p.m, writer,
                                          [&](int64_t) { return next.take(units); });
            }
        }
    });
}

}  // namespace

template <class Unit>
void CpuOps::multiply_by_rows(const MatrixProduct& p) {
    const Blocks blocks = Blocks::of<Unit>(p.k);
    const RowCut cut(p, blocks, units_of<Unit>(blocks.length), packed_floats_, most_panels, Core<Unit>::rows);
    for (int64_t col = 0; col < p.n; col += cut.chunk_cols) {
        const int64_t col_end = smaller(p.n, col + cut.chunk_cols);
        const int64_t panels = (col_end - col + panel_cols - 1) / panel_cols;
        const int64_t col_tasks = smaller(cut.col_tasks, panels);
        const int64_t task_cols = (panels + col_tasks - 1) / col_tasks * panel_cols;
        for (int64_t chunk = 0; chunk < blocks.count; chunk += cut.chunk_blocks) {
            const int64_t chunk_end = smaller(blocks.count, chunk + cut.chunk_blocks);
            const Right right{.data = packed_,
                              .packed_for = packed_for_.data(),
                              .number = ++right_side_,
                              .col = col,
                              .block = chunk,
                              .blocks = chunk_end - chunk,
                              .block_step = cut.block_step,
                              .panel_step = cut.chunk_blocks * cut.block_step};
            // Short blocks are packed several to a turn.
            const int64_t packs = panels * right.blocks, together = larger(1, panel_floats / cut.block_step);
            const int64_t pack_tasks = (packs + together - 1) / together;
            pool_.run(pack_tasks + cut.row_tasks * col_tasks, [&](int64_t turn, int thread) {
                if (turn < pack_tasks) {
                    for (int64_t i = turn * together; i < smaller(packs, (turn + 1) * together); ++i)
                        right.pack<Unit>(p, blocks, i);
                    return;
                }
                // Below the diagonal the last rows have most to do.
                const int64_t number = turn - pack_tasks;
                const int64_t task = p.lower ? cut.row_tasks * col_tasks - 1 - number : number;
                const int64_t row = task / col_tasks * cut.rows, begin = col + task % col_tasks * task_cols;
                const int64_t end = p.lower ? smaller(col_end, row + cut.rows) : col_end;
                if (begin >= end) return;
                // The rows that this thread takes next if all go on alike.
                const int64_t next = row + threads_ * cut.rows;
                Run next_left{p.a.data, p.a.data};
                if (!p.a.transposed && p.a.row_stride == p.k && next < p.m)
                    next_left = {p.a.data + next * p.k, p.a.data + smaller(p.m, next + cut.rows) * p.k};
                for (int64_t first = chunk; first < chunk_end; first += most_blocks)
                    multiply_rows<Unit>(p, blocks, right,
                                        {.first = first,
                                         .last = smaller(chunk_end, first + most_blocks),
                                         .row = row,
                                         .rows = smaller(cut.rows, p.m - row),
                                         .col = begin,
                                         .cols = smaller(end - begin, task_cols)},
                                        next_left, scratch_of(thread));
            });
        }
    }
}

template <class Unit>
void CpuOps::multiply_by_pieces(const MatrixProduct& p) {
    const Blocks blocks = Blocks::of<Unit>(p.k, piece_units);
    const PieceCut cut(p, blocks, packed_floats_, Core<Unit>::rows);
    pool_.run(cut.tasks(), [&](int64_t task, int thread) {
        const int64_t split = task % cut.splits, number = task / cut.splits;
        const int64_t row = number / cut.col_pieces * cut.rows, col = number % cut.col_pieces * cut.cols;
        if (row >= p.m || col >= p.n) return;
        const Piece piece{.first = split * cut.split_blocks,
                          .last = smaller(blocks.count, (split + 1) * cut.split_blocks),
                          .row = row,
                          .rows = smaller(cut.rows, p.m - row),
                          .col = col,
                          .cols = smaller(cut.cols, p.n - col)};
        if (cut.splits == 1) return multiply_piece<Unit>(p, blocks, piece, p.beta, scratch_of(thread));
        MatrixProduct part = p;
        part.c = packed_ + split * p.m * p.n;
        part.c_stride = p.n;
        multiply_piece<Unit>(part, blocks, piece, 0.0f, scratch_of(thread));
    });
    // A loop of its own: the thread that finished last would add up megabytes while the others wait.
    if (cut.splits > 1)
        for_items(pool_, p.m, cut.splits * p.n, [&](int64_t row) { add_parts(p, packed_, cut.splits, row); });
}

template <class Unit>
void CpuOps::multiply_units(const MatrixProduct& p) {
    if constexpr (!Core<Unit>::turned)
        if (p.m <= most_few_rows && !p.a.transposed && p.b.transposed)
            return multiply_few_rows<Unit>(pool_, p, [&](int thread) { return scratch_of(thread); });
    p.a.transposed&& smaller(p.m, p.n) < 384 ? multiply_by_pieces<Unit>(p) : multiply_by_rows<Unit>(p);
}

void CpuOps::multiply(const MatrixProduct& product) {
    with_products(products_, [&]<class Unit>(Unit) { multiply_units<Unit>(product); });
}

static MatrixProduct forward(const Tensor& y, const Tensor& x, const Tensor& w, Write write = Write::set) {
    check(x.cols() == w.cols() && y.cols() == w.rows() && y.rows() == x.rows(),
          "linear: {}x{} = {}x{} ({}x{})^T", y.rows(), y.cols(), x.rows(), x.cols(), w.rows(), w.cols());
    return {.c = y.f32(),
            .c_stride = y.row_stride,
            .a = {x.f32(), x.row_stride},
            .b = {w.f32(), w.row_stride, true},
            .m = x.rows(),
            .n = w.rows(),
            .k = x.cols(),
            .beta = write == Write::add ? 1.0f : 0.0f};
}
static MatrixProduct backward(const Tensor& dx, const Tensor& dy, const Tensor& w, Write write = Write::set) {
    check(dy.cols() == w.rows() && dx.cols() == w.cols() && dx.rows() == dy.rows(),
          "linear dx: {}x{} = {}x{} {}x{}", dx.rows(), dx.cols(), dy.rows(), dy.cols(), w.rows(), w.cols());
    return {.c = dx.f32(),
            .c_stride = dx.row_stride,
            .a = {dy.f32(), dy.row_stride},
            .b = {w.f32(), w.row_stride},
            .m = dy.rows(),
            .n = w.cols(),
            .k = dy.cols(),
            .beta = write == Write::add ? 1.0f : 0.0f};
}

void CpuOps::do_linear(Tensor y, const Tensor& x, const Tensor& w, Write write) {
    multiply(forward(y, x, w, write));
}

void CpuOps::do_linear_backward_input(Tensor dx, const Tensor& dy, const Tensor& w, Write write) {
    multiply(backward(dx, dy, w, write));
}

void CpuOps::do_linear_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x, Write write) {
    check(dw.rows() == dy.cols() && dw.cols() == x.cols() && dy.rows() == x.rows(),
          "linear_backward_weight: {}x{} = ({}x{})^T {}x{}", dw.rows(), dw.cols(), dy.rows(), dy.cols(),
          x.rows(), x.cols());
    multiply({.c = dw.f32(),
              .c_stride = dw.row_stride,
              .a = {dy.f32(), dy.row_stride, true},
              .b = {x.f32(), x.row_stride},
              .m = dy.cols(),
              .n = x.cols(),
              .k = dy.rows(),
              .beta = write == Write::add ? 1.0f : 0.0f});
}

void CpuOps::do_linear_relu2(Tensor h, const Tensor& x, const Tensor& w) {
    MatrixProduct product = forward(h, x, w);
    product.finish = Finish::relu2;
    multiply(product);
}

void CpuOps::do_linear_relu2_backward(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h) {
    check(h.rows() == da.rows() && h.cols() == da.cols(), "linear_relu2_backward: {}x{} of {}x{}", da.rows(),
          da.cols(), h.rows(), h.cols());
    MatrixProduct product = backward(da, dy, w);
    product.finish = Finish::relu2_backward;
    product.h = h.f32(), product.h_stride = h.row_stride;
    multiply(product);
}

void gemm_serial(const MatrixProduct& p, float* scratch, Products products) {
    static_assert(piece_rows * left_stride + panel_floats <= gemm_serial_scratch &&
                  left_floats + panel_floats <= gemm_serial_scratch);
    with_products(products, [&]<class Unit>(Unit) {
        const Blocks blocks = Blocks::of<Unit>(p.k);
        for (int64_t row = 0; row < p.m; row += piece_rows)
            for (int64_t col = 0; col < p.n; col += piece_cols)
                multiply_piece<Unit>(p, blocks,
                                     {.first = 0,
                                      .last = blocks.count,
                                      .row = row,
                                      .rows = smaller(piece_rows, p.m - row),
                                      .col = col,
                                      .cols = smaller(piece_cols, p.n - col)},
                                     p.beta, scratch);
    });
}

#include "kernels/cpu/isa_end.h"
