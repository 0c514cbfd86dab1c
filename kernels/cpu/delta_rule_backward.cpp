// Gradient of the gated delta rule, chunk by chunk from the last to the first; delta_rule.h has the letters.
//
// With dS the gradient at the state after the chunk, rest = V - ks S - M U and dR the gradient at rest times beta:
//
//     dU = P^T dO + ke dS;   (1 + diag(beta) M)^T dR = dU, from the last row on;   dbeta_t = <dR_t, rest_t>
//     dW = beta dR = dV;     dP = dO U^T;   dM = -dW U^T
//     dqs = dO S^T;  dks = -dW S^T;  dke = U dS^T;   dS <- a_0 ... a_(c-1) dS + qs^T dO - ks^T dW
//
// Additive, dM and dks are 0 and dR = dU.
//
// The gradient at a log-decay g_s is a sum of products <x, dx> over the terms that contain a_s: those of later positions
// for products from the start, of earlier ones for products to the end, and of pairs around s. They are running
// sums of such numbers, and nothing is subtracted.
//
// Forward quantities are computed again from the saved states. Per position and head three times the FLOPs of the
// forward pass. Parallel over (sequence, head).
#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/delta_rule.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

struct GradientTile : DeltaTile {
    float *dq, *dk, *dqs, *dks, *dke;  // [c, d]
    float* dread;                      // [c, d] at r: dk if r is k
    float *dscores, *dgram;            // [c, c], rows delta_chunk apart
    float *dr, *dw;                    // [c, e]
    float* dstate;                     // [d, e]
    float* ddecay;                     // [c, w] at the log-decays
    float* dbeta;                      // [c]
    float *dlate_q, *dlate_k, *dearly_k;

    GradientTile(DeltaMemory& memory, const DeltaSpec& spec, bool by_channel, float* gemm,
                 Products of_factors)
        : DeltaTile(memory, spec, by_channel, gemm, of_factors) {
        const int64_t c = delta_chunk, half = c / 2;
        for (float** p : {&dq, &dk, &dqs, &dks, &dke}) *p = memory.take(c * d);
        dread = spec.erase ? memory.take(c * d) : dk;
        for (float** p : {&dscores, &dgram}) *p = memory.take(c * c);
        for (float** p : {&dr, &dw}) *p = memory.take(c * e);
        dstate = memory.take(d * e);
        ddecay = memory.take(c * w);
        dbeta = memory.take(c);
        for (float** p : {&dlate_q, &dlate_k, &dearly_k}) *p = memory.take(by_channel ? half * d : 0);
    }

    void unsolve(const HeadRows& dout, const DeltaPiece& piece);
    void through_state(const HeadRows& dout, const DeltaPiece& piece);
    void gather_edges();
    void through_scores();
    void retreat(const HeadRows& dout, const DeltaPiece& piece);

  private:
    void through_split(int64_t begin, int64_t mid, int64_t end);
    void through_block(int64_t begin, int64_t end);
};

// dU, then dR, dW and the gradient at beta.
void GradientTile::unsolve(const HeadRows& dout, const DeltaPiece& piece) {
    const Factor outer{dout[piece.begin], dout.stride, false};
    multiply({dr, e, transposed(scores, delta_chunk), outer, rows, e, rows}, 1, 0);
    multiply({dr, e, of(ke, d), of(dstate, e), rows, e, d}, 1, 1);
    for (int64_t begin = (rows - 1) / delta_block * delta_block; begin >= 0; begin -= delta_block) {
        const int64_t end = smaller(begin + delta_block, rows);
        if (end < rows && !additive)
            multiply({dr + begin * e, e, transposed(gram + end * delta_chunk + begin, delta_chunk),
                      of(dw + end * e, e), end - begin, e, rows - end},
                     -1, 1);
        for (int64_t t = end - 1; t >= begin; --t) {
            for_vectors(e, [&](int64_t i, auto n) {
                Vec sum = load(dr + t * e + i, n);
                for (int64_t s = t + 1; s < end; ++s)
                    sum = fma(splat(-gram[s * delta_chunk + t]), load(dw + s * e + i, n), sum);
                store(dr + t * e + i, sum, n);
                store(dw + t * e + i, splat(beta[t]) * sum, n);
            });
            dbeta[t] = dot(dr + t * e, rest + t * e, e);
        }
    }
}

// dP, dM, the gradients at the rows that meet the state, and dS.
void GradientTile::through_state(const HeadRows& dout, const DeltaPiece& piece) {
    const Factor outer{dout[piece.begin], dout.stride, false};
    multiply({dscores, delta_chunk, outer, transposed(u, e), rows, rows, e}, 1, 0);
    multiply({dqs, d, outer, transposed(state, e), rows, d, e}, 1, 0);
    multiply({dke, d, of(u, e), transposed(dstate, e), rows, d, e}, 1, 0);
    if (additive) {
        std::fill_n(dgram, rows * delta_chunk, 0.0f);
        std::fill_n(dks, rows * d, 0.0f);
        return;
    }
    multiply({dgram, delta_chunk, of(dw, e), transposed(u, e), rows, rows, e}, -1, 0);
    multiply({dks, d, of(dw, e), transposed(state, e), rows, d, e}, -1, 0);
}

// x y per channel, or their sum if the decay is one number: what of a gradient at log-decays a row contributes.
template <class Body>
LONGREACH_INLINE void at_decays(const DeltaTile& tile, float* to, Body product) {
    if (tile.by_channel())
        for_vectors(tile.d, [&](int64_t i, auto n) { store(to + i, load(to + i, n) + product(i, n), n); });
    else
        to[0] += sum_vectors(tile.d, product);
}

// dq, dk, that at r and the gradient at decays, of products from the start and to the end of the piece.
void GradientTile::gather_edges() {
    scale_rows(dq, dqs, from_start, rows, d, w);
    float* sums = dlate_q;  // [w]: a running sum
    float one = 0.0f;
    if (!by_channel()) sums = &one;
    std::fill_n(sums, w, 0.0f);
    const float* all = from_start + (rows - 1) * w;
    for (int64_t i = 0; i < d; ++i) {
        const float along = dot(state + i * e, dstate + i * e, e);
        sums[by_channel() ? i : 0] += all[by_channel() ? i : 0] * along;
    }
    for (int64_t t = rows - 1; t >= 0; --t) {
        const int64_t at = t * d;
        at_decays(*this, sums, [&](int64_t i, auto n) {
            return fma(load(qs + at + i, n), load(dqs + at + i, n),
                       load(ks + at + i, n) * load(dks + at + i, n));
        });
        std::copy_n(sums, w, ddecay + t * w);
    }
    std::fill_n(sums, w, 0.0f);
    for (int64_t t = 0; t < rows; ++t) {
        const int64_t at = t * d;
        const float *start = from_start + t * w, *end = to_end + t * w;
        for_vectors(w, [&](int64_t i, auto n) {
            store(ddecay + t * w + i, load(ddecay + t * w + i, n) + load(sums + i, n), n);
        });
        at_decays(*this, sums,
                  [&](int64_t i, auto n) { return load(ke + at + i, n) * load(dke + at + i, n); });
        const Vec first = splat(start[0]), last = splat(end[0]);
        for_vectors(d, [&](int64_t i, auto n) {
            const Vec a = w > 1 ? load(start + i, n) : first, z = w > 1 ? load(end + i, n) : last;
            if (dread == dk) {
                store(dk + at + i, fma(a, load(dks + at + i, n), z * load(dke + at + i, n)), n);
            } else {
                store(dread + at + i, a * load(dks + at + i, n), n);
                store(dk + at + i, z * load(dke + at + i, n), n);
            }
        });
    }
}

// Adds what dP and dM give to dq, dk and the gradient at decays.
void GradientTile::through_scores() {
    if (by_channel()) {
        for_splits([&](int64_t begin, int64_t mid, int64_t end) { through_split(begin, mid, end); });
        for (int64_t begin = 0; begin < rows; begin += delta_block)
            through_block(begin, smaller(begin + delta_block, rows));
        return;
    }
    // later[j] = sum over t >= s of dP_tj P_tj + dM_tj M_tj, for falling s: the decay of s is in those of j < s.
    float* later = dqs;
    std::fill_n(later, delta_chunk, 0.0f);
    for (int64_t t = rows - 1; t >= 0; --t) {
        float *p = dscores + t * delta_chunk, *m = dgram + t * delta_chunk;
        const float *f = factors + t * delta_chunk, *score = scores + t * delta_chunk,
                    *product = gram + t * delta_chunk;
        for_vectors(t, [&](int64_t j, auto n) {
            const Vec at_p = load(p + j, n), at_m = load(m + j, n), factor = load(f + j, n);
            const Vec of_p = fma(at_p, load(score + j, n), load(later + j, n));
            store(later + j, fma(at_m, load(product + j, n), of_p), n);
            store(p + j, at_p * factor, n);
            store(m + j, at_m * factor, n);
        });
        ddecay[t] += sum_vectors(t, [&](int64_t j, auto n) { return load(later + j, n); });
        m[t] = 0.0f;
        for (int64_t j = t + 1; j < rows; ++j) p[j] = m[j] = 0.0f;
    }
    const Factor keys = of(k, d), queries = of(q, d);
    multiply({dq, d, of(dscores, delta_chunk), keys, rows, d, rows}, 1, 1);
    multiply({dk, d, transposed(dscores, delta_chunk), queries, rows, d, rows}, 1, 1);
    if (additive) return;
    multiply({dread, d, of(dgram, delta_chunk), keys, rows, d, rows}, 1, 1);
    multiply({dk, d, transposed(dgram, delta_chunk), of(r, d), rows, d, rows}, 1, 1);
}

void GradientTile::through_split(int64_t begin, int64_t mid, int64_t end) {
    split(begin, mid, end);
    const int64_t at = mid * delta_chunk + begin, late = end - mid, early = mid - begin;
    const float *dp = dscores + at, *dm = dgram + at;
    multiply({dlate_q, d, of(dp, delta_chunk), of(early_k, d), late, d, early}, 1, 0);
    multiply({dlate_k, d, of(dm, delta_chunk), of(early_k, d), late, d, early}, 1, 0);
    multiply({dearly_k, d, transposed(dp, delta_chunk), of(late_q, d), early, d, late}, 1, 0);
    multiply({dearly_k, d, transposed(dm, delta_chunk), of(late_k, d), early, d, late}, 1, 1);
    for_vectors(d, [&](int64_t i, auto n) {
        // The products once more, for the factors of the rows.
        Vec product = splat(1.0f), sum{};
        for (int64_t t = mid; t < end; ++t) {
            const int64_t row = t * d + i, local = (t - mid) * d + i;
            product = product * load(decay + row, n);
            store(dq + row, fma(product, load(dlate_q + local, n), load(dq + row, n)), n);
            store(dread + row, fma(product, load(dlate_k + local, n), load(dread + row, n)), n);
        }
        for (int64_t t = end - 1; t >= mid; --t) {
            const int64_t local = (t - mid) * d + i;
            sum = fma(load(late_q + local, n), load(dlate_q + local, n), sum);
            sum = fma(load(late_k + local, n), load(dlate_k + local, n), sum);
            store(ddecay + t * d + i, load(ddecay + t * d + i, n) + sum, n);
        }
        product = splat(1.0f);
        for (int64_t j = mid - 1; j >= begin; --j) {
            const int64_t row = j * d + i;
            store(dk + row, fma(product, load(dearly_k + (j - begin) * d + i, n), load(dk + row, n)), n);
            product = product * load(decay + row, n);
        }
        sum = Vec{};
        for (int64_t j = begin; j < mid; ++j) {
            const int64_t local = (j - begin) * d + i;
            store(ddecay + j * d + i, load(ddecay + j * d + i, n) + sum, n);
            sum = fma(load(early_k + local, n), load(dearly_k + local, n), sum);
        }
    });
}

void GradientTile::through_block(int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j)
        for_vectors(d, [&](int64_t i, auto n) {
            const Vec key = load(k + j * d + i, n);
            // k_j as every later position reads it.
            Vec read[delta_block];
            read[0] = key;
            for (int64_t t = j + 1; t < end; ++t) read[t - j] = read[t - j - 1] * load(decay + t * d + i, n);
            Vec sum{}, back{};
            for (int64_t t = end - 1; t > j; --t) {
                const int64_t row = t * d + i;
                const Vec dp = splat(dscores[t * delta_chunk + j]), dm = splat(dgram[t * delta_chunk + j]);
                const Vec given = fma(dp, load(q + row, n), dm * load(r + row, n));
                store(dq + row, fma(dp, read[t - j], load(dq + row, n)), n);
                store(dread + row, fma(dm, read[t - j], load(dread + row, n)), n);
                sum = fma(read[t - j], given, sum);
                store(ddecay + row, load(ddecay + row, n) + sum, n);
                back = (back + given) * load(decay + row, n);
            }
            const Vec own = splat(dscores[j * delta_chunk + j]);
            store(dq + j * d + i, fma(own, key, load(dq + j * d + i, n)), n);
            store(dk + j * d + i, fma(own, load(q + j * d + i, n), load(dk + j * d + i, n) + back), n);
        });
}

// dS at the state before the piece.
void GradientTile::retreat(const HeadRows& dout, const DeltaPiece& piece) {
    const Factor outer{dout[piece.begin], dout.stride, false};
    decay_state(*this, dstate, dstate);
    multiply({dstate, e, transposed(qs, d), outer, d, e, rows}, 1, 1);
    if (!additive) multiply({dstate, e, transposed(ks, d), of(dw, e), d, e, rows}, -1, 1);
}

int64_t backward_floats(const DeltaSpec& s) {
    DeltaMemory memory{nullptr};
    GradientTile(memory, s, true, nullptr, Products::f32);
    return memory.used;
}

// to[piece] = factor * from, rows `width` wide.
void write_rows(const HeadRows& to, const DeltaPiece& piece, const float* from, int64_t width, float factor) {
    const Vec by = splat(factor);
    for (int64_t t = 0; t < piece.rows; ++t)
        for_vectors(width, [&](int64_t i, auto n) {
            store(to[piece.begin + t] + i, by * load(from + t * width + i, n), n);
        });
}

}  // namespace

int64_t CpuOps::do_delta_workspace(const DeltaSpec& spec, bool backward) const {
    const int64_t floats = backward ? backward_floats(spec) : delta_forward_floats(spec);
    return threads_ * floats * static_cast<int64_t>(sizeof(float));
}

void CpuOps::do_delta_rule_backward(Tensor dq, Tensor dk, Tensor dv, Tensor ddecay, Tensor dbeta,
                                    Tensor workspace, const Tensor& dout, const Tensor& states,
                                    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& decay,
                                    const Tensor& beta, const DeltaSpec& spec) {
    check_delta(dout, q, k, v, decay, beta, spec);
    check_delta(dv, dq, dk, dv, ddecay, dbeta, spec);
    const int64_t d = spec.key_dim, e = spec.value_dim, length = spec.length, heads = spec.heads;
    const int64_t chunks = delta_chunks(length), size = d * e, floats = backward_floats(spec);
    const bool by_channel = decay.cols() > heads;
    check(states.rows() == spec.batch * chunks * heads && states.cols() == size && !spec.continues &&
              ddecay.cols() == decay.cols(),
          "delta rule backward: states {}x{}", states.rows(), states.cols());
    check(static_cast<bool>(dbeta) == static_cast<bool>(beta) && spec.derase.rows() == spec.erase.rows() &&
              spec.derase.cols() == spec.erase.cols(),
          "delta rule backward: erase {}x{}, its gradient {}x{}", spec.erase.rows(), spec.erase.cols(),
          spec.derase.rows(), spec.derase.cols());
    check(workspace.bytes() >= threads_ * floats * 4, "delta rule backward: a workspace of {} bytes",
          workspace.bytes());
    pool_.run(spec.batch * heads, [&](int64_t item, int thread) {
        const int64_t sequence = item / heads, head = item % heads, first = sequence * length;
        DeltaMemory memory{workspace.f32() + thread * floats};
        GradientTile tile(memory, spec, by_channel, scratch_of(thread), products_);
        const int64_t w = tile.w;
        const DeltaInputs in{{q, first, head * d},
                             {k, first, head * d},
                             {v, first, head * e},
                             {decay, first, head * w},
                             {beta ? beta : decay, first, head},
                             {spec.erase ? spec.erase : k, first, head * d},
                             static_cast<bool>(beta)};
        const HeadRows outer(dout, first, head * e);
        const int32_t* doc_start = spec.doc_start ? spec.doc_start.i32() + first : nullptr;
        const bool carries = delta_carries(spec, sequence, doc_start);
        std::fill_n(tile.dstate, size, 0.0f);
        for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
            DeltaPiece pieces[delta_chunk];
            int64_t count = 0;
            const int64_t end = smaller((chunk + 1) * delta_chunk, length);
            for (int64_t at = chunk * delta_chunk; at < end; at += pieces[count++].rows)
                pieces[count] = delta_piece(at, length, doc_start, carries);
            while (count-- > 0) {
                const DeltaPiece& piece = pieces[count];
                // A piece that does not begin a chunk begins a document. Gradients end where a sequence begins.
                if (piece.fresh)
                    std::fill_n(tile.state, size, 0.0f);
                else
                    std::copy_n(
                        states.f32() + ((sequence * chunks + chunk) * heads + head) * states.row_stride, size,
                        tile.state);
                tile.read(in, piece, spec);
                tile.score();
                tile.solve(in, piece);
                tile.unsolve(outer, piece);
                tile.through_state(outer, piece);
                tile.gather_edges();
                tile.through_scores();
                write_rows({dq, first, head * d}, piece, tile.dq, d, spec.query_scale);
                write_rows({dk, first, head * d}, piece, tile.dk, d, spec.key_scale);
                write_rows({dv, first, head * e}, piece, tile.dw, e, 1);
                write_rows({ddecay, first, head * w}, piece, tile.ddecay, w, 1);
                if (dbeta) write_rows({dbeta, first, head}, piece, tile.dbeta, 1, 1);
                if (spec.erase)
                    write_rows({spec.derase, first, head * d}, piece, tile.dread, d, spec.key_scale);
                if (piece.fresh) {
                    std::fill_n(tile.dstate, size, 0.0f);
                    continue;
                }
                tile.retreat(outer, piece);
            }
        }
    });
}

#include "kernels/cpu/isa_end.h"
