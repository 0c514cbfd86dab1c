// Gradients of attention. Per visible pair of a query i and a key j, with P = exp(y - lse) rebuilt tile by
// tile from the saved lse (attention_spec.h says how y comes from s = <q_i, k_j>):
//
//   delta_i = <dO_i, O_i>     dY = P (<dO_i, v_j> - delta_i)     dS = dY dy/ds
//   dV = P^T dO     dK = dS^T Q     dQ = dS K     df_i = sum over j of dY gain z     (row factors)
//   dgain(t) = sum of dY f z and dbias(t) = sum of dY over i - j = t
//   dsink = -sum over i of exp(sink - lse_i) delta_i
//   dc_i = sum over j of dY_ij - sum over i' of dY_i'i     (forget sums)
//
// q, o, dO, dQ [N, H d]; k, v, dK, dV [N, G d]; lse, delta, df [H, N]. Reads q, k, v, o, dO and lse; nothing
// of size T x T is stored. Both passes compute S and dP: 14 d FLOPs and two exp2 per visible pair; heads of
// more than 128 channels and the gradients of distance tables compute them once more, 4 d each. Bytes per
// token at least, e those of an element: o and dO for delta, 2 H d e; q, dO, k, v and dK, dV in the key pass,
// (2 H + 4 G) d e; q, dO, k, v and dQ in the query pass, (3 H + 2 G) d e; lse and delta 20 H in all. Every
// tile of keys reads q and dO of the queries that see it, every tile of queries k and v, mostly from L2.
//
//   delta pass    a few lanes per (row, head)
//   key pass      a block per (tile of keys, key/value head, sequence[, half of 256 channels]): rows of the
//                 fragments are keys, P^T and dS^T go from registers into dV and dK, summed over the queries
//                 of all heads of the group in order; the second half of dc. bf16 heads of 128 channels, but for mode
//                 forget: two warps share their rows in this pass and the next (Tiles)
//   query pass    a block per (tile of queries, head, sequence): dQ and df, the first half of dc, which is 0 only
//                 without sinks and but for the rounding of delta (kernels/cpu/attention_backward.cpp)
//   distance pass only where asked for: a block per (diagonal of tiles, head, sequence). Query and key tile
//                 move together, so an element of the fragments keeps its distance; sums along the diagonals
//                 of a tile go to a slab, which a last kernel adds up by distance in f64.
//
// Only the sums of the slab and the sinks cross blocks; their partials are added in fixed order.
#include <algorithm>

#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/workspaces.h"

namespace longreach::cuda {
namespace {

// Arguments of all passes.
template <class T>
struct Backward {
    AttentionInput<T> in;
    View<const T> dout;
    View<T> dq, dk, dv;
    const float* lse;  // [H, N]
    int64_t lse_step;
    float* delta;    // [H, N]
    float* dfactor;  // [H, N] or null
    int64_t dfactor_step;
    float* dforget;  // [H, N] or null
    int64_t dforget_step;
    bool pairs;  // dq, dk, dv: two neighbouring channels are one aligned access
};

// --- delta and sinks

template <class T, int n>
KERNEL(256)
void delta_kernel(Backward<T> b, View<const T> o, int lanes) {
    const int64_t tokens = b.in.tokens(), pairs = tokens * b.in.heads;
    const int lane = static_cast<int>(threadIdx.x) % lanes, each = 256 / lanes;
    const int64_t pair = static_cast<int64_t>(blockIdx.x) * each + static_cast<int>(threadIdx.x) / lanes;
    const int64_t row = pair / b.in.heads, head = pair % b.in.heads;
    float sum = 0.0f;
    if (pair < pairs)
        for (int c = lane * n; c < b.in.channels; c += lanes * n) {
            const Pack<n> x = load<n>(b.dout.at(row, head * b.in.channels + c));
            const Pack<n> y = load<n>(o.at(row, head * b.in.channels + c));
#pragma unroll
            for (int k = 0; k < n; ++k) sum = fmaf(x[k], y[k], sum);
        }
    sum = lanes_sum(sum, lanes);
    if (pair < pairs && lane == 0) b.delta[head * tokens + row] = sum;
}

// partials [H, blocks]: sum of exp(sink - lse) delta over a block of rows. The share is at most 1.
KERNEL(256)
void sink_kernel(double* partials, const float* sink, const float* lse, int64_t lse_step, const float* delta,
                 int64_t tokens) {
    auto& results = shared<WarpResults<double, 256>>();
    const int64_t head = blockIdx.y;
    const Range rows = piece_of(tokens, gridDim.x, blockIdx.x);
    double sum = 0.0;
    for (int64_t n = rows.begin + threadIdx.x; n < rows.end; n += 256)
        sum += static_cast<double>(expf(fminf(0.0f, sink[head] - lse[head * lse_step + n])) *
                                   delta[head * tokens + n]);
    sum = block_sum<256>(sum, results);
    if (threadIdx.x == 0) partials[head * gridDim.x + blockIdx.x] = sum;
}

// --- pairs

// Shared by the pairs of one query; a query past the end has P = 2^-inf = 0.
struct alignas(16) QueryTerms {
    float multiplier;  // y2 = gain multiplier s + bias; mode general: the row's square instead
    float factor, lse2, delta;
};
template <ScoreMode mode, class T>
DEVICE QueryTerms query_terms(const Backward<T>& b, int sequence, int head, int i) {
    if (i >= b.in.length) return {0.0f, 0.0f, HUGE_VALF, 0.0f};
    const ScoreRow row = score_row(b.in, sequence, head, i);
    const int64_t n = static_cast<int64_t>(sequence) * b.in.length + i;
    return {mode == ScoreMode::general ? row.square : b.in.scale * row.factor * log2_e, row.factor,
            b.lse[head * b.lse_step + n] * log2_e, b.delta[head * b.in.tokens() + n]};
}

struct PairGradient {
    float p, dy;
    float ds;     // other modes than general: dY gain, without the row's scale f; general: dY dy/ds
    float score;  // mode general: z; else s
    float gain;
};
template <ScoreMode mode, class T>
DEVICE PairGradient differentiate(const AttentionInput<T>& a, float s, float dp, const QueryTerms& query,
                                  float2 entry, float forgotten, bool seen) {
    PairGradient x;
    float slope;
    if constexpr (mode == ScoreMode::general) {
        const Score y = score<mode>(a, s, {query.factor, query.multiplier}, entry, forgotten);
        x.p = exp2_approx(y.y2 - query.lse2);
        x.score = y.z;
        x.gain = y.gain;
        slope = y.slope;
    } else if constexpr (mode == ScoreMode::table) {
        x.p = exp2_approx(fmaf(entry.x, s * query.multiplier, entry.y) - query.lse2);
        x.score = s;
        x.gain = slope = entry.x;
    } else {
        const float rest = mode == ScoreMode::forget ? forgotten - query.lse2 : -query.lse2;
        x.p = exp2_approx(fmaf(s, query.multiplier, rest));
        x.score = s;
        x.gain = slope = 1.0f;
    }
    x.p = seen ? x.p : 0.0f;
    x.dy = x.p * (dp - query.delta);
    x.dy = seen ? x.dy : 0.0f;  // even where dp is not a number
    x.ds = x.dy * slope;
    return x;
}
// The factor that the products with dS still lack.
template <ScoreMode mode>
DEVICE float rest_of_slope(float scale, float factor) {
    return mode == ScoreMode::general ? 1.0f : scale * factor;
}

// body(band, n, parity, entry) for the elements 2 (band % 2) + parity of fragments [band / 2][n], row 8 band
// + g, column 8 n + 2 t + parity, so that elements of one distance follow each other: entry(x, parity) is
// read once per diagonal, for column - row = 8 x + parity + 2 t - g.
template <int M, int N, class Entry, class Body>
DEVICE void along_diagonals(Entry entry, Body body) {
#pragma unroll
    for (int x = 1 - 2 * M; x < N; ++x) {
        const float2 of[2] = {entry(x, 0), entry(x, 1)};
#pragma unroll
        for (int band = 0; band < 2 * M; ++band) {
            if (x + band < 0 || x + band >= N) continue;
#pragma unroll
            for (int parity = 0; parity < 2; ++parity) body(band, x + band, parity, of[parity]);
        }
    }
}

// The same elements column by column, for bodies whose column has terms in shared memory that a write in between would
// have them read again: body(band, n, entries), for both parities, after column(n).
template <int M, int N, class Entry, class Column, class Body>
DEVICE void along_columns(Entry entry, Column column, Body body) {
    float2 entries[N + 2 * M - 1][2];
#pragma unroll
    for (int n = 0; n < N; ++n) {
        column(n);
#pragma unroll
        for (int band = 0; band < 2 * M; ++band) {
            float2(&of)[2] = entries[n - band + 2 * M - 1];
            if (band == 0 || n == 0) of[0] = entry(n - band, 0), of[1] = entry(n - band, 1);
            body(band, n, of);
        }
    }
}

// --- the passes over tiles

// Forget sums of the other side's rows; memory only where the mode may have them. A thread keeps those of its
// own rows in registers.
template <ScoreMode mode, int N>
struct ForgetSums {
    float2 of[may_forget<mode> ? N : 1];
    DEVICE float2& at(int i) { return of[may_forget<mode> ? i : 0]; }
};

// A block owns `own` rows of keys (queries), 16 M of them per warp, and meets tiles of `met` queries (keys).
// With room for two tiles in shared memory the next one is copied while this one is computed. Sizes fit the
// registers without a spill; if two shapes do, the one that reads less from shared memory is taken.
//
// paired: two warps have the same 16 M rows. The first computes S and all that follows from a score, the second dP:
// it hands dP over and gets dS back, through shared memory. Each then has half of the sums, dV or dK in the key pass,
// half of the channels of dQ in the query pass. So the sums of 32 rows of 128 channels fit the registers, and an
// operand that comes from shared memory serves two products in place of one.
template <class T, int D, int M, int Met, bool Paired>
struct Tiles {
    static constexpr bool paired = Paired;
    static constexpr int row_bytes = D * static_cast<int>(sizeof(T));
    static constexpr int warps = row_bytes <= 512 ? 4 : 2, threads = 32 * warps;
    static constexpr int sharing = paired ? 2 : 1;  // warps with the same rows
    static constexpr int m = M, own = 16 * m * warps / sharing, met = Met;
    static constexpr int stages = (2 * own + 4 * met) * row_bytes <= 96 * 1024 ? 2 : 1;
    static_assert(own <= threads && met <= threads, "one row of terms per thread");
};
template <class T, int D, ScoreMode mode>  // forget sums and 32 rows are more than the registers hold
inline constexpr bool pairs_of_warps = sizeof(T) == 2 && D == 128 && mode != ScoreMode::forget;
template <class T, int D, ScoreMode mode>
using KeyTiles = Tiles<T, D, pairs_of_warps<T, D, mode> ? 2 : 1,
                       sizeof(T) == 4                          ? 16
                       : D == 64 && mode != ScoreMode::general ? 64
                                                               : 32,
                       pairs_of_warps<T, D, mode>>;
template <class T, int D, ScoreMode mode>
using QueryTiles = Tiles<T, D, (sizeof(T) == 2 && D == 64) || pairs_of_warps<T, D, mode> ? 2 : 1,
                         sizeof(T) == 4 ? 16 : 32, pairs_of_warps<T, D, mode>>;
// Shared memory of a block: 99 KiB is what every architecture from sm_80 on has.
constexpr size_t most_shared = 99 * 1024;

// What two warps with the same rows hand each other of a tile, lane by lane: two neighbours of a row, in Rounded's order.
template <int M, int N>
struct Exchange {
    float2 dp[2 * M][N][32];
    uint32_t ds[2 * M][N][32];
    DEVICE void put_dp(const Fragments<M, N>& from) {
        const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
        for (int band = 0; band < 2 * M; ++band)
#pragma unroll
            for (int n = 0; n < N; ++n) {
                const float(&of)[4] = from.of[band / 2][n];
                dp[band][n][lane] = {of[band % 2 * 2], of[band % 2 * 2 + 1]};
            }
    }
    DEVICE void get_ds(Rounded<M, N>& to) const {
        const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
        for (int band = 0; band < 2 * M; ++band)
#pragma unroll
            for (int n = 0; n < N; ++n) to.of[band][n] = ds[band][n][lane];
    }
};
template <class Size, bool paired = Size::paired>
struct Exchanges {
    Exchange<Size::m, Size::met / 8> exchange[Size::warps / 2];
};
template <class Size>
struct Exchanges<Size, false> {};
// The barriers of a pair of warps, number 0 or 1 of the block: one for dP, one for dS.
enum class Handed { dp, ds };
template <Handed what>
DEVICE void wait_for_pair(int pair) {
    constexpr int first = what == Handed::dp ? 1 : 3;
    if (pair == 0)
        named_sync<first>(64);
    else
        named_sync<first + 1>(64);
}
template <Handed what>
DEVICE void tell_pair(int pair) {
    constexpr int first = what == Handed::dp ? 1 : 3;
    if (pair == 0)
        named_arrive<first>(64);
    else
        named_arrive<first + 1>(64);
}

template <class T>
DEVICE void store_channels(T* row, int channel, int channels, float x, float y, bool pair) {
    if (pair) {
        if (channel >= channels) return;
        if constexpr (std::is_same_v<T, float>)
            *reinterpret_cast<float2*>(row + channel) = float2{x, y};
        else
            *reinterpret_cast<uint32_t*>(row + channel) = pack_bf16(x, y);
        return;
    }
    if (channel < channels) row[channel] = narrow<T>(x);
    if (channel + 1 < channels) row[channel + 1] = narrow<T>(y);
}

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

template <class T, int D, ScoreMode mode>
KERNEL((QueryTiles<T, D, mode>::threads))
void query_kernel(Backward<T> b) {
    using Pass = QueryPass<T, D, mode>;
    using Size = QueryTiles<T, D, mode>;
    using Stage = typename Pass::Stage;
    // Channels of dq per warp, in groups of 8.
    constexpr int m = Size::m, n = Size::met / 8, c = D / 8 / Size::sharing;
    auto& tiles = shared<Pass>();
    const AttentionInput<T>& a = b.in;
    const int thread = static_cast<int>(threadIdx.x), g = thread % 32 / 4, t = thread % 4;
    // Late queries see most keys: their blocks come first.
    const unsigned query_tiles = static_cast<unsigned>((a.length + Size::own - 1) / Size::own);
    unsigned index = blockIdx.x;
    const int query0 = static_cast<int>(query_tiles - 1 - index % query_tiles) * Size::own;
    index /= query_tiles;
    const int head = static_cast<int>(index % static_cast<unsigned>(a.heads));
    const int sequence = static_cast<int>(index / static_cast<unsigned>(a.heads));
    const int kv_head = head / (a.heads / a.kv_heads), sharers = thread / 32 / Size::sharing;
    const int warp0 = sharers * 16 * m, warp_query = query0 + warp0;
    const bool second = Size::paired && thread / 32 % 2 == 1;  // of a pair: dP, not S
    const int channel0 = second ? 8 * c : 0;
    const bool tables = has_table<mode>(a), forgets = has_forget<mode>(a);

    const auto first_of = [&](int i) { return a.first_visible(sequence, i < a.length ? i : a.length - 1); };
    const int last_query = query0 + Size::own < a.length ? query0 + Size::own - 1 : a.length - 1;
    const int warp_first = first_of(warp_query), warp_last = first_of(warp_query + 16 * m - 1);
    if (thread < Size::own) {
        tiles.query[thread] = query_terms<mode>(b, sequence, head, query0 + thread);
        tiles.first[thread] = first_of(query0 + thread);
    }
    float dfactor[2 * m] = {}, drow[2 * m] = {};  // drow: sums of dY

    const auto start = [&](int stage, int key0) {
        auto& to = tiles.tiles.met[stage];
        load_tile<Size::threads>(to.k, a.head(a.k, sequence, kv_head), key0);
        load_tile<Size::threads>(to.v, a.head(a.v, sequence, kv_head), key0);
        cp_async_commit();
    };
    struct Share {
        TableAhead<Size::threads, Size::own, Size::met> table;
        double sum;
    };
    const auto fetch = [&](int key0) {
        Share x{};
        if (tables) x.table.read(a, head, query0, key0);
        if (forgets && thread < Size::met) x.sum = forget_sum(a, sequence, head, key0 + thread);
        return x;
    };
    const auto put = [&](Stage& to, const Share& x) {
        if (tables) x.table.write(to.table);
        if (forgets && thread < Size::met) to.forget.at(thread) = split_sum(x.sum);
    };
    float2 own_sum[2 * m] = {};
    if (forgets) {
#pragma unroll
        for (int band = 0; band < 2 * m; ++band)
            own_sum[band] = split_sum(forget_sum(a, sequence, head, warp_query + 8 * band + g));
    }

    Fragments<m, c> dq;
    dq.clear();
    int key0 = first_of(query0) / Size::met * Size::met;
    auto& own = tiles.tiles.own;
    load_tile<Size::threads>(own.q, a.head(a.q, sequence, head), query0);
    load_tile<Size::threads>(own.dout, a.head(b.dout, sequence, head), query0);
    [[maybe_unused]] std::conditional_t<Size::paired, RowFragments<m, D>, int> kept;  // of a pair: q, or dO
    if constexpr (Size::paired) {
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        kept.load(second ? own.dout : own.q, warp0);
        __syncthreads();  // everybody has them
    }
    start(0, key0);
    put(tiles.stage[0], fetch(key0));
    for (int step = 0;; ++step) {
        const int this_stage = step % Size::stages, next_stage = (step + 1) % Size::stages;
        const auto& met = tiles.tiles.met[this_stage];
        Stage &now = tiles.stage[this_stage], &next = tiles.stage[next_stage];
        const bool more = key0 + Size::met <= last_query;
        cp_async_wait<0>();
        __syncthreads();  // this tile is there, and nobody reads the one before
        Share coming{};
        if (Size::stages == 2 && more) {
            start(next_stage, key0 + Size::met);
            coming = fetch(key0 + Size::met);
        }
        // Whether this warp's queries see some key of the tile, and whether not all.
        const bool some =
            key0 < warp_query + 16 * m && key0 + Size::met > warp_first && warp_query < a.length;
        const bool not_all = key0 + Size::met - 1 > warp_query || warp_last > key0;
        // entry key - query + own - 1
        const auto entry = [&](int x, int parity) {
            return tables ? now.table.entry[8 * x + parity + 2 * t - g - warp0 + Size::own - 1]
                          : float2{1.0f, 0.0f};
        };
        // Of a pair s = <q, k> and dp of queries `band` and key `column` of the tile.
        const auto pair = [&](auto masked, float s, float dp, const QueryTerms& query, int band, int column,
                              float2 of_distance) {
            const int row = warp0 + 8 * band + g;
            bool seen = true;
            if constexpr (decltype(masked)::value)
                seen = visible(query0 + row, key0 + column, tiles.first[row], a.length);
            const float forgotten = forgets ? difference(own_sum[band], now.forget.at(column)) : 0.0f;
            const PairGradient x = differentiate<mode>(a, s, dp, query, of_distance, forgotten, seen);
            if (forgets) drow[band] += x.dy;
            return x;
        };
        // What a pair adds to the gradient of the factor.
        const auto of_factor = [](const PairGradient& x) {
            return mode == ScoreMode::general ? x.dy * x.gain * x.score : x.ds * x.score;
        };
        if (some && Size::paired) {
            if constexpr (Size::paired) {
                Fragments<m, n> s;      // S, or dP
                Rounded<m, n> rounded;  // dS
                s.clear();
                multiply_rows(s, kept, second ? met.v : met.k);
                auto& exchange = tiles.exchange[sharers];
                if (second) {
                    exchange.put_dp(s);
                    tell_pair<Handed::dp>(sharers);
                    wait_for_pair<Handed::ds>(sharers);
                    exchange.get_ds(rounded);
                } else {
                    // Mode general has no registers to keep the terms of the rows.
                    constexpr bool keeps = mode != ScoreMode::general;
                    [[maybe_unused]] QueryTerms kept_terms[keeps ? 2 * m : 1];
                    if constexpr (keeps) {
#pragma unroll
                        for (int band = 0; band < 2 * m; ++band)
                            kept_terms[band] = tiles.query[warp0 + 8 * band + g];
                    }
                    const auto terms = [&](int band) {
                        if constexpr (keeps)
                            return kept_terms[band];
                        else
                            return tiles.query[warp0 + 8 * band + g];
                    };
                    wait_for_pair<Handed::dp>(sharers);
                    const auto pairs = [&](auto masked) {
                        along_columns<m, n>(
                            entry, [](int) {},
                            [&](int band, int column, const float2(&of)[2]) {
                                const float(&of_s)[4] = s.of[band / 2][column];
                                const float2 dp = exchange.dp[band][column][thread % 32];
                                const int e = band % 2 * 2, at = 8 * column + 2 * t;
                                const QueryTerms query = terms(band);
                                const PairGradient low = pair(masked, of_s[e], dp.x, query, band, at, of[0]);
                                const PairGradient high =
                                    pair(masked, of_s[e + 1], dp.y, query, band, at + 1, of[1]);
                                dfactor[band] += of_factor(low);
                                dfactor[band] += of_factor(high);
                                rounded.of[band][column] = pack_bf16(low.ds, high.ds);
                                exchange.ds[band][column][thread % 32] = rounded.of[band][column];
                            });
                    };
                    if (not_all)
                        pairs(std::true_type{});
                    else
                        pairs(std::false_type{});
                    tell_pair<Handed::ds>(sharers);
                }
                multiply_rounded(dq, rounded, met.k, channel0);
            }
        } else if (some) {
            Fragments<m, n> s, dp;  // S (mode general: then the terms of df) and dP, then dS
            s.clear();
            dp.clear();
            multiply_rows(s, own.q, warp0, met.k, a.channels);
            multiply_rows(dp, own.dout, warp0, met.v, a.channels);
            const auto pairs = [&](auto masked) {
                along_diagonals<m, n>(entry, [&](int band, int column, int parity, float2 of) {
                    float& of_s = s.of[band / 2][column][band % 2 * 2 + parity];
                    float& of_dp = dp.of[band / 2][column][band % 2 * 2 + parity];
                    const PairGradient x = pair(masked, of_s, of_dp, tiles.query[warp0 + 8 * band + g], band,
                                                8 * column + 2 * t + parity, of);
                    if (mode == ScoreMode::general) of_s = of_factor(x);
                    of_dp = x.ds;
                });
            };
            if (not_all)
                pairs(std::true_type{});
            else
                pairs(std::false_type{});
            if (b.dfactor) {
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
            multiply_scores(dq, dp, met.k, 0, a.channels);
        }
        if (!more) break;
        key0 += Size::met;
        if (Size::stages == 2) {
            put(next, coming);
        } else {
            __syncthreads();
            start(next_stage, key0);
            put(next, fetch(key0));
        }
    }
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
#pragma unroll
        for (int x = 0; x < c; ++x) {
            const float(&of)[4] = dq.of[band / 2][x];
            const int e = band % 2 * 2;
            store_channels(to, channel0 + 8 * x + 2 * t, a.channels, of[e] * rest, of[e + 1] * rest, b.pairs);
        }
    }
}

// --- gradients of distance tables

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

// to [1 or H, R], entry R - 1 - t of distance t < length, = the sums of all sequences and, in a shared table,
// heads. A distance lies on two diagonals of tiles, or on one. A row of blocks for each row of the table.
KERNEL(256)
void fold_distances_kernel(View<float> to, int64_t columns, const float* slab, int which, int batch,
                           int heads, int length, int edge) {
    const int t = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
    if (t >= length) return;
    const int across = (length + edge - 1) / edge, diagonals = 2 * edge - 1;
    const int row = static_cast<int>(blockIdx.y), number = t / edge, rest = t % edge;
    const bool shared_table = gridDim.y == 1;
    double total = 0.0;
    for (int sequence = 0; sequence < batch; ++sequence)
        for (int head = shared_table ? 0 : row; head < (shared_table ? heads : row + 1); ++head) {
            const int64_t first = (static_cast<int64_t>(sequence) * heads + head) * across;
            const auto sum = [&](int tile, int diagonal) {
                return static_cast<double>(slab[((first + tile) * 2 + which) * diagonals + diagonal]);
            };
            total += sum(number, rest + edge - 1);
            if (rest > 0 && number + 1 < across) total += sum(number + 1, rest - 1);
        }
    *to.at(row, columns - 1 - t) = static_cast<float>(total);
}

// --- host side

template <ScoreMode mode>
inline constexpr std::integral_constant<ScoreMode, mode> constant{};

template <class T, int D, ScoreMode mode>
void launch_distances(const Backward<T>& arguments, const AttentionGradients& gradients, float* slab,
                      Stream stream) {
    using Size = Squares<T, D>;
    using Pass = DistancePass<T, D, mode>;
    static_assert(sizeof(Pass) <= most_shared);
    const AttentionInput<T>& a = arguments.in;
    const unsigned across = blocks_for(a.length, Size::edge);
    const unsigned heads = static_cast<unsigned>(a.batch * a.heads);
    launch(distance_kernel<T, D, mode>, {dim3(across * heads), dim3(Size::threads), sizeof(Pass), stream},
           arguments, slab);
    for (int which = 0; which < 2; ++which) {
        const Tensor& to = which == 0 ? gradients.distance_gain : gradients.distance_bias;
        if (!to) continue;
        launch(fold_distances_kernel,
               {dim3(blocks_for(a.length, 256), static_cast<unsigned>(to.rows())), dim3(256), 0, stream},
               view<float>(to), to.cols(), slab, which, a.batch, a.heads, a.length, Size::edge);
    }
}

template <class T, int D, ScoreMode mode>
void launch_passes(const Backward<T>& arguments, Stream stream) {
    using Keys = KeyPass<T, D, mode>;
    using Queries = QueryPass<T, D, mode>;
    static_assert(sizeof(Keys) <= most_shared && sizeof(Queries) <= most_shared);
    const AttentionInput<T>& a = arguments.in;
    const auto blocks = [&](int own, int heads, int slices) {
        const int64_t across = blocks_for(a.length, own);
        return dim3(static_cast<unsigned>(across * heads * a.batch * slices));
    };
    launch(
        key_kernel<T, D, mode>,
        {blocks(Keys::Size::own, a.kv_heads, Keys::slices), dim3(Keys::Size::threads), sizeof(Keys), stream},
        arguments);
    launch(query_kernel<T, D, mode>,
           {blocks(Queries::Size::own, a.heads, 1), dim3(Queries::Size::threads), sizeof(Queries), stream},
           arguments);
}

template <class T>
void launch_delta(const Backward<T>& arguments, const Tensor& o, Stream stream) {
    const AttentionInput<T>& a = arguments.in;
    with_pack<T>(a.vectors && aligned(o), [&](auto n) {
        constexpr int pack = decltype(n)::value;
        int lanes = 1;
        while (lanes < 32 && lanes * pack < a.channels) lanes *= 2;
        launch(delta_kernel<T, pack>,
               {dim3(blocks_for(a.tokens() * a.heads, 256 / lanes)), dim3(256), 0, stream}, arguments,
               view<const T>(o), lanes);
    });
}

}  // namespace

void attention_backward(const QueryKeyValue& d, const AttentionGradients& gradients, Tensor workspace,
                        const Tensor& dout, const AttentionSaved& saved, const AttentionSpec& spec,
                        Stream stream, const HopperWorkers& workers) {
    const Tensor &q = saved.in.q, &k = saved.in.k, &v = saved.in.v, &o = saved.o, &lse = saved.lse;
    const int64_t tokens = spec.batch * spec.length;
    check(!spec.far_queries && !spec.far_keys, "attention_backward: a far pair is for forward passes only");
    check(!gradients.sink || spec.sink, "attention_backward: gradient of a sink that is not there");
    check(!gradients.forget || spec.forget, "attention_backward: gradient of forget sums that are not there");
    const bool tables = gradients.distance_gain || gradients.distance_bias;
    check(!tables || (spec.distance_gain && !spec.row_square),
          "attention_backward: gradients of distance tables need tables and no row_square");
    check(d.q.rows() == tokens && d.k.rows() == tokens && d.v.rows() == tokens && dout.rows() == tokens &&
              o.rows() == tokens && d.q.cols() == q.cols() && d.k.cols() == k.cols() &&
              d.v.cols() == v.cols() && dout.cols() == q.cols() && o.cols() == q.cols() &&
              lse.cols() == tokens,
          "attention_backward: o {}x{} of q {}x{}", o.rows(), o.cols(), q.rows(), q.cols());
    check((spec.length + 15) / 16 * spec.heads * spec.batch < int64_t{1} << 31,
          "attention_backward over {} positions, {} heads of {} sequences", spec.length, spec.heads,
          spec.batch);
    const AttentionPlaces places(spec, gradients);
    check(workspace.bytes() >= places.bytes, "attention_backward: workspace of {} bytes, {} needed",
          workspace.bytes(), places.bytes);
    if (tokens == 0) return;
    const bool hopper = workers.count > 0 && attention_backward_sm90_serves(d, dout, saved, spec);
    auto* memory = workspace.as<std::byte>();
    auto* sinks = reinterpret_cast<double*>(memory + places.sinks);
    auto* slab = reinterpret_cast<float*>(memory + places.slab);
    with_element(q.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        Backward<T> arguments{.in = attention_input<T>(q, k, v, spec),
                              .dout = view<const T>(dout),
                              .dq = view<T>(d.q),
                              .dk = view<T>(d.k),
                              .dv = view<T>(d.v),
                              .lse = lse.f32(),
                              .lse_step = lse.row_stride,
                              .delta = reinterpret_cast<float*>(memory),
                              .dfactor = gradients.row_factor.f32(),
                              .dfactor_step = gradients.row_factor.row_stride,
                              .dforget = gradients.forget.f32(),
                              .dforget_step = gradients.forget.row_stride,
                              .pairs = spec.head_dim % 2 == 0 && aligned(d.q, d.k, d.v)};
        arguments.in.vectors = arguments.in.vectors && aligned(dout);
        launch_delta(arguments, o, stream);
        if (hopper)
            attention_backward_sm90(d, gradients, arguments.delta, dout, saved, spec, workers, stream);
        if (gradients.sink) {
            const int64_t blocks = flat_blocks(tokens);
            launch(sink_kernel,
                   {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(spec.heads)), dim3(256),
                    sizeof(WarpResults<double, 256>), stream},
                   sinks, spec.sink.f32(), lse.f32(), lse.row_stride, arguments.delta, tokens);
            fold_totals({.partials = sinks,
                         .count = blocks,
                         .step = blocks,
                         .add_to = gradients.sink.f32(),
                         .factor = -1.0},
                        spec.heads, stream);
        }
        with_head_tile(spec.head_dim, [&](auto channels) {
            constexpr int D = decltype(channels)::value;
            const auto launch_all = [&](auto of_mode) {
                constexpr ScoreMode mode = decltype(of_mode)::value;
                if constexpr (mode == ScoreMode::table || mode == ScoreMode::general)
                    if (tables) launch_distances<T, D, mode>(arguments, gradients, slab, stream);
                if (!hopper) launch_passes<T, D, mode>(arguments, stream);
            };
            using enum ScoreMode;
            if constexpr (std::is_same_v<T, float>) {
                launch_all(constant<general>);
            } else {
                const ScoreMode mode = score_mode(spec);
                if (mode == plain)
                    launch_all(constant<plain>);
                else if (mode == forget)
                    launch_all(constant<forget>);
                else if (mode == table)
                    launch_all(constant<table>);
                else
                    launch_all(constant<general>);
            }
        });
    });
}

}  // namespace longreach::cuda
