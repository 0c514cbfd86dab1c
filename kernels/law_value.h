// The interpreter of law_program.h, for one compiler of the host and one of the GPU: the CPU's instruction sets share
// the host's, so that they give the same bits.
#pragma once

#include <cmath>

#include "kernels/law_program.h"

#if defined(__CUDACC__)
#define LONGREACH_LAW_FUNCTION __host__ __device__ inline
#else
#define LONGREACH_LAW_FUNCTION inline
#endif

namespace longreach {

// Numbers that an operation takes from the stack.
LONGREACH_LAW_FUNCTION int law_arguments(LawOp op) {
    switch (op) {
#define LONGREACH_NUMBERS(name, numbers, result) \
    case LawOp::name:                            \
        return numbers;
        LONGREACH_LAW_OPERATIONS(LONGREACH_NUMBERS)
#undef LONGREACH_NUMBERS
        default:
            return op == LawOp::element ? 1 : 0;
    }
}

// An operation of up to three numbers.
LONGREACH_LAW_FUNCTION double law_result(LawOp op, double x, double y, double z) {
    switch (op) {
#define LONGREACH_RESULT(name, numbers, result) \
    case LawOp::name:                           \
        return result;
        LONGREACH_LAW_OPERATIONS(LONGREACH_RESULT)
#undef LONGREACH_RESULT
        default:
            return 0;
    }
}

LONGREACH_LAW_FUNCTION double law_parameter(const LawInputs& in, int operand, int64_t row, int64_t element) {
    return static_cast<double>(in.parameters[operand][row * in.parameter_step[operand] + element]);
}

// The element of a vector that an index names: rounded down, held inside.
LONGREACH_LAW_FUNCTION double law_element(const LawInputs& in, int operand, int64_t row, double at) {
    const double last = static_cast<double>(in.sizes[operand] - 1), index = std::floor(at);
    return law_parameter(in, operand, row,
                         static_cast<int64_t>(index > 0 ? (index < last ? index : last) : 0));
}

LONGREACH_LAW_FUNCTION double law_token(const LawInputs& in, int operand, int64_t row, int64_t token) {
    const int64_t at = token * in.token_step[operand] + row;
    if (!in.half) return static_cast<double>(static_cast<const float*>(in.tokens[operand])[at]);
    // bf16 is the upper half of f32.
    union {
        uint32_t bits;
        float value;
    } wide;
    wide.bits = static_cast<uint32_t>(static_cast<const uint16_t*>(in.tokens[operand])[at]) << 16;
    return static_cast<double>(wide.value);
}

// The result for one entry of one row, which has the index `at` in the tables, and is that of `token`.
LONGREACH_LAW_FUNCTION double law_value(const LawProgram& program, const LawInputs& in, int64_t row,
                                        int64_t at, double entry, int64_t token = 0) {
    double stack[LawProgram::deepest];
    int top = -1;  // index of the last number pushed
    for (int i = 0; i < program.count; ++i) {
        const LawInstruction& c = program.code[i];
        if (c.op == LawOp::number) {
            stack[++top] = program.numbers[c.operand];
            continue;
        }
        if (c.op == LawOp::entry) {
            stack[++top] = entry;
            continue;
        }
        if (c.op == LawOp::parameter) {
            stack[++top] = law_parameter(in, c.operand, row, 0);
            continue;
        }
        if (c.op == LawOp::table) {
            stack[++top] = in.tables[c.operand][row * in.table_step[c.operand] + at];
            continue;
        }
        if (c.op == LawOp::token) {
            stack[++top] = law_token(in, c.operand, row, token);
            continue;
        }
        if (c.op == LawOp::element) {
            stack[top] = law_element(in, c.operand, row, stack[top]);
            continue;
        }
        top -= law_arguments(c.op) - 1;
        const double y = law_arguments(c.op) > 1 ? stack[top + 1] : 0;
        const double z = law_arguments(c.op) > 2 ? stack[top + 2] : 0;
        stack[top] = law_result(c.op, stack[top], y, z);
    }
    return stack[0];
}

}  // namespace longreach
