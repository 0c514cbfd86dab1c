// longreach report: runs side by side, or a sweep over its seeds.
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "report/sweep_results.h"
#include "report/terminal.h"

namespace longreach {

void add_report_command(CLI::App& app, Action& action) {
    auto paths = std::make_shared<std::vector<std::string>>();
    CLI::App* command = app.add_subcommand("report", "Loss by context length of runs, side by side");
    command
        ->add_option("runs", *paths,
                     "Run directories, or directories holding a val.csv; or one sweep directory")
        ->required();
    command->callback([paths, &action] {
        action = [paths] {
            std::vector<RunResults> runs;
            for (const std::string& path : *paths) {
                if (!is_sweep_directory(path)) continue;
                require(paths->size() == 1, ExitCode::usage,
                        "{} is a sweep: it is reported by itself, without other runs", path);
                fmt::print("{}", sweep_tables(read_sweep(path)));
                return ExitCode::ok;
            }
            for (const std::string& path : *paths) runs.push_back(read_results(path));
            fmt::print("{}\n{}", comparison_table(runs), comparison_chart(runs));
            return ExitCode::ok;
        };
    });
}

}  // namespace longreach
