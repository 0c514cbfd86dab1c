// Words for the language of formulas: what every variable, operator and function means.
#pragma once

#include <string_view>

#include "law/formula.h"

namespace longreach::law {

struct Meaning {
    std::string_view written;  // "t", "a ^ b", "clamp(x, a, b)"
    std::string_view value;
};
Meaning meaning_of(Variable variable);
Meaning meaning_of(Function function);

}  // namespace longreach::law
