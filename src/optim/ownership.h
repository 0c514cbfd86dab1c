// Which rank updates which numbers (ZeRO-1): it alone keeps their moments, and sums their gradients.
//
// Matrices that Muon orthogonalises belong to one rank whole, balanced by the FLOPs of the iteration; all
// other tensors are cut into pieces and dealt out in table order, balanced by bytes. Pieces are the unit of
// everything that is summed over the parameters as well, so they are the same at any number of ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/param_table.h"

namespace longreach::optim {

class Ownership {
  public:
    // orthogonalised: whether Muon updates a parameter.
    Ownership(const model::ParamTable& table, const std::function<bool(const model::Param&)>& orthogonalised,
              int ranks);

    struct Piece {
        size_t param = 0;              // index into table.params()
        int64_t begin = 0, count = 0;  // elements within it
        int owner = 0;
        int64_t slot = 0;  // its place if the pieces of rank 0 come first, then those of rank 1, ...
    };
    const std::vector<Piece>& pieces() const { return pieces_; }  // in table order
    int ranks() const { return ranks_; }
    // Pieces of a rank, as the range of their slots.
    int64_t first_slot(int rank) const { return first_slots_[static_cast<size_t>(rank)]; }
    int64_t slots(int rank) const { return first_slot(rank + 1) - first_slot(rank); }

    // The part of a parameter that a rank owns: none, or one range of elements within it.
    struct Range {
        int64_t begin = 0, count = 0;
    };
    Range part(size_t param, int rank) const;
    // What a rank owns of [begin, end) of a flat buffer, from its start: ranges in order, joined where
    // nothing but padding lies between.
    std::vector<Range> ranges(int rank, int64_t begin, int64_t end) const;
    int64_t elements(int rank) const;  // of all ranges together

    // "rank 0 owns 1.2M numbers (48% of Newton-Schulz); rank 1 ..."; of the busiest and the idlest.
    std::string describe() const;

  private:
    struct Load {
        double flops = 0;
        int64_t elements = 0;  // that Adam updates
    };
    const model::ParamTable& table_;
    int ranks_;
    std::vector<Piece> pieces_;
    std::vector<int64_t> first_slots_;
    std::vector<Load> loads_;
};

}  // namespace longreach::optim
