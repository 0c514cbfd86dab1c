// What a CPU has that other devices have not: threads whose number may change.
#pragma once

#include <memory>

#include "base/pool.h"
#include "kernels/ops.h"

namespace longreach {

// The tiles of AMX, for products of bf16: where a CPU has none or fails a check of them, vectors multiply.
enum class Tiles { absent, wrong, usable };

// The other base of every Ops that make_cpu_ops() makes.
class CpuDevice {
  public:
    virtual Pool& pool() = 0;

  protected:
    ~CpuDevice() = default;
};

// The pool of `ops`; null: not a CPU.
inline Pool* pool_of(Ops& ops) {
    CpuDevice* cpu = dynamic_cast<CpuDevice*>(&ops);
    return cpu != nullptr ? &cpu->pool() : nullptr;
}

}  // namespace longreach
