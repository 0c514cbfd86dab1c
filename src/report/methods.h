// How the compared models were made and measured, as a paragraph for a paper: read from the resolved configs and
// from what was measured, so that it cannot say anything else.
#pragma once

#include <string>
#include <vector>

#include "report/summary.h"

namespace longreach::report {

struct Methods {
    std::string text;               // citations as keys in brackets
    std::string latex;              // with \cite, one paragraph
    std::vector<std::string> keys;  // of references.bib
    bool empty() const { return text.empty(); }
};

// Empty if no run has a config that this version reads.
Methods methods_of(const Collection& collection, const Summary& summary);

}  // namespace longreach::report
