// Receives the tensors of an evaluation while it runs. The layers share their memory, so an observer must
// take what it needs during the call.
#pragma once

#include "model/step_context.h"

namespace longreach::model {

// One attention layer between its scores and its output projection; N tokens.
struct AttentionView {
    int64_t layer;
    Tensor input;                 // [N, C] what the layer reads
    Tensor q, k;                  // [N, H d], [N, G d] as attention reads them
    Tensor o;                     // [N, H d] before norm and gates
    Tensor lse;                   // f32 [H, N]
    const AttentionSpec& scores;  // the spec that attention was given
    Tensor gates;                 // [N, F or F d] before the sigmoid, of F heads; empty without gates
    Tensor gathered;  // [N, F d] what the output projection reads; F = H, or H/2 if two heads give one output
    Tensor projection;  // [C, F d] its matrix
    Tensor v;           // [N, G d] as attention reads them
};

// One layer of the gated delta rule before it is computed; N tokens.
struct DeltaView {
    int64_t layer;
    Tensor q, k, v;         // [N, H d], [N, H d], [N, H e] as the rule reads them
    Tensor decay, beta;     // f32 [N, H or H d], [N, H]; beta may be empty
    const DeltaSpec& rule;  // that of the layer
    Tensor workspace;       // of the rule, for whole sequences or parts of them
    Tensor scratch;         // [N, H e], contents irrelevant
    Tensor before{};        // f32 [H, d e] the states that a piece of a sequence continues; empty: none
};

class ForwardObserver {
  public:
    virtual ~ForwardObserver() = default;
    virtual void delta(const StepContext&, const DeltaView&) {}
    virtual void attention(const StepContext& run, const AttentionView& view) = 0;
    // x: the residual stream [N, C] after a block.
    virtual void block(const StepContext& run, int64_t layer, const Tensor& x) = 0;
};

}  // namespace longreach::model
