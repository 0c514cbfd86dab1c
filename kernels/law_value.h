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
            stack[++top] = static_cast<double>(in.parameters[c.operand][row * in.parameter_step[c.operand]]);
            continue;
        }
        if (c.op == LawOp::table) {
            stack[++top] = in.tables[c.operand][row * in.table_step[c.operand] + at];
            continue;
        }
        if (c.op == LawOp::element) {
            const double last = static_cast<double>(in.sizes[c.operand] - 1);
            const double index = std::floor(stack[top]);
            const int64_t k = static_cast<int64_t>(index > 0 ? (index < last ? index : last) : 0);
            stack[top] =
                static_cast<double>(in.parameters[c.operand][row * in.parameter_step[c.operand] + k]);
            continue;
        }
        top -= law_arguments(c.op) - 1;
        const double x = stack[top], y = law_arguments(c.op) > 1 ? stack[top + 1] : 0;
        double v = 0;
        switch (c.op) {
            case LawOp::negate:
                v = -x;
                break;
            case LawOp::floor:
                v = std::floor(x);
                break;
            case LawOp::ceil:
                v = std::ceil(x);
                break;
            case LawOp::abs:
                v = std::fabs(x);
                break;
            case LawOp::exp:
                v = std::exp(x);
                break;
            case LawOp::expm1:
                v = std::expm1(x);
                break;
            case LawOp::log:
                v = std::log(x);
                break;
            case LawOp::log1p:
                v = std::log1p(x);
                break;
            case LawOp::log2:
                v = std::log2(x);
                break;
            case LawOp::sqrt:
                v = std::sqrt(x);
                break;
            case LawOp::tanh:
                v = std::tanh(x);
                break;
            case LawOp::sigmoid:
                v = 1 / (1 + std::exp(-x));
                break;
            case LawOp::softplus:
                v = x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
                break;
            case LawOp::erf:
                v = std::erf(x);
                break;
            case LawOp::sin:
                v = std::sin(x);
                break;
            case LawOp::cos:
                v = std::cos(x);
                break;
            case LawOp::add:
                v = x + y;
                break;
            case LawOp::subtract:
                v = x - y;
                break;
            case LawOp::multiply:
                v = x * y;
                break;
            case LawOp::divide:
                v = x / y;
                break;
            case LawOp::power:
                v = x == 2 ? std::exp2(y) : std::pow(x, y);
                break;
            case LawOp::less:
                v = x < y;
                break;
            case LawOp::less_equal:
                v = x <= y;
                break;
            case LawOp::greater:
                v = x > y;
                break;
            case LawOp::greater_equal:
                v = x >= y;
                break;
            case LawOp::equal:
                v = x == y;
                break;
            case LawOp::not_equal:
                v = x != y;
                break;
            case LawOp::min:
                v = y < x ? y : x;
                break;
            case LawOp::max:
                v = y > x ? y : x;
                break;
            case LawOp::where:
                v = x != 0 ? y : stack[top + 2];
                break;
            case LawOp::clamp:
                v = x < y ? y : x > stack[top + 2] ? stack[top + 2] : x;
                break;
            default:
                break;
        }
        stack[top] = v;
    }
    return stack[0];
}

}  // namespace longreach
