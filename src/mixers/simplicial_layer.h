// 2-simplicial attention as a mixer: every query weighs pairs of keys within two windows.
//
//     q|k|v|k2|v2 = xn W^T                       [N, 5 H d]
//     q, k, k2    = rms norm of each             head by head, so that products of three start with deviation sqrt(d)
//     o           = sum over pairs of P v v2     [N, H d]; Ops::simplicial, scale 1 / sqrt(d)
//     y          += o Wo^T
//
// Nothing turns with the position: products of three numbers have no angle that depends on differences alone. A
// generation keeps k, v, k2 and v2 of every position.
#pragma once

#include "model/arena.h"
#include "model/recent_rows.h"
#include "model/registry.h"

namespace longreach::model {

struct SimplicialConfig {
    int64_t window = 512, second_window = 32;  // first and second keys that a query sees, its own included
    void fields(config::Fields& f);
};

std::span<const MixerType> simplicial_mixers();

class SimplicialLayer : public Mixer {
  public:
    struct Workspace {
        Tensor dprojected;  // [N, 5 H d]
        Tensor dout;        // [N, H d]
    };
    struct Saved : Memory {
        Tensor projected;                                   // [N, 5 H d]: q|k|v|k2|v2, normed in place
        Tensor query_inverse, inverse_of_k, inverse_of_k2;  // f32 [N, H]
        Tensor o;                                           // [N, H d]
        Tensor lse;                                         // f32 [H, N]
        Workspace workspace;
        SimplicialKeys cache;                            // [B R, H d] of a generation
        PieceRows piece_k, piece_v, piece_k2, piece_v2;  // of an evaluation in pieces
    };

    SimplicialLayer(ParamTable& table, const ModelConfig& model, int64_t layer);

    std::unique_ptr<Memory> plan(Arena& arena, const std::string& name, const PassPlan& size) const override;
    void plan_workspace(Memory& memory, Arena& arena, Ops& ops, const PassPlan& size) const override;
    void plan_kept(Memory& memory, KeptTexts& kept, const std::string& name) const override;
    void forward(StepContext& run, const Memory& memory, Tensor y, Write write, const Tensor& xn,
                 const SharedValues& shared) const override;
    void backward(StepContext& run, Tensor dxn, const Tensor& dy, const Memory& memory, const Tensor& xn,
                  const SharedValues& shared) const override;
    double flops_per_token(int64_t length, const PassSettings& settings) const override;

  private:
    int64_t width() const { return heads_ * head_dim_; }
    Tensor queries_of(const Tensor& projected) const { return projected.col_range(0, width()); }
    SimplicialKeys keys_of(const Tensor& projected) const;
    HeadSpec norm(int64_t length) const;
    SimplicialSpec spec(const StepContext& run) const;

    int64_t heads_ = 0, head_dim_ = 0;
    SimplicialConfig windows_;
    float eps_ = 0;
    ParamRef projections_, out_;
};

}  // namespace longreach::model
