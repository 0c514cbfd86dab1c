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
// Of a Hopper, by simt/hopper_kernels.h:
//   wgmma_N            in: a [64, 32] and b [32, N], bfloat16, two a word, row by row; d [64, N]; out: d + a b.
//                      _strided: b lies with n contiguous; _registers: a is not in shared memory
//   tensor_copy        in: a tensor of golden_sequences x golden_rows x golden_columns bfloat16; column, row, sequence;
//                      out: the box of 64 columns and 16 rows as it lies in shared memory
//   tensor_store       in: the same, then such a box; out: the tensor
//   bulk_copy          in, out: 512 words
//   stmatrix_x4        in: 4 words per lane; out: what ldmatrix_x4 reads of what they wrote
//   setmaxnreg_C_P     in: a word per thread of a block, of which 128 go to C registers and the rest to P; out: one more
struct GoldenSet {
    std::string op;
    Words in, out;
    Words expected = {};  // where there is one right answer; such a set is in no file
};
constexpr int golden_columns = 80, golden_rows = 40, golden_sequences = 3;
struct GoldenFile {
    std::string device;
    std::vector<GoldenSet> sets;
};

// Edge patterns and seeded random ones of every function, without outputs.
std::vector<GoldenSet> golden_inputs();
std::vector<GoldenSet> golden_inputs_sm90();
// Runs the set on the current device, or in the harness. golden_kernels.cu, golden_sm90.cu
Words run_golden(const std::string& op, const Words& in);
Words run_golden_sm90(const std::string& op, const Words& in);
// A block of 384 threads that asks for 32 and 240 registers: 32 + 2 * 240 of the 3 * 168 of its launch. It waits for ever.
void start_golden_hang();
// hopper: the sets of golden_inputs_sm90() too.
GoldenFile record_golden(const std::string& device, bool hopper);
// How many words of a set differ from what is expected.
size_t unexpected_words(const GoldenSet& set);

std::string write_golden(const GoldenFile& file);
GoldenFile parse_golden(const std::string& text);

}  // namespace longreach::test
