// longreach report: runs side by side, on the terminal, as a page and as files for a paper.
#include <csignal>

#include "base/terminal.h"
#include "base/text.h"
#include "commands/commands.h"
#include "io/file.h"
#include "io/result_file.h"
#include "report/collect.h"
#include "report/figures.h"
#include "report/page.h"
#include "report/sweep_results.h"
#include "report/terminal.h"
#include "report/two_ways.h"
#include "report/watch.h"
#include "train/signals.h"

namespace longreach::commands {

namespace {

struct ReportArguments {
    std::vector<std::string> paths;
    std::string html, svg, figures, baseline;
    bool watch = false, replace = false;
    int64_t every = 10;  // seconds
};

// Next to the results if they are in one directory.
std::string default_page(const ReportArguments& options, const report::Collection& collection) {
    const bool one = options.paths.size() == 1 && (collection.sweep || collection.runs.size() == 1);
    return one ? io::join_path(options.paths[0], "report.html") : "report.html";
}

std::string page_path(const ReportArguments& options, const report::Collection& collection) {
    return options.html.empty() ? default_page(options, collection) : options.html;
}

// Draws the page, which loads itself again, whenever a record has changed. Returns the signal that ended it, or 0 once
// nothing below the paths is in use.
int watch(const ReportArguments& options) {
    const train::StopSignals signals;
    std::optional<uint64_t> drawn;
    bool named = false;
    const auto wait = [&] {
        return report::wait_for(std::chrono::seconds(options.every),
                                [] { return train::StopSignals::received() != 0; });
    };
    do {
        const uint64_t state = report::records_state(options.paths);
        if (state != drawn) {
            const report::Collection collection = report::collect(options.paths, options.baseline);
            if (!collection.runs.empty()) {
                const std::string page = page_path(options, collection);
                io::write_result(
                    page,
                    report::report_page(collection, {.reload_seconds = static_cast<int>(options.every)}),
                    options.replace);
                if (!named)
                    print_text("page: {}, drawn again every {} seconds; ^C ends\n", page, options.every);
                std::fflush(stdout);
                named = true;
            }
            drawn = state;
        }
    } while (report::any_in_use(options.paths) && wait());
    return train::StopSignals::received();
}

void print_tables(const report::Collection& collection) {
    const table::Terminal terminal = table::Terminal::standard_output();
    if (collection.sweep) {
        print_text("{}", report::sweep_tables(collection, {terminal}));
    } else {
        print_text("{}", report::comparison_table(collection, terminal));
        print_text("{}", report::comparison_chart(collection, terminal));
        print_text("{}", report::two_ways_text(collection, terminal));
        for (const std::string& note : collection.notes) print_text("note: {}\n", one_line(note));
        for (const std::string& set : collection.sets) {
            const report::Collection view = report::set_view(collection, set);
            print_text("\n{}{}", report::comparison_table(view, terminal),
                       report::two_ways_text(view, terminal));
            for (const std::string& note : view.notes) print_text("note: {}\n", one_line(note));
        }
    }
}

ExitCode report(const ReportArguments& options) {
    const int signal = options.watch ? watch(options) : 0;
    const report::Collection collection = report::collect(options.paths, options.baseline);
    // Who interrupts sees 130 from the shell, as of any program.
    if (signal != 0 && collection.runs.empty()) std::raise(signal);
    require(!collection.runs.empty(), ExitCode::data,
            "{}: no results yet (no val.csv, metrics.jsonl or eval/)", options.paths[0]);
    print_tables(collection);
    if (!options.svg.empty()) {
        io::write_result(options.svg, report::report_picture(collection), options.replace);
        print_text("picture: {}\n", options.svg);
    }
    const std::string page = page_path(options, collection);
    if (collection.sweep) {
        const std::string tables = io::join_path(io::parent_path(page), "tables.txt");
        io::write_result(tables, report::sweep_tables(collection, {.pairs = true}), options.replace);
        print_text("tables, with every pair of variants: {}\n", tables);
    }
    io::write_result(page, report::report_page(collection), options.replace);
    print_text("page: {}\n", page);
    if (!options.figures.empty()) {
        io::make_directories(options.figures);
        const std::vector<report::PaperFile> files = report::paper_files(collection);
        for (const report::PaperFile& file : files)
            io::write_result(io::join_path(options.figures, file.name), file.content, options.replace);
        print_text("for a paper: {} in {}\n", counted(files.size(), "file"), options.figures);
    }
    if (signal != 0) {
        std::fflush(stdout);
        std::raise(signal);
    }
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
    command.option("--figures", options->figures,
                   "Directory for a paper: every chart as SVG and PDF, tables.tex, and methods.tex with "
                   "references.bib");
    add_replace_flag(command, options->replace);
    command.flag("--watch", options->watch,
                 "Draw the page again while runs train, until all have ended; the page loads itself again");
    command
        .option("--every", options->every,
                "Seconds between two looks at the records, and two loads of the page")
        .in_range(1, 3600)
        .show_default();
    command.option("--baseline", options->baseline,
                   "Variant that others are compared with, or one of its evaluations: NAME or \"NAME + "
                   "LABEL\" (default: the sweep's, else the first)");
    command.run([options] { return report(*options); });
}

}  // namespace longreach::commands
