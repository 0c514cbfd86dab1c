// The tables of a sweep as text: one row per variant and evaluation, one column per length.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "report/comparable.h"
#include "report/paired.h"
#include "report/summary.h"
#include "report/sweep_results.h"

namespace longreach::report {

namespace {

// Losses get intervals over seeds. Of shares in percent each seed's value is shown, and a difference gets an
// interval only if those of both sides lie between 0 and 100: seeds of which some learn a task and others do not
// are far from normal.
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
    // Over documents, the mean over seeds: all seeds read the same text. Empty if unknown.
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

// " (50.0/75.0)", each seed's value; of many seeds " (50.0..75.0)"; empty for one.
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
    if (measured.kind == Kind::percent) return fmt::format("{:.1f}", m.mean) + seeds_text(values, false);
    std::string cell = fmt::format("{:.{}f}", m.mean, measured.digits);
    const std::string documents = measured.document_error(row, length);
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

std::string differences(const std::string& title, const std::vector<std::string>& rows,
                        const std::string& baseline, const Measured& measured,
                        const table::Terminal& terminal) {
    std::vector<table::TextLine> lines{header(title, measured.lengths)};
    for (const std::string& row : rows) {
        if (row == baseline || !measured.has(row)) continue;
        table::TextLine line{row};
        for (const int64_t length : measured.lengths)
            line.push_back(
                difference_text(measured, measured.at(row, length), measured.at(baseline, length)));
        lines.push_back(line);
    }
    return lines.size() > 1 ? table::text_table(lines, terminal) : "";
}

// What each row loses or gains from the shortest length on, seed by seed.
std::string changes(const std::string& name, const std::vector<std::string>& rows, const Measured& measured,
                    const table::Terminal& terminal) {
    if (measured.lengths.size() < 2) return {};
    const int64_t first = *measured.lengths.begin();
    std::set<int64_t> longer = measured.lengths;
    longer.erase(first);
    std::vector<table::TextLine> lines{header(fmt::format("{} minus that at {}", name, first), longer)};
    for (const std::string& row : rows) {
        if (!measured.has(row)) continue;
        table::TextLine line{row};
        for (const int64_t length : longer)
            line.push_back(difference_text(measured, measured.at(row, length), measured.at(row, first)));
        lines.push_back(line);
    }
    return table::text_table(lines, terminal);
}

// Each variant as trained minus each one before it, and each evaluation minus its variant as trained.
std::string pairs(const std::string& title, const Collection& sweep, const Measured& measured,
                  const table::Terminal& terminal) {
    std::vector<table::TextLine> lines{header(title, measured.lengths)};
    const auto add = [&](const std::string& a, const std::string& b) {
        if (a == b || !measured.has(a) || !measured.has(b)) return;
        table::TextLine line{a + " - " + b};
        for (const int64_t length : measured.lengths)
            line.push_back(difference_text(measured, measured.at(a, length), measured.at(b, length)));
        lines.push_back(line);
    };
    for (size_t i = 0; i < sweep.groups.size(); ++i)
        for (size_t k = 0; k < i; ++k) add(sweep.groups[i], sweep.groups[k]);
    for (const std::string& variant : sweep.groups)
        for (const std::string& evaluation : sweep.labels) add(series_name(variant, evaluation), variant);
    return lines.size() > 1 ? table::text_table(lines, terminal) : "";
}

// The tables of one quantity; "" if nothing of it was measured.
std::string quantity(const Collection& sweep, const std::string& name, const Measured& measured,
                     const TableOptions& options) {
    if (measured.cells.empty()) return "";
    const std::vector<std::string> rows = row_names(sweep);
    const std::string baseline = sweep.baseline_name();
    std::string out = fmt::format("\n{}", means(name + " at context", rows, measured, options.terminal));
    const auto add = [&](const std::string& table) {
        if (!table.empty()) out += fmt::format("\n{}", table);
    };
    if (!sweep.baseline.empty() && measured.has(baseline))
        add(differences(name + " minus " + baseline, rows, baseline, measured, options.terminal));
    if (measured.kind == Kind::loss && options.pairs) add(changes(name, rows, measured, options.terminal));
    if (options.pairs && sweep.groups.size() > 1)
        add(pairs(name + ", every pair", sweep, measured, options.terminal));
    return out;
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
        out += fmt::format("\nshown apart, for it compares with nothing above: {}\n{}", table.measure.text(),
                           means("loss at context", rows, measured, options.terminal));
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

// Of a task, the mean over the depths at each length.
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

}  // namespace

std::string sweep_tables(const Collection& sweep, const TableOptions& options) {
    const SweepResults results = sweep_results(sweep);
    std::set<int64_t> seeds;
    Measured loss, top1{Kind::percent, 1};
    for (const SweepLoss& l : results.losses) {
        if (l.apart) continue;
        const std::string row = series_name(l.variant, l.evaluation);
        loss.add(row, l.length, l.seed, l.loss);
        if (!std::isnan(l.standard_error)) loss.document_errors[{row, l.length}].push_back(l.standard_error);
        if (!std::isnan(l.top1)) top1.add(row, l.length, l.seed, 100 * l.top1);
        seeds.insert(l.seed);
    }
    std::string out = one_line(fmt::format("sweep {}: {} of {} measured, {}", sweep.title, results.measured,
                                           counted(sweep.planned, "run"), counted(seeds.size(), "seed"))) +
                      "\n";
    if (!loss.cells.empty()) out += fmt::format("losses: {}\n", one_line(measured_on(sweep)));
    out += "± standard error of the mean over seeds";
    if (!loss.document_errors.empty()) out += " / over documents, which all seeds share";
    out += "; of percentages (the value of each seed),\n";
    out += "of their differences too if an interval of theirs leaves 0 to 100\n";
    if (!sweep.baseline.empty())
        out += one_line(
                   fmt::format("[95% interval over seeds of the mean difference to {}, seed by seed], * if 0 "
                               "lies outside",
                               sweep.baseline_name())) +
               "\n";
    for (const std::string& note : sweep.notes) out += fmt::format("note: {}\n", one_line(note));
    out += quantity(sweep, "loss", loss, options);
    out += quantity(sweep, "top-1 %", top1, options);
    std::vector<std::string> names;
    for (const SweepTask& t : results.tasks)
        if (std::find(names.begin(), names.end(), t.task) == names.end()) names.push_back(t.task);
    for (const std::string& name : names) out += task_tables(sweep, results.tasks, name, options);
    return out + apart(sweep, options);
}

}  // namespace longreach::report
