// What the ranks found, brought to rank 0: lists of numbers of any length, through a small piece of device
// memory. f64 holds everything that evaluations find exactly: f32 losses, counts, token ids.
#pragma once

#include <vector>

#include "ranks/comm.h"
#include "model/arena.h"

namespace longreach::eval {

class Collector {
  public:
    static constexpr int64_t piece = 1 << 15;  // numbers of one rank on their way at once: 256 KiB

    // Device memory for a piece, on rank 0 for a piece of every other rank; none where there is one rank.
    void plan(model::Arena& arena, int rank, int ranks);
    // Called by all ranks. On rank 0 the lists of all ranks in the ranks' order, elsewhere nothing. stop:
    // whether this rank asks to stop; afterwards, on all ranks, whether any does.
    std::vector<std::vector<double>> collect(Ops& ops, ranks::Comm& comm, std::vector<double> mine,
                                             bool& stop) const;
    // Rank 0's numbers, at most `piece`, on all ranks. Their count is the same on all.
    void share(Ops& ops, ranks::Comm& comm, std::vector<double>& numbers) const;

  private:
    Tensor pieces_;  // f64 [R - 1, piece] on rank 0, [1, piece] elsewhere
};

}  // namespace longreach::eval
