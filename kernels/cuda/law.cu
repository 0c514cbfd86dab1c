// Tables of score laws.
//
//   evaluate   table[h, i] = program(first + i, learned numbers), in double, stored in f32; by token:
//              table[h, token] = program(keys that the token counts, learned numbers, the token's numbers)
//   rows       factor[h, query] = table[h, keys that the query counts - 1]
//   gradient   dparameter += sum over entries of derivative * gradient of the entry, by element for a vector
//
// A few library functions per entry, once per step; rows and gradients move 8 bytes per query and head. One
// thread per entry; sums over fixed blocks of entries, in double, folded in block order.
#include <algorithm>

#include "kernels/cuda/fold.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/law_value.h"

namespace longreach::cuda {
namespace {

// Entry of the table that belongs to column c: of a query, or the column itself.
struct Map {
    const int32_t* start;
    int length;  // 0: no queries
    DEVICE int64_t entry(int64_t c) const { return length == 0 ? c : c % length - (start ? start[c] : 0); }
};

KERNEL(256)
void evaluate_law_kernel(View<float> table, LawProgram program, LawInputs inputs, double first,
                         int64_t length, int64_t last_column, Map map) {
    const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x, row = blockIdx.y;
    if (i >= length) return;
    // last_column: of entry 0 where distances are backwards; below 0 where they are not.
    const int64_t entry = map.entry(i);
    const double v = law_value(program, inputs, row, entry, first + static_cast<double>(entry), i);
    *table.at(row, last_column >= 0 ? last_column - i : i) = static_cast<float>(v);
}

KERNEL(256)
void law_rows_kernel(View<float> factor, View<const float> table, Map map, bool shared_table, int64_t rows) {
    const int64_t c = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x, head = blockIdx.y;
    if (c >= rows) return;
    *factor.at(head, c) = *table.at(shared_table ? 0 : head, map.entry(c));
}

// partials [heads, size, blocks]: the block's sum for one element.
KERNEL(256)
void law_gradient_kernel(View<const float> derivative, View<const float> gradient, const int32_t* elements,
                         Map map, bool shared_table, int64_t count, double* partials) {
    auto& results = shared<WarpResults<double, 256>>();
    const int64_t head = blockIdx.y, element = blockIdx.z;
    const Range block = piece_of(count, gridDim.x, blockIdx.x);
    double sum = 0.0;
    for (int64_t c = block.begin + threadIdx.x; c < block.end; c += 256) {
        const int64_t entry = map.entry(c);
        if (elements && elements[entry] != element) continue;
        sum += static_cast<double>(*derivative.at(shared_table ? 0 : head, entry)) *
               static_cast<double>(*gradient.at(head, c));
    }
    sum = block_sum<256>(sum, results);
    if (threadIdx.x == 0) partials[(head * gridDim.z + element) * gridDim.x + blockIdx.x] = sum;
}

Map map_of(const Tensor& table, const Tensor& rows, const LawEntries& entries) {
    if (entries.length > 0) {
        check(rows.cols() % entries.length == 0 && table.cols() >= entries.length,
              "{} queries in sequences of {}, a table of {}", rows.cols(), entries.length, table.cols());
        check(!entries.start || (entries.start.count() == rows.cols() && entries.start.contiguous()),
              "{} starts of {} queries", entries.start.count(), rows.cols());
    } else {
        check(table.cols() == rows.cols(), "gradients of {} entries of a table of {}", rows.cols(),
              table.cols());
    }
    check(table.rows() == 1 || table.rows() == rows.rows(), "a table of {} rows for {} heads", table.rows(),
          rows.rows());
    return {entries.start.i32(), static_cast<int>(entries.length)};
}

}  // namespace

void evaluate_law(Tensor table, const LawSpec& spec, Stream stream) {
    const LawInputs inputs = law_inputs(table, spec);
    const LawEntries& by_token = spec.by_token;
    const int64_t length = by_token.length > 0 ? table.cols() : spec.length;
    if (length == 0) return;
    launch(evaluate_law_kernel,
           {dim3(blocks_for(length, 256), static_cast<unsigned>(table.rows())), dim3(256), 0, stream},
           view<float>(table), spec.program, inputs, spec.first, length,
           spec.backwards ? table.cols() - 1 : int64_t{-1},
           Map{by_token.start.i32(), static_cast<int>(by_token.length)});
}

void law_rows(Tensor factor, const Tensor& table, const LawEntries& entries, Stream stream) {
    const Map map = map_of(table, factor, entries);
    launch(law_rows_kernel,
           {dim3(blocks_for(factor.cols(), 256), static_cast<unsigned>(factor.rows())), dim3(256), 0, stream},
           view<float>(factor), view<const float>(table), map, table.rows() == 1, factor.cols());
}

void law_gradient(const LawGradient& g, const LawEntries& entries, Tensor workspace, Stream stream) {
    const Map map = map_of(g.derivative, g.gradient, entries);
    const int64_t heads = g.gradient.rows(), count = g.gradient.cols(), blocks = flat_blocks(count);
    const int64_t size = g.elements ? g.dparameter.cols() : 1, owners = g.dparameter.count() / size;
    check(owners == 1 || owners == heads, "{} gradients for {} heads", owners, heads);
    check(!g.elements || g.elements.count() == g.derivative.cols(), "{} elements for {} entries",
          g.elements.count(), g.derivative.cols());
    check(workspace.bytes() >= law_gradient_workspace(heads, count, size),
          "law_gradient workspace of {} bytes", workspace.bytes());
    double* partials = workspace.as<double>();
    launch(law_gradient_kernel,
           {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(heads), static_cast<unsigned>(size)),
            dim3(256), sizeof(WarpResults<double, 256>), stream},
           view<const float>(g.derivative), view<const float>(g.gradient), g.elements.i32(), map,
           g.derivative.rows() == 1, count, partials);
    // Of one owner the heads' blocks of an element do not lie side by side, unless there is one element.
    if (owners == heads || size == 1) {
        const int64_t each = heads / owners * blocks;
        fold_totals({.partials = partials, .count = each, .step = each, .add_to = g.dparameter.f32()},
                    owners * size, stream);
        return;
    }
    for (int64_t h = 0; h < heads; ++h)
        fold_totals({.partials = partials + h * size * blocks,
                     .count = blocks,
                     .step = blocks,
                     .add_to = g.dparameter.f32()},
                    size, stream);
}

}  // namespace longreach::cuda
