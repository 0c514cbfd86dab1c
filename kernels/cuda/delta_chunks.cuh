// The gated delta rule in chunks of 64 positions, by mma.sync: bf16, one decay per head or per key channel. The
// mathematics and its letters are those of kernels/cpu/delta_rule.h and delta_rule_backward.cpp, in another order.
//
//   scores      a block per chunk and head, all at once: P, M, products of decays
//   forward     a block per head and 64 columns of its values, chunk after chunk: U, O, S
//   backward    the same from the last chunk on: U again, dR, dW = dV, dS; saves U and dS of every chunk
//   gradients   a block per chunk and head, all at once: dq, dk and the gradients at decays and beta
//
// Where sequences are few, the two passes go through segments of a sequence at once: delta_chunks_segments.cu.
//
// A warp of the two passes along a sequence owns 16 columns, and holds everything of them transposed, [16 columns,
// positions or channels]: the sums of one product are then the first factor of the next without leaving their registers,
// the tiles of q, k, P and M are second factors as they lie in memory, and no column ever meets another. The state is in
// f32 fragments all the way.
//
// A decay per head multiplies rows and columns of products, so q and k enter as they are, unrounded. Rounded to bf16 are
// P, M, X and, wherever they are a factor, S, dS, U, dW, right sides and the scaled dO; sums, the products of decays and
// what becomes of a state are f32. A decay per key channel is part of the factors: delta_channels.cuh has what follows from
// that, and the passes take qs, ks and ke, rounded to bf16, where those of a decay per head take q and k.
//
// The decay before the first position of a document is taken as 0 instead of cutting the chunk there: every product of
// decays across it is 0, and so is everything finite that would pass. Positions past the end keep everything (decay 1)
// and write nothing (beta 0).
//
// The triangular system is solved by blocks of 16. With rhs the block's right side less what earlier blocks give, and the
// block's own X = (1 + M diag(beta))^-1 M, found once per chunk in f32:
//
//     rest = rhs - X diag(beta) rhs,  U = diag(beta) rest;      dR = rhs - X^T diag(beta) rhs,  dW = diag(beta) dR
//
// X lies in M's diagonal blocks, which nothing else reads.
//
// No atomics; every sum has a fixed order. Sums over the columns of a head are made by one block (dq, dk), or as numbers
// of each 16 columns that one thread adds in their order (beta, decays).
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/delta_chunks.h"
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/workspaces.h"

namespace longreach::cuda::delta {

inline constexpr int chunk = static_cast<int>(delta_chunk);  // positions
inline constexpr int block = 16;                             // of the triangular system
inline constexpr int blocks = chunk / block;
inline constexpr int columns = chunk_columns,
                     warp_columns = slab_columns;  // of values, per block of threads and per warp
inline constexpr int pass_threads = 128, gradient_threads = 256;
inline constexpr int factor_stride = chunk + 8;  // fragments read pairs of eight rows from different banks

template <int D>
using Rows = HeadTile<bf16, D, chunk>;  // positions by channels
using Square = Rows<chunk>;             // positions by positions, or by columns
inline constexpr int square = chunk * chunk;

enum class DecayPer { head, channel };

using Edges = DeltaEdges;

struct DeltaChunks {
    View<const bf16> q, k, v;
    View<const float> decay, beta;
    const int32_t* doc_start;
    int length, chunks, heads, d, e;
    bool continues, additive, by_channel;
    float query_scale, key_scale;
    // Workspace, of every chunk and head: P and M as tiles; with decays per channel qs, ks and ke [3][chunk, d].
    bf16 *scores, *gram, *faded;
    Edges* edges;
    // Segments of a sequence, and the chunks of each; the last may have fewer. With more than one, of every sequence, head
    // and segment: its first state, backward the gradient at its last one [d, e]; what the segment from there makes of
    // states, or backward of gradients, transposed [d, d].
    int segments, segment_chunks;
    float *bounds, *maps;

    DEVICE int64_t entry(int64_t sequence, int number, int head) const {
        return (sequence * chunks + number) * heads + head;
    }
    // `width` channels of a head from column on.
    DEVICE HeadRows<const bf16> rows_of(const View<const bf16>& x, int64_t sequence, int64_t column,
                                        int width) const {
        return {x.at(sequence * length, column), x.stride, length, width, true};
    }
    DEVICE float* bound(int64_t item, int segment) const {
        return bounds + (item * segments + segment) * d * e;
    }
    DEVICE float* map(int64_t item, int segment) const { return maps + (item * segments + segment) * d * d; }
    enum Faded { qs, ks, ke };
    DEVICE HeadRows<const bf16> faded_rows(int64_t entry, Faded which) const {
        return {faded + (3 * entry + which) * chunk * d, d, chunk, d, true};
    }
    DEVICE bool starts(int64_t first, int t) const {
        return doc_start ? doc_start[first + t] == t : t == 0 && !continues;
    }
    DEVICE float decay_of(int64_t first, int t, int head) const {
        if (t >= length) return 1.0f;
        return starts(first, t) ? 0.0f : expf(*decay.at(first + t, head));
    }
};

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
    float *dbeta, *along;  // along: with decays per head
    int slabs;
    int64_t rows;  // N
};

// --- factors of products: two fragments `low`, `high` of 8 columns each

DEVICE int lane_of() {
    return static_cast<int>(threadIdx.x % 32);
}
// The second factor of 16 columns: rows row0 .. row0 + 16 of the tile, summed over its channels 16 k .. 16 k + 16.
template <class Tile>
DEVICE void load_rows(uint32_t (&b)[4], const Tile& tile, int row0, int k) {
    const int lane = lane_of();
    ldmatrix_x4(b, tile.chunk(lane % 8 + lane / 16 * 8, row0, lane / 8 % 2, k));
}
// Channels 16 pair .. 16 pair + 16 of the tile, summed over its rows 16 k .. 16 k + 16.
template <class Tile>
DEVICE void load_columns(uint32_t (&b)[4], const Tile& tile, int k, int pair) {
    const int lane = lane_of();
    ldmatrix_x4_trans(b, tile.chunk(lane % 16, 16 * k, lane / 16, pair));
}
// The first factor: rows row0 .. row0 + 16 of the tile, channels 16 k .. 16 k + 16; or those channels as rows.
template <class Tile>
DEVICE void load_operand(uint32_t (&a)[4], const Tile& tile, int row0, int k) {
    const int lane = lane_of();
    ldmatrix_x4(a, tile.chunk(lane % 16, row0, lane / 16, k));
}
template <class Tile>
DEVICE void load_operand_trans(uint32_t (&a)[4], const Tile& tile, int row0, int k) {
    const int lane = lane_of();
    ldmatrix_x4_trans(a, tile.chunk(lane % 8 + lane / 16 * 8, row0, lane / 8 % 2, k));
}
DEVICE void multiply(float (&low)[4], float (&high)[4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    mma_m16n8k16_bf16(low, a, {b[0], b[1]}, low);
    mma_m16n8k16_bf16(high, a, {b[2], b[3]}, high);
}
// Sums of 16 columns as the first factor of a product over those columns.
DEVICE void pack_operand(uint32_t (&a)[4], const float (&low)[4], const float (&high)[4]) {
    a[0] = pack_bf16(low[0], low[1]);
    a[1] = pack_bf16(low[2], low[3]);
    a[2] = pack_bf16(high[0], high[1]);
    a[3] = pack_bf16(high[2], high[3]);
}
DEVICE float2 unpack_bf16(uint32_t word) {
    bf16 both[2];
    memcpy(static_cast<void*>(both), &word, sizeof(word));
    return {widen(both[0]), widen(both[1])};
}
// Of one number per position, those of the lane's two columns of fragment n.
DEVICE float2 of_pair(const float* numbers, int n) {
    return *reinterpret_cast<const float2*>(numbers + 8 * n + lane_of() % 4 * 2);
}
DEVICE void scale_pair(float (&to)[4], const float (&from)[4], float2 factor) {
    to[0] = from[0] * factor.x;
    to[1] = from[1] * factor.y;
    to[2] = from[2] * factor.x;
    to[3] = from[3] * factor.y;
}
// low, high -= a b
DEVICE void subtract_product(float (&low)[4], float (&high)[4], const uint32_t (&a)[4],
                             const uint32_t (&b)[4]) {
    Fragments<1, 2> sum;
    sum.clear();
    multiply(sum.of[0][0], sum.of[0][1], a, b);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        low[e] -= sum.of[0][0][e];
        high[e] -= sum.of[0][1][e];
    }
}

// --- products of decays, and scores

// Column j of F: F_tj = a_(j+1) ... a_t, 0 above the diagonal. Returns the last.
DEVICE float fill_factors(float* factors, const float* decay, int j) {
    float product = 1.0f;
#pragma unroll 1
    for (int t = 0; t < chunk; ++t) {
        if (t > j) product *= decay[t];
        factors[t * factor_stride + j] = t < j ? 0.0f : product;
    }
    return product;
}
DEVICE float2 factor_pair(const float* factors, int t, int j) {
    return *reinterpret_cast<const float2*>(factors + t * factor_stride + j);
}

// sums += a b^T of rows 16 band .. 16 band + 16 of a with the blocks of rows of b up to the same.
template <int D>
DEVICE void multiply_triangle(Fragments<1, 8>& sums, const Rows<D>& a, const Rows<D>& b, int band) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
        uint32_t of_a[4];
        load_operand(of_a, a, 16 * band, k);
#pragma unroll
        for (int j = 0; j < blocks; ++j) {
            if (j > band) continue;
            uint32_t of_b[4];
            load_rows(of_b, b, 16 * j, k);
            multiply(sums.of[0][2 * j], sums.of[0][2 * j + 1], of_a, of_b);
        }
    }
}

// Place of (t, j) in a tile of P or M.
DEVICE int place_in_square(int t, int j) {
    return t * chunk + ((j / 8) ^ (t % 8)) * 8 + j % 8;
}

// --- both passes along a sequence; [16 columns, ...] of a warp

// A tile as it lies in the workspace.
DEVICE void copy_square(Square& to, const bf16* from) {
#pragma unroll
    for (int i = 0; i < square / 8 / pass_threads; ++i) {
        const int at = 8 * (static_cast<int>(threadIdx.x) + i * pass_threads);
        cp_async_16(to.data + at, from + at);
    }
}
// What was written of it, with D channels of keys.
template <int D, DecayPer per>
DEVICE void copy_edges(Edges& to, const Edges& from) {
    constexpr int count = 3 * chunk + (per == DecayPer::head ? 0 : D);
    const int at = 4 * static_cast<int>(threadIdx.x);
    if (at < count) cp_async_16(to.from_start + at, from.from_start + at);
}

// The warp's columns of a tile [positions, columns], positions in blocks of 16, as the first factor of products.
DEVICE void load_own_columns(uint32_t (&to)[blocks][4], const Square& tile, int warp) {
#pragma unroll
    for (int b = 0; b < blocks; ++b) load_operand_trans(to[b], tile, 16 * b, warp);
}

// sums [columns, positions] += s [columns, channels] of f32, rounded here, times the tile's rows.
template <int D>
DEVICE void multiply_state(Fragments<1, 8>& sums, const Fragments<1, D / 8>& s, const Rows<D>& tile) {
    const int lane = lane_of();
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
        uint32_t a[1][4];
        pack_operand(a[0], s.of[0][2 * k], s.of[0][2 * k + 1]);
        multiply_step(sums, a, tile, k, lane);
    }
}

// to = scale times `numbers`, one for each position, times from.
DEVICE void scale_positions(Fragments<1, 8>& to, const Fragments<1, 8>& from, const float* numbers,
                            float scale) {
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n) {
        const float2 x = of_pair(numbers, n);
        scale_pair(to.of[0][n], from.of[0][n], {scale * x.x, scale * x.y});
    }
}
// diag(beta) times the sums of block b, as a first factor.
DEVICE void pack_by_beta(uint32_t (&to)[4], const float (&low)[4], const float (&high)[4], const Edges& edges,
                         int b) {
    float by_low[4], by_high[4];
    scale_pair(by_low, low, of_pair(edges.beta, 2 * b));
    scale_pair(by_high, high, of_pair(edges.beta, 2 * b + 1));
    pack_operand(to, by_low, by_high);
}

// rest comes as k S before its factors and leaves as V - ks S - M U; u = diag(beta) rest.
DEVICE void solve(Fragments<1, 8>& rest, uint32_t (&u)[blocks][4], const Square& values, const Square& gram,
                  const Edges& edges, const DeltaChunks& c, int warp) {
    uint32_t given[blocks][4];
    load_own_columns(given, values, warp);
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n) {
        const float2 seen = of_pair(edges.from_start, n);
        const float2 first = unpack_bf16(given[n / 2][n % 2 * 2]),
                     second = unpack_bf16(given[n / 2][n % 2 * 2 + 1]);
        float(&r)[4] = rest.of[0][n];
        const float x = c.additive ? 0.0f : -c.key_scale * seen.x,
                    y = c.additive ? 0.0f : -c.key_scale * seen.y;
        r[0] = fmaf(x, r[0], first.x);
        r[1] = fmaf(y, r[1], first.y);
        r[2] = fmaf(x, r[2], second.x);
        r[3] = fmaf(y, r[3], second.y);
    }
#pragma unroll
    for (int b = 0; b < blocks; ++b) {
        float(&low)[4] = rest.of[0][2 * b], (&high)[4] = rest.of[0][2 * b + 1];
        uint32_t of_b[4];
#pragma unroll
        for (int k = 0; k <= b && !c.additive; ++k) {
            if (k == b) pack_by_beta(u[b], low, high, edges, b);
            load_rows(of_b, gram, 16 * b, k);
            subtract_product(low, high, u[k], of_b);
        }
        pack_by_beta(u[b], low, high, edges, b);
    }
}

// s += x tile, x [columns, positions].
template <int D>
DEVICE void add_to_state(Fragments<1, D / 8>& s, const uint32_t (&x)[blocks][4], const Rows<D>& tile) {
    const int lane = lane_of();
#pragma unroll
    for (int k = 0; k < blocks; ++k) {
        const uint32_t a[1][4] = {{x[k][0], x[k][1], x[k][2], x[k][3]}};
        multiply_step_trans(s, a, tile, k, 0, lane);
    }
}
template <int D, DecayPer per>
DEVICE void fade_state(Fragments<1, D / 8>& s, const Edges& edges) {
    const float all = edges.from_start[chunk - 1];
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
        scale_pair(s.of[0][n], s.of[0][n], per == DecayPer::head ? float2{all, all} : of_pair(edges.kept, n));
}
// body(word, channel, column): the pairs of neighbouring channels in a state's fragments, word of the lane's two.
template <int D, class Body>
DEVICE void for_state(Body body) {
    const int lane = lane_of();
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) body(n, half, 8 * n + lane % 4 * 2, 8 * half + lane / 4);
}

template <int D>
DEVICE void read_state(Fragments<1, D / 8>& s, const float* from, const DeltaChunks& c, int first_column) {
    for_state<D>([&](int n, int half, int channel, int column) {
        if (channel >= c.d || first_column + column >= c.e) return;
        s.of[0][n][2 * half] = from[int64_t{channel} * c.e + first_column + column];
        s.of[0][n][2 * half + 1] = from[int64_t{channel + 1} * c.e + first_column + column];
    });
}
template <int D>
DEVICE void write_state(const Fragments<1, D / 8>& s, float* to, const DeltaChunks& c, int first_column) {
    for_state<D>([&](int n, int half, int channel, int column) {
        if (channel >= c.d || first_column + column >= c.e) return;
        to[int64_t{channel} * c.e + first_column + column] = s.of[0][n][2 * half];
        to[int64_t{channel + 1} * c.e + first_column + column] = s.of[0][n][2 * half + 1];
    });
}
// Columns of a map of states instead of a state's: they begin as those of the identity.
template <int D>
DEVICE void set_identity(Fragments<1, D / 8>& s, int first_column) {
    for_state<D>([&](int n, int half, int channel, int column) {
        s.of[0][n][2 * half] = channel == first_column + column ? 1.0f : 0.0f;
        s.of[0][n][2 * half + 1] = channel + 1 == first_column + column ? 1.0f : 0.0f;
    });
}
template <int D>
DEVICE void write_map(const Fragments<1, D / 8>& s, float* to, const DeltaChunks& c, int first_column) {
    for_state<D>([&](int n, int half, int channel, int column) {
        if (channel >= c.d || first_column + column >= c.d) return;
        *reinterpret_cast<float2*>(to + int64_t{first_column + column} * c.d + channel) = {
            s.of[0][n][2 * half], s.of[0][n][2 * half + 1]};
    });
}

// Rounds x [columns, positions] into the warp's columns of a tile and writes these to rows of `to`.
DEVICE void write_columns(Square& tile, const Fragments<1, 8>& x, const DeltaChunks& c, bf16* to,
                          int64_t stride, int begin, int width) {
    const int lane = lane_of(), warp = static_cast<int>(threadIdx.x) / 32;
    __syncwarp(all_lanes);  // every lane has read them
#pragma unroll
    for (int n = 0; n < chunk / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
            tile.chunk(8 * n + lane % 4 * 2 + e % 2, 2 * warp + e / 2)[lane / 4] =
                narrow<bf16>(x.of[0][n][e]);
    __syncwarp(all_lanes);
    const int side = lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < blocks; ++i) {
        const int t = lane % 8 + lane / 16 * 8 + 16 * i;
        if (begin + t < c.length && 8 * side < width)
            *reinterpret_cast<uint4*>(to + t * stride + 8 * side) =
                *reinterpret_cast<const uint4*>(tile.chunk(t, 2 * warp + side));
    }
}

// What a pass makes of its chunks: all results, or its last state alone.
enum class Walk { results, state };

// The place of a block of threads, and of a warp's columns in it.
struct DeltaPlace {
    int64_t item, sequence, first;
    int head, warp, column;   // column: the warp's first, in the head
    int segment, begin, end;  // its chunks
    int map_column;  // of a walk for the state alone: below 0 column is one of values, else one of the map
    DEVICE explicit DeltaPlace(const DeltaChunks& c, int first_segment = 0)
        : item(blockIdx.x),
          sequence(item / c.heads),
          first(sequence * c.length),
          head(static_cast<int>(item % c.heads)),
          warp(static_cast<int>(threadIdx.x) / 32),
          column(static_cast<int>(blockIdx.y) * columns + warp * warp_columns),
          segment(first_segment + static_cast<int>(blockIdx.z)),
          begin(segment * c.segment_chunks),
          end(begin + c.segment_chunks < c.chunks ? begin + c.segment_chunks : c.chunks),
          map_column(column - (c.e + columns - 1) / columns * columns) {}
};

// --- host side

// A piece of the workspace.
template <class T>
T* piece(const Tensor& workspace, int64_t at) {
    return reinterpret_cast<T*>(workspace.as<std::byte>() + at);
}
inline void place_scores(DeltaChunks& c, const Tensor& workspace, const DeltaPlaces& at) {
    c.scores = piece<bf16>(workspace, at.scores);
    c.gram = piece<bf16>(workspace, at.gram);
    c.faded = piece<bf16>(workspace, at.faded);
    c.edges = piece<Edges>(workspace, at.edges);
    c.bounds = piece<float>(workspace, at.bounds);
    c.maps = piece<float>(workspace, at.maps);
}
inline DeltaChunks chunks_of(const DeltaInputs& in, const DeltaSpec& s) {
    const int64_t chunks = delta_chunks(s.length), segments = delta_segments(s);
    return {.q = view<const bf16>(in.q),
            .k = view<const bf16>(in.k),
            .v = view<const bf16>(in.v),
            .decay = view<const float>(in.decay),
            .beta = view<const float>(in.beta),
            .doc_start = s.doc_start ? s.doc_start.i32() : nullptr,
            .length = static_cast<int>(s.length),
            .chunks = static_cast<int>(chunks),
            .heads = static_cast<int>(s.heads),
            .d = static_cast<int>(s.key_dim),
            .e = static_cast<int>(s.value_dim),
            .continues = s.continues,
            .additive = s.additive,
            .by_channel = in.decay.cols() > s.heads,
            .query_scale = s.query_scale,
            .key_scale = s.key_scale,
            .scores = nullptr,
            .gram = nullptr,
            .faded = nullptr,
            .edges = nullptr,
            .segments = static_cast<int>(segments),
            .segment_chunks = static_cast<int>((chunks + segments - 1) / segments),
            .bounds = nullptr,
            .maps = nullptr};
}

// Blocks of the kernels for chunks, and of those along sequences.
inline dim3 chunk_grid(const DeltaSpec& s) {
    return dim3(static_cast<unsigned>(s.batch * delta_chunks(s.length)), static_cast<unsigned>(s.heads));
}
// A walk for states alone needs no state after the last segment, and has blocks for the columns of maps.
inline dim3 pass_grid(const DeltaSpec& s, Walk walk) {
    const auto segments = static_cast<unsigned>(delta_segments(s));
    const bool state = walk == Walk::state;
    return dim3(static_cast<unsigned>(s.batch * s.heads),
                blocks_for(s.value_dim, columns) + (state ? blocks_for(s.key_dim, columns) : 0),
                segments - (state ? 1 : 0));
}
// body(D, per): the channels of the tiles that hold the heads' keys, and what has a decay.
template <class Body>
void with_form(const DeltaChunks& c, Body body) {
    const auto with_decay = [&](auto channels) {
        if (c.by_channel)
            body(channels, std::integral_constant<DecayPer, DecayPer::channel>{});
        else
            body(channels, std::integral_constant<DecayPer, DecayPer::head>{});
    };
    if (c.d <= 64)
        with_decay(std::integral_constant<int, 64>{});
    else
        with_decay(std::integral_constant<int, 128>{});
}
// Fills scores, gram, faded and edges.
void launch_scores(const DeltaChunks& c, const DeltaSpec& s, Stream stream);
void launch_gradients(const DeltaBackward& b, const DeltaSpec& s, Stream stream);
// From what each segment leaves, starting from zero, to the states at its ends: from the second bound on, or backward from
// the last but one.
void join_segments(const DeltaChunks& c, const DeltaSpec& s, bool backward, Stream stream);
inline void check_space(const Tensor& workspace, const DeltaPlaces& at) {
    check(workspace.bytes() >= at.bytes && reinterpret_cast<uintptr_t>(workspace.data()) % 16 == 0,
          "delta rule in chunks: a workspace of {} bytes", workspace.bytes());
}

}  // namespace longreach::cuda::delta
