#include "report/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace longreach {

namespace {

std::vector<int64_t> all_lengths(const std::vector<RunResults>& runs) {
    std::set<int64_t> lengths;
    for (const RunResults& r : runs)
        for (const LengthLoss& l : r.lengths) lengths.insert(l.length);
    return {lengths.begin(), lengths.end()};
}

size_t name_width(const std::vector<RunResults>& runs) {
    size_t width = 3;
    for (const RunResults& r : runs) width = std::max(width, r.name.size());
    return width;
}

}  // namespace

std::string comparison_table(const std::vector<RunResults>& runs) {
    const std::vector<int64_t> lengths = all_lengths(runs);
    const size_t width = name_width(runs);
    std::string out = fmt::format("{:<{}}", "loss at context", width + 2);
    for (int64_t length : lengths) out += fmt::format(" {:>8}", length);
    out += '\n';
    for (const RunResults& r : runs) {
        out += fmt::format("{:<{}}", r.name, std::max(width + 2, std::string("loss at context").size()));
        for (int64_t length : lengths) {
            const auto it = std::find_if(r.lengths.begin(), r.lengths.end(),
                                         [&](const LengthLoss& l) { return l.length == length; });
            out += it == r.lengths.end() ? fmt::format(" {:>8}", "-") : fmt::format(" {:>8.4f}", it->loss);
        }
        out += '\n';
    }
    return out;
}

std::string comparison_chart(const std::vector<RunResults>& runs) {
    constexpr int height = 12, column = 8;
    const std::vector<int64_t> lengths = all_lengths(runs);
    double low = INFINITY, high = -INFINITY;
    for (const RunResults& r : runs)
        for (const LengthLoss& l : r.lengths) {
            if (!std::isfinite(l.loss)) continue;
            low = std::min(low, l.loss);
            high = std::max(high, l.loss);
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
        legend += fmt::format("  {} {}", mark, runs[i].name);
        const LengthLoss* before = nullptr;
        size_t before_x = 0;
        for (const LengthLoss& l : runs[i].lengths) {
            if (!std::isfinite(l.loss)) continue;  // a diverged run leaves a gap; the table has its value
            const size_t index =
                static_cast<size_t>(std::find(lengths.begin(), lengths.end(), l.length) - lengths.begin());
            const size_t x = index * column + column / 2;
            for (size_t between = before_x + 1; before && between < x; ++between) {
                const double f = static_cast<double>(between - before_x) / static_cast<double>(x - before_x);
                char& cell = canvas[row_of(before->loss + f * (l.loss - before->loss))][between];
                if (cell == ' ') cell = '.';
            }
            char& cell = canvas[row_of(l.loss)][x];
            cell = cell == ' ' || cell == '.' ? mark : '*';  // *: two runs at the same place
            before = &l;
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
