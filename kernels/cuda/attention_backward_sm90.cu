// Gradients of attention for Hopper (sm_90a), bf16, heads of 64 or 128 channels: the key pass and the query pass.
// attention_backward.cu says what is computed, does the rest (delta, sinks, distance tables) and serves everything else.
//
// Blocks as in attention_forward_sm90.cu: one warpgroup copies, two compute 64 rows of a tile of 128 each.
//
//   key pass      own tile: 128 keys, their values. Per tile of queries S^T = K Q^T and dP^T = V dO^T, both operands in
//                 shared memory; P^T and dS^T go from registers into dV += P^T dO and dK += dS^T Q.
//   query pass    own tile: 128 queries, their dO, both in registers as operands for the whole walk. Per tile of keys
//                 S = Q K^T, dP = dO V^T and dQ += dS K.
//
// Seven products where one kernel would need five; in return nothing is added across blocks, so the order of every sum
// is fixed. A warpgroup's exponentials run under the products of the other.
#define LONGREACH_SM90 1  // what the builds that have these kernels define
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/attention_sm90.cuh"
#include "kernels/cuda/tensor_map.h"

namespace longreach::cuda {
namespace {

struct Sm90BackwardArguments {
    CUtensorMap q, k, v, dout;  // in boxes of the own tile or the ones met
    CUtensorMap dk, dv, dq;     // in boxes of 64 rows
    AttentionInput<bf16> a;
    const float* lse;
    int64_t lse_step;
    const float* delta;        // [H, N]
    float *dfactor, *dforget;  // [H, N] or null
    int64_t dfactor_step, dforget_step;
    WorkList list;
};

// Of a query: y2 = gain multiplier s + bias. origin: lse2, larger by c where gains_and_addends() gives y2 + c; with forget
// sums the first part of the query's sum, whose second part then carries -lse2. The product with dS lacks ln(2) of the
// slope, which dK and dQ get in the end. A query past the end has P = 2^-inf = 0.
struct alignas(16) Terms {
    float multiplier, origin, delta;
    int first_visible;
};
// second: the second part of the forget sum, less lse2.
template <ScoreMode mode>
DEVICE Terms terms_of(const Sm90BackwardArguments& x, int sequence, int head, int i, float* second) {
    const AttentionInput<bf16>& a = x.a;
    const bool exists = i < a.length;
    const int64_t n = static_cast<int64_t>(sequence) * a.length + i;
    Terms of{0.0f, HUGE_VALF, 0.0f, a.first_visible(sequence, exists ? i : a.length - 1)};
    if (exists) {
        const float lse = x.lse[head * x.lse_step + n];
        of.multiplier = a.scale * score_row(a, sequence, head, i).factor * log2_e;
        of.origin = mode == ScoreMode::gain ? fmaf(lse, log2_e, a.bias_of_gain) : lse * log2_e;
        of.delta = x.delta[head * a.tokens() + n];
    }
    if constexpr (mode == ScoreMode::forget) {
        const float2 sum = split_sum(forget_sum(a, sequence, head, i));
        *second = sum.y - of.origin;
        of.origin = sum.x;
    }
    return of;
}

// P of a pair whose distance has this gain and addend; with forget sums the addend is their difference less lse2.
template <ScoreMode mode>
DEVICE float share(float s, const Terms& of, float gain, float addend) {
    if constexpr (mode == ScoreMode::forget) return exp2_approx(fmaf(s, of.multiplier, addend));
    if constexpr (mode == ScoreMode::gain)
        return exp2_approx(fmaf(gain, fmaf(s, of.multiplier, addend), -of.origin));
    if constexpr (mode == ScoreMode::table)
        return exp2_approx(fmaf(gain, s * of.multiplier, addend) - of.origin);
    return exp2_approx(fmaf(s, of.multiplier, -of.origin));
}

template <int D>
struct Sm90Backward {
    static constexpr int groups = 2, own = 128, threads = 128 * (groups + 1);
    static constexpr int queries_met = D == 64 ? 96 : 64, query_stages = 2;  // by the key pass
    static constexpr int keys_met = D == 64 ? 128 : 64, key_stages = 3;      // by the query pass
};

// What the gradients of a tile of scores need besides products: its table or the forget sums of its columns, and of the
// thread's two rows their forget sums and the sums of dY along them.
template <class Table, class Columns>
struct ScoreParts {
    const Table* table;
    const Columns* columns;
    SumsOfRows own;
    float along[2] = {};
    // The gradient at the forget sums of rows `row` and `row` + 8: less the sums along keys (negative), which comes first,
    // then plus those along queries.
    DEVICE void finish(const Sm90BackwardArguments& x, int sequence, int head, int row, bool negative) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float total = lanes_sum(along[r], 4);
            const int i = row + 8 * r;
            along[r] = 0.0f;
            if (!x.dforget || threadIdx.x % 4 != 0 || i >= x.a.length) continue;
            float& to = x.dforget[head * x.dforget_step + static_cast<int64_t>(sequence) * x.a.length + i];
            to = negative ? -total : to + total;
        }
    }
};

// --- the key pass

// Of a tile of queries the second parts of the forget sums, less lse2; the terms hold the first ones.
template <int count>
struct alignas(16) SecondParts {
    float of[count];
};

template <int D, ScoreMode mode>
struct KeyPass {
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
DEVICE void copy_queries(const Sm90BackwardArguments& x, KeyPass<D, mode>& block) {
    using Pass = KeyPass<D, mode>;
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
DEVICE void write_terms(const Sm90BackwardArguments& x, KeyPass<D, mode>& block) {
    using Pass = KeyPass<D, mode>;
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
DEVICE void compute_keys(const Sm90BackwardArguments& x, KeyPass<D, mode>& block) {
    using Pass = KeyPass<D, mode>;
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
    using Pass = KeyPass<D, mode>;
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

// --- the query pass

template <int D, ScoreMode mode>
struct QueryPass {
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
DEVICE void copy_keys(const Sm90BackwardArguments& x, QueryPass<D, mode>& block) {
    using Pass = QueryPass<D, mode>;
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
DEVICE void finish_queries(const Sm90BackwardArguments& x, QueryPass<D, mode>& block, const QueryItem& item,
                           int group, int row_of_tile, const Terms (&rows)[2], const float (&dq)[D / 2],
                           const float (&dfactor)[2]) {
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
DEVICE void compute_queries(const Sm90BackwardArguments& x, QueryPass<D, mode>& block) {
    using Pass = QueryPass<D, mode>;
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
    using Pass = QueryPass<D, mode>;
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

// --- host side

template <int D, ScoreMode mode>
void launch_backward(const QueryKeyValue& d, const AttentionGradients& d_scores, const float* delta,
                     const Tensor& dout, const AttentionSaved& saved, const AttentionSpec& spec,
                     const HopperWorkers& workers, Stream stream) {
    using Shape = Sm90Backward<D>;
    constexpr size_t keys_bytes = sizeof(KeyPass<D, mode>), queries_bytes = sizeof(QueryPass<D, mode>);
    static_assert(keys_bytes <= 227 * 1024 && queries_bytes <= 227 * 1024);
    const auto map = [&](const Tensor& t, int rows) { return tensor_map(t, spec.batch, spec.length, rows); };
    const QueryKeyValue& in = saved.in;
    Sm90BackwardArguments x{.q = map(in.q, Shape::queries_met),
                            .k = map(in.k, Shape::own),
                            .v = map(in.v, Shape::own),
                            .dout = map(dout, Shape::queries_met),
                            .dk = map(d.k, 64),
                            .dv = map(d.v, 64),
                            .dq = map(d.q, 64),
                            .a = attention_input<bf16>(in.q, in.k, in.v, spec),
                            .lse = saved.lse.f32(),
                            .lse_step = saved.lse.row_stride,
                            .delta = delta,
                            .dfactor = d_scores.row_factor.f32(),
                            .dforget = d_scores.forget.f32(),
                            .dfactor_step = d_scores.row_factor.row_stride,
                            .dforget_step = d_scores.forget.row_stride,
                            .list = work_list(spec, Shape::own, spec.kv_heads, workers)};
    launch(key_sm90_kernel<D, mode>, {grid_of(x.list, workers), dim3(Shape::threads), keys_bytes, stream}, x);
    x.q = map(in.q, Shape::own);
    x.dout = map(dout, Shape::own);
    x.k = map(in.k, Shape::keys_met);
    x.v = map(in.v, Shape::keys_met);
    x.list = work_list(spec, Shape::own, spec.heads, workers);
    launch(query_sm90_kernel<D, mode>,
           {grid_of(x.list, workers), dim3(Shape::threads), queries_bytes, stream}, x);
}

}  // namespace

bool attention_backward_sm90_serves(const QueryKeyValue& d, const Tensor& dout, const AttentionSaved& saved,
                                    const AttentionSpec& spec) {
    const QueryKeyValue& in = saved.in;
    bool maps = sm90_serves(spec);
    for (const Tensor* t : {&in.q, &in.k, &in.v, &dout, &d.q, &d.k, &d.v}) maps = maps && has_tensor_map(*t);
    return maps;
}

void attention_backward_sm90(const QueryKeyValue& d, const AttentionGradients& d_scores, const float* delta,
                             const Tensor& dout, const AttentionSaved& saved, const AttentionSpec& spec,
                             const HopperWorkers& workers, Stream stream) {
    with_sm90_instance(spec, [&](auto channels, auto mode) {
        launch_backward<decltype(channels)::value, decltype(mode)::value>(d, d_scores, delta, dout, saved,
                                                                          spec, workers, stream);
    });
}

}  // namespace longreach::cuda
