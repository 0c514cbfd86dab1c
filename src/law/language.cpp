#include "law/language.h"

#include <fmt/format.h>

#include <array>

#include "law/function_table.h"

namespace longreach::law {

namespace {

constexpr std::array<std::string_view, variable_count> variables = {
    "<query, key> before any scaling; in the first formula of a score only",
    "the scaled score, or the result of the formula before",
    "keys counted for the query, from 1",
    "distance from query to key, from 0",
    "head, from 0",
    "heads of the layer",
    "layer, from 0",
    "layers of the model",
    "channels of a head",
    "context trained on",
    "length of the sequence; in a generation, the positions that it has room for",
    "position, from 0",
    "channel pair, from 0",
    "pairs that turn",
    "frequency of the pair in training",
    "<w, what the layer reads of the token> + b, with a w and a b for every head"};

}  // namespace

Meaning meaning_of(Variable variable) {
    return {std::string(name_of(variable)), variables[static_cast<size_t>(variable)]};
}
Meaning meaning_of(Function function) {
    const FunctionRow& row = row_of(function);
    const std::string name = row.name;
    if (row.strength == Strength::call) return {fmt::format("{}({})", name, row.arguments), row.help};
    if (row.strength == Strength::sign) return {name + "x", row.help};
    return {fmt::format("x {} y", name), row.help};
}

}  // namespace longreach::law
