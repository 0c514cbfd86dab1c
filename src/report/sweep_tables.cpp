// The tables of a sweep as text, with one row per variant and evaluation and one column per length.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "report/comparable.h"
#include "report/contrasts.h"
#include "report/probe_tables.h"
#include "report/spread.h"
#include "report/summary.h"
#include "report/sweep_results.h"
#include "report/two_ways.h"

namespace longreach::report {

namespace {

// Losses get intervals over seeds. For percentages the value of each seed is shown unless their error over
// documents is known, and a difference gets an interval only if the intervals of both sides lie between 0
// and 100: if some seeds learn a task and others do not, the values are far from normal.
enum class Kind { loss, percent };

// One quantity of every run, by row and column.
struct Measured {
    Kind kind = Kind::loss;
    int digits = 4;
    std::map<std::pair<std::string, int64_t>, std::vector<SeedValue>> cells = {};  // (row, length) -> seeds
    std::map<std::pair<std::string, int64_t>, std::vector<double>> document_errors = {};
    std::set<int64_t> lengths = {};

    void add(const std::string& row, int64_t length, int64_t seed, double value) {
        cells[{row, length}].push_back({seed, value});
        lengths.insert(length);
    }
    std::vector<SeedValue> at(const std::string& row, int64_t length) const {
        const auto it = cells.find({row, length});
        return it == cells.end() ? std::vector<SeedValue>{} : it->second;
    }
    bool has(const std::string& row) const {
        return std::any_of(cells.begin(), cells.end(), [&](auto& c) { return c.first.first == row; });
    }
    // The error over documents, as a mean over seeds because all read the same text; empty if unknown.
    std::string document_error(const std::string& row, int64_t length) const {
        const auto it = document_errors.find({row, length});
        if (it == document_errors.end()) return {};
        return fmt::format("{:.{}f}", mean_interval(it->second).mean, digits);
    }
};

std::vector<std::string> row_names(const Collection& sweep) {
    std::vector<std::string> rows;
    for (const std::string& variant : sweep.groups)
        for (const std::string& evaluation : sweep.labels) rows.push_back(series_name(variant, evaluation));
    return rows;
}

table::TextLine header(const std::string& title, const std::set<int64_t>& lengths) {
    table::TextLine line{title};
    for (const int64_t length : lengths) line.push_back(std::to_string(length));
    return line;
}

// The value of each seed, " (50.0/75.0)"; with many seeds the range, " (50.0..75.0)"; with one, nothing.
std::string seeds_text(const std::vector<SeedValue>& values, bool with_sign) {
    constexpr size_t most = 5;
    if (values.size() < 2) return {};
    const auto text = [&](double v) {
        return with_sign ? fmt::format("{:+.1f}", v) : fmt::format("{:.1f}", v);
    };
    std::vector<std::string> all;
    for (const SeedValue& v : values) all.push_back(text(v.value));
    if (values.size() <= most) return fmt::format(" ({})", join(all, "/"));
    const auto less = [](const SeedValue& a, const SeedValue& b) { return a.value < b.value; };
    const auto [low, high] = std::minmax_element(values.begin(), values.end(), less);
    return fmt::format(" ({}..{})", text(low->value), text(high->value));
}

std::string mean_text(const Measured& measured, const std::string& row, int64_t length) {
    const std::vector<SeedValue> values = measured.at(row, length);
    const MeanInterval m = mean_interval(values);
    if (m.count == 0) return "-";
    const std::string documents = measured.document_error(row, length);
    if (measured.kind == Kind::percent && documents.empty())
        return fmt::format("{:.1f}", m.mean) + seeds_text(values, false);
    std::string cell = fmt::format("{:.{}f}", m.mean, measured.digits);
    if (m.count > 1) cell += fmt::format(" ±{:.{}f}", m.standard_error, measured.digits);
    if (!documents.empty()) cell += fmt::format("{}{}", m.count > 1 ? "/" : " ±-/", documents);
    return cell;
}

std::string means(const std::string& title, const std::vector<std::string>& rows, const Measured& measured,
                  const table::Terminal& terminal) {
    std::map<int64_t, double> best;
    for (const auto& [at, values] : measured.cells) {
        const double mean = mean_interval(values).mean;
        if (measured.kind != Kind::loss || !std::isfinite(mean)) continue;
        double& least = best.emplace(at.second, mean).first->second;
        least = std::min(least, mean);
    }
    std::vector<table::TextLine> lines{header(title, measured.lengths)};
    for (const std::string& row : rows) {
        if (!measured.has(row)) continue;
        table::TextLine line{row};
        for (const int64_t length : measured.lengths) {
            const double mean = mean_interval(measured.at(row, length)).mean;
            line.push_back({mean_text(measured, row, length), best.contains(length) && mean == best[length]});
        }
        lines.push_back(line);
    }
    return table::text_table(lines, terminal);
}

bool between_0_and_100(const std::vector<SeedValue>& values) {
    const MeanInterval m = mean_interval(values);
    return m.has_interval() && m.low >= 0 && m.high <= 100;
}

table::TextCell difference_text(const Measured& measured, const std::vector<SeedValue>& values,
                                const std::vector<SeedValue>& baseline) {
    const std::vector<SeedValue> pairs = paired_differences(values, baseline);
    const MeanInterval m = mean_interval(pairs);
    if (m.count == 0) return "-";
    if (measured.kind == Kind::percent && !(between_0_and_100(values) && between_0_and_100(baseline)))
        return fmt::format("{:+.1f}", m.mean) + seeds_text(pairs, true);
    std::string cell = fmt::format("{:+.{}f}", m.mean, measured.digits);
    if (m.has_interval())
        cell += fmt::format(" [{:+.{}f}, {:+.{}f}]{}", m.low, measured.digits, m.high, measured.digits,
                            m.excludes_zero() ? "*" : " ");
    return {cell, m.excludes_zero()};
}

// One row per pair, with the values of `row` minus those of `minus`: at each length, or,
// if `at` is not 0, minus those at that length. "" without pairs that were measured.
struct Pair {
    std::string title, row, minus;
};
std::string differences(const std::string& title, const std::vector<Pair>& pairs, const Measured& measured,
                        const table::Terminal& terminal, int64_t at = 0) {
    std::set<int64_t> lengths = measured.lengths;
    lengths.erase(at);
    std::vector<table::TextLine> lines{header(title, lengths)};
    for (const Pair& pair : pairs) {
        if ((pair.row == pair.minus && at == 0) || !measured.has(pair.row) || !measured.has(pair.minus))
            continue;
        table::TextLine line{pair.title};
        for (const int64_t length : lengths)
            line.push_back(difference_text(measured, measured.at(pair.row, length),
                                           measured.at(pair.minus, at != 0 ? at : length)));
        lines.push_back(line);
    }
    return lines.size() > 1 ? table::text_table(lines, terminal) : "";
}

// Each variant as trained minus each one before it, and each evaluation minus its variant as trained.
std::vector<Pair> every_pair(const Collection& sweep) {
    std::vector<Pair> pairs;
    const auto add = [&](const std::string& a, const std::string& b) {
        pairs.push_back({a + " - " + b, a, b});
    };
    for (size_t i = 0; i < sweep.groups.size(); ++i)
        for (size_t k = 0; k < i; ++k) add(sweep.groups[i], sweep.groups[k]);
    for (const std::string& variant : sweep.groups)
        for (const std::string& evaluation : sweep.labels) add(series_name(variant, evaluation), variant);
    return pairs;
}

// What each row rises by from a length to the longer ones, seed by seed.
Measured rises(const Measured& measured, int64_t from) {
    Measured out{measured.kind, measured.digits};
    for (const auto& [at, values] : measured.cells)
        if (at.second > from)
            for (const SeedValue& rise : paired_differences(values, measured.at(at.first, from)))
                out.add(at.first, at.second, rise.seed, rise.value);
    return out;
}

// The tables of one quantity; "" if nothing of it was measured.
std::string quantity(const Collection& sweep, const std::string& name, const Measured& measured,
                     const TableOptions& options) {
    if (measured.cells.empty()) return "";
    const std::vector<std::string> rows = row_names(sweep);
    const std::string baseline = sweep.baseline_name();
    std::string out = fmt::format("\n{}", means(name + " at context", rows, measured, options.terminal));
    const auto add = [&](const std::string& title, const std::vector<Pair>& pairs, const Measured& of,
                         int64_t at = 0) {
        const std::string table = differences(title, pairs, of, options.terminal, at);
        if (!table.empty()) out += fmt::format("\n{}", table);
    };
    std::vector<Pair> to_baseline, to_itself;
    for (const std::string& row : rows) {
        to_baseline.push_back({row, row, baseline});
        to_itself.push_back({row, row, row});
    }
    if (!sweep.baseline.empty()) add(name + " minus " + baseline, to_baseline, measured);
    const int64_t shortest = *measured.lengths.begin();
    const bool rising = measured.kind == Kind::loss && measured.lengths.size() > 1;
    if (rising && options.pairs)
        add(fmt::format("{} minus that at {}", name, shortest), to_itself, measured, shortest);
    if (options.pairs && sweep.groups.size() > 1) add(name + ", every pair", every_pair(sweep), measured);
    if (rising && options.pairs && sweep.groups.size() > 1)
        add(fmt::format("{} minus that at {}, every pair", name, shortest), every_pair(sweep),
            rises(measured, shortest));
    return out;
}

std::string spread(const Collection& sweep, const std::string& name, const Measured& loss,
                   const TableOptions& options) {
    if (!options.pairs) return "";
    std::vector<SpreadRow> rows;
    for (const std::string& variant : sweep.groups) {
        rows.push_back({variant, {}});
        for (const int64_t length : loss.lengths)
            if (const auto values = loss.at(variant, length); !values.empty())
                rows.back().losses[length] = values;
    }
    return spread_tables(name, rows, sweep.baseline_name(), options.terminal);
}

std::string apart(const Collection& sweep, const TableOptions& options) {
    std::string out;
    for (const ApartLosses& table : losses_apart(sweep)) {
        Measured measured;
        std::vector<std::string> rows;
        for (const ApartLosses::Row& row : table.rows) {
            rows.push_back(series_name(row.group, row.label));
            for (const auto& [length, values] : row.loss)
                for (const SeedValue& v : values) measured.add(rows.back(), length, v.seed, v.value);
        }
        out += fmt::format(
            "\nshown apart, for it compares with nothing above: {}\n{}", table.measure.text(),
            means(fmt::format("loss{} at context", sweep.on_set()), rows, measured, options.terminal));
    }
    const std::vector<ApartTask> tasks = tasks_apart(sweep);
    if (tasks.empty()) return out;
    std::vector<table::TextLine> lines{
        {"tasks on other samples", "seed", "task", "length", "depth", "samples", "accuracy %"}};
    for (const ApartTask& t : tasks)
        lines.push_back({series_name(t.group, t.label), std::to_string(t.seed), t.cell.task,
                         std::to_string(t.cell.length),
                         t.cell.depth ? fmt::format("{:g}", *t.cell.depth) : "-",
                         std::to_string(t.cell.samples), fmt::format("{:.1f}", 100 * t.cell.accuracy)});
    return fmt::format("{}\n{}", out, table::text_table(lines, options.terminal));
}

// The tables of a task: means over its depths at each length.
std::string task_tables(const Collection& sweep, const std::vector<SweepTask>& cells, const std::string& name,
                        const TableOptions& options) {
    struct Sum {
        double value = 0;
        int64_t count = 0;
        void add(double v) {
            value += v;
            ++count;
        }
    };
    std::map<std::tuple<std::string, int64_t, int64_t>, Sum> accuracy, margin;  // row, length, seed
    for (const SweepTask& t : cells) {
        if (t.task != name || t.apart) continue;
        const std::tuple key(series_name(t.variant, t.evaluation), t.length, t.seed);
        if (!std::isnan(t.accuracy)) accuracy[key].add(100 * t.accuracy);
        if (t.margin) margin[key].add(*t.margin);
    }
    const auto tables = [&](const char* what, const auto& sums, Kind kind, int digits) {
        Measured measured{kind, digits};
        for (const auto& [key, sum] : sums)
            measured.add(std::get<0>(key), std::get<1>(key), std::get<2>(key),
                         sum.value / static_cast<double>(sum.count));
        return quantity(sweep, name + " " + what, measured, options);
    };
    return tables("accuracy %", accuracy, Kind::percent, 1) + tables("margin", margin, Kind::loss, 3);
}

struct MeasuredLosses {
    Measured loss, top1{Kind::percent, 1};
    std::set<int64_t> seeds;

    explicit MeasuredLosses(const std::vector<SweepLoss>& losses) {
        for (const SweepLoss& l : losses) {
            if (l.apart) continue;
            const std::string row = series_name(l.variant, l.evaluation);
            loss.add(row, l.length, l.seed, l.loss);
            if (!std::isnan(l.standard_error))
                loss.document_errors[{row, l.length}].push_back(l.standard_error);
            if (!std::isnan(l.top1)) top1.add(row, l.length, l.seed, 100 * l.top1);
            if (!std::isnan(l.top1_error))
                top1.document_errors[{row, l.length}].push_back(100 * l.top1_error);
            seeds.insert(l.seed);
        }
    }
};

// The tables of the losses on one of data.val_sets, of which `view` is the view.
std::string set_tables(const Collection& view, const TableOptions& options) {
    const MeasuredLosses measured(sweep_results(view).losses);
    std::string out = fmt::format("\nlosses{}: {}\n", view.on_set(), one_line(measured_on(view)));
    for (const std::string& note : view.notes) out += fmt::format("note: {}\n", one_line(note));
    out += quantity(view, "loss" + view.on_set(), measured.loss, options);
    out += two_ways_text(view, options.terminal);
    out += quantity(view, "top-1 %" + view.on_set(), measured.top1, options);
    return out + apart(view, options);
}

}  // namespace

std::string sweep_tables(const Collection& sweep, const TableOptions& options) {
    const SweepResults results = sweep_results(sweep);
    const auto& [loss, top1, seeds] = MeasuredLosses(results.losses);
    std::string out = one_line(fmt::format("sweep {}: {} of {} measured, {}", sweep.title, results.measured,
                                           counted(sweep.planned, "run"), counted(seeds.size(), "seed"))) +
                      "\n";
    if (!loss.cells.empty()) out += fmt::format("losses: {}\n", one_line(measured_on(sweep)));
    out += "± standard error of the mean over seeds";
    if (!loss.document_errors.empty() || !top1.document_errors.empty())
        out += " / over documents, which all seeds share";
    out += top1.document_errors.empty()
               ? "; of percentages (the value of each seed),\nof their differences too if an interval of "
                 "theirs leaves 0 to 100\n"
               : "; of percentages without\nthe latter (the value of each seed), of differences of "
                 "percentages too if an interval of theirs leaves 0 to 100\n";
    if (!sweep.baseline.empty())
        out += one_line(fmt::format(
                   "[{}95% interval over seeds of the mean difference to {}, seed by seed], * if 0 "
                   "lies outside",
                   sweep.descriptive(), sweep.baseline_name())) +
               "\n";
    for (const std::string& note : sweep.notes) out += fmt::format("note: {}\n", one_line(note));
    out += contrasts_text(sweep, options.terminal);
    out += quantity(sweep, "loss", loss, options);
    out += spread(sweep, "loss", loss, options);
    out += two_ways_text(sweep, options.terminal);
    out += quantity(sweep, "top-1 %", top1, options);
    std::vector<std::string> names;
    for (const SweepTask& t : results.tasks)
        if (std::find(names.begin(), names.end(), t.task) == names.end()) names.push_back(t.task);
    for (const std::string& name : names) out += task_tables(sweep, results.tasks, name, options);
    if (options.pairs) out += probe_tables(sweep, options.terminal);
    out += apart(sweep, options);
    for (const std::string& set : sweep.sets) out += set_tables(set_view(sweep, set), options);
    return out;
}

}  // namespace longreach::report
