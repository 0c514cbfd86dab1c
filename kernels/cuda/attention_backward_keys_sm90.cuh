// The key pass of attention's backward for Hopper: dK and dV, summed over the queries of all heads of a group, and half of dc.
#pragma once

#include "kernels/cuda/attention_backward_sm90.cuh"

namespace longreach::cuda {

// Of a tile of queries the second parts of the forget sums, less lse2; the terms hold the first ones.
template <int count>
struct alignas(16) SecondParts {
    float of[count];
};

template <int D, ScoreMode mode>
struct Sm90KeyPass {
    using Shape = Sm90Backward<D>;
    // The warps that write terms need more than 24; with tables or forget sums the others need all that can be had, and
    // the terms' warps, which wait most of the time, keep up to 32 bytes in local memory.
    using Registers =
        std::conditional_t<D == 64 || mode == ScoreMode::plain, RegisterSplit<Shape::threads, 40, 232>,
                           RegisterSplit<Shape::threads, 24, 240>>;
    static constexpr int met = Shape::queries_met, stages = Shape::query_stages;
    BoxedTile<Shape::own, D> k, v;  // then their gradients
    BoxedTile<met, D> q[stages], dout[stages];
    Terms terms[stages][met];
    using Table = TableOfTile<met, Shape::own, mode>;
    using Columns = std::conditional_t<mode == ScoreMode::forget, SecondParts<met>, Nothing>;
    Table table[stages];
    Columns columns[stages];
    WorkItems items;
    RingBarriers<1> of_own;
    RingBarriers<stages> of_met;
};

// A tile of keys of one key/value head; queries of each of its heads from key0 to `end`, in tiles from key0 on.
struct KeyItem {
    int sequence, kv_head, key0, end;
};
DEVICE KeyItem key_item(const Sm90BackwardArguments& x, int index, int own) {
    const AttentionInput<bf16>& a = x.a;
    const Work work = work_at(x.list, index);
    KeyItem item;
    item.sequence = work.head / a.kv_heads;
    item.kv_head = work.head % a.kv_heads;
    item.key0 = work.rank * own;  // early keys are seen by most queries
    item.end = end_of_sight(a, item.sequence, min(item.key0 + own, a.length) - 1, item.key0);
    return item;
}
// body(head, query0) for the tiles of queries of all heads of the group, in order.
template <int met, class Body>
DEVICE void for_queries(const Sm90BackwardArguments& x, const KeyItem& item, Body body) {
    const int group = x.a.heads / x.a.kv_heads;
#pragma unroll 1
    for (int head = item.kv_head * group; head < (item.kv_head + 1) * group; ++head)
#pragma unroll 1
        for (int query0 = item.key0; query0 < item.end; query0 += met) body(head, query0);
}

template <int D, ScoreMode mode>
DEVICE void copy_queries(const Sm90BackwardArguments& x, Sm90KeyPass<D, mode>& block) {
    using Pass = Sm90KeyPass<D, mode>;
    RingPosition<1> at_own;
    RingPosition<Pass::stages> at;
    block.items.hand_out(x.list, [&](int index, const WorkItems::Position&) {
        const KeyItem item = key_item(x, index, Pass::Shape::own);
        block.of_own.wait_empty(at_own);
        PhaseBarrier& full = block.of_own.full[0];
        barrier_arrive_expecting(full, 2 * block.k.bytes);
        copy_tile(block.k, x.k, item.kv_head, item.key0, item.sequence, full);
        copy_tile(block.v, x.v, item.kv_head, item.key0, item.sequence, full);
        at_own.next();
        for_queries<Pass::met>(x, item, [&](int head, int query0) {
            block.of_met.wait_empty(at);
            PhaseBarrier& to = block.of_met.full[at.stage()];
            barrier_arrive_expecting(to, 2 * block.q[0].bytes);
            copy_tile(block.q[at.stage()], x.q, head, query0, item.sequence, to);
            copy_tile(block.dout[at.stage()], x.dout, head, query0, item.sequence, to);
            at.next();
        });
    });
}
// The rest of a stage, by three warps.
template <int D, ScoreMode mode>
DEVICE void write_terms(const Sm90BackwardArguments& x, Sm90KeyPass<D, mode>& block) {
    using Pass = Sm90KeyPass<D, mode>;
    const int thread = static_cast<int>(threadIdx.x) - 32;
    RingPosition<Pass::stages> at;
    for (WorkItems::Position of_item; block.items.wait(x.list, of_item); block.items.done(of_item)) {
        const KeyItem item = key_item(x, block.items.at(of_item), Pass::Shape::own);
        for_queries<Pass::met>(x, item, [&](int head, int query0) {
            block.of_met.wait_empty(at);
            if (thread < Pass::met) {
                float second = 0.0f;
                block.terms[at.stage()][thread] =
                    terms_of<mode>(x, item.sequence, head, query0 + thread, &second);
                if constexpr (mode == ScoreMode::forget) block.columns[at.stage()].of[thread] = second;
            }
            if constexpr (tabled<mode>)
                write_table<96>(block.table[at.stage()], x.a, head, query0, item.key0, thread);
            __syncwarp();
            if (arrives(static_cast<int>(threadIdx.x))) barrier_arrive(block.of_met.full[at.stage()]);
            at.next();
        });
    }
}

// What the key pass multiplies with dO and Q, as operands of products.
template <int met>
struct KeyOperands {
    uint32_t p[met / 16][4], ds[met / 16][4];
};

// P^T and dS^T (without ln(2)) from S^T and dP^T, rounded. A thread's rows are keys row_of_tile and 8 more, its columns
// queries 8 n + 2 t and the next; where it is masked, a hidden pair gets 0. Columns are taken 16 at a time, so that
// registers of products become those of operands.
template <bool masked, ScoreMode mode, int met, class Parts>
DEVICE void differentiate_keys(KeyOperands<met>& to, float (&s)[met / 2], float (&dp)[met / 2],
                               const Terms (&terms)[met], Parts& parts, float c, int row_of_tile, int key,
                               int query0) {
#pragma unroll
    for (int chunk = 0; chunk < met / 16; ++chunk) {
        const int column = 16 * chunk + anew(static_cast<int>(threadIdx.x % 4)) * 2;
        const auto pair = [&](int n, int r, int parity, const Terms& of, float gain, float addend) {
            const int i = 4 * (2 * chunk + n) + 2 * r + parity;
            s[i] = share<mode>(s[i], of, gain, addend);
            float dy = s[i] * (dp[i] - of.delta);
            dp[i] = dy * of.multiplier;
            if constexpr (tabled<mode>) dp[i] *= gain;
            if constexpr (masked) {
                const int of_key = key + 8 * r, query = query0 + 8 * n + column + parity;
                if (of_key > query || of_key < of.first_visible) s[i] = dp[i] = dy = 0.0f;
            }
            if constexpr (mode == ScoreMode::forget) parts.along[r] += dy;
        };
        if constexpr (tabled<mode>) {
#pragma unroll
            for (int diagonal = -1; diagonal < 2; ++diagonal) {
                // Of the second column's query, then of the first one's.
                const float4 two =
                    gains_and_addends(*parts.table->of(8 * diagonal + column + 1, row_of_tile), c);
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int n = diagonal + r;
                    if (n < 0 || n >= 2) continue;
                    pair(n, r, 0, terms[8 * n + column], two.z, two.w);
                    pair(n, r, 1, terms[8 * n + column + 1], two.x, two.y);
                }
            }
        } else {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                float2 seconds{};
                if constexpr (mode == ScoreMode::forget)
                    seconds = *reinterpret_cast<const float2*>(&parts.columns->of[8 * n + column]);
#pragma unroll
                for (int parity = 0; parity < 2; ++parity) {
                    const Terms of = terms[8 * n + column + parity];
                    const float2 sum{of.origin, parity == 0 ? seconds.x : seconds.y};
#pragma unroll
                    for (int r = 0; r < 2; ++r)
                        pair(n, r, parity, of, 1.0f,
                             mode == ScoreMode::forget ? difference(sum, parts.own.of[r]) : 0.0f);
                }
            }
        }
        pack_columns(to.p[chunk], s, chunk);
        pack_columns(to.ds[chunk], dp, chunk);
    }
}

template <int D, ScoreMode mode>
DEVICE void compute_keys(const Sm90BackwardArguments& x, Sm90KeyPass<D, mode>& block) {
    using Pass = Sm90KeyPass<D, mode>;
    constexpr int met = Pass::met;
    const int group = static_cast<int>(threadIdx.x / 128) - 1;
    const int warp_row = 64 * group + static_cast<int>(threadIdx.x % 128 / 32) * 16;
    const int row_of_tile = warp_row + static_cast<int>(threadIdx.x % 32 / 4);
    RingPosition<1> at_own;
    RingPosition<Pass::stages> at;
    for (WorkItems::Position of_item; block.items.wait(x.list, of_item); block.items.done(of_item)) {
        const KeyItem item = key_item(x, block.items.at(of_item), Pass::Shape::own);
        float dk[D / 2], dv[D / 2];
#pragma unroll
        for (int i = 0; i < D / 2; ++i) dk[i] = dv[i] = 0.0f;
        block.of_own.wait_full(at_own);
        // The tiles of all heads of the group; which head it is makes a difference to forget sums alone.
        int query0 = item.key0, left = x.a.heads / x.a.kv_heads * ((item.end - item.key0 + met - 1) / met);
        const auto head = [&] {
            const int tiles = (item.end - item.key0 + met - 1) / met;
            return (item.kv_head + 1) * (x.a.heads / x.a.kv_heads) - (left + tiles - 1) / tiles;
        };
        ScoreParts<typename Pass::Table, typename Pass::Columns> parts;
#pragma unroll 1
        for (; left > 0; --left) {
            block.of_met.wait_full(at);
            const auto& terms = block.terms[at.stage()];
            parts.table = &block.table[at.stage()];
            parts.columns = &block.columns[at.stage()];
            if constexpr (mode == ScoreMode::forget)
                if (query0 == item.key0) parts.own.read(x.a, item.sequence, head(), item.key0 + row_of_tile);
            float s[met / 2], dp[met / 2];
            products_fence();
            multiply_boxes<met>(s, block.k, 64 * group, block.q[at.stage()]);
            multiply_boxes<met>(dp, block.v, 64 * group, block.dout[at.stage()]);
            products_commit();
            products_wait<0>();
            const int warp_key = item.key0 + warp_row, key = item.key0 + row_of_tile;
            KeyOperands<met> operands;
            if (query0 < warp_key + 15 || terms[met - 1].first_visible > warp_key)
                differentiate_keys<true, mode>(operands, s, dp, terms, parts, x.a.bias_of_gain, row_of_tile,
                                               key, query0);
            else
                differentiate_keys<false, mode>(operands, s, dp, terms, parts, x.a.bias_of_gain, row_of_tile,
                                                key, query0);
            products_fence();
            multiply_packed(dv, operands.p, block.dout[at.stage()]);
            multiply_packed(dk, operands.ds, block.q[at.stage()]);
            products_commit();
            products_wait<0>();
            block.of_met.release(at);
            at.next();
            query0 += met;
            if (query0 < item.end) continue;
            query0 = item.key0;
            if constexpr (mode == ScoreMode::forget)
                parts.finish(x, item.sequence, head(), item.key0 + row_of_tile, true);
        }
        const float slope[] = {ln_2, ln_2}, as_is[] = {1.0f, 1.0f};
        place_rows(block.k, warp_row, dk, slope);
        place_rows(block.v, warp_row, dv, as_is);
        fence_async_proxy();
        meet_group<Pass::Shape::groups>(group);
        if (threadIdx.x % 128 == 0) {
            store_rows(x.dk, block.k, 64 * group, item.kv_head, item.key0 + 64 * group, item.sequence);
            store_rows(x.dv, block.v, 64 * group, item.kv_head, item.key0 + 64 * group, item.sequence);
            tensor_stores_commit();
            tensor_stores_read();
            barrier_arrive(block.of_own.empty[0]);
        }
        at_own.next();
    }
}

template <int D, ScoreMode mode>
KERNEL(Sm90Backward<D>::threads, 1)
void key_sm90_kernel(const __grid_constant__ Sm90BackwardArguments x) {
    using Pass = Sm90KeyPass<D, mode>;
    auto& block = shared<Pass>();
    if (threadIdx.x == 0) {
        block.items.init(4 * Pass::Shape::groups + 3);
        block.of_own.init(1, Pass::Shape::groups);
        block.of_met.init(1 + 3 * arriving_lanes, 4 * arriving_lanes * Pass::Shape::groups);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<Pass::Registers::copier>();
        if (threadIdx.x == 0) copy_queries(x, block);
        if (threadIdx.x >= 32) write_terms(x, block);
    } else {
        more_registers<Pass::Registers::computer>();
        compute_keys(x, block);
    }
}

}  // namespace longreach::cuda
