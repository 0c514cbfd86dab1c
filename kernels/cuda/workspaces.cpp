#include "kernels/cuda/workspaces.h"

#include <algorithm>

#include "kernels/cuda/delta_chunks.h"
#include "kernels/cuda/gemm.h"
#include "kernels/muon_slot.h"

namespace longreach::cuda {

namespace {

int64_t rounded(int64_t bytes, int64_t to) {
    return (bytes + to - 1) / to * to;
}

// The most blocks of the second walk of the delta rule in chunks: two on each of 132 multiprocessors.
constexpr int64_t most_blocks = 264;
constexpr int64_t least_chunks = 16;   // of a segment
constexpr int64_t least_segments = 4;  // with fewer, two walks save little of one

bool wants_tables(const AttentionGradients& wanted) {
    return wanted.distance_gain.rank > 0 || wanted.distance_bias.rank > 0;
}

}  // namespace

AttentionPlaces::AttentionPlaces(const AttentionSpec& spec, const AttentionGradients& wanted) {
    const int64_t tokens = spec.batch * spec.length;
    sinks = rounded(spec.heads * tokens * 4, 128);
    slab = sinks + (wanted.sink.rank > 0 ? rounded(spec.heads * flat_blocks(tokens) * 8, 128) : 0);
    // 2 edge - 1 sums per diagonal of tiles; an edge is at most 64.
    const int64_t sums = 2 * rounded(spec.length, 64);
    bytes = slab + (wants_tables(wanted) ? spec.batch * spec.heads * 2 * sums * 4 : 0);
}

int64_t attention_backward_workspace(const AttentionSpec& spec, const AttentionGradients& gradients) {
    return AttentionPlaces(spec, gradients).bytes;
}

StickPlaces::StickPlaces(const AttentionSpec& spec, const AttentionGradients& wanted) {
    const auto floats = [](int64_t count) { return rounded(count * 4, 128); };
    const int64_t tokens = spec.batch * spec.length;
    rest = floats(spec.heads * tokens);
    dq = 2 * rest;
    dk = dq + floats(tokens * spec.heads * spec.head_dim);
    dv = dk + floats(tokens * spec.kv_heads * spec.head_dim);
    slab = dv + (dv - dk);
    const int64_t tiles = (spec.length + stick_edge - 1) / stick_edge;
    bytes = slab + (wants_tables(wanted) ? spec.batch * spec.heads * tiles * 2 * slab_sums * 4 : 0);
}

int64_t stick_workspace(const AttentionSpec& spec, const AttentionGradients& gradients) {
    return StickPlaces(spec, gradients).bytes;
}

int64_t rule_groups(const DeltaSpec& s) {
    return (s.value_dim + rule_columns - 1) / rule_columns;
}

int64_t rule_backward_blocks(const DeltaSpec& s) {
    return std::min<int64_t>(s.batch * s.heads * rule_groups(s), 128);
}

int64_t delta_segments(const DeltaSpec& s) {
    const int64_t chunks = delta_chunks(s.length);
    int64_t segments = std::max<int64_t>(1, std::min(s.segments, chunks));
    if (s.segments == 0) {
        const int64_t blocks =
            std::max<int64_t>(1, s.batch * s.heads * ((s.value_dim + chunk_columns - 1) / chunk_columns));
        segments = std::min(most_blocks / blocks, chunks / least_chunks);
        if (segments < least_segments) return 1;
    }
    const int64_t of_each = (chunks + segments - 1) / segments;
    return (chunks + of_each - 1) / of_each;
}

DeltaPlaces::DeltaPlaces(const DeltaSpec& s, bool backward) {
    constexpr int64_t chunk = delta_chunk, bf16 = 2, f32 = 4;
    const int64_t entries = s.batch * delta_chunks(s.length) * s.heads, rows = s.batch * s.length;
    const int64_t segments = delta_segments(s), between = segments > 1 ? s.batch * s.heads * segments : 0;
    bytes = 0;
    const auto take = [&](int64_t size) {
        const int64_t begin = bytes;
        bytes += rounded(size, 16);
        return begin;
    };
    scores = take(entries * chunk * chunk * bf16);
    gram = take(entries * chunk * chunk * bf16);
    faded = take(3 * entries * chunk * s.key_dim * bf16);
    edges = take(entries * static_cast<int64_t>(sizeof(DeltaEdges)));
    bounds = take(between * s.key_dim * s.value_dim * f32);
    maps = take(between * s.key_dim * s.key_dim * f32);
    u = dstates = dbeta = along = bytes;
    if (!backward) return;
    const int64_t slabs = (s.value_dim + slab_columns - 1) / slab_columns;
    u = take(rows * s.heads * s.value_dim * bf16);
    dstates = take(entries * s.key_dim * s.value_dim * bf16);
    dbeta = take(slabs * rows * s.heads * f32);
    along = take(entries * slabs * f32);
}

int64_t delta_chunks_workspace(const DeltaSpec& spec, bool backward) {
    return DeltaPlaces(spec, backward).bytes;
}

// Whether a decay is one per head, and rows are aligned, is not known here: enough for either form.
int64_t delta_workspace(const DeltaSpec& s, bool backward, DType type) {
    const int64_t rows = s.batch * s.length;
    const int64_t by_position = backward
                                    ? 4 * (rule_groups(s) * rows * s.heads * (3 * s.key_dim + 1) +
                                           rule_backward_blocks(s) * delta_chunk * s.key_dim * rule_columns)
                                    : 0;
    return type == DType::bf16 ? std::max(by_position, delta_chunks_workspace(s, backward)) : by_position;
}

MuonPlaces::MuonPlaces(int64_t s, int64_t l, int64_t group, DType type, int64_t batch_bytes)
    : small(s), large(l) {
    constexpr int64_t line = 256;  // every matrix begins on one
    matrix = rounded(s * l * size_of(type), line);
    square = rounded(s * s * size_of(type), line);
    matrices = std::clamp(batch_bytes / matrix, int64_t{1}, group);
    partials = 2 * matrices * (matrix + square);
    totals = partials + rounded(matrices * flat_blocks(s * l) * 8, line);
    bytes = totals + rounded(matrices * 8, line);
}

MuonGroups muon_groups(std::span<const MuonSlot> slots) {
    MuonGroups groups;
    for (const MuonSlot& slot : slots) {
        check_slot(slot);
        const int64_t rows = slot.param.rows(), cols = slot.param.cols();
        if (rows * cols > 0) groups[{std::min(rows, cols), std::max(rows, cols)}].push_back(slot);
    }
    return groups;
}

int64_t muon_workspace(std::span<const MuonSlot> slots, DType type, int64_t batch_bytes) {
    int64_t most = 0;
    for (const auto& [sides, group] : muon_groups(slots))
        most = std::max(
            most, MuonPlaces(sides.first, sides.second, static_cast<int64_t>(group.size()), type, batch_bytes)
                      .bytes);
    return most;
}

}  // namespace longreach::cuda
