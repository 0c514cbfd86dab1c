#include "report/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.h"
#include "report/summary.h"

namespace longreach::report {

namespace {

struct Line {
    std::string name;
    std::map<int64_t, double> losses;  // by length
};

std::vector<Line> lines_of(const Collection& collection) {
    std::vector<Line> out;
    const bool evaluated = all_evaluated(collection, &Results::losses);
    for (const RunRecord& run : collection.runs) {
        Line line{run.name, {}};
        for (const LossRow& row : rows_of(run, "", &Results::losses, evaluated))
            line.losses[row.length] = row.loss;
        if (!line.losses.empty()) out.push_back(line);
    }
    return out;
}

std::vector<int64_t> all_lengths(const std::vector<Line>& lines) {
    std::set<int64_t> lengths;
    for (const Line& line : lines)
        for (const auto& [length, loss] : line.losses) lengths.insert(length);
    return {lengths.begin(), lengths.end()};
}

}  // namespace

std::string comparison_table(const Collection& collection, const table::Terminal& terminal) {
    const std::vector<Line> lines = lines_of(collection);
    const std::vector<int64_t> lengths = all_lengths(lines);
    if (lines.empty()) return {};
    std::vector<table::TextLine> table{{fmt::format("loss{} at context", collection.on_set())}};
    std::map<int64_t, double> best;
    for (int64_t length : lengths) {
        table[0].push_back(std::to_string(length));
        for (const Line& line : lines)
            if (const auto it = line.losses.find(length);
                it != line.losses.end() && std::isfinite(it->second))
                best[length] = std::min(best.emplace(length, it->second).first->second, it->second);
    }
    for (const Line& line : lines) {
        table::TextLine row{line.name};
        for (int64_t length : lengths) {
            const auto it = line.losses.find(length);
            row.push_back(it == line.losses.end()
                              ? table::TextCell("-")
                              : table::TextCell(
                                    fmt::format("{:.4f}", it->second),
                                    lines.size() > 1 && best.contains(length) && it->second == best[length]));
        }
        table.push_back(row);
    }
    return table::text_table(table, terminal) + fmt::format("losses: {}\n", measured_on(collection));
}

std::string comparison_chart(const Collection& collection, const table::Terminal& terminal) {
    constexpr int height = 12, margin = 9;
    const std::vector<Line> runs = lines_of(collection);
    const std::vector<int64_t> lengths = all_lengths(runs);
    if (runs.empty()) return {};
    size_t column = 8;
    if (terminal.width > 0)
        column = std::clamp<size_t>(
            (static_cast<size_t>(terminal.width) - std::min(terminal.width, margin + 9)) / lengths.size(), 5,
            column);
    double low = INFINITY, high = -INFINITY;
    for (const Line& run : runs)
        for (const auto& [length, loss] : run.losses) {
            if (!std::isfinite(loss)) continue;
            low = std::min(low, loss);
            high = std::max(high, loss);
        }
    if (!std::isfinite(low)) low = high = 0;  // every run diverged: empty axes
    if (!(high > low)) high = low + std::max(1.0, std::abs(low));

    std::vector<std::string> canvas(height, std::string(lengths.size() * column, ' '));
    const auto row_of = [&](double loss) {
        const double down = (high - loss) / (high - low);  // not a number where a difference is beyond f64
        return static_cast<size_t>(std::lround((down > 0 ? std::min(down, 1.0) : 0) * (height - 1)));
    };
    std::string legend;
    for (size_t i = 0; i < runs.size(); ++i) {
        const char mark = static_cast<char>('A' + i % 26);
        legend += fmt::format("  {} {}{}", mark, one_line(runs[i].name), i + 1 < runs.size() ? "\n" : "");
        std::optional<double> before;
        size_t before_x = 0;
        for (const auto& [length, loss] : runs[i].losses) {
            if (!std::isfinite(loss)) continue;  // a diverged run leaves a gap; the table has its value
            const size_t index =
                static_cast<size_t>(std::find(lengths.begin(), lengths.end(), length) - lengths.begin());
            const size_t x = index * column + column / 2;
            for (size_t between = before_x + 1; before && between < x; ++between) {
                const double f = static_cast<double>(between - before_x) / static_cast<double>(x - before_x);
                char& cell = canvas[row_of(*before + f * (loss - *before))][between];
                if (cell == ' ') cell = '.';
            }
            char& cell = canvas[row_of(loss)][x];
            cell = cell == ' ' || cell == '.' ? mark : '*';  // *: two runs at the same place
            before = loss;
            before_x = x;
        }
    }
    std::string out;
    for (int y = 0; y < height; ++y) {
        const double value = high - (high - low) * y / (height - 1);
        out += fmt::format("{:>7.3f} |{}\n", value, canvas[static_cast<size_t>(y)]);
    }
    out += fmt::format("{:>7} +{:-<{}}\n{:>9}", "loss", "", lengths.size() * column, "");
    for (int64_t length : lengths) out += fmt::format("{:^{}}", length, column);
    out += "  context\n" + legend + "\n";
    return out;
}

}  // namespace longreach::report
