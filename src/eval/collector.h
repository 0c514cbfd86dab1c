// Gathers the results of all ranks on rank 0: lists of numbers of any length, through a small
// buffer of device memory. f64 represents all results exactly: f32 losses, counts, token ids.
#pragma once

#include <vector>

#include "ranks/comm.h"
#include "model/arena.h"

namespace longreach::eval {

class Collector {
  public:
    static constexpr int64_t piece = 1 << 15;  // numbers of one rank per transfer: 256 KiB

    // Device memory for a piece, on rank 0 for a piece of every other rank; none with a single rank.
    void plan(model::Arena& arena, int rank, int ranks);
    // Called by all ranks. Returns the lists of all ranks in their order on rank 0, nothing
    // elsewhere. stop: in, whether this rank wants to stop; out, on all ranks, whether any does.
    std::vector<std::vector<double>> collect(Ops& ops, ranks::Comm& comm, std::vector<double> mine,
                                             bool& stop) const;
    // Copies the numbers of rank 0, at most `piece`, to all ranks. All ranks pass the same count.
    void share(Ops& ops, ranks::Comm& comm, std::vector<double>& numbers) const;

  private:
    Tensor pieces_;  // f64 [R - 1, piece] on rank 0, [1, piece] elsewhere
};

}  // namespace longreach::eval
