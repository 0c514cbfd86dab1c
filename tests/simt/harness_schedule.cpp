#include "cuda/cuda_test_ops.h"
#include "simt/simt.h"

namespace longreach {

void set_schedule(int k) {
    simt::options() = simt::schedule(k);
}

}  // namespace longreach
