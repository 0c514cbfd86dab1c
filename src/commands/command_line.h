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

// The command line as plain data: what completions and man pages are made of.
struct OptionInfo {
    std::vector<std::string> names;  // "-o", "--out"; of an argument its name, without a dash
    std::string help;
    std::string type;     // of a value: INT, TEXT; "" for a flag
    std::string rule;     // what a value must be, if not `words`: "INT in [1 - 1024]"; may be empty
    std::string initial;  // the value without the option, where the help shows it
    std::vector<std::string> words;  // the only values; empty: others
    bool argument = false, required = false, repeatable = false;
};
struct CommandInfo {
    std::string name, help, footer;
    std::vector<OptionInfo> options;  // in the order of the help
    std::vector<CommandInfo> commands;
};

struct CommandLine;  // what the parser keeps until it has chosen an action

// An option or a positional argument. Every call adds a rule and returns *this.
class Option {
  public:
    Option(CLI::Option& option, CommandLine& line) : option_(&option), line_(&line) {}

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
    CommandLine* line_;
};

// The program or one of its commands.
class Command {
  public:
    Command(CLI::App& app, CommandLine& line) : app_(&app), line_(&line) {}

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
    // The same, with all commands of the program.
    void run(std::function<ExitCode(const CommandInfo&)> action);

  private:
    CLI::App* app_;
    CommandLine* line_;
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
