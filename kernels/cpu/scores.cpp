// QK-clip: maxima of scores over rows, then the weights of heads above the limit are scaled down. 4 bytes per row
// and head; 8 bytes per weight of a clipped head. Parallel over heads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/cpu_ops.h"

void CpuOps::do_head_maxima(Tensor out, const Tensor& row_maxima) {
    const int64_t heads = row_maxima.rows(), rows = row_maxima.cols();
    check(out.count() == heads, "maxima of {} heads into {}", heads, out.count());
    // A maximum does not depend on the order: one thread per head is enough.
    for_items(pool_, heads, rows, [&](int64_t h) {
        const float* from = row_maxima.f32() + h * row_maxima.row_stride;
        float& to = out.f32()[h];
        Vec a = splat(to), b = a;
        const float first = to;
        int64_t i = 0;
        for (; i + 2 * lanes <= rows; i += 2 * lanes) {
            a = max(a, load(from + i));
            b = max(b, load(from + i + lanes));
        }
        for_vectors(rows - i, [&](int64_t k, auto n) { a = max(a, load(from + i + k, n, first)); });
        to = reduce_max(max(a, b));
    });
}

void CpuOps::do_qk_clip(Tensor wq, Tensor wk, const Tensor& maxima, int64_t head_dim, float limit) {
    const int64_t heads = maxima.count();
    check(limit > 0, "QK-clip at {}", limit);
    check(wq.rows() == heads * head_dim && wk.rows() % head_dim == 0 && wk.rows() <= wq.rows(),
          "QK-clip of {} heads of {} in {}x{} and {}x{}", heads, head_dim, wq.rows(), wq.cols(), wk.rows(),
          wk.cols());
    const bool shared = wk.rows() < wq.rows();
    for_items(pool_, heads, head_dim * (wq.cols() + wk.cols()), [&](int64_t h) {
        const double most = maxima.f32()[h];
        // An infinite maximum gives no scale; its loss is not finite and stops the run.
        if (!(most > double{limit}) || std::isinf(most)) return;
        const double g = double{limit} / most;
        const Vec scale = splat(static_cast<float>(shared ? g : std::sqrt(g)));
        const auto scale_rows = [&](const Tensor& w) {
            for (int64_t r = h * head_dim; r < (h + 1) * head_dim; ++r) {
                float* row = w.f32() + r * w.row_stride;
                for_vectors(w.cols(),
                            [&](int64_t i, auto n) { store(row + i, scale * load(row + i, n), n); });
            }
        };
        scale_rows(wq);
        if (!shared) scale_rows(wk);
    });
}

#include "kernels/cpu/isa_end.h"
