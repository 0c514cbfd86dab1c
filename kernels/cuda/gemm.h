// Matrix products on a GPU, by cuBLASLt.
//
// All matrices are row-major views with a row stride. The algorithm of a product comes from cuBLASLt's
// heuristics, once per shape and without timing, so that the same machine always computes the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "kernels/cuda/kernels.h"

namespace longreach::cuda {

// c [m, n] = alpha * op(a) op(b) + beta * c, sums in f32. a and b are both f32 or both bf16; c is of that
// type or f32. op(a) is [m, k], op(b) is [k, n]. f32 is f32 throughout, never TF32. c may not overlap a or b.
// With beta = 0 c is not read.
struct Product {
    Tensor c, a, b;
    bool a_transposed = false, b_transposed = false;
    float alpha = 1.0f, beta = 0.0f;
    // Above 1: this many products of one shape, whose matrices lie `step` elements apart.
    int64_t batch = 1;
    int64_t c_step = 0, a_step = 0, b_step = 0;
    // If not empty, beta times this matrix is added instead of c; type and shape of c.
    Tensor addend{};
    int64_t addend_step = 0;
};

class MatrixProducts {
  public:
    // Loads cuBLASLt; if it is missing, throws ExitCode::device and names the library.
    explicit MatrixProducts(Stream stream);
    ~MatrixProducts();
    MatrixProducts(const MatrixProducts&) = delete;
    MatrixProducts& operator=(const MatrixProducts&) = delete;

    // Does nothing if m, n or batch is 0; k = 0 leaves beta times c or the addend (beta 0 or 1).
    void run(const Product& product);
    int64_t workspace_bytes() const;  // device memory held
    static std::string version();     // of the library, "cuBLASLt 13.0.2"

  private:
    struct State;
    void without_terms(const Product& product, const Tensor& addend, int64_t addend_step);
    std::unique_ptr<State> state_;
};

// Muon over a list of matrices: momentum, Newton-Schulz, update. Matrices of one shape
// (or of one another's transpose) go through every pass and product together, as many as fit into
// `batch_bytes`, at least one. `type` is what the matrices of the iteration are stored in; sums stay f32.
// workspace: muon_workspace bytes, contents irrelevant.
inline constexpr int64_t muon_batch_bytes = int64_t{64} << 20;
int64_t muon_workspace(std::span<const MuonSlot> slots, DType type, int64_t batch_bytes = muon_batch_bytes);
void muon(MatrixProducts& products, std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec,
          DType type, Stream stream, int64_t batch_bytes = muon_batch_bytes);

}  // namespace longreach::cuda
