#include "kernels/law_program.h"

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

void law_values(const LawProgram& program, const LawInputs& inputs, int64_t row, int64_t begin, int64_t end,
                double first, float* to, int64_t step) {
    for (int64_t i = begin; i < end; ++i)
        to[i * step] = static_cast<float>(law_value(program, inputs, row, i, first + static_cast<double>(i)));
}

}  // namespace longreach
