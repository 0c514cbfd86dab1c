// Fibres: the threads of a simulated block. Each has a stack of its own and runs until it hands the one
// processor on; a switch saves what the C calling convention says a function must keep.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace longreach::simt {

// Where a fibre goes on; on machines other than x86-64 it points to a ucontext_t.
using FibreState = void*;

// Leaves the running fibre, whose state goes to *from, and goes on with `to`.
void switch_fibre(FibreState* from, FibreState to);

// Stacks, kept for the next block: mapping 256 of them costs more than running most blocks. Below each lies a
// page without access, so that an overflow stops at once.
class FibreStacks {
  public:
    ~FibreStacks();
    // A state that starts entry() on stack `index`, whose earlier content is gone. entry must not return.
    FibreState start(size_t index, void (*entry)());
    uintptr_t base() const { return base_; }
    bool contains(uintptr_t address) const { return address - base_ < used_bytes_; }

    static constexpr size_t most = 1024, guard = 4096, stride = 128 * 1024 + guard;

  private:
    uintptr_t base_ = 0;
    size_t used_bytes_ = 0;
    std::vector<void*> contexts_;
};

}  // namespace longreach::simt
