#include "kernels/ops.h"

#include "kernels/cpu/isa_begin.h"
#include "kernels/cpu/cpu_ops.h"

std::unique_ptr<Ops> create(int threads, Precision precision, Tiles tiles) {
    return std::make_unique<CpuOps>(threads, precision, tiles);
}

#include "kernels/cpu/isa_end.h"
