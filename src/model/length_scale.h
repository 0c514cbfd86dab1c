// The factor f(n) = r shape(n) + b of a query that counts n keys: r and b learned or fixed,
// the shape a table.
#pragma once

#include "model/arena.h"
#include "model/model_config.h"
#include "model/step_context.h"

namespace longreach::model {

class LengthScale {
  public:
    LengthScale() = default;
    LengthScale(ParamTable& table, const ModelConfig& model, int64_t layer);

    // f32 [1 or H, N], the factor of every query; planned also where only an evaluation may need it.
    Tensor plan(Arena& arena, const std::string& name, int64_t tokens) const;
    bool learned() const { return static_cast<bool>(r_); }

    // The factor in `saved`, after filling it, or nothing where f is 1. shape: the table of this layer, empty
    // for 1. row_start: first visible key of every query, empty for 0.
    Tensor factor(StepContext& run, const Tensor& saved, const Tensor& shape, const Tensor& row_start,
                  bool fill) const;
    // dfactor [H, N].
    void backward(StepContext& run, const Tensor& dfactor, const Tensor& shape,
                  const Tensor& row_start) const;

    // Where n starts counting, given the config of the layer.
    static Tensor count_start(const StepContext& run, ScaleCount count, const Tensor& row_start);

  private:
    RowFactorSpec spec(const StepContext& run, const Tensor& shape, const Tensor& row_start) const;

    ScaleConfig config_;
    int64_t rows_ = 1;  // of the factor: H where every head learns its own
    double fixed_r_ = 1;
    ParamRef r_, b_;
};

}  // namespace longreach::model
