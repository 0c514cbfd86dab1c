// Shared by the attention kernels: head tiles in shared memory, products of tiles in mma fragments, scores
// and their derivatives, distance tables by diagonals.
//
// A warp owns 16 M rows of a block's tile (queries, or keys in the pass over key tiles) and meets tiles of 8
// N columns. Fragments acc[m][n][e] are those of mma_m16n8k16: with g = lane / 4, t = lane % 4 element e is
// row 16 m + 8 (e / 2) + g, column 8 n + 2 t + e % 2. For f32 the same fragments are computed with FMAs, so
// that everything between the products is one piece of code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/attention_spec.h"
#include "kernels/cuda/dialect.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"

namespace longreach::cuda {

inline constexpr float log2_e = 1.44269504088896340736f, ln_2 = 0.69314718055994530942f;

// R rows of D channels, in chunks of 16 bytes; chunk c of row r lies at c ^ (r % 8), so that eight rows of
// one column of chunks are in different banks.
template <class T, int D, int R>
struct alignas(128) HeadTile {
    static constexpr int rows = R, channels = D, per_chunk = 16 / static_cast<int>(sizeof(T)),
                         chunks = D / per_chunk;
    T data[R * D];
    DEVICE T* chunk(int r, int c) { return data + r * D + (c ^ (r % 8)) * per_chunk; }
    DEVICE const T* chunk(int r, int c) const { return data + r * D + (c ^ (r % 8)) * per_chunk; }
    // Chunk 2 pair + side of row r + more, more a multiple of 8. With constant pair and more, r and side of
    // the lane: four addresses serve a whole row, the rest are constant distances.
    DEVICE const T* chunk(int r, int more, int side, int pair) const {
        const int swizzled = (side ^ (r & 7)) * per_chunk;
        return data + r * D + (swizzled ^ (2 * pair % 8 * per_chunk)) +
               (more * D + 2 * pair / 8 * (8 * per_chunk));
    }
    DEVICE const T* at(int r, int d) const { return chunk(r, d / per_chunk) + d % per_chunk; }
};

// One head of one sequence in device memory: rows `stride` elements apart, `channels` of them used.
template <class T>
struct HeadRows {
    T* data;
    int64_t stride;
    int length, channels;
    bool vectors;  // every row starts on 16 bytes and holds whole chunks
    DEVICE T* row(int r) const { return data + r * stride; }
};

// Rows first .. first + R of a head; rows past its length and channels past its own arrive as zeros. With
// vectors the bytes come by cp.async: commit, wait and a barrier are the caller's; without, a barrier is.
// A thread copies one column of chunks, whose rows are `step` apart. Where 8 divides step, the places in the tile are a
// constant apart too; then, in bf16, a copy costs its own instruction, a comparison and the step of a pointer.
template <int threads, class T, int D, int R>
DEVICE void load_tile(HeadTile<T, D, R>& to, const HeadRows<const T>& from, int first) {
    using Tile = HeadTile<T, D, R>;
    constexpr int step = threads / Tile::chunks;
    static_assert(threads % Tile::chunks == 0 && R % step == 0);
    const int thread = anew(static_cast<int>(threadIdx.x));
    const int c = thread % Tile::chunks, channel = c * Tile::per_chunk, r0 = thread / Tile::chunks;
    const int rows = channel < from.channels ? from.length - first - r0 : 0;  // from r0 on
    const T* source = from.row(first + r0) + channel;
    if (from.vectors) {
        T* place = to.chunk(r0, c);
#pragma unroll(sizeof(T) == 2 && step % 8 == 0 ? R / step : 1)
        for (int i = 0; i < R / step; ++i) {
            cp_async_16(step % 8 == 0 ? place + i * step * D : to.chunk(r0 + i * step, c), source,
                        i * step < rows ? 16 : 0);
            source += step * from.stride;
        }
    } else {
#pragma unroll 1
        for (int i = 0; i < R / step; ++i) {
            for (int k = 0; k < Tile::per_chunk; ++k)
                to.chunk(r0 + i * step, c)[k] =
                    i * step < rows && channel + k < from.channels ? source[k] : narrow<T>(0.0f);
            source += step * from.stride;
        }
    }
}

template <int M, int N>
struct Fragments {
    float of[M][N][4];
    DEVICE void clear() {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
                for (int e = 0; e < 4; ++e) of[m][n][e] = 0.0f;
    }
};

// acc += a b^T for one step of 16 channels, number k: a's fragments and the first 8 N rows of b.
template <int M, int N, class B>
DEVICE void multiply_step(Fragments<M, N>& acc, const uint32_t (&of_a)[M][4], const B& b, int k, int lane) {
    static_assert(N % 2 == 0);
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t of_b[4];
        ldmatrix_x4(of_b, b.chunk(lane % 8 + lane / 16 * 8, 8 * n, lane / 8 % 2, k));
#pragma unroll
        for (int m = 0; m < M; ++m) {
            mma_m16n8k16_bf16(acc.of[m][n], of_a[m], {of_b[0], of_b[1]}, acc.of[m][n]);
            mma_m16n8k16_bf16(acc.of[m][n + 1], of_a[m], {of_b[2], of_b[3]}, acc.of[m][n + 1]);
        }
    }
}

// 16 M rows of D channels as the first operand of products, in registers.
template <int M, int D>
struct RowFragments {
    uint32_t of[D / 16][M][4];
    template <class A>
    DEVICE void load(const A& a, int row0) {
        const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
        for (int k = 0; k < D / 16; ++k)
#pragma unroll
            for (int m = 0; m < M; ++m)
                ldmatrix_x4(of[k][m], a.chunk(row0 + lane % 16, 16 * m, lane / 16, k));
    }
};

// acc += a b^T: rows kept in registers with the first 8 N rows of b, summed over D channels.
template <int M, int N, int D, class B>
DEVICE void multiply_rows(Fragments<M, N>& acc, const RowFragments<M, D>& a, const B& b) {
    const int lane = anew(static_cast<int>(threadIdx.x % 32));
#pragma unroll
    for (int k = 0; k < D / 16; ++k) multiply_step(acc, a.of[k], b, k, lane);
}

// acc += a b^T: rows row0 .. row0 + 16 M of a with the first 8 N rows of b, summed over D channels.
template <int M, int N, class A, class B>
DEVICE void multiply_rows(Fragments<M, N>& acc, const A& a, int row0, const B& b, int channels) {
    using T = std::remove_cv_t<std::remove_reference_t<decltype(a.data[0])>>;
    const int lane = anew(static_cast<int>(threadIdx.x % 32));
    if constexpr (std::is_same_v<T, bf16>) {
#pragma unroll
        for (int k = 0; k < A::channels / 16; ++k) {
            uint32_t of_a[M][4];
#pragma unroll
            for (int m = 0; m < M; ++m) ldmatrix_x4(of_a[m], a.chunk(row0 + lane % 16, 16 * m, lane / 16, k));
            multiply_step(acc, of_a, b, k, lane);
        }
    } else {
        const int g = lane / 4, t = lane % 4;
#pragma unroll 1
        for (int c = 0; c * 4 < channels; ++c) {
            Pack<4> of_a[2 * M];
#pragma unroll
            for (int r = 0; r < 2 * M; ++r) of_a[r] = load<4>(a.chunk(row0 + 8 * r + g, c));
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
                for (int parity = 0; parity < 2; ++parity) {
                    const Pack<4> of_b = load<4>(b.chunk(8 * n + 2 * t + parity, c));
#pragma unroll
                    for (int r = 0; r < 2 * M; ++r)
#pragma unroll
                        for (int k = 0; k < 4; ++k) {
                            float& sum = acc.of[r / 2][n][r % 2 * 2 + parity];
                            sum = fmaf(of_a[r][k], of_b[k], sum);
                        }
                }
        }
    }
}

// out += p b for one step of 16 rows of b, number k: p's fragments; out has the columns channel0 .. channel0 + 8 C, and
// channel0 is a multiple of 64.
template <int M, int C, class B>
DEVICE void multiply_step_trans(Fragments<M, C>& out, const uint32_t (&of_p)[M][4], const B& b, int k,
                                int channel0, int lane) {
    static_assert(C % 2 == 0);
#pragma unroll
    for (int c = 0; c < C; c += 2) {
        uint32_t of_b[4];
        ldmatrix_x4_trans(of_b, b.chunk(lane % 16, 16 * k, lane / 16, c / 2) + channel0);
#pragma unroll
        for (int m = 0; m < M; ++m) {
            mma_m16n8k16_bf16(out.of[m][c], of_p[m], {of_b[0], of_b[1]}, out.of[m][c]);
            mma_m16n8k16_bf16(out.of[m][c + 1], of_p[m], {of_b[2], of_b[3]}, out.of[m][c + 1]);
        }
    }
}

// A tile of [16 M, 8 N] numbers rounded to bf16, two neighbours of a row in a word: row 8 band + g, columns 8 n + 2 t and
// 8 n + 2 t + 1.
template <int M, int N>
struct Rounded {
    uint32_t of[2 * M][N];  // [band][n]
};

// out += p b: p [16 M, 8 N]; b [8 N, D]; out the columns channel0 .. channel0 + 8 C.
template <int M, int N, int C, class B>
DEVICE void multiply_rounded(Fragments<M, C>& out, const Rounded<M, N>& p, const B& b, int channel0) {
    const int lane = anew(static_cast<int>(threadIdx.x % 32));
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
        uint32_t of_p[M][4];
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int i = 0; i < 4; ++i) of_p[m][i] = p.of[2 * m + i % 2][2 * k + i / 2];
        multiply_step_trans(out, of_p, b, k, channel0, lane);
    }
}

// The same of p as it left the score stage, rounded to b's type here.
template <int M, int N, int C, class B>
DEVICE void multiply_scores(Fragments<M, C>& out, const Fragments<M, N>& p, const B& b, int channel0,
                            int channels) {
    using T = std::remove_cv_t<std::remove_reference_t<decltype(b.data[0])>>;
    const int lane = anew(static_cast<int>(threadIdx.x % 32));
    if constexpr (std::is_same_v<T, bf16>) {
        static_assert(N % 2 == 0);
#pragma unroll
        for (int k = 0; k < N / 2; ++k) {
            uint32_t of_p[M][4];
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float(&from)[4] = p.of[m][2 * k + i / 2];
                    of_p[m][i] = pack_bf16(from[i % 2 * 2], from[i % 2 * 2 + 1]);
                }
            multiply_step_trans(out, of_p, b, k, channel0, lane);
        }
    } else {
        const int t = lane % 4;
#pragma unroll 1
        for (int source = 0; source < 4; ++source)  // lane of the quad that holds the columns
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
                for (int parity = 0; parity < 2; ++parity) {
                    float of_p[2 * M];
#pragma unroll
                    for (int r = 0; r < 2 * M; ++r)
                        of_p[r] = __shfl_sync(all_lanes, p.of[r / 2][n][r % 2 * 2 + parity], source, 4);
                    const int row = 8 * n + 2 * source + parity;
#pragma unroll
                    for (int c = 0; c < C; ++c) {
                        if (channel0 + 8 * c >= channels) continue;
                        const float2 of_b =
                            *reinterpret_cast<const float2*>(b.at(row, channel0 + 8 * c + 2 * t));
#pragma unroll
                        for (int r = 0; r < 2 * M; ++r) {
                            float(&to)[4] = out.of[r / 2][c];
                            to[r % 2 * 2] = fmaf(of_p[r], of_b.x, to[r % 2 * 2]);
                            to[r % 2 * 2 + 1] = fmaf(of_p[r], of_b.y, to[r % 2 * 2 + 1]);
                        }
                    }
                }
    }
}

// --- the launch's arguments, from AttentionSpec

template <class T>
struct AttentionInput {
    View<const T> q, k, v, far_q, far_k;
    const int32_t* row_start;  // [B, T] or null
    const float* row_factor;   // [.., N] or null
    int64_t factor_step;       // elements from head to head, 0: shared
    const float *gain, *bias;  // [.., R], backwards, or null
    int64_t gain_step, bias_step, table_length;
    const float* row_square;  // [N] or null
    const double* forget;     // [H, N] or null
    int64_t forget_step;
    const float* sink;  // [H] or null
    float scale, softcap;
    float bias_of_gain;  // times log2(e); of the host, so that kernels read it as a constant
    int batch, length, heads, kv_heads, channels, far_from;
    bool vectors;
    HOST_DEVICE int64_t tokens() const { return static_cast<int64_t>(batch) * length; }
    DEVICE int first_visible(int sequence, int i) const {
        return row_start ? row_start[static_cast<int64_t>(sequence) * length + i] : 0;
    }
    // Of a query head or, with kv, of the key/value head it uses.
    DEVICE HeadRows<const T> head(const View<const T>& x, int sequence, int index) const {
        return {x.at(static_cast<int64_t>(sequence) * length, static_cast<int64_t>(index) * channels),
                x.stride, length, channels, vectors};
    }
};

// --- scores
// In units of log 2: y2 = y log2(e), so that p = 2^(y2 - lse2).

enum class ScoreMode {
    plain,    // scale and row factor
    table,    // and gain and bias by distance
    general,  // and softcap, row squares, tables or none, forget sums or none
    forget,   // scale, row factor and forget sums
    gain      // as table, with biases that follow from gains; only in the kernels for Hopper
};
template <ScoreMode mode>
inline constexpr bool may_forget = mode == ScoreMode::forget || mode == ScoreMode::general;

// Whether this launch has tables by distance, forget sums.
template <ScoreMode mode, class T>
DEVICE bool has_table(const AttentionInput<T>& a) {
    return mode == ScoreMode::table || (mode == ScoreMode::general && a.gain != nullptr);
}
template <ScoreMode mode, class T>
DEVICE bool has_forget(const AttentionInput<T>& a) {
    return mode == ScoreMode::forget || (mode == ScoreMode::general && a.forget != nullptr);
}

// The forget sum of position i, 0 past the end; times log2(e) as two f32 (attention_spec.h says why); what the
// sums of a query and a key add to y2.
template <class T>
DEVICE double forget_sum(const AttentionInput<T>& a, int sequence, int head, int i) {
    return i < a.length ? a.forget[head * a.forget_step + static_cast<int64_t>(sequence) * a.length + i]
                        : 0.0;
}
DEVICE float2 split_sum(double sum) {
    const double exponent = sum * 1.4426950408889634;
    const float high = static_cast<float>(exponent);
    return {high, static_cast<float>(exponent - static_cast<double>(high))};
}
DEVICE float difference(float2 query, float2 key) {
    return (query.x - key.x) + (query.y - key.y);
}

// Of a query: factor f_i (1 without one) and w_i.
struct ScoreRow {
    float factor, square;
};
template <class T>
DEVICE ScoreRow score_row(const AttentionInput<T>& a, int sequence, int head, int i) {
    const int64_t n = static_cast<int64_t>(sequence) * a.length + i;
    return {a.row_factor ? a.row_factor[head * a.factor_step + n] : 1.0f,
            a.row_square ? a.row_square[n] : 0.0f};
}

struct Score {
    float y2;     // y log2(e)
    float z;      // scale s, capped: what the row factor multiplies
    float gain;   // of the distance, 1 without tables: dy/df = gain z, dy/dgain = f z
    float slope;  // dy/ds, s = <q, k>
};
// s = <q_i, k_j>; entry {gain, bias log2(e)} of the distance (not read by modes plain and forget); forgotten:
// the difference of forget sums. The compiler removes what a caller does not use.
template <ScoreMode mode, class T>
DEVICE Score score(const AttentionInput<T>& a, float s, const ScoreRow& row, float2 entry,
                   float forgotten = 0.0f) {
    Score result;
    result.z = s * a.scale;
    result.gain = 1.0f;
    float derivative = a.scale;
    if constexpr (mode == ScoreMode::plain || mode == ScoreMode::forget) {
        result.y2 = s * (a.scale * row.factor * log2_e);
    } else if constexpr (mode == ScoreMode::table) {
        result.gain = entry.x;
        result.y2 = fmaf(entry.x, s * (a.scale * row.factor * log2_e), entry.y);
    } else {
        if (a.softcap > 0.0f) {
            const float capped = tanhf(result.z / a.softcap);
            result.z = a.softcap * capped;
            derivative *= 1.0f - capped * capped;
        }
        result.y2 = result.z * row.factor * log2_e;
        if (a.gain) {
            result.gain = a.row_square ? sqrtf(fmaxf(0.0f, entry.x + row.square)) : entry.x;
            result.y2 = fmaf(result.gain, result.y2, entry.y - 0.5f * log2_e * row.square);
        }
    }
    if constexpr (may_forget<mode>) result.y2 += forgotten;
    result.slope = derivative * row.factor * result.gain;
    return result;
}

// Gains and biases of the pairs of a tile of Q queries from query0 and K keys from key0: entry k - q + Q - 1
// belongs to query query0 + q and key key0 + k. Entries without a visible pair hold any finite number.
template <int Q, int K>
struct TableSlice {
    float2 entry[Q + K];
    DEVICE float2 of(int q, int k) const { return entry[k - q + Q - 1]; }
};
// A thread's share of a slice in transit from device to shared memory: reading early hides the latency.
template <int threads, int Q, int K>
struct TableAhead {
    static constexpr int entries = Q + K - 1, each = (entries + threads - 1) / threads;
    float2 of[each];
    template <class T>
    DEVICE void read(const AttentionInput<T>& a, int head, int query0, int key0) {
        const float *gain = a.gain + head * a.gain_step, *bias = a.bias + head * a.bias_step;
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int e = static_cast<int>(threadIdx.x) + i * threads;
            int64_t at = a.table_length - 1 + (key0 - query0) + (e - (Q - 1));
            at = at < 0 ? 0 : at < a.table_length ? at : a.table_length - 1;
            of[i] = {gain[at], bias[at]};
        }
    }
    DEVICE void write(TableSlice<Q, K>& to) const {
#pragma unroll
        for (int i = 0; i < each; ++i) {
            const int e = static_cast<int>(threadIdx.x) + i * threads;
            if (e < entries) to.entry[e] = {of[i].x, of[i].y * log2_e};
        }
    }
};
template <int threads, int Q, int K, class T>
DEVICE void load_table(TableSlice<Q, K>& to, const AttentionInput<T>& a, int head, int query0, int key0) {
    TableAhead<threads, Q, K> ahead;
    ahead.read(a, head, query0, key0);
    ahead.write(to);
}

// Adds a sink, in units of y2, to a row's sum relative to a reference, which follows the sink. What outputs shrink by.
DEVICE float add_sink(float& sum, float& reference, float sink) {
    if (!(sink > reference)) {
        sum += exp2_approx(sink - reference);
        return 1.0f;
    }
    const float shrink = exp2_approx(reference - sink);
    reference = sink;
    sum = fmaf(sum, shrink, 1.0f);
    return shrink;
}

// --- what a tile of queries sees

// Whether key j is visible to query i.
DEVICE bool visible(int i, int j, int first_visible, int length) {
    return j >= first_visible && j <= i && i < length;
}
// First query whose first visible key comes after `key`, in [begin, length]: rows of a
// sequence see ascending intervals.
template <class T>
DEVICE int end_of_sight(const AttentionInput<T>& a, int sequence, int key, int begin) {
    if (!a.row_start) return a.length;
    int low = begin, high = a.length;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (a.first_visible(sequence, middle) <= key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// --- host side

template <class T>
AttentionInput<T> attention_input(const Tensor& q, const Tensor& k, const Tensor& v,
                                  const AttentionSpec& spec) {
    const Tensor &gain = spec.distance_gain, &bias = spec.distance_bias;
    const int64_t tokens = spec.batch * spec.length;
    check(spec.normaliser == Normaliser::softmax, "a softmax over the scores of another normaliser");
    check(spec.head_dim >= 1 && spec.head_dim <= 256,
          "attention on a GPU takes heads of up to 256 channels, not {}", spec.head_dim);
    check(q.rows() == tokens && k.rows() == tokens && v.rows() == tokens &&
              q.cols() == spec.heads * spec.head_dim && k.cols() == spec.kv_heads * spec.head_dim &&
              v.cols() == k.cols(),
          "attention of q {}x{}, k {}x{}, v {}x{}", q.rows(), q.cols(), k.rows(), k.cols(), v.rows(),
          v.cols());
    check(spec.length <= int64_t{1} << 30 && spec.heads * spec.batch < int64_t{1} << 31,
          "attention over {} positions, {} heads", spec.length, spec.heads * spec.batch);
    check(!gain == !bias && (!gain || (gain.cols() >= spec.length && bias.cols() == gain.cols())),
          "distance tables of {} and {} entries for {} positions", gain.cols(), bias.cols(), spec.length);
    check(!spec.row_square || (gain && spec.row_square.count() == tokens),
          "{} row squares for {} tokens, or no distance tables", spec.row_square.count(), tokens);
    const auto by_head = [&](const Tensor& t, int64_t columns) {
        return !t || ((t.rows() == 1 || t.rows() == spec.heads) && t.cols() >= columns);
    };
    check(by_head(spec.row_factor, tokens) && by_head(gain, spec.length) && by_head(bias, spec.length),
          "row factors {}x{} or distance tables {}x{}, {}x{} for {} heads", spec.row_factor.rows(),
          spec.row_factor.cols(), gain.rows(), gain.cols(), bias.rows(), bias.cols(), spec.heads);
    check(!spec.channel_sums, "attention: no GPU has sums by channel");
    check(!spec.forget || (spec.forget.rows() == spec.heads && spec.forget.cols() == tokens),
          "forget sums {}x{}", spec.forget.rows(), spec.forget.cols());
    check(!spec.sink || spec.sink.count() == spec.heads, "{} sinks", spec.sink.count());
    check(!spec.row_start || spec.row_start.count() == tokens, "{} row starts", spec.row_start.count());
    check(!spec.far_queries == !spec.far_keys, "half a far pair");
    const auto step = [](const Tensor& t) { return t && t.rows() > 1 ? t.row_stride : 0; };
    return {.q = view<const T>(q),
            .k = view<const T>(k),
            .v = view<const T>(v),
            .far_q = view<const T>(spec.far_queries),
            .far_k = view<const T>(spec.far_keys),
            .row_start = spec.row_start.i32(),
            .row_factor = spec.row_factor.f32(),
            .factor_step = step(spec.row_factor),
            .gain = gain.f32(),
            .bias = bias.f32(),
            .gain_step = step(gain),
            .bias_step = step(bias),
            .table_length = gain.cols(),
            .row_square = spec.row_square.f32(),
            .forget = spec.forget.f64(),
            .forget_step = step(spec.forget),
            .sink = spec.sink.f32(),
            .scale = spec.scale,
            .softcap = spec.softcap,
            .bias_of_gain = spec.bias_of_gain * log2_e,
            .batch = static_cast<int>(spec.batch),
            .length = static_cast<int>(spec.length),
            .heads = static_cast<int>(spec.heads),
            .kv_heads = static_cast<int>(spec.kv_heads),
            .channels = static_cast<int>(spec.head_dim),
            .far_from = static_cast<int>(std::clamp<int64_t>(spec.far_from, 0, spec.length)),
            .vectors = spec.head_dim % wide<T> == 0 && aligned(q, k, v, spec.far_queries, spec.far_keys)};
}

inline ScoreMode score_mode(const AttentionSpec& spec) {
    if (spec.softcap > 0.0f || spec.row_square || (spec.distance_gain && spec.forget))
        return ScoreMode::general;
    return spec.distance_gain ? ScoreMode::table : spec.forget ? ScoreMode::forget : ScoreMode::plain;
}

// body(D): the channels of the tiles that hold heads of head_dim.
template <class Body>
void with_head_tile(int64_t head_dim, Body body) {
    if (head_dim <= 64)
        body(std::integral_constant<int, 64>{});
    else if (head_dim <= 128)
        body(std::integral_constant<int, 128>{});
    else
        body(std::integral_constant<int, 256>{});
}

}  // namespace longreach::cuda
