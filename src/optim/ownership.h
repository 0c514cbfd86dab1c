// Which rank updates which numbers (ZeRO-1). That rank alone keeps their moments and sums their gradients.
//
// A matrix that Muon orthogonalises, of one tensor or of several joined, belongs to one rank as a whole, balanced by the FLOPs of the iteration.
// All other tensors are cut into pieces that are dealt out in table order, balanced by bytes. Sums over the
// parameters are also taken piece by piece, so the pieces are the same at any number of ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/param_table.h"

namespace longreach::optim {

class Ownership {
  public:
    // orthogonalised: whether Muon updates a parameter; joined: whether params()[i] is further rows of the matrix before it.
    Ownership(
        const model::ParamTable& table, const std::function<bool(const model::Param&)>& orthogonalised,
        int ranks, const std::function<bool(size_t)>& joined = [](size_t) { return false; });

    struct Piece {
        size_t param = 0;              // index into table.params()
        int64_t begin = 0, count = 0;  // elements within it
        int owner = 0;
        int64_t slot = 0;  // index if the pieces of rank 0 come first, then those of rank 1, ...
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
    // What a rank owns of elements [begin, end) of a flat buffer, as offsets from the buffer's start: ranges
    // in order, joined if only padding lies between them.
    std::vector<Range> ranges(int rank, int64_t begin, int64_t end) const;
    int64_t elements(int rank) const;  // of all ranges together

    // "each of 4 ranks updates its share: the smallest is 97% of the largest in Muon's FLOPs, ...".
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
