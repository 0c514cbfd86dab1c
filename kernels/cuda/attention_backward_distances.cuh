// The distance pass of attention's backward: gradients of tables by distance.
#pragma once

#include "kernels/cuda/attention_backward.cuh"

namespace longreach::cuda {

// Square tiles, and their diagonals: number d belongs to query - key = d - (edge - 1) within the tile.
template <class T, int D>
struct Squares {
    static constexpr int row_bytes = D * static_cast<int>(sizeof(T));
    static constexpr int edge = row_bytes <= 256 ? 64 : row_bytes <= 512 ? 32 : 16;
    static constexpr int threads = edge < 32 ? 64 : 2 * edge, diagonals = 2 * edge - 1;
};
template <class T, int D, ScoreMode mode>
struct DistancePass {
    static constexpr int edge = Squares<T, D>::edge;
    union {
        struct {
            HeadTile<T, D, edge> q, dout, k, v;
        } of;
        float sums[edge][edge + 1];
    } tiles;
    TableSlice<edge, edge> table;
    QueryTerms query[edge];
    ForgetSums<mode, edge> of_queries, of_keys;
    int first[edge];
};

// slab [B, H, diagonals of tiles, 2, diagonals]: sums of dY f z, then of dY, of the tiles (i + number, i).
template <class T, int D, ScoreMode mode>
KERNEL((Squares<T, D>::threads))
void distance_kernel(Backward<T> b, float* slab) {
    using Size = Squares<T, D>;
    constexpr int edge = Size::edge, n = edge / 8;
    auto& block = shared<DistancePass<T, D, mode>>();
    auto& tiles = block.tiles.of;
    const AttentionInput<T>& a = b.in;
    const int thread = static_cast<int>(threadIdx.x), g = thread % 32 / 4, t = thread % 4;
    const int across = (a.length + edge - 1) / edge;
    unsigned index = blockIdx.x;  // the longest walks come first
    const int number = static_cast<int>(index % static_cast<unsigned>(across));
    index /= static_cast<unsigned>(across);
    const int head = static_cast<int>(index % static_cast<unsigned>(a.heads));
    const int sequence = static_cast<int>(index / static_cast<unsigned>(a.heads));
    const int kv_head = head / (a.heads / a.kv_heads), warp0 = thread / 32 * 16;
    const bool forgets = has_forget<mode>(a);

    Fragments<1, n> of_gain, of_bias;
    of_gain.clear();
    of_bias.clear();
    load_table<Size::threads>(block.table, a, head, number * edge, 0);  // the same all along the walk
    for (int key0 = 0; key0 + number * edge < a.length; key0 += edge) {
        const int query0 = key0 + number * edge;
        if (a.first_visible(sequence, query0) >= key0 + edge) continue;
        __syncthreads();  // nobody reads the tiles before
        load_tile<Size::threads>(tiles.q, a.head(a.q, sequence, head), query0);
        load_tile<Size::threads>(tiles.dout, a.head(b.dout, sequence, head), query0);
        load_tile<Size::threads>(tiles.k, a.head(a.k, sequence, kv_head), key0);
        load_tile<Size::threads>(tiles.v, a.head(a.v, sequence, kv_head), key0);
        cp_async_commit();
        if (thread < edge) {
            const int i = query0 + thread;
            block.query[thread] = query_terms<mode>(b, sequence, head, i);
            block.first[thread] = a.first_visible(sequence, i < a.length ? i : a.length - 1);
            if (forgets) {
                block.of_queries.at(thread) = split_sum(forget_sum(a, sequence, head, i));
                block.of_keys.at(thread) = split_sum(forget_sum(a, sequence, head, key0 + thread));
            }
        }
        cp_async_wait<0>();
        __syncthreads();
        if (warp0 >= edge) continue;  // a warp that only helps to load
        Fragments<1, n> s, dp;
        s.clear();
        dp.clear();
        multiply_rows(s, tiles.q, warp0, tiles.k, a.channels);
        multiply_rows(dp, tiles.dout, warp0, tiles.v, a.channels);
        along_diagonals<1, n>(
            [&](int x, int parity) {
                return block.table.entry[8 * x + parity + 2 * t - g - warp0 + edge - 1];
            },
            [&](int band, int column, int parity, float2 entry) {
                const int e = band * 2 + parity, row = warp0 + 8 * band + g;
                const bool seen =
                    visible(query0 + row, key0 + 8 * column + 2 * t + parity, block.first[row], a.length);
                const QueryTerms query = block.query[row];
                const float forgotten = forgets ? difference(block.of_queries.at(row),
                                                             block.of_keys.at(8 * column + 2 * t + parity))
                                                : 0.0f;
                const PairGradient x = differentiate<mode>(a, s.of[0][column][e], dp.of[0][column][e], query,
                                                           entry, forgotten, seen);
                // f z, in mode table as f log2(e) scale s.
                const float slope_of_gain =
                    (mode == ScoreMode::general ? query.factor : query.multiplier) * x.score;
                of_gain.of[0][column][e] = fmaf(x.dy, slope_of_gain, of_gain.of[0][column][e]);
                of_bias.of[0][column][e] += x.dy;
            });
    }
    auto& sums = block.tiles.sums;
    slab += static_cast<int64_t>(blockIdx.x) * 2 * Size::diagonals;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        const Fragments<1, n>& from = which == 0 ? of_gain : of_bias;
        __syncthreads();
#pragma unroll
        for (int column = 0; column < n && warp0 < edge; ++column)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                sums[warp0 + e / 2 * 8 + g][8 * column + 2 * t + e % 2] = from.of[0][column][e];
        __syncthreads();
        if (thread < Size::diagonals) {
            const int difference = thread - (edge - 1);
            float total = 0.0f;
            for (int i = difference > 0 ? difference : 0; i < edge && i - difference < edge; ++i)
                total += sums[i][i - difference];
            const float unit = which == 0 && mode != ScoreMode::general ? ln_2 : 1.0f;
            slab[which * Size::diagonals + thread] = unit * total;
        }
    }
}

}  // namespace longreach::cuda
