// Words for the language of formulas: what every variable, operator and function means.
#pragma once

#include <string>
#include <string_view>

#include "law/formula.h"

namespace longreach::law {

struct Meaning {
    std::string written;  // "t", "x ^ y", "clamp(x, a, b)"
    std::string_view value;
};
Meaning meaning_of(Variable variable);
Meaning meaning_of(Function function);

}  // namespace longreach::law
