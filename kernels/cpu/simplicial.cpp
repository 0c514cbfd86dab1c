// 2-simplicial attention: a query weighs pairs of keys. A reference, exact in f32 and slow; ops.h has the formulas.
//
//   q, o [N, H*d]; per query and head 4 d FLOPs and one exponential for each of n1 n2 pairs, 12 d backward.
//
// With A = scale q k2_m, one row per second key m, the scores of a query are the product A K^T [n2, n1] and its output
// is the sum over m of v2_m (P V)_m: products of matrices with n2 rows. Parallel over (sequence, head) and blocks of
// queries; backward over (sequence, head), query by query, because neighbouring queries add to the same keys.
#include <cmath>
#include <memory>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

constexpr int64_t query_block = 64;  // queries of a task

struct HeadKeys {
    HeadRows k, v, k2, v2;
    HeadKeys(const SimplicialKeys& t, int64_t first_row, int64_t col)
        : k(t.k, first_row, col),
          v(t.v, first_row, col),
          k2(t.k2, first_row, col),
          v2(t.v2, first_row, col) {}
};

// The first and second keys that a query sees: [first, first + n1) and [second, second + n2).
struct Pairs {
    int64_t first, n1, second, n2;
    Pairs(const SimplicialSpec& spec, int64_t position, int64_t doc_start)
        : first(later(doc_start, position - spec.window + 1)),
          n1(position - first + 1),
          second(later(doc_start, position - spec.second_window + 1)),
          n2(position - second + 1) {}
    static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
};

// What a task keeps of one query: matrices with a row for each second key.
struct Tile {
    int64_t d, most;  // most: columns of a row of scores
    float* gemm;      // scratch of matrix products
    std::unique_ptr<float[]> memory;
    float *scores, *dscores;      // [n2, n1]
    float *a, *b, *read, *dread;  // [n2, d]: scale q k2, dout v2, P V, dP K

    Tile(const SimplicialSpec& spec, float* scratch)
        : d(spec.head_dim), most(spec.window < spec.rows() ? spec.window : spec.rows()), gemm(scratch) {
        const int64_t rows = spec.second_window < spec.rows() ? spec.second_window : spec.rows();
        memory.reset(new float[static_cast<size_t>(rows * (2 * most + 4 * d))]);
        float* p = memory.get();
        for (float** m : {&scores, &dscores}) *m = p, p += rows * most;
        for (float** m : {&a, &b, &read, &dread}) *m = p, p += rows * d;
    }
    Factor rows(const float* data) const { return {data, d, false}; }
    // c [m, n] = left right, or += with beta 1.
    void multiply(float* c, int64_t stride, Factor left, Factor right, int64_t m, int64_t n, int64_t k,
                  float beta = 0) const {
        gemm_serial({.c = c, .c_stride = stride, .a = left, .b = right, .m = m, .n = n, .k = k, .beta = beta},
                    gemm, Products::f32);
    }
    // to [n2, d] = factor * x, times the rows of y from `first` on.
    void products(float* to, const float* x, float factor, const HeadRows& y, int64_t first,
                  int64_t n2) const {
        for (int64_t m = 0; m < n2; ++m)
            for_vectors(d, [&](int64_t c, auto n) {
                store(to + m * d + c, splat(factor) * load(x + c, n) * load(y[first + m] + c, n), n);
            });
    }
    // scores = scale q k2 K^T
    void score(const float* q, const HeadKeys& keys, const Pairs& at, float scale) const {
        products(a, q, scale, keys.k2, at.second, at.n2);
        multiply(scores, most, rows(a), keys.k.from(at.first, true), at.n2, at.n1, d);
    }
    // scores = exp(scores - shift); the sum of all.
    double exponentials(const Pairs& at, float shift) const {
        double sum = 0;
        for (int64_t m = 0; m < at.n2; ++m) {
            float* row = scores + m * most;
            for_vectors(at.n1,
                        [&](int64_t j, auto n) { store(row + j, exp(load(row + j, n) - splat(shift)), n); });
            sum += double{sum_vectors(at.n1, [&](int64_t j, auto n) { return load(row + j, n); })};
        }
        return sum;
    }
    float largest(const Pairs& at) const {
        Vec top = splat(-__builtin_inff());
        for (int64_t m = 0; m < at.n2; ++m)
            for_vectors(at.n1, [&](int64_t j, auto n) {
                top = max(top, load(scores + m * most + j, n, -__builtin_inff()));
            });
        return reduce_max(top);
    }
};

// to += factor * x * y
void add_product(float* to, float factor, const float* x, const float* y, int64_t d) {
    for_vectors(d, [&](int64_t c, auto n) {
        store(to + c, load(to + c, n) + splat(factor) * load(x + c, n) * load(y + c, n), n);
    });
}

void check_simplicial(const Tensor& q, const SimplicialKeys& keys, const SimplicialSpec& s) {
    check(s.window > 0 && s.second_window > 0, "2-simplicial attention: windows of {} and {}", s.window,
          s.second_window);
    check(q.rows() == s.batch * s.length && q.cols() == s.heads * s.head_dim,
          "2-simplicial attention: queries {}x{}", q.rows(), q.cols());
    check(s.room == 0 || s.position + s.length <= s.room, "2-simplicial attention: {} queries at {} of {}",
          s.length, s.position, s.room);
    for (const Tensor* t : {&keys.k, &keys.v, &keys.k2, &keys.v2})
        check(t->rows() == s.batch * s.rows() && t->cols() == q.cols(), "2-simplicial attention: keys {}x{}",
              t->rows(), t->cols());
}

}  // namespace

void CpuOps::do_simplicial(Tensor o, Tensor lse, const Tensor& q, const SimplicialKeys& keys,
                           const SimplicialSpec& spec) {
    check_simplicial(q, keys, spec);
    const int64_t d = spec.head_dim, blocks = (spec.length + query_block - 1) / query_block;
    pool_.run(spec.batch * spec.heads * blocks, [&](int64_t item, int thread) {
        const int64_t block = item % blocks, head = item / blocks % spec.heads,
                      sequence = item / blocks / spec.heads, first_row = sequence * spec.length;
        const HeadKeys of(keys, sequence * spec.rows(), head * d);
        const HeadRows queries(q, first_row, head * d), out(o, first_row, head * d);
        const Tile tile(spec, scratch_of(thread));
        const int64_t end = (block + 1) * query_block < spec.length ? (block + 1) * query_block : spec.length;
        for (int64_t i = block * query_block; i < end; ++i) {
            const int64_t start = spec.doc_start ? spec.position + spec.doc_start.i32()[first_row + i] : 0;
            const Pairs at(spec, spec.position + i, Pairs::later(start, 0));
            tile.score(queries[i], of, at, spec.scale);
            const float top = tile.largest(at);
            const double weights = tile.exponentials(at, top);
            tile.multiply(tile.read, d, {tile.scores, tile.most, false}, of.v.from(at.first), at.n2, d,
                          at.n1);
            for (int64_t c = 0; c < d; ++c) out[i][c] = 0.0f;
            for (int64_t m = 0; m < at.n2; ++m)
                add_product(out[i], static_cast<float>(1 / weights), tile.read + m * d, of.v2[at.second + m],
                            d);
            lse.f32()[head * lse.row_stride + first_row + i] = static_cast<float>(top + std::log(weights));
        }
    });
}

// With dP[m, j] = <dout v2_m, v_j> and D = <dout, o>, the gradient at the scores is dS = P (dP - D), and
//   dq = scale sum over m of k2_m (dS K)_m;  dk2_m += scale q (dS K)_m;  dv2_m += dout (P V)_m
//   dk += dS^T A;  dv += P^T B with B = dout v2_m
void CpuOps::do_simplicial_backward(Tensor dq, SimplicialKeys d_keys, const Tensor& dout, const Tensor& o,
                                    const Tensor& lse, const Tensor& q, const SimplicialKeys& keys,
                                    const SimplicialSpec& spec) {
    check_simplicial(q, keys, spec);
    check_simplicial(dq, d_keys, spec);
    check(spec.room == 0, "2-simplicial attention backward of one query");
    const int64_t d = spec.head_dim;
    pool_.run(spec.batch * spec.heads, [&](int64_t item, int thread) {
        const int64_t head = item % spec.heads, first_row = item / spec.heads * spec.length, col = head * d;
        const HeadKeys of(keys, first_row, col), to(d_keys, first_row, col);
        const HeadRows queries(q, first_row, col), dqueries(dq, first_row, col), douts(dout, first_row, col),
            outs(o, first_row, col);
        const Tile tile(spec, scratch_of(thread));
        for (int64_t i = 0; i < spec.length; ++i)
            for (const HeadRows* t : {&dqueries, &to.k, &to.v, &to.k2, &to.v2})
                for (int64_t c = 0; c < d; ++c) (*t)[i][c] = 0.0f;
        for (int64_t i = 0; i < spec.length; ++i) {
            const Pairs at(spec, i, spec.doc_start ? spec.doc_start.i32()[first_row + i] : 0);
            const float *query = queries[i], *outer = douts[i], *out = outs[i];
            tile.score(query, of, at, spec.scale);
            tile.exponentials(at, lse.f32()[head * lse.row_stride + first_row + i]);
            const Factor weights{tile.scores, tile.most, false}, late{tile.dscores, tile.most, false};
            tile.multiply(tile.read, d, weights, of.v.from(at.first), at.n2, d, at.n1);
            tile.products(tile.b, outer, 1, of.v2, at.second, at.n2);
            tile.multiply(tile.dscores, tile.most, tile.rows(tile.b), of.v.from(at.first, true), at.n2, at.n1,
                          d);
            const Vec share = splat(dot(outer, out, d));
            for (int64_t m = 0; m < at.n2; ++m) {
                const float* p = tile.scores + m * tile.most;
                float* ds = tile.dscores + m * tile.most;
                for_vectors(at.n1, [&](int64_t j, auto n) {
                    store(ds + j, load(p + j, n) * (load(ds + j, n) - share), n);
                });
            }
            tile.multiply(tile.dread, d, late, of.k.from(at.first), at.n2, d, at.n1);
            for (int64_t m = 0; m < at.n2; ++m) {
                const int64_t key = at.second + m;
                add_product(dqueries[i], spec.scale, tile.dread + m * d, of.k2[key], d);
                add_product(to.k2[key], spec.scale, tile.dread + m * d, query, d);
                add_product(to.v2[key], 1, tile.read + m * d, outer, d);
            }
            tile.multiply(to.k[at.first], to.k.stride, {tile.dscores, tile.most, true}, tile.rows(tile.a),
                          at.n1, d, at.n2, 1);
            tile.multiply(to.v[at.first], to.v.stride, {tile.scores, tile.most, true}, tile.rows(tile.b),
                          at.n1, d, at.n2, 1);
        }
    });
}

#include "kernels/cpu/isa_end.h"
