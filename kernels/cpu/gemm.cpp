// c [m, n] = alpha * a [m, k] b [k, n] + beta * c and its finishes; 2*m*n*k FLOPs.
//
//   linear                  y [N, out] = x w^T      right side w, transposed
//   linear_backward_input   dx [N, in] = dy w       right side w
//   linear_backward_weight  dw [out, in] += dy^T x  left side transposed, k = tokens
//
// The right side is packed into panels once per call (in pieces where it is larger than the space for it), by
// all threads; then the threads take blocks of rows, copy the left rows of one k block to their own scratch
// (which also frees them of power-of-two strides, that would share few cache sets) and run the register tiles
// of micro_gemm.h.
//
// k is cut into blocks by its length alone and every element of c is one chain of multiply-adds per block,
// the blocks added in order: neither threads nor the cut into rows and columns can change a bit.
#include <omp.h>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

enum class Finish { none, relu2, relu2_backward };

// Units along k per block: a panel of 256 x 32 floats (32 KiB) and a left tile stay in L1.
constexpr int64_t block_units = 256;
// Most rows of a task: its left block of 64 x 256 units (68 KiB) stays in L2, and a panel loaded into L1
// serves 64 rows.
constexpr int64_t block_rows = 64;
// Left rows lie 16 units further apart than a block is long, so that they spread over the cache sets.
constexpr int64_t left_stride = block_units + 16;
// Units along k packed at a time. Larger ones (weight gradients: k = tokens) go in pieces that stay in L2 and
// L3.
constexpr int64_t chunk_units = 8 * block_units;

}  // namespace

struct MatrixProduct {
    float* c = nullptr;
    int64_t c_stride = 0;
    Factor a, b;
    int64_t m = 0, n = 0, k = 0;
    float alpha = 1.0f, beta = 0.0f;
    Finish finish = Finish::none;
    const float* h = nullptr;  // [m, n]: what relu2_backward multiplies with, as 2 sqrt(h)
    int64_t h_stride = 0;
};

namespace {

// Where one k block of k lies, in floats. Blocks have equal length but for the last.
struct Blocks {
    int64_t count, length;
    template <class Unit>
    static Blocks of(int64_t k) {
        const int64_t count = (k + block_units * Unit::floats - 1) / (block_units * Unit::floats);
        return {count, round_up((k + count - 1) / count, lanes * Unit::floats)};
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

    LONGREACH_INLINE Vec finished(Vec value, const float* at_h, int64_t count) const {
        if (finish == Finish::relu2) {
            const Vec positive = max(value, Vec{});
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
        count >= lanes ? store(to, value) : store_first(to, value, static_cast<int>(count));
    }
    LONGREACH_INLINE void operator()(int64_t r, Vec left, Vec right) const {
        float* to = c + r * c_stride;
        const float* at_h = h + r * h_stride;
        put(to, at_h, n, left);
        put(to + lanes, at_h + lanes, n - lanes, right);
    }
};

// One left block, already packed, times one panel over one k block.
template <class Unit>
void multiply_left_panel(const float* a, int64_t row_step, int64_t k_step, const float* panel, int64_t units,
                         int64_t rows, const Writer& writer) {
    float* c = writer.c;
    const int64_t stride = writer.c_stride;
    const bool plain = writer.n >= panel_cols && writer.finish == Finish::none && writer.alpha == 1.0f;
    if (plain && writer.beta == 0.0f) {
        multiply_panel<Unit>(
            a, row_step, k_step, panel, units,
            rows, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
                store(c + r * stride, left);
                store(c + r * stride + lanes, right);
            });
    } else if (plain && writer.beta == 1.0f) {
        multiply_panel<Unit>(
            a, row_step, k_step, panel, units,
            rows, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
                float* to = c + r * stride;
                store(to, load(to) + left);
                store(to + lanes, load(to + lanes) + right);
            });
    } else {
        multiply_panel<Unit>(a, row_step, k_step, panel, units, rows, writer);
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
        pack_panel<Unit>(to, panel_cols, p.b.data + k_begin * p.b.row_stride + col, p.b.row_stride, k_count,
                         n);
}

// Packs a left block and multiplies it with panels [first, last) of columns; `panels` holds the k block of
// panel `first`, the next panel's lies panel_stride floats further.
template <class Unit>
void multiply_rows(const MatrixProduct& p, int64_t row, int64_t rows, int64_t k_begin, int64_t k_count,
                   int64_t col, int64_t col_end, const float* panels, int64_t panel_stride, float* left) {
    int64_t row_step = left_stride, k_step = 1;
    if (p.a.transposed) {
        row_step = 1;
        k_step = round_up(rows, lanes);
        pack_panel<Unit>(left, k_step, p.a.data + k_begin * p.a.row_stride + row, p.a.row_stride, k_count,
                         rows);
    } else {
        pack_rows<Unit>(left, left_stride, p.a.data + row * p.a.row_stride + k_begin, p.a.row_stride, rows,
                        k_count);
    }
    const int64_t units = (k_count + Unit::floats - 1) / Unit::floats;
    const bool last = k_begin + k_count == p.k;
    for (; col < col_end; col += panel_cols, panels += panel_stride) {
        const Writer writer{.c = p.c + row * p.c_stride + col,
                            .c_stride = p.c_stride,
                            .h = p.h + row * p.h_stride + col,
                            .h_stride = p.h_stride,
                            .n = p.n - col,
                            .alpha = p.alpha,
                            .beta = k_begin == 0 ? p.beta : 1.0f,
                            .finish = last ? p.finish : Finish::none};
        multiply_left_panel<Unit>(left, row_step, k_step, panels, units, rows, writer);
    }
}

// Rows per task: enough tasks for many threads where m is small (weight gradients), never more than
// block_rows.
int64_t rows_per_task(int64_t m) {
    return larger(8, smaller(block_rows, round_up((m + 31) / 32, 4)));
}

}  // namespace

template <class Unit>
void CpuOps::multiply_units(const MatrixProduct& p) {
    const Blocks blocks = Blocks::of<Unit>(p.k);
    const int64_t block_floats = blocks.length / Unit::floats * panel_cols;  // of one panel's k block, packed
    const int64_t chunk_blocks = smaller(blocks.count, chunk_units * Unit::floats / blocks.length);
    const int64_t panel_stride = chunk_blocks * block_floats;
    const int64_t chunk_cols = smaller(round_up(p.n, panel_cols), packed_floats_ / panel_stride * panel_cols);
    const int64_t rows = rows_per_task(p.m);
    const int64_t row_tasks = (p.m + rows - 1) / rows;

#pragma omp parallel num_threads(threads_)
    for (int64_t col = 0; col < p.n; col += chunk_cols) {
        const int64_t col_end = smaller(p.n, col + chunk_cols);
        const int64_t panels = (col_end - col + panel_cols - 1) / panel_cols;
        // Few rows: columns are cut as well, at the price of packing the left rows again.
        const int64_t task_panels = row_tasks >= 16 ? panels : (panels * row_tasks + 31) / 32;
        const int64_t col_tasks = (panels + task_panels - 1) / task_panels;
        for (int64_t chunk = 0; chunk < blocks.count; chunk += chunk_blocks) {
            const int64_t chunk_end = smaller(blocks.count, chunk + chunk_blocks);
#pragma omp for schedule(static)
            for (int64_t i = 0; i < panels * (chunk_end - chunk); ++i) {
                const int64_t panel = i / (chunk_end - chunk), block = chunk + i % (chunk_end - chunk);
                const int64_t k_begin = block * blocks.length;
                pack_right<Unit>(packed_ + panel * panel_stride + (block - chunk) * block_floats, p, k_begin,
                                 smaller(blocks.length, p.k - k_begin), col + panel * panel_cols);
            }
#pragma omp for schedule(dynamic)
            for (int64_t task = 0; task < row_tasks * col_tasks; ++task) {
                const int64_t row = task / col_tasks * rows;
                const int64_t panel = task % col_tasks * task_panels;
                for (int64_t block = chunk; block < chunk_end; ++block) {
                    const int64_t k_begin = block * blocks.length;
                    multiply_rows<Unit>(p, row, smaller(rows, p.m - row), k_begin,
                                        smaller(blocks.length, p.k - k_begin), col + panel * panel_cols,
                                        smaller(col_end, col + (panel + task_panels) * panel_cols),
                                        packed_ + panel * panel_stride + (block - chunk) * block_floats,
                                        panel_stride, scratch_of(omp_get_thread_num()));
                }
            }
        }
    }
}

void CpuOps::multiply(const MatrixProduct& product) {
#if defined(LONGREACH_ISA_AVX512)
    if (precision_ == Precision::bf16) return multiply_units<Bf16Unit>(product);
#endif
    multiply_units<PlainUnit>(product);
}

void CpuOps::linear(Tensor y, const Tensor& x, const Tensor& w, Write write) {
    check(x.cols() == w.cols() && y.cols() == w.rows() && y.rows() == x.rows(),
          "linear: {}x{} = {}x{} ({}x{})^T", y.rows(), y.cols(), x.rows(), x.cols(), w.rows(), w.cols());
    multiply({.c = y.f32(),
              .c_stride = y.row_stride,
              .a = {x.f32(), x.row_stride},
              .b = {w.f32(), w.row_stride, true},
              .m = x.rows(),
              .n = w.rows(),
              .k = x.cols(),
              .beta = write == Write::add ? 1.0f : 0.0f});
}

void CpuOps::linear_backward_input(Tensor dx, const Tensor& dy, const Tensor& w, Write write) {
    check(dy.cols() == w.rows() && dx.cols() == w.cols() && dx.rows() == dy.rows(),
          "linear_backward_input: {}x{} = {}x{} {}x{}", dx.rows(), dx.cols(), dy.rows(), dy.cols(), w.rows(),
          w.cols());
    multiply({.c = dx.f32(),
              .c_stride = dx.row_stride,
              .a = {dy.f32(), dy.row_stride},
              .b = {w.f32(), w.row_stride},
              .m = dy.rows(),
              .n = w.cols(),
              .k = dy.cols(),
              .beta = write == Write::add ? 1.0f : 0.0f});
}

void CpuOps::linear_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x) {
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
              .beta = 1.0f});
}

void CpuOps::linear_relu2(Tensor h, const Tensor& x, const Tensor& w) {
    check(x.cols() == w.cols() && h.cols() == w.rows() && h.rows() == x.rows(),
          "linear_relu2: {}x{} = {}x{} ({}x{})^T", h.rows(), h.cols(), x.rows(), x.cols(), w.rows(),
          w.cols());
    multiply({.c = h.f32(),
              .c_stride = h.row_stride,
              .a = {x.f32(), x.row_stride},
              .b = {w.f32(), w.row_stride, true},
              .m = x.rows(),
              .n = w.rows(),
              .k = x.cols(),
              .finish = Finish::relu2});
}

void CpuOps::linear_relu2_backward(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h) {
    check(dy.cols() == w.rows() && da.cols() == w.cols() && da.rows() == dy.rows() && h.rows() == da.rows() &&
              h.cols() == da.cols(),
          "linear_relu2_backward: {}x{} = {}x{} {}x{}", da.rows(), da.cols(), dy.rows(), dy.cols(), w.rows(),
          w.cols());
    multiply({.c = da.f32(),
              .c_stride = da.row_stride,
              .a = {dy.f32(), dy.row_stride},
              .b = {w.f32(), w.row_stride},
              .m = dy.rows(),
              .n = w.cols(),
              .k = dy.cols(),
              .finish = Finish::relu2_backward,
              .h = h.f32(),
              .h_stride = h.row_stride});
}

void gemm_serial(float* c, int64_t c_stride, const Factor& a, const Factor& b, int64_t m, int64_t n,
                 int64_t k, float alpha, float beta, float* scratch) {
    // Half of the scratch holds panels of one k block, the rest the left block.
    constexpr int64_t chunk_cols = gemm_serial_scratch / 2 / block_units;
    const MatrixProduct p{
        .c = c, .c_stride = c_stride, .a = a, .b = b, .m = m, .n = n, .k = k, .alpha = alpha, .beta = beta};
    float* left = scratch + gemm_serial_scratch / 2;
    const Blocks blocks = Blocks::of<PlainUnit>(k);
    const int64_t panel_stride = blocks.length * panel_cols;
    for (int64_t col = 0; col < n; col += chunk_cols) {
        const int64_t col_end = smaller(n, col + chunk_cols);
        for (int64_t k_begin = 0; k_begin < k; k_begin += blocks.length) {
            const int64_t k_count = smaller(blocks.length, k - k_begin);
            for (int64_t i = col; i < col_end; i += panel_cols)
                pack_right<PlainUnit>(scratch + (i - col) / panel_cols * panel_stride, p, k_begin, k_count,
                                      i);
            for (int64_t row = 0; row < m; row += block_rows)
                multiply_rows<PlainUnit>(p, row, smaller(block_rows, m - row), k_begin, k_count, col, col_end,
                                         scratch, panel_stride, left);
        }
    }
}

#include "kernels/cpu/isa_end.h"
