#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/cpu_ops.h"


#include "kernels/cpu/isa_end.h"
