// The part of a block that moves information between positions: softmax attention, the gated delta rule, or attention to
// pairs of keys. The interface holds what any mixer needs; what only softmax attention needs (tables, score maxima)
// does nothing by default.
#pragma once

#include <memory>
#include <optional>

#include "model/arena.h"
#include "model/step_context.h"
#include "model/tables.h"
#include "model/value_path.h"

namespace longreach::model {

class Mixer {
  public:
    // Memory of one layer in one plan (training, evaluation or generation): what forward() saves for
    // backward(), what lives only inside a call, and the decoding state. Each mixer derives its own.
    struct Memory {
        virtual ~Memory() = default;
    };
    virtual ~Mixer() = default;

    // lengths: every T that may occur.
    virtual std::unique_ptr<Memory> plan(Arena& arena, const std::string& name, int64_t tokens,
                                         const std::vector<int64_t>& lengths, bool training) const = 0;
    // Reserves what lives only inside a call; all layers of a model share this part of the memory.
    virtual void plan_workspace(Memory& memory, Arena& arena, Ops& ops, int64_t tokens,
                                const std::vector<int64_t>& lengths, bool training) const = 0;
    // Reserves what a generation keeps from one token to the next, for sequences of up to `room` positions:
    // keys and values, or a state of constant size.
    virtual void plan_decoding(Memory& memory, Arena& arena, const std::string& name, int64_t sequences,
                               int64_t room) const = 0;

    // y = or += mixer(xn).
    virtual void forward(StepContext& run, const Memory& memory, Tensor y, Write write, const Tensor& xn,
                         const SharedValues& shared) const = 0;
    // dxn = gradient at xn from dy at the output.
    virtual void backward(StepContext& run, Tensor dxn, const Tensor& dy, const Memory& memory,
                          const Tensor& xn, const SharedValues& shared) const = 0;
    // FLOPs of forward(), without the products with parameter matrices.
    virtual double flops_per_token(int64_t length) const = 0;

    // The mask that forward() reads (Masks), as configured; nullopt if it reads none.
    virtual std::optional<Reach> reach() const { return {}; }
    virtual void set_stage_window(int64_t) {}
    virtual void use_tables(const Tables&) {}

    // From now on every training pass raises max, f32 [H], to the largest score of each head.
    virtual void gather_maxima(Tensor, bool /*absolute*/) {}
    // Scales the query and key matrices of heads whose gathered maximum is above the limit.
    virtual void clip_scores(Ops&, const FlatParams&, float /*limit*/) const {}

    // From now on a training pass of N tokens writes the losses of the mixer's index of keys, f32 [N], to elements
    // [place N, place N + N) of StepContext::index_losses.
    virtual bool has_index() const { return false; }
    virtual void place_index_losses(int64_t /*place*/) {}
    // The part of backward() that trains the index, which needs nothing of the rest.
    virtual void learn_index(StepContext&, const Memory&, const Tensor& /*xn*/) const {}
};

}  // namespace longreach::model
