// A table of a score law as the kernels fill it: a short program that runs for every entry, in double.
//
// A program works on a stack. What depends on no learned number is tabulated once (`tables`), so that a program
// holds only what learns: r * sqrt(2 log n) is "parameter, table, multiply".
#pragma once

#include <array>

#include "kernels/law_operations.h"
#include "kernels/tensor.h"

namespace longreach {

enum class LawOp : int16_t {
    number,     // push numbers[operand]
    entry,      // push the number of keys or the distance of this entry
    parameter,  // push parameters[operand]: its only number, or that of this row
    element,  // pop an index, push this element of the vector parameters[operand]: rounded down, held inside
    table,    // push this entry of tables[operand]
    token,    // push the number that this token has in this row of tokens[operand]
#define LONGREACH_NAME(name, numbers, result) name,
    // pop the numbers that the operation takes, push its result
    LONGREACH_LAW_OPERATIONS(LONGREACH_NAME)
#undef LONGREACH_NAME
};
struct LawInstruction {
    LawOp op = LawOp::number;
    int16_t operand = 0;
};

// 1 KiB, so that a kernel takes it as an argument.
struct LawProgram {
    static constexpr int longest = 192, most_numbers = 31, deepest = 16, most_inputs = 8;
    int16_t count = 0, number_count = 0;
    LawInstruction code[longest] = {};
    double numbers[most_numbers] = {};
};

// The inputs of a program in memory of the device that runs it.
struct LawInputs {
    const float* parameters[LawProgram::most_inputs];
    int32_t sizes[LawProgram::most_inputs];           // elements of each; 1: a number
    int32_t parameter_step[LawProgram::most_inputs];  // from one row of the table to the next; 0: shared
    const double* tables[LawProgram::most_inputs];
    int64_t table_step[LawProgram::most_inputs];
    const void* tokens[LawProgram::most_inputs];  // f32, or bf16
    int64_t token_step[LawProgram::most_inputs];  // from one token to the next
    bool half;                                    // tokens are bf16
};

// Entries [begin, end) of a row of a table. Entry `begin` belongs to `token`, the next entry to the next token.
struct LawRun {
    int64_t row = 0, begin = 0, end = 0;
    double first = 0;  // n or t of entry 0
    int64_t token = 0;
};
// Entry i into to[i * step], on the host.
void law_values(const LawProgram& program, const LawInputs& inputs, const LawRun& run, float* to,
                int64_t step);

// How gradients of scores belong to entries of a table.
struct LawEntries {
    // Empty `start` and length 0: by distance, the gradient's columns are the table's. Otherwise by row: query
    // i of a sequence of `length` counts i - start_i + 1 keys, which is entry i - start_i.
    int64_t length = 0;
    Tensor start{};  // i32 [B, T]; empty: 0
};

// What evaluate_law fills: entries 0 .. length - 1 of every row. With by_token every token has a column, which is the entry
// of the keys that the token counts.
struct LawSpec {
    LawProgram program{};
    int64_t length = 0;
    double first = 0;        // n or t of entry 0
    bool backwards = false;  // entry i is in the last column but i, as AttentionSpec has distances
    std::array<Tensor, LawProgram::most_inputs> parameters{};  // f32 [size] or [rows, size]
    std::array<int32_t, LawProgram::most_inputs> sizes{};
    std::array<Tensor, LawProgram::most_inputs> tables{};  // f64 [R] or [rows, R], R >= length
    LawEntries by_token{};                                 // length 0: by entry
    std::array<Tensor, LawProgram::most_inputs>
        tokens{};  // [N, rows] each, of the device's type; by_token alone
};

// Checks a spec against the table it fills, and takes the addresses of its inputs.
LawInputs law_inputs(const Tensor& table, const LawSpec& spec);

// Check the operands of token_angles and its gradient (ops.h). The first returns the room R of a sequence.
int64_t check_token_angles(const Tensor& cosine, const Tensor& sine, const Tensor& sums, const Tensor& theta,
                           int64_t length, int64_t first);
void check_token_angle_gradient(const Tensor& dsums, const Tensor& dx, const Tensor& x, const Tensor& theta,
                                int64_t head_dim);

// Checks the operands of running_sums (ops.h). The sequences.
int64_t check_running_sums(const Tensor& sums, const Tensor& total, const Tensor& values, const Tensor& keys,
                           int64_t length, int64_t first);

}  // namespace longreach
