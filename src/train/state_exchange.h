// The optimiser's state between the ranks that keep it and rank 0, which alone writes and reads checkpoints.
//
// Tensor by tensor, in the order of the checkpoint's file; a tensor that rank 0 keeps whole does not travel.
#pragma once

#include <string>
#include <vector>

#include "ranks/comm.h"
#include "io/safetensors.h"
#include "optim/optimizer.h"

namespace longreach {

class StateExchange {
  public:
    // scratch: f32, as large as the largest tensor; free to be overwritten.
    StateExchange(Ops& ops, Comm& comm, const Optimizer& optimizer, Tensor scratch);

    // All state tensors, in the order of the file.
    const std::vector<StoredTensor>& tensors() const { return writer_.tensors(); }
    const SafetensorsWriter& writer() const { return writer_; }

    // Rank 0: the tensor of the next name, whole. Valid until the next call.
    Tensor fetch(const std::string& name);
    // The other ranks: their part in what rank 0 fetches. Rank 0: in case it fetches no more, so that the
    // others need not wait.
    void fetch_rest();

    // Rank 0: the tensor of the next name, whole, from the host. The other ranks: null.
    void deliver(const float* host);

  private:
    const Optimizer::Named& next();
    // Who keeps which part of it, besides rank 0. Empty if it does not travel.
    std::vector<Transfer> parts(const Optimizer::Named& state) const;

    Ops& ops_;
    Comm& comm_;
    const Optimizer& optimizer_;
    Tensor scratch_;
    SafetensorsWriter writer_;
    size_t next_ = 0;  // index into tensors()
};

}  // namespace longreach
