// Tables and text for LaTeX.
#pragma once

#include <string>
#include <string_view>

#include "table/data_table.h"

namespace longreach::table {

// Text in which no character is a command. Mathematical signs that the tables use become mathematics; other letters stay
// UTF-8, which every LaTeX since 2018 reads as far as its fonts go.
std::string latex_text(std::string_view text);

// A floating table in the form of the package booktabs, with its caption and the label "tab:NAME".
std::string latex(const DataTable& table);

}  // namespace longreach::table
