// Where the pieces of the workspaces of CUDA operations begin, in bytes. This is plain C++, so that a build without nvcc can
// plan for a GPU, too.
//
// A gradient counts as asked for when it has a shape, whether it has memory yet or not.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/kernels.h"

namespace longreach::cuda {

// Delta of every row first, then sums of sinks, then a slab of sums by distance.
struct AttentionPlaces {
    int64_t sinks, slab, bytes;
    AttentionPlaces(const AttentionSpec& spec, const AttentionGradients& wanted);
};

inline constexpr int stick_edge = 32;             // queries of a tile of sticks, and keys
inline constexpr int slab_sums = 2 * stick_edge;  // diagonals of such a tile, and one unused
// Sums of b first, then rests of delta, dQ, dK, dV, the slab.
struct StickPlaces {
    int64_t rest, dq, dk, dv, slab, bytes;
    StickPlaces(const AttentionSpec& spec, const AttentionGradients& wanted);
};

// Of the delta rule position by position (delta_rule.cu): groups of columns of values, and blocks of its gradient, of which
// each has the states of a chunk.
inline constexpr int rule_columns = 32;
int64_t rule_groups(const DeltaSpec& spec);
int64_t rule_backward_blocks(const DeltaSpec& spec);

// Of the delta rule in chunks (delta_chunks.cuh).
inline constexpr int chunk_columns = 64;  // of values, per block of threads
inline constexpr int slab_columns = 16;   // of those, per warp
// Of one chunk and head.
struct DeltaEdges {
    static constexpr int chunk = static_cast<int>(delta_chunk);
    float from_start[chunk], to_end[chunk];  // a_0 ... a_t; a_(t+1) ... a_(c-1); 1 with decays per channel
    float beta[chunk];
    float kept[2 * chunk];  // with decays per channel, of each: a_0 ... a_(c-1)
};
struct DeltaPlaces {
    int64_t scores, gram, faded, edges, bounds, maps;
    int64_t u, dstates, dbeta, along;  // of the gradient
    int64_t bytes;
    DeltaPlaces(const DeltaSpec& spec, bool backward);
};

// Of a batch of Muon's matrices [s, l] or [l, s], s <= l: x, y [s, l], a, b [s, s], one per matrix; then the parts of the
// sums of squares, and the sums.
struct MuonPlaces {
    int64_t small, large, matrices;
    int64_t matrix, square;  // bytes of one x, one a
    int64_t partials, totals, bytes;
    MuonPlaces(int64_t s, int64_t l, int64_t group, DType type, int64_t batch_bytes);
};
// The slots by (shorter side, longer side), in their order within a group.
using MuonGroups = std::map<std::pair<int64_t, int64_t>, std::vector<MuonSlot>>;
MuonGroups muon_groups(std::span<const MuonSlot> slots);

}  // namespace longreach::cuda
