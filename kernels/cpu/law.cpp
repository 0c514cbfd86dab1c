// Tables of score laws.
//
//   evaluate   table[h, i] = program(first + i, learned numbers), in double, stored in f32; by token:
//              table[h, token] = program(keys that the token counts, learned numbers, the token's numbers)
//   rows       factor[h, query] = table[h, keys that the query counts - 1]
//   gradient   dparameter += sum over entries of derivative * gradient of the entry, by element for a vector
//
// Sums run over fixed blocks in double and are folded in block order. A table costs a few library functions
// per entry, once per step and not per pair; rows and gradients move 8 bytes per query and head. Blocks and
// heads are shared by the threads.
#include <algorithm>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Blocks of entries of one row of a reduction: fixed by their number alone.
int64_t blocks_of(int64_t count) {
    return std::clamp<int64_t>(count / 1024, 1, 128);
}

// body(row, entry, count) for runs of queries in [begin, end) whose entries lie one after the other.
template <class Body>
LONGREACH_INLINE void for_runs(const LawEntries& entries, Range rows, Body body) {
    const int32_t* start = entries.start.i32();
    for (int64_t r = rows.begin; r < rows.end;) {
        const int64_t position = r % entries.length, first = start ? start[r] : 0;
        int64_t end = std::min(rows.end, r + entries.length - position);
        if (start) {
            int64_t same = r + 1;
            while (same < end && start[same] == first) ++same;
            end = same;
        }
        body(r, position - first, end - r);
        r = end;
    }
}

void check_entries(const Tensor& table, const Tensor& rows, const LawEntries& entries) {
    check(entries.length > 0 && rows.cols() % entries.length == 0 && table.cols() >= entries.length,
          "{} queries in sequences of {}, a table of {}", rows.cols(), entries.length, table.cols());
    check(!entries.start || (entries.start.count() == rows.cols() && entries.start.contiguous()),
          "{} starts of {} queries", entries.start.count(), rows.cols());
    check(table.rows() == 1 || table.rows() == rows.rows(), "a table of {} rows for {} heads", table.rows(),
          rows.rows());
}

}  // namespace

void CpuOps::do_evaluate_law(Tensor table, const LawSpec& spec) {
    const LawInputs inputs = law_inputs(table, spec);
    const int64_t rows = table.rows(), length = spec.by_token.length > 0 ? table.cols() : spec.length,
                  blocks = blocks_of(length);
    for_items(pool_, rows * blocks, 8 * piece(length, blocks, 0).end, [&](int64_t item) {
        const int64_t h = item / blocks, b = item % blocks;
        float* to = table.f32() + h * table.row_stride + (spec.backwards ? table.cols() - 1 : 0);
        const Range block = piece(length, blocks, b);
        if (spec.by_token.length > 0)
            return for_runs(spec.by_token, block, [&](int64_t token, int64_t entry, int64_t count) {
                law_values(spec.program, inputs, {h, entry, entry + count, spec.first, token},
                           to + token - entry, 1);
            });
        law_values(spec.program, inputs, {h, block.begin, block.end, spec.first}, to,
                   spec.backwards ? -1 : 1);
    });
}

void CpuOps::do_law_rows(Tensor factor, const Tensor& table, const LawEntries& entries) {
    check_entries(table, factor, entries);
    const int64_t heads = factor.rows(), rows = factor.cols(), blocks = blocks_of(rows);
    for_items(pool_, heads * blocks, piece(rows, blocks, 0).end, [&](int64_t item) {
        const int64_t h = item / blocks, b = item % blocks;
        const float* from = table.f32() + (table.rows() == 1 ? 0 : h) * table.row_stride;
        float* to = factor.f32() + h * factor.row_stride;
        for_runs(entries, piece(rows, blocks, b), [&](int64_t row, int64_t entry, int64_t count) {
            std::copy_n(from + entry, count, to + row);
        });
    });
}

void CpuOps::do_law_gradient(Tensor dparameter, const Tensor& derivative, const Tensor& gradient,
                             const LawEntries& entries, const Tensor& elements) {
    const bool by_row = entries.length > 0;
    if (by_row)
        check_entries(derivative, gradient, entries);
    else
        check(derivative.cols() == gradient.cols() &&
                  (derivative.rows() == 1 || derivative.rows() == gradient.rows()),
              "derivatives {}x{} of a table {}x{}", derivative.rows(), derivative.cols(), gradient.rows(),
              gradient.cols());
    const int64_t heads = gradient.rows(), count = gradient.cols();
    const int64_t size = elements ? dparameter.cols() : 1, owners = dparameter.count() / size;
    check(owners == 1 || owners == heads, "{} gradients for {} heads", owners, heads);
    check(!elements || elements.count() == derivative.cols(), "{} elements for {} entries", elements.count(),
          derivative.cols());
    const int64_t blocks = std::min(blocks_of(count), partial_doubles / (size * heads));
    check(blocks >= 1, "a vector of {} for {} heads", size, heads);
    std::fill_n(partials_, heads * blocks * size, 0.0);
    for_items(pool_, heads * blocks, piece(count, blocks, 0).end, [&](int64_t item) {
        const int64_t h = item / blocks, b = item % blocks;
        const float* d = derivative.f32() + (derivative.rows() == 1 ? 0 : h) * derivative.row_stride;
        const float* g = gradient.f32() + h * gradient.row_stride;
        const int32_t* element = elements.i32();
        double* sums = partials_ + (h * blocks + b) * size;
        const auto add_run = [&](int64_t row, int64_t entry, int64_t n) {
            if (element == nullptr) {
                sums[0] += dot_wide(d + entry, g + row, n);
                return;
            }
            for (int64_t i = 0; i < n; ++i)
                sums[element[entry + i]] +=
                    static_cast<double>(d[entry + i]) * static_cast<double>(g[row + i]);
        };
        const Range block = piece(count, blocks, b);
        if (by_row)
            for_runs(entries, block, add_run);
        else
            add_run(block.begin, block.begin, block.end - block.begin);
    });
    const int64_t sharing = heads / owners;
    for (int64_t o = 0; o < owners; ++o)
        for (int64_t k = 0; k < size; ++k) {
            double total = 0;
            for (int64_t p = o * sharing * blocks; p < (o + 1) * sharing * blocks; ++p)
                total += partials_[p * size + k];
            dparameter.f32()[o * size + k] += static_cast<float>(total);
        }
}

#include "kernels/cpu/isa_end.h"
