// Attention of each query to the largest of its scores alone: AttentionSpec's top_k keys, one by one or in blocks, of whole
// sequences and of one query per sequence. In f32 whatever the precision.
//
// Keys one by one: a tile of queries meets its keys from the nearest back, with the products of the pass over all keys,
// 2 d FLOPs per visible pair. Each query collects what exceeds the least score that may still count; a full collection
// is cut to the top_k largest, about log2(keys / top_k) times. The softmax and P v then take the collected keys' rows, 2 d
// FLOPs per kept pair. All scores are computed, so half of the time of the pass over all keys stays.
//
// Blocks of keys: the mean score of a block is the product with its mean key where a score is linear in the key and knows
// no distance, which costs 1 / top_k_block of the scores; otherwise the mean of all scores. Queries collect blocks
// as they collect keys, and compute the scores of the kept ones again.
//
// Keys chosen by an index: a tile collects once for all heads, by the scores of the index; each head then computes the
// scores of the kept keys, 4 d FLOPs per kept pair with P v.
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
#include "kernels/cpu/cpu_ops.h"

namespace {

using Tile = ScoreTile<PlainUnit>;

// Keys or blocks [first, end) of each query of a tile; none of queries that do not exist.
struct Visible {
    alignas(64) int32_t first[query_tile];
    alignas(64) int32_t end[query_tile];
    int64_t rows;

    // size: keys of a block; a query's own and one of which it does not see all are left out. 0: all keys.
    Visible(const QueryTile& q, int64_t size) : rows(q.end - q.begin) {
        for (int64_t i = 0; i < query_tile; ++i) {
            const int64_t start = q.start[i], position = q.begin + i;
            first[i] = static_cast<int32_t>(size > 0 ? (start + size - 1) / size : start);
            end[i] = i >= rows ? 0 : static_cast<int32_t>(size > 0 ? position / size : position + 1);
        }
    }
    // Those within [begin, end) that some query of a panel has.
    KeyRange of_panel(int64_t panel, int64_t begin, int64_t until) const {
        const int64_t at = panel * panel_cols, last = smaller(at + panel_cols, rows) - 1;
        if (last < at) return {begin, begin, false};
        const int64_t from = larger(begin, first[at]), to = smaller(until, end[last]);
        return {from, to, first[last] > from || end[at] < to || last < at + panel_cols - 1};
    }
    LONGREACH_INLINE VecInt has(int64_t key, int64_t at) const {
        const VecInt j = static_cast<int32_t>(key) - VecInt{};
        return (j >= *reinterpret_cast<const VecInt*>(first + at)) &
               (j < *reinterpret_cast<const VecInt*>(end + at));
    }
};

// Memory of a thread. scores, keys: those of one query that it keeps, of blocks and of an index.
struct Workspace {
    Collection collection;
    std::unique_ptr<float[]> scores;
    std::unique_ptr<int32_t[]> keys;
    std::unique_ptr<float[]> index;  // of IndexTile

    Workspace(const AttentionSpec& s, int64_t queries)
        : collection(queries, s.top_k_block > 0 ? s.top_k / s.top_k_block - 1 : s.top_k,
                     s.top_k_block > 0 ? s.length / s.top_k_block + 1 : s.length) {
        if (s.top_k_block == 0 && !s.index) return;
        const auto kept = static_cast<size_t>(smaller(s.top_k, s.length));
        scores.reset(new float[kept]);
        keys.reset(new int32_t[kept]);
        if (s.index) index.reset(new float[static_cast<size_t>(IndexTile::floats(s.index))]);
    }
};

// What the queries of one tile read and collect.
struct Search {
    const QueryTile& q;
    const ScoreRows& rows;
    const Visible& visible;
    Collection& collection;
    float* means;  // [query_tile]: sums of scores of the block at work
    int64_t block;
};

// Collects keys, or blocks as keys, from the nearest back. scores: S^T of one panel and the keys of `range`.
template <Form form, bool masked>
void collect_panel(const Search& s, const float* scores, int64_t panel, const KeyRange& range,
                   const TableSlice& slice) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t distance = s.q.begin + at - range.begin - slice.lowest;
        for (int64_t end = range.end - range.begin; end > 0; end -= lanes) {
            const Vec least = load(s.collection.least + at);
            VecInt beyond{};
            Vec y[lanes];
            for (int64_t r = 0; r < lanes; ++r) {
                const int64_t j = end - 1 - r, key = range.begin + j;
                y[r] = splat(-__builtin_inff());
                if (j < 0) continue;
                const Vec product = load(scores + j * panel_cols + lane);
                const Vec score = score_of<form>(product, s.rows, at, slice, distance - j, key).y;
                y[r] = masked ? (s.visible.has(key, at) ? score : y[r]) : score;
                beyond |= ~(y[r] <= least);
            }
            uint32_t queries = lanes_of(beyond);
            if (queries == 0) continue;
            transpose(y);
            const VecInt keys = static_cast<int32_t>(range.begin + end - 1) - lane_index();
            for (; queries != 0; queries &= queries - 1) {
                const int i = std::countr_zero(queries);
                s.collection.add(at + i, y[i], keys);
            }
        }
    }
}

// The block at work is complete: collects it, of the queries of one vector.
void collect_block(const Search& s, int64_t at, int64_t block) {
    const QueryTile& q = s.q;
    for (int64_t i = at; i < smaller(at + lanes, s.visible.rows); ++i) {
        const int64_t count = (block + 1) * s.block - larger(block * s.block, q.start[i]);
        if (count > 0 && block < (q.begin + i) / s.block)
            s.collection.add(i, s.means[i] / static_cast<float>(count), block);
        s.means[i] = 0;
    }
}

// Collects the blocks that begin before the first key of a panel.
void collect_open_blocks(const Search& s) {
    for (int64_t at = 0; at < s.visible.rows; at += lanes) {
        const int64_t first = s.q.start[at / panel_cols * panel_cols];
        if (first % s.block != 0) collect_block(s, at, first / s.block);
    }
}

// Adds scores of keys to those of their blocks, and collects the blocks that begin in `range`.
template <Form form>
void add_to_blocks(const Search& s, const float* scores, int64_t panel, const KeyRange& range,
                   const TableSlice& slice) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t distance = s.q.begin + at - range.begin - slice.lowest;
        Vec sum = load(s.means + at);
        for (int64_t j = range.end - range.begin; j-- > 0;) {
            const int64_t key = range.begin + j;
            const Vec y =
                score_of<form>(load(scores + j * panel_cols + lane), s.rows, at, slice, distance - j, key).y;
            sum += s.visible.has(key, at) ? y : Vec{};
            if (key % s.block != 0) continue;
            store(s.means + at, sum);
            collect_block(s, at, key / s.block);
            sum = Vec{};
        }
        store(s.means + at, sum);
    }
}

// The instantiations of one form.
struct Passes {
    using Pass = void (*)(const Search&, const float*, int64_t, const KeyRange&, const TableSlice&);
    Pass masked, whole, blocks;
};
template <Form form>
constexpr Passes passes_of = {collect_panel<form, true>, collect_panel<form, false>, add_to_blocks<form>};

// o [d] = the sum of the rows of n keys times their weights y.
template <class Element>
void sum_rows(float* o, const float* y, const int32_t* keys, int64_t n, Rows<Element> values, int64_t d) {
    const auto sum = [&]<int vectors>(int64_t c, auto width) __attribute__((always_inline)) {
        Vec total[vectors] = {};
        for (int64_t j = 0; j < n; ++j) {
            const Vec weight = splat(y[j]);
            const Element* row = values[keys[j]] + c;
            prefetch(values[keys[smaller(j + rows_ahead, n - 1)]] + c, vectors * lanes);
#pragma GCC unroll 8
            for (int i = 0; i < vectors; ++i) total[i] = fma(weight, load(row + i * lanes, width), total[i]);
        }
        for (int i = 0; i < vectors; ++i) store(o + c + i * lanes, total[i], width);
    };
    // Four sums at once, so that none waits for its own multiply-add.
    int64_t c = 0;
    for (; c + 4 * lanes <= d; c += 4 * lanes) sum.template operator()<4>(c, Whole{});
    for_vectors(d - c, [&](int64_t i, auto width) { sum.template operator()<1>(c + i, width); });
}

// o = P v over n keys with the exponents y, which become weights; returns the natural log of the denominator.
float attend_to(float* o, const Query& at, float* y, const int32_t* keys, int64_t n, const Tensor& v) {
    // A sink acts as a first key without a value.
    const float sink = at.spec.sink ? at.spec.sink.f32()[at.head] * log2_e : -__builtin_inff();
    Vec most = splat(sink);
    for_vectors(n, [&](int64_t i, auto w) { most = max(most, load(y + i, w, -__builtin_inff())); });
    const Vec top = splat(reduce_max(most));
    const float sum = exp2(splat(sink) - top)[0] + sum_vectors(n, [&](int64_t i, auto w) {
                          const Vec p = exp2(load(y + i, w, -__builtin_inff()) - top);
                          store(y + i, p, w);
                          return p;
                      });
    with_element(v, [&]<class Element>(Element) {
        sum_rows(o, y, keys, n, at.rows_of<Element>(v, 0), at.spec.head_dim);
    });
    const Vec inverse = splat(1.0f / sum);
    for_vectors(at.spec.head_dim, [&](int64_t i, auto w) { store(o + i, load(o + i, w) * inverse, w); });
    return top[0] * ln_2 + std::log(sum);
}

// Visible keys of a block, as a part of the sequence.
struct Span {
    int64_t begin, end;
    Span(const Query& at, int64_t block, int64_t size)
        : begin(larger(at.first, block * size)), end(smaller(at.position + 1, (block + 1) * size)) {}
};

// The mean exponent of a span.
float mean_exponent(const Query& at, const Span& span, const Tensor& q, const Tensor& k) {
    alignas(64) float y[key_block];
    float sum = 0;
    for (int64_t begin = span.begin; begin < span.end; begin += key_block) {
        const int64_t count = smaller(key_block, span.end - begin);
        exponents(y, at, KeyRun{begin}, count, q, k);
        sum += sum_vectors(count, [&](int64_t i, auto w) { return load(y + i, w); });
    }
    return sum / static_cast<float>(span.end - span.begin);
}

// To n listed keys, whose scores it computes.
float attend_listed(float* o, const Query& at, Workspace& work, const int32_t* keys, int64_t n,
                    const Tensor& q, const Tensor& k, const Tensor& v) {
    for (int64_t j = 0; j < n; j += key_block)
        exponents(work.scores.get() + j, at, KeyList{keys + j}, smaller(key_block, n - j), q, k);
    return attend_to(o, at, work.scores.get(), keys, n, v);
}

// What query `i` of the collection attends to; returns the natural log of the denominator.
float attend_collected(float* o, const Query& at, Workspace& work, int64_t i, const Tensor& q,
                       const Tensor& k, const Tensor& v) {
    const int64_t kept = work.collection.finish(i), size = at.spec.top_k_block;
    const int32_t* blocks = work.collection.keys(i);
    if (at.spec.index) return attend_listed(o, at, work, blocks, kept, q, k, v);
    if (size == 0) return attend_to(o, at, work.collection.scores(i), blocks, kept, v);
    int64_t n = 0;
    for (int64_t b = -1; b < kept; ++b) {
        const Span span(at, b < 0 ? at.position / size : blocks[b], size);
        for (int64_t begin = span.begin; begin < span.end; begin += key_block) {
            const int64_t count = smaller(key_block, span.end - begin);
            exponents(work.scores.get() + n, at, KeyRun{begin}, count, q, k);
            for (int64_t j = 0; j < count; ++j) work.keys[n++] = static_cast<int32_t>(begin + j);
        }
    }
    return attend_to(o, at, work.scores.get(), work.keys.get(), n, v);
}

// Means of the keys and of the forget sums of each whole block, where they decide a block's mean score.
struct BlockMeans {
    int64_t blocks = 0;              // of a sequence
    std::unique_ptr<float[]> keys;   // [B * G * blocks][d]
    std::unique_ptr<double[]> sums;  // [B * H][blocks]
    bool any() const { return blocks > 0; }

    BlockMeans(Pool& pool, const AttentionSpec& s, const Tensor& k) {
        const Form form = form_of(s);
        if (s.top_k_block == 0 || s.top_k == s.top_k_block || s.far_keys ||
            (form != Form::plain && form != Form::forget))
            return;
        const int64_t size = s.top_k_block, d = s.head_dim;
        blocks = s.length / size;
        keys.reset(new float[static_cast<size_t>(s.batch * s.kv_heads * blocks * d)]);
        for_items(pool, s.batch * s.kv_heads * blocks, d * size, [&](int64_t item) {
            const int64_t head = item / blocks % s.kv_heads;
            const int64_t row = item / blocks / s.kv_heads * s.length + item % blocks * size;
            const float* from = k.f32() + row * k.row_stride + head * d;
            const Vec share = splat(1.0f / static_cast<float>(size));
            for_vectors(d, [&](int64_t c, auto w) {
                Vec sum{};
                for (int64_t j = 0; j < size; ++j) sum += load(from + j * k.row_stride + c, w);
                store(keys.get() + item * d + c, sum * share, w);
            });
        });
        if (!s.forget) return;
        sums.reset(new double[static_cast<size_t>(s.batch * s.heads * blocks)]);
        for_items(pool, s.batch * s.heads * blocks, size, [&](int64_t item) {
            const int64_t head = item / blocks % s.heads;
            const double* from =
                sums_of_head(s, head, item / blocks / s.heads * s.length) + item % blocks * size;
            double sum = 0;
            for (int64_t j = 0; j < size; ++j) sum += from[j];
            sums[item] = sum / static_cast<double>(size);
        });
    }
    Tensor keys_of(const Item& item, int64_t head_dim) const {
        const int64_t kv_head = item.head / (item.spec.heads / item.spec.kv_heads);
        float* first = keys.get() + (item.sequence * item.spec.kv_heads + kv_head) * blocks * head_dim;
        return Tensor(first, DType::f32, {blocks, head_dim});
    }
    const double* sums_of(const Item& item) const {
        return sums ? sums.get() + (item.sequence * item.spec.heads + item.head) * blocks : nullptr;
    }
};

// One call over whole sequences.
struct Call {
    const Tensor &o, &lse, &q, &k, &v;
    const AttentionSpec& spec;
    const BlockMeans& means;
    const Passes& passes;
};

// Visits keys, or blocks as keys, from the nearest back. keys, sums: of the sequence; pass: null for that of keys one by one.
void visit(const Search& s, const Call& call, const Item& item, const Tile& queries, const Tensor& keys,
           const double* sums, Passes::Pass pass, const Buffers<PlainUnit>& buffers) {
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
void collect_first_blocks(const Search& s, const Call& call, const Item& item) {
    const QueryTile& q = s.q;
    for (int64_t i = 0; i < s.visible.rows; ++i) {
        const int64_t start = q.start[i], position = q.begin + i, block = start / s.block;
        if (start % s.block == 0 || block == position / s.block) continue;
        const Query at{item.spec, item.sequence, item.head, start, position, item.first_token + position};
        s.collection.add(i, mean_exponent(at, Span(at, block, s.block), call.q, call.k), block);
    }
}

// Queries [first, first + query_tile) of one head.
void attend_tile(const Call& call, const Item& item, int64_t first, Workspace& work, float* scratch) {
    const AttentionSpec& spec = item.spec;
    const int32_t* row_start = spec.row_start ? spec.row_start.i32() + item.first_token : nullptr;
    const Buffers<PlainUnit> buffers(scratch);
    const Tile tile(item, first, row_start, scratch + Buffers<PlainUnit>::floats(spec.head_dim));
    work.collection.reset();
    float means[query_tile] = {};
    const bool by_means = call.means.any();
    const Visible visible(tile.q, by_means ? spec.top_k_block : 0);
    const Search search{tile.q, tile.rows, visible, work.collection, means, spec.top_k_block};
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

// Queries [first, first + query_tile) of one sequence, all heads, to the keys that the index chooses.
void attend_tile_by_index(const Call& call, int64_t sequence, int64_t first, Workspace& work,
                          float* scratch) {
    const AttentionSpec& spec = call.spec;
    const int64_t first_token = sequence * spec.length;
    const QueryTile q(first, spec.length, spec.row_start ? spec.row_start.i32() + first_token : nullptr);
    const Visible visible(q, 0);
    const IndexTile index(spec.index, first_token + first, visible.rows, work.index.get());
    const ScoreRows rows(spec, 0, first_token + first, visible.rows);  // the plain form reads none of them
    const Search search{q, rows, visible, work.collection, nullptr, 0};
    const Tensor keys = spec.index.keys.row_range(first_token, spec.length);
    work.collection.reset();
    const int64_t begin = visible.first[0];
    for (int64_t tiles = (q.end - begin + key_tile - 1) / key_tile; tiles-- > 0;) {
        const int64_t key = begin + tiles * key_tile, key_end = smaller(key + key_tile, q.end);
        for (int64_t panel = 0; panel < query_panels; ++panel) {
            const KeyRange range = visible.of_panel(panel, key, key_end);
            if (range.empty()) continue;
            index_scores(scratch, index, panel, keys, range);
            const Passes& plain = passes_of<Form::plain>;
            (range.masked ? plain.masked : plain.whole)(search, scratch, panel, range, TableSlice());
        }
    }
    for (int64_t i = 0; i < visible.rows; ++i) {
        const int64_t row = first_token + first + i;
        for (int64_t h = 0; h < spec.heads; ++h) {
            const Query at{spec, sequence, h, q.start[i], first + i, row};
            call.lse.f32()[h * call.lse.row_stride + row] =
                attend_collected(call.o.f32() + row * call.o.row_stride + h * spec.head_dim, at, work, i,
                                 call.q, call.k, call.v);
        }
    }
}

// Collects the keys of one query by the scores of the index.
void collect_by_index(const Query& at, Collection& collection) {
    const IndexScores& s = at.spec.index;
    const float* query = s.queries.f32() + at.row * s.queries.row_stride;
    const float* weights = s.weights.f32() + at.row * s.weights.row_stride;
    for (int64_t j = at.position; j >= at.first; --j) {
        const float* key = s.keys.f32() + (at.sequence * at.spec.length + j) * s.keys.row_stride;
        float sum = 0;
        for (int64_t h = 0; h < s.heads; ++h) {
            const float product = dot(query + h * s.head_dim, key, s.head_dim);
            sum += s.scale * weights[h] * (product < 0 ? 0.0f : product);
        }
        collection.add(0, sum, j);
    }
}

// Collects the keys or blocks of one query, all by their scores.
void collect_alone(const Query& at, Collection& collection, const Tensor& q, const Tensor& k) {
    const int64_t size = at.spec.top_k_block;
    if (size > 0) {
        for (int64_t b = at.position / size; b-- > at.first / size;)
            collection.add(0, mean_exponent(at, Span(at, b, size), q, k), b);
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
    const Passes& passes = form == Form::general    ? passes_of<Form::general>
                           : form == Form::distance ? passes_of<Form::distance>
                           : form == Form::forget   ? passes_of<Form::forget>
                                                    : passes_of<Form::plain>;
    const BlockMeans means(pool_, spec, k);
    const Call call{o, lse, q, k, v, spec, means, passes};
    std::vector<std::unique_ptr<Workspace>> of_thread(static_cast<size_t>(threads_));
    const int64_t tiles = (spec.length + query_tile - 1) / query_tile;
    if (spec.index) {
        return pool_.run(spec.batch * tiles, [&](int64_t i, int thread) {
            std::unique_ptr<Workspace>& work = of_thread[static_cast<size_t>(thread)];
            if (!work) work = std::make_unique<Workspace>(spec, query_tile);
            attend_tile_by_index(call, i / tiles, (tiles - 1 - i % tiles) * query_tile, *work,
                                 scratch_of(thread));
        });
    }
    // The longest tiles of a head come first.
    pool_.run(spec.batch * spec.heads * tiles, [&](int64_t i, int thread) {
        std::unique_ptr<Workspace>& work = of_thread[static_cast<size_t>(thread)];
        if (!work) work = std::make_unique<Workspace>(spec, query_tile);
        const Item item(spec, i / tiles / spec.heads, i / tiles % spec.heads, q, k, v, false);
        attend_tile(call, item, (tiles - 1 - i % tiles) * query_tile, *work, scratch_of(thread));
    });
}

void CpuOps::decode_to_top(Tensor o, const Tensor& q, const Tensor& k, const Tensor& v,
                           const AttentionSpec& spec, int64_t first, int64_t position) {
    std::vector<std::unique_ptr<Workspace>> of_thread(static_cast<size_t>(threads_));
    const int64_t together = spec.index ? spec.heads : 1;  // heads that keep the same keys
    pool_.run(spec.batch * spec.heads / together, [&](int64_t item, int thread) {
        std::unique_ptr<Workspace>& work = of_thread[static_cast<size_t>(thread)];
        if (!work) work = std::make_unique<Workspace>(spec, 1);
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
