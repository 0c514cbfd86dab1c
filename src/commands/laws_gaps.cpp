#include "commands/laws_gaps.h"

#include <bit>
#include <cmath>
#include <map>
#include <optional>

#include "base/nearest_path.h"
#include "base/terminal.h"
#include "base/text.h"
#include "base/units.h"
#include "config/loader.h"
#include "decide/paired.h"
#include "io/file.h"
#include "law/gap_counts.h"
#include "measure/probe.h"
#include "train/experiment.h"

namespace longreach::commands {

namespace {

constexpr int64_t fewest_keys = 16, fewest_queries = 16;

// By layer and head, by bin.
using Place = std::pair<int64_t, int64_t>;
using Bins = std::map<int64_t, law::GapMeans>;
struct Measured {
    std::string directory;
    int64_t step = 0, length = 0;
    std::map<Place, Bins> heads;
};

// The counts of the newest step at its largest length, in bins that sequences of this length fill.
Measured measured_in(const std::string& directory) {
    Measured out;
    out.directory = directory;
    const std::vector<measure::ProbeRow> rows = measure::probe_file.read(directory);
    const auto counts = [](const measure::ProbeRow& r) { return r.statistic.starts_with("gap_"); };
    for (const measure::ProbeRow& r : rows)
        if (counts(r)) out.step = std::max(out.step, r.step);
    for (const measure::ProbeRow& r : rows)
        if (counts(r) && r.step == out.step) out.length = std::max(out.length, r.length);
    for (const measure::ProbeRow& r : rows) {
        if (!counts(r) || r.step != out.step || r.length != out.length) continue;
        if (r.bin < fewest_keys || r.bin > r.length / 2) continue;
        const auto [at, fresh] = out.heads[{r.layer, r.head}].try_emplace(r.bin);
        law::GapMeans& bin = at->second;
        if (fresh) bin.error.fill(NAN);
        const double least = static_cast<double>(r.bin);
        if (r.statistic == "gap_visible" && r.count >= fewest_queries && r.value >= least &&
            r.value < 2 * least)
            bin.n = r.value;
        for (size_t i = 0; i < law::gap_scales.size(); ++i) {
            if (r.statistic == fmt::format("gap_others_{}", law::gap_scales[i])) bin.others[i] = r.value;
            if (r.statistic == fmt::format("gap_error_{}", law::gap_scales[i])) bin.error[i] = r.value;
        }
    }
    return out;
}

bool is_directory(const std::string& path) {
    return io::kind_of(path, io::Links::follow) == io::PathKind::directory;
}

Measured measured_by(const std::string& directory) {
    require(is_directory(directory), ExitCode::data, "{} is not a directory{}", directory,
            path_suggestion(directory));
    const std::string plain = io::join_path(directory, "eval/plain");
    for (const std::string& path : {directory, plain})
        if (Measured found = measured_in(path); found.length > 0) return found;
    throw Error(
        ExitCode::data, fmt::format("{} and {} hold no gap counts in probe.csv", directory, plain),
        fmt::format("longreach probe {} --lengths LENGTH writes them, for layers with a softmax", directory));
}

// What the command that measured in a directory changed by --set.
std::vector<std::string> changes_in(const std::string& directory) {
    const std::string file = io::join_path(directory, "request.json");
    if (io::kind_of(file, io::Links::refuse) != io::PathKind::file) return {};
    constexpr uint64_t largest = uint64_t{1} << 20;
    const json::Value request =
        json::parse(io::read_file(file, largest, io::Links::refuse), file, {.code = ExitCode::data});
    std::vector<std::string> changes;
    if (const json::Value* set = request.find("set"); set && set->is_array())
        for (const json::Value& change : set->as_array())
            if (const std::string* text = change.to_string()) changes.push_back(*text);
    return changes;
}

// The run of a directory, as the probe saw it.
train::Experiment probed_in(const std::string& directory) {
    for (const std::string& path : {directory, io::parent_path(io::parent_path(directory))}) {
        const std::string file = io::join_path(path, "config.json");
        if (io::kind_of(file, io::Links::follow) != io::PathKind::file) continue;
        return config::load_config<train::Experiment>(
                   {.file = file, .overrides = changes_in(directory)},
                   [](train::Experiment& e, config::Problems& p) { e.check(p); })
            .value;
    }
    throw Error(ExitCode::data,
                fmt::format("{} is neither a run directory nor RUN/eval/LABEL of one", directory));
}

// The counts from `bin` on.
std::vector<law::GapMeans> from_bin(const Bins& bins, int64_t bin) {
    std::vector<law::GapMeans> out;
    for (auto at = bins.lower_bound(bin); at != bins.end(); ++at)
        if (at->second.n > 0) out.push_back(at->second);
    return out;
}

void add_exponent(std::vector<table::Cell>& cells, const std::optional<law::GapFit>& fit,
                  std::vector<double>& all) {
    const double p = fit ? fit->scale.p : NAN, reach = fit ? 1.96 * fit->error : NAN;
    for (const double x : {p, p - reach, p + reach}) cells.push_back(table::number_cell(x, 2));
    if (fit) all.push_back(p);
}

std::string pooled_text(const char* what, const std::vector<double>& exponents) {
    if (exponents.empty()) return fmt::format("{}: no head has an exponent", what);
    const decide::MeanInterval mean = decide::mean_interval(exponents);
    return fmt::format("{}: p = {:.2f}{}, mean of {}", what, mean.mean,
                       mean.has_interval() ? fmt::format(" [{:.2f}, {:.2f}]", mean.low, mean.high) : "",
                       counted(exponents.size(), "head"));
}

}  // namespace

GapLaws gap_laws(const std::string& directory) {
    const Measured measured = measured_by(directory);
    const train::Experiment probed = probed_in(measured.directory);
    if (probed.eval.rope.active())
        throw Error(
            ExitCode::data,
            fmt::format(
                "{} was measured with scores or angles that the evaluation changes: the exponents would be "
                "those of the changed scores, and the law would replace the change",
                measured.directory),
            "longreach probe with --set eval.score=null --set eval.angle=null, and without --rope");
    const int64_t context = probed.model.train_context;
    // Half of its queries see the most keys that training had.
    const int64_t reference =
        static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(2, context - 1))));
    GapLaws out;
    out.heading = fmt::format("gap counts of {}, step {}, in contexts of {} tokens, trained at {}",
                              measured.directory, measured.step, grouped(measured.length), grouped(context));
    out.table = {
        "gaps",
        fmt::format(
            "exponents of s(n) = a (log n)^p, from gaps to the largest logit, with 95% intervals: "
            "kept, so that E[1 / max P] stays C, as it is where n is {} to {}; critical, so that it is 2",
            grouped(reference), grouped(2 * reference - 1)),
        {"layer", "head", "C", "kept p", "low", "high", "critical p", "low", "high", "critical a"},
        {}};
    std::vector<double> kept_ps, critical_ps;
    for (const auto& [place, bins] : measured.heads) {
        const std::vector<law::GapMeans> beyond = bins.contains(reference) && bins.at(reference).n > 0
                                                      ? from_bin(bins, reference)
                                                      : std::vector<law::GapMeans>();
        const std::optional<law::GapFit> kept = law::fit_kept_scale(beyond),
                                         critical = law::fit_critical_scale(from_bin(bins, fewest_keys));
        std::vector<table::Cell>& cells = out.table.rows.emplace_back();
        cells = {table::count_cell(place.first), table::count_cell(place.second),
                 table::significant_cell(kept ? kept->level : NAN)};
        add_exponent(cells, kept, kept_ps);
        add_exponent(cells, critical, critical_ps);
        cells.push_back(table::significant_cell(critical ? critical->scale.a : NAN));
    }
    const std::vector<double>& ps = kept_ps.empty() ? critical_ps : kept_ps;
    if (ps.empty())
        throw Error(
            ExitCode::data,
            fmt::format("{}: no head has counts at three numbers of keys from which an exponent follows",
                        measured.directory),
            fmt::format("longreach probe with --lengths {} or more, and with more --tokens",
                        grouped(4 * context)));
    out.pooled = pooled_text("kept", kept_ps) + "\n" + pooled_text("critical", critical_ps) + "\n";
    if (kept_ps.empty())
        out.pooled +=
            fmt::format("the critical exponent is used: the kept one needs a probe of {} tokens or more\n",
                        grouped(4 * context));
    const double p = decide::mean_interval(ps).mean;
    out.score = fmt::format("z * {}(1, (log(n)/log(L))^{:.3g})", p < 0 ? "min" : "max", p);
    return out;
}

void show_gap_laws(const GapLaws& laws, const table::Terminal& terminal) {
    print_text("{}\n\n{}\n{}\nbeyond the training context only:\n  \"eval\": {{ \"score\": \"{}\" }}\n",
               laws.heading, table::text_table(laws.table, terminal), laws.pooled, laws.score);
}

}  // namespace longreach::commands
