#include "report/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace longreach {

namespace {

std::map<int64_t, double> loss_by_length(const RunRecord& run) {
    std::map<int64_t, double> out;
    for (const LossRow& row : newest(run.own.losses)) out[row.length] = row.loss;
    return out;
}

std::vector<int64_t> all_lengths(const std::vector<const RunRecord*>& runs) {
    std::set<int64_t> lengths;
    for (const RunRecord* run : runs)
        for (const auto& [length, loss] : loss_by_length(*run)) lengths.insert(length);
    return {lengths.begin(), lengths.end()};
}

size_t name_width(const std::vector<const RunRecord*>& runs) {
    size_t width = 3;
    for (const RunRecord* run : runs) width = std::max(width, run->name.size());
    return width;
}

}  // namespace

std::string comparison_table(const std::vector<const RunRecord*>& runs) {
    const std::vector<int64_t> lengths = all_lengths(runs);
    const size_t width = name_width(runs);
    std::string out = fmt::format("{:<{}}", "loss at context", width + 2);
    for (int64_t length : lengths) out += fmt::format(" {:>8}", length);
    out += '\n';
    for (const RunRecord* run : runs) {
        const std::map<int64_t, double> losses = loss_by_length(*run);
        out += fmt::format("{:<{}}", run->name, std::max(width + 2, std::string("loss at context").size()));
        for (int64_t length : lengths) {
            const auto it = losses.find(length);
            out += it == losses.end() ? fmt::format(" {:>8}", "-") : fmt::format(" {:>8.4f}", it->second);
        }
        out += '\n';
    }
    return out;
}

std::string comparison_chart(const std::vector<const RunRecord*>& runs) {
    constexpr int height = 12, column = 8;
    const std::vector<int64_t> lengths = all_lengths(runs);
    double low = INFINITY, high = -INFINITY;
    for (const RunRecord* run : runs)
        for (const auto& [length, loss] : loss_by_length(*run)) {
            if (!std::isfinite(loss)) continue;
            low = std::min(low, loss);
            high = std::max(high, loss);
        }
    if (!std::isfinite(low)) low = high = 0;  // every run diverged: empty axes
    if (!(high > low)) high = low + 1;

    std::vector<std::string> canvas(height, std::string(lengths.size() * column, ' '));
    const auto row_of = [&](double loss) {
        return static_cast<size_t>(std::lround((high - loss) / (high - low) * (height - 1)));
    };
    std::string legend;
    for (size_t i = 0; i < runs.size(); ++i) {
        const char mark = static_cast<char>('A' + i % 26);
        legend += fmt::format("  {} {}", mark, runs[i]->name);
        std::optional<double> before;
        size_t before_x = 0;
        for (const auto& [length, loss] : loss_by_length(*runs[i])) {
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

}  // namespace longreach
