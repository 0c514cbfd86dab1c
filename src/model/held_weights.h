// The matrices of a model a second time, in the form in which a device multiplies few rows with them (Ops::hold): for texts
// that are continued token by token, while the weights stay as they are.
#pragma once

#include <vector>

#include "model/param_table.h"

namespace longreach::model {

class HeldWeights {
  public:
    // Bytes that plan() reserves.
    static int64_t bytes(const Ops& ops, const FlatParams& weights, const std::vector<ParamRef>& products);
    void plan(Arena& arena, const Ops& ops, const FlatParams& weights, const std::vector<ParamRef>& products);
    // Once the weights are there; `ops` reads what is held from then on.
    void fill(Ops& ops) const;
    // Lets another device with the same memory read them too.
    void lend(Ops& ops) const;

  private:
    struct Matrix {
        Tensor w, held;
    };
    std::vector<Matrix> matrices_;
};

}  // namespace longreach::model
