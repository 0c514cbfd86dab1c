// Matrix products on a GPU, by cuBLASLt.
//
// All matrices are row-major views with a row stride. Which algorithm serves a product is asked of cuBLASLt's
// heuristics once per shape and kept, without timing, so that the same machine always computes the same bits.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/kernels.h"

namespace longreach::cuda {

// c [m, n] = alpha * op(a) op(b) + beta * c, sums in f32. a and b are both f32 or both bf16; c is of that type or
// f32. op(a) is [m, k], op(b) is [k, n].
struct Product {
    Tensor c, a, b;
    bool a_transposed = false, b_transposed = false;
    float alpha = 1.0f, beta = 0.0f;
    // More than one: so many products of one shape, this many elements apart.
    int64_t batch = 1;
    int64_t c_step = 0, a_step = 0, b_step = 0;
};

class MatrixProducts {
  public:
    // Loads cuBLASLt; throws with code device where it is missing, naming the library it looked for.
    explicit MatrixProducts(Stream stream);
    ~MatrixProducts();
    MatrixProducts(const MatrixProducts&) = delete;
    MatrixProducts& operator=(const MatrixProducts&) = delete;

    void run(const Product& product);
    int64_t workspace_bytes() const;  // device memory held
    std::string version() const;      // of the library, "cuBLASLt 13.0.2"

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// Newton-Schulz and what Muon does around it, for a list of matrices; matrices of one shape (or of one another's
// transpose) go through every product together. bf16: the products take bf16 inputs, sums stay f32.
int64_t muon_workspace(std::span<const MuonSlot> slots, DType products);
void muon(MatrixProducts& products, std::span<const MuonSlot> slots, Tensor workspace, const MuonSpec& spec,
          DType inputs, Stream stream);

}  // namespace longreach::cuda
