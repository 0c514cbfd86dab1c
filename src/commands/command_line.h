// The command line as the commands describe it. Only command_line.cpp includes the parser (CLI11), whose headers
// take long to compile.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace longreach::commands {

using Action = std::function<ExitCode()>;

// An option or a positional argument. Every call adds a rule and returns *this.
class Option {
  public:
    explicit Option(CLI::Option& option) : option_(&option) {}

    Option& required();
    Option& repeatable();    // may be given several times, with one value each
    Option& comma_list();    // one argument holds several values
    Option& token_counts();  // "64K" as well as "65536" (base/units.h)
    Option& show_default();  // in the help; the value that the variable holds now
    Option& in_range(int64_t lowest, int64_t highest);
    Option& in_real_range(double lowest, double highest);
    Option& positive();
    Option& not_negative();
    Option& one_of(const std::vector<std::string>& words);
    Option& check(std::function<std::string(const std::string&)> problem);  // "" accepts the value
    Option& needs(const Option& other);
    Option& excludes(const Option& other);

  private:
    CLI::Option* option_;
};

// The program or one of its commands.
class Command {
  public:
    Command(CLI::App& app, Action& action) : app_(&app), action_(&action) {}

    Command add(const std::string& name, const std::string& help);
    void require_command();
    // The value goes into `value`, which must outlive the parsing. For the types that command_line.cpp lists.
    template <class T>
    Option option(const std::string& name, T& value, const std::string& help);
    Option option(const std::string& name, const std::function<void(const std::string&)>& take,
                  const std::string& help);
    Option flag(const std::string& name, bool& value, const std::string& help);
    void footer(const std::string& text);
    void run(Action action);  // what is done if this command is chosen

  private:
    CLI::App* app_;
    Action* action_;
};

// What the arguments ask for, with the commands that `add_commands` adds to the program. Empty if nothing is left to
// do: help was printed, or what is wrong with the arguments; `code` is then the exit code.
Action read_command_line(int argc, char** argv, const std::function<void(Command&)>& add_commands,
                         ExitCode& code);

// Writes each line to standard error as a warning.
void print_warnings(const std::vector<std::string>& lines);

}  // namespace longreach::commands
