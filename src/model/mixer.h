// The part of a block that moves information between positions: softmax attention, the gated delta rule, or attention to
// pairs of keys. The interface holds what any mixer needs.
#pragma once

#include <memory>

#include "model/arena.h"
#include "model/recent_rows.h"
#include "model/step_context.h"

namespace longreach::model {

class AttentionMixer;

// Values of layer 0 and space for looked-up value embeddings; shared by all layers.
struct SharedValues {
    Tensor first, dfirst;          // [N, G d]; with value residual
    Tensor looked_up, dlooked_up;  // [N, G d]; with value embeddings
};

// The batches and passes that a plan reserves memory for.
struct PassPlan {
    int64_t tokens;                       // N of the largest batch
    const std::vector<int64_t>& lengths;  // every T that may occur
    bool training;
    const PassSettings& settings;
    int64_t texts = 0;  // of generation: sequences at most, which may be shorter than any of `lengths`
};

class Mixer {
  public:
    // Memory of one layer in one plan (training, evaluation or generation): what forward() saves for
    // backward(), what lives only inside a call, and the decoding state. Each mixer derives its own.
    struct Memory {
        virtual ~Memory() = default;
    };
    virtual ~Mixer() = default;

    virtual std::unique_ptr<Memory> plan(Arena& arena, const std::string& name,
                                         const PassPlan& size) const = 0;
    // Reserves what lives only inside a call; all layers of a model share this part of the memory.
    virtual void plan_workspace(Memory& memory, Arena& arena, Ops& ops, const PassPlan& size) const = 0;
    // Reserves what is kept from one pass to the next: keys and values, or a state of constant size.
    virtual void plan_kept(Memory& memory, KeptTexts& kept, const std::string& name) const = 0;

    // y = or += mixer(xn).
    virtual void forward(StepContext& run, const Memory& memory, Tensor y, Write write, const Tensor& xn,
                         const SharedValues& shared) const = 0;
    // dxn = gradient at xn from dy at the output.
    virtual void backward(StepContext& run, Tensor dxn, const Tensor& dy, const Memory& memory,
                          const Tensor& xn, const SharedValues& shared) const = 0;
    // FLOPs of forward(), without the products with parameter matrices.
    virtual double flops_per_token(int64_t length, const PassSettings& settings) const = 0;

    // This mixer, if it attends.
    virtual AttentionMixer* attention() { return nullptr; }
};

}  // namespace longreach::model
