// Shared by the kernels of row statistics (kernels/row_statistics.h): a thread has one query and walks the keys,
// with the block's tiles in shared memory, so that its sums are its own.
#pragma once

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/row_statistics.h"

namespace longreach::cuda {

inline constexpr int statistics_rows = 64, statistics_keys = 32;  // of a tile

template <int D>
struct StatisticsLayout {
    // A thread reads its own row: the odd stride keeps the warp off one bank.
    float q[statistics_rows][D + 1];
    float k[statistics_keys][D];  // read by all threads alike
    TableSlice<statistics_rows, statistics_keys> table;
    float2 key_sum[statistics_keys];  // forget sums
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
        for (int c = static_cast<int>(threadIdx.x); c < from.channels; c += statistics_rows)
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
    // Of a key at distance t: z, log2 P and the logit by which keys are ranked; first: the first visible key;
    // watched: the distances of the keys that are watched.
    DEVICE void add(float z, float logit, float log, int t, bool first, const int (&watched)[watched_keys]) {
        const float p = exp2f(log);
        const float term = p > 0.0f ? p * log : p;  // a NaN stays one
        top_score = fmaxf(top_score, z);
        second_logit = fmaxf(second_logit, fminf(top_logit, logit));
        top_logit = fmaxf(top_logit, logit);
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

// The block's tile of queries and of keys is `q` and `k`; products with its keys for `row`.
template <int D>
DEVICE void multiply_row(float (&z)[statistics_keys], const StatisticsLayout<D>& tiles, int row,
                         int channels) {
    constexpr int together = 8;  // keys whose products a thread sums at once
#pragma unroll
    for (int j = 0; j < statistics_keys; j += together) {
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

// Where a query's statistics go, and what a softmax and a stick have each in their own way.
struct StatisticsRow {
    int head, heads;
    int64_t n;
    int pairs;  // of a query that sees two keys or more
    float top_logit, top_weight, second_weight, rest;
};
DEVICE void write_statistics(const StatisticsOutput& out, const Gathered& sums, const StatisticsRow& row) {
    using enum RowStatistic;
    const auto put = [&](RowStatistic which, int plus, double value) {
        const int64_t s = static_cast<int64_t>(which) + plus;
        out.data[(s * row.heads + row.head) * out.stride + row.n] = static_cast<float>(value);
    };
    const double count = row.pairs, each = count > 0 ? 1 / count : 0.0;
    const double p1 = sums.powers_before[0] * each, p2 = sums.powers_before[1] * each;
    const double p3 = sums.powers_before[2] * each, p4 = sums.powers_before[3] * each;
    put(top_score, 0, sums.top_score);
    put(top_logit, 0, row.top_logit);
    put(top_weight, 0, row.top_weight);
    put(second_weight, 0, row.second_weight);
    put(participation, 0, sums.squares_before);
    put(first_mass, 0, sums.first_mass);
    put(sink_mass, 0, row.rest);
    put(pairs, 0, count > 0 ? count : 0.0);
    put(mean, 0, static_cast<double>(sums.centre) + p1);
    put(second, 0, p2 - p1 * p1);
    put(third, 0, p3 - 3 * p1 * p2 + 2 * p1 * p1 * p1);
    put(fourth, 0, p4 - 4 * p1 * p3 + 6 * p1 * p1 * p2 - 3 * p1 * p1 * p1 * p1);
    put(support, 0, 0.0);  // of entmax, which no GPU computes
#pragma unroll
    for (int c = 0; c < distance_classes; ++c) {
        put(mass, c, sums.mass_before[c]);
        put(surprise, c, -sums.terms_before[c] * static_cast<double>(ln_2));
    }
#pragma unroll
    for (int w = 0; w < watched_keys; ++w) put(RowStatistic::watched, w, sums.watched_mass[w]);
}

// --- host side

inline void check_statistics(const Tensor& statistics, const Tensor& lse, const Tensor& watched,
                             const AttentionSpec& spec) {
    const int64_t tokens = spec.batch * spec.length;
    check(statistics.rows() == row_statistics * spec.heads && statistics.cols() == tokens &&
              lse.rows() == spec.heads && lse.cols() == tokens,
          "attention statistics {}x{} from lse {}x{}", statistics.rows(), statistics.cols(), lse.rows(),
          lse.cols());
    check(!watched || (watched.rows() == watched_keys && watched.cols() == tokens), "watched keys are {}x{}",
          watched.rows(), watched.cols());
}
inline StatisticsOutput statistics_output(const Tensor& statistics, const Tensor& lse,
                                          const Tensor& watched) {
    return {statistics.f32(),
            statistics.row_stride,
            lse.f32(),
            lse.row_stride,
            watched ? watched.i32() : nullptr,
            watched.row_stride};
}

}  // namespace longreach::cuda
