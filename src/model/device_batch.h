// Device memory for a micro-batch, and its upload.
#pragma once

#include <span>

#include "model/arena.h"
#include "model/step_context.h"

namespace longreach::model {

class DeviceBatch {
  public:
    struct Parts {
        bool targets = true, documents = false, loss_weights = false;
    };
    // Reserves memory for up to `tokens` tokens.
    void plan(Arena& arena, int64_t tokens, const Parts& parts);
    bool documents() const { return parts_.documents; }

    // Uploads sequences of `length` tokens, one after the other. The other spans have one entry per token or are empty.
    Batch upload(Ops& ops, int64_t length, std::span<const int32_t> tokens, std::span<const int32_t> targets,
                 std::span<const int32_t> doc_start, std::span<const float> loss_weights = {}) const;

  private:
    Parts parts_;
    Tensor tokens_, targets_, doc_start_;  // i32 [N]
    Tensor loss_weights_;                  // f32 [N]
};

}  // namespace longreach::model
