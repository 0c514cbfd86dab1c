// Shared by the attention kernels for Hopper: the list of work, fragments of a warpgroup's products, tables.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tiles_sm90.cuh"

namespace longreach::cuda {

// --- work

// The tiles of all heads of all sequences, as a list in which the longest tiles of a group of heads come first. The
// groups are so small that what the tiles of one read again stays in L2.
struct WorkList {
    int tiles;  // of a head
    int heads;  // of all sequences
    int heads_at_once;
    int* queue;  // of HopperWorkers
    HOST_DEVICE int items() const { return tiles * heads; }
};
struct Work {
    int head;  // of all sequences
    int rank;  // of the tile in its head, 0 the longest
};
HOST_DEVICE Work work_at(const WorkList& list, int index) {
    const int per_group = list.tiles * list.heads_at_once, group = index / per_group;
    const int first = group * list.heads_at_once;
    const int left = list.heads - first, in_group = left < list.heads_at_once ? left : list.heads_at_once;
    const int rest = index - group * per_group;
    return {first + rest % in_group, rest / in_group};
}

// The list of work as a block sees it, in shared memory. The next item goes to the worker that is free first: a worker
// begins with the item of its own number, and its copier's first thread then counts on in list.queue. How long an item
// takes is known to nobody before (documents and windows cut tiles off), and no result depends on who does it: an item
// writes what is its own. The copier is at most two items ahead.
struct WorkItems {
    static constexpr int ahead = 2;
    using Position = RingPosition<ahead>;
    int index[ahead];
    RingBarriers<ahead> ring;

    DEVICE void init(int reading_warps) { ring.init(1, arriving_lanes * reading_warps); }

    // Of the copier's first thread: body(index, position) for each item of this worker, in order. What a kernel has twice
    // for items in turn, such as tiles of queries, goes by the same position.
    template <class Body>
    DEVICE void hand_out(const WorkList& list, Body body) {
        const int workers = static_cast<int>(gridDim.x);
        Position at;
        for (int item = static_cast<int>(blockIdx.x);;) {
            ring.wait_empty(at);
            index[at.stage()] = item;
            barrier_arrive(ring.full[at.stage()]);
            if (item >= list.items()) break;
            const int next =
                workers + atomicAdd(list.queue, 1);  // on its way while the body waits for stages
            body(item, at);
            at.next();
            item = next;
        }
        // Each item was followed by one request: the last worker to end leaves the queue as it was.
        if (atomicAdd(list.queue + 1, 1) == workers - 1) {
            atomicAdd(list.queue, -list.items());
            atomicAdd(list.queue + 1, -workers);
        }
    }
    // Of every other warp: whether there is an item at this position, which is at() until the warp calls done().
    DEVICE bool wait(const WorkList& list, const Position& at) {
        ring.wait_full(at);
        return index[at.stage()] < list.items();
    }
    DEVICE int at(const Position& position) const { return index[position.stage()]; }
    DEVICE void done(Position& position) {
        ring.release(position);
        position.next();
    }
};

// A tile of `rows` queries, and its tiles of `keys` keys from the last visible one down.
struct QueryItem {
    int sequence, head, query0, first_tile, tiles;
};
template <int rows, int keys>
DEVICE QueryItem query_item(const AttentionInput<bf16>& a, const WorkList& list, int index) {
    const Work work = work_at(list, index);
    QueryItem item;
    item.sequence = work.head / a.heads;
    item.head = work.head % a.heads;
    item.query0 = (list.tiles - 1 - work.rank) * rows;
    item.first_tile = (min(item.query0 + rows, a.length) - 1) / keys;
    item.tiles = item.first_tile - a.first_visible(item.sequence, item.query0) / keys + 1;
    return item;
}

// --- products

// sums [64, D] += p [64, N] times rows b [N, D]; p in registers, 16 of its columns per entry.
template <int N, int D>
DEVICE void multiply_packed(float (&sums)[D / 2], const uint32_t (&p)[N / 16][4], const BoxedTile<N, D>& b) {
    const Operand of_b = operand(b.data[0][0], BoxedTile<N, D>::box_bytes);
#pragma unroll
    for (int k = 0; k < N / 16; ++k) product<D, true>(sums, p[k], advance(of_b, k * 16 * 128), true);
}
// sums [64, N] = rows a [64, D], in registers, 16 channels per entry, times rows b [N, D].
template <int N, int D>
DEVICE void multiply_fragments(float (&sums)[N / 2], const uint32_t (&a)[D / 16][4],
                               const BoxedTile<N, D>& b) {
    const Operand of_b = operand(b.data[0][0]);
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
        product<N, false>(sums, a[k], advance(of_b, k / 4 * BoxedTile<N, D>::box_bytes + k % 4 * 32), k > 0);
}
// A warp's 16 rows of a tile as such operands.
template <int R, int D>
DEVICE void read_fragments(uint32_t (&to)[D / 16][4], const BoxedTile<R, D>& from, int warp_row) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
        ldmatrix_x4(to[k], from.chunk(warp_row + lane % 16, 16 * k + lane / 16 * 8));
}
// Columns 16 k to 16 k + 16 of a warpgroup's sums, rounded to bf16, as the operand of a product.
template <int count>
DEVICE void pack_columns(uint32_t (&to)[4], const float (&from)[count], int k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int first = 4 * (2 * k + i / 2) + i % 2 * 2;
        to[i] = pack_bf16(from[first], from[first + 1]);
    }
}

// --- tables

template <ScoreMode mode>
inline constexpr bool tabled = mode == ScoreMode::table || mode == ScoreMode::gain;

// What shared memory holds of a distance: gain and bias, or the gain alone, which halves what a tile reads of its table.
// Two: entries of neighbouring distances.
template <ScoreMode mode>
struct TableEntry {
    using One = float2;
    using Two = float4;
};
template <>
struct TableEntry<ScoreMode::gain> {
    using One = float;
    using Two = float2;
};
// A gain and an addend of each of two distances. Table: the addend is the bias times log2(e), y2 = gain z2 + addend.
// Gain: with c = bias_of_gain, it is c gain, and y2 + c = gain (z2 + addend).
DEVICE float4 gains_and_addends(float4 entries, float) {
    return entries;
}
DEVICE float4 gains_and_addends(float2 gains, float c) {
    return {gains.x, c * gains.x, gains.y, c * gains.y};
}

// Entries of the pairs of a tile of Q queries and K keys, as TableSlice has them, twice: copy s starts with entry s. A
// thread's neighbouring columns have neighbouring entries; in the copy where the first one's place is even both come in
// one access. The copies are 64 bytes (modulo 128) apart: even and odd rows meet other banks.
template <int Q, int K, ScoreMode mode>
struct alignas(16) PairedTable {
    using One = typename TableEntry<mode>::One;
    using Two = typename TableEntry<mode>::Two;
    static constexpr int entries = Q + K, line = 128 / sizeof(One),
                         distance = (entries + line - 1) / line * line + line / 2;
    One copies[2][distance];
    DEVICE void write(int e, One entry) {
        copies[0][e] = entry;
        if (e > 0) copies[1][e - 1] = entry;
    }
    // Entries of query q and keys k and k + 1 (of the tile), k - q + Q - 1 >= 0.
    DEVICE const Two* of(int q, int k) const {
        const int e = k - q + Q - 1;
        return reinterpret_cast<const Two*>(&copies[e & 1][e - (e & 1)]);
    }
};

// Entries of a tile of pairs, by `threads` threads of which this is number `thread`.
template <int threads, int Q, int K, ScoreMode mode>
DEVICE void write_table(PairedTable<Q, K, mode>& to, const AttentionInput<bf16>& a, int head, int query0,
                        int key0, int thread) {
    const float* gain = a.gain + head * a.gain_step;
    // Entry e is that of distance Q - 1 - e + query0 - key0; those without a visible pair hold any number.
    const int entries = static_cast<int>(a.table_length), first = entries - Q - query0 + key0;
    for (int e = thread; e < Q + K; e += threads) {
        const int i = min(max(first + e, 0), entries - 1);
        if constexpr (mode == ScoreMode::gain)
            to.write(e, gain[i]);
        else
            to.write(e, {gain[i], (a.bias + head * a.bias_step)[i] * log2_e});
    }
}

// The forget sums of `count` positions.
template <int count>
struct alignas(16) SumsOfTile {
    float2 of[count];
    // Of position x and the next, x even.
    DEVICE float4 two(int x) const { return *reinterpret_cast<const float4*>(&of[x]); }
};
template <int threads, int count>
DEVICE void write_sums(SumsOfTile<count>& to, const AttentionInput<bf16>& a, int sequence, int head,
                       int first, int thread) {
    for (int i = thread; i < count; i += threads)
        to.of[i] = split_sum(forget_sum(a, sequence, head, first + i));
}
// Those of a thread's two rows.
struct SumsOfRows {
    float2 of[2];
    DEVICE void read(const AttentionInput<bf16>& a, int sequence, int head, int row) {
#pragma unroll
        for (int r = 0; r < 2; ++r) of[r] = split_sum(forget_sum(a, sequence, head, row + 8 * r));
    }
};

// What shared memory holds of a tile of pairs besides operands: its table, or the forget sums of its columns.
struct Nothing {};
template <int queries, int keys, ScoreMode mode>
using TableOfTile = std::conditional_t<tabled<mode>, PairedTable<queries, keys, mode>, Nothing>;
template <int count, ScoreMode mode>
using SumsOfColumns = std::conditional_t<mode == ScoreMode::forget, SumsOfTile<count>, Nothing>;

// The tables of all tiles of pairs of this worker's queries, or the forget sums of their keys, by warps 1 to 3; each
// arrives at the barrier of its stage.
template <int rows, int keys, ScoreMode mode, int stages>
DEVICE void write_tables(const AttentionInput<bf16>& a, const WorkList& list, WorkItems& items,
                         TableOfTile<rows, keys, mode> (&tables)[stages],
                         SumsOfColumns<keys, mode> (&sums)[stages], RingBarriers<stages>& ring) {
    RingPosition<stages> at;
    for (WorkItems::Position of_item; items.wait(list, of_item); items.done(of_item)) {
        const QueryItem item = query_item<rows, keys>(a, list, items.at(of_item));
        for (int j = 0; j < item.tiles; ++j) {
            ring.wait_empty(at);
            const int key0 = (item.first_tile - j) * keys, thread = static_cast<int>(threadIdx.x) - 32;
            if constexpr (mode == ScoreMode::forget)
                write_sums<96>(sums[at.stage()], a, item.sequence, item.head, key0, thread);
            else
                write_table<96>(tables[at.stage()], a, item.head, item.query0, key0, thread);
            __syncwarp();
            if (arrives(static_cast<int>(threadIdx.x))) barrier_arrive(ring.full[at.stage()]);
            at.next();
        }
    }
}

// --- warpgroups

// A warp's 16 rows of a warpgroup's sums to its place in a tile, rounded; factors: of the thread's two rows.
template <int R, int D>
DEVICE void place_rows(BoxedTile<R, D>& to, int warp_row, const float (&sums)[D / 2],
                       const float (&factors)[2]) {
    const int lane = anew(static_cast<int>(threadIdx.x % 32));
#pragma unroll
    for (int c = 0; c < D / 16; ++c) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int first = 4 * (2 * c + i / 2) + i % 2 * 2;
            words[i] = pack_bf16(sums[first] * factors[i % 2], sums[first + 1] * factors[i % 2]);
        }
        stmatrix_x4(to.chunk(warp_row + lane % 16, 16 * c + lane / 16 * 8), words);
    }
}
// --- host side

inline bool sm90_serves(const AttentionSpec& spec) {
    const ScoreMode mode = score_mode(spec);
    return (spec.head_dim == 64 || spec.head_dim == 128) && mode != ScoreMode::general &&
           spec.batch * spec.heads * (spec.length / 128 + 1) < int64_t{1} << 31 &&
           spec.distance_gain.cols() < int64_t{1} << 31;
}
// body(channels, mode): the constants of the instance for `spec`.
template <class Body>
void with_sm90_instance(const AttentionSpec& spec, Body body) {
    const auto with_mode = [&](auto channels) {
        if (spec.distance_gain && spec.bias_of_gain != 0.0f)
            body(channels, std::integral_constant<ScoreMode, ScoreMode::gain>{});
        else if (spec.distance_gain)
            body(channels, std::integral_constant<ScoreMode, ScoreMode::table>{});
        else if (spec.forget)
            body(channels, std::integral_constant<ScoreMode, ScoreMode::forget>{});
        else
            body(channels, std::integral_constant<ScoreMode, ScoreMode::plain>{});
    };
    if (spec.head_dim == 64)
        with_mode(std::integral_constant<int, 64>{});
    else
        with_mode(std::integral_constant<int, 128>{});
}

// Tiles of `rows` rows; heads: of a sequence. Of a group of heads the keys and values (or queries and gradients), 4 bytes
// per channel and position, take a third of 50 MB of L2.
inline WorkList work_list(const AttentionSpec& spec, int rows, int64_t heads, const HopperWorkers& workers) {
    const int64_t bytes = std::max<int64_t>(4 * spec.length * spec.head_dim, 1), all = spec.batch * heads;
    return {.tiles = static_cast<int>(blocks_for(spec.length, rows)),
            .heads = static_cast<int>(all),
            .heads_at_once = static_cast<int>(std::clamp<int64_t>((int64_t{16} << 20) / bytes, 1, all)),
            .queue = workers.queue};
}
inline dim3 grid_of(const WorkList& list, const HopperWorkers& workers) {
    return dim3(static_cast<unsigned>(std::min(list.items(), workers.count)));
}

}  // namespace longreach::cuda
