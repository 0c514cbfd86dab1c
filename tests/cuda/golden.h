// Golden vectors: what a device really gives for each function of kernels/cuda/ptx.cuh,
// to hold the emulation in tests/simt against. golden_vectors records them on a GPU;
// tests/simt/golden_test.cpp replays them without one.
//
// The file, text: `longreach golden vectors 1`, `device NAME`, then per set one line `set OP INPUTS OUTPUTS`
// with the numbers of 32-bit words, and that many words in hexadecimal, eight digits each, inputs first.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longreach::test {

using Words = std::vector<uint32_t>;

// What the words of a set are, lane by lane where lanes are named:
//   cp_async_16        in: 32 lanes of {valid bytes, 4 words of the source}; out: 4 words of each destination
//   ldmatrix_x4        in: 32 rows of 4 words, then the row that each lane names; out: 4 words per lane
//   ldmatrix_x4_trans  the same
//   mma_m16n8k16_bf16  in: 32 lanes of a[4], b[2], c[4]; out: d[4] per lane
//   exp2_approx        in: x; out: one word each
//   anew               in: x; out: one word each
struct GoldenSet {
    std::string op;
    Words in, out;
};
struct GoldenFile {
    std::string device;
    std::vector<GoldenSet> sets;
};

// Edge patterns and seeded random ones of every function, without outputs.
std::vector<GoldenSet> golden_inputs();
// Runs the set on the current device, or in the harness. golden_kernels.cu
Words run_golden(const std::string& op, const Words& in);
GoldenFile record_golden(const std::string& device);

std::string write_golden(const GoldenFile& file);
GoldenFile parse_golden(const std::string& text);

}  // namespace longreach::test
