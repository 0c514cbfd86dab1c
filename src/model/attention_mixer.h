// What a model needs of the mixers that attend, besides what it needs of any mixer: tables, masks, score maxima,
// the index of keys.
#pragma once

#include "model/mixer.h"
#include "model/tables.h"

namespace longreach::model {

class AttentionMixer : public Mixer {
  public:
    AttentionMixer* attention() final { return this; }

    virtual int64_t layer() const = 0;
    virtual Reach reach() const = 0;  // the mask that forward() reads (Masks), as configured
    virtual void set_stage_window(int64_t window) = 0;
    virtual void use_tables(const Tables& tables) = 0;

    // From now on every training pass raises max, f32 [H], to the largest score of each head.
    virtual void gather_maxima(Tensor max, bool absolute) = 0;
    // Scales the query and key matrices of heads whose gathered maximum is above the limit.
    virtual void clip_scores(Ops& ops, const FlatParams& weights, float limit) const = 0;

    // From now on a training pass of N tokens writes the losses of the mixer's index of keys, f32 [N], to elements
    // [place N, place N + N) of StepContext::index_losses.
    virtual bool has_index() const = 0;
    virtual void place_index_losses(int64_t place) = 0;
    // The part of backward() that trains the index, which needs nothing of the rest.
    virtual void learn_index(StepContext& run, const Memory& memory, const Tensor& xn) const = 0;
};

}  // namespace longreach::model
