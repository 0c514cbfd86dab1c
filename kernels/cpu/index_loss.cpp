// What the scores of an index learn: ops.h has the loss. Slow, since attention's scores are computed twice more.
//
//   sums      per tile of queries: log of the sum of exp(I)
//   queries   per tile of queries: losses, gradients at queries and weights of the index
//   keys      per tile of keys: gradients at keys of the index
//
// With p the mean of the heads' weights and a = softmax(I), dI = gradient_scale (a - p). Of one head of the index, with z
// its products: dz = scale w dI [z > 0], dq = dz K, dk = dz^T q, dw = scale times the sum of dI relu(z).
//
// Everything is kept transposed, [keys, queries], as in attention_tiles.h. Each pass is parallel over (sequence, tile); one
// thread computes a tile in a fixed order.
#include <cmath>
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
#include "kernels/cpu/index_scores.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

struct Call {
    Tensor losses, index_lse;
    IndexScores d;
    const Tensor &lse, &q, &k;
    float gradient_scale;
    const AttentionSpec& spec;
};

inline constexpr int64_t panel_floats = key_tile * panel_cols;

// Memory of a thread.
struct Workspace {
    std::vector<float> tile;      // of ScoreTile
    std::vector<float> buffers;   // of Buffers
    std::vector<float> index;     // of IndexTile
    std::vector<float> weights;   // [query_panels][key_tile][panel_cols]: p
    std::vector<float> scores;    // likewise: I, then dI
    std::vector<float> products;  // [key_tile][panel_cols]: dz
    std::vector<float> dweights;  // [heads][query_tile]
    // dq^T: [heads][query_panels][d][panel_cols]; or dk: [key_tile][round_up(d, panel_cols)]
    std::vector<float> gradients;
    std::vector<float> queries;  // of the index, a panel of them as a right side: [panel_cols][panel_cols]

    explicit Workspace(const AttentionSpec& s) {
        const auto size = [](std::vector<float>& v, int64_t n) { v.resize(static_cast<size_t>(n)); };
        const int64_t channels = round_up(s.index.head_dim, panel_cols);
        size(tile, ScoreTile<PlainUnit>::floats(s.head_dim));
        size(buffers, Buffers<PlainUnit>::floats(s.head_dim));
        size(index, IndexTile::floats(s.index));
        size(weights, query_panels * panel_floats);
        size(scores, query_panels * panel_floats);
        size(products, panel_floats);
        size(gradients, larger(s.index.heads * query_tile * s.index.head_dim, key_tile * channels));
        size(dweights, s.index.heads * query_tile);
        size(queries, panel_cols * panel_cols);
    }
};

// The queries of a tile: positions, what they see, and what their rows have in common for all heads.
struct Queries {
    QueryTile q;
    int64_t sequence, first_row, rows;        // first_row: of the tile among all N
    alignas(64) float share[query_tile];      // 1 / (sum of the heads' weights); 0 where a sink has all
    alignas(64) float index_lse[query_tile];  // times log2(e); 0 past the last query
    alignas(64) float rate[query_tile];       // of dI; 0 past the last query

    Queries(const Call& call, int64_t of_sequence, int64_t first)
        : q(first, call.spec.length,
            call.spec.row_start ? call.spec.row_start.i32() + of_sequence * call.spec.length : nullptr),
          sequence(of_sequence),
          first_row(of_sequence * call.spec.length + first),
          rows(q.end - q.begin) {
        const AttentionSpec& s = call.spec;
        for (int64_t i = 0; i < query_tile; ++i) {
            double mass = 0;
            for (int64_t h = 0; i < rows && h < s.heads; ++h) {
                const double lse = double{call.lse.f32()[h * call.lse.row_stride + first_row + i]};
                mass += s.sink ? 1 - std::exp(double{s.sink.f32()[h]} - lse) : 1;
            }
            share[i] = mass > 0 ? static_cast<float>(1 / mass) : 0.0f;
            rate[i] = mass > 0 ? call.gradient_scale : 0.0f;
            index_lse[i] = i < rows ? call.index_lse.f32()[first_row + i] * log2_e : 0.0f;
        }
    }
};

// weights: p of a tile of queries and the keys [key, key_end).
void mean_weights(float* weights, const Call& call, const Queries& of, Workspace& work, int64_t key,
                  int64_t key_end) {
    const AttentionSpec& s = call.spec;
    for (int64_t i = 0; i < query_panels * panel_floats; ++i) weights[i] = 0.0f;
    const int32_t* row_start = s.row_start ? s.row_start.i32() + of.sequence * s.length : nullptr;
    const Buffers<PlainUnit> buffers(work.buffers.data());
    const Form form = form_of(s);
    for (int64_t h = 0; h < s.heads; ++h) {
        const Item item(s, of.sequence, h, call.q, call.k, call.k, false);
        const ScoreTile<PlainUnit> tile(item, of.q.begin, row_start, work.tile.data());
        const KeyTile keys = KeyTile::of<PlainUnit>(buffers.packed, item.k, item.far_k, item.v, key, key_end);
        const TableSlice::Tables tables(s, h);
        TableSlice slice;
        if (tables.gain) slice.cut(tables, of.q.begin, key, key_end);
        if (const double* sums = sums_of_head(s, h, item.first_token)) slice.cut_forget(sums, key, key_end);
        alignas(64) float lse[query_tile] = {};
        for (int64_t i = 0; i < of.rows; ++i)
            lse[i] = call.lse.f32()[h * call.lse.row_stride + of.first_row + i] * log2_e;
        for (int64_t panel = 0; panel < query_panels; ++panel) {
            const KeyRange range(of.q, panel, key, key_end, 1);
            if (range.empty()) continue;
            score_panel(tile, buffers, panel, range, keys, 0);
            for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
                const int64_t at = panel * panel_cols + lane, query = of.q.begin + at;
                const Vec share = load(of.share + at), top = load(lse + at);
                for (int64_t j = range.begin; j < range.end; ++j) {
                    const Vec product = load(buffers.scores + (j - range.begin) * panel_cols + lane);
                    // With Form::general where the form is not plain: what a score lacks costs a branch.
                    const Score score = form == Form::plain
                                            ? score_of<Form::plain>(product, tile.rows, at, slice, 0, j)
                                            : score_of<Form::general>(product, tile.rows, at, slice,
                                                                      query - j - slice.lowest, j);
                    const Vec y = mask_unseen(score.y, j, query, of.q.start + at);
                    float* to = weights + panel * panel_floats + (j - key) * panel_cols + lane;
                    store(to, fma(exp2(y - top), share, load(to)));
                }
            }
        }
    }
}

// scores: I of a panel, and with p its dI. Adds the terms of the losses, in base 2, to `losses` where it is not null.
void derivatives(float* scores, double* losses, const float* weights, const Queries& of, int64_t panel,
                 int64_t key, const KeyRange& range) {
    for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
        const int64_t at = panel * panel_cols + lane, query = of.q.begin + at;
        const Vec lse = load(of.index_lse + at), rate = load(of.rate + at);
        Vec loss{};
        for (int64_t j = range.begin; j < range.end; ++j) {
            float* cell = scores + (j - range.begin) * panel_cols + lane;
            const Vec p = load(weights + (j - key) * panel_cols + lane);
            const Vec log = load(cell) * splat(log2_e) - lse;  // of a
            const Vec a = exp2(mask_unseen(log, j, query, of.q.start + at));
            if (losses) loss += p > Vec{} ? p * (log2(p) - log) : Vec{};
            store(cell, rate * (a - p));
        }
        alignas(64) float terms[lanes];
        store(terms, loss);
        for (int64_t i = 0; losses && i < lanes; ++i) losses[at + i] += double{terms[i]};
    }
}

// products: dz of one head of the index, of a panel. Adds dI relu(z) to sums [panel_cols] where it is not null.
__attribute__((noinline)) void head_derivatives(float* products, float* sums, const IndexTile& index,
                                                const float* scores, int64_t head, int64_t panel,
                                                const Tensor& keys, const KeyRange& range) {
    const float* weights = index.weights_of(head, panel);
    multiply_panel<PlainUnit>(
        keys.f32() + range.begin * keys.row_stride, keys.row_stride, 1, index.panel_of(head, panel),
        index.width,
        range.end - range.begin, [=](int64_t r, Vec left, Vec right) __attribute__((always_inline)) {
            const auto half = [&](int64_t lane, Vec z) __attribute__((always_inline)) {
                const int64_t at = r * panel_cols + lane;
                const Vec di = load(scores + at);
                store(products + at, z > Vec{} ? di * load(weights + lane) : Vec{});
                if (sums) store(sums + lane, fma(di, positive_part(z), load(sums + lane)));
            };
            half(0, left);
            half(lanes, right);
        });
}

// The keys that the queries of a tile see, tile by tile from the first on: body(key, key_end).
template <class Body>
void for_key_tiles(const QueryTile& q, Body body) {
    for (int64_t key = q.first_key(); key < q.end; key += key_tile) body(key, smaller(key + key_tile, q.end));
}

Tensor keys_of(const Call& call, int64_t sequence) {
    return call.spec.index.keys.row_range(sequence * call.spec.length, call.spec.length);
}

// index_lse of a tile of queries.
void sum_scores(const Call& call, const Queries& of, Workspace& work) {
    const IndexTile index(call.spec.index, of.first_row, of.rows, work.index.data());
    const Tensor keys = keys_of(call, of.sequence);
    alignas(64) float top[query_tile], sum[query_tile] = {};
    for (float& x : top) x = -__builtin_inff();
    for_key_tiles(of.q, [&](int64_t key, int64_t key_end) {
        for (int64_t panel = 0; panel < query_panels; ++panel) {
            const KeyRange range(of.q, panel, key, key_end, 1);
            if (range.empty()) continue;
            index_scores(work.scores.data(), index, panel, keys, range);
            for (int64_t lane = 0; lane < panel_cols; lane += lanes) {
                const int64_t at = panel * panel_cols + lane;
                const auto exponent = [&](int64_t j) __attribute__((always_inline)) {
                    const float* cell = work.scores.data() + (j - range.begin) * panel_cols + lane;
                    return mask_unseen(load(cell) * splat(log2_e), j, of.q.begin + at, of.q.start + at);
                };
                const Vec before = load(top + at);
                Vec most = before;
                for (int64_t j = range.begin; j < range.end; ++j) most = max(most, exponent(j));
                // Lanes that have seen no key yet keep a sum of 0.
                const Vec shift = most > splat(-__builtin_inff()) ? most : Vec{};
                Vec total = load(sum + at) * exp2(before - shift);
                for (int64_t j = range.begin; j < range.end; ++j) total += exp2(exponent(j) - shift);
                store(top + at, most);
                store(sum + at, total);
            }
        }
    });
    for (int64_t i = 0; i < of.rows; ++i)
        call.index_lse.f32()[of.first_row + i] = top[i] * ln_2 + std::log(sum[i]);
}

// Losses of a tile of queries, gradients at its queries and weights.
void learn_queries(const Call& call, const Queries& of, Workspace& work) {
    const IndexScores& s = call.spec.index;
    const IndexTile index(s, of.first_row, of.rows, work.index.data());
    const Tensor keys = keys_of(call, of.sequence);
    const int64_t d = s.head_dim;
    double losses[query_tile] = {};
    float *dqueries = work.gradients.data(), *dweights = work.dweights.data();
    for (int64_t i = 0; i < s.heads * query_tile * d; ++i) dqueries[i] = 0.0f;
    for (int64_t i = 0; i < s.heads * query_tile; ++i) dweights[i] = 0.0f;
    for_key_tiles(of.q, [&](int64_t key, int64_t key_end) {
        mean_weights(work.weights.data(), call, of, work, key, key_end);
        for (int64_t panel = 0; panel < query_panels; ++panel) {
            const KeyRange range(of.q, panel, key, key_end, 1);
            if (range.empty()) continue;
            index_scores(work.scores.data(), index, panel, keys, range);
            derivatives(work.scores.data(), losses, work.weights.data() + panel * panel_floats, of, panel,
                        key, range);
            for (int64_t h = 0; h < s.heads; ++h) {
                head_derivatives(work.products.data(), dweights + h * query_tile + panel * panel_cols, index,
                                 work.scores.data(), h, panel, keys, range);
                // dq^T += K^T dz
                float* to = dqueries + (h * query_panels + panel) * d * panel_cols;
                multiply_panel<PlainUnit>(
                    keys.f32() + range.begin * keys.row_stride, 1, keys.row_stride, work.products.data(),
                    range.end - range.begin,
                    d, [=](int64_t c, Vec left, Vec right) __attribute__((always_inline)) {
                        store(to + c * panel_cols, load(to + c * panel_cols) + left);
                        store(to + c * panel_cols + lanes, load(to + c * panel_cols + lanes) + right);
                    });
            }
        }
    });
    for (int64_t i = 0; i < of.rows; ++i) {
        const int64_t row = of.first_row + i;
        call.losses.f32()[row] = of.share[i] > 0 ? static_cast<float>(losses[i]) * ln_2 : 0.0f;
        for (int64_t h = 0; h < s.heads; ++h) {
            call.d.weights.f32()[row * call.d.weights.row_stride + h] =
                s.scale * dweights[h * query_tile + i];
            const float* from =
                dqueries + (h * query_panels + i / panel_cols) * d * panel_cols + i % panel_cols;
            float* to = call.d.queries.f32() + row * call.d.queries.row_stride + h * d;
            for (int64_t c = 0; c < d; ++c) to[c] = from[c * panel_cols];
        }
    }
}

// Gradients at the keys [key, key + key_tile) of a sequence, over the queries that see some of them.
void learn_keys(const Call& call, int64_t sequence, int64_t key, Workspace& work) {
    const AttentionSpec& spec = call.spec;
    const IndexScores& s = spec.index;
    const Tensor keys = keys_of(call, sequence);
    const int64_t d = s.head_dim, channels = round_up(d, panel_cols),
                  end = smaller(key + key_tile, spec.length);
    float* dkeys = work.gradients.data();
    for (int64_t i = 0; i < key_tile * channels; ++i) dkeys[i] = 0.0f;
    for (int64_t first = key / query_tile * query_tile; first < spec.length; first += query_tile) {
        const Queries of(call, sequence, first);
        const int64_t key_end = smaller(end, of.q.end);
        if (of.q.first_key() >= end) break;  // first keys do not fall along a sequence
        const IndexTile index(s, of.first_row, of.rows, work.index.data());
        mean_weights(work.weights.data(), call, of, work, key, key_end);
        const auto for_panels = [&](auto body) {
            for (int64_t panel = 0; panel < query_panels; ++panel) {
                const KeyRange range(of.q, panel, key, key_end, 1);
                if (!range.empty()) body(panel, range, work.scores.data() + panel * panel_floats);
            }
        };
        for_panels([&](int64_t panel, const KeyRange& range, float* scores) {
            index_scores(scores, index, panel, keys, range);
            derivatives(scores, nullptr, work.weights.data() + panel * panel_floats, of, panel, key, range);
        });
        // Head by head: its queries are one chain, whatever the width of a panel.
        for (int64_t h = 0; h < s.heads; ++h)
            for_panels([&](int64_t panel, const KeyRange& range, const float* scores) {
                const int64_t row = of.first_row + panel * panel_cols;
                const int64_t rows = smaller(panel_cols, of.rows - panel * panel_cols);
                head_derivatives(work.products.data(), nullptr, index, scores, h, panel, keys, range);
                // dk += dz^T q
                for (int64_t c = 0; c < d; c += panel_cols) {
                    pack_panel<PlainUnit>(work.queries.data(),
                                          s.queries.f32() + row * s.queries.row_stride + h * d + c,
                                          s.queries.row_stride, rows, d - c);
                    const Left left{work.products.data(), tile_rows * panel_cols, panel_cols, 1};
                    multiply_onto<PlainUnit>(dkeys + (range.begin - key) * channels + c, channels, left,
                                             work.queries.data(), rows, range.end - range.begin);
                }
            });
    }
    for (int64_t j = key; j < end; ++j) {
        float* to = call.d.keys.f32() + (sequence * spec.length + j) * call.d.keys.row_stride;
        for (int64_t c = 0; c < d; ++c) to[c] = dkeys[(j - key) * channels + c];
    }
}

}  // namespace

void CpuOps::do_index_loss(Tensor losses, Tensor index_lse, IndexScores d, const Tensor& lse, const Tensor& q,
                           const Tensor& k, float gradient_scale, const AttentionSpec& spec) {
    const IndexScores& index = spec.index;
    const int64_t tokens = spec.batch * spec.length;
    check_attention(spec);
    check(spec.normaliser == Normaliser::softmax && !spec.far_keys,
          "an index without the softmax, or of far pairs");
    check(index.queries.rows() == tokens && index.queries.cols() == index.heads * index.head_dim &&
              index.keys.rows() == tokens && index.keys.cols() == index.head_dim &&
              index.weights.rows() == tokens && index.weights.cols() == index.heads,
          "an index of {} heads of {}: queries are {}x{}, keys {}x{}, weights {}x{}", index.heads,
          index.head_dim, index.queries.rows(), index.queries.cols(), index.keys.rows(), index.keys.cols(),
          index.weights.rows(), index.weights.cols());
    const Call call{losses, index_lse, d, lse, q, k, gradient_scale, spec};
    std::vector<std::unique_ptr<Workspace>> of_thread(static_cast<size_t>(threads_));
    const auto run = [&](int64_t tile, auto work) {
        const int64_t tiles = (spec.length + tile - 1) / tile;
        pool_.run(spec.batch * tiles, [&](int64_t item, int thread) {
            std::unique_ptr<Workspace>& memory = of_thread[static_cast<size_t>(thread)];
            if (!memory) memory = std::make_unique<Workspace>(spec);
            work(item / tiles, item % tiles * tile, *memory);
        });
    };
    run(query_tile, [&](int64_t sequence, int64_t first, Workspace& work) {
        sum_scores(call, Queries(call, sequence, first), work);
    });
    run(query_tile, [&](int64_t sequence, int64_t first, Workspace& work) {
        learn_queries(call, Queries(call, sequence, first), work);
    });
    run(key_tile,
        [&](int64_t sequence, int64_t first, Workspace& work) { learn_keys(call, sequence, first, work); });
}

#include "kernels/cpu/isa_end.h"
