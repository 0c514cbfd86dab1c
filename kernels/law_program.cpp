#include "kernels/law_program.h"

#include <algorithm>

#include "kernels/law_value.h"

namespace longreach {

LawInputs law_inputs(const Tensor& table, const LawSpec& spec) {
    check(spec.length >= 0 && spec.length <= table.cols(), "{} entries of a law in a table of {}",
          spec.length, table.cols());
    check(spec.program.count > 0 && spec.program.count <= LawProgram::longest, "a program of {} instructions",
          spec.program.count);
    LawInputs in{};
    for (size_t i = 0; i < spec.parameters.size(); ++i) {
        const Tensor &p = spec.parameters[i], &t = spec.tables[i];
        if (p) {
            const int32_t size = spec.sizes[i];
            check(size > 0 && (p.count() == size || p.count() == size * table.rows()),
                  "{} numbers for a parameter of {} in a table of {} rows", p.count(), size, table.rows());
            in.parameters[i] = p.f32();
            in.sizes[i] = size;
            in.parameter_step[i] = p.count() == size ? 0 : size;
        }
        if (t) {
            check(t.dtype == DType::f64 && t.cols() >= spec.length &&
                      (t.rows() == 1 || t.rows() == table.rows()),
                  "a constant table {}x{} for {} entries of {} rows", t.rows(), t.cols(), spec.length,
                  table.rows());
            in.tables[i] = t.f64();
            in.table_step[i] = t.rows() == 1 ? 0 : t.row_stride;
        }
    }
    return in;
}

namespace {

// One instruction at a time for up to this many entries: choosing the instruction is shared by all of them.
constexpr int64_t law_lanes = 64;

// The entries [begin, begin + n) of law_value, n <= law_lanes, with the same bits.
void law_block(const LawProgram& program, const LawInputs& in, int64_t row, int64_t begin, int64_t n,
               double first, float* to, int64_t step) {
    double stack[LawProgram::deepest][law_lanes];
    int top = -1;  // index of the last numbers pushed
    for (int i = 0; i < program.count; ++i) {
        const LawInstruction& c = program.code[i];
        if (law_arguments(c.op) == 0) ++top;
        double* x = stack[top];
        switch (c.op) {
            case LawOp::number:
                std::fill_n(x, n, program.numbers[c.operand]);
                break;
            case LawOp::entry:
                for (int64_t k = 0; k < n; ++k) x[k] = first + static_cast<double>(begin + k);
                break;
            case LawOp::parameter:
                std::fill_n(x, n, law_parameter(in, c.operand, row, 0));
                break;
            case LawOp::table:
                std::copy_n(in.tables[c.operand] + row * in.table_step[c.operand] + begin, n, x);
                break;
            case LawOp::element:
                for (int64_t k = 0; k < n; ++k) x[k] = law_element(in, c.operand, row, x[k]);
                break;
            default: {
                const int arguments = law_arguments(c.op);
                top -= arguments - 1;
                x = stack[top];
                const double* y = arguments > 1 ? stack[top + 1] : x;
                const double* z = arguments > 2 ? stack[top + 2] : x;
                for (int64_t k = 0; k < n; ++k) x[k] = law_result(c.op, x[k], y[k], z[k]);
            }
        }
    }
    for (int64_t k = 0; k < n; ++k) to[(begin + k) * step] = static_cast<float>(stack[0][k]);
}

}  // namespace

void law_values(const LawProgram& program, const LawInputs& inputs, int64_t row, int64_t begin, int64_t end,
                double first, float* to, int64_t step) {
    for (int64_t i = begin; i < end; i += law_lanes)
        law_block(program, inputs, row, i, std::min(law_lanes, end - i), first, to, step);
}

}  // namespace longreach
