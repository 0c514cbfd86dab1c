// Attention of each query to the largest of its scores alone: AttentionSpec's top_k keys, one by one or in blocks, of whole
// sequences and of one query per sequence. In f32 whatever the precision.
//
// Keys one by one: a tile of queries meets its keys from the nearest back, with the products of the pass over all keys,
// 2 d FLOPs per visible pair. Each query collects what exceeds the least score that may still count; a full collection
// is cut to the top_k largest, about log2(keys / top_k) times. The softmax and P v then take the collected keys' rows, 2 d
// FLOPs per kept pair. All scores are computed, so half of the time of the pass over all keys stays.
//
// Blocks of keys (attention_top_blocks.h): queries collect blocks as they collect keys, and compute the scores of the kept ones
// again. Keys chosen by an index: attention_top_index.h.
//
// Parallel over (sequence, head, tile of queries), with an index over (sequence, tile); one thread computes a tile.
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/attention_scores.h"
#include "kernels/cpu/attention_query.h"
#include "kernels/cpu/index_scores.h"
#include "kernels/cpu/collection.h"
#include "kernels/cpu/attention_top_search.h"
#include "kernels/cpu/attention_top_blocks.h"
#include "kernels/cpu/attention_top_kept.h"
#include "kernels/cpu/attention_top_index.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

using Tile = ScoreTile<PlainUnit>;

// Visits keys, or blocks as keys, from the nearest back. keys, sums: of the sequence; pass: null for that of keys one by one.
void visit(const TopSearch& s, const TopCall& call, const Item& item, const Tile& queries, const Tensor& keys,
           const double* sums, TopPasses::Pass pass, const Buffers<PlainUnit>& buffers) {
    const TableSlice::Tables tables(item.spec, item.head);
    TableSlice slice;
    const int64_t first = s.visible.first[0], end = s.visible.end[s.visible.rows - 1];
    for (int64_t tiles = (end - first + key_tile - 1) / key_tile; tiles-- > 0;) {
        const int64_t key = first + tiles * key_tile, key_end = smaller(key + key_tile, end);
        if (sums) slice.cut_forget(sums, key, key_end);
        if (tables.gain) slice.cut(tables, s.q.begin, key, key_end);
        const KeyTile tile = KeyTile::of<PlainUnit>(buffers.packed, keys, item.far_k, keys, key, key_end);
        for (int64_t panel = 0; panel < query_panels; ++panel) {
            const KeyRange range = s.visible.of_panel(panel, key, key_end);
            if (range.empty()) continue;
            score_panel(queries, buffers, panel, range, tile, item.spec.far_from);
            const auto one_by_one = range.masked ? call.passes.masked : call.passes.whole;
            (pass ? pass : one_by_one)(s, buffers.scores, panel, range, slice);
        }
    }
}

// Collects the first block of each query that sees only a part of it, by the mean of its visible scores.
void collect_first_blocks(const TopSearch& s, const TopCall& call, const Item& item) {
    const QueryTile& q = s.q;
    for (int64_t i = 0; i < s.visible.rows; ++i) {
        const int64_t start = q.start[i], position = q.begin + i, block = start / s.block;
        if (start % s.block == 0 || block == position / s.block) continue;
        const Query at{item.spec, item.sequence, item.head, start, position, item.first_token + position};
        s.collection.add(i, mean_exponent(at, BlockSpan(at, block, s.block), call.q, call.k), block);
    }
}

// Queries [first, first + query_tile) of one head.
void attend_tile(const TopCall& call, const Item& item, int64_t first, TopWorkspace& work, float* scratch) {
    const AttentionSpec& spec = item.spec;
    const int32_t* row_start = spec.row_start ? spec.row_start.i32() + item.first_token : nullptr;
    const Buffers<PlainUnit> buffers(scratch);
    const Tile tile(item, first, row_start, scratch + Buffers<PlainUnit>::floats(spec.head_dim));
    work.collection.reset();
    float means[query_tile] = {};
    const bool by_means = call.means.any();
    const VisibleKeys visible(tile.q, by_means ? spec.top_k_block : 0);
    const TopSearch search{tile.q, tile.rows, visible, work.collection, means, spec.top_k_block};
    if (work.collection.takes_any()) {
        if (by_means) {
            visit(search, call, item, tile, call.means.keys_of(item, spec.head_dim), call.means.sums_of(item),
                  nullptr, buffers);
            collect_first_blocks(search, call, item);
        } else {
            const double* sums = sums_of_head(spec, item.head, item.first_token);
            visit(search, call, item, tile, item.k, sums, spec.top_k_block > 0 ? call.passes.blocks : nullptr,
                  buffers);
            if (spec.top_k_block > 0) collect_open_blocks(search);
        }
    }
    for (int64_t i = 0; i < visible.rows; ++i) {
        const int64_t row = item.first_token + first + i;
        const Query at{spec, item.sequence, item.head, tile.q.start[i], first + i, row};
        call.lse.f32()[item.head * call.lse.row_stride + row] =
            attend_collected(call.o.f32() + row * call.o.row_stride + item.head * spec.head_dim, at, work, i,
                             call.q, call.k, call.v);
    }
}

// Collects the keys or blocks of one query, all by their scores.
void collect_alone(const Query& at, Collection& collection, const Tensor& q, const Tensor& k) {
    const int64_t size = at.spec.top_k_block;
    if (size > 0) {
        for (int64_t b = at.position / size; b-- > at.first / size;)
            collection.add(0, mean_exponent(at, BlockSpan(at, b, size), q, k), b);
        return;
    }
    alignas(64) float y[key_block];
    for (int64_t end = at.position + 1; end > at.first;) {
        const int64_t count = smaller(key_block, end - at.first);
        end -= count;
        exponents(y, at, KeyRun{end}, count, q, k);
        for (int64_t j = count; j-- > 0;) collection.add(0, y[j], end + j);
    }
}

}  // namespace

void CpuOps::attention_to_top(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                              const AttentionSpec& spec) {
    check(Buffers<PlainUnit>::floats(spec.head_dim) + Tile::floats(spec.head_dim) <= scratch_per_thread_,
          "attention: head size {} is too large", spec.head_dim);
    const Form form = form_of(spec);
    const TopPasses& passes = form == Form::general    ? top_passes_of<Form::general>
                              : form == Form::distance ? top_passes_of<Form::distance>
                              : form == Form::forget   ? top_passes_of<Form::forget>
                                                       : top_passes_of<Form::plain>;
    const BlockMeans means(pool_, spec, k);
    const TopCall call{o, lse, q, k, v, spec, means, passes};
    std::vector<std::unique_ptr<TopWorkspace>> of_thread(static_cast<size_t>(threads_));
    const int64_t tiles = (spec.length + query_tile - 1) / query_tile;
    if (spec.index) {
        return pool_.run(spec.batch * tiles, [&](int64_t i, int thread) {
            std::unique_ptr<TopWorkspace>& work = of_thread[static_cast<size_t>(thread)];
            if (!work) work = std::make_unique<TopWorkspace>(spec, query_tile);
            attend_tile_by_index(call, i / tiles, (tiles - 1 - i % tiles) * query_tile, *work,
                                 scratch_of(thread));
        });
    }
    // The longest tiles of a head come first.
    pool_.run(spec.batch * spec.heads * tiles, [&](int64_t i, int thread) {
        std::unique_ptr<TopWorkspace>& work = of_thread[static_cast<size_t>(thread)];
        if (!work) work = std::make_unique<TopWorkspace>(spec, query_tile);
        const Item item(spec, i / tiles / spec.heads, i / tiles % spec.heads, q, k, v, false);
        attend_tile(call, item, (tiles - 1 - i % tiles) * query_tile, *work, scratch_of(thread));
    });
}

void CpuOps::decode_to_top(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionSpec& spec, int64_t first, int64_t position) {
    std::vector<std::unique_ptr<TopWorkspace>> of_thread(static_cast<size_t>(threads_));
    const int64_t together = spec.index ? spec.heads : 1;  // heads that keep the same keys
    pool_.run(spec.batch * spec.heads / together, [&](int64_t item, int thread) {
        std::unique_ptr<TopWorkspace>& work = of_thread[static_cast<size_t>(thread)];
        if (!work) work = std::make_unique<TopWorkspace>(spec, 1);
        const int64_t b = item * together / spec.heads, h = item * together % spec.heads;
        work->collection.reset();
        if (spec.index)
            collect_by_index({spec, b, h, first, position, b}, work->collection);
        else
            collect_alone({spec, b, h, first, position, b}, work->collection, q, k);
        for (int64_t head = h; head < h + together; ++head) {
            const Query at{spec, b, head, first, position, b};
            attend_collected(o.f32() + b * o.row_stride + head * spec.head_dim, at, *work, 0, q, k, v);
        }
    });
}

#include "kernels/cpu/isa_end.h"
