// Moves the optimiser state between the ranks that keep it and rank 0, which alone accesses checkpoints.
//
// It moves tensor by tensor, in the order of the checkpoint's file.
// A tensor that rank 0 keeps whole is not sent.
#pragma once

#include <string>
#include <vector>

#include "ranks/comm.h"
#include "io/safetensors.h"
#include "optim/optimizer.h"

namespace longreach::train {

class StateExchange {
  public:
    // scratch: f32, as large as the largest tensor; is overwritten.
    StateExchange(Ops& ops, ranks::Comm& comm, const optim::Optimizer& optimizer, Tensor scratch);

    // All state tensors, in the order of the file.
    const std::vector<io::StoredTensor>& tensors() const { return writer_.tensors(); }
    const io::SafetensorsWriter& writer() const { return writer_; }

    // On rank 0: returns the next tensor, which must be `name`, whole. Valid until the next call.
    Tensor fetch(const std::string& name);
    // On the other ranks: sends the parts of all tensors that rank 0 fetches. On rank 0: fetches the
    // remaining tensors after an error, so that the others do not wait.
    void fetch_rest();

    // Distributes the next tensor. host: on rank 0 the whole tensor; null on the other ranks.
    void deliver(const float* host);

  private:
    const optim::Optimizer::Named& next();
    // The part of each rank but 0 that keeps one. Empty if rank 0 keeps the whole tensor.
    std::vector<ranks::Transfer> parts(const optim::Optimizer::Named& state) const;

    Ops& ops_;
    ranks::Comm& comm_;
    const optim::Optimizer& optimizer_;
    Tensor scratch_;
    io::SafetensorsWriter writer_;
    size_t next_ = 0;  // index into tensors()
};

}  // namespace longreach::train
