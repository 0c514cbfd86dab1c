// A formula with learned parameters as a program for the kernels.
#pragma once

#include <vector>

#include "kernels/law_program.h"
#include "law/law.h"

namespace longreach::law {

// What the parameters of a formula are: a number that is part of the formula, or learned numbers.
struct Input {
    bool learned = false;
    double value = 0;      // not learned
    int64_t size = 1;      // learned; more than 1: a vector, read by lookup
    bool by_head = false;  // each head has its own
    bool token = false;    // learned; a number of the token, not a parameter
};

struct CompiledTable {
    LawProgram program;
    std::vector<size_t> parameters;  // by operand: index of the parameter
    std::vector<size_t> tokens;      // by operand: index among the inputs
    std::vector<Formula> tables;     // by operand: parts that learn nothing, to be tabulated over the entry
    bool learned = false;            // else `tables[0]` is the whole table
    bool by_head = false;            // its rows differ
};

// over: n or t. FormulaError if the formula needs a longer program than the kernels have, or more inputs.
CompiledTable compile(const Formula& formula, Variable over, const std::vector<Input>& inputs);

// The index at which `formula` reads the vector parameter; null: it does not. FormulaError if it reads it at two
// indices, or at one that differs by head: the gradient of an entry belongs to one element.
Formula index_of(const Formula& formula, size_t vector);

}  // namespace longreach::law
