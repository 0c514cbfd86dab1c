// Stick-breaking attention: o = P v, P as stick_breaking.cuh says; lse = log(1 - sum of P), what is left of the
// stick. A stick below 2^-150 counts as used up: its lse is below log(2^-150), but how far is not said.
//
//   q, o [N, H d], k, v [N, G d], lse [H, N]. 4 d FLOPs, two exp2 and a logarithm per visible pair and head.
//   Bytes as in attention_forward.cu, with tiles of 32 queries.
//
// A block is one tile of queries of one head. It meets the tiles of keys from the last to the first, so that the
// sum of b starts at the query, and is done when all its sticks are used up. Sums of b are f32, over the keys of
// a tile as a tree, then over tiles. Nothing is rescaled: a nearer key never changes the weight of a farther one
// later. Within a head the longest tiles are launched first.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stick_breaking.cuh"

namespace longreach::cuda {
namespace {

struct StickQuery {
    float factor;
    float broken;  // sum of b so far; infinite past the end of the sequence
    int first;     // visible key
};
template <int D>
struct StickForward {
    float q[stick_edge][D + 1];
    StickSlab slab;       // of keys, then of values
    StickSquare weights;  // scores, then P
    StickQuery query[stick_edge];
};
template <class T>
struct StickOutput {
    View<T> o;
    float* lse;
    int64_t lse_step;  // elements from head to head
};

// Turns a query's products <q, k> with the keys key0 + [0, 32) into P; a lane has a key.
template <class T>
DEVICE void break_row(const AttentionInput<T>& a, float (&row)[stick_edge + 1], StickQuery& query, int head,
                      int i, int key0) {
    const int lane = static_cast<int>(threadIdx.x) % 32, j = key0 + lane;
    const StickQuery q = query;
    const bool seen = sees_before(i, j, q.first, a.length);
    const float2 entry = seen ? table_entry(a, head, i - j) : float2{1.0f, 0.0f};
    const Break b = break_at(score<ScoreMode::general>(a, row[lane], {q.factor, 0.0f}, entry).y2);
    const NearerSum broken = sum_of_nearer(seen ? b.left : 0.0f, lane);
    row[lane] = seen ? exp2_approx(b.taken - (q.broken + broken.nearer)) : 0.0f;
    __syncwarp();  // every lane has read the query
    if (lane == 0) query.broken = q.broken + broken.total;
}

template <class T, int D>
KERNEL(stick_threads, 1)
void stick_kernel(AttentionInput<T> a, StickOutput<T> out) {
    constexpr int slabs = D / slab_channels;
    auto& tiles = shared<StickForward<D>>();
    const int per_head = (a.length + stick_edge - 1) / stick_edge;
    const int64_t item = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x,
                  of_heads = item / per_head;
    if (of_heads >= static_cast<int64_t>(a.batch) * a.heads) return;  // the grid's last row may be longer
    const int sequence = static_cast<int>(of_heads / a.heads), head = static_cast<int>(of_heads % a.heads);
    const int query0 = (per_head - 1 - static_cast<int>(item % per_head)) * stick_edge;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int kv_head = head / (a.heads / a.kv_heads);
    const HeadRows<const T> q = a.head(a.q, sequence, head), k = a.head(a.k, sequence, kv_head),
                            v = a.head(a.v, sequence, kv_head);
    for (int e = thread; e < stick_edge * D; e += stick_threads) {
        const int r = e / D, c = e % D;
        tiles.q[r][c] = query0 + r < a.length && c < a.channels ? widen(q.row(query0 + r)[c]) : 0.0f;
    }
    if (thread < stick_edge) {
        const int i = query0 + thread;
        tiles.query[thread] = i < a.length ? StickQuery{score_row(a, sequence, head, i).factor, 0.0f,
                                                        a.first_visible(sequence, i)}
                                           : StickQuery{1.0f, HUGE_VALF, 0};
    }
    SlabProduct output[slabs];
#pragma unroll
    for (int s = 0; s < slabs; ++s) output[s].clear();

    const int first_key = a.first_visible(sequence, query0) / stick_edge * stick_edge;
#pragma unroll 1
    for (int key0 = query0; key0 >= first_key; key0 -= stick_edge) {
        ScoreProduct scores;
        scores.clear();
#pragma unroll 1
        for (int c0 = 0; c0 < a.channels; c0 += slab_channels) {
            __syncthreads();  // the queries are there, and nobody reads the slab before
            load_slab(tiles.slab, k, key0, c0);
            __syncthreads();
            scores.add(
                min(slab_channels, a.channels - c0), [&](int r, int c) { return tiles.q[r][c0 + c]; },
                [&](int c, int j) { return tiles.slab.of[j][c]; });
        }
        scores.each([&](int r, int j, float s) { tiles.weights.of[r][j] = s; });
        __syncthreads();
#pragma unroll 1
        for (int r = warp; r < stick_edge; r += stick_warps)
            break_row(a, tiles.weights.of[r], tiles.query[r], head, query0 + r, key0);
#pragma unroll
        for (int s = 0; s < slabs; ++s) {
            if (s * slab_channels >= a.channels) continue;
            __syncthreads();  // the weights are there, and nobody reads the slab before
            load_slab(tiles.slab, v, key0, s * slab_channels);
            __syncthreads();
            output[s].add(
                stick_edge, [&](int r, int j) { return tiles.weights.of[r][j]; },
                [&](int j, int c) { return tiles.slab.of[j][c]; });
        }
        if (__all_sync(all_lanes, tiles.query[lane].broken > used_up)) break;  // the same for all warps
    }

    const int64_t token = static_cast<int64_t>(sequence) * a.length + query0;
#pragma unroll
    for (int s = 0; s < slabs; ++s)
        output[s].each([&](int r, int c, float x) {
            const int channel = s * slab_channels + c;
            if (query0 + r < a.length && channel < a.channels)
                *out.o.at(token + r, static_cast<int64_t>(head) * a.channels + channel) = narrow<T>(x);
        });
    if (thread < stick_edge && query0 + thread < a.length)
        out.lse[head * out.lse_step + token + thread] = -tiles.query[thread].broken * ln_2;
}

}  // namespace

void break_sticks(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                  const AttentionSpec& spec, Stream stream) {
    const int64_t tokens = spec.batch * spec.length;
    check(o.rows() == tokens && o.cols() == q.cols() && lse.cols() == tokens &&
              (lse.rows() == spec.heads || spec.heads == 0),
          "attention of {}x{} into o {}x{}, lse {}x{}", q.rows(), q.cols(), o.rows(), o.cols(), lse.rows(),
          lse.cols());
    if (tokens == 0 || spec.heads == 0) return;
    with_element(q.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const AttentionInput<T> a = stick_input<T>(q, k, v, spec);
        const StickOutput<T> out{view<T>(o), lse.f32(), lse.row_stride};
        const int64_t blocks = blocks_for(a.length, stick_edge) * int64_t{a.batch} * a.heads;
        const int64_t across = std::min<int64_t>(blocks, (int64_t{1} << 31) - 1);
        with_head_tile(spec.head_dim, [&](auto tile) {
            constexpr int D = decltype(tile)::value;
            static_assert(sizeof(StickForward<D>) <= 48 * 1024);
            launch(stick_kernel<T, D>,
                   {dim3(static_cast<unsigned>(across), blocks_for(blocks, across)), dim3(stick_threads),
                    sizeof(StickForward<D>), stream},
                   a, out);
        });
    });
}

}  // namespace longreach::cuda
