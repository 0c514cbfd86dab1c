// The MLP's products with relu^2 in their epilogues, for Hopper (relu2_sm90.cu), for bf16. In builds without that
// architecture (LONGREACH_SM90) they serve nothing.
#pragma once

#include "kernels/cuda/kernels.h"

namespace longreach::cuda {

// Whether these kernels take the product: `out` is written, the rows of `a` and the matrix w are multiplied, h is read
// by the gradient's epilogue (forward: `out` itself).
#if defined(LONGREACH_SM90)
bool relu2_sm90_serves(const Tensor& out, const Tensor& a, const Tensor& w, const Tensor& h);
#else
inline bool relu2_sm90_serves(const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
    return false;
}
#endif

// workers: blocks, one for each multiprocessor.
// h [N, F] = max(0, x [N, C] w [F, C]^T)^2.
void linear_relu2_sm90(Tensor h, const Tensor& x, const Tensor& w, int workers, Stream stream);
// da [N, F] = (dy [N, C] w [C, F]) * 2 sqrt(h [N, F]).
void linear_relu2_backward_sm90(Tensor da, const Tensor& dy, const Tensor& w, const Tensor& h, int workers,
                                Stream stream);

}  // namespace longreach::cuda
