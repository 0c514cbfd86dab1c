// What the passes of attention's backward share: arguments, the gradient of a pair, tiles, and what pairs of warps hand each
// other. attention_backward.cu says what the passes compute.
#pragma once

#include "kernels/cuda/attention_tiles.cuh"

namespace longreach::cuda {

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

// work(true) of a tile of which the warp's rows do not see everything, work(false) of the others; as types.
template <class Work>
DEVICE void for_sight(bool hidden, Work work) {
    if (hidden)
        work(std::true_type{});
    else
        work(std::false_type{});
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
// The thread's part of row `band` of sums, from channel0 on, times a factor.
template <class T, int M, int C>
DEVICE void store_band(const Backward<T>& b, T* row, const Fragments<M, C>& sums, int band, int channel0,
                       float factor) {
    const int t = anew(static_cast<int>(threadIdx.x % 4)), e = band % 2 * 2;
#pragma unroll
    for (int x = 0; x < C; ++x) {
        const float(&of)[4] = sums.of[band / 2][x];
        store_channels(row, channel0 + 8 * x + 2 * t, b.in.channels, of[e] * factor, of[e + 1] * factor,
                       b.pairs);
    }
}

}  // namespace longreach::cuda
