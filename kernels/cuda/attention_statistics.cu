// Statistics of attention by row: RowStatistic of every query and head, kernels/row_statistics.h.
//
// A second pass over the scores with the lse of the first. A thread has one query and walks its visible keys
// in ascending order, with the block's tiles of keys in shared memory; its sums are its own, so nothing
// is folded. Sums are f32 over the keys of a tile and f64 over tiles; moments are about the first score
// of the row that counts. 2 d FLOPs on the ordinary f32 units and one exp2 per visible pair: this is for
// occasional inspection of a model, not for training.
// With far pairs the tile of queries is loaded again wherever the pair changes, and in the tiles of keys that
// have both kinds both products are computed.
#include "kernels/cuda/attention_statistics.cuh"
#include "kernels/cuda/kernels.h"

namespace longreach::cuda {
namespace {

constexpr int rows = statistics_rows, keys = statistics_keys;

template <class T, int D>
KERNEL(rows, 1)
void statistics_kernel(AttentionInput<T> a, StatisticsOutput out) {
    auto& tiles = shared<StatisticsLayout<D>>();
    const int per_head = (a.length + rows - 1) / rows;
    const int64_t item = static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x,
                  of_heads = item / per_head;
    if (of_heads >= static_cast<int64_t>(a.batch) * a.heads) return;  // the grid's last row may be longer
    const int sequence = static_cast<int>(of_heads / a.heads), head = static_cast<int>(of_heads % a.heads);
    const int query0 = (per_head - 1 - static_cast<int>(item % per_head)) * rows;
    const int row = static_cast<int>(threadIdx.x), i = query0 + row, kv_head = head / (a.heads / a.kv_heads);
    const bool exists = i < a.length;
    const int last_query = min(query0 + rows, a.length) - 1;
    const int64_t n = static_cast<int64_t>(sequence) * a.length + i;
    const int first = exists ? a.first_visible(sequence, i) : 0;
    const float2 query_sum = a.forget ? split_sum(forget_sum(a, sequence, head, i)) : float2{0.0f, 0.0f};
    const ScoreRow factors = exists ? score_row(a, sequence, head, i) : ScoreRow{1.0f, 0.0f};
    const float lse = exists ? out.lse[head * out.lse_stride + n] : 0.0f, lse2 = lse * log2_e;

    int watched_at[watched_keys];  // distances; -1: none
#pragma unroll
    for (int w = 0; w < watched_keys; ++w) {
        const int key = exists && out.watched ? out.watched[w * out.watched_stride + n] : -1;
        watched_at[w] = key >= 0 ? i - key : -1;
    }

    Gathered sums;
    sums.clear();
    bool holds_far = false, holds_any = false;  // which queries are in the tile
    for (int key0 = a.first_visible(sequence, query0) / keys * keys; key0 <= last_query; key0 += keys) {
        float s[keys];
        // Whether some pair of the tiles is far, and whether some is near.
        const bool far = a.far_k.data && last_query - key0 >= a.far_from;
        const bool near = !a.far_k.data || query0 - (key0 + keys - 1) < a.far_from;
        for (int which = 0; which < 2; ++which) {
            const bool of_far = which == 1;
            if (of_far ? !far : !near) continue;
            __syncthreads();  // nobody reads the tiles before
            if (!holds_any || holds_far != of_far)
                load_rows(tiles.q, a.head(of_far ? a.far_q : a.q, sequence, head), query0);
            load_rows(tiles.k, a.head(of_far ? a.far_k : a.k, sequence, kv_head), key0);
            if (a.gain) load_table<rows>(tiles.table, a, head, query0, key0);
            if (a.forget && row < keys)
                tiles.key_sum[row] = split_sum(forget_sum(a, sequence, head, key0 + row));
            holds_any = true;
            holds_far = of_far;
            __syncthreads();
            float product[keys];
            multiply_row(product, tiles, row, a.channels);
#pragma unroll
            for (int j = 0; j < keys; ++j)
                if (!of_far || !near || i - (key0 + j) >= a.far_from) s[j] = product[j];
        }
#pragma unroll
        for (int j = 0; j < keys; ++j) {
            const int key = key0 + j;
            if (!visible(i, key, first, a.length)) continue;
            const float2 entry = a.gain ? tiles.table.of(row, j) : float2{1.0f, 0.0f};
            const float forgotten = a.forget ? difference(query_sum, tiles.key_sum[j]) : 0.0f;
            const Score score = cuda::score<ScoreMode::general>(a, s[j], factors, entry, forgotten);
            sums.add(s[j] * a.scale, score.y2, score.y2 - lse2, i - key, key == first, watched_at);
        }
        sums.end_tile();
    }
    if (!exists) return;

    write_statistics(out, sums,
                     {.head = head,
                      .heads = a.heads,
                      .n = n,
                      .pairs = i - first - 1,
                      .top_logit = sums.top_logit * ln_2,
                      .top_weight = (sums.top_logit - lse2) * ln_2,
                      .second_weight = (sums.second_logit - lse2) * ln_2,
                      .rest = a.sink ? expf(a.sink[head] - lse) : 0.0f});
}

}  // namespace

void attention_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                          const Tensor& watched, const AttentionSpec& spec, Stream stream) {
    const int64_t tokens = spec.batch * spec.length;
    check_statistics(statistics, lse, watched, spec);
    if (tokens == 0 || spec.heads == 0) return;
    with_element(q.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const AttentionInput<T> a = attention_input<T>(q, k, k, spec);
        const StatisticsOutput out = statistics_output(statistics, lse, watched);
        const int64_t blocks = blocks_for(a.length, rows) * int64_t{a.batch} * a.heads;
        const int64_t across = std::min<int64_t>(blocks, (int64_t{1} << 31) - 1);
        with_head_tile(spec.head_dim, [&](auto tile) {
            constexpr int D = decltype(tile)::value;
            constexpr size_t shared_bytes = sizeof(StatisticsLayout<D>);
            static_assert(shared_bytes <= 99 * 1024, "what a block may have from sm_80 on");
            launch(statistics_kernel<T, D>,
                   {dim3(static_cast<unsigned>(across), blocks_for(blocks, across)), dim3(rows), shared_bytes,
                    stream},
                   a, out);
        });
    });
}

}  // namespace longreach::cuda
