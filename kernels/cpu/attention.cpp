// o = P v with the probabilities of AttentionSpec; lse = log of their denominator.
//
//   q, o [N, H*d], k, v [N, G*d], lse [H, N]. Backward needs q, k, v, o and lse; nothing of size T x T
//   exists. 4*d FLOPs and one exp2 per visible pair; memory: q, k, v once per tile of queries, o once.
//
// Online softmax over tiles of keys, in base 2. Scale, log2(e) and row factors are multiplied into the
// queries when they are packed; the rest of the score is score_of in attention_tiles.h. A far pair costs
// a second packing of the queries and, along its border, up to panel_cols - 1 keys of a panel twice.
// Parallel over (sequence, head, tile of queries); one thread computes a
// tile from its first to its last key.
#include <cmath>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/items.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// What one item reads: tensors of one sequence ([T, d], columns of the head), rows of the head.
struct Item {
    const AttentionSpec& spec;
    int64_t head, first_token;  // of the sequence among all N
    Tensor q, k, v;
    Tensor far_q, far_k;  // empty without a far pair
    bool maxima;          // wanted
};

// One tile of queries of one head. Buffers are pieces of the thread's scratch.
struct ForwardTile {
    int64_t width;       // d
    float* queries;      // [query_panels][d][panel_cols], times ScoreRows::packing
    float* scores;       // [key_tile][panel_cols]: S^T of the current panel, then P^T
    float* output;       // [query_panels][d][panel_cols]: O^T so far, relative to `top`
    float* top;          // [query_tile]: largest exponent so far
    float* sum;          // [query_tile]: sum of 2^(exponent - top)
    float* shrink;       // [query_tile]: what earlier sums and outputs are multiplied with
    float* maximum;      // [query_tile]: largest product so far, its sign that of the score
    float* far_queries;  // like `queries`
    float* far_scores;   // [panel_cols][panel_cols]: S^T from the far pair, where both pairs are needed

    ForwardTile(float* scratch, int64_t head_dim) : width(head_dim) {
        queries = scratch;
        output = queries + query_tile * width;
        scores = output + query_tile * width;
        top = scores + key_tile * panel_cols;
        sum = top + query_tile;
        shrink = sum + query_tile;
        maximum = shrink + query_tile;
        far_queries = maximum + query_tile;
        far_scores = far_queries + query_tile * width;
    }
    static int64_t floats(int64_t head_dim) {
        return 3 * query_tile * head_dim + (key_tile + panel_cols) * panel_cols + 4 * query_tile;
    }

    // sink: -infinity for none.
    void reset(float sink) {
        for (int64_t i = 0; i < query_tile * width; ++i) output[i] = 0.0f;
        // A sink acts as the first key. `top` stays finite, so that a difference of two tops is never
        // infinity - infinity; -1e30 is far below any score.
        const float logit = sink * log2_e;
        const bool none = logit < -1e30f;
        for (int64_t i = 0; i < query_tile; ++i) {
            top[i] = none ? -1e30f : logit;
            sum[i] = none ? 0.0f : 1.0f;
            maximum[i] = -__builtin_inff();
        }
    }
};

// Turns the scores of one panel and keys [range.begin, range.end) into P^T and updates top, sum and shrink.
template <Form form, bool masked>
void softmax_panel(const ForwardTile& t, const QueryTile& q, const ScoreRows& rows, int64_t panel,
                   const KeyRange& range, const TableSlice& slice) {
    const int64_t keys = range.end - range.begin;  // a copy no store can change
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t query = q.begin + at;
        float* column = t.scores + lane;
        const Vec before = load(t.top + at);
        Vec top = before;
        const int64_t first = range.begin, distance = query - first - slice.lowest;
        for (int64_t j = 0; j < keys; ++j) {
            float* y = column + j * panel_cols;
            Vec value = score_of<form>(load(y), rows, at, slice, distance - j, first + j).y;
            if constexpr (masked) value = mask_unseen(value, first + j, query, q.start + at);
            if constexpr (form != Form::plain || masked) store(y, value);
            top = max(top, value);
        }
        Vec sum{};
        for (int64_t j = 0; j < keys; ++j) {
            const Vec p = exp2(load(column + j * panel_cols) - top);
            sum += p;
            store(column + j * panel_cols, p);
        }
        const Vec shrink = exp2(before - top);
        store(t.top + at, top);
        store(t.shrink + at, shrink);
        store(t.sum + at, fma(load(t.sum + at), shrink, sum));
    }
}

// The instantiations of one form, with and without masked pairs.
using Softmax = void (*)(const ForwardTile&, const QueryTile&, const ScoreRows&, int64_t, const KeyRange&,
                         const TableSlice&);
struct FormPasses {
    Softmax masked, whole;
};
template <Form form>
constexpr FormPasses passes_of = {softmax_panel<form, true>, softmax_panel<form, false>};

// Largest products of one panel. A negative row factor in the packed queries has turned the sign of scores.
void raise_maxima(const ForwardTile& t, const QueryTile& q, const ScoreRows& rows, int64_t panel,
                  const KeyRange& range, bool absolute) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const Vec sign = load(rows.packing + at) < Vec{} ? splat(-1.0f) : splat(1.0f);
        Vec most = load(t.maximum + at);
        for (int64_t j = range.begin; j < range.end; ++j) {
            const Vec product = load(t.scores + (j - range.begin) * panel_cols + lane);
            Vec value = absolute ? abs(product) : product * sign;
            if (range.masked) value = mask_unseen(value, j, q.begin + at, q.start + at);
            most = max(most, value);
        }
        store(t.maximum + at, most);
    }
}

// to [end - begin, panel_cols] = S^T of keys [begin, end) and one panel of packed queries. Out of line: one
// copy of the product serves all of score_panel.
__attribute__((noinline)) void multiply_scores(float* to, const Tensor& k, const float* queries,
                                               int64_t begin, int64_t end) {
    multiply_panel<PlainUnit>(
        k.f32() + begin * k.row_stride, k.row_stride, 1, queries, k.cols(),
        end - begin, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            store(to + r * panel_cols, left);
            store(to + r * panel_cols + lanes, right);
        });
}

// scores: S^T of one panel and the keys of `range`. Keys so early that they are far from every query of the
// panel take the far pair, keys near to all of them the near pair; the at most panel_cols - 1 keys between
// take both and choose by lane.
void score_panel(const ForwardTile& t, const QueryTile& q, int64_t panel, const KeyRange& range,
                 const Item& item) {
    const float* queries = t.queries + panel * t.width * panel_cols;
    if (!item.far_k) return multiply_scores(t.scores, item.k, queries, range.begin, range.end);
    const float* far_queries = t.far_queries + panel * t.width * panel_cols;
    const int64_t first = q.begin + panel * panel_cols - item.spec.far_from + 1;
    // Where the keys of both pairs begin, and those of the near pair alone.
    const int64_t mixed = larger(range.begin, smaller(range.end, first));
    const int64_t near = larger(range.begin, smaller(range.end, first + panel_cols - 1));
    float* scores = t.scores + (mixed - range.begin) * panel_cols;
    multiply_scores(t.scores, item.far_k, far_queries, range.begin, mixed);
    multiply_scores(scores, item.k, queries, mixed, range.end);
    multiply_scores(t.far_scores, item.far_k, far_queries, mixed, near);
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const VecInt query = static_cast<int32_t>(q.begin + panel * panel_cols + lane) + lane_index();
        const VecInt last_far = query - static_cast<int32_t>(item.spec.far_from);
        for (int64_t j = mixed; j < near; ++j) {
            const int64_t at = (j - mixed) * panel_cols + lane;
            const VecInt key = static_cast<int32_t>(j) - VecInt{};
            store(scores + at, key <= last_far ? load(t.far_scores + at) : load(scores + at));
        }
    }
}

// Adds keys [range.begin, range.end) to one panel of queries.
void attend_panel(const ForwardTile& t, const QueryTile& q, const ScoreRows& rows, int64_t panel,
                  const KeyRange& range, const Item& item, const TableSlice& slice,
                  const FormPasses& passes) {
    score_panel(t, q, panel, range, item);
    if (item.maxima) raise_maxima(t, q, rows, panel, range, item.spec.absolute_maxima);
    const Softmax softmax = range.masked ? passes.masked : passes.whole;
    softmax(t, q, rows, panel, range, slice);
    float* output = t.output + panel * t.width * panel_cols;
    const Vec shrink_left = load(t.shrink + panel * panel_cols);
    const Vec shrink_right = load(t.shrink + panel * panel_cols + lanes);
    multiply_panel<PlainUnit>(
        item.v.f32() + range.begin * item.v.row_stride, 1, item.v.row_stride, t.scores,
        range.end - range.begin, t.width, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            float* o = output + r * panel_cols;
            store(o, fma(load(o), shrink_left, left));
            store(o + lanes, fma(load(o + lanes), shrink_right, right));
        });
}

// o rows = O^T transposed, divided by the sums; lse of the tile's queries.
void write_tile(const ForwardTile& t, const QueryTile& q, float* o, int64_t o_stride, float* lse) {
    const int64_t rows = q.end - q.begin;
    for (int64_t i = 0; i < rows; ++i) lse[i] = t.top[i] * ln_2 + std::log(t.sum[i]);
    for (int64_t i = 0; i < rows; i += lanes) {
        const Vec inverse = splat(1.0f) / load(t.sum + i);
        const float* columns = t.output + i / panel_cols * t.width * panel_cols + i % panel_cols;
        for (int64_t c = 0; c < t.width; c += lanes) {
            Vec block[lanes] = {};
            const int count = static_cast<int>(smaller(lanes, t.width - c));
            for (int j = 0; j < count; ++j) block[j] = load(columns + (c + j) * panel_cols) * inverse;
            transpose(block);
            for (int64_t r = 0; r < smaller(lanes, rows - i); ++r)
                store_first(o + (i + r) * o_stride + c, block[r], count);
        }
    }
}

// Products back to scores: largest z (or |z|) of the tile's queries; -infinity where the row factor is 0.
void write_maxima(float* to, const ForwardTile& t, const ScoreRows& rows, int64_t count, float softcap) {
    for (int64_t i = 0; i < count; ++i) {
        const float f = rows.factor[i];
        const float z = rows.capped ? t.maximum[i] * softcap : t.maximum[i] / (std::abs(f) * log2_e);
        to[i] = f == 0.0f ? -__builtin_inff() : z;
    }
}

// o: of the head, from the tile's first query on; lse, maxima (null: not wanted): likewise.
void attention_tile(float* o, int64_t o_stride, float* lse, float* maxima, const QueryTile& q,
                    const Item& item, const FormPasses& passes, float* scratch) {
    const int64_t count = q.end - q.begin;
    ForwardTile t(scratch, item.q.cols());
    t.reset(item.spec.sink ? item.spec.sink.f32()[item.head] : -__builtin_inff());
    const ScoreRows rows(item.spec, item.head, item.first_token + q.begin, count);
    const auto pack = [&](float* to, const Tensor& queries) {
        pack_queries_transposed(to, queries.f32() + q.begin * queries.row_stride, queries.row_stride, count,
                                t.width, rows.packing);
    };
    pack(t.queries, item.q);
    if (item.far_q) pack(t.far_queries, item.far_q);
    const TableSlice::Tables tables(item.spec, item.head);
    const double* sums = sums_of_head(item.spec, item.head, item.first_token);
    TableSlice slice;
    for (int64_t key = q.first_key(); key < q.end; key += key_tile) {
        const int64_t key_end = smaller(key + key_tile, q.end);
        if (tables.gain) slice.cut(tables, q.begin, key, key_end);
        if (sums) slice.cut_forget(sums, key, key_end);
        for (int64_t panel = 0; panel < query_panels; ++panel) {
            const KeyRange range(q, panel, key, key_end);
            if (!range.empty()) attend_panel(t, q, rows, panel, range, item, slice, passes);
        }
    }
    write_tile(t, q, o, o_stride, lse);
    if (maxima) write_maxima(maxima, t, rows, count, item.spec.softcap);
}

}  // namespace

void CpuOps::do_row_starts(Tensor row_start, const Tensor& doc_start, int64_t length, int64_t window,
                           int64_t chunk) {
    const int64_t count = row_start.count();
    check(row_start.contiguous() && count % length == 0, "row_starts: {} entries, length {}", count, length);
    const int32_t* document = doc_start ? doc_start.i32() : nullptr;
    int32_t* out = row_start.i32();
    for_items(pool_, count, 1, [&](int64_t n) {
        const int64_t i = n % length;
        const int64_t by_window = window > 0 ? larger(0, i - window + 1) : 0;
        const int64_t by_chunk = chunk > 0 ? i / chunk * chunk : 0;
        out[n] = static_cast<int32_t>(larger(larger(by_window, by_chunk), document ? document[n] : 0));
    });
}

void CpuOps::do_attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k,
                          const Tensor& v, const AttentionSpec& spec) {
    if (spec.stick_breaking) {
        check(!row_maxima, "stick-breaking attention has no row maxima");
        return break_sticks(o, lse, q, k, v, spec);
    }
    check(ForwardTile::floats(spec.head_dim) <= scratch_per_thread_, "attention: head size {} is too large",
          spec.head_dim);
    check_attention(spec);
    check(bool(spec.far_queries) == bool(spec.far_keys), "attention: half a far pair");
    const int64_t d = spec.head_dim, length = spec.length, group = spec.heads / spec.kv_heads;
    const int64_t tiles = (length + query_tile - 1) / query_tile;
    const int32_t* row_start = spec.row_start ? spec.row_start.i32() : nullptr;
    const Form form = form_of(spec);
    const FormPasses passes = form == Form::general    ? passes_of<Form::general>
                              : form == Form::distance ? passes_of<Form::distance>
                              : form == Form::forget   ? passes_of<Form::forget>
                                                       : passes_of<Form::plain>;

    // Within a head the longest tiles come first; heads follow each other, so that keys and
    // values stay in cache.
    pool_.run(spec.batch * spec.heads * tiles, [&](int64_t i, int thread) {
        const int64_t sequence = i / tiles / spec.heads, head = i / tiles % spec.heads;
        const int64_t first_row = sequence * length, kv_head = head / group;
        const QueryTile tile((tiles - 1 - i % tiles) * query_tile, length,
                             row_start ? row_start + first_row : nullptr);
        const auto part = [&](const Tensor& t, int64_t which) {
            return t ? t.row_range(first_row, length).col_range(which * d, d) : Tensor();
        };
        const Item item{.spec = spec,
                        .head = head,
                        .first_token = first_row,
                        .q = part(q, head),
                        .k = part(k, kv_head),
                        .v = part(v, kv_head),
                        .far_q = part(spec.far_queries, head),
                        .far_k = part(spec.far_keys, kv_head),
                        .maxima = bool(row_maxima)};
        const int64_t token = first_row + tile.begin;
        attention_tile(o.f32() + token * o.row_stride + head * d, o.row_stride,
                       lse.f32() + head * lse.row_stride + token,
                       row_maxima ? row_maxima.f32() + head * row_maxima.row_stride + token : nullptr, tile,
                       item, passes, scratch_of(thread));
    });
}

#include "kernels/cpu/isa_end.h"
