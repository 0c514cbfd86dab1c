#include "model/held_weights.h"

namespace longreach::model {

int64_t HeldWeights::bytes(const Ops& ops, const FlatParams& weights, const std::vector<ParamRef>& products) {
    int64_t floats = 0;
    for (const ParamRef& ref : products) floats += ops.held_floats(weights.matrix(ref));
    return floats * size_of(DType::f32);
}

void HeldWeights::plan(Arena& arena, const Ops& ops, const FlatParams& weights,
                       const std::vector<ParamRef>& products) {
    arena.group("weights held for few rows");
    for (const ParamRef& ref : products)
        if (const Tensor w = weights.matrix(ref); const int64_t floats = ops.held_floats(w))
            matrices_.push_back({w, arena.reserve("panels", DType::f32, {floats})});
}

void HeldWeights::fill(Ops& ops) const {
    for (const Matrix& m : matrices_) ops.fill_held(m.held, m.w);
    lend(ops);
}

void HeldWeights::lend(Ops& ops) const {
    for (const Matrix& m : matrices_) ops.hold(m.w, m.held);
}

}  // namespace longreach::model
