// The query pass of attention's backward for Hopper: dQ, the gradients of row factors, and the other half of dc.
#pragma once

#include "kernels/cuda/attention_backward_sm90.cuh"

namespace longreach::cuda {

template <int D, ScoreMode mode>
struct Sm90QueryPass {
    using Shape = Sm90Backward<D>;
    using Registers = RegisterSplit<Shape::threads, 40, 232>;
    static constexpr int met = Shape::keys_met, stages = Shape::key_stages;
    BoxedTile<Shape::own, D> q, dout;  // then dQ in the place of q
    BoxedTile<met, D> k[stages], v[stages];
    using Table = TableOfTile<Shape::own, met, mode>;
    using Columns = SumsOfColumns<met, mode>;
    Table table[stages];
    Columns columns[stages];
    WorkItems items;
    RingBarriers<1> of_own;
    RingBarriers<stages> of_met;
};

template <int D, ScoreMode mode>
DEVICE void copy_keys(const Sm90BackwardArguments& x, Sm90QueryPass<D, mode>& block) {
    using Pass = Sm90QueryPass<D, mode>;
    RingPosition<1> at_own;
    RingPosition<Pass::stages> at;
    block.items.hand_out(x.list, [&](int index, const WorkItems::Position&) {
        const QueryItem item = query_item<Pass::Shape::own, Pass::met>(x.a, x.list, index);
        const int kv_head = item.head / (x.a.heads / x.a.kv_heads);
        block.of_own.wait_empty(at_own);
        PhaseBarrier& full = block.of_own.full[0];
        barrier_arrive_expecting(full, 2 * block.q.bytes);
        copy_tile(block.q, x.q, item.head, item.query0, item.sequence, full);
        copy_tile(block.dout, x.dout, item.head, item.query0, item.sequence, full);
        at_own.next();
        for (int j = 0; j < item.tiles; ++j) {
            block.of_met.wait_empty(at);
            PhaseBarrier& to = block.of_met.full[at.stage()];
            barrier_arrive_expecting(to, 2 * block.k[0].bytes);
            copy_tile(block.k[at.stage()], x.k, kv_head, (item.first_tile - j) * Pass::met, item.sequence,
                      to);
            copy_tile(block.v[at.stage()], x.v, kv_head, (item.first_tile - j) * Pass::met, item.sequence,
                      to);
            at.next();
        }
    });
}
// dY gain in place of dP, of the thread's rows r and columns 8 n + 2 t and the next.
template <bool masked, ScoreMode mode, int met, class Parts>
DEVICE void slopes_of_queries(float (&dp)[met / 2], const float (&s)[met / 2], const Terms (&rows)[2],
                              Parts& parts, float c, int row_of_tile, int row, int key0) {
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int diagonal = -1; diagonal < met / 8; ++diagonal) {
        float4 two = {1.0f, 0.0f, 1.0f, 0.0f};
        if constexpr (tabled<mode>)
            two = gains_and_addends(*parts.table->of(row_of_tile + 8, 8 * (diagonal + 1) + 2 * t), c);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int n = diagonal + r;
            if (n < 0 || n >= met / 8) continue;
            if constexpr (mode == ScoreMode::forget) {
                const float4 sums = parts.columns->two(8 * n + 2 * t);
                two.y = difference(parts.own.of[r], {sums.x, sums.y});
                two.w = difference(parts.own.of[r], {sums.z, sums.w});
            }
#pragma unroll
            for (int parity = 0; parity < 2; ++parity) {
                const float gain = parity == 0 ? two.x : two.z, addend = parity == 0 ? two.y : two.w;
                const int i = 4 * n + 2 * r + parity, key = key0 + 8 * n + 2 * t + parity;
                float slope = share<mode>(s[i], rows[r], gain, addend) * (dp[i] - rows[r].delta);
                if constexpr (tabled<mode>) slope *= gain;
                if constexpr (masked) {
                    if (key > row + 8 * r || key < rows[r].first_visible) slope = 0.0f;
                }
                if constexpr (mode == ScoreMode::forget) parts.along[r] += slope;
                dp[i] = slope;
            }
        }
    }
}

template <int D, ScoreMode mode>
DEVICE void finish_queries(const Sm90BackwardArguments& x, Sm90QueryPass<D, mode>& block,
                           const QueryItem& item, int group, int row_of_tile, const Terms (&rows)[2],
                           const float (&dq)[D / 2], const float (&dfactor)[2]) {
    const AttentionInput<bf16>& a = x.a;
    const int lane = static_cast<int>(threadIdx.x % 32);
    if (x.dfactor) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float total = lanes_sum(dfactor[r], 4);
            const int i = item.query0 + row_of_tile + 8 * r;
            if (lane % 4 == 0 && i < a.length)
                x.dfactor[item.head * x.dfactor_step + static_cast<int64_t>(item.sequence) * a.length + i] =
                    a.scale * total;
        }
    }
    const float slope[] = {rows[0].multiplier * ln_2, rows[1].multiplier * ln_2};
    place_rows(block.q, row_of_tile - lane / 4, dq, slope);
    fence_async_proxy();
    meet_group<Sm90Backward<D>::groups>(group);
    if (threadIdx.x % 128 == 0) {
        store_rows(x.dq, block.q, 64 * group, item.head, item.query0 + 64 * group, item.sequence);
        tensor_stores_commit();
        tensor_stores_read();
        barrier_arrive(block.of_own.empty[0]);
    }
}

template <int D, ScoreMode mode>
DEVICE void compute_queries(const Sm90BackwardArguments& x, Sm90QueryPass<D, mode>& block) {
    using Pass = Sm90QueryPass<D, mode>;
    constexpr int met = Pass::met;
    const int group = static_cast<int>(threadIdx.x / 128) - 1;
    const int warp_row = 64 * group + static_cast<int>(threadIdx.x % 128 / 32) * 16;
    const int row_of_tile = warp_row + static_cast<int>(threadIdx.x % 32 / 4);
    RingPosition<1> at_own;
    RingPosition<Pass::stages> at;
    for (WorkItems::Position of_item; block.items.wait(x.list, of_item); block.items.done(of_item)) {
        const QueryItem item = query_item<Pass::Shape::own, met>(x.a, x.list, block.items.at(of_item));
        uint32_t q[D / 16][4], dout[D / 16][4], ds[met / 16][4];
        float dq[D / 2], dfactor[2] = {};
#pragma unroll
        for (int i = 0; i < D / 2; ++i) dq[i] = 0.0f;
        ScoreParts<typename Pass::Table, typename Pass::Columns> parts;
        Terms rows[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            rows[r] = terms_of<mode>(x, item.sequence, item.head, item.query0 + row_of_tile + 8 * r,
                                     &parts.own.of[r].y);
            if constexpr (mode == ScoreMode::forget) parts.own.of[r].x = rows[r].origin;
        }
        block.of_own.wait_full(at_own);
        read_fragments(q, block.q, warp_row);
        read_fragments(dout, block.dout, warp_row);
#pragma unroll 1
        for (int j = 0; j < item.tiles; ++j) {
            float s[met / 2], dp[met / 2];
            block.of_met.wait_full(at);
            products_fence();
            multiply_fragments<met, D>(s, q, block.k[at.stage()]);
            multiply_fragments<met, D>(dp, dout, block.v[at.stage()]);
            products_commit();
            products_wait<0>();
            parts.table = &block.table[at.stage()];
            parts.columns = &block.columns[at.stage()];
            const int key0 = (item.first_tile - j) * met, row = item.query0 + row_of_tile;
            const bool whole = key0 + met - 1 <= item.query0 + warp_row &&
                               __all_sync(all_lanes, rows[1].first_visible <= key0) != 0;
            if (whole)
                slopes_of_queries<false, mode, met>(dp, s, rows, parts, x.a.bias_of_gain, row_of_tile, row,
                                                    key0);
            else
                slopes_of_queries<true, mode, met>(dp, s, rows, parts, x.a.bias_of_gain, row_of_tile, row,
                                                   key0);
            if (x.dfactor) {
#pragma unroll
                for (int i = 0; i < met / 2; ++i) dfactor[i / 2 % 2] = fmaf(dp[i], s[i], dfactor[i / 2 % 2]);
            }
#pragma unroll
            for (int k = 0; k < met / 16; ++k) pack_columns(ds[k], dp, k);
            products_fence();
            multiply_packed(dq, ds, block.k[at.stage()]);
            products_commit();
            products_wait<0>();
            block.of_met.release(at);
            at.next();
        }
        at_own.next();
        // Not kept in registers along the way.
        const QueryItem same = query_item<Pass::Shape::own, met>(x.a, x.list, block.items.at(of_item));
        finish_queries<D, mode>(x, block, same, group, row_of_tile, rows, dq, dfactor);
        if constexpr (mode == ScoreMode::forget)
            parts.finish(x, same.sequence, same.head, same.query0 + row_of_tile, false);
    }
}

template <int D, ScoreMode mode>
KERNEL(Sm90Backward<D>::threads, 1)
void query_sm90_kernel(const __grid_constant__ Sm90BackwardArguments x) {
    using Pass = Sm90QueryPass<D, mode>;
    auto& block = shared<Pass>();
    if (threadIdx.x == 0) {
        block.items.init(4 * Pass::Shape::groups + (mode != ScoreMode::plain ? 3 : 0));
        block.of_own.init(1, Pass::Shape::groups);
        block.of_met.init(mode != ScoreMode::plain ? 1 + 3 * arriving_lanes : 1,
                          4 * arriving_lanes * Pass::Shape::groups);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<Pass::Registers::copier>();
        if (threadIdx.x == 0) copy_keys(x, block);
        if constexpr (mode != ScoreMode::plain)
            if (threadIdx.x >= 32)
                write_tables<Pass::Shape::own, Pass::met, mode>(x.a, x.list, block.items, block.table,
                                                                block.columns, block.of_met);
    } else {
        more_registers<Pass::Registers::computer>();
        compute_queries(x, block);
    }
}

}  // namespace longreach::cuda
