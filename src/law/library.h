// The laws that have a name. Each is a formula that anyone could write; the name saves the writing, and says
// where the law comes from.
#pragma once

#include <string_view>
#include <vector>

#include "law/bound_law.h"

namespace longreach::law {

struct NamedLaw {
    const char* name;
    const char* formula;
    std::vector<Parameter> parameters;
    const char* what;
    const char*
        sources;  // keys of configs/references.bib, separated by spaces; "" where this program is the source
    std::vector<Term> terms = {};
};

const std::vector<NamedLaw>& library();
const NamedLaw* find_law(std::string_view name);  // null: there is none

}  // namespace longreach::law
