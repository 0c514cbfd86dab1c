#include "commands/laws_markdown.h"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"
#include "kernels/law_program.h"
#include "law/angle.h"
#include "law/language.h"
#include "law/library.h"

namespace longreach::commands {

namespace {

using Row = std::vector<std::string>;

std::string line_of(const Row& cells, const std::vector<size_t>& widths) {
    std::string line = "|";
    for (size_t i = 0; i < cells.size(); ++i) line += fmt::format(" {:<{}} |", cells[i], widths[i]);
    return line + "\n";
}

// aligned: columns of one width, but for the last.
std::string table_of(const std::vector<Row>& rows, bool aligned) {
    std::vector<size_t> widths(rows[0].size(), 0);
    for (size_t i = 0; aligned && i + 1 < widths.size(); ++i)
        for (const Row& row : rows) widths[i] = std::max(widths[i], row[i].size());
    std::string text = line_of(rows[0], widths) + "|";
    for (size_t i = 0; i < widths.size(); ++i) text += "---|";
    text += "\n";
    for (size_t r = 1; r < rows.size(); ++r) text += line_of(rows[r], widths);
    return text;
}

std::string code(std::string_view text) {
    return fmt::format("`{}`", text);
}

std::string keys_of(std::string_view sources) {
    std::string text;
    for (size_t at = 0; at < sources.size();) {
        const size_t end = std::min(sources.find(' ', at), sources.size());
        text += fmt::format("{}[{}]", text.empty() ? "" : " ", sources.substr(at, end - at));
        at = end + 1;
    }
    return text;
}

std::string parameters_of(const law::NamedLaw& named) {
    static constexpr const char* sharing[] = {"", ", learned, one for the model", ", learned by layout",
                                              ", learned by layer", ", learned by head"};
    std::vector<std::string> all;
    for (const law::Parameter& p : named.parameters) {
        std::string text = fmt::format("`{} = {}`", p.name, p.init);
        if (p.size > 1) text += fmt::format(", {} of them", p.size);
        all.push_back(text + sharing[static_cast<size_t>(p.learn)]);
    }
    for (const law::Term& t : named.terms)
        all.push_back(fmt::format("`{} = {}`, of each token", t.name, t.formula));
    return join(all, "; ");
}

std::string definitions_of(const law::NamedAngle& named) {
    std::vector<std::string> all;
    for (const law::Definition& d : named.text.definitions)
        all.push_back(fmt::format("`{} = {}`", d.name, d.formula));
    return join(all, "; ");
}

// Every formula of an angle, with the name of its part if there are several.
std::string parts_of(const law::AngleText& text) {
    std::string all = code(text.near);
    if (!text.far_from.empty())
        all += fmt::format("; from distance `{}` on `{}` for the query, `{}` for the key", text.far_from,
                           text.far_query, text.far_key);
    if (!text.growth.empty()) all += fmt::format("; growth `{}`", text.growth);
    return all;
}

std::string angles(bool trains) {
    std::vector<Row> rows{
        {trains ? "angle" : "change of an angle", "formula", "definitions", "meaning", "source"}};
    for (const law::NamedAngle& named : law::angle_library())
        if (named.trains == trains)
            rows.push_back({code(named.name), parts_of(named.text), definitions_of(named), named.what,
                            keys_of(named.sources)});
    return table_of(rows, false);
}

std::string names() {
    struct Place {
        const char* name;
        std::span<const law::Variable> variables;
    };
    const Place places[] = {{"score", law::score_variables},
                            {"init", law::init_variables},
                            {"term", law::term_variables},
                            {"angle", law::angle_variables},
                            {"eval.angle", law::changed_angle_variables}};
    std::vector<Row> rows{{"name"}};
    for (const Place& place : places) rows[0].push_back(place.name);
    rows[0].push_back("meaning");
    for (size_t i = 0; i < law::variable_count; ++i) {
        const auto variable = static_cast<law::Variable>(i);
        const law::Meaning meaning = law::meaning_of(variable);
        Row row{code(meaning.written)};
        for (const Place& place : places)
            row.push_back(std::count(place.variables.begin(), place.variables.end(), variable) ? "yes" : "");
        row.emplace_back(meaning.value);
        rows.push_back(std::move(row));
    }
    return table_of(rows, true);
}

// Functions from first to last.
std::string functions(const char* heading, law::Function first, law::Function last) {
    std::vector<Row> rows{{heading, "value"}};
    for (auto f = static_cast<size_t>(first); f <= static_cast<size_t>(last); ++f) {
        const law::Meaning meaning = law::meaning_of(static_cast<law::Function>(f));
        rows.push_back({code(meaning.written), std::string(meaning.value)});
    }
    return table_of(rows, true);
}

std::string constants() {
    std::vector<Row> rows{{"constant", "value"}};
    for (const law::Constant& c : law::named_constants)
        rows.push_back({code(c.name), fmt::format("{:.10g}", c.value)});
    return table_of(rows, true);
}

std::string limits() {
    const std::vector<Row> rows{
        {"limit", "at most"},
        {"bytes of a formula", fmt::format("{}", law::longest_formula)},
        {"parentheses, calls, signs and powers inside one another", fmt::format("{}", law::deepest_nesting)},
        {"letters of a parameter's name", fmt::format("{}", law::longest_name)},
        {"of a part that learns: numbers and operations", fmt::format("{}", LawProgram::longest)},
        {"of a part that learns: different numbers", fmt::format("{}", LawProgram::most_numbers)},
        {"of a part that learns: intermediate results", fmt::format("{}", LawProgram::deepest)},
        {"of a part that learns: parameters", fmt::format("{}", LawProgram::most_inputs)},
        {"of a part that learns: terms", fmt::format("{}", LawProgram::most_inputs)}};
    return table_of(rows, true);
}

}  // namespace

std::string library_tables() {
    std::vector<Row> laws{{"score", "formula", "parameters", "meaning", "source"}};
    for (const law::NamedLaw& named : law::library())
        laws.push_back({code(named.name), code(named.formula), parameters_of(named), named.what,
                        keys_of(named.sources)});
    return table_of(laws, false) + "\n" + angles(true) + "\n" + angles(false);
}

std::string language_tables() {
    using law::Function;
    return names() + "\n" + constants() + "\n" + functions("operator", Function::add, Function::not_equal) +
           "\n" + functions("function", Function::where, Function::lookup) + "\n" + limits();
}

}  // namespace longreach::commands
