// Where the queries, keys and values of a layer come from, and what a generation keeps of them: projections of the input
// (qkv_projection.h), one latent per token (latent.h), or the one query and key of a gated attention unit (gau_input.h).
#pragma once

#include <memory>
#include <string>

#include "model/param_table.h"
#include "model/recent_rows.h"
#include "model/step_context.h"
#include "model/tables.h"

namespace longreach::model {

struct Qkv {
    Tensor q, k, v;  // [N, H d] and twice [N, G d]
};

class QkvSource {
  public:
    // Of one layer in one plan, as Mixer::Memory: what forward() saves, what lives inside a call, what is kept.
    struct Memory {
        virtual ~Memory() = default;
    };
    virtual ~QkvSource() = default;

    // A constructor adds the matrices. What follows comes later in the table of parameters, in this order.
    virtual void add_biases(ParamTable& /*table*/) {}
    virtual void add_convolutions(ParamTable& /*table*/) {}
    virtual void add_heads(ParamTable& /*table*/, bool /*grows*/) {}  // grows: their rotation

    // Of qkv or its gradient [N, Q], Q = (H + 2G) d: where q, k and v lie in it.
    virtual Qkv parts_of(const Tensor& qkv) const = 0;
    // s_base, of queries and keys whose length is not what s_base takes it for.
    virtual double base(double given) const { return given; }

    virtual std::unique_ptr<Memory> plan(Arena& arena, const std::string& name, int64_t tokens) const = 0;
    virtual void plan_workspace(Memory& memory, Arena& arena, int64_t tokens, bool training) const = 0;
    // far: there may be far pairs.
    virtual void plan_kept(Memory& memory, KeptTexts& kept, const std::string& name, bool far) const = 0;

    // What is kept from one piece of an evaluation to the next, besides keys and values.
    virtual void plan_pieces(Memory& /*memory*/, KeptTexts& /*kept*/, const std::string& /*name*/) const {}

    // qkv = what xn gives, before turn().
    virtual void forward(StepContext& run, const Memory& memory, const Tensor& qkv,
                         const Tensor& xn) const = 0;
    // Norms and turns queries and keys in place; far: those of far pairs.
    virtual void turn(StepContext& run, const Memory& memory, const Tensor& q, const Tensor& k,
                      const LayerTables& tables, bool far) const = 0;
    // In a generation: keeps what attention reads. far_keys: may be empty.
    virtual void keep(StepContext& /*run*/, const Memory& /*memory*/, const Tensor& /*k*/,
                      const Tensor& /*v*/, const Tensor& /*far_keys*/) const {}
    // o = attention of one query per sequence to what is kept, from key `first` on.
    virtual void decode(StepContext& run, const Memory& memory, const Tensor& o, const Tensor& q,
                        AttentionSpec scores, int64_t first) const = 0;
    // dxn = the gradient at xn. dqkv: at qkv after turn(), overwritten.
    virtual void backward(StepContext& run, Tensor dxn, const Tensor& dqkv, const Tensor& qkv,
                          const Memory& memory, const Tensor& xn, const LayerTables& tables) const = 0;
    // QK-clip: scales down what makes the scores of heads whose maximum is above the limit.
    virtual void clip_scores(Ops& ops, const FlatParams& weights, const Tensor& maxima,
                             float limit) const = 0;
};

}  // namespace longreach::model
