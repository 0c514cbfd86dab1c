// Tables of names and numbers: aligned for the terminal, CSV for programs.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace longreach::theory {

// A word or a number. A number that does not exist is NaN: "-" on the terminal, an empty field in a file.
struct Cell {
    Cell(double number) : value(number) {}
    Cell(std::string word) : text(std::move(word)) {}
    std::string text;  // not empty: this is a word
    double value = 0;
};

struct NumberTable {
    std::string name;   // of the file, without ".csv"
    std::string title;  // one line above the terminal's table
    std::vector<std::string> columns;
    std::vector<std::vector<Cell>> rows;
};

std::string aligned(const NumberTable& table);  // five significant digits, whole numbers in full
std::string csv(const NumberTable& table);      // shortest digits that read back as the same number

}  // namespace longreach::theory
