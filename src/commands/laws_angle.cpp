#include "commands/laws_angle.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "base/error.h"
#include "base/terminal.h"
#include "table/data_table.h"

namespace longreach::commands {

namespace {

law::Angle bind(const law::AngleText& text, const law::AngleNumbers& numbers) {
    int64_t blamed = 0;
    try {
        return law::bind_angle(text, numbers, blamed);
    } catch (const law::FormulaError& e) {
        const bool definition = blamed >= 0;
        const auto i = static_cast<size_t>(definition ? blamed : -1 - blamed);
        const std::string* parts[] = {&text.near, &text.far_query, &text.far_key, &text.far_from,
                                      &text.growth};
        const std::string& formula = definition ? text.definitions[i].formula : *parts[i];
        throw Error(ExitCode::usage,
                    fmt::format("{}: {}\n{}", definition ? "parameter " + text.definitions[i].name : "angle",
                                e.what(), law::underlined(formula, e)),
                    "longreach laws lists angles with a name");
    }
}

// Tokens in which a pair turns once, near position 0.
table::Cell tokens_per_turn(const law::Formula& angle) {
    law::Values one;
    one[law::Variable::p] = 1;
    const double turn = law::evaluate(angle, one) - law::evaluate(angle, {});
    return table::significant_cell(turn == 0 ? NAN : 2 * std::numbers::pi / std::abs(turn));
}

// Distance near position 0 over which the product of a pair fades by a factor of e.
table::Cell tokens_to_fade(const law::Formula& growth) {
    law::Values one;
    one[law::Variable::p] = 1;
    const double fade = law::evaluate(growth, {}) - law::evaluate(growth, one);
    return table::significant_cell(fade > 0 ? 1 / fade : NAN);
}

}  // namespace

void list_angles(const table::Terminal& terminal) {
    print_text(
        "\nangles with a name, of channel pair m at position p; theta, R, T: of a change to a trained "
        "angle\n");
    for (const law::NamedAngle& named : law::angle_library())
        print_text("\n{}  {}\n    {}\n", terminal.strong(named.name), named.what, named.text.near);
}

void show_angle(const AngleStudy& study, const table::Terminal& terminal) {
    const law::NamedAngle* named = law::find_angle(study.angle);
    law::AngleText text = named != nullptr ? named->text : law::AngleText{.near = study.angle};
    law::AngleText trained = law::find_angle("rope")->text;
    bool changes = named != nullptr && !named->trains;
    for (const char* variable : {"theta", "T", "R"})
        changes = changes || (named == nullptr && law::mentions(text.near, variable));
    for (const law::Definition& given : study.definitions) {
        bool known = false;
        for (law::AngleText* of : {&text, changes ? &trained : &text})
            for (law::Definition& d : of->definitions)
                if (d.name == given.name) d.formula = given.formula, known = true;
        if (!known) text.definitions.push_back(given);
    }

    law::AngleNumbers numbers{.head_dim = study.head_dim, .train_context = study.train_context};
    const law::Angle before = bind(changes ? trained : text, numbers);
    law::Angle after = before;
    if (changes) {
        numbers.length = study.length;
        numbers.pairs = before.near.size();
        numbers.theta = law::frequencies(before.near).value();
        for (law::Definition& d : text.definitions)
            if (d.name == "fall" && numbers.pairs > 1)
                d.formula = fmt::format("{}", static_cast<double>(numbers.pairs - 1) /
                                                  std::log(numbers.theta.front() / numbers.theta.back()));
        after = bind(text, numbers);
    }

    if (named != nullptr) print_text("{}: {}\n", named->name, named->what);
    print_text("  angle = {}\n", text.near);
    if (!text.far_from.empty())
        print_text("  pairs at distance {} or more: query {}, key {}\n", text.far_from, text.far_query,
                   text.far_key);
    if (!text.growth.empty()) print_text("  growth = {}\n", text.growth);
    for (const law::Definition& d : text.definitions) print_text("  {} = {}\n", d.name, d.formula);
    if (named != nullptr && *named->sources)
        print_text("  source: {} (configs/references.bib)\n", named->sources);

    table::DataTable table{"angle",
                           changes ? fmt::format("tokens per turn of rope trained at L = {}, and at T = {}",
                                                 study.train_context, study.length)
                                   : std::string("tokens per turn"),
                           {"pair", changes ? "trained" : "tokens"},
                           {}};
    if (changes) table.header.push_back("changed");
    if (!before.growth.empty()) table.header.push_back("tokens to 1/e");
    for (size_t m = 0; m < before.near.size(); ++m) {
        table.rows.push_back({table::count_cell(static_cast<int64_t>(m)), tokens_per_turn(before.near[m])});
        if (changes) table.rows.back().push_back(tokens_per_turn(after.near[m]));
        if (!before.growth.empty()) table.rows.back().push_back(tokens_to_fade(before.growth[m]));
    }
    print_text("\n{}\n", table::text_table(table, terminal));
}

}  // namespace longreach::commands
