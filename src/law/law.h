// A score law: what decides a score besides <query, key>, written as a formula and taken apart into the
// tables that the attention kernels read.
//
//     score = row(n) * gain(t) * z + bias(t)              n keys counted for the query, t distance
//     score = sqrt(gain(t) + row_square(n)) * z + ...     the one sum of both that the kernels know
//
// Terms are numbers that a layer computes of each token. Those of the query may be in the factor row, those of the key
// are a bias of the key, and sums of terms are taken over the tokens after the key up to the query:
//
//     score = ... + sum over j < i' <= i of between(i') + key(j)          query i, key j
//
// with z = softcap * tanh(z / softcap) first, if the formula says so. Summands without t are equal for all
// keys of a query and cancel in the softmax.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "law/formula.h"

namespace longreach::law {

struct Law {
    bool of_dot = false;  // the formula multiplies dot instead of z
    double softcap = 0;   // 0: none
    Formula row, gain, bias;
    Formula row_square;              // null: none; else gain holds squares
    Formula between, key;            // 0: none. Formulas of terms at one token
    bool row_of_token = false;       // row reads terms of the query
    std::vector<Formula> cancelled;  // summands that were dropped
};

// The parameters from `first` on are terms: of each its value at the query, at the key, and its sum between both.
struct TermPlaces {
    enum Place { query, key, between, count };
    size_t first = SIZE_MAX, terms = 0;
    bool holds(size_t parameter, Place place) const {
        return parameter >= first && (parameter - first) % count == static_cast<size_t>(place);
    }
    size_t term(size_t parameter) const { return (parameter - first) / count; }
    bool reads(const Formula& f, Place place) const;
};

// stages: formulas that are applied in order; `z` of each is the score of the one before, and only the first
// may use `dot`. of_factor: stages that change the factor of z alone, and not what was added to it. Throws FormulaError
// if the score cannot be separated; `stage` then holds the index of the formula to blame.
Law separate(const std::vector<Formula>& stages, size_t& stage, const std::vector<bool>& of_factor = {},
             const TermPlaces& places = {});

// Refuses integrals whose arguments are not numbers, as they would take seconds for a table, and targets that have no
// solution. number_of: the value of what depends on nothing but the model. of_n: n, too, may be an argument, since a
// table by n is solved on a grid.
void check_solvers(const Formula& f, const std::function<std::optional<double>(const Formula&)>& number_of,
                   bool of_n);

// With the given variables and parameters (by index; empty: kept) replaced by their values, and constants
// folded into one number where all arguments are known.
Formula resolve(const Formula& formula, const std::vector<std::pair<Variable, double>>& values,
                const std::vector<std::optional<double>>& parameters = {});

// Entry i is the formula at `over` = first + i, in double. Solvers of n are solved on a grid of n; between
// its points they are interpolated as solved_table() does.
std::vector<double> tabulate(const Formula& formula, Variable over, int64_t first, int64_t count,
                             const Values& values);

}  // namespace longreach::law
