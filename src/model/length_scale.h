// The factor f(n) = r shape(n) + b of a query that counts n keys. r and b are learned or fixed,
// the shape is a table.
#pragma once

#include "model/arena.h"
#include "model/model_config.h"
#include "model/step_context.h"

namespace longreach::model {

class LengthScale {
  public:
    LengthScale() = default;
    LengthScale(ParamTable& table, const ModelConfig& model, int64_t layer);

    // f32 [1 or H, N], the factor of every query. It is always planned: an evaluation may need it.
    Tensor plan(Arena& arena, const std::string& name, int64_t tokens) const;
    bool learned() const { return static_cast<bool>(r_); }

    // The factor in `saved`, or an empty tensor if f is 1; computes it first if `fill` is set. shape: the
    // table of this layer, empty if f is 1. row_start: first visible key of every query, empty if all are 0.
    Tensor factor(StepContext& run, const Tensor& saved, const Tensor& shape, const Tensor& row_start,
                  bool fill) const;
    // dfactor [H, N].
    void backward(StepContext& run, const Tensor& dfactor, const Tensor& shape,
                  const Tensor& row_start) const;

    // The first key counted for every query under `count`; empty: key 0.
    static Tensor count_start(const StepContext& run, ScaleCount count, const Tensor& row_start);

  private:
    RowFactorSpec spec(const StepContext& run, const Tensor& shape, const Tensor& row_start) const;

    ScaleConfig config_;
    int64_t rows_ = 1;  // of the factor: H if every head learns its own
    double fixed_r_ = 1;
    ParamRef r_, b_;
};

}  // namespace longreach::model
