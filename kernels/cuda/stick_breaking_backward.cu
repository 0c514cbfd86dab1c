// Gradients of stick-breaking attention. Per visible pair, with P rebuilt as in the forward pass:
//
//   dW_ij = P_ij <dO_i, v_j>
//   dy_ij = dW_ij - s(y_ij) C_ij
//   C_ij  = delta_i - sum over j < k < i of dW_ik,   delta_i = <dO_i, O_i>
//   dV = P^T dO     dK = dS^T Q     dQ = dS K     df_i = sum over j of dy gain z,     dS = dy dy/ds
//   dgain(t) = sum of dy f z and dbias(t) = sum of dy over i - j = t
//
// q, o, dO, dQ [N, H d]; k, v, dK, dV [N, G d]; df [H, N]. Reads q, k, v, o and dO. 10 d FLOPs, two exp2 and a
// logarithm per visible pair; nothing of size T x T is stored.
//
// Both sums over keys run from near to far, so a launch has one diagonal of tiles (tiles of queries less tiles of
// keys), the nearest first, and what a query has summed waits in device memory for the next launch: b and the
// rest of delta. On a diagonal a tile of keys meets one tile of queries, so a block, which has the tile and all
// heads of its group, may add to dQ, dK and dV in memory. Those sums are f32 whatever the storage, 8 bytes of
// traffic per element and tile; a last pass copies them. T / 32 launches: this is for sticks at all, not for the
// longest contexts. Blocks whose queries see none of the keys, or have used up their sticks, do nothing.
// Gradients of tables: a block adds along the diagonals of its tile into a slab, which a second launch per
// diagonal adds up by distance in f64. Every sum has one order.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stick_breaking.cuh"

namespace longreach::cuda {
namespace {

// Arguments of all kernels. Sums are dense: dq [N, H d], dk, dv [N, G d].
template <class T>
struct StickBackward {
    AttentionInput<T> in;
    View<const T> dout, o;
    float *broken, *rest;  // [H, N]: sum of b, delta less the sum of dW, over the diagonals so far
    float *dq, *dk, *dv;
    float* dfactor;  // [H, N] or null
    int64_t dfactor_step;
    float* slab;  // [B, H, tiles of the diagonal, 2, slab_sums] or null: sums of dy f z, of dy
};

// rest = delta: a warp per row and head.
template <class T>
KERNEL(256)
void stick_delta_kernel(StickBackward<T> b) {
    const int64_t pair = static_cast<int64_t>(blockIdx.x) * 8 + static_cast<int>(threadIdx.x) / 32;
    const int64_t row = pair / b.in.heads, head = pair % b.in.heads;
    if (row >= b.in.tokens()) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const T *dout = b.dout.at(row, head * b.in.channels), *o = b.o.at(row, head * b.in.channels);
    float sum = 0.0f;
    for (int c = lane; c < b.in.channels; c += 32) sum = fmaf(widen(dout[c]), widen(o[c]), sum);
    sum = warp_sum(sum);
    if (lane == 0) b.rest[head * b.in.tokens() + row] = sum;
}

struct StickQuery {
    float factor, broken, rest, dfactor;
    int first;  // visible key
};
struct StickTiles {
    StickSlab q, dout, k, v;
    StickSquare p, ds;    // products first
    StickSquare dl, dlz;  // dy, dy f z
    StickQuery query[stick_edge];
};

// Turns a query's products <q, k> in p and <dO, v> in ds into P and dS; a lane has a key.
template <class T>
DEVICE void differentiate_row(const AttentionInput<T>& a, StickTiles& tiles, int r, int head, int i,
                              int key0) {
    const int lane = static_cast<int>(threadIdx.x) % 32, j = key0 + lane;
    const StickQuery q = tiles.query[r];
    const bool seen = sees_before(i, j, q.first, a.length);
    const float2 entry = seen ? table_entry(a, head, i - j) : float2{1.0f, 0.0f};
    const Score s = score<ScoreMode::general>(a, tiles.p.of[r][lane], {q.factor, 0.0f}, entry);
    const Break b = break_at(s.y2);
    const float share = 1.0f / (1.0f + b.small), sigma = s.y2 < 0.0f ? share * b.small : share;
    const NearerSum broken = sum_of_nearer(seen ? b.left : 0.0f, lane);
    const float p = seen ? exp2_approx(b.taken - (q.broken + broken.nearer)) : 0.0f;
    const float dw = seen ? p * tiles.ds.of[r][lane] : 0.0f;
    const NearerSum given = sum_of_nearer(dw, lane);
    const float dy = seen ? dw - sigma * (q.rest - given.nearer) : 0.0f;
    const float of_factor = warp_sum(seen ? dy * s.gain * s.z : 0.0f);
    tiles.p.of[r][lane] = p;
    tiles.ds.of[r][lane] = seen ? dy * s.slope : 0.0f;
    tiles.dl.of[r][lane] = dy;
    tiles.dlz.of[r][lane] = seen ? dy * (q.factor * s.z) : 0.0f;
    __syncwarp();  // every lane has read the query
    if (lane == 0)
        tiles.query[r] = {q.factor, q.broken + broken.total, q.rest - given.total, q.dfactor + of_factor,
                          q.first};
}

// A tile of one head, and the first channel of its slabs.
struct StickPlace {
    int sequence, head, query0, key0, c0;
};
// dQ, dK and dV of the slabs' channels, set on the first diagonal and for the first head of a group.
template <class T>
DEVICE void add_gradients(const StickBackward<T>& b, const StickTiles& tiles, const StickPlace& at) {
    const AttentionInput<T>& a = b.in;
    const int group = a.heads / a.kv_heads;
    const bool fresh = at.query0 == at.key0, first_of_group = at.head % group == 0;
    SlabProduct product;
    const auto add = [&](float* sum, int heads, int head, int first, bool sets) {
        const int64_t stride = static_cast<int64_t>(heads) * a.channels;
        sum += (static_cast<int64_t>(at.sequence) * a.length + first) * stride +
               static_cast<int64_t>(head) * a.channels + at.c0;
        product.each([&](int r, int c, float x) {
            if (first + r >= a.length || at.c0 + c >= a.channels) return;
            float* to = sum + r * stride + c;
            *to = sets ? x : *to + x;
        });
    };
    product.clear();
    product.add(
        stick_edge, [&](int r, int j) { return tiles.ds.of[r][j]; },
        [&](int j, int c) { return tiles.k.of[j][c]; });
    add(b.dq, a.heads, at.head, at.query0, fresh);
    product.clear();
    product.add(
        stick_edge, [&](int j, int r) { return tiles.ds.of[r][j]; },
        [&](int r, int c) { return tiles.q.of[r][c]; });
    add(b.dk, a.kv_heads, at.head / group, at.key0, fresh && first_of_group);
    product.clear();
    product.add(
        stick_edge, [&](int j, int r) { return tiles.p.of[r][j]; },
        [&](int r, int c) { return tiles.dout.of[r][c]; });
    add(b.dv, a.kv_heads, at.head / group, at.key0, fresh && first_of_group);
}

// Sums of dy f z and of dy along the diagonals of the tile: query - key = s - 31 of entry s.
DEVICE void sum_diagonals(float* to, const StickTiles& tiles) {
    const int thread = static_cast<int>(threadIdx.x), which = thread / slab_sums, s = thread % slab_sums;
    const int difference = s - (stick_edge - 1);
    const StickSquare& from = which == 0 ? tiles.dlz : tiles.dl;
    float total = 0.0f;
    for (int r = max(difference, 0); r < stick_edge && r - difference < stick_edge; ++r)
        total += from.of[r][r - difference];
    to[thread] = total;
}
static_assert(2 * slab_sums == stick_threads);

template <class T>
KERNEL(stick_threads, 1)
void stick_diagonal_kernel(StickBackward<T> b, int diagonal) {
    auto& tiles = shared<StickTiles>();
    const AttentionInput<T>& a = b.in;
    const int across = (a.length + stick_edge - 1) / stick_edge - diagonal;
    unsigned index = blockIdx.x;
    const int tile = static_cast<int>(index % static_cast<unsigned>(across));
    index /= static_cast<unsigned>(across);
    const int kv_head = static_cast<int>(index % static_cast<unsigned>(a.kv_heads));
    const int sequence = static_cast<int>(index / static_cast<unsigned>(a.kv_heads));
    const int key0 = tile * stick_edge, query0 = key0 + diagonal * stick_edge;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int group = a.heads / a.kv_heads;
    const bool in_sight = a.first_visible(sequence, query0) < key0 + stick_edge;
    const int64_t token = static_cast<int64_t>(sequence) * a.length + query0;
    const HeadRows<const T> k = a.head(a.k, sequence, kv_head), v = a.head(a.v, sequence, kv_head);
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        float* sums = b.slab ? b.slab + ((static_cast<int64_t>(sequence) * a.heads + head) * across + tile) *
                                            (2 * slab_sums)
                             : nullptr;
        const int64_t state = head * a.tokens() + token;
        __syncthreads();  // nobody reads the head before
        if (thread < stick_edge) {
            const int i = query0 + thread;
            tiles.query[thread] = i < a.length && in_sight
                                      ? StickQuery{score_row(a, sequence, head, i).factor,
                                                   diagonal ? b.broken[state + thread] : 0.0f,
                                                   b.rest[state + thread], 0.0f, a.first_visible(sequence, i)}
                                      : StickQuery{1.0f, HUGE_VALF, 0.0f, 0.0f, 0};
        }
        __syncthreads();
        // Never on the first diagonal, where a query of a tile sees a key of it or is the first of all.
        if (__all_sync(all_lanes, tiles.query[lane].broken > used_up)) {
            if (sums) sums[thread] = 0.0f;
            continue;
        }
        const HeadRows<const T> q = a.head(a.q, sequence, head), dout = a.head(b.dout, sequence, head);
        ScoreProduct scores, values;
        scores.clear();
        values.clear();
        const auto load_slabs = [&](int c0) {
            __syncthreads();  // nobody reads the slabs before
            load_slab(tiles.q, q, query0, c0);
            load_slab(tiles.dout, dout, query0, c0);
            load_slab(tiles.k, k, key0, c0);
            load_slab(tiles.v, v, key0, c0);
            __syncthreads();
        };
#pragma unroll 1
        for (int c0 = 0; c0 < a.channels; c0 += slab_channels) {
            load_slabs(c0);
            const int terms = min(slab_channels, a.channels - c0);
            scores.add(
                terms, [&](int r, int c) { return tiles.q.of[r][c]; },
                [&](int c, int j) { return tiles.k.of[j][c]; });
            values.add(
                terms, [&](int r, int c) { return tiles.dout.of[r][c]; },
                [&](int c, int j) { return tiles.v.of[j][c]; });
        }
        scores.each([&](int r, int j, float s) { tiles.p.of[r][j] = s; });
        values.each([&](int r, int j, float s) { tiles.ds.of[r][j] = s; });
        __syncthreads();
#pragma unroll 1
        for (int r = warp; r < stick_edge; r += stick_warps)
            differentiate_row(a, tiles, r, head, query0 + r, key0);
        __syncthreads();
        if (thread < stick_edge && query0 + thread < a.length) {
            const StickQuery& query = tiles.query[thread];
            b.broken[state + thread] = query.broken;
            b.rest[state + thread] = query.rest;
            if (b.dfactor) {
                float* to = b.dfactor + head * b.dfactor_step + token + thread;
                *to = diagonal ? *to + query.dfactor : query.dfactor;
            }
        }
        if (sums) sum_diagonals(sums, tiles);
#pragma unroll 1
        for (int c0 = 0; c0 < a.channels; c0 += slab_channels) {
            if (a.channels > slab_channels) load_slabs(c0);
            add_gradients(b, tiles, {sequence, head, query0, key0, c0});
        }
    }
}

// to [1 or H, R], entry R - 1 - t of distance t < length: a distance lies on two diagonals of tiles, or on one;
// the first sets its entry and the second adds. A block per diagonal of the tiles and row of the table.
KERNEL(stick_threads)
void fold_sticks_kernel(View<float> to, int64_t columns, const float* slab, int which, int batch, int heads,
                        int length, int diagonal) {
    auto& results = shared<WarpResults<double, stick_threads>>();
    const int s = static_cast<int>(blockIdx.x), difference = s - (stick_edge - 1);
    const int t = diagonal * stick_edge + difference, row = static_cast<int>(blockIdx.y);
    if (t < 0 || t >= length) return;
    const int across = (length + stick_edge - 1) / stick_edge - diagonal;
    const bool shared_table = gridDim.y == 1;
    const int64_t of_sequence = static_cast<int64_t>(shared_table ? heads : 1) * across;
    double total = 0.0;
    for (int64_t e = threadIdx.x; e < batch * of_sequence; e += stick_threads) {
        const int64_t sequence = e / of_sequence, tile = (shared_table ? 0 : row * across) + e % of_sequence;
        const int64_t at = sequence * heads * across + tile;
        total += static_cast<double>(slab[(at * 2 + which) * slab_sums + s]);
    }
    total = block_sum<stick_threads>(total, results);
    if (threadIdx.x != 0) return;
    float* entry = to.at(row, columns - 1 - t);
    *entry = static_cast<float>(difference < 0 ? static_cast<double>(*entry) + total : total);
}

// --- host side

template <class T>
void launch_diagonals(const StickBackward<T>& b, const AttentionGradients& gradients, Stream stream) {
    const AttentionInput<T>& a = b.in;
    launch(stick_delta_kernel<T>, {dim3(blocks_for(a.tokens() * a.heads, 8)), dim3(256), 0, stream}, b);
    const int tiles = static_cast<int>(blocks_for(a.length, stick_edge));
    for (int diagonal = 0; diagonal < tiles; ++diagonal) {
        const int64_t blocks = static_cast<int64_t>(tiles - diagonal) * a.kv_heads * a.batch;
        launch(stick_diagonal_kernel<T>,
               {dim3(static_cast<unsigned>(blocks)), dim3(stick_threads), sizeof(StickTiles), stream}, b,
               diagonal);
        for (int which = 0; which < 2; ++which) {
            const Tensor& to = which == 0 ? gradients.distance_gain : gradients.distance_bias;
            if (!to) continue;
            launch(fold_sticks_kernel,
                   {dim3(slab_sums - 1, static_cast<unsigned>(to.rows())), dim3(stick_threads),
                    sizeof(WarpResults<double, stick_threads>), stream},
                   view<float>(to), to.cols(), b.slab, which, a.batch, a.heads, a.length, diagonal);
        }
    }
}

}  // namespace

void break_sticks_backward(const QueryKeyValue& d, const AttentionGradients& gradients, Tensor workspace,
                           const Tensor& dout, const AttentionSaved& saved, const AttentionSpec& spec,
                           Stream stream) {
    const Tensor &q = saved.in.q, &k = saved.in.k, &v = saved.in.v, &o = saved.o;
    const int64_t tokens = spec.batch * spec.length;
    check(!gradients.sink && !gradients.forget, "attention_backward: gradients that stick-breaking has not");
    const bool tables = gradients.distance_gain || gradients.distance_bias;
    check(!tables || spec.distance_gain,
          "attention_backward: gradients of distance tables that are not there");
    check(d.q.rows() == tokens && d.k.rows() == tokens && d.v.rows() == tokens && dout.rows() == tokens &&
              o.rows() == tokens && d.q.cols() == q.cols() && d.k.cols() == k.cols() &&
              d.v.cols() == v.cols() && dout.cols() == q.cols() && o.cols() == q.cols(),
          "attention_backward: o {}x{} of q {}x{}", o.rows(), o.cols(), q.rows(), q.cols());
    const int64_t tiles = (spec.length + stick_edge - 1) / stick_edge;
    check(tiles * spec.kv_heads * spec.batch < int64_t{1} << 31 && tokens * spec.heads < int64_t{1} << 33,
          "attention_backward over {} positions, {} heads of {} sequences", spec.length, spec.heads,
          spec.batch);
    const StickPlaces places(spec, gradients);
    check(workspace.bytes() >= places.bytes, "attention_backward: workspace of {} bytes, {} needed",
          workspace.bytes(), places.bytes);
    if (tokens == 0) return;
    const auto place = [&](int64_t at) { return reinterpret_cast<float*>(workspace.as<std::byte>() + at); };
    with_element(q.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        launch_diagonals<T>({.in = stick_input<T>(q, k, v, spec),
                             .dout = view<const T>(dout),
                             .o = view<const T>(o),
                             .broken = place(0),
                             .rest = place(places.rest),
                             .dq = place(places.dq),
                             .dk = place(places.dk),
                             .dv = place(places.dv),
                             .dfactor = gradients.row_factor.f32(),
                             .dfactor_step = gradients.row_factor.row_stride,
                             .slab = tables ? place(places.slab) : nullptr},
                            gradients, stream);
    });
    const auto write = [&](const Tensor& to, int64_t at) {
        copy(to, Tensor(place(at), DType::f32, {to.rows(), to.cols()}), stream);
    };
    write(d.q, places.dq);
    write(d.k, places.dk);
    write(d.v, places.dv);
}

}  // namespace longreach::cuda
