// A small kernel as Hopper wants them, for the harness's own tests: one warpgroup copies tiles into a ring of two stages,
// two multiply them, out = bf16(q k^T table) v over all tiles of keys. With a fault it is that kernel broken on purpose.
#pragma once

#include "kernels/cuda/ptx_sm90.cuh"

namespace longreach::hopper_test {

using namespace cuda;

enum Fault {
    none,
    no_empty_wait,          // a stage is filled again while it may be read
    parity_not_flipped,     // at the wrap of the ring
    bytes_short,            // one table is not announced
    early_release,          // V's stage given back before the product is waited for
    no_proxy_fence,         // between stmatrix and the store
    fence_by_one,           // of the threads that wrote
    fence_behind_barrier,   // too late for the thread that stores
    other_stride,           // descriptor of a tile with rows of another length
    tile_on_512,            // a swizzled tile that is not on 1024 bytes
    rescaled_in_flight,     // sums written before the wait
    sums_read_in_flight,    // and read
    fragments_overwritten,  // registers of a written before the wait
    wrong_turn,             // the turn is passed to oneself
    producer_ends_early,    // and the consumers wait for ever
    copy_nobody_awaits,     // one tile too many
    init_unfenced,          // fence_barrier_init() is missing
    init_twice,
    no_barrier_behind_init,
    used_before_init,
    arrival_too_many,
    no_products_fence,
    fence_before_writes,  // products_fence() before the registers of a are written
    no_room,              // the producer keeps its registers, the consumers ask for more
    old_split,            // 32 + 2 * 240 registers where 3 * 168 were launched with
    three_warps_ask,      // for more registers
    unequal_descriptors,  // among the warps of a warpgroup
    named_count,          // sync and arrive of one barrier with different counts
    store_not_waited_for,
    box_overwritten,         // before tensor_stores_read()
    operand_not_waited_for,  // a product of a tile without the wait for its copy
    product_not_waited_for,
    table_read_early,    // what a copy brings, by a thread that has not waited
    copies_overlap,      // two to one place in one phase
    copy_onto_unfenced,  // what a thread has written there before
    odd_registers,       // no multiple of 8
    fragments_read_in_flight,
    one_barrier,  // for both warpgroups, each of which should wait for its own warps
    lanes_apart,  // half of each warp at another named barrier
    faults
};

constexpr int keys_of_tile = 64, columns = 64, tile_bytes = 64 * 128;

struct Layout {
    alignas(1024) unsigned char q[2][tile_bytes];
    unsigned char k[2][tile_bytes];
    unsigned char v[2][tile_bytes];
    unsigned char spare[1024];
    alignas(16) float table[2][keys_of_tile];
    PhaseBarrier full_q, full_k[2], full_v[2], empty_k[2], empty_v[2];
};

DEVICE uint32_t two_bf16(float low, float high) {
    return __bfloat16_as_ushort(__float2bfloat16(low)) |
           static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16(high))) << 16;
}

template <Fault fault>
DEVICE void produce(Layout& s, const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                    const float* table, int tiles) {
    constexpr int shift = fault == tile_on_512 ? 512 : 0;
    barrier_arrive_expecting(s.full_q, 2 * tile_bytes);
    for (int half = 0; half < 2; ++half) tensor_copy(s.q[half], q, 0, 64 * half, 0, s.full_q);
    if (fault == producer_ends_early) --tiles;
    if (fault == copy_nobody_awaits) ++tiles;
    for (int j = 0; j < tiles; ++j) {
        int stage = j % 2, empty = (j / 2 + 1) % 2;
        if (fault != no_empty_wait) barrier_wait(s.empty_k[stage], empty);
        constexpr int table_bytes = keys_of_tile * static_cast<int>(sizeof(float));
        barrier_arrive_expecting(s.full_k[stage], tile_bytes + (fault == bytes_short ? 0 : table_bytes));
        if (fault == arrival_too_many) barrier_arrive(s.full_k[stage]);
        tensor_copy(s.k[stage] + shift, k, 0, j * keys_of_tile, 0, s.full_k[stage]);
        bulk_copy(s.table[stage], table + j % 4 * keys_of_tile, table_bytes, s.full_k[stage]);
        if (fault == copies_overlap)
            bulk_copy(s.table[stage], table + j % 4 * keys_of_tile, table_bytes, s.full_k[stage]);
        barrier_wait(s.empty_v[stage], empty);
        barrier_arrive_expecting(s.full_v[stage], tile_bytes);
        tensor_copy(s.v[stage], v, 0, j * keys_of_tile, 0, s.full_v[stage]);
    }
}

// The turn to multiply goes from one warpgroup to the other.
DEVICE void await_turn(int group) {
    if (group == 0)
        named_sync<2>(256);
    else
        named_sync<3>(256);
}
template <Fault fault>
DEVICE void pass_turn(int group) {
    constexpr int threads = fault == named_count ? 128 : 256;
    if ((group == 0) != (fault == wrong_turn))
        named_arrive<3>(threads);
    else
        named_arrive<2>(threads);
}

template <Fault fault>
DEVICE void store_out(Layout& s, const CUtensorMap& out, const float (&o)[32], int group) {
    unsigned thread = threadIdx.x % 128, lane = thread % 32;
    unsigned row = thread / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
    for (unsigned n = 0; n < 8; n += 2) {
        uint32_t pairs[4];
        for (unsigned i = 0; i < 4; ++i) pairs[i] = two_bf16(o[4 * n + 2 * i], o[4 * n + 2 * i + 1]);
        stmatrix_x4(s.q[group] + row * 128 + ((n + lane / 16) ^ (row % 8)) * 16, pairs);
    }
    if (fault != no_proxy_fence && fault != fence_behind_barrier && (fault != fence_by_one || thread == 0))
        fence_async_proxy();
    if (fault == lanes_apart ? lane < 16 : group == 0 || fault == one_barrier)
        named_sync<4>(128);
    else
        named_sync<5>(128);
    if (fault == fence_behind_barrier) fence_async_proxy();
    if (thread != 0) return;
    tensor_store(out, s.q[group], 0, 64 * group, 0);
    tensor_stores_commit();
    if (fault == box_overwritten) s.q[group][0] = 0;
    if (fault != store_not_waited_for) tensor_stores_read();
}

template <Fault fault>
DEVICE void consume(Layout& s, const CUtensorMap& out, int tiles, int group) {
    unsigned thread = threadIdx.x % 128, t = thread % 4;
    float scores[32], o[32];
    uint32_t p[4][4];
    for (float& one : o) one = 0;
    if (group == 1) pass_turn<none>(1);
    barrier_wait(s.full_q, 0);
    for (int j = 0; j < tiles; ++j) {
        int stage = j % 2, full = fault == parity_not_flipped ? 0 : j / 2 % 2;
        float first = fault == table_read_early ? s.table[stage][t] : 0.0f;
        if (fault != operand_not_waited_for) barrier_wait(s.full_k[stage], full);
        if (fault == table_read_early) o[0] += first;
        await_turn(group);
        if (fault != no_products_fence) products_fence();
        Operand a = operand(s.q[group]), b = operand(s.k[stage]);
        if (fault == other_stride) b -= static_cast<uint64_t>(512 >> 4) << 32;
        if (fault == unequal_descriptors && thread >= 96) b = operand(s.k[1 - stage]);
        for (int k = 0; k < 4; ++k) product<columns>(scores, advance(a, 32 * k), advance(b, 32 * k), k > 0);
        products_commit();
        float early = fault == sums_read_in_flight ? scores[5] : 0.0f;
        products_wait<0>();
        pass_turn<fault>(group);
        for (int i = 0; i < 32; ++i) scores[i] *= s.table[stage][i / 4 * 8 + 2 * t + i % 2];
        if (fault == sums_read_in_flight) scores[5] += early;
        __syncwarp();  // every lane has read the table
        if (thread % 32 == 0) barrier_arrive(s.empty_k[stage]);
        if (fault == fence_before_writes) products_fence();
        for (int k = 0; k < 4; ++k)
            for (int i = 0; i < 4; ++i) p[k][i] = two_bf16(scores[8 * k + 2 * i], scores[8 * k + 2 * i + 1]);
        barrier_wait(s.full_v[stage], full);
        if (fault != fence_before_writes) products_fence();
        Operand values = operand(s.v[stage]);
        for (int k = 0; k < 4; ++k) product<columns, true>(o, p[k], advance(values, 2048 * k), true);
        products_commit();
        if (fault == rescaled_in_flight)
            for (float& one : o) one *= 0.5f;
        if (fault == fragments_overwritten) p[0][0] = 0;
        if (fault == fragments_read_in_flight) scores[0] = static_cast<float>(p[0][0]);
        if (fault == early_release && thread % 32 == 0) barrier_arrive(s.empty_v[stage]);
        if (fault != product_not_waited_for || j + 1 < tiles) products_wait<0>();
        if (fault != early_release && thread % 32 == 0) barrier_arrive(s.empty_v[stage]);
    }
    if (fault != product_not_waited_for) store_out<fault>(s, out, o, group);
}

template <Fault fault>
KERNEL(384, 1)
void pipeline(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
              const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap out,
              const float* table, int tiles) {
    Layout& s = shared<Layout>();
    if (fault == used_before_init && threadIdx.x == 32) barrier_wait(s.full_q, 1);
    if (threadIdx.x == 0) {
        barrier_init(s.full_q, 1);
        for (int stage = 0; stage < 2; ++stage) {
            barrier_init(s.full_k[stage], 1);
            barrier_init(s.full_v[stage], 1);
            barrier_init(s.empty_k[stage], 8);  // one of each warp
            barrier_init(s.empty_v[stage], 8);
        }
        if (fault == init_twice) barrier_init(s.full_q, 1);
        if (fault == copy_onto_unfenced) s.k[0][0] = 0;
        if (fault != init_unfenced) fence_barrier_init();
    }
    if (fault != no_barrier_behind_init) __syncthreads();
    int group = static_cast<int>(threadIdx.x / 128);
    if (group == 0) {
        constexpr int registers = fault == odd_registers ? 28 : fault == old_split ? 32 : 24;
        if (fault != no_room) fewer_registers<registers>();
        if (threadIdx.x == 0) produce<fault>(s, q, k, v, table, tiles);
    } else {
        if (fault != three_warps_ask || threadIdx.x % 128 >= 32) more_registers<240>();
        consume<fault>(s, out, tiles, group - 1);
    }
}

}  // namespace longreach::hopper_test
