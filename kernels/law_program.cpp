#include "kernels/law_program.h"

#include "kernels/law_value.h"

namespace longreach {

void law_values(const LawProgram& program, const LawInputs& inputs, int64_t row, int64_t begin, int64_t end,
                double first, float* to, int64_t step) {
    for (int64_t i = begin; i < end; ++i)
        to[i * step] = static_cast<float>(law_value(program, inputs, row, i, first + static_cast<double>(i)));
}

}  // namespace longreach
