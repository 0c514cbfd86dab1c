// Muon over lists of matrices.
//
//   m = mu m + q g;  u = q g + mu m (Nesterov) or m;  x = u / (|u|_F + 1e-7), shorter side first
//   iterations times   A = x x^T;  B = -4.7750 A + 2.0315 A A;  x = 3.4445 x + B x
//   w = w (1 - wd) - lr x
//
// x [s, l] with s <= l, A and B [s, s]: 4 s^2 l + 2 s^3 FLOPs per matrix and iteration. Matrices with the
// same s and l, transposed or not, form a group; a group goes through the passes of muon.cu and three
// strided batched products per iteration in batches of at most batch_bytes of x, so that the workspace does
// not grow with the depth of a model. Each product also adds its addend (alpha, beta and another
// matrix), so no elementwise pass is needed between products.
//
// In bf16 the values of x, A and B are rounded when they are stored; everything else is f32.
#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "kernels/cuda/fold.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/muon.h"

namespace longreach::cuda {
namespace {

constexpr float first_power = 3.4445f, third_power = -4.7750f, fifth_power = 2.0315f;
constexpr int64_t line = 256;  // bytes every matrix begins on

int64_t on_lines(int64_t bytes) {
    return (bytes + line - 1) / line * line;
}

// Of one batch: x, y [s, l], a, b [s, s], one per matrix; then the sums of squares and their parts.
struct Layout {
    int64_t small, large, matrices;
    int64_t matrix, square;           // bytes of one x, one a
    int64_t partials, totals, bytes;  // where they begin, and all of it
    Layout(int64_t s, int64_t l, int64_t group, DType type, int64_t batch_bytes) : small(s), large(l) {
        matrix = on_lines(s * l * size_of(type));
        square = on_lines(s * s * size_of(type));
        matrices = std::clamp(batch_bytes / matrix, int64_t{1}, group);
        partials = 2 * matrices * (matrix + square);
        totals = partials + on_lines(matrices * flat_blocks(s * l) * 8);
        bytes = totals + on_lines(matrices * 8);
    }
};

// The slots by (shorter side, longer side), in their order within a group.
using Groups = std::map<std::pair<int64_t, int64_t>, std::vector<MuonSlot>>;
Groups grouped(std::span<const MuonSlot> slots) {
    Groups groups;
    for (const MuonSlot& slot : slots) {
        const int64_t rows = slot.param.rows(), cols = slot.param.cols();
        check(slot.param.contiguous() && slot.gradient.contiguous() && slot.momentum.contiguous() &&
                  slot.gradient.rows() == rows && slot.gradient.cols() == cols &&
                  slot.momentum.rows() == rows && slot.momentum.cols() == cols,
              "muon slot {}x{} with gradient {}x{} and momentum {}x{}", rows, cols, slot.gradient.rows(),
              slot.gradient.cols(), slot.momentum.rows(), slot.momentum.cols());
        check(slot.param.dtype == DType::f32 && slot.gradient.dtype == DType::f32 &&
                  slot.momentum.dtype == DType::f32,
              "muon slot of {}, {} and {}", name_of(slot.param.dtype), name_of(slot.gradient.dtype),
              name_of(slot.momentum.dtype));
        if (rows * cols > 0) groups[{std::min(rows, cols), std::max(rows, cols)}].push_back(slot);
    }
    return groups;
}

void run_batch(MatrixProducts& products, std::span<const MuonSlot> slots, const Layout& layout,
               std::byte* memory, const MuonSpec& spec, DType type, Stream stream) {
    const auto count = static_cast<int64_t>(slots.size());
    const int64_t step = layout.matrix / size_of(type), square = layout.square / size_of(type);
    Tensor x(memory, type, {layout.small, layout.large});
    Tensor y(memory + layout.matrices * layout.matrix, type, {layout.small, layout.large});
    const Tensor a(memory + 2 * layout.matrices * layout.matrix, type, {layout.small, layout.small});
    const Tensor b(a.as<std::byte>() + layout.matrices * layout.square, type, {layout.small, layout.small});
    auto* partials = reinterpret_cast<double*>(memory + layout.partials);
    auto* squares = reinterpret_cast<double*>(memory + layout.totals);

    MuonBatch batch{.slots = slots, .x = x.data(), .type = type, .step = step};
    const int64_t blocks = flat_blocks(layout.small * layout.large);
    muon_momentum(batch, partials, spec, stream);
    fold_totals({.partials = partials, .count = blocks, .step = blocks, .set = squares}, count, stream);
    muon_scale(batch, squares, spec, stream);
    for (int i = 0; i < spec.iterations; ++i) {
        products.run({.c = a,
                      .a = x,
                      .b = x,
                      .b_transposed = true,
                      .batch = count,
                      .c_step = square,
                      .a_step = step,
                      .b_step = step});
        products.run({.c = b,
                      .a = a,
                      .b = a,
                      .alpha = fifth_power,
                      .beta = third_power,
                      .batch = count,
                      .c_step = square,
                      .a_step = square,
                      .b_step = square,
                      .addend = a,
                      .addend_step = square});
        products.run({.c = y,
                      .a = b,
                      .b = x,
                      .beta = first_power,
                      .batch = count,
                      .c_step = step,
                      .a_step = square,
                      .b_step = step,
                      .addend = x,
                      .addend_step = step});
        std::swap(x, y);
    }
    batch.x = x.data();
    muon_update(batch, stream);
}

}  // namespace

int64_t muon_workspace(std::span<const MuonSlot> slots, DType type, int64_t batch_bytes) {
    int64_t most = 0;
    for (const auto& [sides, group] : grouped(slots))
        most = std::max(
            most,
            Layout(sides.first, sides.second, static_cast<int64_t>(group.size()), type, batch_bytes).bytes);
    return most;
}

void muon(MatrixProducts& products, std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec,
          DType type, Stream stream, int64_t batch_bytes) {
    check(type == DType::f32 || type == DType::bf16, "muon with products of {}", name_of(type));
    const Groups groups = grouped(slots);
    for (const auto& [sides, group] : groups) {
        const auto count = static_cast<int64_t>(group.size());
        const Layout layout(sides.first, sides.second, count, type, batch_bytes);
        check(workspace.bytes() >= layout.bytes && reinterpret_cast<uintptr_t>(workspace.data()) % 8 == 0,
              "muon workspace of {} bytes, needs {}", workspace.bytes(), layout.bytes);
        for (int64_t first = 0; first < count; first += layout.matrices) {
            const auto taken = static_cast<size_t>(std::min(layout.matrices, count - first));
            run_batch(products, std::span(group).subspan(static_cast<size_t>(first), taken), layout,
                      workspace.as<std::byte>(), spec, type, stream);
        }
    }
}

}  // namespace longreach::cuda
