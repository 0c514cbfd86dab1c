#include "commands/command_line.h"

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"

namespace longreach::commands {

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

}  // namespace

void take_token_counts(CLI::Option& option) {
    option.transform(
        [](std::string text) {
            const auto count = parse_token_count(text);
            return count ? std::to_string(*count) : text;  // what is no count is for the next check to refuse
        },
        "", "token count");
}

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

void print_warnings(const std::vector<std::string>& lines) {
    for (const std::string& line : lines) fmt::print(stderr, "warning: {}\n", line);
}

}  // namespace longreach::commands
