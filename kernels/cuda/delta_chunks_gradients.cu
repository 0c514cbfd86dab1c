// The gradient of the gated delta rule in chunks (delta_chunks.cuh), of all chunks at once: queries, keys, decays, beta.
#include "kernels/cuda/delta_channels.cuh"

namespace longreach::cuda {

using namespace delta;

namespace {

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
// With decays per channel q and k become what each level makes of them.
template <int D>
struct LevelTables {
    Square dscores, dgram;  // dP, dM
    Rows<D> products;       // x dx of every position and channel
    DecaySums<D> decays;
};
template <DecayPer per>
struct GradientNumbers {
    Edges edges;
    float decay[chunk];
    float from_start[2][chunk], to_end[2][chunk];  // <x, dx> of the halves of the channels
    float between[chunk];
};
template <>
struct GradientNumbers<DecayPer::channel> {
    float along[gradient_threads];  // a channel's <S, dS>, in parts
};
template <int D, DecayPer per>
struct GradientLayout : GradientNumbers<per> {
    Rows<D> q, k;
    union {
        SlabTiles<D> slab;
        std::conditional_t<per == DecayPer::head, PairTables, LevelTables<D>> pairs;
    };
};
template <int D>
using HeadGradientLayout = GradientLayout<D, DecayPer::head>;
template <int D>
using ChannelGradientLayout = GradientLayout<D, DecayPer::channel>;
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

template <int D>
DEVICE float2 pair_at(const Rows<D>& tile, int t, int channel) {
    return unpack_bf16(*reinterpret_cast<const uint32_t*>(tile.at(t, channel)));
}
template <int D>
DEVICE void set_pair(Rows<D>& tile, int t, int channel, uint32_t word) {
    *reinterpret_cast<uint32_t*>(tile.chunk(t, channel / 8) + channel % 8) = word;
}

// The sums with the state become parts of dq and dk (dke has all of dk then), and what they give at decays.
template <int D>
DEVICE void gather_edges(HeadGradientLayout<D>& m, GradientSums<D>& sums, const DeltaChunks& c,
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
            const float2 q = pair_at(m.q, t, channel), k = pair_at(m.k, t, channel);
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
DEVICE void through_scores(HeadGradientLayout<D>& m, const Fragments<1, 8>& pairs, const DeltaChunks& c,
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
DEVICE void add_pairs(GradientSums<D>& sums, const HeadGradientLayout<D>& m, const GradientPlace& at,
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

// The gradient at beta, of a thread per position.
DEVICE void write_dbeta(const DeltaBackward& b, const GradientPlace& at) {
    const int s = static_cast<int>(threadIdx.x);
    if (s >= chunk || at.begin + s >= b.in.length) return;
    const int64_t row = at.first + at.begin + s;
    float dbeta = 0.0f;
    for (int i = 0; i < b.slabs; ++i) dbeta += b.dbeta[(i * b.rows + row) * b.in.heads + at.head];
    *b.to_dbeta.at(row, at.head) = dbeta;
}

// The gradients at log-decays: of products from the start those of later positions, of products to the end those of
// earlier ones, of pairs those around the position, of the state's own product all.
template <int D>
DEVICE void write_ddecay(const HeadGradientLayout<D>& m, const DeltaBackward& b, const GradientPlace& at) {
    const int s = static_cast<int>(threadIdx.x);
    if (s >= chunk || at.begin + s >= b.in.length) return;
    float along = 0.0f;
    for (int i = 0; i < b.slabs; ++i) along += b.along[at.entry * b.slabs + i];
    float sum = m.edges.from_start[chunk - 1] * along + m.between[s];
    for (int t = 0; t < chunk; ++t)
        sum += t < s ? m.to_end[0][t] + m.to_end[1][t] : m.from_start[0][t] + m.from_start[1][t];
    *b.to_ddecay.at(at.first + at.begin + s, at.head) = sum;
}

// What is left when the sums with the state are there, with a decay per head.
template <int D>
DEVICE void finish(HeadGradientLayout<D>& m, GradientSums<D>& sums, const DeltaBackward& b,
                   const GradientPlace& at) {
    const DeltaChunks& c = b.in;
    const int thread = static_cast<int>(threadIdx.x), lane = lane_of();
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
    write_ddecay(m, b, at);
}

// --- with a decay per key channel (delta_channels.cuh)
// At every level dq and dk are products of dP and dM with rows decayed to the middle. What a position and channel add to
// the gradients at log-decays is the product of a decayed number with the gradient at it, and goes to the positions whose
// decays are part of it: from the middle to a later one, from an earlier one to the middle. That sum is a product too,
// with a matrix of zeros and ones.

// Adds the slab's columns of <S, dS>: thread i has channel i % D.
template <int D>
DEVICE float add_along(float along, const SlabTiles<D>& m) {
    constexpr int own = columns * D / gradient_threads;
    const int channel = static_cast<int>(threadIdx.x) % D, from = static_cast<int>(threadIdx.x) / D * own;
#pragma unroll 1
    for (int i = 0; i < own; i += 8) {
        const Pack<8> s = load<8>(m.state.chunk(channel, (from + i) / 8));
#pragma unroll
        for (int e = 0; e < 8; ++e) along = fmaf(s[e], widen(*m.dstate.at(from + i + e, channel)), along);
    }
    return along;
}

// dP or dM of a warp with its scale, as a tile.
template <int D>
DEVICE void keep_pairs(LevelTables<D>& m, const Fragments<1, 8>& pairs, const DeltaChunks& c,
                       const GradientPlace& at) {
    const bool of_keys = at.half == 1;
    const float scale = c.key_scale * (of_keys ? -c.key_scale : c.query_scale);
    bf16* tile = of_keys ? m.dgram.data : m.dscores.data;
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            if (n / 2 > at.band) continue;
            const int t = row_of_word(16 * at.band, side), j = 8 * n + lane_of() % 4 * 2;
            const float x = pairs.of[0][n][2 * side], y = pairs.of[0][n][2 * side + 1];
            *reinterpret_cast<uint32_t*>(tile + place_in_square(t, j)) =
                pack_bf16(t > j || !of_keys ? scale * x : 0.0f, t > j + 1 || !of_keys ? scale * y : 0.0f);
        }
}

// A warp's rows and channels.
template <int D>
struct ChannelRows {
    static constexpr int words = D / 32;
    uint32_t q[words][4], k[words][4];
    float ddecay[D / 16][4];
};
// body(p, i, t, channel): word i of q[p] and k[p], with its place.
template <int D, class Body>
DEVICE void for_words(const GradientPlace& at, Body body) {
#pragma unroll
    for (int p = 0; p < D / 32; ++p)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            body(p, i, row_of_word(16 * at.band, i), channel_of_word(at.half * D / 32 + p, i));
}
// The two of a word in sums [positions, channels].
template <int N>
DEVICE float* of_word(float (&sums)[N][4], int p, int i) {
    return sums[2 * p + i / 2] + i % 2 * 2;
}

// The sums with the state become parts of dq and dk (dke has all of dk then) and of the gradients at decays.
template <int D>
DEVICE void gather_edges(ChannelGradientLayout<D>& m, GradientSums<D>& sums, ChannelRows<D>& x,
                         const DeltaChunks& c, const GradientPlace& at) {
    Rows<D>& products = m.pairs.products;
    const DecaySums<D>& decays = m.pairs.decays;
    for_words<D>(at, [&](int p, int i, int t, int channel) {
        const float2 k = pair_at(m.k, t, channel), by = decays.to_end(t, channel),
                     all = decays.from_start(chunk - 1, channel);
        float *dk = of_word(sums.dke, p, i), *ddecay = of_word(x.ddecay, p, i);
        dk[0] *= c.key_scale * by.x;
        dk[1] *= c.key_scale * by.y;
        set_pair(products, t, channel, pack_bf16(k.x * dk[0], k.y * dk[1]));
        float2 along{0.0f, 0.0f};
#pragma unroll
        for (int part = 0; part < gradient_threads / D; ++part) {
            const float2 more = *reinterpret_cast<const float2*>(m.along + part * D + channel);
            along = {along.x + more.x, along.y + more.y};
        }
        ddecay[0] = all.x * along.x;
        ddecay[1] = all.y * along.y;
    });
    __syncthreads();
    add_products(x.ddecay, products, at.band, at.half, 0, at.band, [](int s, int t) { return t < s; });
    __syncthreads();
    for_words<D>(at, [&](int p, int i, int t, int channel) {
        const float2 q = pair_at(m.q, t, channel), k = pair_at(m.k, t, channel),
                     by = decays.from_start(t, channel);
        float *dq = of_word(sums.dq, p, i), *dks = of_word(sums.dks, p, i), *dk = of_word(sums.dke, p, i);
        dq[0] *= c.query_scale * by.x;
        dq[1] *= c.query_scale * by.y;
        const float2 early{-c.key_scale * by.x * dks[0], -c.key_scale * by.y * dks[1]};
        dk[0] += early.x;
        dk[1] += early.y;
        set_pair(products, t, channel, pack_bf16(q.x * dq[0] + k.x * early.x, q.y * dq[1] + k.y * early.y));
    });
    __syncthreads();
    add_products(x.ddecay, products, at.band, at.half, at.band, blocks - 1,
                 [](int s, int t) { return t >= s; });
}

// dq and dk of the level's pairs of 16 channels, number `pair`, before the decay of their own rows.
template <int D>
DEVICE void multiply_level(Fragments<1, 2>& dq, Fragments<1, 2>& dk, const ChannelGradientLayout<D>& m,
                           const GradientPlace& at, int pair, int level, bool additive) {
    const bool wide = level >= block;
    const int step = level / block, first = wide ? (at.band ^ step) & -step : at.band;
    const auto add = [&](Fragments<1, 2>& sums, const Square& by, const Rows<D>& rows, int b,
                         bool transposed) {
        uint32_t a[4], of_b[4];
        if (transposed)
            load_operand_trans(a, by, 16 * b, at.band);
        else
            load_operand(a, by, 16 * at.band, b);
        if (!wide) keep_level(a, level, transposed);
        load_columns(of_b, rows, b, pair);
        multiply(sums.of[0][0], sums.of[0][1], a, of_b);
    };
    dq.clear();
    dk.clear();
#pragma unroll 1
    for (int b = first; b < first + (wide ? step : 1); ++b) {
        if (!wide || at.band > b) {
            add(dq, m.pairs.dscores, m.k, b, false);
            if (!additive) add(dk, m.pairs.dgram, m.k, b, false);
        }
        if (!wide || at.band < b) {
            add(dk, m.pairs.dscores, m.q, b, true);
            if (!additive) add(dk, m.pairs.dgram, m.k, b, true);
        }
    }
}

template <int D>
DEVICE void through_level(ChannelGradientLayout<D>& m, GradientSums<D>& sums, ChannelRows<D>& x,
                          GradientPlace at, int level, bool additive) {
    // Or f32 of every word, and addresses of every row, stay in registers from level to level.
    const auto word = [](uint32_t w) { return static_cast<uint32_t>(anew(static_cast<int>(w))); };
    at.band = anew(at.band);
    const DecaySums<D>& decays = m.pairs.decays;
    const auto weight = [&](int t, int channel) {
        return level == 0 ? float2{1.0f, 1.0f} : decays.to_middle(t, channel, level);
    };
    // Blocks that meet themselves alone read and write rows and channels of their warp.
    if (level >= block / 2) __syncthreads();
    for_words<D>(at, [&](int p, int i, int t, int channel) {
        const float2 by = weight(t, channel);
        set_pair(m.q, t, channel, fade_word(word(x.q[p][i]), by));
        set_pair(m.k, t, channel, fade_word(word(x.k[p][i]), by));
    });
    if (level >= block)
        __syncthreads();
    else
        __syncwarp(all_lanes);
#pragma unroll
    for (int p = 0; p < D / 32; ++p) {
        Fragments<1, 2> dq, dk;
        multiply_level(dq, dk, m, at, at.half * D / 32 + p, level, additive);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int t = row_of_word(16 * at.band, i), channel = channel_of_word(at.half * D / 32 + p, i);
            const float2 q = unpack_bf16(word(x.q[p][i])), k = unpack_bf16(word(x.k[p][i])),
                         by = weight(t, channel);
            float *at_q = of_word(dq.of[0], 0, i), *at_k = of_word(dk.of[0], 0, i);
            float *to_q = of_word(sums.dq, p, i), *to_k = of_word(sums.dke, p, i);
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                at_q[e] *= e == 0 ? by.x : by.y;
                at_k[e] *= e == 0 ? by.x : by.y;
                to_q[e] += at_q[e];
                to_k[e] += at_k[e];
            }
            set_pair(m.pairs.products, t, channel,
                     pack_bf16(q.x * at_q[0] + k.x * at_k[0], q.y * at_q[1] + k.y * at_k[1]));
        }
    }
    if (level == 0) return;
    if (level > block)
        __syncthreads();
    else
        __syncwarp(all_lanes);
    const int others = level > block ? 1 : 0;
    add_products(x.ddecay, m.pairs.products, at.band, at.half, at.band & ~others, at.band | others,
                 [level](int s, int t) { return (s ^ t) < level && ((s & level) != 0 ? t >= s : t < s); });
}

// What is left when the sums with the state are there, with a decay per key channel.
template <int D>
DEVICE void finish(ChannelGradientLayout<D>& m, GradientSums<D>& sums, const DeltaBackward& b,
                   const GradientPlace& at) {
    const DeltaChunks& c = b.in;
    ChannelRows<D> x;
    keep_pairs(m.pairs, sums.pairs, c, at);
    fill_sums<gradient_threads>(m.pairs.decays, c, at.first, at.begin, at.head);
    __syncthreads();
    gather_edges(m, sums, x, c, at);
#pragma unroll
    for (int p = 0; p < D / 32; ++p) {
        load_operand(x.q[p], m.q, 16 * at.band, at.half * D / 32 + p);
        load_operand(x.k[p], m.k, 16 * at.band, at.half * D / 32 + p);
    }
#pragma unroll 1
    for (int level = chunk / 2, last = 0; !last; last = level == 0, level /= 2)
        through_level(m, sums, x, at, level, c.additive);
    for_words<D>(at, [&](int p, int i, int t, int channel) {
        if (at.begin + t >= c.length || channel >= c.d) return;
        float* to = b.to_ddecay.at(at.first + at.begin + t, int64_t{at.head} * c.d + channel);
        to[0] = of_word(x.ddecay, p, i)[0];
        to[1] = of_word(x.ddecay, p, i)[1];
    });
}

template <int D, DecayPer per>
KERNEL(gradient_threads, 1)
void delta_gradients_kernel(DeltaBackward b) {
    auto& m = shared<GradientLayout<D, per>>();
    const DeltaChunks& c = b.in;
    const GradientPlace at(c);
    const int thread = static_cast<int>(threadIdx.x);
    load_tile<gradient_threads>(m.q, c.rows_of(c.q, at.sequence, at.head * c.d, c.d), at.begin);
    load_tile<gradient_threads>(m.k, c.rows_of(c.k, at.sequence, at.head * c.d, c.d), at.begin);
    if constexpr (per == DecayPer::head) {
        copy_edges<D, per>(m.edges, c.edges[at.entry]);
        if (thread < chunk) m.decay[thread] = c.decay_of(at.first, at.begin + thread, at.head);
    }
    GradientSums<D> sums{};
    [[maybe_unused]] float along = 0.0f;
#pragma unroll 1
    for (int column = 0; column < c.e; column += columns) {
        load_slab(m.slab, b, at, column);
        cp_async_wait<0>();
        __syncthreads();
        add_slab(sums, m.slab, at, c.additive);
        if constexpr (per == DecayPer::channel) along = add_along(along, m.slab);
        __syncthreads();
    }
    if constexpr (per == DecayPer::channel) m.along[thread] = along;
    finish(m, sums, b, at);
    write_dbeta(b, at);
    write_rows<D>(b.to_dq, sums.dq, c, at);
    write_rows<D>(b.to_dk, sums.dke, c, at);
}

}  // namespace

void delta::launch_gradients(const DeltaBackward& b, const DeltaSpec& s, Stream stream) {
    with_form(b.in, [&](auto channels, auto decays) {
        constexpr int D = decltype(channels)::value;
        constexpr DecayPer per = decltype(decays)::value;
        launch(delta_gradients_kernel<D, per>,
               {chunk_grid(s), dim3(gradient_threads), sizeof(GradientLayout<D, per>), stream}, b);
    });
}

}  // namespace longreach::cuda
