// The key pass of attention's backward: dK and dV, summed over the queries of all heads of a group, and half of dc.
#pragma once

#include "kernels/cuda/attention_backward.cuh"

namespace longreach::cuda {

template <class T, int D, ScoreMode mode>
struct KeyPass : Exchanges<KeyTiles<T, D, mode>> {
    using Size = KeyTiles<T, D, mode>;
    static constexpr int slice = D < 128 ? D : 128, slices = D / slice;  // channels of dK and dV per block
    HeadTile<T, D, Size::own> k, v;
    struct Stage {
        HeadTile<T, D, Size::met> q, dout;
        QueryTerms query[Size::met];
        int first[Size::met];
        TableSlice<Size::met, Size::own> table;
        ForgetSums<mode, Size::met> forget;  // of queries
    } stage[Size::stages];
};

template <class T, int D, ScoreMode mode>
KERNEL((KeyTiles<T, D, mode>::threads))
void key_kernel(Backward<T> b) {
    using Pass = KeyPass<T, D, mode>;
    using Size = KeyTiles<T, D, mode>;
    using Stage = typename Pass::Stage;
    constexpr int m = Size::m, n = Size::met / 8, c = Pass::slice / 8;
    auto& tiles = shared<Pass>();
    const AttentionInput<T>& a = b.in;
    const int thread = static_cast<int>(threadIdx.x), g = thread % 32 / 4, t = thread % 4;
    // Early keys are seen by most queries: their blocks come first.
    unsigned index = blockIdx.x;
    const int channel0 = static_cast<int>(index % Pass::slices) * Pass::slice;
    index /= Pass::slices;
    const unsigned key_tiles = static_cast<unsigned>((a.length + Size::own - 1) / Size::own);
    const int key0 = static_cast<int>(index % key_tiles) * Size::own;
    index /= key_tiles;
    const int kv_head = static_cast<int>(index % static_cast<unsigned>(a.kv_heads));
    const int sequence = static_cast<int>(index / static_cast<unsigned>(a.kv_heads));
    const int group = a.heads / a.kv_heads, sharers = thread / 32 / Size::sharing;
    const int warp0 = sharers * 16 * m, warp_key = key0 + warp0;
    const bool second = Size::paired && thread / 32 % 2 == 1;  // of a pair: dP and dK, not S and dV

    const int last_key = key0 + Size::own < a.length ? key0 + Size::own - 1 : a.length - 1;
    const int end = end_of_sight(a, sequence, last_key, key0);
    const bool tables = has_table<mode>(a), forgets = has_forget<mode>(a);

    const auto start = [&](Stage& to, int head, int query0) {
        load_tile<Size::threads>(to.q, a.head(a.q, sequence, head), query0);
        load_tile<Size::threads>(to.dout, a.head(b.dout, sequence, head), query0);
        cp_async_commit();
    };
    // A tile's terms other than its rows, in transit from device to shared memory.
    struct Share {
        QueryTerms query;
        int first;
        TableAhead<Size::threads, Size::met, Size::own> table;
        double sum;
    };
    const auto fetch = [&](int head, int query0) {
        Share x{};
        if (thread < Size::met) {
            const int i = query0 + thread;
            x.query = query_terms<mode>(b, sequence, head, i);
            x.first = a.first_visible(sequence, i < a.length ? i : a.length - 1);
        }
        if (tables) x.table.read(a, head, query0, key0);
        if (forgets && thread < Size::met) x.sum = forget_sum(a, sequence, head, query0 + thread);
        return x;
    };
    const auto put = [&](Stage& to, const Share& x) {
        if (thread < Size::met) {
            to.query[thread] = x.query;
            to.first[thread] = x.first;
        }
        if (tables) x.table.write(to.table);
        if (forgets && thread < Size::met) to.forget.at(thread) = split_sum(x.sum);
    };
    float2 own_sum[2 * m] = {};
    const auto read_own_sums = [&](int of_head) {
#pragma unroll
        for (int band = 0; band < 2 * m; ++band)
            own_sum[band] = split_sum(forget_sum(a, sequence, of_head, warp_key + 8 * band + g));
    };
    if (forgets) read_own_sums(kv_head * group);
    float dcolumn[2 * m] = {};  // sums of dY over the queries of a head
    const auto write_columns = [&](int of_head) {
#pragma unroll
        for (int band = 0; band < 2 * m; ++band) {
            const float total = lanes_sum(dcolumn[band], 4);
            const int key = warp_key + 8 * band + g;
            dcolumn[band] = 0.0f;
            if (t == 0 && channel0 == 0 && !second && key < a.length)
                b.dforget[of_head * b.dforget_step + static_cast<int64_t>(sequence) * a.length + key] =
                    -total;
        }
    };

    [[maybe_unused]] Fragments<m, c> dv, dk;  // each warp of a pair has one of the two, in dv
    dv.clear();
    if constexpr (!Size::paired) dk.clear();
    int head = kv_head * group, query0 = key0;
    load_tile<Size::threads>(tiles.k, a.head(a.k, sequence, kv_head), key0);
    load_tile<Size::threads>(tiles.v, a.head(a.v, sequence, kv_head), key0);
    start(tiles.stage[0], head, query0);
    put(tiles.stage[0], fetch(head, query0));
    for (int step = 0;; ++step) {
        Stage& now = tiles.stage[step % Size::stages];
        Stage& next = tiles.stage[(step + 1) % Size::stages];
        int next_head = head, next_query0 = query0 + Size::met;
        if (next_query0 >= end) {
            next_query0 = key0;
            ++next_head;
        }
        const bool more = next_head < (kv_head + 1) * group;
        cp_async_wait<0>();
        __syncthreads();  // this tile is there, and nobody reads the one before
        const bool ahead = Size::stages == 2 && more;
        Share coming{};
        if (ahead) {
            start(next, next_head, next_query0);
            if (!Size::paired) coming = fetch(next_head, next_query0);
        }
        // Whether this warp's keys are seen by some query of the tile, and whether not by all.
        const bool some =
            query0 + Size::met > warp_key && now.first[0] < warp_key + 16 * m && warp_key < a.length;
        const bool not_all = query0 < warp_key + 16 * m - 1 || now.first[Size::met - 1] > warp_key;
        // entry key - query + met - 1
        const auto entry = [&](int x, int parity) {
            return tables ? now.table.entry[warp0 - (8 * x + parity + 2 * t - g) + Size::met - 1]
                          : float2{1.0f, 0.0f};
        };
        // Of a pair s = <k, q> and dp of keys `band` and query `at` of the tile.
        const auto pair = [&](auto masked, float s, float dp, const QueryTerms& query, int band, int at,
                              float2 of_distance) {
            bool seen = true;
            if constexpr (decltype(masked)::value)
                seen = visible(query0 + at, warp_key + 8 * band + g, now.first[at], a.length);
            const float forgotten = forgets ? difference(now.forget.at(at), own_sum[band]) : 0.0f;
            PairGradient x = differentiate<mode>(a, s, dp, query, of_distance, forgotten, seen);
            if (forgets) dcolumn[band] += x.dy;
            if (mode != ScoreMode::general) x.ds *= query.factor;
            return x;
        };
        [[maybe_unused]] Fragments<m, n> s, dp;  // S^T and dP^T, then P^T and dS^T
        [[maybe_unused]] Rounded<m, n> rounded;  // of a pair: P^T, or dS^T
        if constexpr (Size::paired) {
            if (some) {
                s.clear();
                multiply_rows(s, second ? tiles.v : tiles.k, warp0, second ? now.dout : now.q, a.channels);
                auto& exchange = tiles.exchange[sharers];
                const auto pairs = [&](auto masked) {
                    QueryTerms query[2];
                    along_columns<m, n>(
                        entry,
                        [&](int column) {
                            query[0] = now.query[8 * column + 2 * t];
                            query[1] = now.query[8 * column + 2 * t + 1];
                        },
                        [&](int band, int column, const float2(&of)[2]) {
                            const float(&of_s)[4] = s.of[band / 2][column];
                            const float2 of_dp = exchange.dp[band][column][thread % 32];
                            const int e = band % 2 * 2, at = 8 * column + 2 * t;
                            const PairGradient low =
                                pair(masked, of_s[e], of_dp.x, query[0], band, at, of[0]);
                            const PairGradient high =
                                pair(masked, of_s[e + 1], of_dp.y, query[1], band, at + 1, of[1]);
                            rounded.of[band][column] = pack_bf16(low.p, high.p);
                            exchange.ds[band][column][thread % 32] = pack_bf16(low.ds, high.ds);
                        });
                };
                if (second) {
                    exchange.put_dp(s);
                    tell_pair<Handed::dp>(sharers);
                    wait_for_pair<Handed::ds>(sharers);
                    exchange.get_ds(rounded);
                } else {
                    wait_for_pair<Handed::dp>(sharers);
                    if (not_all)
                        pairs(std::true_type{});
                    else
                        pairs(std::false_type{});
                    tell_pair<Handed::ds>(sharers);
                }
            }
        } else if (some) {
            s.clear();
            dp.clear();
            multiply_rows(s, tiles.k, warp0, now.q, a.channels);
            multiply_rows(dp, tiles.v, warp0, now.dout, a.channels);
            const auto pairs = [&](auto masked) {
                along_diagonals<m, n>(entry, [&](int band, int column, int parity, float2 of) {
                    const int at = 8 * column + 2 * t + parity;
                    float& to_p = s.of[band / 2][column][band % 2 * 2 + parity];
                    float& to_ds = dp.of[band / 2][column][band % 2 * 2 + parity];
                    const PairGradient x = pair(masked, to_p, to_ds, now.query[at], band, at, of);
                    to_p = x.p;
                    to_ds = x.ds;
                });
            };
            if (not_all)
                pairs(std::true_type{});
            else
                pairs(std::false_type{});
        }
        // A pair is shortest of registers above; the products below hide the wait as well.
        if (ahead && Size::paired) coming = fetch(next_head, next_query0);
        if constexpr (Size::paired) {
            if (some) multiply_rounded(dv, rounded, second ? now.q : now.dout, 0);
        } else if (some) {
            multiply_scores(dv, s, now.dout, channel0, a.channels);
            multiply_scores(dk, dp, now.q, channel0, a.channels);
        }
        if (forgets && b.dforget && (!more || next_head != head)) write_columns(head);
        if (!more) break;
        if (forgets && next_head != head) read_own_sums(next_head);
        head = next_head;
        query0 = next_query0;
        if (Size::stages == 2) {
            put(next, coming);
        } else {
            __syncthreads();
            start(next, head, query0);
            put(next, fetch(head, query0));
        }
    }
    const auto write = [&](const View<T>& to, const Fragments<m, c>& from, float factor) {
#pragma unroll
        for (int band = 0; band < 2 * m; ++band) {
            const int key = warp_key + 8 * band + g;
            if (key >= a.length) continue;
            T* row = to.at(static_cast<int64_t>(sequence) * a.length + key,
                           static_cast<int64_t>(kv_head) * a.channels);
#pragma unroll
            for (int x = 0; x < c; ++x) {
                const float(&of)[4] = from.of[band / 2][x];
                const int e = band % 2 * 2;
                store_channels(row, channel0 + 8 * x + 2 * t, a.channels, of[e] * factor, of[e + 1] * factor,
                               b.pairs);
            }
        }
    };
    const float scale = rest_of_slope<mode>(a.scale, 1.0f);
    if constexpr (Size::paired) {
        write(second ? b.dk : b.dv, dv, second ? scale : 1.0f);
    } else {
        write(b.dk, dk, scale);
        write(b.dv, dv, 1.0f);
    }
}

}  // namespace longreach::cuda
