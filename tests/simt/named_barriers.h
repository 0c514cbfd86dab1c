// Barriers 1 to 15 of a block, each for some of its warps.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "simt/clocks.h"
#include "simt/findings.h"

namespace longreach::simt {

class NamedBarriers {
  public:
    void start_block();
    // The running thread's warp arrives at a barrier of `threads` threads, and waits there or goes on.
    void arrive(int id, int threads, bool waits, const Place& place);
    std::string table() const;

  private:
    struct Warp {
        size_t number;
        bool waits;
        Place place;
        uint32_t clock;  // of its first lane, at the arrival
    };
    struct Barrier {
        int threads = 0;                  // of the generation that is on; 0: none is
        std::vector<Warp> warps, before;  // of the generation that is on, and of the one before
        Clock clock;
    };
    void warp_arrives(int id, int threads, bool waits, const Place& place);
    void check_generation(int id, const Barrier& barrier, size_t warp, const Place& place) const;
    void complete(Barrier& barrier);

    std::array<Barrier, 16> all_;
    std::vector<int> lanes_;  // by warp: how many of its threads have come to the instruction
    std::vector<Place> places_;
};

}  // namespace longreach::simt
