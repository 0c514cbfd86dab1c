// Attention forward for Hopper (sm_90a), bf16, heads of 64 or 128 channels; attention_forward.cu says what is computed
// and serves everything else.
//
// A block of one multiprocessor: one warpgroup copies, the others compute 64 queries each. The copier's first thread
// orders tiles of queries, keys and values from the copy engine, rings of two stages ahead; with distance tables or
// forget sums its other warps write the entries that a tile of pairs needs. A computing warpgroup issues the products of
// the scores of tile j and of the outputs of tile j - 1 together, transforms scores while outputs are under way, and
// passes the turn to issue to its neighbour: the exponentials of one warpgroup run under the products of another.
//
// Keys go from the diagonal to the past, so the tiles with masks are the first one and those at the left edge. The work
// is a list of (head, tile of queries), longest first, heads in groups whose keys and values stay in L2; the next item
// goes to the worker that is free first. Queries have two places: those of the next item arrive while outputs leave.
//
// Products of a tile of 128 keys: 4 * 64 * 128 * D FLOPs per warpgroup. Shared memory gives them the queries (D * 128
// bytes), keys and values (2 * D * 256); the accumulators never leave registers.
#define LONGREACH_SM90 1  // what the builds that have these kernels define
#include <algorithm>
#include <cfloat>

#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/attention_sm90.cuh"
#include "kernels/cuda/tensor_map.h"

namespace longreach::cuda {
namespace {

template <int D>
struct Sm90Forward {
    static constexpr int groups = D == 64 ? 3 : 2, rows = 64 * groups, keys = 128, stages = 2;
    static constexpr int threads = 128 * (groups + 1);
    using Registers =
        std::conditional_t<D == 64, RegisterSplit<threads, 32, 160>, RegisterSplit<threads, 40, 232>>;
};

template <int D, ScoreMode mode>
struct Sm90Layout {
    using Shape = Sm90Forward<D>;
    BoxedTile<Shape::rows, D> q[WorkItems::ahead];  // then the outputs
    BoxedTile<Shape::keys, D> k[Shape::stages], v[Shape::stages];
    TableOfTile<Shape::rows, Shape::keys, mode> table[Shape::stages];
    SumsOfColumns<Shape::keys, mode> sums[Shape::stages];
    WorkItems items;
    RingBarriers<WorkItems::ahead> of_q;
    RingBarriers<Shape::stages> of_k, of_v;
};

struct Sm90ForwardArguments {
    CUtensorMap q, k, v, o;
    AttentionInput<bf16> a;
    float* lse;
    int64_t lse_step;  // elements from head to head
    WorkList list;
};

// --- the copying warpgroup

template <int D, ScoreMode mode>
DEVICE void copy_tiles(const Sm90ForwardArguments& x, Sm90Layout<D, mode>& block) {
    using Shape = Sm90Forward<D>;
    const AttentionInput<bf16>& a = x.a;
    RingPosition<Shape::stages> at_k, at_v;
    block.items.hand_out(x.list, [&](int index, const WorkItems::Position& at_q) {
        const QueryItem item = query_item<Shape::rows, Shape::keys>(a, x.list, index);
        const int kv_head = item.head / (a.heads / a.kv_heads);
        const auto keys = [&](int j) {
            block.of_k.wait_empty(at_k);
            PhaseBarrier& full = block.of_k.full[at_k.stage()];
            barrier_arrive_expecting(full, block.k[0].bytes);
            copy_tile(block.k[at_k.stage()], x.k, kv_head, (item.first_tile - j) * Shape::keys, item.sequence,
                      full);
            at_k.next();
        };
        keys(0);
        block.of_q.wait_empty(at_q);
        PhaseBarrier& of_queries = block.of_q.full[at_q.stage()];
        barrier_arrive_expecting(of_queries, block.q[0].bytes);
        copy_tile(block.q[at_q.stage()], x.q, item.head, item.query0, item.sequence, of_queries);
        for (int j = 0; j < item.tiles; ++j) {
            if (j + 1 < item.tiles) keys(j + 1);
            block.of_v.wait_empty(at_v);
            PhaseBarrier& full = block.of_v.full[at_v.stage()];
            barrier_arrive_expecting(full, block.v[0].bytes);
            copy_tile(block.v[at_v.stage()], x.v, kv_head, (item.first_tile - j) * Shape::keys, item.sequence,
                      full);
            at_v.next();
        }
    });
}

// --- the computing warpgroups

// Two rows per thread, 8 apart.
struct RowsOfThread {
    int first_visible[2];
    float multiplier[2];  // y2 (without a table) / s; plain: positive
    float reference[2];   // in units of y2; -infinity as long as nothing was seen
    float sum[2];         // of 2^(y2 - reference), over the thread's columns
    float shrink[2];      // what the last tile made of outputs before it
    bool moved;           // whether some shrink of the warp is not 1
};

// y2 of a tile from products; a thread's columns are 8 n + 2 (lane % 4) and the next.
template <int Q, int K, ScoreMode mode, int count>
DEVICE void apply_table(float (&s)[count], const RowsOfThread& rows, const PairedTable<Q, K, mode>& table,
                        float c, int row_of_tile) {
    const auto* const entries = table.of(row_of_tile + 8, static_cast<int>(threadIdx.x % 4) * 2);
#pragma unroll
    for (int diagonal = -1; diagonal < count / 4; ++diagonal) {
        const float4 two = gains_and_addends(entries[4 * (diagonal + 1)], c);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int n = diagonal + r;
            if (n < 0 || n >= count / 4) continue;
            float &low = s[4 * n + 2 * r], &high = s[4 * n + 2 * r + 1];
            if constexpr (mode == ScoreMode::gain) {
                low = fmaf(two.x, fmaf(low, rows.multiplier[r], two.y), -c);
                high = fmaf(two.z, fmaf(high, rows.multiplier[r], two.w), -c);
            } else {
                low = fmaf(two.x, low * rows.multiplier[r], two.y);
                high = fmaf(two.z, high * rows.multiplier[r], two.w);
            }
        }
    }
}

// The same with forget sums.
template <int keys, int count>
DEVICE void apply_sums(float (&s)[count], const RowsOfThread& rows, const SumsOfRows& own,
                       const SumsOfTile<keys>& of_keys) {
    const int t = static_cast<int>(threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < count / 4; ++n) {
        const float4 two = of_keys.two(8 * n + 2 * t);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float &low = s[4 * n + 2 * r], &high = s[4 * n + 2 * r + 1];
            low = fmaf(low, rows.multiplier[r], difference(own.of[r], {two.x, two.y}));
            high = fmaf(high, rows.multiplier[r], difference(own.of[r], {two.z, two.w}));
        }
    }
}

template <int count>
DEVICE void hide(float (&s)[count], const RowsOfThread& rows, int row, int key0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int column0 = key0 + static_cast<int>(threadIdx.x % 4) * 2;
        const int begin = rows.first_visible[r] - column0, end = row + 8 * r - column0 + 1;
#pragma unroll
        for (int n = 0; n < count / 4; ++n)
#pragma unroll
            for (int parity = 0; parity < 2; ++parity)
                if (8 * n + parity < begin || 8 * n + parity >= end) s[4 * n + 2 * r + parity] = -INFINITY;
    }
}

// Turns scores into 2^(y2 - reference) and adds them to the sums; a reference moves only when it must.
template <ScoreMode mode, int count>
DEVICE void exponentiate(float (&s)[count], RowsOfThread& rows) {
    constexpr float slack = 8.0f;
    bool moved = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float most = -INFINITY;
#pragma unroll
        for (int n = 0; n < count / 4; ++n) most = fmaxf(most, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
        most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 1));
        most = fmaxf(most, __shfl_xor_sync(all_lanes, most, 2));
        if (mode == ScoreMode::plain) most *= rows.multiplier[r];
        const bool moves = most > rows.reference[r] + slack;
        rows.shrink[r] = moves ? exp2_approx(rows.reference[r] - most) : 1.0f;
        moved |= moves;
        if (moves) rows.reference[r] = most;
        const float origin = rows.reference[r] == -INFINITY ? 0.0f : rows.reference[r];
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < count / 4; ++n)
#pragma unroll
            for (int parity = 0; parity < 2; ++parity) {
                float& y = s[4 * n + 2 * r + parity];
                y = exp2_approx(mode == ScoreMode::plain ? fmaf(y, rows.multiplier[r], -origin) : y - origin);
                sum += y;
            }
        rows.sum[r] = fmaf(rows.sum[r], rows.shrink[r], sum);
    }
    rows.moved = __any_sync(all_lanes, moved) != 0;
}

template <int count>
DEVICE void shrink_outputs(float (&o)[count], const RowsOfThread& rows) {
    if (!rows.moved) return;
#pragma unroll
    for (int i = 0; i < count; ++i) o[i] *= rows.shrink[i / 2 % 2];
}

// Takes and passes the turn to issue products. All warpgroups have the same number of turns.
template <int groups>
DEVICE void take_turn(int group) {
    if (group == 0) named_sync<first_turn>(256);
    if (group == 1) named_sync<first_turn + 1>(256);
    if (groups == 3 && group == 2) named_sync<first_turn + 2>(256);
}
template <int groups>
DEVICE void pass_turn(int group) {
    if (group == groups - 1) named_arrive<first_turn>(256);
    if (group == 0) named_arrive<first_turn + 1>(256);
    if (groups == 3 && group == 1) named_arrive<first_turn + 2>(256);
}
// Constants of a thread's rows. In mode plain queries with a negative factor turn their sign in shared memory.
template <int D, ScoreMode mode>
DEVICE RowsOfThread begin_rows(const Sm90ForwardArguments& x, BoxedTile<Sm90Forward<D>::rows, D>& q,
                               const QueryItem& item, int group, int row_of_tile) {
    const AttentionInput<bf16>& a = x.a;
    RowsOfThread rows;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int i = min(item.query0 + row_of_tile + 8 * r, a.length - 1);
        rows.first_visible[r] = a.first_visible(item.sequence, i);
        const float multiplier = a.scale * score_row(a, item.sequence, item.head, i).factor * log2_e;
        rows.multiplier[r] = mode != ScoreMode::plain ? multiplier
                             : multiplier == 0.0f     ? FLT_MIN  // finite scores become 0, -infinity stays
                                                      : fabsf(multiplier);
        rows.reference[r] = -INFINITY;
        rows.sum[r] = 0.0f;
        if (mode == ScoreMode::plain && multiplier < 0.0f)
            for (int channel = static_cast<int>(threadIdx.x % 4) * 8; channel < D; channel += 32) {
                auto* words = reinterpret_cast<uint4*>(q.chunk(row_of_tile + 8 * r, channel));
                uint4 w = *words;
                w.x ^= 0x80008000u, w.y ^= 0x80008000u, w.z ^= 0x80008000u, w.w ^= 0x80008000u;
                *words = w;
            }
    }
    if constexpr (mode == ScoreMode::plain) {
        fence_async_proxy();
        meet_group<Sm90Forward<D>::groups>(group);
    }
    return rows;
}

// lse, and the outputs through the place of the queries, which is then free.
template <int D>
DEVICE void finish_rows(const Sm90ForwardArguments& x, BoxedTile<Sm90Forward<D>::rows, D>& q,
                        PhaseBarrier& empty, const QueryItem& item, int group, int row_of_tile,
                        const RowsOfThread& rows, const float (&o)[D / 2]) {
    const AttentionInput<bf16>& a = x.a;
    const int lane = static_cast<int>(threadIdx.x % 32);
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float sum = rows.sum[r], reference = rows.reference[r], shrink = 1.0f;
        sum += __shfl_xor_sync(all_lanes, sum, 1);
        sum += __shfl_xor_sync(all_lanes, sum, 2);
        if (a.sink) shrink = add_sink(sum, reference, a.sink[item.head] * log2_e);
        inverse[r] = shrink / sum;
        const int i = item.query0 + row_of_tile + 8 * r;
        if (i < a.length && lane % 4 == 0)
            x.lse[item.head * x.lse_step + static_cast<int64_t>(item.sequence) * a.length + i] =
                (reference + log2f(sum)) * ln_2;
    }
    place_rows(q, row_of_tile - lane / 4, o, inverse);
    fence_async_proxy();
    meet_group<Sm90Forward<D>::groups>(group);
    if (threadIdx.x % 128 == 0) {
        store_rows(x.o, q, 64 * group, item.head, item.query0 + 64 * group, item.sequence);
        tensor_stores_commit();
        tensor_stores_read();
        barrier_arrive(empty);
    }
}

template <int D, ScoreMode mode>
DEVICE void compute_tiles(const Sm90ForwardArguments& x, Sm90Layout<D, mode>& block) {
    using Shape = Sm90Forward<D>;
    constexpr int keys = Shape::keys, groups = Shape::groups;
    const int group = static_cast<int>(threadIdx.x / 128) - 1;
    const int warp_row = 64 * group + static_cast<int>(threadIdx.x % 128 / 32) * 16;
    const int row_of_tile = warp_row + static_cast<int>(threadIdx.x % 32 / 4);
    RingPosition<Shape::stages> at_k;                        // values go one tile behind the keys
    if (group == groups - 1) named_arrive<first_turn>(256);  // the first turn is warpgroup 0's
    for (WorkItems::Position at_q; block.items.wait(x.list, at_q); block.items.done(at_q)) {
        const QueryItem item = query_item<Shape::rows, keys>(x.a, x.list, block.items.at(at_q));
        block.of_q.wait_full(at_q);
        RowsOfThread rows = begin_rows<D, mode>(x, block.q[at_q.stage()], item, group, row_of_tile);
        float s[keys / 2], o[D / 2];
        uint32_t p[keys / 16][4];
        SumsOfRows own;
        if constexpr (mode == ScoreMode::forget)
            own.read(x.a, item.sequence, item.head, item.query0 + row_of_tile);
#pragma unroll
        for (int i = 0; i < D / 2; ++i) o[i] = 0.0f;
        int key0 = item.first_tile * keys;
        const int last_key0 = key0 - (item.tiles - 1) * keys;
        // The scores of the tile at key0, which are in s, become shares of a row, and the tile's keys are free.
        const auto transform = [&] {
            const int row = item.query0 + row_of_tile;
            if constexpr (tabled<mode>)
                apply_table(s, rows, block.table[at_k.stage()], x.a.bias_of_gain, row_of_tile);
            if constexpr (mode == ScoreMode::forget) apply_sums(s, rows, own, block.sums[at_k.stage()]);
            block.of_k.release(at_k);
            at_k.next();
            const bool whole = key0 + keys - 1 <= item.query0 + warp_row &&
                               __all_sync(all_lanes, rows.first_visible[1] <= key0) != 0;
            if (!whole) hide(s, rows, row, key0);
            exponentiate<mode>(s, rows);
        };
        const auto pack = [&] {
#pragma unroll
            for (int k = 0; k < keys / 16; ++k) pack_columns(p[k], s, k);
        };

        block.of_k.wait_full(at_k);
        take_turn<groups>(group);
        products_fence();
        multiply_boxes<keys>(s, block.q[at_q.stage()], 64 * group, block.k[at_k.stage()]);
        products_commit();
        pass_turn<groups>(group);
        products_wait<0>();
        transform();
        pack();
#pragma unroll 1
        while ((key0 -= keys) >= last_key0) {
            block.of_k.wait_full(at_k);
            take_turn<groups>(group);
            products_fence();
            multiply_boxes<keys>(s, block.q[at_q.stage()], 64 * group, block.k[at_k.stage()]);
            products_commit();
            block.of_v.wait_full(at_k.before(1));
            products_fence();  // the first one orders p and o; ptxas wants another
            multiply_packed(o, p, block.v[at_k.before(1).stage()]);
            products_commit();
            pass_turn<groups>(group);
            products_wait<1>();
            transform();
            products_wait<0>();
            block.of_v.release(at_k.before(2));
            shrink_outputs(o, rows);
            pack();
        }
        block.of_v.wait_full(at_k.before(1));
        products_fence();
        multiply_packed(o, p, block.v[at_k.before(1).stage()]);
        products_commit();
        products_wait<0>();
        block.of_v.release(at_k.before(1));
        // Not kept in registers along the way.
        const QueryItem same = query_item<Shape::rows, keys>(x.a, x.list, block.items.at(at_q));
        finish_rows<D>(x, block.q[at_q.stage()], block.of_q.empty[at_q.stage()], same, group, row_of_tile,
                       rows, o);
    }
    if (group == 0) named_sync<first_turn>(256);  // takes the last turn that was passed
}

template <int D, ScoreMode mode>
KERNEL(Sm90Forward<D>::threads, 1)
void attention_sm90_kernel(const __grid_constant__ Sm90ForwardArguments x) {
    using Shape = Sm90Forward<D>;
    auto& block = shared<Sm90Layout<D, mode>>();
    if (threadIdx.x == 0) {
        // The warps that compute, and with tables or forget sums those that write them.
        block.items.init(4 * Shape::groups + (mode != ScoreMode::plain ? 3 : 0));
        block.of_q.init(1, Shape::groups);
        block.of_k.init(mode != ScoreMode::plain ? 1 + 3 * arriving_lanes : 1,
                        4 * arriving_lanes * Shape::groups);
        block.of_v.init(1, 4 * arriving_lanes * Shape::groups);
        fence_barrier_init();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        fewer_registers<Shape::Registers::copier>();
        if (threadIdx.x == 0) copy_tiles(x, block);
        if constexpr (mode != ScoreMode::plain)
            if (threadIdx.x >= 32)
                write_tables<Shape::rows, Shape::keys, mode>(x.a, x.list, block.items, block.table,
                                                             block.sums, block.of_k);
    } else {
        more_registers<Shape::Registers::computer>();
        compute_tiles(x, block);
    }
}

// --- host side

template <int D, ScoreMode mode>
void launch_forward(Tensor o, Tensor lse, const QueryKeyValue& in, const AttentionSpec& spec,
                    const HopperWorkers& workers, Stream stream) {
    using Shape = Sm90Forward<D>;
    constexpr size_t shared_bytes = sizeof(Sm90Layout<D, mode>);
    static_assert(shared_bytes <= 227 * 1024);
    const auto map = [&](const Tensor& t, int rows) { return tensor_map(t, spec.batch, spec.length, rows); };
    const Sm90ForwardArguments arguments{.q = map(in.q, Shape::rows),
                                         .k = map(in.k, Shape::keys),
                                         .v = map(in.v, Shape::keys),
                                         .o = map(o, 64),
                                         .a = attention_input<bf16>(in.q, in.k, in.v, spec),
                                         .lse = lse.f32(),
                                         .lse_step = lse.row_stride,
                                         .list = work_list(spec, Shape::rows, spec.heads, workers)};
    launch(attention_sm90_kernel<D, mode>,
           {grid_of(arguments.list, workers), dim3(Shape::threads), shared_bytes, stream}, arguments);
}

}  // namespace

bool attention_sm90_serves(const Tensor& o, const QueryKeyValue& in, const AttentionSpec& spec) {
    return !spec.far_keys && sm90_serves(spec) && has_tensor_map(in.q) && has_tensor_map(in.k) &&
           has_tensor_map(in.v) && has_tensor_map(o);
}

void attention_sm90(Tensor o, Tensor lse, const QueryKeyValue& in, const AttentionSpec& spec,
                    const HopperWorkers& workers, Stream stream) {
    with_sm90_instance(spec, [&](auto channels, auto mode) {
        launch_forward<decltype(channels)::value, decltype(mode)::value>(o, lse, in, spec, workers, stream);
    });
}

}  // namespace longreach::cuda
