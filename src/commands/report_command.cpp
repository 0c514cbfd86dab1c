// longreach report: runs side by side, on the terminal and as a page.
#include "base/text.h"
#include "commands/commands.h"
#include "io/file.h"
#include "report/collect.h"
#include "report/page.h"
#include "report/sweep_results.h"
#include "report/terminal.h"

namespace longreach::commands {

namespace {

struct ReportArguments {
    std::vector<std::string> paths;
    std::string html, svg, baseline;
};

// Next to the results if they are in one directory.
std::string default_page(const ReportArguments& options, const report::Collection& collection) {
    const bool one = options.paths.size() == 1 && (collection.sweep || collection.runs.size() == 1);
    return one ? io::join_path(options.paths[0], "report.html") : "report.html";
}

ExitCode report(const ReportArguments& options) {
    const report::Collection collection = report::collect(options.paths, options.baseline);
    require(!collection.runs.empty(), ExitCode::data,
            "{}: no results yet (no val.csv, metrics.jsonl or eval/)", options.paths[0]);
    const table::Terminal terminal = table::Terminal::standard_output();
    if (collection.sweep) {
        fmt::print("{}", report::sweep_tables(collection, {terminal}));
    } else {
        fmt::print("{}", report::comparison_table(collection, terminal));
        fmt::print("{}", report::comparison_chart(collection, terminal));
        for (const std::string& note : collection.notes) fmt::print("note: {}\n", one_line(note));
        for (const std::string& set : collection.sets) {
            const report::Collection view = report::set_view(collection, set);
            fmt::print("\n{}", report::comparison_table(view, terminal));
            for (const std::string& note : view.notes) fmt::print("note: {}\n", one_line(note));
        }
    }
    if (!options.svg.empty()) {
        io::write_file_atomically(options.svg, report::report_picture(collection));
        fmt::print("picture: {}\n", options.svg);
    }
    const std::string page = options.html.empty() ? default_page(options, collection) : options.html;
    if (collection.sweep) {
        const std::string tables = io::join_path(io::parent_path(page), "tables.txt");
        io::write_file_atomically(tables, report::sweep_tables(collection, {.pairs = true}));
        fmt::print("tables, with every pair of variants: {}\n", tables);
    }
    io::write_file_atomically(page, report::report_page(collection));
    fmt::print("page: {}\n", page);
    return ExitCode::ok;
}

}  // namespace

void add_report_command(Command& program) {
    auto options = std::make_shared<ReportArguments>();
    Command command = program.add(
        "report",
        "Runs side by side: losses by context length here, and everything measured as an HTML page");
    command
        .option("runs", options->paths,
                "Run directories, also of runs still training, or one sweep directory; runs that differ "
                "only in .seed<k> at the end of their name form a group")
        .required();
    command.option(
        "--html", options->html,
        "Where to write the page, and the tables of a sweep next to it (default: report.html in the run or "
        "sweep, here for several runs)");
    command.option("--svg", options->svg, "Also write the chart of losses by length as a picture");
    command.option("--baseline", options->baseline,
                   "Variant that others are compared with, or one of its evaluations: NAME or \"NAME + "
                   "LABEL\" (default: the sweep's, else the first)");
    command.run([options] { return report(*options); });
}

}  // namespace longreach::commands
