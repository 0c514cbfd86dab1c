// Statistics of stick-breaking attention by row: RowStatistic of every query and head, kernels/row_statistics.h.
//
// As in attention_statistics.cu, from the last key of a query to the first, with weights rebuilt from the sum of b
// so far (stick_breaking.cuh); the lse gives what is left in the end. Every key is met, that of a used-up stick
// too: its scores count.
#include "kernels/cuda/attention_statistics.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/stick_breaking.cuh"

namespace longreach::cuda {
namespace {

constexpr int rows = statistics_rows, keys = statistics_keys;

template <class T, int D>
KERNEL(rows, 1)
void stick_statistics_kernel(AttentionInput<T> a, StatisticsOutput out) {
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
    const ScoreRow factors = exists ? score_row(a, sequence, head, i) : ScoreRow{1.0f, 0.0f};

    int watched_at[watched_keys];  // distances; -1: none
#pragma unroll
    for (int w = 0; w < watched_keys; ++w) {
        const int key = exists && out.watched ? out.watched[w * out.watched_stride + n] : -1;
        watched_at[w] = key >= 0 ? i - key : -1;
    }

    Gathered sums;  // ranked by weight
    sums.clear();
    float broken = 0.0f, top_logit = -INFINITY;
    load_rows(tiles.q, a.head(a.q, sequence, head), query0);
    const int first_key = a.first_visible(sequence, query0) / keys * keys;
    for (int key0 = last_query / keys * keys; key0 >= first_key; key0 -= keys) {
        __syncthreads();  // nobody reads the tile before
        load_rows(tiles.k, a.head(a.k, sequence, kv_head), key0);
        if (a.gain) load_table<rows>(tiles.table, a, head, query0, key0);
        __syncthreads();
        float s[keys], here = 0.0f;
        multiply_row(s, tiles, row, a.channels);
#pragma unroll
        for (int j = keys - 1; j >= 0; --j) {
            const int key = key0 + j;
            if (!sees_before(i, key, first, a.length)) continue;
            const float2 entry = a.gain ? tiles.table.of(row, j) : float2{1.0f, 0.0f};
            const float y2 = score<ScoreMode::general>(a, s[j], factors, entry).y2;
            const Break b = break_at(y2);
            const float log = b.taken - (broken + here);
            here += b.left;
            top_logit = fmaxf(top_logit, y2);
            sums.add(s[j] * a.scale, log, log, i - key, key == first, watched_at);
        }
        broken += here;
        sums.end_tile();
    }
    if (!exists) return;
    write_statistics(out, sums,
                     {.head = head,
                      .heads = a.heads,
                      .n = n,
                      .pairs = i - first - 1,
                      .top_logit = top_logit * ln_2,
                      .top_weight = sums.top_logit * ln_2,
                      .second_weight = sums.second_logit * ln_2,
                      .rest = expf(out.lse[head * out.lse_stride + n])});
}

}  // namespace

void stick_statistics(Tensor statistics, const Tensor& lse, const Tensor& q, const Tensor& k,
                      const Tensor& watched, const AttentionSpec& spec, Stream stream) {
    check_statistics(statistics, lse, watched, spec);
    if (spec.batch * spec.length == 0 || spec.heads == 0) return;
    with_element(q.dtype, [&](auto element) {
        using T = typename decltype(element)::type;
        const AttentionInput<T> a = stick_input<T>(q, k, k, spec);
        const StatisticsOutput out = statistics_output(statistics, lse, watched);
        const int64_t blocks = blocks_for(a.length, rows) * int64_t{a.batch} * a.heads;
        const int64_t across = std::min<int64_t>(blocks, (int64_t{1} << 31) - 1);
        with_head_tile(spec.head_dim, [&](auto tile) {
            constexpr int D = decltype(tile)::value;
            constexpr size_t shared_bytes = sizeof(StatisticsLayout<D>);
            static_assert(shared_bytes <= 99 * 1024, "what a block may have from sm_80 on");
            launch(stick_statistics_kernel<T, D>,
                   {dim3(static_cast<unsigned>(across), blocks_for(blocks, across)), dim3(rows), shared_bytes,
                    stream},
                   a, out);
        });
    });
}

}  // namespace longreach::cuda
