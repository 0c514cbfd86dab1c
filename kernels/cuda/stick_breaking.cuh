// Shared by the kernels of stick-breaking attention:
//
//   P_ij = s(y_ij) prod over j < k < i of (1 - s(y_ik)), s the logistic function
//        = 2^(a_ij - sum over j < k < i of b_ik),   a = log2 s(y), b = -log2(1 - s(y))
//
// over visible keys; a query does not see its own key. With y2 = y log2(e) and r = log2(1 + 2^-|y2|):
// a = min(y2, 0) - r, b = max(y2, 0) + r.
//
// Tiles are squares of 32 queries and 32 keys in f32, whatever the storage. A block of 128 threads computes the
// products of a tile with FMAs, from slabs of 64 channels. In between a warp has one query, a lane one key, and
// sums over the nearer keys are sums over the lanes above. There is no form for tensor cores: these kernels
// are to be right, at the speed of the f32 units.
#pragma once

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/workspaces.h"

namespace longreach::cuda {

inline constexpr int stick_threads = 128;  // of a block
inline constexpr int stick_warps = stick_threads / 32;
inline constexpr int slab_channels = 64;

// Beyond this sum of b every weight is 0 in f32: 2^-150 rounds to it.
inline constexpr float used_up = 150.0f;

// One score y2 of a stick.
struct Break {
    float taken;  // a
    float left;   // b
    float small;  // 2^-|y2|
};
DEVICE Break break_at(float y2) {
    const float small = exp2_approx(-fabsf(y2));
    const float r = log1pf(small) * log2_e;
    return {fminf(y2, 0.0f) - r, fmaxf(y2, 0.0f) + r, small};
}

// Sums over the lanes of a warp, whose keys ascend.
struct NearerSum {
    float nearer;  // over the lanes above this one
    float total;   // over all lanes
};
DEVICE NearerSum sum_of_nearer(float own, int lane) {
    float sum = own;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const float other = __shfl_down_sync(all_lanes, sum, by);
        sum += lane + by < 32 ? other : 0.0f;
    }
    const float above = __shfl_down_sync(all_lanes, sum, 1);
    return {lane < 31 ? above : 0.0f, __shfl_sync(all_lanes, sum, 0)};
}

DEVICE bool sees_before(int query, int key, int first_visible, int length) {
    return key >= first_visible && key < query && query < length;
}

// Gain and bias log2(e) of a head's pair at distance t, which is visible; {1, 0} without tables.
template <class T>
DEVICE float2 table_entry(const AttentionInput<T>& a, int head, int t) {
    if (!a.gain) return {1.0f, 0.0f};
    const int64_t at = a.table_length - 1 - t;
    return {a.gain[head * a.gain_step + at], a.bias[head * a.bias_step + at] * log2_e};
}

// 32 rows of a head, 64 of its channels. The odd stride keeps a column's rows in different banks.
struct StickSlab {
    float of[stick_edge][slab_channels + 1];
};
// Rows and channels that do not exist are zeros. Barriers are the caller's.
template <class T>
DEVICE void load_slab(StickSlab& to, const HeadRows<const T>& from, int first_row, int first_channel) {
#pragma unroll 4
    for (int e = static_cast<int>(threadIdx.x); e < stick_edge * slab_channels; e += stick_threads) {
        const int r = e / slab_channels, c = e % slab_channels, channel = first_channel + c;
        const bool exists = first_row + r < from.length && channel < from.channels;
        to.of[r][c] = exists ? widen(from.row(first_row + r)[channel]) : 0.0f;
    }
}

// A product of 32 rows and 8 n columns: the thread has rows row() and row() + 16, columns column() + 8 c.
template <int n>
struct StickProduct {
    float of[2][n];
    DEVICE static int row() { return static_cast<int>(threadIdx.x) / 8; }
    DEVICE static int column() { return static_cast<int>(threadIdx.x) % 8; }
    DEVICE void clear() {
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int c = 0; c < n; ++c) of[r][c] = 0.0f;
    }
    // Adds the sum over k < terms of left(row, k) right(k, column), in order of k.
    template <class Left, class Right>
    DEVICE void add(int terms, Left left, Right right) {
#pragma unroll 4
        for (int k = 0; k < terms; ++k) {
            const float low = left(row(), k), high = left(row() + 16, k);
#pragma unroll
            for (int c = 0; c < n; ++c) {
                const float x = right(k, column() + 8 * c);
                of[0][c] = fmaf(low, x, of[0][c]);
                of[1][c] = fmaf(high, x, of[1][c]);
            }
        }
    }
    // body(row, column, element)
    template <class Body>
    DEVICE void each(Body body) const {
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int c = 0; c < n; ++c) body(row() + 16 * r, column() + 8 * c, of[r][c]);
    }
};
using ScoreProduct = StickProduct<stick_edge / 8>;
using SlabProduct = StickProduct<slab_channels / 8>;

// Scores of a tile, then what becomes of them.
struct StickSquare {
    float of[stick_edge][stick_edge + 1];
};

// --- host side

template <class T>
AttentionInput<T> stick_input(const Tensor& q, const Tensor& k, const Tensor& v, AttentionSpec spec) {
    check(!spec.sink && !spec.row_square && !spec.forget && !spec.far_queries && !spec.far_keys,
          "stick-breaking attention has no sinks, row squares, forget sums or far pairs");
    spec.normaliser = Normaliser::softmax;  // what attention_input() refuses
    return attention_input<T>(q, k, v, spec);
}

}  // namespace longreach::cuda
