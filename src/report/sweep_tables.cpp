// The terminal tables of a sweep: one row per variant and evaluation, one column per length.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "report/paired.h"
#include "report/sweep_results.h"

namespace longreach {

namespace {

// One quantity of every run, by row and column.
struct Measured {
    std::map<std::pair<std::string, int64_t>, std::vector<SeedValue>> cells;  // (row, length) -> seeds
    std::set<int64_t> lengths;

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
};

std::string row_name(const std::string& variant, const std::string& evaluation) {
    return evaluation == "plain" ? variant : fmt::format("{} + {}", variant, evaluation);
}

std::vector<std::string> row_names(const Collection& sweep) {
    std::vector<std::string> rows;
    for (const std::string& variant : sweep.groups)
        for (const std::string& evaluation : sweep.labels) rows.push_back(row_name(variant, evaluation));
    return rows;
}

// Lines up columns: the first to the left, the others to the right.
std::string aligned(const std::vector<std::vector<std::string>>& lines) {
    std::vector<size_t> widths;
    for (const auto& line : lines) {
        widths.resize(std::max(widths.size(), line.size()));
        for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], utf8_length(line[i]));
    }
    std::string out;
    for (const auto& line : lines) {
        std::string text;
        for (size_t i = 0; i < line.size(); ++i) {
            const size_t space = widths[i] - utf8_length(line[i]);
            text += i == 0 ? fmt::format("{}{:{}}", line[i], "", space)
                           : fmt::format("  {:{}}{}", "", space, line[i]);
        }
        text.erase(text.find_last_not_of(' ') + 1);
        out += fmt::format("{}\n", text);
    }
    return out;
}

std::vector<std::string> header(const std::string& title, const Measured& measured) {
    std::vector<std::string> line{title};
    for (const int64_t length : measured.lengths) line.push_back(std::to_string(length));
    return line;
}

std::string means(const std::string& title, const std::vector<std::string>& rows, const Measured& measured,
                  int digits) {
    std::vector<std::vector<std::string>> lines{header(title, measured)};
    for (const std::string& row : rows) {
        if (!measured.has(row)) continue;
        std::vector<std::string> line{row};
        for (const int64_t length : measured.lengths) {
            const MeanInterval m = mean_interval(measured.at(row, length));
            std::string cell = m.count > 0 ? fmt::format("{:.{}f}", m.mean, digits) : "-";
            if (m.count > 1) cell += fmt::format(" ±{:.{}f}", m.standard_error, digits);
            line.push_back(cell);
        }
        lines.push_back(line);
    }
    return aligned(lines);
}

std::string differences(const std::string& title, const std::vector<std::string>& rows,
                        const std::string& baseline, const Measured& measured, int digits) {
    std::vector<std::vector<std::string>> lines{header(title, measured)};
    for (const std::string& row : rows) {
        if (row == baseline || !measured.has(row)) continue;
        std::vector<std::string> line{row};
        for (const int64_t length : measured.lengths) {
            const MeanInterval m = paired_difference(measured.at(row, length), measured.at(baseline, length));
            std::string cell = m.count > 0 ? fmt::format("{:+.{}f}", m.mean, digits) : "-";
            if (m.has_interval())
                cell += fmt::format(" [{:+.{}f}, {:+.{}f}]{}", m.low, digits, m.high, digits,
                                    m.excludes_zero() ? "*" : " ");
            line.push_back(cell);
        }
        lines.push_back(line);
    }
    return lines.size() > 1 ? aligned(lines) : "";
}

// Both tables of one quantity; "" if nothing of it was measured.
std::string quantity(const Collection& sweep, const std::string& name, const Measured& measured, int digits) {
    if (measured.cells.empty()) return "";
    const std::vector<std::string> rows = row_names(sweep);
    std::string out = fmt::format("\n{}", means(name + " at context", rows, measured, digits));
    if (sweep.baseline.empty() || !measured.has(sweep.baseline)) return out;
    const std::string table =
        differences(name + " minus " + sweep.baseline, rows, sweep.baseline, measured, digits);
    return table.empty() ? out : fmt::format("{}\n{}", out, table);
}

}  // namespace

std::string sweep_tables(const Collection& sweep) {
    const SweepResults results = sweep_results(sweep);
    std::set<int64_t> seeds;
    Measured loss, top1;
    for (const SweepLoss& l : results.losses) {
        const std::string row = row_name(l.variant, l.evaluation);
        loss.add(row, l.length, l.seed, l.loss);
        if (!std::isnan(l.top1)) top1.add(row, l.length, l.seed, 100 * l.top1);
        seeds.insert(l.seed);
    }
    std::string out = fmt::format("sweep {}: {} of {} measured, {}\n", sweep.title, results.measured,
                                  counted(sweep.planned, "run"), counted(seeds.size(), "seed"));
    out += "± standard error of the mean over seeds";
    if (!sweep.baseline.empty())
        out += fmt::format("; [95% interval of the mean difference to {}, seed by seed], * if 0 lies outside",
                           sweep.baseline);
    out += "\n";
    out += quantity(sweep, "loss", loss, 4);
    out += quantity(sweep, "top-1 %", top1, 2);

    // Of a task, the mean over the depths at each length.
    std::vector<std::string> names;
    for (const SweepTask& t : results.tasks)
        if (std::find(names.begin(), names.end(), t.task) == names.end()) names.push_back(t.task);
    for (const std::string& name : names) {
        struct Sum {
            double value = 0;
            int64_t count = 0;
            void add(double v) {
                value += v;
                ++count;
            }
        };
        std::map<std::tuple<std::string, int64_t, int64_t>, Sum> accuracy, margin;  // row, length, seed
        for (const SweepTask& t : results.tasks) {
            if (t.task != name) continue;
            const std::tuple key(row_name(t.variant, t.evaluation), t.length, t.seed);
            if (!std::isnan(t.accuracy)) accuracy[key].add(100 * t.accuracy);
            if (t.margin) margin[key].add(*t.margin);
        }
        const auto tables = [&](const char* what, const auto& sums, int digits) {
            Measured measured;
            for (const auto& [key, sum] : sums)
                measured.add(std::get<0>(key), std::get<1>(key), std::get<2>(key),
                             sum.value / static_cast<double>(sum.count));
            out += quantity(sweep, name + " " + what, measured, digits);
        };
        tables("accuracy %", accuracy, 2);
        tables("margin", margin, 3);
    }
    return out;
}

}  // namespace longreach
