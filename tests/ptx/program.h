// The instructions of a kernel with what their words mean looked up once.
#pragma once

#include <vector>

#include "ptx/arithmetic.h"
#include "ptx/machine.h"

namespace longreach::ptx {

enum class Op : uint8_t {
    compute,
    mov,
    load,
    store,
    cvta,
    carry,
    setp,
    bra,
    call,
    ret,
    barrier,
    warpsync,
    shuffle,
    vote,
    activemask,
    atomic,
    ldmatrix,
    mma,
    copy,
    commit,
    wait,
    fence,
    trap,
    // Hopper's, all that follow
    phase,
    bulk,
    bulk_group,
    proxy_fence,
    products,
    registers,
    stmatrix
};

// An instruction with what its words mean looked up once.
struct Step {
    Op op = Op::compute;
    const Instruction* in = nullptr;
    Space space = Space::generic;
    Type type = Type::none;
    int elements = 1;  // of a vector
    Compute compute;   // arithmetic.h
    // Where each group of operands starts.
    const Operand *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr, *e = nullptr;
    int count_a = 0, count_b = 0;
};

[[noreturn]] void unknown(const Module& m, const Instruction& in);

class Program {
  public:
    Program(const Module& of, const Entry& kernel);
    const Module& module;
    const Entry& entry;
    std::vector<Step> steps;
};

}  // namespace longreach::ptx
