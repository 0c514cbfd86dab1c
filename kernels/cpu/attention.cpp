// o = P v with the probabilities of AttentionSpec; lse = log of their denominator.
//
//   q, o [N, H*d], k, v [N, G*d], lse [H, N]. Backward needs q, k, v, o and lse; nothing of size T x T
//   exists. 4*d FLOPs and one exp2 per visible pair; memory: k, v once per item, q and o once.
//
// Online softmax over tiles of keys, in base 2. Scale, log2(e) and row factors are multiplied into the
// queries when they are packed; the rest of the score is score_of in attention_tiles.h. A far pair costs
// a second packing of the queries and, along its border, up to panel_cols - 1 keys of a panel twice.
// In bf16 the packed queries, keys, probabilities and values are rounded; the denominators are sums of
// probabilities before rounding. An item is a few tiles of queries of a head, which share each tile of keys. Parallel over
// items; one thread computes a tile of queries from its first to its last key.
#include <cmath>
#include <memory>
#include <optional>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/simd_math.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/attention_scores.h"
#include "kernels/cpu/attention_horizon.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// One tile of queries of one head and what is known of it so far.
template <class Unit>
struct ForwardTile : ScoreTile<Unit> {
    float* output;   // [query_panels][height][panel_cols]: O^T so far, relative to `top`
    float* top;      // [query_tile]: largest exponent so far
    float* sum;      // [query_tile]: sum of 2^(exponent - top)
    float* shrink;   // [query_tile]: what earlier sums and outputs are multiplied with; in the end 1 / sum
    float* maximum;  // [query_tile]: largest product so far, its sign that of the score

    ForwardTile(const Item& item, int64_t first, const int32_t* row_start, float* memory)
        : ScoreTile<Unit>(item, first, row_start, memory),
          output(memory + ScoreTile<Unit>::floats(this->width)),
          top(output + query_tile * height(this->width)),
          sum(top + query_tile),
          shrink(sum + query_tile),
          maximum(shrink + query_tile) {
        reset(item.spec.sink ? item.spec.sink.f32()[item.head] : -__builtin_inff());
    }
    // Rows of O^T: those of d channels and what products write past them.
    static int64_t height(int64_t head_dim) { return round_up(head_dim, Core<Unit>::rows_together); }
    static int64_t floats(int64_t head_dim) {
        return ScoreTile<Unit>::floats(head_dim) + query_tile * (height(head_dim) + 4);
    }
    float* output_of(int64_t panel) const { return output + panel * height(this->width) * panel_cols; }

    // sink: -infinity for none.
    void reset(float sink) {
        for (int64_t i = 0; i < query_tile * height(this->width); ++i) output[i] = 0.0f;
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
template <class Unit, Form form, bool masked>
void softmax_panel(const ForwardTile<Unit>& t, const Buffers<Unit>& buffers, int64_t panel,
                   const KeyRange& range, const TableSlice& slice, RowsAhead& ahead) {
    const QueryTile& q = t.q;
    const int64_t keys = range.end - range.begin;  // a copy no store can change
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const int64_t query = q.begin + at;
        float* column = buffers.scores + lane;
        const Vec before = load(t.top + at);
        const int64_t first = range.begin, distance = query - first - slice.lowest;
        const auto exponent = [&](int64_t j) __attribute__((always_inline)) {
            float* y = column + j * panel_cols;
            Vec value = score_of<form>(load(y), t.rows, at, slice, distance - j, first + j).y;
            if constexpr (masked) value = mask_unseen(value, first + j, query, q.start + at);
            if constexpr (form != Form::plain || masked) store(y, value);
            return value;
        };
        Vec tops[4] = {before, before, before, before};  // so that no maximum waits for the one before it
        int64_t j = 0;
        for (; j + 4 <= keys; j += 4)
            for (int64_t x = 0; x < 4; ++x) tops[x] = max(tops[x], exponent(j + x));
        for (; j < keys; ++j) tops[0] = max(tops[0], exponent(j));
        const Vec top = max(max(tops[0], tops[1]), max(tops[2], tops[3]));
        Vec sum{};
        for (j = 0; j < keys; j += Unit::floats) {
            if (j % RowsAhead::keys_per_row == 0) ahead.fetch_row();
            const Vec p = Unit::exp2_of(load(column + j * panel_cols) - top);
            if constexpr (Unit::floats == 1) {
                sum += p;
                store(column + j * panel_cols, p);
            } else {  // unit j / 2 replaces a row that has been read
                const Vec next =
                    j + 1 < keys ? Unit::exp2_of(load(column + (j + 1) * panel_cols) - top) : Vec{};
                sum += p + next;
                store(column + j / Unit::floats * panel_cols, Unit::interleave(p, next));
            }
        }
        for (int64_t u = units_of<Unit>(keys); u < filled_units<Unit>(keys); ++u)
            store(column + u * panel_cols, Vec{});
        const Vec shrink = exp2(before - top);
        store(t.top + at, top);
        store(t.shrink + at, shrink);
        store(t.sum + at, fma(load(t.sum + at), shrink, sum));
    }
}

// The instantiations of one form, with and without masked pairs.
template <class Unit>
struct FormPasses {
    using Softmax = void (*)(const ForwardTile<Unit>&, const Buffers<Unit>&, int64_t, const KeyRange&,
                             const TableSlice&, RowsAhead&);
    Softmax masked, whole;
};
template <class Unit, Form form>
constexpr FormPasses<Unit> passes_of = {softmax_panel<Unit, form, true>, softmax_panel<Unit, form, false>};

// Largest products of one panel. A negative row factor in the packed queries has turned the sign of scores.
template <class Unit>
void raise_maxima(const ForwardTile<Unit>& t, const float* scores, int64_t panel, const KeyRange& range,
                  bool absolute) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane;
        const Vec sign = load(t.rows.packing + at) < Vec{} ? splat(-1.0f) : splat(1.0f);
        Vec most = load(t.maximum + at);
        for (int64_t j = range.begin; j < range.end; ++j) {
            const Vec product = load(scores + (j - range.begin) * panel_cols + lane);
            Vec value = absolute ? abs(product) : product * sign;
            if (range.masked) value = mask_unseen(value, j, t.q.begin + at, t.q.start + at);
            most = max(most, value);
        }
        store(t.maximum + at, most);
    }
}

// Adds keys [range.begin, range.end) to one panel of queries.
template <class Unit>
void attend_panel(const ForwardTile<Unit>& t, const Buffers<Unit>& buffers, int64_t panel,
                  const KeyRange& range, const Item& item, const KeyTile& tile, const TableSlice& slice,
                  const FormPasses<Unit>& passes, RowsAhead& ahead) {
    score_panel(t, buffers, panel, range, tile, item.spec.far_from);
    if (item.maxima) raise_maxima(t, buffers.scores, panel, range, item.spec.absolute_maxima);
    (range.masked ? passes.masked : passes.whole)(t, buffers, panel, range, slice, ahead);
    float* output = t.output_of(panel);
    const Vec shrink_left = load(t.shrink + panel * panel_cols);
    const Vec shrink_right = load(t.shrink + panel * panel_cols + lanes);
    const Strided values = tile.values.from_unit((range.begin - tile.begin) / Unit::floats);
    const int64_t units = units_of<Unit>(range.end - range.begin);
    if constexpr (Core<Unit>::turned) {
        if (reduce_min(min(shrink_left, shrink_right)) < 1.0f)
            for (float* o = output; o < output + t.width * panel_cols; o += panel_cols) {
                store(o, load(o) * shrink_left);
                store(o + lanes, load(o + lanes) * shrink_right);
            }
        Core<Unit>::template multiply_to<true>(output, panel_cols, values, buffers.scores, units, t.width);
    } else {
        multiply_panel<Unit>(
            values.data, values.row_step, values.k_step, buffers.scores, units,
            t.width, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
                float* o = output + r * panel_cols;
                store(o, fma(load(o), shrink_left, left));
                store(o + lanes, fma(load(o + lanes), shrink_right, right));
            });
    }
}

// o rows = O^T transposed, divided by the sums; lse of the tile's queries.
template <class Unit>
void write_tile(const ForwardTile<Unit>& t, float* o, int64_t o_stride, float* lse) {
    const int64_t rows = t.q.end - t.q.begin;
    for (int64_t i = 0; i < rows; ++i) lse[i] = t.top[i] * ln_2 + std::log(t.sum[i]);
    for (int64_t i = 0; i < query_tile; i += lanes) store(t.shrink + i, splat(1.0f) / load(t.sum + i));
    for (int64_t first = 0; first < rows; first += panel_cols) {
        for_turned(
            t.output_of(first / panel_cols), t.width, smaller(panel_cols, rows - first),
            [=](int64_t r, int64_t c, Vec value, int count) __attribute__((always_inline)) {
                store_first(o + (first + r) * o_stride + c, value * splat(t.shrink[first + r]), count);
            });
    }
}

// Products back to scores: largest z (or |z|) of the tile's queries; -infinity where the row factor is 0.
template <class Unit>
void write_maxima(const ForwardTile<Unit>& t, float* to, float softcap) {
    for (int64_t i = 0; i < t.q.end - t.q.begin; ++i) {
        const float f = t.rows.factor[i];
        const float z = t.rows.capped ? t.maximum[i] * softcap : t.maximum[i] / (std::abs(f) * log2_e);
        to[i] = f == 0.0f ? -__builtin_inff() : z;
    }
}

// Tiles of queries of an item. They take each tile of keys in turn, so that it is read from memory, and rounded, once: f32 at
// 4096 keys was 1.2 times as fast with four as with one.
template <class Unit>
constexpr int64_t most_tiles = Core<Unit>::turned ? 8 : 4;

// What one item writes: rows of its sequence, o the columns of its head; maxima may be null.
struct Output {
    Tensor o;
    float *lse, *maxima;
    const Horizon& horizon;
};

// Queries [first, end) of one head, a few tiles.
template <class Unit>
void attention_tiles(const Output& to, int64_t first, int64_t end, const int32_t* row_start, const Item& item,
                     const FormPasses<Unit>& passes, float* scratch) {
    const Buffers<Unit> buffers(scratch);
    float* memory = scratch + Buffers<Unit>::floats(item.q.cols());
    std::optional<ForwardTile<Unit>> tiles[most_tiles<Unit>];
    Horizon::OfTile horizon[most_tiles<Unit>];
    int64_t count = 0;
    for (int64_t i = first; i < end; i += query_tile, memory += ForwardTile<Unit>::floats(item.q.cols())) {
        const ForwardTile<Unit>& t = tiles[count].emplace(item, i, row_start, memory);
        horizon[count++] = to.horizon.of(item.spec, item.sequence, item.head, t.q, t.rows,
                                         item.q.f32() + i * item.q.row_stride, item.q.row_stride, nullptr);
    }
    const auto sees = [&](int64_t i, int64_t key, int64_t key_end) {
        const QueryTile& q = tiles[i]->q;
        return key < q.end && key_end > q.first_key() && !horizon[i].skips(key, key_end);
    };
    const TableSlice::Tables tables(item.spec, item.head);
    const double* sums = sums_of_head(item.spec, item.head, item.first_key);
    TableSlice slice;
    const int64_t last_key = item.before + end;
    const int64_t first_key = tiles[0]->q.first_key(), keys = last_key - first_key, rows = end - first;
    for (int64_t key = first_key; key < last_key; key += key_tile) {
        const int64_t key_end = smaller(key + key_tile, last_key);
        bool seen = false;
        for (int64_t i = 0; i < count; ++i) seen = seen || sees(i, key, key_end);
        if (!seen) continue;
        if (sums) slice.cut_forget(sums, key, key_end);
        // Keys and values of the next tile, and a share of the rows that will be written.
        RowsAhead ahead(item.q.cols());
        const int64_t next_end = smaller(key_end + key_tile, last_key);
        ahead.add(to.o, first + rows * (key - first_key) / keys, first + rows * (key_end - first_key) / keys);
        if (item.far_k) ahead.add(item.far_k, key_end, next_end);
        ahead.add(item.v, key_end, next_end);
        ahead.add(item.k, key_end, next_end);
        const KeyTile tile = KeyTile::of<Unit>(buffers.packed, item.k, item.far_k, item.v, key, key_end);
        for (int64_t i = 0; i < count; ++i) {
            const ForwardTile<Unit>& t = *tiles[i];
            if (!sees(i, key, key_end)) continue;
            if (tables.gain) slice.cut(tables, t.q.begin, key, key_end);
            for (int64_t panel = 0; panel < query_panels; ++panel) {
                const KeyRange range(t.q, panel, key, key_end, step_floats<Unit>);
                if (!range.empty()) attend_panel(t, buffers, panel, range, item, tile, slice, passes, ahead);
            }
        }
    }
    for (int64_t i = 0; i < count; ++i) {
        const ForwardTile<Unit>& t = *tiles[i];
        const int64_t row = t.q.begin - item.before;
        write_tile(t, to.o.f32() + row * to.o.row_stride, to.o.row_stride, to.lse + row);
        if (to.maxima) write_maxima(t, to.maxima + row, item.spec.softcap);
    }
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
    const int64_t before = keys_before(spec, k);
    check_attention(spec, before);
    check(before >= 0 && k.rows() == spec.batch * (before + spec.length) && v.rows() == k.rows() &&
              (!spec.far_keys || spec.far_keys.rows() == k.rows()),
          "attention of {} queries to {} keys and {} values", q.rows(), k.rows(), v.rows());
    check(bool(spec.far_queries) == bool(spec.far_keys), "attention: half a far pair");
    const bool softmax = spec.normaliser == Normaliser::softmax;
    check(softmax || !row_maxima, "row maxima are of the softmax");
    check(spec.top_k == 0 || (softmax && !row_maxima && before == 0), "attention to {} keys", spec.top_k);
    check(spec.top_k_block == 0 || (spec.top_k > 0 && spec.top_k % spec.top_k_block == 0),
          "attention to {} keys in blocks of {}", spec.top_k, spec.top_k_block);
    check(!spec.index || spec.top_k_block == 0, "attention to blocks of keys that an index chooses");
    check(!spec.channel_sums || !row_maxima, "row maxima with sums by channel");
    if (spec.channel_sums) return decayed_attention(o, lse, q, k, v, spec);
    if (spec.top_k > 0 && spec.top_k < spec.length) return attention_to_top(o, lse, q, k, v, spec);
    with_products(spec.top_k > 0 ? Products::f32 : products_, [&]<class Unit>(Unit) {
        if (spec.normaliser == Normaliser::stick_breaking)
            break_sticks<Unit>(o, lse, q, k, v, spec);
        else if (spec.normaliser == Normaliser::entmax)
            entmax_attention<Unit>(o, lse, q, k, v, spec);
        else
            softmax_attention<Unit>(o, lse, row_maxima, q, k, v, spec);
    });
}

template <class Unit>
void CpuOps::softmax_attention(Tensor o, Tensor lse, Tensor row_maxima, const Tensor& q, const Tensor& k,
                               const Tensor& v, const AttentionSpec& spec) {
    const int64_t d = spec.head_dim, length = spec.length;
    const int64_t fit = (scratch_per_thread_ - Buffers<Unit>::floats(d)) / ForwardTile<Unit>::floats(d);
    check(fit >= 1, "attention: head size {} is too large", d);
    // In f32 a power of two, so that sequences cut into pieces at multiples of most_tiles have the same items.
    const int64_t tiles = Unit::floats == 1 && fit == 3 ? 2 : smaller(fit, most_tiles<Unit>);
    const int64_t rows = tiles * query_tile;  // of an item
    const int64_t items = (length + rows - 1) / rows;
    const int32_t* row_start = spec.row_start ? spec.row_start.i32() : nullptr;
    const Form form = form_of(spec);
    const FormPasses<Unit> passes = form == Form::general    ? passes_of<Unit, Form::general>
                                    : form == Form::distance ? passes_of<Unit, Form::distance>
                                    : form == Form::forget   ? passes_of<Unit, Form::forget>
                                                             : passes_of<Unit, Form::plain>;

    const Horizon horizon = row_maxima ? Horizon() : Horizon(spec, k, pool_);  // maxima are of all scores
    // Within a head the longest items come first; heads follow each other, so that keys and
    // values stay in cache.
    pool_.run(spec.batch * spec.heads * items, [&](int64_t i, int thread) {
        [[maybe_unused]] const typename Core<Unit>::Ready ready;
        const int64_t sequence = i / items / spec.heads, head = i / items % spec.heads;
        const int64_t first_row = sequence * length;
        const int64_t first = (items - 1 - i % items) * rows;
        const Item item(spec, sequence, head, q, k, v, bool(row_maxima));
        const auto row_of = [&](const Tensor& t) { return t.f32() + head * t.row_stride + first_row; };
        const Output to{.o = o.row_range(first_row, length).col_range(head * d, d),
                        .lse = row_of(lse),
                        .maxima = row_maxima ? row_of(row_maxima) : nullptr,
                        .horizon = horizon};
        attention_tiles(to, first, smaller(length, first + rows), row_start ? row_start + first_row : nullptr,
                        item, passes, scratch_of(thread));
    });
}

#include "kernels/cpu/isa_end.h"
