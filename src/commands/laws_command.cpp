// longreach laws: the library of score laws, and what any law does, before anything is trained.
#include "base/terminal.h"
#include "base/text.h"
#include "base/units.h"
#include "commands/commands.h"
#include "commands/laws_angle.h"
#include "commands/laws_gaps.h"
#include "commands/laws_markdown.h"
#include "io/file.h"
#include "io/result_file.h"
#include "law/law_meant.h"
#include "law/library.h"
#include "theory/law_study.h"

namespace longreach::commands {

namespace {

struct LawsArguments {
    std::vector<std::string> stages, parameters, terms;
    std::vector<int64_t> heads = {0}, ns = {1, 4, 16, 64, 256, 1024, 4096, 16384, 65536};
    law::ModelNumbers model;
    int64_t samples = 20;
    uint64_t seed = 1;
    std::string angle, from, out;
    bool replace = false, language = false, markdown = false;
};

std::string sharing_of(const law::Parameter& p) {
    switch (p.learn) {
        case law::Sharing::fixed:
            return "fixed";
        case law::Sharing::model:
            return "learned, one for the model";
        case law::Sharing::layout:
            return "learned, one per layout";
        case law::Sharing::layer:
            return "learned, one per layer";
        case law::Sharing::head:
            return "learned, one per head";
    }
    return "";
}

void list(const table::Terminal& terminal) {
    print_text("score laws with a name; z is s_base <q, k>, n keys are counted, t is the distance\n");
    for (const law::NamedLaw& named : law::library())
        print_text("\n{}  {}\n    {}\n", terminal.strong(named.name), named.what, named.formula);
    list_angles(terminal);
    print_text(
        "\nlongreach laws NAME or FORMULA shows one of them, longreach laws --angle FORMULA an angle;\n"
        "longreach laws --language has the names and functions of formulas.\n");
}

// NAME=VALUE
std::pair<std::string, std::string> parameter_of(const std::string& text) {
    const size_t equals = text.find('=');
    require(equals != std::string::npos && equals > 0, ExitCode::usage, "--param {}: write NAME=VALUE",
            shown(text));
    return {text.substr(0, equals), text.substr(equals + 1)};
}

// The parameters of all stages, with the values given as NAME=INIT; a name that no stage has is the user's own.
std::vector<law::Parameter> parameters_of(const LawsArguments& options) {
    std::vector<law::Parameter> all;
    for (const std::string& stage : options.stages) {
        const law::NamedLaw* named = law::find_law(stage);
        if (named == nullptr) continue;
        for (const law::Parameter& p : named->parameters)
            if (std::none_of(all.begin(), all.end(),
                             [&](const law::Parameter& q) { return q.name == p.name; }))
                all.push_back(p);
    }
    for (const std::string& text : options.parameters) {
        const auto parameter = parameter_of(text);
        const std::string& name = parameter.first;
        const std::string problem = law::name_problem(name);
        require(problem.empty(), ExitCode::usage, "--param {}: {}", shown(text), problem);
        const auto it =
            std::find_if(all.begin(), all.end(), [&](const law::Parameter& p) { return p.name == name; });
        (it == all.end() ? all.emplace_back(law::Parameter{.name = name}) : *it).init = parameter.second;
    }
    return all;
}

// The terms of all stages and those given as NAME=FORMULA, which may use every parameter.
std::vector<law::Term> terms_of(const LawsArguments& options, size_t parameters) {
    std::vector<law::Term> all;
    for (const std::string& stage : options.stages)
        if (const law::NamedLaw* named = law::find_law(stage))
            all.insert(all.end(), named->terms.begin(), named->terms.end());
    for (const std::string& text : options.terms) {
        const size_t equals = text.find('=');
        require(equals != std::string::npos && equals > 0, ExitCode::usage, "--term {}: write NAME=FORMULA",
                shown(text));
        const std::string name = text.substr(0, equals);
        const std::string problem = law::name_problem(name);
        require(problem.empty(), ExitCode::usage, "--term {}: {}", shown(text), problem);
        const auto it =
            std::find_if(all.begin(), all.end(), [&](const law::Term& t) { return t.name == name; });
        (it == all.end() ? all.emplace_back(law::Term{.name = name, .formula = ""}) : *it).formula =
            text.substr(equals + 1);
    }
    for (law::Term& term : all)
        for (size_t i = 0; i < parameters; ++i) term.parameters.push_back(i);
    return all;
}

law::BoundLaw bound_law(const LawsArguments& options, const std::vector<law::Parameter>& parameters) {
    std::vector<std::string> formulas;
    for (const std::string& stage : options.stages) {
        const law::NamedLaw* named = law::find_law(stage);
        formulas.push_back(named != nullptr ? named->formula : stage);
    }
    const std::vector<law::Term> terms = terms_of(options, parameters.size());
    int64_t blamed = 0;
    try {
        return {law::stages_of(formulas, parameters.size()), parameters, options.model, blamed, terms};
    } catch (const law::FormulaError& e) {
        const bool of_init = blamed < 0;
        const auto i = static_cast<size_t>(of_init ? -1 - blamed : blamed);
        const bool of_term = !of_init && i >= formulas.size();
        const std::string text = of_init   ? parameters[i].init
                                 : of_term ? terms[i - formulas.size()].formula
                                           : formulas[i];
        // A single word may have been meant as a name.
        if (const std::string meant = of_init || of_term ? "" : law::law_meant(text); !meant.empty())
            throw Error(ExitCode::usage, fmt::format("no law is named {}: did you mean {}?", text, meant),
                        "longreach laws lists those with a name");
        throw Error(ExitCode::usage,
                    fmt::format("{}: {}\n{}",
                                of_init   ? "parameter " + parameters[i].name
                                : of_term ? "term " + terms[i - formulas.size()].name
                                          : "law",
                                e.what(), law::underlined(text, e)),
                    of_init ? "" : "longreach laws lists those with a name");
    }
}

// Refuses what would be shown as nan or inf, and parameters of the command line that nothing depends on.
void check_shown(const LawsArguments& options, const std::vector<law::Parameter>& parameters,
                 const law::BoundLaw& law) {
    const int64_t longest = options.ns.back();
    const std::string problem = law.first_not_finite(longest);
    require(problem.empty(), ExitCode::usage,
            "law: {}; scores and derivatives must be finite in f32 at every n and t up to {}", problem,
            longest);
    for (const std::string& text : options.parameters) {
        const std::string name = text.substr(0, text.find('='));
        const auto named = [&](const law::Parameter& p) { return p.name == name; };
        const auto i = std::find_if(parameters.begin(), parameters.end(), named) - parameters.begin();
        const std::string reason = law.without_effect(static_cast<size_t>(i), longest);
        require(reason.empty(), ExitCode::usage, "--param {}: has no effect: {}", shown(text), reason);
    }
}

// The terms that fade channels, of all formulas; one that is not among the terms is refused.
std::vector<std::string> fading_terms(const LawsArguments& options, const law::BoundLaw& law) {
    std::vector<std::string> all;
    for (const std::string& stage : options.stages) {
        const law::NamedLaw* named = law::find_law(stage);
        for (const std::string& name : law::faded_by(named != nullptr ? named->formula : stage)) {
            const bool known = std::any_of(law.terms().begin(), law.terms().end(),
                                           [&](const law::Term& t) { return t.name == name; });
            require(known, ExitCode::usage,
                    "law: z_between takes the name of a term: --term \"{}=...\" is missing", name);
            all.push_back(name);
        }
    }
    return all;
}

void describe(const LawsArguments& options, const std::vector<law::Parameter>& parameters,
              const law::BoundLaw& law) {
    for (const std::string& stage : options.stages) {
        const law::NamedLaw* named = law::find_law(stage);
        if (named == nullptr) {
            print_text("score = {}\n", stage);
            continue;
        }
        print_text("{}: {}\n  score = {}\n", named->name, named->what, named->formula);
        if (*named->sources) print_text("  source: {} (configs/references.bib)\n", named->sources);
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
        const law::Parameter& p = parameters[i];
        std::string text = fmt::format("  {} = {}", p.name, p.init);
        if (const std::string value = fmt::format("{:.6g}", law.value(0, i)); value != p.init)
            text += fmt::format(" = {}{}", value, options.model.heads > 1 ? " in head 0" : "");
        if (p.size > 1) text += fmt::format(", {} of them", p.size);
        print_text("{}; {}\n", text, sharing_of(p));
    }
    const std::vector<std::string> fading = fading_terms(options, law);
    for (const law::Term& t : law.terms()) {
        const bool by_channel = std::find(fading.begin(), fading.end(), t.name) != fading.end();
        print_text("  {} = {}, x_{} = <w, token> + b with a w and a b for every {}; shown at x = {}\n",
                   t.name, t.formula, t.name, by_channel ? "channel of every head" : "head", t.init);
    }
    if (!fading.empty())
        print_text(
            "  z_between({0}) = z, whose channels fade by the sum of their {0} over the tokens after the key up to the "
            "query\n",
            fading.front());
    const law::Law& l = law.law();
    print_text("\nthe kernels read\n  {} = {}{}\n  gain(t) = {}\n  bias(t) = {}\n",
               l.row_square ? "row_square(n)" : "row(n)", law.written(l.row_square ? l.row_square : l.row),
               l.of_dot ? ", a factor of dot" : "", law.written(l.gain), law.written(l.bias));
    if (!law.terms().empty())
        print_text("  between(token) = {}\n  key(token) = {}\n", law.written(l.between), law.written(l.key));
    if (l.softcap > 0) print_text("  softcap = {}\n", l.softcap);
    for (const law::Formula& summand : l.cancelled)
        print_text("  without {}: equal for all keys of a query, it cancels in the softmax\n",
                   law.written(summand));
}

void save(const LawsArguments& options, const std::vector<table::DataTable>& tables,
          const std::vector<plot::LineChart>& charts, const std::vector<plot::SeriesStyle>& styles) {
    if (options.out.empty()) return;
    io::make_directories(options.out);
    for (const table::DataTable& table : tables)
        io::write_result(io::join_path(options.out, table.name + ".csv"), table::csv(table), options.replace);
    for (const plot::LineChart& chart : charts)
        io::write_result(io::join_path(options.out, "law_" + chart.id + ".svg"),
                         plot::standalone_svg(chart, styles), options.replace);
    print_text("files in {}\n", options.out);
}

// A line of eight heights over the values, low to high: at most `columns` of them, evenly chosen; 0: all.
std::string sparkline(const plot::ChartLine& line, size_t columns) {
    static constexpr const char* bars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double low = INFINITY, high = -INFINITY;
    for (const plot::ChartPoint& p : line.points) {
        low = std::min(low, p.y);
        high = std::max(high, p.y);
    }
    std::string text;
    const size_t points = line.points.size(), shown = columns > 0 ? std::min(columns, points) : points;
    for (size_t i = 0; i < shown; ++i) {
        const double y = line.points[i * points / shown].y;
        text += bars[static_cast<size_t>(std::min(7.0, high > low ? (y - low) / (high - low) * 8 : 0))];
    }
    return fmt::format("{}  {:.4g} to {:.4g}", text, low + 0.0, high + 0.0);  // not -0
}

AngleStudy angle_study(const LawsArguments& options) {
    AngleStudy study{.angle = options.angle,
                     .definitions = {},
                     .head_dim = options.model.head_dim,
                     .train_context = options.model.train_context,
                     .length = options.ns.back()};
    for (const std::string& text : options.parameters) {
        const auto [name, formula] = parameter_of(text);
        study.definitions.push_back({name, formula});
    }
    return study;
}

ExitCode laws(LawsArguments options) {
    if (options.language || options.markdown) {
        fmt::print("{}", options.language ? language_tables() : library_tables());
        return ExitCode::ok;
    }
    const table::Terminal terminal = table::Terminal::standard_output();
    if (!options.from.empty()) {
        const GapLaws fitted = gap_laws(options.from);
        show_gap_laws(fitted, terminal);
        save(options, {fitted.table}, {}, {});
        return ExitCode::ok;
    }
    if (options.stages.size() == 1 && options.angle.empty() && law::find_angle(options.stages[0]) != nullptr)
        std::swap(options.angle, options.stages[0]);
    if (options.stages.empty() && options.angle.empty()) {
        list(terminal);
        return ExitCode::ok;
    }
    std::sort(options.ns.begin(), options.ns.end());
    if (!options.angle.empty()) {
        show_angle(angle_study(options), terminal);
        return ExitCode::ok;
    }
    for (const int64_t h : options.heads)
        require(h < options.model.heads, ExitCode::usage, "--head {}: the model has {} heads, from 0", h,
                options.model.heads);
    const std::vector<law::Parameter> parameters = parameters_of(options);
    const law::BoundLaw law = bound_law(options, parameters);
    check_shown(options, parameters, law);
    describe(options, parameters, law);

    const theory::LawStudy study{
        .heads = options.heads, .ns = options.ns, .samples = options.samples, .seed = options.seed};
    const std::vector<plot::LineChart> charts = theory::law_charts(law, study);
    std::vector<plot::SeriesStyle> styles;
    for (size_t i = 0; i < options.heads.size(); ++i)
        styles.push_back(plot::series_style(fmt::format("head {}", options.heads[i]), i));
    constexpr size_t beside = 36;  // the head's name, and the lowest and the highest value
    const auto width = static_cast<size_t>(terminal.width);
    const size_t columns = width > 0 ? std::max(width, beside + 8) - beside : 0;
    for (const plot::LineChart& chart : charts) {
        print_text("\n{}, over {} = 1 to {} (logarithmic)\n", chart.y_label, chart.x_label,
                   options.ns.back());
        for (const plot::ChartLine& line : chart.lines)
            print_text("  {} {}\n", styles[line.series].name, sparkline(line, columns));
    }
    const std::vector<table::DataTable> tables = theory::law_tables(law, study);
    for (const table::DataTable& table : tables) print_text("\n{}\n", table::text_table(table, terminal));
    save(options, tables, charts, styles);
    return ExitCode::ok;
}

}  // namespace

void add_laws_command(Command& program) {
    auto options = std::make_shared<LawsArguments>();
    Command command =
        program.add("laws", "List score laws, or show what a law or a formula does to attention");
    const Option of_law =
        command.option("law", options->stages, "A name or a formula; several are applied in order");
    const Option of_angle =
        command.option("--angle", options->angle, "An angle instead: a name or a formula of p, m, d and L");
    const Option of_language = command
                                   .flag("--language", options->language,
                                         "Print the names, operators, functions and limits of formulas")
                                   .excludes(of_law)
                                   .excludes(of_angle);
    command
        .option(
            "--from", options->from,
            "A run directory or RUN/eval/LABEL: how its scores must grow with the number of keys, by the gap "
            "counts of longreach probe")
        .excludes(of_law)
        .excludes(of_angle)
        .excludes(of_language);
    command.flag("--markdown", options->markdown, "Print laws and angles with a name as Markdown tables")
        .excludes(of_law)
        .excludes(of_angle)
        .excludes(of_language);
    command.option("--param", options->parameters, "A parameter of the formula and its value: --param tau=10")
        .repeatable();
    command.option("--term", options->terms, "A term of the formula: --term 'f=log_sigmoid(x)'").repeatable();
    command.option("--head", options->heads, "Heads to show, from 0")
        .comma_list()
        .in_range(int64_t{0}, int64_t{1023});
    command.option("--heads", options->model.heads, "Heads of the model, H").show_default().in_range(1, 1024);
    command.option("--layer", options->model.layer, "The layer, l, from 0").show_default().in_range(0, 1023);
    command.option("--layers", options->model.layers, "Layers of the model").show_default().in_range(1, 1024);
    command.option("--head-dim", options->model.head_dim, "Channels of a head, d")
        .show_default()
        .in_range(2, 4096);
    command.option("--context", options->model.train_context, "Context trained on, L")
        .token_counts()
        .show_default()
        .in_range(2, int64_t{1} << 24);
    command.option("--n", options->ns, "Numbers of keys (1 to 65536)")
        .comma_list()
        .token_counts()
        .in_range(int64_t{1}, int64_t{1} << 24);
    command.option("--samples", options->samples, "Queries to draw for each number of keys")
        .show_default()
        .in_range(int64_t{2}, int64_t{1} << 20);
    command.option("--seed", options->seed, "Seed of the scores").show_default();
    command.option("--out", options->out, "Directory for CSV files and SVG charts");
    add_replace_flag(command, options->replace);
    command.run([options] { return laws(*options); });
}

}  // namespace longreach::commands
