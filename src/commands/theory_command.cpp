// longreach theory: computes properties of attention at long contexts, without training.
#include <chrono>
#include <cmath>

#include "base/terminal.h"
#include "base/units.h"
#include "commands/commands.h"
#include "io/file.h"
#include "io/result_file.h"
#include "theory/study.h"

namespace longreach::commands {

namespace {

struct TheoryArguments {
    std::vector<std::string> tables;
    std::string out;
    bool replace = false;
    std::vector<int64_t> ns, dims;
    int64_t samples = 400, grid = 24;
    double gamma_max = 8;
    uint64_t seed = 1;
};

using TableMaker = std::vector<table::DataTable> (*)(const theory::StudyOptions&);
const std::vector<std::pair<std::string, TableMaker>> makers = {
    {"extreme", theory::extreme_tables},
    {"cosine", theory::cosine_tables},
    {"participation", theory::participation_tables},
    {"entropy", theory::entropy_tables},
    {"gradient", theory::gradient_tables}};

void save(const TheoryArguments& options, const std::string& name, const std::string& content) {
    if (!options.out.empty()) io::write_result(io::join_path(options.out, name), content, options.replace);
}

// A coarse view of the diagram, about 12 x 12 cells with two decimals; the files contain all cells.
std::string glance(const theory::PhaseDiagram& diagram, const std::vector<double>& values,
                   const char* title) {
    const int64_t stride = std::max<int64_t>(1, diagram.cells / 12);
    std::string out = fmt::format("{} (rows: gamma, columns: rho)\n       ", title);
    for (int64_t c = stride / 2; c < diagram.cells; c += stride)
        out += fmt::format(" {:5.2f}", diagram.rho(c));
    out += '\n';
    for (int64_t r = diagram.cells - 1 - stride / 2; r >= 0; r -= stride) {
        out += fmt::format("  {:5.2f}", diagram.gamma(r));
        for (int64_t c = stride / 2; c < diagram.cells; c += stride)
            out += fmt::format(" {:5.2f}", values[static_cast<size_t>(r * diagram.cells + c)]);
        out += '\n';
    }
    return out;
}

void phase(const TheoryArguments& options, int64_t n, int64_t d) {
    const auto start = std::chrono::steady_clock::now();
    const auto seconds = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    print_text("phase diagram: n = {}, d = {}, {} x {} cells\n", n, d, options.grid, options.grid);
    std::fflush(stdout);
    const theory::PhaseDiagram diagram =
        theory::phase_diagram(n, d, options.grid, options.gamma_max, options.seed, [&](int64_t done) {
            if (done != 1) return;
            print_text("  will take about {}\n",
                       human_duration(seconds() * static_cast<double>(options.grid)));
            std::fflush(stdout);
        });
    print_text("  took {}\n{}\n{}\n", human_duration(seconds()),
               glance(diagram, diagram.angle_ratio, "lambda: angles after over angles before"),
               glance(diagram, diagram.gradient_norm, "eta: gradient passed through"));
    const auto where = [&](const std::vector<double>& values) {
        const double at = theory::transition(diagram, values);
        return std::isnan(at) ? std::string("none in this range") : fmt::format("{:.5f}", at);
    };
    print_text("half is passed at gamma (1 - rho) = {} of lambda, {} of eta; both tend to 1 as n grows\n",
               where(diagram.angle_ratio), where(diagram.gradient_norm));
    print_text(
        "limits for large n below, at and above 1, where all cosines are rho: lambda 0, 1/(1 + 3 rho), 1; "
        "eta 0, (1 - 1/d)/4, 1 - 1/d\n\n");
    const table::DataTable table = theory::phase_table(diagram);
    save(options, table.name + ".csv", table::csv(table));
    save(options, table.name + "_lambda.svg", plot::heat_map_svg(theory::angle_ratio_map(diagram)));
    save(options, table.name + "_eta.svg", plot::heat_map_svg(theory::gradient_norm_map(diagram)));
}

ExitCode theory(const TheoryArguments& options) {
    const auto wanted = [&](const std::string& name) {
        return std::find(options.tables.begin(), options.tables.end(), name) != options.tables.end() ||
               std::find(options.tables.begin(), options.tables.end(), "all") != options.tables.end();
    };
    const std::vector<int64_t> phase_ns = options.ns.empty() ? std::vector<int64_t>{512} : options.ns;
    const std::vector<int64_t> phase_dims = options.dims.empty() ? std::vector<int64_t>{512} : options.dims;
    // Four matrices of n x n numbers and n^3 operations per cell: n = 4096 takes about an hour.
    if (wanted("phase"))
        for (int64_t n : phase_ns)
            require(n <= 4096, ExitCode::usage,
                    "--n {} is too large for the table 'phase', which takes at most 4096", n);
    if (wanted("cosine") || wanted("gradient"))
        for (int64_t d : options.dims)
            require(d >= 4, ExitCode::usage,
                    "--d {} is too small for the tables 'cosine' and 'gradient', which take 4 and more", d);
    if (!options.out.empty()) io::make_directories(options.out);

    theory::StudyOptions study{options.ns, options.dims, options.samples, options.seed};
    if (study.ns.empty()) study.ns = {16, 256, 1024, 4096, 16384, 65536};
    if (study.dims.empty()) study.dims = {16, 64, 128, 256};
    const table::Terminal terminal = table::Terminal::standard_output();
    for (const auto& [name, make] : makers) {
        if (!wanted(name)) continue;
        for (const table::DataTable& table : make(study)) {
            print_text("{}\n", table::text_table(table, terminal));
            std::fflush(stdout);
            save(options, table.name + ".csv", table::csv(table));
        }
    }
    if (wanted("phase"))
        for (int64_t n : phase_ns)
            for (int64_t d : phase_dims) phase(options, n, d);
    if (!options.out.empty()) print_text("files in {}\n", options.out);
    return ExitCode::ok;
}

}  // namespace

void add_theory_command(Command& program) {
    auto options = std::make_shared<TheoryArguments>();
    Command command = program.add(
        "theory", "Concentration of attention over n keys: exact values, samples, phase diagrams");
    std::vector<std::string> names;
    for (const auto& maker : makers) names.push_back(maker.first);
    names.insert(names.end(), {"phase", "all"});
    command.option("tables", options->tables, "extreme, cosine, participation, entropy, gradient, phase; all")
        .required()
        .one_of(names);
    command.option("--out", options->out, "Directory for CSV files and SVG diagrams");
    add_replace_flag(command, options->replace);
    command.option("--n", options->ns, "Numbers of keys (tables: 16 to 65536, phase: 512)")
        .comma_list()
        .in_range(int64_t{2}, int64_t{1} << 24);
    command.option("--d", options->dims, "Dimensions of cosines (16 to 256) and of tokens in phase (512)")
        .comma_list()
        .in_range(int64_t{2}, int64_t{4096});
    command.option("--samples", options->samples, "Monte Carlo samples per n")
        .show_default()
        .in_range(int64_t{2}, int64_t{1} << 24);
    command.option("--seed", options->seed, "Seed of samples and tokens").show_default();
    command.option("--grid", options->grid, "Cells along each side of a phase diagram")
        .show_default()
        .in_range(int64_t{2}, int64_t{200});
    command.option("--gamma-max", options->gamma_max, "Upper end of a phase diagram")
        .show_default()
        .in_real_range(0.1, 1000.0);
    command.run([options] { return theory(*options); });
}

}  // namespace longreach::commands
