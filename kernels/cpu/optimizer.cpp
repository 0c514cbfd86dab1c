// Adam and Muon over lists of tensors, f32. g is the gradient times gradient_scale.
//
//   Adam   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//          w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//   Muon   m = mu m + q g;  u = q g + mu m (Nesterov) or m;  q = 1, or 1 - mu when averaged
//          x = u / (|u|_F + 1e-7), shorter side first
//          `iterations` times: x = 3.4445 x - 4.7750 A x + 2.0315 A A x, A = x x^T
//          w = w (1 - wd) - lr x
//
// Adam moves 28 bytes and takes 14 FLOPs per parameter; Muon on [s, l], s <= l, takes 4 s^2 l + 2 s^3 per
// iteration. Adam is parallel over the blocks of all tensors together. Muon takes matrices with a side up to
// 256 one per thread; larger ones come one after another, each by all threads: a choice by size, so the bits
// do not depend on the threads.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/muon_slot.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

constexpr int64_t adam_block = 1 << 12;  // parameters: four arrays of 16 KiB, in L2

int64_t blocks_of(const AdamSlot& slot) {
    return (slot.param.count() + adam_block - 1) / adam_block;
}

// The scalars of one slot, with the bias corrections folded in:
// lr / c1 * m / (sqrt(v) / sqrt(c2) + eps), c = 1 - beta^t.
struct AdamScalars {
    float gradient_scale, beta1, rest1, beta2, rest2, keep, rate, inverse_sqrt_c2, eps;
};
AdamScalars adam_scalars(const AdamSlot& slot, const AdamSpec& spec) {
    const double step = static_cast<double>(spec.step);
    const double c1 = 1.0 - std::pow(double{spec.beta1}, step), c2 = 1.0 - std::pow(double{spec.beta2}, step);
    return {.gradient_scale = spec.gradient_scale,
            .beta1 = spec.beta1,
            .rest1 = static_cast<float>(1.0 - double{spec.beta1}),
            .beta2 = spec.beta2,
            .rest2 = static_cast<float>(1.0 - double{spec.beta2}),
            .keep = static_cast<float>(1.0 - double{slot.learning_rate} * slot.weight_decay),
            .rate = static_cast<float>(slot.learning_rate / c1),
            .inverse_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(c2)),
            .eps = spec.eps};
}

void adam_span(const AdamSlot& slot, const AdamScalars& k, int64_t begin, int64_t count) {
    float *param = slot.param.f32() + begin, *first = slot.first.f32() + begin,
          *second = slot.second.f32() + begin;
    const float* gradient = slot.gradient.f32() + begin;
    for_vectors(count, [&](int64_t i, auto n) {
        const Vec g = load(gradient + i, n) * splat(k.gradient_scale);
        const Vec m = fma(splat(k.beta1), load(first + i, n), splat(k.rest1) * g);
        const Vec v = fma(splat(k.beta2), load(second + i, n), splat(k.rest2) * g * g);
        const Vec step = splat(k.rate) * m / fma(sqrt(v), splat(k.inverse_sqrt_c2), splat(k.eps));
        store(first + i, m, n);
        store(second + i, v, n);
        store(param + i, splat(k.keep) * load(param + i, n) - step, n);
    });
}

// Blocks [begin, end) of the slots laid end to end.
void adam_blocks(std::span<const AdamSlot> slots, const AdamSpec& spec, Range range) {
    int64_t first = 0;  // number of the slot's first block
    for (const AdamSlot& slot : slots) {
        const int64_t blocks = blocks_of(slot);
        const int64_t from = std::max(range.begin - first, int64_t{0}),
                      to = std::min(range.end - first, blocks);
        if (from < to) {
            const AdamScalars scalars = adam_scalars(slot, spec);
            const int64_t begin = from * adam_block, end = std::min(to * adam_block, slot.param.count());
            adam_span(slot, scalars, begin, end - begin);
        }
        first += blocks;
    }
}

// --- Muon

constexpr int64_t serial_side = 256;  // matrices whose shorter side is at most this go one per thread
constexpr int64_t row_block = 16;     // rows per task of the elementwise passes
constexpr float first_power = 3.4445f, third_power = -4.7750f, fifth_power = 2.0315f;

struct Shape {
    int64_t rows, cols, small, large;
    bool turned;  // more rows than columns: x is the transpose
    explicit Shape(const Tensor& t)
        : rows(t.rows()),
          cols(t.cols()),
          small(std::min(rows, cols)),
          large(std::max(rows, cols)),
          turned(rows > cols) {}
    bool serial() const { return small <= serial_side; }
    Range block(int64_t b) const { return {b * row_block, std::min((b + 1) * row_block, rows)}; }
    int64_t blocks() const { return (rows + row_block - 1) / row_block; }
};

// Workspace of one matrix: x, y [small, large]; a, b [small, small]; each on a cache line.
struct MuonSpace {
    float *x, *y, *a, *b;
};
int64_t padded(int64_t floats) {
    return (floats + 15) / 16 * 16;
}
int64_t muon_floats(const Shape& s) {
    return 2 * padded(s.small * s.large) + 2 * padded(s.small * s.small);
}
MuonSpace muon_space(float* memory, const Shape& s) {
    const int64_t matrix = padded(s.small * s.large), square = padded(s.small * s.small);
    return {memory, memory + matrix, memory + 2 * matrix, memory + 2 * matrix + square};
}

// Copies what lies below the diagonal of a square matrix to what lies above it.
void mirror(float* c, int64_t n) {
    for (int64_t row = 0; row < n; row += lanes)
        for (int64_t col = 0; col <= row; col += lanes) {
            if (col < row && row + lanes <= n) {
                Vec block[lanes];
                for (int i = 0; i < lanes; ++i) block[i] = load(c + (row + i) * n + col);
                transpose(block);
                for (int i = 0; i < lanes; ++i) store(c + (col + i) * n + row, block[i]);
                continue;
            }
            for (int64_t i = row; i < std::min(n, row + lanes); ++i)
                for (int64_t j = col; j < std::min(i, col + lanes); ++j) c[j * n + i] = c[i * n + j];
        }
}

// One thread, inside a parallel region.
struct SerialTeam {
    float* scratch;
    Products products;

    // body(i) for i in [0, count), items of `size` elements.
    template <class Body>
    void each(int64_t count, int64_t /*size*/, Body body) const {
        for (int64_t i = 0; i < count; ++i) body(i);
    }
    template <class Term>
    double sum(int64_t count, int64_t /*size*/, Term term) const {
        double total = 0;
        for (int64_t i = 0; i < count; ++i) total += term(i);
        return total;
    }
    // x = 3.4445 x - 4.7750 A x + 2.0315 A A x; the result takes y's place and y x's.
    void iterate(MuonSpace& m, const Shape& s) const {
        const Factor x{m.x, s.large}, xt{m.x, s.large, true}, a{m.a, s.small}, b{m.b, s.small};
        const int64_t r = s.small, c = s.large;
        gemm_serial({.c = m.a, .c_stride = r, .a = x, .b = xt, .m = r, .n = r, .k = c, .lower = true},
                    scratch, products);
        mirror(m.a, r);
        std::copy_n(m.a, r * r, m.b);
        gemm_serial({.c = m.b,
                     .c_stride = r,
                     .a = a,
                     .b = a,
                     .m = r,
                     .n = r,
                     .k = r,
                     .alpha = fifth_power,
                     .beta = third_power,
                     .lower = true},
                    scratch, products);
        mirror(m.b, r);
        std::copy_n(m.x, r * c, m.y);
        gemm_serial({.c = m.y, .c_stride = c, .a = b, .b = x, .m = r, .n = c, .k = r, .beta = first_power},
                    scratch, products);
        std::swap(m.x, m.y);
    }
};

// All threads on one matrix.
struct ParallelTeam {
    Ops& ops;
    double* partials;
    Pool& pool;

    template <class Body>
    void each(int64_t count, int64_t size, Body body) const {
        for_items(pool, count, size, body);
    }
    template <class Term>
    double sum(int64_t count, int64_t size, Term term) const {
        each(count, size, [&](int64_t i) { partials[i] = term(i); });
        double total = 0;
        for (int64_t i = 0; i < count; ++i) total += partials[i];
        return total;
    }
    void iterate(MuonSpace& m, const Shape& s) const {
        const Tensor x(m.x, DType::f32, {s.small, s.large}), y(m.y, DType::f32, {s.small, s.large});
        const Tensor a(m.a, DType::f32, {s.small, s.small}), b(m.b, DType::f32, {s.small, s.small});
        ops.linear(a, x, x, Write::set);
        ops.linear(b, a, a, Write::set);  // a is symmetric
        each(s.small, s.small + s.large, [&](int64_t r) {
            const float* from = m.a + r * s.small;
            float* to = m.b + r * s.small;
            for_vectors(s.small, [&](int64_t i, auto n) {
                store(to + i,
                      fma(splat(fifth_power), load(to + i, n), splat(third_power) * load(from + i, n)), n);
            });
            const float* row = m.x + r * s.large;
            float* scaled = m.y + r * s.large;
            for_vectors(s.large, [&](int64_t i, auto n) {
                store(scaled + i, splat(first_power) * load(row + i, n), n);
            });
        });
        ops.linear_backward_input(y, b, x, Write::add);
        std::swap(m.x, m.y);
    }
};

// Momentum and update direction u [rows, cols] of a block of rows; returns the sum of squares of u.
double momentum_block(float* u, const MuonSlot& slot, const MuonSpec& spec, const Shape& s, int64_t block) {
    const Range rows = s.block(block);
    const int64_t begin = rows.begin * s.cols, count = (rows.end - rows.begin) * s.cols;
    float *to = u + begin, *momentum = slot.momentum.f32() + begin;
    const float* gradient = slot.gradient.f32() + begin;
    const Vec mu = splat(spec.momentum);
    const Vec share = splat(spec.gradient_scale * (spec.averaged ? 1.0f - spec.momentum : 1.0f));
    for_vectors(count, [&](int64_t i, auto n) {
        const Vec g = share * load(gradient + i, n);
        const Vec m = fma(mu, load(momentum + i, n), g);
        store(momentum + i, m, n);
        store(to + i, spec.nesterov ? fma(mu, m, g) : m, n);
    });
    return dot_wide(to, to, count);
}

// x = scale * u, or its transpose: a block of rows of u.
void scale_block(float* x, const float* u, float scale, const Shape& s, int64_t block) {
    const Range rows = s.block(block);
    if (!s.turned) {
        const int64_t begin = rows.begin * s.cols, count = (rows.end - rows.begin) * s.cols;
        for_vectors(count, [&](int64_t i, auto n) {
            store(x + begin + i, splat(scale) * load(u + begin + i, n), n);
        });
        return;
    }
    for (int64_t c = 0; c < s.cols; ++c)
        for (int64_t r = rows.begin; r < rows.end; ++r) x[c * s.rows + r] = scale * u[r * s.cols + c];
}

void update_block(const MuonSlot& slot, const float* x, const Shape& s, int64_t block) {
    const Range rows = s.block(block);
    float* param = slot.param.f32();
    const float keep = 1.0f - slot.weight_decay, rate = slot.learning_rate;
    if (!s.turned) {
        const int64_t begin = rows.begin * s.cols, count = (rows.end - rows.begin) * s.cols;
        float* to = param + begin;
        for_vectors(count, [&](int64_t i, auto n) {
            store(to + i, splat(keep) * load(to + i, n) - splat(rate) * load(x + begin + i, n), n);
        });
        return;
    }
    for (int64_t c = 0; c < s.cols; ++c)
        for (int64_t r = rows.begin; r < rows.end; ++r)
            param[r * s.cols + c] = keep * param[r * s.cols + c] - rate * x[c * s.rows + r];
}

template <class Team>
void muon_matrix(const MuonSlot& slot, const MuonSpec& spec, float* memory, const Team& team) {
    const Shape s(slot.param);
    MuonSpace m = muon_space(memory, s);
    const int64_t size = row_block * s.cols;
    const double squares =
        team.sum(s.blocks(), size, [&](int64_t b) { return momentum_block(m.y, slot, spec, s, b); });
    const float scale = static_cast<float>(1.0 / (std::sqrt(squares) + 1e-7));
    team.each(s.blocks(), size, [&](int64_t b) { scale_block(m.x, m.y, scale, s, b); });
    for (int i = 0; i < spec.iterations; ++i) team.iterate(m, s);
    team.each(s.blocks(), size, [&](int64_t b) { update_block(slot, m.x, s, b); });
}

}  // namespace

void CpuOps::do_adam(std::span<const AdamSlot> slots, const AdamSpec& spec) {
    int64_t blocks = 0;
    for (const AdamSlot& slot : slots) {
        const int64_t count = slot.param.count();
        check(slot.gradient.count() == count && slot.first.count() == count && slot.second.count() == count,
              "adam slot of {} with {}, {}, {}", count, slot.gradient.count(), slot.first.count(),
              slot.second.count());
        check(slot.param.contiguous() && slot.gradient.contiguous() && slot.first.contiguous() &&
                  slot.second.contiguous(),
              "adam on a strided tensor of {}", count);
        blocks += blocks_of(slot);
    }
    // Elementwise, so the cut does not matter: runs of four blocks, longer ones where there are many, as each looks
    // for its first slot.
    const int64_t runs = std::clamp<int64_t>(blocks / 4, 1, 1024);
    pool_.run(runs, [&](int64_t r, int) { adam_blocks(slots, spec, piece(blocks, runs, r)); });
}

void CpuOps::do_muon(std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec) {
    for (const MuonSlot& slot : slots) {
        check_slot(slot);
        check(Shape(slot.param).blocks() <= partial_doubles, "muon on {} rows", slot.param.rows());
    }
    check(workspace.bytes() >= do_muon_workspace(slots), "muon workspace of {} bytes, needs {}",
          workspace.bytes(), do_muon_workspace(slots));
    float* memory = workspace.as<float>();
    int64_t per_thread = 0;  // floats
    for (const MuonSlot& slot : slots)
        if (const Shape s(slot.param); s.serial()) per_thread = std::max(per_thread, muon_floats(s));
    pool_.run(static_cast<int64_t>(slots.size()), [&](int64_t i, int thread) {
        if (Shape(slots[static_cast<size_t>(i)].param).serial())
            muon_matrix(slots[static_cast<size_t>(i)], spec, memory + thread * per_thread,
                        SerialTeam{scratch_of(thread), products_});
    });
    for (const MuonSlot& slot : slots)
        if (!Shape(slot.param).serial())
            muon_matrix(slot, spec, memory, ParallelTeam{*this, partials_, pool_});
}

int64_t CpuOps::do_muon_workspace(std::span<const MuonSlot> slots) const {
    int64_t serial = 0, parallel = 0;
    for (const MuonSlot& slot : slots) {
        const Shape s(slot.param);
        int64_t& most = s.serial() ? serial : parallel;
        most = std::max(most, muon_floats(s));
    }
    return std::max(serial * threads_, parallel) * 4;
}

#include "kernels/cpu/isa_end.h"
