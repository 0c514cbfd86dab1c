// Statistics of attention by row: RowStatistic of every query and head, kernels/row_statistics.h.
//
// A second pass over the scores with the lse of the first. A thread has one query and walks its visible keys
// in ascending order, with the block's tiles of keys in shared memory; its sums are its own, so nothing
// is folded. Sums are f32 over the keys of a tile and f64 over tiles; moments are about the first score
// of the row that counts. 2 d FLOPs on the ordinary f32 units and one exp2 per visible pair: this is for
// occasional inspection of a model, not for training.
// With far pairs the tile of queries is loaded again wherever the pair changes, and in the tiles of keys that
// have both kinds both products are computed.
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/row_statistics.h"

namespace longreach::cuda {
namespace {

constexpr int rows = 64, keys = 32, together = 8;  // keys whose products a thread sums at once

template <int D>
struct StatisticsLayout {
    float q[rows][D + 1];  // a thread reads its own row: the odd stride keeps the warp off one bank
    float k[keys][D];      // read by all threads alike
    TableSlice<rows, keys> table;
    float2 key_sum[keys];  // forget sums
};

struct StatisticsOutput {
    float* data;
    int64_t stride;
    const float* lse;
    int64_t lse_stride;
    const int32_t* watched;  // may be null
    int64_t watched_stride;
};

// Rows first .. of a head in f32; rows and channels that do not exist are zeros.
template <int R, int Stride, class T>
DEVICE void load_rows(float (&to)[R][Stride], const HeadRows<const T>& from, int first) {
    for (int r = 0; r < R; ++r)
        for (int c = static_cast<int>(threadIdx.x); c < from.channels; c += rows)
            to[r][c] = first + r < from.length ? widen(from.row(first + r)[c]) : 0.0f;
}

// Sums of a query: over the current tile of keys, and over those before.
struct Gathered {
    float mass[distance_classes], terms[distance_classes], squares, powers[4];
    double mass_before[distance_classes], terms_before[distance_classes], squares_before, powers_before[4];
    float top_score, top_logit, second_logit, first_mass, watched_mass[watched_keys], centre;
    bool centred;

    DEVICE void clear_tile() {
#pragma unroll
        for (int c = 0; c < distance_classes; ++c) mass[c] = terms[c] = 0.0f;
#pragma unroll
        for (int p = 0; p < 4; ++p) powers[p] = 0.0f;
        squares = 0.0f;
    }
    DEVICE void clear() {
        clear_tile();
#pragma unroll
        for (int c = 0; c < distance_classes; ++c) mass_before[c] = terms_before[c] = 0.0;
#pragma unroll
        for (int p = 0; p < 4; ++p) powers_before[p] = 0.0;
        squares_before = 0.0;
        top_score = top_logit = second_logit = -INFINITY;
        first_mass = centre = 0.0f;
#pragma unroll
        for (int w = 0; w < watched_keys; ++w) watched_mass[w] = 0.0f;
        centred = false;
    }
    DEVICE void end_tile() {
#pragma unroll
        for (int c = 0; c < distance_classes; ++c) {
            mass_before[c] += static_cast<double>(mass[c]);
            terms_before[c] += static_cast<double>(terms[c]);
        }
#pragma unroll
        for (int p = 0; p < 4; ++p) powers_before[p] += static_cast<double>(powers[p]);
        squares_before += static_cast<double>(squares);
        clear_tile();
    }
    // z, its logit y2 and the lse in units of log 2, of a key at distance t; first: the first visible key;
    // watched: the distances of the keys that are watched.
    DEVICE void add(float z, float y2, float lse2, int t, bool first, const int (&watched)[watched_keys]) {
        const float log = y2 - lse2, p = exp2f(log);
        const float term = p > 0.0f ? p * log : p;  // a NaN stays one
        top_score = fmaxf(top_score, z);
        second_logit = fmaxf(second_logit, fminf(top_logit, y2));
        top_logit = fmaxf(top_logit, y2);
        squares = fmaf(p, p, squares);
        if (first) first_mass = p;
#pragma unroll
        for (int w = 0; w < watched_keys; ++w)
            if (t == watched[w]) watched_mass[w] = p;
        int64_t of_class = 0;
#pragma unroll
        for (int c = 1; c < distance_classes; ++c) of_class += t >= begin_of_class(c) ? 1 : 0;
#pragma unroll
        for (int c = 0; c < distance_classes; ++c) {
            mass[c] += of_class == c ? p : 0.0f;
            terms[c] += of_class == c ? term : 0.0f;
        }
        if (first || t == 0) return;
        if (!centred) centre = z, centred = true;
        const float x = z - centre, square = x * x;
        powers[0] += x;
        powers[1] += square;
        powers[2] = fmaf(square, x, powers[2]);
        powers[3] = fmaf(square, square, powers[3]);
    }
    DEVICE static constexpr int begin_of_class(int c) {
        int begin = 1;
        for (int i = 1; i < c; ++i) begin *= 10;
        return begin;
    }
};

// The block's tile of queries and of keys is `q` and `k`; scores of the keys key0 + [0, keys) for `row`.
template <int D>
DEVICE void multiply(float (&z)[keys], const StatisticsLayout<D>& tiles, int row, int channels) {
#pragma unroll
    for (int j = 0; j < keys; j += together) {
        float sum[together] = {};
        for (int c = 0; c < channels; ++c) {
            const float q = tiles.q[row][c];
#pragma unroll
            for (int u = 0; u < together; ++u) sum[u] = fmaf(q, tiles.k[j + u][c], sum[u]);
        }
#pragma unroll
        for (int u = 0; u < together; ++u) z[j + u] = sum[u];
    }
}

template <class T, int D>
KERNEL(rows, 1)
void statistics_kernel(AttentionInput<T> a, StatisticsOutput out) {
    auto& tiles = shared<StatisticsLayout<D>>();
    const int per_head = (a.length + rows - 1) / rows;
    const int64_t item = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x,
                  of_heads = item / per_head;
    if (of_heads >= static_cast<int64_t>(a.batch) * a.heads) return;  // the grid's last row may be longer
    const int sequence = static_cast<int>(of_heads / a.heads), head = static_cast<int>(of_heads % a.heads);
    const int query0 = (per_head - 1 - static_cast<int>(item % per_head)) * rows;
    const int row = static_cast<int>(threadIdx.x), i = query0 + row, kv_head = head / (a.heads / a.kv_heads);
    const bool exists = i < a.length;
    const int last_query = min(query0 + rows, a.length) - 1;
    const int64_t n = static_cast<int64_t>(sequence) * a.length + i;
    const int first = exists ? a.first_visible(sequence, i) : 0;
    const float2 query_sum = a.forget ? split_sum(forget_sum(a, sequence, head, i)) : float2{0.0f, 0.0f};
    const ScoreRow factors = exists ? score_row(a, sequence, head, i) : ScoreRow{1.0f, 0.0f};
    const float lse = exists ? out.lse[head * out.lse_stride + n] : 0.0f, lse2 = lse * log2_e;

    int watched_at[watched_keys];  // distances; -1: none
#pragma unroll
    for (int w = 0; w < watched_keys; ++w) {
        const int key = exists && out.watched ? out.watched[w * out.watched_stride + n] : -1;
        watched_at[w] = key >= 0 ? i - key : -1;
    }

    Gathered sums;
    sums.clear();
    bool holds_far = false, holds_any = false;  // which queries are in the tile
    for (int key0 = a.first_visible(sequence, query0) / keys * keys; key0 <= last_query; key0 += keys) {
        float s[keys];
        // Whether some pair of the tiles is far, and whether some is near.
        const bool far = a.far_k.data && last_query - key0 >= a.far_from;
        const bool near = !a.far_k.data || query0 - (key0 + keys - 1) < a.far_from;
        for (int which = 0; which < 2; ++which) {
            const bool of_far = which == 1;
            if (of_far ? !far : !near) continue;
            __syncthreads();  // nobody reads the tiles before
            if (!holds_any || holds_far != of_far)
                load_rows(tiles.q, a.head(of_far ? a.far_q : a.q, sequence, head), query0);
            load_rows(tiles.k, a.head(of_far ? a.far_k : a.k, sequence, kv_head), key0);
            if (a.gain) load_table<rows>(tiles.table, a, head, query0, key0);
            if (a.forget && row < keys)
                tiles.key_sum[row] = split_sum(forget_sum(a, sequence, head, key0 + row));
            holds_any = true;
            holds_far = of_far;
            __syncthreads();
            float product[keys];
            multiply(product, tiles, row, a.channels);
#pragma unroll
            for (int j = 0; j < keys; ++j)
                if (!of_far || !near || i - (key0 + j) >= a.far_from) s[j] = product[j];
        }
#pragma unroll
        for (int j = 0; j < keys; ++j) {
            const int key = key0 + j;
            if (!visible(i, key, first, a.length)) continue;
            const float2 entry = a.gain ? tiles.table.of(row, j) : float2{1.0f, 0.0f};
            const float forgotten = a.forget ? difference(query_sum, tiles.key_sum[j]) : 0.0f;
            const Score score = cuda::score<ScoreMode::general>(a, s[j], factors, entry, forgotten);
            sums.add(s[j] * a.scale, score.y2, lse2, i - key, key == first, watched_at);
        }
        sums.end_tile();
    }
    if (!exists) return;

    using enum RowStatistic;
    const auto put = [&](RowStatistic which, int plus, double value) {
        const int64_t s = static_cast<int64_t>(which) + plus;
        out.data[(s * a.heads + head) * out.stride + n] = static_cast<float>(value);
    };
    const double count = i - first - 1, each = count > 0 ? 1 / count : 0.0;
    const double p1 = sums.powers_before[0] * each, p2 = sums.powers_before[1] * each;
    const double p3 = sums.powers_before[2] * each, p4 = sums.powers_before[3] * each;
    put(top_score, 0, sums.top_score);
    put(top_logit, 0, sums.top_logit * ln_2);
    put(top_weight, 0, (sums.top_logit - lse2) * ln_2);
    put(second_weight, 0, (sums.second_logit - lse2) * ln_2);
    put(participation, 0, sums.squares_before);
    put(first_mass, 0, sums.first_mass);
    put(sink_mass, 0, a.sink ? expf(a.sink[head] - lse) : 0.0f);
    put(pairs, 0, count > 0 ? count : 0.0);
    put(mean, 0, static_cast<double>(sums.centre) + p1);
    put(second, 0, p2 - p1 * p1);
    put(third, 0, p3 - 3 * p1 * p2 + 2 * p1 * p1 * p1);
    put(fourth, 0, p4 - 4 * p1 * p3 + 6 * p1 * p1 * p2 - 3 * p1 * p1 * p1 * p1);
#pragma unroll
    for (int c = 0; c < distance_classes; ++c) {
        put(mass, c, sums.mass_before[c]);
        put(surprise, c, -sums.terms_before[c] * static_cast<double>(ln_2));
    }
#pragma unroll
    for (int w = 0; w < watched_keys; ++w) put(RowStatistic::watched, w, sums.watched_mass[w]);
}

}  // namespace

void attention_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                          const Tensor& watched, const AttentionSpec& spec, Stream stream) {
    const int64_t tokens = spec.batch * spec.length;
    check(statistics.rows() == row_statistics * spec.heads && statistics.cols() == tokens &&
              lse.rows() == spec.heads && lse.cols() == tokens,
          "attention statistics {}x{} from lse {}x{}", statistics.rows(), statistics.cols(), lse.rows(),
          lse.cols());
    check(!watched || (watched.rows() == watched_keys && watched.cols() == tokens), "watched keys are {}x{}",
          watched.rows(), watched.cols());
    if (tokens == 0 || spec.heads == 0) return;
    with_element(q.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const AttentionInput<T> a = attention_input<T>(q, k, k, spec);
        const StatisticsOutput out{statistics.f32(),
                                   statistics.row_stride,
                                   lse.f32(),
                                   lse.row_stride,
                                   watched ? watched.i32() : nullptr,
                                   watched.row_stride};
        const int64_t blocks = blocks_for(a.length, rows) * int64_t{a.batch} * a.heads;
        const int64_t across = std::min<int64_t>(blocks, (int64_t{1} << 31) - 1);
        with_head_tile(spec.head_dim, [&](auto tile) {
            constexpr int D = decltype(tile)::value;
            constexpr size_t shared_bytes = sizeof(StatisticsLayout<D>);
            static_assert(shared_bytes <= 99 * 1024, "what a block may have from sm_80 on");
            launch(statistics_kernel<T, D>,
                   {dim3(static_cast<unsigned>(across), blocks_for(blocks, across)), dim3(rows), shared_bytes,
                    stream},
                   a, out);
        });
    });
}

}  // namespace longreach::cuda
