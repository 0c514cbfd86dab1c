// What a model needs of the mixers that attend, besides what it needs of any mixer: masks, QK-clip, the index of keys.
#pragma once

#include "model/mixer.h"
#include "model/tables.h"

namespace longreach::model {

class AttentionMixer : public Mixer {
  public:
    AttentionMixer* attention() final { return this; }

    virtual Reach reach() const = 0;  // the mask that forward() reads (Masks), as configured

    // Scales the query and key matrices of heads whose largest score, in settings.score_maxima, is above the limit.
    virtual void clip_scores(Ops& ops, const FlatParams& weights, const PassSettings& settings,
                             float limit) const = 0;

    // A training pass writes the losses of the mixer's index of keys to StepContext::index_losses.
    virtual bool has_index() const = 0;
    // The part of backward() that trains the index, which needs nothing of the rest.
    virtual void learn_index(StepContext& run, const Memory& memory, const Tensor& xn) const = 0;
};

}  // namespace longreach::model
