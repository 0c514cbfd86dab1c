// The gradient of the gated delta rule in chunks (delta_chunks.cuh): a pass along the sequence from its last chunk on,
// then one over all chunks at once.
#include "kernels/cuda/delta_chunks.cuh"

namespace longreach::cuda {

using namespace delta;

namespace {

// --- backward along a sequence

struct DeltaBackward {
    DeltaChunks in;
    View<const bf16> dout, dv;
    View<const float> states;
    View<bf16> to_dq, to_dk, to_dv;
    View<float> to_ddecay, to_dbeta;
    // Workspace: U [N, H e]; dS after every chunk, [e, d] of each chunk and head. Of every 16 columns of values:
    // gradients at beta [slabs][N, H], and <S, dS> [slabs] of each chunk and head.
    View<bf16> u;
    bf16* dstates;
    float *dbeta, *along;
    int slabs;
    int64_t rows;  // N
};
template <int D>
struct BackwardLayout {
    Rows<D> q[2], k[2];
    Square v, dout, scores, gram;
    Edges edges[2];
};

// The copies of load_keys() are committed with those of load_others(), which always follow.
template <int D>
DEVICE void load_keys(BackwardLayout<D>& m, const DeltaChunks& c, const DeltaPlace& at, int number) {
    const int to = number % 2, begin = number * chunk;
    load_tile<pass_threads>(m.q[to], c.rows_of(c.q, at.sequence, at.head * c.d, c.d), begin);
    load_tile<pass_threads>(m.k[to], c.rows_of(c.k, at.sequence, at.head * c.d, c.d), begin);
    copy_edges(m.edges[to], c.edges[c.entry(at.sequence, number, at.head)]);
}
template <int D>
DEVICE void load_others(BackwardLayout<D>& m, const DeltaBackward& b, const DeltaPlace& at, int number) {
    const DeltaChunks& c = b.in;
    const int64_t entry = c.entry(at.sequence, number, at.head);
    const int group = static_cast<int>(blockIdx.y) * columns, begin = number * chunk;
    load_tile<pass_threads>(m.v, c.rows_of(c.v, at.sequence, at.head * c.e + group, c.e - group), begin);
    load_tile<pass_threads>(m.dout, c.rows_of(b.dout, at.sequence, at.head * c.e + group, c.e - group),
                            begin);
    copy_square(m.scores, c.scores + entry * square);
    if (!c.additive) copy_square(m.gram, c.gram + entry * square);
    cp_async_commit();
}

// The saved state as a first factor [columns, channels]; returns the lane's part of <S, dS>.
template <int D>
DEVICE float load_saved(uint32_t (&words)[D / 16][1][4], const float* from, const Fragments<1, D / 8>& ds,
                        const DeltaChunks& c, int first_column) {
    float along = 0.0f;
    for_state<D>([&](int n, int half, int channel, int column) {
        float first = 0.0f, second = 0.0f;
        if (channel < c.d && first_column + column < c.e) {
            first = from[int64_t{channel} * c.e + column];
            second = from[int64_t{channel + 1} * c.e + column];
        }
        along += first * ds.of[0][n][2 * half] + second * ds.of[0][n][2 * half + 1];
        words[n / 2][0][n % 2 * 2 + half] = pack_bf16(first, second);
    });
    return along;
}

// dr comes as dU and leaves as dR; dw = diag(beta) dR.
DEVICE void unsolve(Fragments<1, 8>& dr, uint32_t (&dw)[blocks][4], const Square& gram, const Edges& edges,
                    bool additive) {
#pragma unroll
    for (int b = blocks - 1; b >= 0; --b) {
        float(&low)[4] = dr.of[0][2 * b], (&high)[4] = dr.of[0][2 * b + 1];
        uint32_t of_b[4];
#pragma unroll
        for (int k = blocks - 1; k >= b && !additive; --k) {
            if (k == b) pack_by_beta(dw[b], low, high, edges, b);
            load_columns(of_b, gram, k, b);
            subtract_product(low, high, dw[k], of_b);
        }
        pack_by_beta(dw[b], low, high, edges, b);
    }
}

// du [columns, positions] = (P^T dO + ke dS)^T
template <int D>
DEVICE void gradient_of_u(Fragments<1, 8>& du, const Fragments<1, D / 8>& ds,
                          const uint32_t (&outer)[blocks][4], const Rows<D>& keys, const Square& scores,
                          const Edges& edges, float key_scale) {
    du.clear();
    multiply_state<D>(du, ds, keys);
    scale_positions(du, du, edges.to_end, key_scale);
#pragma unroll
    for (int b = 0; b < blocks; ++b)
#pragma unroll
        for (int k = b; k < blocks; ++k) {
            uint32_t of_b[4];
            load_columns(of_b, scores, k, b);
            multiply(du.of[0][2 * b], du.of[0][2 * b + 1], outer[k], of_b);
        }
}

// <dR_t, rest_t> over the warp's columns.
DEVICE void write_dbeta(const DeltaBackward& b, const DeltaPlace& at, int begin, const Fragments<1, 8>& dr,
                        const Fragments<1, 8>& rest) {
    const DeltaChunks& c = b.in;
    const int lane = lane_of(), slab = at.column / warp_columns;
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float sum =
                dr.of[0][n][side] * rest.of[0][n][side] + dr.of[0][n][2 + side] * rest.of[0][n][2 + side];
#pragma unroll
            for (int offset = 4; offset < 32; offset *= 2) sum += __shfl_xor_sync(all_lanes, sum, offset);
            const int t = begin + 8 * n + 2 * lane + side;
            if (lane < 4 && t < c.length && at.column < c.e)
                b.dbeta[(slab * b.rows + at.first + t) * c.heads + at.head] = sum;
        }
}
template <int D>
DEVICE void write_dstate(const DeltaBackward& b, const DeltaPlace& at, int64_t entry, float along,
                         const Fragments<1, D / 8>& ds) {
    const DeltaChunks& c = b.in;
    bf16* to = b.dstates + (entry * c.e + at.column) * c.d;
    for_state<D>([&](int n, int half, int channel, int column) {
        if (channel < c.d && at.column + column < c.e)
            *reinterpret_cast<uint32_t*>(to + int64_t{column} * c.d + channel) =
                pack_bf16(ds.of[0][n][2 * half], ds.of[0][n][2 * half + 1]);
    });
    along = warp_sum(along);
    if (lane_of() == 0 && at.column < c.e) b.along[entry * b.slabs + at.column / warp_columns] = along;
}
// dS at the state before the chunk: a_0 ... a_(c-1) dS + qs^T dO - ks^T dW.
template <int D>
DEVICE void retreat(Fragments<1, D / 8>& ds, uint32_t (&outer)[blocks][4], const Fragments<1, 8>& dr,
                    const Rows<D>& queries, const Rows<D>& keys, const Edges& edges, const DeltaChunks& c) {
    scale_state<D>(ds, edges.from_start[chunk - 1]);
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t& word = outer[n / 2][n % 2 * 2 + half];
            const float2 x = unpack_bf16(word), a = of_pair(edges.from_start, n);
            word = pack_bf16(c.query_scale * a.x * x.x, c.query_scale * a.y * x.y);
        }
    add_to_state<D>(ds, outer, queries);
    if (c.additive) return;
    uint32_t dw[blocks][4];
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n) {
        const float2 a = of_pair(edges.from_start, n), beta = of_pair(edges.beta, n);
        float x[4];
        scale_pair(x, dr.of[0][n], {-c.key_scale * a.x * beta.x, -c.key_scale * a.y * beta.y});
        dw[n / 2][n % 2 * 2] = pack_bf16(x[0], x[1]);
        dw[n / 2][n % 2 * 2 + 1] = pack_bf16(x[2], x[3]);
    }
    add_to_state<D>(ds, dw, keys);
}

template <int D>
KERNEL(pass_threads, 2)
void delta_backward_kernel(DeltaBackward b) {
    auto& m = shared<BackwardLayout<D>>();
    const DeltaChunks& c = b.in;
    const DeltaPlace at(c);
    const int64_t column = int64_t{at.head} * c.e + at.column;
    Fragments<1, D / 8> ds;
    ds.clear();
    load_keys(m, c, at, c.chunks - 1);
    load_others(m, b, at, c.chunks - 1);
#pragma unroll 1
    for (int number = c.chunks - 1; number >= 0; --number) {
        const Rows<D>&queries = m.q[number % 2], &keys = m.k[number % 2];
        const Edges& edges = m.edges[number % 2];
        const int begin = number * chunk;
        const int64_t entry = c.entry(at.sequence, number, at.head), row = at.first + begin;
        Fragments<1, 8> rest, dr;
        uint32_t outer[blocks][4];
        rest.clear();
        {
            uint32_t saved[D / 16][1][4];
            const float along = load_saved<D>(saved, b.states.at(entry, at.column), ds, c, at.column);
            cp_async_wait<0>();
            __syncthreads();
            if (number > 0) load_keys(m, c, at, number - 1);
            write_dstate<D>(b, at, entry, along, ds);
            const int lane = lane_of();
            if (!c.additive)
#pragma unroll
                for (int k = 0; k < D / 16; ++k) multiply_step(rest, saved[k], keys, k, lane);
        }
        {
            uint32_t u[blocks][4];
            Fragments<1, 8> x;
            solve(rest, u, m.v, m.gram, edges, c, at.warp);
            scale_positions(x, rest, edges.beta, 1.0f);
            write_columns(m.v, x, c, b.u.at(row, column), b.u.stride, begin, c.e - at.column);
        }
        load_own_columns(outer, m.dout, at.warp);
        gradient_of_u<D>(dr, ds, outer, keys, m.scores, edges, c.key_scale);
        {
            uint32_t dw[blocks][4];
            Fragments<1, 8> x;
            unsolve(dr, dw, m.gram, edges, c.additive);
            scale_positions(x, dr, edges.beta, 1.0f);
            write_columns(m.dout, x, c, b.to_dv.at(row, column), b.to_dv.stride, begin, c.e - at.column);
        }
        write_dbeta(b, at, begin, dr, rest);
        __syncthreads();
        if (number > 0) load_others(m, b, at, number - 1);
        retreat<D>(ds, outer, dr, queries, keys, edges, c);
    }
}

// --- gradients of queries, keys, decays and beta of one chunk of one head
// Warp w has the positions 16 (w % 4) .. and half of the channels; of the products between positions, warps 0 to 3 have
// those of P, 4 to 7 those of M.

template <int D>
struct SlabTiles {  // 64 columns
    Square dout, dw, u;
    HeadTile<bf16, columns, D> state;  // [channels, columns]
    Rows<D> dstate;                    // [columns, channels]
};
struct PairTables {
    float factors[chunk * factor_stride];  // F
    float running[chunk * factor_stride];  // dP P + dM M, then its sums over later positions
    Square dscores, dgram;                 // dP, dM times F
};
template <int D>
struct GradientLayout {
    Rows<D> q, k;
    union {
        SlabTiles<D> slab;
        PairTables pairs;
    };
    Edges edges;
    float decay[chunk];
    float from_start[2][chunk], to_end[2][chunk];  // <x, dx> of the halves of the channels
    float between[chunk];
};
template <int D>
struct GradientSums {
    static constexpr int n = D / 16;  // fragments of half the channels
    float dq[n][4], dks[n][4], dke[n][4];
    Fragments<1, 8> pairs;  // dP or -dM
};
struct GradientPlace {
    int64_t sequence, first, entry;
    int head, begin, warp, band, half;
    DEVICE explicit GradientPlace(const DeltaChunks& c)
        : sequence(blockIdx.x / c.chunks),
          first(sequence * c.length),
          entry(c.entry(sequence, static_cast<int>(blockIdx.x) % c.chunks, static_cast<int>(blockIdx.y))),
          head(static_cast<int>(blockIdx.y)),
          begin(static_cast<int>(blockIdx.x) % c.chunks * chunk),
          warp(static_cast<int>(threadIdx.x) / 32),
          band(warp % 4),
          half(warp / 4) {}
};

template <int D>
DEVICE void load_slab(SlabTiles<D>& m, const DeltaBackward& b, const GradientPlace& at, int column) {
    const DeltaChunks& c = b.in;
    const int64_t from = int64_t{at.head} * c.e + column;
    const int width = c.e - column;
    const View<const bf16> u{b.u.data, b.u.stride};
    load_tile<gradient_threads>(m.dout, c.rows_of(b.dout, at.sequence, from, width), at.begin);
    load_tile<gradient_threads>(m.dw, c.rows_of(b.dv, at.sequence, from, width), at.begin);
    load_tile<gradient_threads>(m.u, c.rows_of(u, at.sequence, from, width), at.begin);
    const HeadRows<const bf16> dstate{b.dstates + at.entry * c.e * c.d, c.d, c.e, c.d, true};
    load_tile<gradient_threads>(m.dstate, dstate, column);
    cp_async_commit();
    const int piece = static_cast<int>(threadIdx.x) % 8;  // 8 columns
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x) / 8; i < D; i += gradient_threads / 8) {
        Pack<8> x{};
        if (i < c.d && 8 * piece < width)
            x = load<8>(b.states.at(at.entry, int64_t{i} * c.e + column + 8 * piece));
        store(m.state.chunk(i, piece), x);
    }
}

// The products with 64 columns: dqs += dO S^T, dks += dW S^T, dke += U dS^T, dP += dO U^T or -dM += dW U^T.
template <int D>
DEVICE void add_slab(GradientSums<D>& sums, const SlabTiles<D>& m, const GradientPlace& at, bool additive) {
#pragma unroll 1
    for (int k = 0; k < columns / 16; ++k) {
        uint32_t dout[4], dw[4], u[4], of_b[4];
        load_operand(dout, m.dout, 16 * at.band, k);
        load_operand(dw, m.dw, 16 * at.band, k);
        load_operand(u, m.u, 16 * at.band, k);
#pragma unroll
        for (int p = 0; p < D / 32; ++p) {
            load_rows(of_b, m.state, at.half * D / 2 + 16 * p, k);
            multiply(sums.dq[2 * p], sums.dq[2 * p + 1], dout, of_b);
            if (!additive) multiply(sums.dks[2 * p], sums.dks[2 * p + 1], dw, of_b);
            load_columns(of_b, m.dstate, k, at.half * D / 32 + p);
            multiply(sums.dke[2 * p], sums.dke[2 * p + 1], u, of_b);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) dout[i] = at.half == 0 ? dout[i] : dw[i];
#pragma unroll
        for (int j = 0; j < blocks; ++j) {
            if (j > at.band) continue;
            load_rows(of_b, m.u, 16 * j, k);
            multiply(sums.pairs.of[0][2 * j], sums.pairs.of[0][2 * j + 1], dout, of_b);
        }
    }
}

// The sums with the state become parts of dq and dk (dke has all of dk then), and what they give at decays.
template <int D>
DEVICE void gather_edges(GradientLayout<D>& m, GradientSums<D>& sums, const DeltaChunks& c,
                         const GradientPlace& at) {
    const int lane = lane_of();
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const int t = 16 * at.band + 8 * side + lane / 4;
        const float start = m.edges.from_start[t], end = c.key_scale * m.edges.to_end[t];
        float from_start = 0.0f, to_end = 0.0f;
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            const int channel = at.half * D / 2 + 8 * n + lane % 4 * 2;
            const float2 q = unpack_bf16(*reinterpret_cast<const uint32_t*>(m.q.at(t, channel))),
                         k = unpack_bf16(*reinterpret_cast<const uint32_t*>(m.k.at(t, channel)));
            float *dq = sums.dq[n] + 2 * side, *dks = sums.dks[n] + 2 * side, *dke = sums.dke[n] + 2 * side;
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                dq[i] *= c.query_scale * start;
                const float early = -c.key_scale * start * dks[i], late = end * dke[i];
                from_start += (i == 0 ? q.x : q.y) * dq[i] + (i == 0 ? k.x : k.y) * early;
                to_end += (i == 0 ? k.x : k.y) * late;
                dke[i] = early + late;
            }
        }
        from_start = lanes_sum(from_start, 4);
        to_end = lanes_sum(to_end, 4);
        if (lane % 4 == 0) {
            m.from_start[at.half][t] = from_start;
            m.to_end[at.half][t] = to_end;
        }
    }
}

// The tile of dP F or dM F with its scale, and dP P + dM M: warps 0 to 3 set it, 4 to 7 add to it.
template <int D>
DEVICE void through_scores(GradientLayout<D>& m, const Fragments<1, 8>& pairs, const DeltaChunks& c,
                           const GradientPlace& at) {
    const int lane = lane_of();
    const bool of_keys = at.half == 1;
    const float scale = c.key_scale * (of_keys ? -c.key_scale : c.query_scale);
    Fragments<1, 8> raw;
    raw.clear();
    if (!of_keys || !c.additive) multiply_triangle<D>(raw, of_keys ? m.k : m.q, m.k, at.band);
    Square& tile = of_keys ? m.pairs.dgram : m.pairs.dscores;
    for (int turn = 0; turn < 2; ++turn) {
        if (turn == at.half && !(of_keys && c.additive)) {
#pragma unroll
            for (int n = 0; n < chunk / 8; ++n)
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    if (n / 2 > at.band) continue;
                    const int t = 16 * at.band + 8 * side + lane / 4, j = 8 * n + lane % 4 * 2;
                    const float2 f = factor_pair(m.pairs.factors, t, j);
                    const bool first = t > j, second = t > j + 1;
                    float x = scale * f.x * pairs.of[0][n][2 * side],
                          y = scale * f.y * pairs.of[0][n][2 * side + 1];
                    if (of_keys) x = first ? x : 0.0f, y = second ? y : 0.0f;
                    *reinterpret_cast<uint32_t*>(tile.data + place_in_square(t, j)) = pack_bf16(x, y);
                    auto* sum = reinterpret_cast<float2*>(m.pairs.running + t * factor_stride + j);
                    float2 both{first ? x * raw.of[0][n][2 * side] : 0.0f,
                                second ? y * raw.of[0][n][2 * side + 1] : 0.0f};
                    if (of_keys) {
                        const float2 before = *sum;
                        both = {before.x + both.x, before.y + both.y};
                    }
                    *sum = both;
                }
        }
        __syncthreads();
    }
}

// Adds what the tiles of through_scores() give to dq and dk.
template <int D>
DEVICE void add_pairs(GradientSums<D>& sums, const GradientLayout<D>& m, const GradientPlace& at,
                      bool additive) {
#pragma unroll 1
    for (int k = 0; k < blocks; ++k) {
        uint32_t dscores[4], dgram[4], of_b[4];
        if (k <= at.band) {  // row k of keys, by its queries and later keys
            load_operand(dscores, m.pairs.dscores, 16 * at.band, k);
            if (!additive) load_operand(dgram, m.pairs.dgram, 16 * at.band, k);
#pragma unroll
            for (int p = 0; p < D / 32; ++p) {
                load_columns(of_b, m.k, k, at.half * D / 32 + p);
                multiply(sums.dq[2 * p], sums.dq[2 * p + 1], dscores, of_b);
                if (!additive) multiply(sums.dke[2 * p], sums.dke[2 * p + 1], dgram, of_b);
            }
        }
        if (k >= at.band) {
            load_operand_trans(dscores, m.pairs.dscores, 16 * k, at.band);
            if (!additive) load_operand_trans(dgram, m.pairs.dgram, 16 * k, at.band);
#pragma unroll
            for (int p = 0; p < D / 32; ++p) {
                load_columns(of_b, m.q, k, at.half * D / 32 + p);
                multiply(sums.dke[2 * p], sums.dke[2 * p + 1], dscores, of_b);
                if (additive) continue;
                load_columns(of_b, m.k, k, at.half * D / 32 + p);
                multiply(sums.dke[2 * p], sums.dke[2 * p + 1], dgram, of_b);
            }
        }
    }
}

template <int D>
DEVICE void write_rows(const View<bf16>& to, const float (&sums)[D / 16][4], const DeltaChunks& c,
                       const GradientPlace& at) {
    const int lane = lane_of();
#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const int t = at.begin + 16 * at.band + 8 * side + lane / 4;
        if (t >= c.length) continue;
        bf16* row = to.at(at.first + t, int64_t{at.head} * c.d);
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
            const int channel = at.half * D / 2 + 8 * n + lane % 4 * 2;
            if (channel < c.d)
                *reinterpret_cast<uint32_t*>(row + channel) =
                    pack_bf16(sums[n][2 * side], sums[n][2 * side + 1]);
        }
    }
}

// The gradients at log-decays: of products from the start those of later positions, of products to the end those of
// earlier ones, of pairs those around the position, of the state's own product all; and those at beta.
template <int D>
DEVICE void write_numbers(const GradientLayout<D>& m, const DeltaBackward& b, const GradientPlace& at) {
    const DeltaChunks& c = b.in;
    const int s = static_cast<int>(threadIdx.x);
    if (s >= chunk || at.begin + s >= c.length) return;
    const int64_t row = at.first + at.begin + s;
    float along = 0.0f, dbeta = 0.0f;
    for (int i = 0; i < b.slabs; ++i) {
        along += b.along[at.entry * b.slabs + i];
        dbeta += b.dbeta[(i * b.rows + row) * c.heads + at.head];
    }
    float sum = m.edges.from_start[chunk - 1] * along + m.between[s];
    for (int t = 0; t < chunk; ++t)
        sum += t < s ? m.to_end[0][t] + m.to_end[1][t] : m.from_start[0][t] + m.from_start[1][t];
    *b.to_ddecay.at(row, at.head) = sum;
    *b.to_dbeta.at(row, at.head) = dbeta;
}

template <int D>
KERNEL(gradient_threads, 1)
void delta_gradients_kernel(DeltaBackward b) {
    auto& m = shared<GradientLayout<D>>();
    const DeltaChunks& c = b.in;
    const GradientPlace at(c);
    const int thread = static_cast<int>(threadIdx.x), lane = lane_of();
    load_tile<gradient_threads>(m.q, c.rows_of(c.q, at.sequence, at.head * c.d, c.d), at.begin);
    load_tile<gradient_threads>(m.k, c.rows_of(c.k, at.sequence, at.head * c.d, c.d), at.begin);
    copy_edges(m.edges, c.edges[at.entry]);
    if (thread < chunk) m.decay[thread] = c.decay_of(at.first, at.begin + thread, at.head);
    GradientSums<D> sums{};
#pragma unroll 1
    for (int column = 0; column < c.e; column += columns) {
        load_slab(m.slab, b, at, column);
        cp_async_wait<0>();
        __syncthreads();
        add_slab(sums, m.slab, at, c.additive);
        __syncthreads();
    }
    gather_edges(m, sums, c, at);
    if (thread < chunk) fill_factors(m.pairs.factors, m.decay, thread);
    __syncthreads();
    through_scores(m, sums.pairs, c, at);
    if (thread < chunk) {
        float later = 0.0f;
#pragma unroll 1
        for (int t = chunk - 1; t > thread; --t)
            m.pairs.running[t * factor_stride + thread] = later +=
                m.pairs.running[t * factor_stride + thread];
    }
    add_pairs(sums, m, at, c.additive);
    __syncthreads();
    for (int s = at.warp; s < chunk; s += gradient_threads / 32) {
        const float* row = m.pairs.running + s * factor_stride + lane;
        const float sum = warp_sum((lane < s ? row[0] : 0.0f) + (lane + 32 < s ? row[32] : 0.0f));
        if (lane == 0) m.between[s] = sum;
    }
    __syncthreads();
    write_numbers(m, b, at);
    write_rows<D>(b.to_dq, sums.dq, c, at);
    write_rows<D>(b.to_dk, sums.dke, c, at);
}

// --- host side

int64_t slabs_of(const DeltaSpec& s) {
    return (s.value_dim + warp_columns - 1) / warp_columns;
}
void take_backward(DeltaBackward& b, DeltaSpace& space, const DeltaSpec& s) {
    const int64_t n = s.batch * s.length, values = s.heads * s.value_dim;
    b.u = {space.take<bf16>(n * values), values};
    b.dstates = space.take<bf16>(entries_of(s) * s.key_dim * s.value_dim);
    b.dbeta = space.take<float>(slabs_of(s) * n * s.heads);
    b.along = space.take<float>(entries_of(s) * slabs_of(s));
    b.slabs = static_cast<int>(slabs_of(s));
    b.rows = n;
}

}  // namespace

int64_t delta_chunks_workspace(const DeltaSpec& s, bool backward) {
    DeltaSpace space{nullptr};
    DeltaBackward all{};
    take_scores(all.in, space, s);
    if (backward) take_backward(all, space, s);
    return space.used;
}

void delta_rule_in_chunks_backward(const DeltaGradients& d, Tensor workspace, const Tensor& dout,
                                   const Tensor& states, const DeltaInputs& in, const DeltaSpec& spec,
                                   Stream stream) {
    check_space(workspace, spec, true);
    DeltaBackward b{};
    b.in = chunks_of(in, spec);
    b.dout = view<const bf16>(dout);
    b.dv = view<const bf16>(d.v);
    b.states = view<const float>(states);
    b.to_dq = view<bf16>(d.q);
    b.to_dk = view<bf16>(d.k);
    b.to_dv = view<bf16>(d.v);
    b.to_ddecay = view<float>(d.decay);
    b.to_dbeta = view<float>(d.beta);
    DeltaSpace space{static_cast<std::byte*>(workspace.data())};
    take_scores(b.in, space, spec);
    take_backward(b, space, spec);
    launch_scores(b.in, spec, stream);
    with_key_tile(spec.key_dim, [&](auto channels) {
        constexpr int D = decltype(channels)::value;
        launch(delta_backward_kernel<D>,
               {pass_grid(spec), dim3(pass_threads), sizeof(BackwardLayout<D>), stream}, b);
        launch(delta_gradients_kernel<D>,
               {chunk_grid(spec), dim3(gradient_threads), sizeof(GradientLayout<D>), stream}, b);
    });
}

}  // namespace longreach::cuda
