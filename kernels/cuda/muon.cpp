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
#include <utility>

#include "kernels/cuda/fold.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/muon.h"
#include "kernels/cuda/workspaces.h"

namespace longreach::cuda {
namespace {

constexpr float first_power = 3.4445f, third_power = -4.7750f, fifth_power = 2.0315f;

void run_batch(MatrixProducts& products, std::span<const MuonSlot> slots, const MuonPlaces& layout,
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

void muon(MatrixProducts& products, std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec,
          DType type, Stream stream, int64_t batch_bytes) {
    check(type == DType::f32 || type == DType::bf16, "muon with products of {}", name_of(type));
    const MuonGroups groups = muon_groups(slots);
    for (const auto& [sides, group] : groups) {
        const auto count = static_cast<int64_t>(group.size());
        const MuonPlaces layout(sides.first, sides.second, count, type, batch_bytes);
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
