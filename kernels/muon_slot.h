// What every device asks of the matrices that Muon updates.
#pragma once

#include "base/error.h"
#include "kernels/operands.h"

namespace longreach {

inline void check_slot(const MuonSlot& slot) {
    const int64_t rows = slot.param.rows(), cols = slot.param.cols();
    for (const Tensor* t : {&slot.param, &slot.gradient, &slot.momentum}) {
        check(t->contiguous() && t->rows() == rows && t->cols() == cols,
              "muon slot {}x{} with gradient {}x{} and momentum {}x{}", rows, cols, slot.gradient.rows(),
              slot.gradient.cols(), slot.momentum.rows(), slot.momentum.cols());
        check(t->dtype == DType::f32, "muon slot of {}, {} and {}", name_of(slot.param.dtype),
              name_of(slot.gradient.dtype), name_of(slot.momentum.dtype));
    }
}

}  // namespace longreach
