#include "commands/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <map>
#include <sstream>

#include "base/build_info.h"
#include "base/error.h"
#include "base/messages.h"
#include "base/process.h"
#include "base/terminal.h"
#include "base/text.h"
#include "base/units.h"

namespace longreach::commands {

struct CommandLine {
    const CLI::App* program = nullptr;
    Action action;
    std::map<const CLI::Option*, std::vector<std::string>> words;  // of one_of
};

namespace {

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
    const std::vector<std::string> near = nearest(word, known, 2);
    return near.empty() ? "" : ": did you mean " + alternatives(near) + "?";
}

std::vector<std::string> subcommands_of(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(sub->get_name());
    return names;
}

std::vector<std::string> long_options_of(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::Option* option : app.get_options())
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return names;
}

OptionInfo info_of(const CLI::Option& option, const CommandLine& line) {
    OptionInfo out;
    for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) out.names.push_back("--" + name);
    out.argument = out.names.empty();
    if (out.argument) out.names.push_back(option.get_name(true));
    out.help = option.get_description();
    out.initial = option.get_default_str();
    out.required = option.get_required();
    out.repeatable = option.get_items_expected_max() > 1 ||
                     option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
    if (option.get_items_expected_max() == 0) return out;
    const std::string type = option.get_type_name();  // "INT:INT in [1 - 1024]"
    const size_t colon = type.find(':');
    out.type = type.substr(0, colon);
    const auto words = line.words.find(&option);
    if (words != line.words.end())
        out.words = words->second;
    else if (colon != type.npos)
        out.rule = type.substr(colon + 1);
    return out;
}

CommandInfo info_of(const CLI::App& app, const CommandLine& line) {
    CommandInfo out{app.get_name(), app.get_description(), app.get_footer(), {}, {}};
    for (const CLI::Option* option : app.get_options()) out.options.push_back(info_of(*option, line));
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
        out.commands.push_back(info_of(*command, line));
    return out;
}

// A message about an unknown command or option among the arguments, with the nearest
// known name; "" if there is none. The parser's own messages cover all other errors.
std::string unknown_name(const CLI::App& app, int argc, const char* const* argv) {
    const CLI::App* at = &app;
    std::string path;
    bool positional = false;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--") break;
        if (word.starts_with("--")) {
            const std::string name = word.substr(0, word.find('='));
            const std::vector<std::string> known = long_options_of(*at);
            const std::string meant = suggestion(name, known);
            if (!meant.empty() && std::find(known.begin(), known.end(), name) == known.end())
                return fmt::format("longreach{} has no option {}{}", path, shown(name), meant);
            continue;
        }
        const std::vector<std::string> known = subcommands_of(*at);
        if (known.empty() || word.starts_with('-') || positional) continue;
        const auto found = std::find(known.begin(), known.end(), word);
        if (found == known.end())
            return fmt::format("longreach{} has no command {}{}", path, shown(word),
                               suggestion(word, known).empty() ? ": known are " + join(known, ", ")
                                                               : suggestion(word, known));
        at = at->get_subcommand(word);
        path += " " + word;
        positional = subcommands_of(*at).empty();
    }
    return "";
}

// The command whose arguments were being read, as it is called.
std::string command_of(const CLI::App& app) {
    std::string path = "longreach";
    const CLI::App* at = &app;
    while (!at->get_subcommands().empty()) {
        at = at->get_subcommands().front();
        path += " " + at->get_name();
    }
    return path;
}

// NaN where the text is anything but a number. The parser's own checks of a sign print the largest double.
double real(const std::string& text) {
    double value = 0;
    return CLI::detail::lexical_cast(text, value) ? value : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

Option& Option::required() {
    option_->required();
    return *this;
}
Option& Option::repeatable() {
    option_->expected(1)->take_all();
    return *this;
}
Option& Option::comma_list() {
    option_->delimiter(',');
    return *this;
}
Option& Option::token_counts() {
    option_->transform(
        [](const std::string& text) {
            const auto count = parse_token_count(text);
            return count ? std::to_string(*count) : text;  // the next check refuses other text
        },
        "", "token count");
    return *this;
}
Option& Option::show_default() {
    option_->capture_default_str();
    return *this;
}
Option& Option::in_range(int64_t lowest, int64_t highest) {
    option_->check(CLI::Range(lowest, highest));
    return *this;
}
Option& Option::in_real_range(double lowest, double highest) {
    option_->check(CLI::Range(lowest, highest));
    return *this;
}
Option& Option::positive() {
    option_->check([](const std::string& text) { return real(text) > 0 ? "" : "must be a number above 0"; },
                   "POSITIVE");
    return *this;
}
Option& Option::not_negative() {
    option_->check(
        [](const std::string& text) { return real(text) >= 0 ? "" : "must be a number of 0 or more"; },
        "NONNEGATIVE");
    return *this;
}
Option& Option::one_of(const std::vector<std::string>& words) {
    option_->check(
        [words](const std::string& word) -> std::string {
            if (std::find(words.begin(), words.end(), word) != words.end()) return "";
            return fmt::format("expected {}, got {}{}", alternatives(words), shown(word),
                               suggestion(word, words));
        },
        "{" + join(words, ",") + "}");
    line_->words[option_] = words;
    return *this;
}
Option& Option::check(std::function<std::string(const std::string&)> problem) {
    option_->check(std::move(problem), "");
    return *this;
}
Option& Option::needs(const Option& other) {
    option_->needs(other.option_);
    return *this;
}
Option& Option::excludes(const Option& other) {
    option_->excludes(other.option_);
    return *this;
}

Command Command::add(const std::string& name, const std::string& help) {
    return {*app_->add_subcommand(name, help), *line_};
}
void Command::require_command() {
    app_->require_subcommand(1);
}
template <class T>
Option Command::option(const std::string& name, T& value, const std::string& help) {
    return {*app_->add_option(name, value, help), *line_};
}
template Option Command::option(const std::string&, int&, const std::string&);
template Option Command::option(const std::string&, int64_t&, const std::string&);
template Option Command::option(const std::string&, uint64_t&, const std::string&);
template Option Command::option(const std::string&, double&, const std::string&);
template Option Command::option(const std::string&, std::string&, const std::string&);
template Option Command::option(const std::string&, std::vector<int64_t>&, const std::string&);
template Option Command::option(const std::string&, std::vector<std::string>&, const std::string&);
Option Command::option(const std::string& name, const std::function<void(const std::string&)>& take,
                       const std::string& help) {
    return {*app_->add_option_function<std::string>(name, take, help), *line_};
}
Option Command::flag(const std::string& name, bool& value, const std::string& help) {
    return {*app_->add_flag(name, value, help), *line_};
}
void Command::footer(const std::string& text) {
    app_->footer(text);
}
void Command::run(Action action) {
    app_->callback([line = line_, action = std::move(action)] { line->action = action; });
}
void Command::run(std::function<ExitCode(const CommandInfo&)> action) {
    app_->callback([line = line_, action = std::move(action)] {
        CommandInfo all = info_of(*line->program, *line);
        all.name = "longreach";  // the parser's is the path by which it was started
        line->action = [action, all = std::move(all)] { return action(all); };
    });
}

Action read_command_line(int argc, char** argv, const std::function<void(Command&)>& add_commands,
                         ExitCode& code) {
    CLI::App app(
        "longreach trains small transformers from a JSON config and measures their loss at long contexts.");
    CommandLine line{&app, {}, {}};
    Command program(app, line);
    program.require_command();
    app.set_version_flag("--version", describe(build_info()));
    app.fallthrough();  // commands take it too
    const std::function<void(const std::string&)> print_level = [](const std::string& word) {
        print_from(word == "info"      ? MessageLevel::info
                   : word == "warning" ? MessageLevel::warning
                                       : MessageLevel::error);
    };
    program
        .option("--log-level", print_level,
                "Least level of the messages that are printed: info, warning or error; log.txt has all")
        .one_of({"info", "warning", "error"});
    add_commands(program);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        std::ostringstream help;
        if (app.exit(e, help, help) == 0) {
            code = ExitCode::ok;
            print_text("{}", help.str());
            return nullptr;
        }
        code = ExitCode::usage;
        const std::string unknown = unknown_name(app, argc, argv), command = command_of(app);
        print_error(unknown.empty() ? fmt::format("{}: {}", command, e.what()) : unknown,
                    command + " --help");
        return nullptr;
    }
    return line.action;
}

void add_replace_flag(Command& command, bool& replace) {
    command.flag("--replace", replace, "Replace files that this program did not write, too");
}

void print_info(const std::string& text) {
    print_message(MessageLevel::info, text);
}

void print_warnings(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) print_message(MessageLevel::warning, line);
}

}  // namespace longreach::commands
