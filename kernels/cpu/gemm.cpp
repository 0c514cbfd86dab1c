// c [m, n] = alpha * a [m, k] b [k, n] + beta * c and its finishes; 2*m*n*k FLOPs.
//
//   linear                  y [N, out] = x w^T      right side w, transposed
//   linear_backward_input   dx [N, in] = dy w       right side w
//   linear_backward_weight  dw [out, in] = or += dy^T x  left side transposed, k = tokens
//
// k is cut into blocks. The first tasks pack the right side into panels (in chunks where it is larger than the space for it);
// the others take blocks of rows, copy the left rows to their own scratch (left_side says when and why) and run the register
// tiles of micro_gemm.h or tiles.h, which prefetch the next operands. No task waits for another: one that finds a panel not
// packed yet, because its thread is late or lost its core, packs it itself. Few rows have a way of their own (few_rows.cpp).
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
#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Largest piece of c in a task that packs both sides, and units along k of its blocks: 384 x 96 units of left (144 KiB) stay
// in L2, a panel of right (12 KiB) and a tile of left in L1. With 192 rows and 192 units, which fill L2 alike, weight
// gradients took 1.05 times as long.
constexpr int64_t piece_rows = 384;
constexpr int64_t piece_cols = 256;
constexpr int64_t piece_units = 96;
// Least number of tasks of a product, where its shape allows: enough for many threads to finish together.
constexpr int64_t wanted_tasks = 16;

// Memory needed next, which register tiles prefetch: `lines` columns of one cache line each, as many rows deep as a tile
// multiplies units. Interleaved rows (bf16: two per unit) count as further lines.
struct Stream {
    const float* data = nullptr;
    int64_t stride = 0, lines = 0, rows_per_unit = 1;

    static Stream of(const float* from, int64_t row_stride, int64_t cols, int64_t rows_per_unit) {
        return {from, row_stride, (cols + line_floats - 1) / line_floats * rows_per_unit, rows_per_unit};
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
        return {data + i / rows_per_unit * line_floats + i % rows_per_unit * stride + first * step, step,
                pace};
    }
};

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

// A piece of c, rows [row, row + rows) and columns [col, col + cols), and the k blocks [first, last)
// to add to it.
struct Piece {
    int64_t first, last, row, rows, col, cols;
};

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
    p.a.transposed&& smaller(p.m, p.n) < 384 ? multiply_by_pieces<Unit>(p) : multiply_by_rows<Unit>(p);
}

void CpuOps::multiply(const MatrixProduct& product) {
    if (multiply_few_rows(product)) return;
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
