// Attention: o_i = sum over visible keys j of P_ij v_j.
//
//   P_ij = exp(y_ij - lse_i), lse_i = log(sum over j of exp(y_ij) + exp(sink)), y as in attention_spec.h;
//   row maxima, where asked for: the largest z_ij or |z_ij| over the visible keys.
//
//   q, o [N, H d], k, v [N, G d], lse and row maxima [H, N]. Backward needs q, k, v, o and lse; nothing of
//   size T x T exists. 4 d FLOPs and one exp2 per visible pair and head, and per pair of rounding to whole
//   tiles. Bytes per token, e those of an element: q and o once, 2 H d e; lse 4 H; k and v at least once,
//   2 G d e: they come once per tile of queries, from L2 as long as the active heads fit there.
//
// A block is one tile of queries of one head; a warp owns 16 or 32 of its rows and meets all keys they see,
// tile by tile, with an online softmax in base 2. Tiles of keys and values arrive by cp.async, one of each at
// a time: values travel during q k^T, the next keys during the softmax and p v, and two barriers per tile
// order everything, the table slice too. Within a head the longest tiles are launched first, heads follow
// each other: keys and values stay in L2, and the last blocks are short.
//
// Per score the plain form costs a maximum, a multiply-add, an exponential and an addition. The sums and
// outputs of a row are relative to a reference, which follows the row's maximum only when it exceeds the
// reference by 2^8: rescaling the outputs would cost more than all of the above together.
#include <cfloat>

#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/kernels.h"

namespace longreach::cuda {
namespace {

// Tiles of T with room for D channels. rare: far pairs and row maxima; the far tiles take the place of half
// the keys. Everything fits 99 KiB of shared memory, the least among sm_80 and later.
template <class T, int D, ScoreMode mode, bool rare>
struct ForwardShape {
    static constexpr bool wide_elements = std::is_same_v<T, float>;
    static constexpr bool general = mode == ScoreMode::general;
    static constexpr int M = !wide_elements && D <= (general ? 64 : 128) ? 2 : 1;
    static constexpr int warps = wide_elements && D == 256 && rare ? 2 : 4;
    static constexpr int threads = 32 * warps, rows = 16 * M * warps;
    static constexpr bool long_tiles =
        D == 64 || (D == 128 && (mode == ScoreMode::plain || general));  // as registers allow
    static constexpr int keys_of_near = wide_elements ? (D == 256 ? 16 : 32) : long_tiles ? 64 : 32;
    static constexpr int keys = rare ? keys_of_near / 2 : keys_of_near;
    static constexpr int N = keys / 8, C = D / 8;
};

struct Nothing {};
// Per-row values are in shared memory: outputs and scores leave few registers.
template <int rows>
struct RowConstants {
    float factor[rows];  // plain: y2 / s, positive; else f
    float square[rows];
    int first_visible[rows];  // keys of the query; rows past the end have the last one's
};
// Of the 2 M rows of each thread: row r is 8 r + lane / 4 of its warp's. With M = 1 there are registers
// enough: one thread's, in a local variable.
template <int M, int threads>
struct RowState {
    float reference[2 * M][threads];  // in units of y2; -infinity as long as nothing was seen
    float sum[2 * M][threads];        // of 2^(y2 - reference), over the thread's columns
};
template <int rows, int keys>
struct ForgetSums {
    float2 of_query[rows], of_key[keys];
};
template <class T, int D, int rows, int keys>
struct FarTiles {
    HeadTile<T, D, rows> q;
    HeadTile<T, D, keys> k;
};
template <class T, int D, ScoreMode mode, bool rare>
struct ForwardLayout {
    using Shape = ForwardShape<T, D, mode, rare>;
    HeadTile<T, D, Shape::rows> q;
    HeadTile<T, D, Shape::keys> k, v;
    std::conditional_t<rare, FarTiles<T, D, Shape::rows, Shape::keys>, Nothing> far;
    static constexpr bool tabled = mode == ScoreMode::table || mode == ScoreMode::general;
    std::conditional_t<tabled, TableSlice<Shape::rows, Shape::keys>, Nothing> table;
    std::conditional_t<may_forget<mode>, ForgetSums<Shape::rows, Shape::keys>, Nothing> forget;
    RowConstants<Shape::rows> constants;
    std::conditional_t<Shape::M == 2, RowState<2, Shape::threads>, Nothing> state;
};

template <class Tiles, int M>
DEVICE auto& state_of(Tiles& tiles, RowState<M, 1>& own) {
    if constexpr (M == 2)
        return tiles.state;
    else
        return own;
}

template <int M, int threads>
DEVICE void clear_rows(RowState<M, threads>& state, float (&maxima)[2 * M]) {
    const int thread = threads == 1 ? 0 : static_cast<int>(threadIdx.x);
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) {
        state.reference[r][thread] = maxima[r] = -INFINITY;
        state.sum[r][thread] = 0.0f;
    }
}

template <class T>
struct ForwardOutput {
    View<T> o;
    float* lse;
    int64_t lse_step;  // elements from head to head
    float* maxima;     // or null
    int64_t maxima_step;
    bool absolute;  // maxima of |z|
    bool vectors;   // every row of a head of o starts on 16 bytes and holds whole chunks
};

// A warp's rows relative to a tile of keys.
struct Sight {
    int row;           // position of row 0 of this thread
    int key;           // of its column 0
    bool any, masked;  // some row sees some key; some row does not see them all
};

// Whether columns 8 n + parity of a thread are visible to one of its rows.
struct VisibleColumns {
    int begin, end;  // relative to the thread's column 0
    DEVICE bool operator()(int column) const { return column >= begin && column < end; }
};
template <class Constants>
DEVICE VisibleColumns visible_columns(const Constants& constants, const Sight& sight, int row_of_tile,
                                      int r) {
    return {constants.first_visible[row_of_tile + 8 * r] - sight.key, sight.row + 8 * r - sight.key + 1};
}

// y2 from products; in the rare form the largest z (before a softcap) too. Fragments on one diagonal of the
// tile share distances: what a diagonal needs of the table is read once.
template <ScoreMode mode, bool rare, class T, int M, int N, class Table, class Constants>
DEVICE void score_tile(Fragments<M, N>& scores, float (&maxima)[2 * M], const AttentionInput<T>& a,
                       const ForwardOutput<T>& out, const Sight& sight, const Table& table,
                       const Constants& constants, int row_of_tile) {
    const int column = static_cast<int>(threadIdx.x % 4) * 2;
    ScoreRow of_row[2 * M];
#pragma unroll
    for (int r = 0; r < 2 * M; ++r)
        of_row[r] = {constants.factor[row_of_tile + 8 * r], constants.square[row_of_tile + 8 * r]};
    VisibleColumns visible[2 * M];
    if constexpr (rare) {
#pragma unroll
        for (int r = 0; r < 2 * M; ++r) visible[r] = visible_columns(constants, sight, row_of_tile, r);
    }
#pragma unroll
    for (int diagonal = 1 - 2 * M; diagonal < N; ++diagonal) {
        // The fragment on the diagonal whose row and column are the least.
        const int first = diagonal < 0 ? -diagonal : 0;
        float2 entries[2] = {{1.0f, 0.0f}, {1.0f, 0.0f}};
        if constexpr (mode != ScoreMode::forget) {
            if (has_table<mode>(a)) {
#pragma unroll
                for (int parity = 0; parity < 2; ++parity)
                    entries[parity] =
                        table.of(row_of_tile + 8 * first, 8 * (diagonal + first) + column + parity);
            }
        }
#pragma unroll
        for (int r = 0; r < 2 * M; ++r) {
            const int n = diagonal + r;
            if (n < 0 || n >= N) continue;
#pragma unroll
            for (int parity = 0; parity < 2; ++parity) {
                float& s = scores.of[r / 2][n][r % 2 * 2 + parity];
                if constexpr (rare) {
                    const float z = s * a.scale;  // not capped
                    if (!sight.masked || visible[r](8 * n + parity))
                        maxima[r] = fmaxf(maxima[r], out.absolute ? fabsf(z) : z);
                }
                s = score<mode>(a, s, of_row[r], entries[parity]).y2;
            }
        }
    }
}

// Adds the differences of forget sums.
template <int M, int N, class Sums>
DEVICE void forget_tile(Fragments<M, N>& scores, const Sums& sums, int row_of_tile) {
    const int column = static_cast<int>(threadIdx.x % 4) * 2;
    float2 query[2 * M];
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) query[r] = sums.of_query[row_of_tile + 8 * r];
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int parity = 0; parity < 2; ++parity) {
            const float2 key = sums.of_key[8 * n + column + parity];
#pragma unroll
            for (int r = 0; r < 2 * M; ++r)
                scores.of[r / 2][n][r % 2 * 2 + parity] += difference(query[r], key);
        }
}

template <int M, int N, class Constants>
DEVICE void mask_tile(Fragments<M, N>& scores, const Constants& constants, const Sight& sight,
                      int row_of_tile) {
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) {
        const VisibleColumns visible = visible_columns(constants, sight, row_of_tile, r);
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int parity = 0; parity < 2; ++parity)
                if (!visible(8 * n + parity)) scores.of[r / 2][n][r % 2 * 2 + parity] = -INFINITY;
    }
}

// Turns scores into 2^(y2 - reference), adds them to the sums, and moves references where they must.
template <ScoreMode mode, int M, int N, int C, int threads, class Constants>
DEVICE void softmax_tile(Fragments<M, N>& scores, RowState<M, threads>& state, Fragments<M, C>& output,
                         const Constants& constants, int row_of_tile) {
    constexpr float slack = 8.0f;
    const int thread = threads == 1 ? 0 : static_cast<int>(threadIdx.x);
    float shrink[2 * M];
    bool moved = false;
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) {
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int parity = 0; parity < 2; ++parity)
                most = fmaxf(most, scores.of[r / 2][n][r % 2 * 2 + parity]);
        most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 1));
        most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 2));
        const float factor = mode == ScoreMode::plain ? constants.factor[row_of_tile + 8 * r] : 1.0f;
        if (mode == ScoreMode::plain) most *= factor;
        const float before = state.reference[r][thread];
        const bool moves = most > before + slack;
        shrink[r] = moves ? exp2_approx(before - most) : 1.0f;
        moved |= moves;
        const float reference = moves ? most : before;
        state.reference[r][thread] = reference;
        // As long as all keys were hidden every score is -infinity.
        const float origin = reference == -INFINITY ? 0.0f : reference;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < N; ++n)
#pragma unroll
            for (int parity = 0; parity < 2; ++parity) {
                float& s = scores.of[r / 2][n][r % 2 * 2 + parity];
                s = exp2_approx(mode == ScoreMode::plain ? fmaf(s, factor, -origin) : s - origin);
                sum += s;
            }
        state.sum[r][thread] = fmaf(state.sum[r][thread], shrink[r], sum);
    }
    if (!__any_sync(all_lanes, moved)) return;
#pragma unroll
    for (int r = 0; r < 2 * M; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c) {
            output.of[r / 2][c][r % 2 * 2] *= shrink[r];
            output.of[r / 2][c][r % 2 * 2 + 1] *= shrink[r];
        }
}

// Turns the sign of queries whose factor is negative: `factors` are those of a thread's rows. The block
// passes a barrier before they are read.
template <int count, int D, int R>
DEVICE void turn_queries(HeadTile<bf16, D, R>& q, const float (&factors)[count], int row) {
#pragma unroll
    for (int r = 0; r < count; ++r)
        if (factors[r] < 0.0f)
            for (int c = static_cast<int>(threadIdx.x % 4); c < HeadTile<bf16, D, R>::chunks; c += 4) {
                auto* words = reinterpret_cast<uint4*>(q.chunk(row + 8 * r, c));
                uint4 w = *words;
                w.x ^= 0x80008000u, w.y ^= 0x80008000u, w.z ^= 0x80008000u, w.w ^= 0x80008000u;
                *words = w;
            }
}

// The warp's rows of o, through their place in the tile of queries so that they leave in whole chunks. The block
// passes a barrier after the last use of the queries.
template <class T, int M, int C, int D, int R>
DEVICE void write_rows(const ForwardOutput<T>& out, const Fragments<M, C>& output,
                       const float (&inverse)[2 * M], HeadTile<T, D, R>& through, const HeadRows<T>& to,
                       int row0, int query0) {
    using Tile = HeadTile<T, D, R>;
    const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2 * M; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c) {
            const float low = output.of[r / 2][c][r % 2 * 2] * inverse[r];
            const float high = output.of[r / 2][c][r % 2 * 2 + 1] * inverse[r];
            const int channel = 8 * c + 2 * t;
            T* place = through.chunk(row0 + 8 * r + g, channel / Tile::per_chunk) + channel % Tile::per_chunk;
            if constexpr (std::is_same_v<T, bf16>)
                *reinterpret_cast<uint32_t*>(place) = pack_bf16(low, high);
            else
                *reinterpret_cast<float2*>(place) = float2{low, high};
        }
    __syncwarp();
    for (int i = lane; i < 16 * M * Tile::chunks; i += 32) {
        const int row = row0 + i / Tile::chunks, c = i % Tile::chunks, first = c * Tile::per_chunk;
        if (query0 + row >= to.length || first >= to.channels) continue;
        const T* from = through.chunk(row, c);
        T* target = to.row(query0 + row) + first;
        if (out.vectors)
            *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(from);
        else
            for (int k = 0; k < Tile::per_chunk && first + k < to.channels; ++k) target[k] = from[k];
    }
}

// Which tile of queries a block has.
struct Work {
    int sequence, head, query0;
    template <class T>
    DEVICE Work(const AttentionInput<T>& a, int tile_rows, int block) {
        const int per_head = (a.length + tile_rows - 1) / tile_rows;
        const int64_t item = static_cast<int64_t>(blockIdx.y) * gridDim.x + block;
        const int64_t heads = item / per_head;
        // The grid's last row may be longer than the work.
        sequence = heads < static_cast<int64_t>(a.batch) * a.heads ? static_cast<int>(heads / a.heads) : -1;
        head = static_cast<int>(heads % a.heads);
        query0 = (per_head - 1 - static_cast<int>(item % per_head)) * tile_rows;
    }
};

// What a block brings to shared memory: its queries, and tile by tile keys, values, and what scores take from tables.
template <class T, int D, ScoreMode mode, bool rare>
struct Arrivals {
    using Shape = ForwardShape<T, D, mode, rare>;
    using Layout = ForwardLayout<T, D, mode, rare>;
    static constexpr int rows = Shape::rows, keys = Shape::keys, threads = Shape::threads;
    static_assert(keys <= threads);
    const AttentionInput<T>& a;
    Layout& tiles;
    int sequence, head, query0, kv_head;
    HeadRows<const T> k;
    // By distance and by key, in transit.
    TableAhead<threads, rows, keys> ahead;
    double sum_ahead = 0.0;

    DEVICE Arrivals(const AttentionInput<T>& a, Layout& tiles, const Work& work)
        : a(a),
          tiles(tiles),
          sequence(work.sequence),
          head(work.head),
          query0(work.query0),
          kv_head(work.head / (a.heads / a.kv_heads)),
          k(a.head(a.k, work.sequence, kv_head)) {}

    // Of a tile of keys some pairs are near, some are far.
    DEVICE bool has_near(int key0) const {
        return !rare || !a.far_k.data || query0 - (key0 + keys - 1) < a.far_from;
    }
    DEVICE bool has_far(int key0) const {
        return rare && a.far_k.data && query0 + rows - 1 - key0 >= a.far_from;
    }
    DEVICE HeadRows<const T> of_head(const View<const T>& x) const {
        return a.head(x, anew(sequence), anew(kv_head));
    }
    DEVICE void start_queries() const {
        load_tile<threads>(tiles.q, a.head(a.q, sequence, head), query0);
        if constexpr (rare) {
            if (a.far_q.data) load_tile<threads>(tiles.far.q, a.head(a.far_q, sequence, head), query0);
        }
        cp_async_commit();
    }
    DEVICE void start_keys(int key0) const {
        if (has_near(key0)) load_tile<threads>(tiles.k, k, key0);
        if constexpr (rare) {
            if (has_far(key0)) load_tile<threads>(tiles.far.k, of_head(a.far_k), key0);
        }
        cp_async_commit();
    }
    DEVICE void start_values(int key0) const {
        load_tile<threads>(tiles.v, of_head(a.v), key0);
        cp_async_commit();
    }
    DEVICE void read_table(int key0) {
        const int key = static_cast<int>(threadIdx.x);
        if (has_table<mode>(a)) ahead.read(a, head, query0, key0);
        if (has_forget<mode>(a) && key < keys) sum_ahead = forget_sum(a, sequence, head, key0 + key);
    }
    DEVICE void write_table() const {
        const int key = static_cast<int>(threadIdx.x);
        if constexpr (Layout::tabled) {
            if (has_table<mode>(a)) ahead.write(tiles.table);
        }
        if constexpr (may_forget<mode>) {
            if (has_forget<mode>(a) && key < keys) tiles.forget.of_key[key] = split_sum(sum_ahead);
        }
    }
};

// Writes what scores take from a row, before any key was met; factors: those of a thread's rows.
template <class T, int D, ScoreMode mode, bool rare, int M>
DEVICE void write_constants(ForwardLayout<T, D, mode, rare>& tiles, float (&factors)[2 * M],
                            const AttentionInput<T>& a, const Work& work, int row, int last_query) {
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) {
        const int i = work.query0 + row + 8 * r, of_tile = row + 8 * r;
        ScoreRow of{1.0f, 0.0f};
        if (i < a.length) of = score_row(a, work.sequence, work.head, i);
        factors[r] = mode == ScoreMode::plain ? a.scale * of.factor * log2_e : of.factor;
        if (threadIdx.x % 4 != 0) continue;
        // A factor of 0 becomes one so small that it makes finite scores 0 and leaves -infinity alone.
        tiles.constants.factor[of_tile] = mode != ScoreMode::plain ? of.factor
                                          : factors[r] == 0.0f     ? FLT_MIN
                                                                   : fabsf(factors[r]);
        tiles.constants.square[of_tile] = of.square;
        if constexpr (may_forget<mode>) {
            if (has_forget<mode>(a))
                tiles.forget.of_query[of_tile] = split_sum(forget_sum(a, work.sequence, work.head, i));
        }
        tiles.constants.first_visible[of_tile] = a.first_visible(work.sequence, min(i, last_query));
    }
}

// Products of queries and keys, those of far pairs with the far tiles.
template <class T, int D, ScoreMode mode, bool rare, int M, int N>
DEVICE void multiply_keys(Fragments<M, N>& scores, const Arrivals<T, D, mode, rare>& arrivals,
                          const Sight& sight, int row0, int key0) {
    auto& tiles = arrivals.tiles;
    const AttentionInput<T>& a = arrivals.a;
    scores.clear();
    if (arrivals.has_near(key0)) multiply_rows(scores, tiles.q, row0, tiles.k, a.channels);
    if constexpr (rare) {
        if (!arrivals.has_far(key0)) return;
        Fragments<M, N> far;
        far.clear();
        multiply_rows(far, tiles.far.q, row0, tiles.far.k, a.channels);
#pragma unroll
        for (int r = 0; r < 2 * M; ++r)
#pragma unroll
            for (int n = 0; n < N; ++n)
#pragma unroll
                for (int parity = 0; parity < 2; ++parity) {
                    const int e = r % 2 * 2 + parity;
                    if (sight.row + 8 * r - (sight.key + 8 * n + parity) >= a.far_from)
                        scores.of[r / 2][n][e] = far.of[r / 2][n][e];
                }
    }
}

// Adds the sink, writes lse and row maxima; inverse: what the outputs of a thread's rows are multiplied by.
template <bool rare, int M, int threads, class T, class Constants>
DEVICE void finish_rows(float (&inverse)[2 * M], const RowState<M, threads>& state,
                        const float (&maxima)[2 * M], const AttentionInput<T>& a, const ForwardOutput<T>& out,
                        const Work& work, const Constants& constants, int row) {
    const int thread = threads == 1 ? 0 : static_cast<int>(threadIdx.x);
    const bool writes = threadIdx.x % 4 == 0;
#pragma unroll
    for (int r = 0; r < 2 * M; ++r) {
        float sum = state.sum[r][thread];
        sum += __shfl_xor_sync(all_lanes, sum, 1);
        sum += __shfl_xor_sync(all_lanes, sum, 2);
        float reference = state.reference[r][thread], shrink = 1.0f;
        if (a.sink) shrink = add_sink(sum, reference, a.sink[work.head] * log2_e);
        inverse[r] = shrink / sum;
        const int i = work.query0 + row + 8 * r;
        const int64_t n = static_cast<int64_t>(work.sequence) * a.length + i;
        if (i < a.length && writes) out.lse[work.head * out.lse_step + n] = (reference + log2f(sum)) * ln_2;
        if constexpr (rare) {
            float most = maxima[r];
            most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 1));
            most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 2));
            if (out.maxima && i < a.length && writes)
                out.maxima[work.head * out.maxima_step + n] =
                    constants.factor[row + 8 * r] == 0.0f ? -INFINITY : most;
        }
    }
}

template <class T, int D, ScoreMode mode, bool rare>
KERNEL(128, 1)
void attention_kernel(AttentionInput<T> a, ForwardOutput<T> out) {
    using Layout = ForwardLayout<T, D, mode, rare>;
    using Shape = typename Layout::Shape;
    constexpr int M = Shape::M, N = Shape::N, C = Shape::C;
    constexpr int tile_rows = Shape::rows, keys = Shape::keys;
    auto& tiles = shared<Layout>();
    const Work work(a, tile_rows, static_cast<int>(blockIdx.x));
    const int sequence = work.sequence, query0 = work.query0;
    if (sequence < 0) return;
    const int last_query = min(query0 + tile_rows, a.length) - 1;
    const int first_key = a.first_visible(sequence, query0) / keys * keys;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int row0 = static_cast<int>(threadIdx.x / 32) * (16 * M), row = row0 + lane / 4;  // of the tile

    Arrivals<T, D, mode, rare> arrivals(a, tiles, work);
    arrivals.start_queries();
    arrivals.start_keys(first_key);
    arrivals.read_table(first_key);
    RowState<M, 1> own_state;
    auto& state = state_of(tiles, own_state);
    float factors[2 * M], maxima[2 * M];  // maxima of this thread's columns
    write_constants<T, D, mode, rare, M>(tiles, factors, a, work, row, last_query);
    clear_rows(state, maxima);
    if constexpr (mode == ScoreMode::plain) {
        cp_async_wait<1>();
        __syncthreads();  // the queries are there
        turn_queries(tiles.q, factors, row);
    }
    Fragments<M, C> output;
    output.clear();

#pragma unroll 1
    for (int key0 = first_key; key0 <= last_query; key0 += keys) {
        cp_async_wait<0>();
        __syncthreads();  // the keys are there, and nobody needs the values before
        arrivals.start_values(key0);
        arrivals.write_table();
        const int warp_first = query0 + row0, warp_last = min(warp_first + 16 * M - 1, last_query);
        const int(&first_visible)[tile_rows] = tiles.constants.first_visible;
        const bool seen = first_visible[row0] < key0 + keys && warp_first <= last_query && key0 <= warp_last;
        const bool whole = first_visible[row0 + 16 * M - 1] <= key0 && key0 + keys - 1 <= warp_first;
        const Sight sight{query0 + row, key0 + lane % 4 * 2, seen, !whole};
        Fragments<M, N> scores;
        if (sight.any) multiply_keys(scores, arrivals, sight, row0, key0);
        cp_async_wait<0>();
        __syncthreads();  // values and table are there, and nobody needs the keys
        if (key0 + keys <= last_query) arrivals.start_keys(key0 + keys);
        if (sight.any) {
            if constexpr (mode == ScoreMode::forget)
                score_tile<mode, rare>(scores, maxima, a, out, sight, Nothing{}, tiles.constants, row);
            else if constexpr (Layout::tabled)
                score_tile<mode, rare>(scores, maxima, a, out, sight, tiles.table, tiles.constants, row);
            if constexpr (may_forget<mode>) {
                if (has_forget<mode>(a)) forget_tile(scores, tiles.forget, row);
            }
            if (sight.masked) mask_tile(scores, tiles.constants, sight, row);
            softmax_tile<mode>(scores, state, output, tiles.constants, row);
            arrivals.read_table(key0 + keys);
            multiply_scores(output, scores, tiles.v, 0, a.channels);
        } else {
            arrivals.read_table(key0 + keys);
        }
    }

    const Work now(a, tile_rows, anew(static_cast<int>(blockIdx.x)));  // not kept along the way
    float inverse[2 * M];
    finish_rows<rare>(inverse, state, maxima, a, out, now, tiles.constants, row);
    const HeadRows<T> to{
        out.o.at(static_cast<int64_t>(now.sequence) * a.length, static_cast<int64_t>(now.head) * a.channels),
        out.o.stride, a.length, a.channels, out.vectors};
    write_rows(out, output, inverse, tiles.q, to, row0, now.query0);
}

template <class T, int D, ScoreMode mode, bool rare>
void launch_attention(const AttentionInput<T>& a, const ForwardOutput<T>& out, Stream stream) {
    using Shape = ForwardShape<T, D, mode, rare>;
    constexpr size_t shared_bytes = sizeof(ForwardLayout<T, D, mode, rare>);
    static_assert(shared_bytes <= 99 * 1024, "what a block may have from sm_80 on");
    const int64_t blocks = blocks_for(a.length, Shape::rows) * int64_t{a.batch} * a.heads;
    const int64_t across = std::min<int64_t>(blocks, (int64_t{1} << 31) - 1);
    launch(attention_kernel<T, D, mode, rare>,
           {dim3(static_cast<unsigned>(across), blocks_for(blocks, across)), dim3(Shape::threads),
            shared_bytes, stream},
           a, out);
}

}  // namespace

void attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k, const Tensor& v,
               const AttentionSpec& spec, Stream stream, const HopperWorkers& workers) {
    const int64_t tokens = spec.batch * spec.length;
    const auto by_head = [&](const Tensor& t) {
        return t.cols() == tokens && (t.rows() == spec.heads || spec.heads == 0);
    };
    check(o.rows() == tokens && o.cols() == q.cols() && by_head(lse) && (!row_maxima || by_head(row_maxima)),
          "attention of {}x{} into o {}x{}, lse {}x{}", q.rows(), q.cols(), o.rows(), o.cols(), lse.rows(),
          lse.cols());
    if (tokens == 0 || spec.heads == 0) return;
    if (workers.count > 0 && !row_maxima && attention_sm90_serves(o, {q, k, v}, spec))
        return attention_sm90(o, lse, {q, k, v}, spec, workers, stream);
    with_element(q.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const AttentionInput<T> a = attention_input<T>(q, k, v, spec);
        const ForwardOutput<T> out{.o = view<T>(o),
                                   .lse = lse.f32(),
                                   .lse_step = lse.row_stride,
                                   .maxima = row_maxima.f32(),
                                   .maxima_step = row_maxima.row_stride,
                                   .absolute = spec.absolute_maxima,
                                   .vectors = spec.head_dim % wide<T> == 0 && aligned(o)};
        with_head_tile(spec.head_dim, [&](auto tile) {
            constexpr int D = decltype(tile)::value;
            if (row_maxima || spec.far_keys)
                return launch_attention<T, D, ScoreMode::general, true>(a, out, stream);
            if constexpr (std::is_same_v<T, bf16>) {
                const ScoreMode mode = score_mode(spec);
                if (mode == ScoreMode::plain)
                    return launch_attention<T, D, ScoreMode::plain, false>(a, out, stream);
                if (mode == ScoreMode::forget)
                    return launch_attention<T, D, ScoreMode::forget, false>(a, out, stream);
                if (mode == ScoreMode::table)
                    return launch_attention<T, D, ScoreMode::table, false>(a, out, stream);
            }
            launch_attention<T, D, ScoreMode::general, false>(a, out, stream);
        });
    });
}

}  // namespace longreach::cuda
