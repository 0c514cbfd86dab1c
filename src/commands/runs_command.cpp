// longreach runs: the runs of a directory, with progress and losses.
#include "base/terminal.h"
#include "base/text.h"
#include "base/units.h"
#include "commands/commands.h"
#include "report/run_list.h"
#include "table/text_table.h"

namespace longreach::commands {

namespace {

ExitCode runs(const std::string& directory) {
    const std::vector<report::RunSummary> found = report::list_runs(directory);
    if (found.empty()) {
        print_text("{}: no runs\n", one_line(directory));
        return ExitCode::ok;
    }
    std::vector<table::TextLine> lines{{"run", "state", "step", "loss", "validation", "at length", "age"}};
    const auto number = [](double v) { return std::isnan(v) ? std::string("-") : fmt::format("{:.4f}", v); };
    for (const report::RunSummary& run : found) {
        const bool bad = run.state == report::RunState::failed || run.state == report::RunState::damaged;
        lines.push_back({run.name,
                         {report::name_of(run.state), bad || run.state == report::RunState::running},
                         run.steps > 0 ? fmt::format("{}/{}", run.step, run.steps) : std::to_string(run.step),
                         number(run.loss),
                         number(run.validation),
                         run.length > 0 ? std::to_string(run.length) : "-",
                         std::isnan(run.age) ? "-" : human_duration(run.age)});
    }
    print_text("{}", table::text_table(lines, table::Terminal::standard_output()));
    for (const report::RunSummary& run : found)
        if (!run.problem.empty()) print_text("{}: {}\n", one_line(run.name), one_line(run.problem));
    return ExitCode::ok;
}

}  // namespace

void add_runs_command(Command& program) {
    auto directory = std::make_shared<std::string>("runs");
    Command command = program.add(
        "runs", "List runs: state, steps, last training loss, last validation at the longest length");
    command.option("directory", *directory, "A directory of runs or sweeps, a sweep, or one run")
        .show_default();
    command.run([directory] { return runs(*directory); });
}

}  // namespace longreach::commands
