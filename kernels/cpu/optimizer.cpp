// Adam and Muon over lists of tensors, f32. g is the gradient times gradient_scale.
//
//   Adam   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//          w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
//   Muon   m = mu m + q g;  u = q g + mu m (Nesterov) or m;  q = 1, or 1 - mu when averaged
//          x = u / (|u|_F + 1e-7), shorter side first
//          `iterations` times: x = P x,  P = 3.4445 + (-4.7750 + 2.0315 A) A,  A = x x^T
//          w = w (1 - wd) - lr x
//
// Adam moves 28 bytes and takes 14 FLOPs per parameter. Adam is parallel over the blocks of all tensors together. Muon takes
// matrices with a side up to 256 one per thread; larger ones come one after another, each by all threads: a choice by size,
// so the bits do not depend on the threads.
//
// Of symmetric products Muon computes what lies on and below the diagonal, so an iteration on [s, l], s <= l, takes
// 3 s^2 l + s^3. Where a large matrix has l >= 2 s, it iterates on the short side alone: the P of all iterations are
// polynomials of the first A, so they commute, and A = P P A and Q = P Q keep up with x = Q x_0, which is multiplied out
// once: 3 s^2 l and about 4 s^3 per iteration, for l = 4 s 0.45 of the FLOPs. A singular value sigma of x_0 then has a
// relative error of about 2^-24 sqrt(l) / sigma^2, with Frobenius norm 1 for x_0: in f32 little, in bf16 too much.
#include <algorithm>
#include <cmath>
#include <functional>

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
    bool by_short_side(Products products) const {
        return !serial() && large >= 2 * small && products == Products::f32;
    }
    Range block(int64_t b) const { return {b * row_block, std::min((b + 1) * row_block, rows)}; }
    int64_t blocks() const { return (rows + row_block - 1) / row_block; }
};

// Workspace of one matrix: x, y [small, large]; a, p and, for the short side alone, q, t [small, small]; each on a cache line.
struct MuonSpace {
    float *x, *y, *a, *p, *q, *t;
};
int64_t padded(int64_t floats) {
    return (floats + 15) / 16 * 16;
}
int64_t muon_floats(const Shape& s, Products products) {
    return 2 * padded(s.small * s.large) + (s.by_short_side(products) ? 4 : 2) * padded(s.small * s.small);
}
MuonSpace muon_space(float* memory, const Shape& s) {
    const int64_t matrix = padded(s.small * s.large), square = padded(s.small * s.small);
    float* squares = memory + 2 * matrix;
    return {memory, memory + matrix, squares, squares + square, squares + 2 * square, squares + 3 * square};
}

// One thread, inside a parallel region.
struct SerialTeam {
    float* scratch;
    Products products;

    void multiply(const MatrixProduct& product) const { gemm_serial(product, scratch, products); }
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
};

// All threads on one matrix.
struct ParallelTeam {
    std::function<void(const MatrixProduct&)> multiply;
    Products products;
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
};

// Copies what lies below the diagonal of a square matrix, in `lanes` rows from `row` on, to what lies above it.
void mirror_rows(float* c, int64_t n, int64_t row) {
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

template <class Team>
class NewtonSchulz {
  public:
    NewtonSchulz(const Team& team, const MuonSpace& space, const Shape& shape)
        : team_(team), m_(space), s_(shape.small), l_(shape.large) {}

    // x after the iterations, in place or where y was.
    const float* run(int iterations, bool by_short_side) {
        by_short_side ? short_side(iterations) : both_sides(iterations);
        return m_.x;
    }

  private:
    void both_sides(int iterations) {
        for (int i = 0; i < iterations; ++i) {
            symmetric(m_.a, {m_.x, l_}, {m_.x, l_, true}, l_);
            copy(m_.p, m_.a, s_);
            symmetric(m_.p, {m_.a, s_}, {m_.a, s_}, s_, fifth_power, third_power);
            copy(m_.y, m_.x, l_);
            team_.multiply({.c = m_.y,
                            .c_stride = l_,
                            .a = {m_.p, s_},
                            .b = {m_.x, l_},
                            .m = s_,
                            .n = l_,
                            .k = s_,
                            .beta = first_power});
            std::swap(m_.x, m_.y);
        }
    }
    void short_side(int iterations) {
        if (iterations == 0) return;
        const auto of = [&](const float* square) { return Factor{square, s_}; };
        symmetric(m_.a, {m_.x, l_}, {m_.x, l_, true}, l_);
        for (int i = 0; i < iterations; ++i) {
            copy(m_.p, m_.a, s_);
            symmetric(m_.p, of(m_.a), of(m_.a), s_, fifth_power, third_power);
            for (int64_t r = 0; r < s_; ++r) m_.p[r * s_ + r] += first_power;
            if (i == 0) {
                copy(m_.q, m_.p, s_);
            } else {
                symmetric(m_.t, of(m_.p), of(m_.q), s_);
                std::swap(m_.q, m_.t);
            }
            if (i + 1 == iterations) break;
            symmetric(m_.t, of(m_.p), of(m_.a), s_);
            symmetric(m_.a, of(m_.p), of(m_.t), s_);
        }
        team_.multiply(
            {.c = m_.y, .c_stride = l_, .a = of(m_.q), .b = {m_.x, l_}, .m = s_, .n = l_, .k = s_});
        std::swap(m_.x, m_.y);
    }

    // c [s, s] = alpha * a b + beta * c, which is symmetric; a [s, k], b [k, s].
    void symmetric(float* c, const Factor& a, const Factor& b, int64_t k, float alpha = 1, float beta = 0) {
        team_.multiply({.c = c,
                        .c_stride = s_,
                        .a = a,
                        .b = b,
                        .m = s_,
                        .n = s_,
                        .k = k,
                        .alpha = alpha,
                        .beta = beta,
                        .lower = true});
        team_.each((s_ + lanes - 1) / lanes, lanes * s_, [&](int64_t i) { mirror_rows(c, s_, i * lanes); });
    }
    // All rows, of `cols` elements.
    void copy(float* to, const float* from, int64_t cols) {
        team_.each(s_, cols, [&](int64_t r) { std::copy_n(from + r * cols, cols, to + r * cols); });
    }

    const Team& team_;
    MuonSpace m_;
    int64_t s_, l_;
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
    const MuonSpace m = muon_space(memory, s);
    const int64_t size = row_block * s.cols;
    const double squares =
        team.sum(s.blocks(), size, [&](int64_t b) { return momentum_block(m.y, slot, spec, s, b); });
    const float scale = static_cast<float>(1.0 / (std::sqrt(squares) + 1e-7));
    team.each(s.blocks(), size, [&](int64_t b) { scale_block(m.x, m.y, scale, s, b); });
    const float* x = NewtonSchulz(team, m, s).run(spec.iterations, s.by_short_side(team.products));
    team.each(s.blocks(), size, [&](int64_t b) { update_block(slot, x, s, b); });
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
        if (const Shape s(slot.param); s.serial())
            per_thread = std::max(per_thread, muon_floats(s, products_));
    pool_.run(static_cast<int64_t>(slots.size()), [&](int64_t i, int thread) {
        if (Shape(slots[static_cast<size_t>(i)].param).serial())
            muon_matrix(slots[static_cast<size_t>(i)], spec, memory + thread * per_thread,
                        SerialTeam{scratch_of(thread), products_});
    });
    const auto multiply = [this](const MatrixProduct& product) { this->multiply(product); };
    for (const MuonSlot& slot : slots)
        if (!Shape(slot.param).serial())
            muon_matrix(slot, spec, memory, ParallelTeam{multiply, products_, partials_, pool_});
}

int64_t CpuOps::do_muon_workspace(std::span<const MuonSlot> slots) const {
    int64_t serial = 0, parallel = 0;
    for (const MuonSlot& slot : slots) {
        const Shape s(slot.param);
        int64_t& most = s.serial() ? serial : parallel;
        most = std::max(most, muon_floats(s, products_));
    }
    return std::max(serial * threads_, parallel) * 4;
}

#include "kernels/cpu/isa_end.h"
