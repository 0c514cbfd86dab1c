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

// A block of the key pass: it owns a tile of keys of one group of heads, and meets the queries that see them, head by head.
template <class T, int D, ScoreMode mode>
struct KeyBlock {
    using Pass = KeyPass<T, D, mode>;
    using Size = KeyTiles<T, D, mode>;
    using Stage = typename Pass::Stage;
    static constexpr int m = Size::m, n = Size::met / 8, c = Pass::slice / 8;

    const Backward<T>& b;
    const AttentionInput<T>& a = b.in;
    Pass& tiles;
    const int thread = static_cast<int>(threadIdx.x), g = thread % 32 / 4, t = thread % 4;
    const int sharers = thread / 32 / Size::sharing, warp0 = sharers * 16 * m;
    const bool second = Size::paired && thread / 32 % 2 == 1;  // of a pair: dP and dK, not S and dV
    const bool tables = has_table<mode>(a), forgets = has_forget<mode>(a);
    int channel0, key0, kv_head, sequence;
    int warp_key;
    float2 own_sum[2 * m] = {};
    float dcolumn[2 * m] = {};  // sums of dY over the queries of a head

    DEVICE KeyBlock(const Backward<T>& b, Pass& tiles) : b(b), tiles(tiles) {
        // Early keys are seen by most queries: their blocks come first.
        unsigned index = blockIdx.x;
        channel0 = static_cast<int>(index % Pass::slices) * Pass::slice;
        index /= Pass::slices;
        const unsigned key_tiles = static_cast<unsigned>((a.length + Size::own - 1) / Size::own);
        key0 = static_cast<int>(index % key_tiles) * Size::own;
        index /= key_tiles;
        kv_head = static_cast<int>(index % static_cast<unsigned>(a.kv_heads));
        sequence = static_cast<int>(index / static_cast<unsigned>(a.kv_heads));
        warp_key = key0 + warp0;
    }
    DEVICE int end() const {
        const int last_key = key0 + Size::own < a.length ? key0 + Size::own - 1 : a.length - 1;
        return end_of_sight(a, sequence, last_key, key0);
    }

    DEVICE void start_own() const {
        load_tile<Size::threads>(tiles.k, a.head(a.k, sequence, kv_head), key0);
        load_tile<Size::threads>(tiles.v, a.head(a.v, sequence, kv_head), key0);
    }
    DEVICE void start(Stage& to, int head, int query0) const {
        load_tile<Size::threads>(to.q, a.head(a.q, sequence, head), query0);
        load_tile<Size::threads>(to.dout, a.head(b.dout, sequence, head), query0);
        cp_async_commit();
    }
    // A tile's terms other than its rows, in transit from device to shared memory.
    struct Share {
        QueryTerms query;
        int first;
        TableAhead<Size::threads, Size::met, Size::own> table;
        double sum;
    };
    DEVICE Share fetch(int head, int query0) const {
        Share x{};
        if (thread < Size::met) {
            const int i = query0 + thread;
            x.query = query_terms<mode>(b, sequence, head, i);
            x.first = a.first_visible(sequence, i < a.length ? i : a.length - 1);
        }
        if (tables) x.table.read(a, head, query0, key0);
        if (forgets && thread < Size::met) x.sum = forget_sum(a, sequence, head, query0 + thread);
        return x;
    }
    DEVICE void put(Stage& to, const Share& x) const {
        if (thread < Size::met) {
            to.query[thread] = x.query;
            to.first[thread] = x.first;
        }
        if (tables) x.table.write(to.table);
        if (forgets && thread < Size::met) to.forget.at(thread) = split_sum(x.sum);
    }
    DEVICE void read_own_sums(int head) {
#pragma unroll
        for (int band = 0; band < 2 * m; ++band)
            own_sum[band] = split_sum(forget_sum(a, sequence, head, warp_key + 8 * band + g));
    }

    // A tile of queries that is met.
    struct Meeting {
        Stage& with;
        int query0;
    };
    // Whether this warp's keys are seen by some query of the tile.
    DEVICE bool some(const Meeting& now) const {
        return now.query0 + Size::met > warp_key && now.with.first[0] < warp_key + 16 * m &&
               warp_key < a.length;
    }
    // And whether not by all.
    DEVICE bool not_all(const Meeting& now) const {
        return now.query0 < warp_key + 16 * m - 1 || now.with.first[Size::met - 1] > warp_key;
    }
    // Of the table by distance: entry key - query + met - 1.
    DEVICE float2 entry(const Meeting& now, int x, int parity) const {
        return tables ? now.with.table.entry[warp0 - (8 * x + parity + 2 * t - g) + Size::met - 1]
                      : float2{1.0f, 0.0f};
    }
    // Of a pair s = <k, q> and dp of keys `band` and query `at` of the tile.
    template <class Masked>
    DEVICE PairGradient pair(Masked, const Meeting& now, float s, float dp, const QueryTerms& query, int band,
                             int at, float2 of_distance) {
        bool seen = true;
        if constexpr (Masked::value)
            seen = visible(now.query0 + at, warp_key + 8 * band + g, now.with.first[at], a.length);
        const float forgotten = forgets ? difference(now.with.forget.at(at), own_sum[band]) : 0.0f;
        PairGradient x = differentiate<mode>(a, s, dp, query, of_distance, forgotten, seen);
        if (forgets) dcolumn[band] += x.dy;
        if (mode != ScoreMode::general) x.ds *= query.factor;
        return x;
    }

    // Of a pair of warps: P^T, or dS^T.
    DEVICE void exchange_scores(Rounded<m, n>& rounded, const Meeting& now, bool hidden) {
        Fragments<m, n> s;  // S^T, or dP^T
        s.clear();
        multiply_rows(s, second ? tiles.v : tiles.k, warp0, second ? now.with.dout : now.with.q, a.channels);
        auto& exchange = tiles.exchange[sharers];
        if (second) {
            exchange.put_dp(s);
            tell_pair<Handed::dp>(sharers);
            wait_for_pair<Handed::ds>(sharers);
            exchange.get_ds(rounded);
            return;
        }
        wait_for_pair<Handed::dp>(sharers);
        const auto entries = [&](int x, int parity) { return entry(now, x, parity); };
        const auto pairs = [&](auto some_hidden) {
            QueryTerms query[2];
            const auto read_queries = [&](int column) {
                query[0] = now.with.query[8 * column + 2 * t];
                query[1] = now.with.query[8 * column + 2 * t + 1];
            };
            along_columns<m, n>(entries, read_queries, [&](int band, int column, const float2(&of)[2]) {
                const float(&of_s)[4] = s.of[band / 2][column];
                const float2 of_dp = exchange.dp[band][column][thread % 32];
                const int e = band % 2 * 2, at = 8 * column + 2 * t;
                const PairGradient low = pair(some_hidden, now, of_s[e], of_dp.x, query[0], band, at, of[0]);
                const PairGradient high =
                    pair(some_hidden, now, of_s[e + 1], of_dp.y, query[1], band, at + 1, of[1]);
                rounded.of[band][column] = pack_bf16(low.p, high.p);
                exchange.ds[band][column][thread % 32] = pack_bf16(low.ds, high.ds);
            });
        };
        for_sight(hidden, pairs);
        tell_pair<Handed::ds>(sharers);
    }
    // Of one warp: P^T in s, dS^T in dp.
    DEVICE void find_scores(Fragments<m, n>& s, Fragments<m, n>& dp, const Meeting& now, bool hidden) {
        s.clear();
        dp.clear();
        multiply_rows(s, tiles.k, warp0, now.with.q, a.channels);
        multiply_rows(dp, tiles.v, warp0, now.with.dout, a.channels);
        const auto entries = [&](int x, int parity) { return entry(now, x, parity); };
        const auto pairs = [&](auto some_hidden) {
            along_diagonals<m, n>(entries, [&](int band, int column, int parity, float2 of) {
                const int at = 8 * column + 2 * t + parity;
                float& to_p = s.of[band / 2][column][band % 2 * 2 + parity];
                float& to_ds = dp.of[band / 2][column][band % 2 * 2 + parity];
                const PairGradient x = pair(some_hidden, now, to_p, to_ds, now.with.query[at], band, at, of);
                to_p = x.p;
                to_ds = x.ds;
            });
        };
        for_sight(hidden, pairs);
    }

    // dc of the keys, from the queries of a head.
    DEVICE void write_columns(int head) {
#pragma unroll
        for (int band = 0; band < 2 * m; ++band) {
            const float total = lanes_sum(dcolumn[band], 4);
            const int key = warp_key + 8 * band + g;
            dcolumn[band] = 0.0f;
            if (t == 0 && channel0 == 0 && !second && key < a.length)
                b.dforget[head * b.dforget_step + static_cast<int64_t>(sequence) * a.length + key] = -total;
        }
    }
    DEVICE void write(const View<T>& to, const Fragments<m, c>& from, float factor) const {
#pragma unroll
        for (int band = 0; band < 2 * m; ++band) {
            const int key = warp_key + 8 * band + g;
            if (key >= a.length) continue;
            T* row = to.at(static_cast<int64_t>(sequence) * a.length + key,
                           static_cast<int64_t>(kv_head) * a.channels);
            store_band(b, row, from, band, channel0, factor);
        }
    }
};

template <class T, int D, ScoreMode mode>
KERNEL((KeyTiles<T, D, mode>::threads))
void key_kernel(Backward<T> b) {
    using Block = KeyBlock<T, D, mode>;
    using Pass = typename Block::Pass;
    using Size = typename Block::Size;
    using Stage = typename Block::Stage;
    using Share = typename Block::Share;
    constexpr int m = Block::m, n = Block::n, c = Block::c;
    auto& tiles = shared<Pass>();
    Block block(b, tiles);
    const AttentionInput<T>& a = b.in;
    const int end = block.end(), group = a.heads / a.kv_heads;
    int head = block.kv_head * group, query0 = block.key0;
    if (block.forgets) block.read_own_sums(head);
    [[maybe_unused]] Fragments<m, c> dv, dk;  // each warp of a pair has one of the two, in dv
    dv.clear();
    if constexpr (!Size::paired) dk.clear();
    block.start_own();
    block.start(tiles.stage[0], head, query0);
    block.put(tiles.stage[0], block.fetch(head, query0));
    for (int step = 0;; ++step) {
        Stage& now = tiles.stage[step % Size::stages];
        Stage& next = tiles.stage[(step + 1) % Size::stages];
        int next_head = head, next_query0 = query0 + Size::met;
        if (next_query0 >= end) {
            next_query0 = block.key0;
            ++next_head;
        }
        const bool more = next_head < (block.kv_head + 1) * group;
        cp_async_wait<0>();
        __syncthreads();  // this tile is there, and nobody reads the one before
        const bool ahead = Size::stages == 2 && more;
        Share coming{};
        if (ahead) {
            block.start(next, next_head, next_query0);
            if (!Size::paired) coming = block.fetch(next_head, next_query0);
        }
        const typename Block::Meeting meeting{now, query0};
        const bool some = block.some(meeting), hidden = block.not_all(meeting);
        if constexpr (Size::paired) {
            Rounded<m, n> rounded;
            if (some) block.exchange_scores(rounded, meeting, hidden);
            // A pair is shortest of registers above; the products below hide the wait as well.
            if (ahead) coming = block.fetch(next_head, next_query0);
            if (some) multiply_rounded(dv, rounded, block.second ? now.q : now.dout, 0);
        } else if (some) {
            Fragments<m, n> s, dp;
            block.find_scores(s, dp, meeting, hidden);
            multiply_scores(dv, s, now.dout, block.channel0, a.channels);
            multiply_scores(dk, dp, now.q, block.channel0, a.channels);
        }
        if (block.forgets && b.dforget && (!more || next_head != head)) block.write_columns(head);
        if (!more) break;
        if (block.forgets && next_head != head) block.read_own_sums(next_head);
        head = next_head;
        query0 = next_query0;
        if (Size::stages == 2) {
            block.put(next, coming);
        } else {
            __syncthreads();
            block.start(next, head, query0);
            block.put(next, block.fetch(head, query0));
        }
    }
    const float scale = rest_of_slope<mode>(a.scale, 1.0f);
    if constexpr (Size::paired) {
        block.write(block.second ? b.dk : b.dv, dv, block.second ? scale : 1.0f);
    } else {
        block.write(b.dk, dk, scale);
        block.write(b.dv, dv, 1.0f);
    }
}

}  // namespace longreach::cuda
