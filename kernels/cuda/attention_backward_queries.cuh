// The query pass of attention's backward: dQ, the gradients of row factors, and the other half of dc.
#pragma once

#include "kernels/cuda/attention_backward.cuh"

namespace longreach::cuda {

template <class T, int D, ScoreMode mode>
struct QueryPass : Exchanges<QueryTiles<T, D, mode>> {
    using Size = QueryTiles<T, D, mode>;
    struct Own {
        HeadTile<T, D, Size::own> q, dout;
    };
    struct Met {
        HeadTile<T, D, Size::met> k, v;
    };
    struct Apart {
        Own own;
        Met met[Size::stages];
    };
    union OneAfterTheOther {  // pairs of warps take their rows into registers first
        Own own;
        Met met[Size::stages];
    };
    std::conditional_t<Size::paired, OneAfterTheOther, Apart> tiles;
    QueryTerms query[Size::own];
    int first[Size::own];
    struct Stage {
        TableSlice<Size::own, Size::met> table;
        ForgetSums<mode, Size::met> forget;  // of keys
    } stage[Size::stages];
};

// A block of the query pass: it owns a tile of queries of one head, and meets the keys that they see.
template <class T, int D, ScoreMode mode>
struct QueryBlock {
    using Pass = QueryPass<T, D, mode>;
    using Size = QueryTiles<T, D, mode>;
    using Stage = typename Pass::Stage;
    using Met = typename Pass::Met;
    // Channels of dq per warp, in groups of 8.
    static constexpr int m = Size::m, n = Size::met / 8, c = D / 8 / Size::sharing;

    const Backward<T>& b;
    const AttentionInput<T>& a = b.in;
    Pass& tiles;
    const int thread = static_cast<int>(threadIdx.x), g = thread % 32 / 4, t = thread % 4;
    const int sharers = thread / 32 / Size::sharing, warp0 = sharers * 16 * m;
    const bool second = Size::paired && thread / 32 % 2 == 1;  // of a pair: dP, not S
    const int channel0 = second ? 8 * c : 0;
    const bool tables = has_table<mode>(a), forgets = has_forget<mode>(a);
    int sequence, head, kv_head, query0, warp_query;
    int warp_first, warp_last;  // first visible keys of the warp's first and last query
    float2 own_sum[2 * m] = {};
    float dfactor[2 * m] = {}, drow[2 * m] = {};  // drow: sums of dY

    DEVICE QueryBlock(const Backward<T>& b, Pass& tiles) : b(b), tiles(tiles) {
        // Late queries see most keys: their blocks come first.
        const unsigned query_tiles = static_cast<unsigned>((a.length + Size::own - 1) / Size::own);
        unsigned index = blockIdx.x;
        query0 = static_cast<int>(query_tiles - 1 - index % query_tiles) * Size::own;
        index /= query_tiles;
        head = static_cast<int>(index % static_cast<unsigned>(a.heads));
        sequence = static_cast<int>(index / static_cast<unsigned>(a.heads));
        kv_head = head / (a.heads / a.kv_heads);
        warp_query = query0 + warp0;
        warp_first = first_of(warp_query);
        warp_last = first_of(warp_query + 16 * m - 1);
    }
    DEVICE int first_of(int i) const { return a.first_visible(sequence, i < a.length ? i : a.length - 1); }
    DEVICE int last_query() const {
        return query0 + Size::own < a.length ? query0 + Size::own - 1 : a.length - 1;
    }

    DEVICE void write_own_terms() {
        if (thread < Size::own) {
            tiles.query[thread] = query_terms<mode>(b, sequence, head, query0 + thread);
            tiles.first[thread] = first_of(query0 + thread);
        }
        if (!forgets) return;
#pragma unroll
        for (int band = 0; band < 2 * m; ++band)
            own_sum[band] = split_sum(forget_sum(a, sequence, head, warp_query + 8 * band + g));
    }
    DEVICE void start_own() const {
        auto& own = tiles.tiles.own;
        load_tile<Size::threads>(own.q, a.head(a.q, sequence, head), query0);
        load_tile<Size::threads>(own.dout, a.head(b.dout, sequence, head), query0);
    }
    DEVICE void start(int stage, int key0) const {
        Met& to = tiles.tiles.met[stage];
        load_tile<Size::threads>(to.k, a.head(a.k, sequence, kv_head), key0);
        load_tile<Size::threads>(to.v, a.head(a.v, sequence, kv_head), key0);
        cp_async_commit();
    }
    // A tile's terms other than its rows, in transit from device to shared memory.
    struct Share {
        TableAhead<Size::threads, Size::own, Size::met> table;
        double sum;
    };
    DEVICE Share fetch(int key0) const {
        Share x{};
        if (tables) x.table.read(a, head, query0, key0);
        if (forgets && thread < Size::met) x.sum = forget_sum(a, sequence, head, key0 + thread);
        return x;
    }
    DEVICE void put(Stage& to, const Share& x) const {
        if (tables) x.table.write(to.table);
        if (forgets && thread < Size::met) to.forget.at(thread) = split_sum(x.sum);
    }

    // A tile of keys that is met.
    struct Meeting {
        const Met& rows;
        Stage& with;
        int key0;
    };
    // Whether this warp's queries see some key of the tile.
    DEVICE bool some(int key0) const {
        return key0 < warp_query + 16 * m && key0 + Size::met > warp_first && warp_query < a.length;
    }
    // And whether not all.
    DEVICE bool not_all(int key0) const {
        return key0 + Size::met - 1 > warp_query || warp_last > key0;
    }
    // Of the table by distance: entry key - query + own - 1.
    DEVICE float2 entry(const Meeting& now, int x, int parity) const {
        return tables ? now.with.table.entry[8 * x + parity + 2 * t - g - warp0 + Size::own - 1]
                      : float2{1.0f, 0.0f};
    }
    // Of a pair s = <q, k> and dp of queries `band` and key `column` of the tile.
    template <class Hidden>
    DEVICE PairGradient pair(Hidden, const Meeting& now, float s, float dp, const QueryTerms& query, int band,
                             int column, float2 of_distance) {
        const int row = warp0 + 8 * band + g;
        bool seen = true;
        if constexpr (Hidden::value)
            seen = visible(query0 + row, now.key0 + column, tiles.first[row], a.length);
        const float forgotten = forgets ? difference(own_sum[band], now.with.forget.at(column)) : 0.0f;
        const PairGradient x = differentiate<mode>(a, s, dp, query, of_distance, forgotten, seen);
        if (forgets) drow[band] += x.dy;
        return x;
    }
    // What a pair adds to the gradient of the factor.
    static DEVICE float of_factor(const PairGradient& x) {
        return mode == ScoreMode::general ? x.dy * x.gain * x.score : x.ds * x.score;
    }

    // Of a pair of warps, which keep q or dO in registers: dS.
    template <class Kept>
    DEVICE void exchange_scores(Rounded<m, n>& rounded, const Kept& kept, const Meeting& now, bool hidden) {
        Fragments<m, n> s;  // S, or dP
        s.clear();
        multiply_rows(s, kept, second ? now.rows.v : now.rows.k);
        auto& exchange = tiles.exchange[sharers];
        if (second) {
            exchange.put_dp(s);
            tell_pair<Handed::dp>(sharers);
            wait_for_pair<Handed::ds>(sharers);
            exchange.get_ds(rounded);
            return;
        }
        // Mode general has no registers to keep the terms of the rows.
        constexpr bool keeps = mode != ScoreMode::general;
        [[maybe_unused]] QueryTerms kept_terms[keeps ? 2 * m : 1];
        if constexpr (keeps) {
#pragma unroll
            for (int band = 0; band < 2 * m; ++band) kept_terms[band] = tiles.query[warp0 + 8 * band + g];
        }
        const auto terms = [&](int band) {
            if constexpr (keeps)
                return kept_terms[band];
            else
                return tiles.query[warp0 + 8 * band + g];
        };
        wait_for_pair<Handed::dp>(sharers);
        const auto entries = [&](int x, int parity) { return entry(now, x, parity); };
        const auto pairs = [&](auto some_hidden) {
            const auto nothing = [](int) {};
            along_columns<m, n>(entries, nothing, [&](int band, int column, const float2(&of)[2]) {
                const float(&of_s)[4] = s.of[band / 2][column];
                const float2 dp = exchange.dp[band][column][thread % 32];
                const int e = band % 2 * 2, at = 8 * column + 2 * t;
                const QueryTerms query = terms(band);
                const PairGradient low = pair(some_hidden, now, of_s[e], dp.x, query, band, at, of[0]);
                const PairGradient high =
                    pair(some_hidden, now, of_s[e + 1], dp.y, query, band, at + 1, of[1]);
                dfactor[band] += of_factor(low);
                dfactor[band] += of_factor(high);
                rounded.of[band][column] = pack_bf16(low.ds, high.ds);
                exchange.ds[band][column][thread % 32] = rounded.of[band][column];
            });
        };
        for_sight(hidden, pairs);
        tell_pair<Handed::ds>(sharers);
    }
    // Of one warp: dS in dp.
    DEVICE void find_scores(Fragments<m, n>& dp, const Meeting& now, bool hidden) {
        Fragments<m, n> s;  // S; in mode general then the terms of df
        const auto& own = tiles.tiles.own;
        s.clear();
        dp.clear();
        multiply_rows(s, own.q, warp0, now.rows.k, a.channels);
        multiply_rows(dp, own.dout, warp0, now.rows.v, a.channels);
        const auto entries = [&](int x, int parity) { return entry(now, x, parity); };
        const auto pairs = [&](auto some_hidden) {
            along_diagonals<m, n>(entries, [&](int band, int column, int parity, float2 of) {
                float& of_s = s.of[band / 2][column][band % 2 * 2 + parity];
                float& of_dp = dp.of[band / 2][column][band % 2 * 2 + parity];
                const PairGradient x = pair(some_hidden, now, of_s, of_dp, tiles.query[warp0 + 8 * band + g],
                                            band, 8 * column + 2 * t + parity, of);
                if (mode == ScoreMode::general) of_s = of_factor(x);
                of_dp = x.ds;
            });
        };
        for_sight(hidden, pairs);
        if (!b.dfactor) return;
#pragma unroll
        for (int band = 0; band < 2 * m; ++band)
#pragma unroll
            for (int column = 0; column < n; ++column)
#pragma unroll
                for (int parity = 0; parity < 2; ++parity) {
                    const float of_s = s.of[band / 2][column][band % 2 * 2 + parity];
                    const float of_ds = dp.of[band / 2][column][band % 2 * 2 + parity];
                    dfactor[band] += mode == ScoreMode::general ? of_s : of_ds * of_s;
                }
    }

    DEVICE void write(const Fragments<m, c>& dq) const {
#pragma unroll
        for (int band = 0; band < 2 * m; ++band) {
            const int i = warp_query + 8 * band + g;
            const int64_t row = static_cast<int64_t>(sequence) * a.length + i;
            if (b.dfactor && !second) {
                const float total = lanes_sum(dfactor[band], 4);
                if (t == 0 && i < a.length)
                    b.dfactor[head * b.dfactor_step + row] = rest_of_slope<mode>(a.scale, 1.0f) * total;
            }
            if (forgets && b.dforget && !second) {
                const float total = lanes_sum(drow[band], 4);
                if (t == 0 && i < a.length) b.dforget[head * b.dforget_step + row] += total;
            }
            if (i >= a.length) continue;
            const float rest = rest_of_slope<mode>(a.scale, tiles.query[warp0 + 8 * band + g].factor);
            T* to = b.dq.at(row, static_cast<int64_t>(head) * a.channels);
            // Not store_band(): with it the plain form takes 228 registers in place of 168 on sm_90, and so two blocks
            // of a multiprocessor in place of three.
#pragma unroll
            for (int x = 0; x < c; ++x) {
                const float(&of)[4] = dq.of[band / 2][x];
                const int e = band % 2 * 2;
                store_channels(to, channel0 + 8 * x + 2 * t, a.channels, of[e] * rest, of[e + 1] * rest,
                               b.pairs);
            }
        }
    }
};

template <class T, int D, ScoreMode mode>
KERNEL((QueryTiles<T, D, mode>::threads))
void query_kernel(Backward<T> b) {
    using Block = QueryBlock<T, D, mode>;
    using Size = typename Block::Size;
    using Stage = typename Block::Stage;
    using Share = typename Block::Share;
    constexpr int m = Block::m, n = Block::n, c = Block::c;
    auto& tiles = shared<typename Block::Pass>();
    Block block(b, tiles);
    const int last_query = block.last_query();
    block.write_own_terms();
    Fragments<m, c> dq;
    dq.clear();
    int key0 = block.first_of(block.query0) / Size::met * Size::met;
    block.start_own();
    [[maybe_unused]] std::conditional_t<Size::paired, RowFragments<m, D>, int> kept;  // of a pair: q, or dO
    if constexpr (Size::paired) {
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        kept.load(block.second ? tiles.tiles.own.dout : tiles.tiles.own.q, block.warp0);
        __syncthreads();  // everybody has them
    }
    block.start(0, key0);
    block.put(tiles.stage[0], block.fetch(key0));
    for (int step = 0;; ++step) {
        const int this_stage = step % Size::stages, next_stage = (step + 1) % Size::stages;
        const auto& met = tiles.tiles.met[this_stage];
        Stage &now = tiles.stage[this_stage], &next = tiles.stage[next_stage];
        const bool more = key0 + Size::met <= last_query;
        cp_async_wait<0>();
        __syncthreads();  // this tile is there, and nobody reads the one before
        Share coming{};
        if (Size::stages == 2 && more) {
            block.start(next_stage, key0 + Size::met);
            coming = block.fetch(key0 + Size::met);
        }
        if (block.some(key0)) {
            const bool hidden = block.not_all(key0);
            const typename Block::Meeting meeting{met, now, key0};
            if constexpr (Size::paired) {
                Rounded<m, n> rounded;
                block.exchange_scores(rounded, kept, meeting, hidden);
                multiply_rounded(dq, rounded, met.k, block.channel0);
            } else {
                Fragments<m, n> dp;
                block.find_scores(dp, meeting, hidden);
                multiply_scores(dq, dp, met.k, 0, b.in.channels);
            }
        }
        if (!more) break;
        key0 += Size::met;
        if (Size::stages == 2) {
            block.put(next, coming);
        } else {
            __syncthreads();
            block.start(next_stage, key0);
            block.put(next, block.fetch(key0));
        }
    }
    block.write(dq);
}

}  // namespace longreach::cuda
