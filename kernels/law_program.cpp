#include "kernels/law_program.h"

#include <algorithm>

#include "kernels/law_value.h"

namespace longreach {

LawInputs law_inputs(const Tensor& table, const LawSpec& spec) {
    const bool by_token = spec.by_token.length > 0;
    const int64_t entries = by_token ? spec.by_token.length : spec.length;
    check(by_token ? table.cols() % entries == 0 : entries >= 0 && entries <= table.cols(),
          "{} entries of a law in a table of {}", entries, table.cols());
    const Tensor& start = spec.by_token.start;
    check(!start || (start.count() == table.cols() && start.contiguous()), "{} starts of {} tokens",
          start.count(), table.cols());
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
            check(t.dtype == DType::f64 && t.cols() >= entries && (t.rows() == 1 || t.rows() == table.rows()),
                  "a constant table {}x{} for {} entries of {} rows", t.rows(), t.cols(), entries,
                  table.rows());
            in.tables[i] = t.f64();
            in.table_step[i] = t.rows() == 1 ? 0 : t.row_stride;
        }
        if (const Tensor& x = spec.tokens[i]) {
            check(by_token && x.rows() == table.cols() && x.cols() == table.rows(),
                  "numbers {}x{} of tokens for a table {}x{}", x.rows(), x.cols(), table.rows(),
                  table.cols());
            in.half = x.dtype == DType::bf16;
            in.tokens[i] = x.data();
            in.token_step[i] = x.row_stride;
        }
    }
    return in;
}

namespace {

// One instruction at a time for up to this many entries: choosing the instruction is shared by all of them.
constexpr int64_t law_lanes = 64;

// The first n <= law_lanes entries of a run of law_value, with the same bits.
void law_block(const LawProgram& program, const LawInputs& in, const LawRun& run, int64_t n, float* to,
               int64_t step) {
    const auto& [row, begin, end, first, token] = run;
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
            case LawOp::token:
                for (int64_t k = 0; k < n; ++k) x[k] = law_token(in, c.operand, row, token + k);
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

void law_values(const LawProgram& program, const LawInputs& inputs, const LawRun& run, float* to,
                int64_t step) {
    for (LawRun rest = run; rest.begin < run.end; rest.begin += law_lanes, rest.token += law_lanes)
        law_block(program, inputs, rest, std::min(law_lanes, run.end - rest.begin), to, step);
}

int64_t check_token_angles(const Tensor& cosine, const Tensor& sine, const Tensor& sums, const Tensor& theta,
                           int64_t length, int64_t first) {
    const int64_t tokens = cosine.rows(), sequences = length > 0 ? tokens / length : 0;
    check(sequences > 0 && tokens == sequences * length && sine.rows() == tokens &&
              cosine.cols() == sums.rows() * theta.count() && sine.cols() == cosine.cols() &&
              sums.cols() % sequences == 0 && first >= 0 && first + length <= sums.cols() / sequences,
          "angles {}x{} of sums {}x{} and {} pairs, length {} at {}", cosine.rows(), cosine.cols(),
          sums.rows(), sums.cols(), theta.count(), length, first);
    return sums.cols() / sequences;
}

void check_token_angle_gradient(const Tensor& dsums, const Tensor& dx, const Tensor& x, const Tensor& theta,
                                int64_t head_dim) {
    check(head_dim > 0 && head_dim % 2 == 0 && theta.count() <= head_dim / 2 && dsums.rows() > 0 &&
              x.cols() % (dsums.rows() * head_dim) == 0 && dx.rows() == x.rows() && dx.cols() == x.cols() &&
              dsums.cols() == x.rows(),
          "gradients {}x{} of the angles of {} pairs of heads {}x{}", dsums.rows(), dsums.cols(),
          theta.count(), x.rows(), x.cols());
}

int64_t check_running_sums(const Tensor& sums, const Tensor& total, const Tensor& values, const Tensor& keys,
                           int64_t length, int64_t first) {
    const Tensor& read = values ? values : keys;
    const int64_t sequences = length > 0 ? read.cols() / length : 0;
    check(length > 0 && read.cols() == sequences * length && read.rows() == sums.rows() &&
              (!keys || (keys.rows() == read.rows() && keys.cols() == read.cols())) &&
              (!total || (total.rows() == sums.rows() && total.cols() == sequences)) && sequences < 65536,
          "running sums of {}x{} in {}x{}, length {}", read.rows(), read.cols(), sums.rows(), sums.cols(),
          length);
    if (sequences == 0) return 0;
    const int64_t room = sums.cols() / sequences;
    check(sums.cols() % sequences == 0 && first >= 0 && first + length <= room &&
              (first == 0 || total || !values),
          "running sums {}+{} of {}", first, length, room);
    return sequences;
}

}  // namespace longreach
