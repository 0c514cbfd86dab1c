// The tables of configs/README.md and configs/LANGUAGE.md, which are made of the library of laws.
#pragma once

#include <string>

namespace longreach::commands {

std::string library_tables();   // laws and angles with a name
std::string language_tables();  // names, constants, operators, functions and limits of formulas

}  // namespace longreach::commands
