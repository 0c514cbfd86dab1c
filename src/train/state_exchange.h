// The optimiser's state between the ranks that keep it and rank 0, which alone writes and reads checkpoints.
//
// Tensor by tensor, in the order of the checkpoint's file; a tensor that rank 0 keeps whole does not travel.
#pragma once

#include <string>
#include <vector>

#include "ranks/comm.h"
#include "io/safetensors.h"
#include "optim/optimizer.h"

namespace longreach::train {

class StateExchange {
  public:
    // scratch: f32, as large as the largest tensor; free to be overwritten.
    StateExchange(Ops& ops, ranks::Comm& comm, const optim::Optimizer& optimizer, Tensor scratch);

    // All state tensors, in the order of the file.
    const std::vector<io::StoredTensor>& tensors() const { return writer_.tensors(); }
    const io::SafetensorsWriter& writer() const { return writer_; }

    // Rank 0: the tensor of the next name, whole. Valid until the next call.
    Tensor fetch(const std::string& name);
    // The other ranks: their part in what rank 0 fetches. Rank 0: in case it fetches no more, so that the
    // others need not wait.
    void fetch_rest();

    // Rank 0: the tensor of the next name, whole, from the host. The other ranks: null.
    void deliver(const float* host);

  private:
    const optim::Optimizer::Named& next();
    // Who keeps which part of it, besides rank 0. Empty if it does not travel.
    std::vector<ranks::Transfer> parts(const optim::Optimizer::Named& state) const;

    Ops& ops_;
    ranks::Comm& comm_;
    const optim::Optimizer& optimizer_;
    Tensor scratch_;
    io::SafetensorsWriter writer_;
    size_t next_ = 0;  // index into tensors()
};

}  // namespace longreach::train
