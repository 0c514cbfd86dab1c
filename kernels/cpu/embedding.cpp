// Token embedding: x [N, C] = rows of table [V, C]; dtable[token] += dx row.
//
// Backward needs the tokens only. Bytes per element: 8 forward, 12 backward.
// Forward parallel over tokens. Backward over (class of tokens, strip of channels): a class is the low bits
// of the token, so each element of dtable has one owner, which adds in token order whatever the number of
// threads; a task reads all N tokens (4 bytes each, against the 4C bytes of a row).
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

constexpr int64_t strip = 256;        // channels of a backward task: 1 KiB of a row
constexpr int64_t wanted_tasks = 16;  // at least; more would read the tokens more often

// A token outside the table would access memory outside the table; the check costs 4 bytes per row of 4C.
void check_tokens(const int32_t* tokens, int64_t n, int64_t vocabulary) {
    int32_t least = 0, most = 0;
    for (int64_t i = 0; i < n; ++i) {
        least = std::min(least, tokens[i]);
        most = std::max(most, tokens[i]);
    }
    check(least >= 0 && most < vocabulary, "tokens {}..{} in a vocabulary of {}", least, most, vocabulary);
}

}  // namespace

void CpuOps::do_embedding(Tensor x, const Tensor& table, const Tensor& tokens) {
    const int64_t n = tokens.count(), width = table.cols();
    check(x.rows() == n && x.cols() == width, "embedding of {} tokens, width {}, into {}x{}", n, width,
          x.rows(), x.cols());
    check_tokens(tokens.i32(), n, table.rows());
    for_items(pool_, n, width, [&](int64_t i) {
        std::memcpy(x.f32() + i * x.row_stride, table.f32() + tokens.i32()[i] * table.row_stride,
                    static_cast<size_t>(width) * sizeof(float));
    });
}

void CpuOps::do_embedding_backward(Tensor dtable, const Tensor& dx, const Tensor& tokens) {
    const int64_t n = tokens.count(), width = dtable.cols();
    check(dx.rows() == n && dx.cols() == width, "embedding_backward of {} tokens, width {}, from {}x{}", n,
          width, dx.rows(), dx.cols());
    check_tokens(tokens.i32(), n, dtable.rows());
    const int64_t strips = (width + strip - 1) / strip;
    const int32_t classes =
        static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>((wanted_tasks + strips - 1) / strips)));
    pool_.run(classes * strips, [&](int64_t task, int) {
        const int32_t own = static_cast<int32_t>(task / strips);
        const int64_t column = task % strips * strip, count = std::min(strip, width - column);
        for (int64_t t = 0; t < n; ++t) {
            const int32_t token = tokens.i32()[t];
            if ((token & (classes - 1)) != own) continue;
            float* to = dtable.f32() + token * dtable.row_stride + column;
            const float* from = dx.f32() + t * dx.row_stride + column;
            for_vectors(count,
                        [&](int64_t i, auto w) { store(to + i, load(to + i, w) + load(from + i, w), w); });
        }
    });
}

#include "kernels/cpu/isa_end.h"
