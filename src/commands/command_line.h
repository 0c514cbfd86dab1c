// The command line in the form in which commands declare it. Only command_line.cpp
// includes the parser (CLI11), whose headers are slow to compile.
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
    Option& show_default();  // shows the current value of the variable in the help
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
    // Parsing stores the value in `value`, which must outlive
    // it. Instantiated for the types in command_line.cpp.
    template <class T>
    Option option(const std::string& name, T& value, const std::string& help);
    Option option(const std::string& name, const std::function<void(const std::string&)>& take,
                  const std::string& help);
    Option flag(const std::string& name, bool& value, const std::string& help);
    void footer(const std::string& text);
    void run(Action action);  // sets what the command does

  private:
    CLI::App* app_;
    Action* action_;
};

// --replace, for commands that write results where their user says (io/result_file.h).
void add_replace_flag(Command& command, bool& replace);

// Parses the arguments with the commands that `add_commands` adds to the program and returns the
// chosen action. It is empty, and `code` is the exit code, if help or an error message was printed.
Action read_command_line(int argc, char** argv, const std::function<void(Command&)>& add_commands,
                         ExitCode& code);

// Writes each line to standard error as a warning.
void print_info(const std::string& text);
void print_warnings(const std::vector<std::string>& lines);

}  // namespace longreach::commands
