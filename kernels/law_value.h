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
    return op <= LawOp::table ? 0 : op <= LawOp::cos ? 1 : op <= LawOp::max ? 2 : 3;
}

// An operation of up to three numbers.
LONGREACH_LAW_FUNCTION double law_result(LawOp op, double x, double y, double z) {
    switch (op) {
        case LawOp::negate:
            return -x;
        case LawOp::floor:
            return std::floor(x);
        case LawOp::ceil:
            return std::ceil(x);
        case LawOp::abs:
            return std::fabs(x);
        case LawOp::exp:
            return std::exp(x);
        case LawOp::expm1:
            return std::expm1(x);
        case LawOp::log:
            return std::log(x);
        case LawOp::log1p:
            return std::log1p(x);
        case LawOp::log2:
            return std::log2(x);
        case LawOp::sqrt:
            return std::sqrt(x);
        case LawOp::tanh:
            return std::tanh(x);
        case LawOp::sigmoid:
            return 1 / (1 + std::exp(-x));
        case LawOp::softplus:
            return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
        case LawOp::erf:
            return std::erf(x);
        case LawOp::sin:
            return std::sin(x);
        case LawOp::cos:
            return std::cos(x);
        case LawOp::add:
            return x + y;
        case LawOp::subtract:
            return x - y;
        case LawOp::multiply:
            return x * y;
        case LawOp::divide:
            return x / y;
        case LawOp::power:
            return x == 2 ? std::exp2(y) : std::pow(x, y);
        case LawOp::less:
            return x < y;
        case LawOp::less_equal:
            return x <= y;
        case LawOp::greater:
            return x > y;
        case LawOp::greater_equal:
            return x >= y;
        case LawOp::equal:
            return x == y;
        case LawOp::not_equal:
            return x != y;
        case LawOp::min:
            return y < x ? y : x;
        case LawOp::max:
            return y > x ? y : x;
        case LawOp::where:
            return x != 0 ? y : z;
        case LawOp::clamp:
            return x < y ? y : x > z ? z : x;
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

// The result for one entry of one row, which has the index `at` in the tables.
LONGREACH_LAW_FUNCTION double law_value(const LawProgram& program, const LawInputs& in, int64_t row,
                                        int64_t at, double entry) {
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
