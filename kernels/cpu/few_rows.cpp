// y = x w^T of few rows, as when texts are continued token by token: w is read once, and takes the time.
//
// A matrix that stays as it is can be held: packed once, into the panels that products of more rows pack each time. Its sums
// are the same chains over k, so that no bit depends on it.
#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/items.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/tiles.h"
#include "kernels/cpu/gemm_parts.h"
#include "kernels/cpu/few_rows.h"
#include "kernels/cpu/cpu_ops.h"

namespace {

// Columns of a turn.
int64_t turn_cols(const MatrixProduct& p) {
    const int64_t weights = few_rows_turn / larger(1, p.m / rows_in_place);
    return larger(1, weights / p.k / panel_cols) * panel_cols;
}

// Each turn packs panels of its own, for a few rows none; a thread's panel stays in L1.
template <class Unit, class Scratch>
void multiply_from_rows(Pool& pool, const MatrixProduct& p, Scratch scratch_of) {
    const Blocks blocks = Blocks::of<Unit>(p.k);
    const int64_t cols = turn_cols(p);
    pool.run((p.n + cols - 1) / cols, [&](int64_t turn, int thread) {
        float *own_left = scratch_of(thread), *panel = own_left + left_floats;
        for (int64_t col = turn * cols; col < smaller(p.n, (turn + 1) * cols); col += panel_cols) {
            const auto row = [&](int64_t j) { return p.b.data + smaller(j, p.n) * p.b.row_stride; };
            Run next{row(col + panel_cols), row(col + 2 * panel_cols)};
            for (int64_t block = 0; block < blocks.count; ++block) {
                const int64_t k_begin = block * blocks.length, k_count = blocks.length_of(block, p.k);
                const Left x = left_side<Unit>(own_left, p.a, k_begin, k_count, 0, p.m, panel_cols);
                const Writer writer =
                    writer_at(p, 0, col, block == 0 ? p.beta : 1.0f, block == blocks.count - 1);
                if (p.m <= rows_in_place) {
                    multiply_few<Unit>(p.m, x, row(col) + k_begin, p.b.row_stride, k_count, p.n - col,
                                       writer);
                    continue;
                }
                const int64_t units = units_of<Unit>(k_count);
                pack_right<Unit>(panel, p, k_begin, k_count, col);
                multiply_left_panel<Unit>(x, panel, units, p.m, writer,
                                          [&](int64_t) { return next.take(units); });
            }
        }
    });
}

// How far a held panel is fetched before it is multiplied, in units; the hardware alone reached 0.88 of the rate in f32.
constexpr int64_t units_ahead = 64;

// Panel after panel, each with its k blocks one after the other.
template <class Unit>
struct Panels {
    const Blocks blocks;
    const int64_t step;  // floats from panel to panel
    explicit Panels(int64_t k) : blocks(Blocks::of<Unit>(k)), step(filled_units<Unit>(k) * panel_cols) {}
    int64_t at(int64_t col, int64_t k_begin) const {
        return col / panel_cols * step + units_of<Unit>(k_begin) * panel_cols;
    }
};

template <class Unit, class Scratch>
void multiply_held(Pool& pool, const MatrixProduct& p, const float* panels, Scratch scratch_of) {
    const Panels<Unit> of(p.k);
    const int64_t cols = turn_cols(p);
    pool.run((p.n + cols - 1) / cols, [&](int64_t turn, int thread) {
        [[maybe_unused]] const typename Core<Unit>::Ready ready;
        const int64_t end = smaller(p.n, (turn + 1) * cols);
        for (int64_t first = 0; first < of.blocks.count; first += most_blocks) {
            const int64_t last = smaller(of.blocks.count, first + most_blocks);
            Left x[most_blocks];
            float* left = scratch_of(thread);
            for (int64_t block = first; block < last; ++block, left += most_few_rows * left_stride)
                x[block - first] = left_side<Unit>(left, p.a, block * of.blocks.length,
                                                   of.blocks.length_of(block, p.k), 0, p.m, panel_cols);
            for (int64_t col = turn * cols; col < end; col += panel_cols)
                for (int64_t block = first; block < last; ++block) {
                    const float* panel = panels + of.at(col, block * of.blocks.length);
                    multiply_left_panel<Unit>(
                        x[block - first], panel, units_of<Unit>(of.blocks.length_of(block, p.k)), p.m,
                        writer_at(p, 0, col, block == 0 ? p.beta : 1.0f, block == of.blocks.count - 1),
                        [=](int64_t) {
                            return Ahead{panel + units_ahead * panel_cols, panel_cols};
                        });
                }
        }
    });
}

}  // namespace

int64_t CpuOps::held_floats(const Tensor& w) const {
    int64_t floats = 0;
    with_products(products_, [&]<class Unit>(Unit) {
        floats = (w.rows() + panel_cols - 1) / panel_cols * Panels<Unit>(w.cols()).step;
    });
    return w.rows() < panel_cols ? 0 : floats;
}

void CpuOps::fill_held(Tensor held, const Tensor& w) {
    check(held.count() == held_floats(w), "{} floats for panels of {}x{}", held.count(), w.rows(), w.cols());
    MatrixProduct p;
    p.b = {w.f32(), w.row_stride, true}, p.n = w.rows(), p.k = w.cols();
    with_products(products_, [&]<class Unit>(Unit) {
        const Panels<Unit> of(p.k);
        for_items(pool_, (p.n + panel_cols - 1) / panel_cols, 2 * of.step, [&](int64_t panel) {
            const int64_t col = panel * panel_cols;
            for (int64_t block = 0; block < of.blocks.count; ++block) {
                const int64_t k_begin = block * of.blocks.length;
                pack_right<Unit>(held.f32() + of.at(col, k_begin), p, k_begin,
                                 of.blocks.length_of(block, p.k), col);
            }
        });
    });
}

void CpuOps::hold(const Tensor& w, const Tensor& held) {
    for (size_t i = held_.size(); i-- > 0;)
        if (held_[i].w == w.f32()) held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    if (held) held_.push_back({w.f32(), w.rows(), w.cols(), held.f32()});
}

bool CpuOps::multiply_few_rows(const MatrixProduct& p) {
    if (p.m > most_few_rows || p.a.transposed || !p.b.transposed) return false;
    const auto scratch = [&](int thread) { return scratch_of(thread); };
    const float* panels = nullptr;
    for (const Held& held : held_)
        if (held.w == p.b.data && held.rows == p.n && held.cols == p.k) panels = held.panels;
    if (panels == nullptr && products_ == Products::bf16_tiles) return false;
    with_products(products_, [&]<class Unit>(Unit) {
        if (panels != nullptr) return multiply_held<Unit>(pool_, p, panels, scratch);
        if constexpr (!Core<Unit>::turned) multiply_from_rows<Unit>(pool_, p, scratch);
    });
    return true;
}

#include "kernels/cpu/isa_end.h"
