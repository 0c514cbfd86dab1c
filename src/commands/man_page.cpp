#include "commands/man_page.h"

#include "base/text.h"
#include "config/help.h"

namespace longreach::commands {

namespace {

using config::FieldInfo;

// Text as roff prints it: - stays what can be copied, and no line is a request.
std::string roff(std::string_view text) {
    std::string out;
    bool begins = true;
    for (const char c : text) {
        if (begins && (c == '.' || c == '\'')) out += "\\&";
        begins = c == '\n';
        if (c == '\\')
            out += "\\e";
        else if (c == '-')
            out += "\\-";
        else if (c == '\'')
            out += "\\(aq";
        else if (c == '^')
            out += "\\(ha";
        else if (c == '~')
            out += "\\(ti";
        else if (c == '`')
            out += "\\(ga";
        else
            out += c;
    }
    return out;
}

std::string bold(std::string_view text) {
    return "\\fB" + roff(text) + "\\fR";
}
std::string italic(std::string_view text) {
    return "\\fI" + roff(text) + "\\fR";
}
// One argument of a macro.
std::string macro_word(std::string_view text) {
    std::string out = roff(text);
    for (size_t at = 0; (at = out.find('"', at)) != out.npos; at += 4) out.replace(at, 1, "\\(dq");
    return "\"" + out + "\"";
}

std::string sentence(const std::string& text) {
    return roff(text) + (text.ends_with('.') ? "\n" : ".\n");
}

std::string page_name(const std::string& topic) {
    return topic.empty() ? "longreach" : "longreach-" + topic;
}

std::string head(const ManPage& page, const std::string& version, const std::string& purpose) {
    std::string title = page_name(page.topic);
    for (char& c : title)
        if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    return fmt::format(".TH {} {} \"\" {}\n.SH NAME\n{} \\- {}\n", macro_word(title), page.section,
                       macro_word("longreach " + version), roff(page_name(page.topic)), roff(purpose));
}

void option_entry(const OptionInfo& option, std::string& out) {
    out += ".TP\n";
    for (size_t i = 0; i < option.names.size(); ++i)
        out += (i == 0 ? "" : ", ") + (option.argument ? italic(option.names[i]) : bold(option.names[i]));
    if (!option.argument && !option.type.empty()) out += " " + italic(option.type);
    out += "\n" + sentence(option.help);
    if (!option.words.empty()) out += fmt::format("One of {}.\n", roff(join(option.words, ", ")));
    if (!option.rule.empty()) out += fmt::format("Value: {}.\n", roff(option.rule));
    if (!option.initial.empty()) out += fmt::format("Default: {}.\n", roff(option.initial));
    if (option.required && !option.argument) out += "Required.\n";
    if (option.repeatable) out += "May be repeated.\n";
}

void options_of(const CommandInfo& command, std::string& out) {
    for (const bool arguments : {true, false})
        for (const OptionInfo& option : command.options)
            if (option.argument == arguments) option_entry(option, out);
}

std::string synopsis(const std::string& path, const CommandInfo& command) {
    std::string out = bold(path);
    if (!command.commands.empty()) return out + " " + italic("COMMAND") + " ...\n";
    out += " [" + italic("OPTIONS") + "]";
    for (const OptionInfo& option : command.options) {
        if (!option.argument && !option.required) continue;
        std::string word = option.argument ? italic(option.names.back())
                                           : bold(option.names.back()) + " " + italic(option.type);
        if (option.repeatable) word += "...";
        out += option.required ? " " + word : " [" + word + "]";
    }
    return out + "\n";
}

ManPage command_page(const CommandInfo& command, const std::string& version) {
    ManPage page{command.name, 1, ""};
    const std::string path = "longreach " + command.name;
    std::string& out = page.text;
    out = head(page, version, command.help) + ".SH SYNOPSIS\n";
    if (command.commands.empty()) out += synopsis(path, command);
    for (const CommandInfo& part : command.commands)
        out += (&part == &command.commands.front() ? "" : ".br\n") + synopsis(path + " " + part.name, part);
    out += ".SH OPTIONS\n";
    options_of(command, out);
    if (!command.commands.empty()) out += ".SH COMMANDS\n";
    for (const CommandInfo& part : command.commands) {
        out += fmt::format(".SS {}\n{}", macro_word(path + " " + part.name), sentence(part.help));
        options_of(part, out);
    }
    if (!command.footer.empty()) out += fmt::format(".SH NOTES\n.nf\n{}\n.fi\n", roff(command.footer));
    out += ".SH SEE ALSO\n.BR longreach (1),\n.BR longreach\\-fields (5)\n";
    return page;
}

ManPage program_page(const CommandInfo& program, const std::string& version) {
    ManPage page;
    std::string& out = page.text;
    const size_t verb = program.help.find(' ') + 1;  // after "longreach"; the last character is a full stop
    out = head(page, version, program.help.substr(verb, program.help.size() - verb - 1)) + ".SH SYNOPSIS\n" +
          synopsis("longreach", program);
    out += ".SH COMMANDS\n";
    for (const CommandInfo& command : program.commands)
        out += fmt::format(".TP\n.BR {} (1)\n{}", roff(page_name(command.name)), sentence(command.help));
    out += ".SH OPTIONS\nEvery command takes them, too.\n";
    options_of(program, out);
    out +=
        ".SH FILES\nNext to the directory\n.I bin\nin which the program is installed:\n.TP\n.I share/longreach/configs\nConfigs to begin with.\n.TP\n"
        ".I share/doc/longreach\nDocuments: formulas, formats of files, results, exit codes.\n.TP\n"
        ".I lib/longreach\nModules that the program opens on demand.\n"
        ".SH SEE ALSO\n.BR longreach\\-fields (5)\n";
    return page;
}

// What `config explain` says of a field, and its choices.
void field_entry(const FieldInfo& config, const FieldInfo& field, std::string& out) {
    const std::string explained = config::explain(config, field.path);
    out += ".TP\n" + bold(field.path) + "\n";
    size_t at =
        explained.find('\n') + 1;  // after the path: help, type and default, on resume; then the choices
    const int lines = field.help.empty() ? 2 : 3;
    for (int line = 0; line < lines; ++line) {
        const size_t end = explained.find('\n', at);
        out += (line == 0 ? "" : ".br\n") + roff(std::string_view(explained).substr(at + 4, end - at - 4)) +
               "\n";
        at = end + 1;
    }
    for (const FieldInfo::Choice& choice : field.choices)
        if (!choice.help.empty()) out += fmt::format(".br\n{}: {}\n", italic(choice.name), roff(choice.help));
}

void field_section(const FieldInfo& config, const FieldInfo& section, std::string& out) {
    bool begun = false;
    for (const FieldInfo& field : section.fields) {
        if (!config::holds_value(field)) continue;
        if (!begun)
            out += fmt::format(".SH {}\n", macro_word(section.path.empty() ? "fields" : section.path));
        if (!begun && !section.help.empty()) out += sentence(section.help);
        begun = true;
        field_entry(config, field, out);
    }
    for (const FieldInfo& field : section.fields)
        if (!config::holds_value(field)) field_section(config, field, out);
}

ManPage fields_page(const FieldInfo& config, const std::string& version) {
    ManPage page{"fields", 5, ""};
    page.text = head(page, version, "fields of the JSON file that longreach train reads");
    field_section(config, config, page.text);
    page.text += ".SH SEE ALSO\n.BR longreach\\-train (1),\n.BR longreach\\-config (1)\n";
    return page;
}

}  // namespace

std::string ManPage::file() const {
    return fmt::format("{}.{}", page_name(topic), section);
}

std::vector<ManPage> man_pages(const CommandInfo& program, const FieldInfo& config,
                               const std::string& version) {
    std::vector<ManPage> pages{program_page(program, version)};
    for (const CommandInfo& command : program.commands) pages.push_back(command_page(command, version));
    pages.push_back(fields_page(config, version));
    return pages;
}

}  // namespace longreach::commands
