// What subcommands share in reading their arguments.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace longreach::commands {

// The option takes lengths or counts of tokens: "64K" as well as "65536" (base/units.h).
void take_token_counts(CLI::Option& option);

// What is wrong with the names of subcommands and options among the arguments, with the nearest known one; ""
// if nothing is. The parser's own message serves for everything else.
std::string unknown_name(const CLI::App& app, int argc, const char* const* argv);

// Writes each line to standard error as a warning.
void print_warnings(const std::vector<std::string>& lines);

}  // namespace longreach::commands
