// The harness's pipeline of Hopper's instructions, for the interpreter.
#include "simt/hopper_pipeline.h"

namespace longreach::hopper_test {

template __global__ void pipeline<none>(const __grid_constant__ CUtensorMap,
                                        const __grid_constant__ CUtensorMap,
                                        const __grid_constant__ CUtensorMap,
                                        const __grid_constant__ CUtensorMap, const float*, int);

}  // namespace longreach::hopper_test
