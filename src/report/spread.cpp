#include "report/spread.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace longreach::report {

namespace {

constexpr double seen = 0.05;  // nats
constexpr int64_t fewest_seeds = 4;

table::TextLine header(const std::string& title, const std::vector<SpreadRow>& rows) {
    std::set<int64_t> lengths;
    for (const SpreadRow& row : rows)
        for (const auto& [length, values] : row.losses) lengths.insert(length);
    table::TextLine line{title};
    for (const int64_t length : lengths) line.push_back(std::to_string(length));
    return line;
}

// One line per row; cell(row, values) of each length.
template <class Cell>
std::string by_length(const std::string& title, const std::vector<SpreadRow>& rows,
                      const table::Terminal& terminal, Cell cell) {
    std::vector<table::TextLine> lines{header(title, rows)};
    for (const SpreadRow& row : rows) {
        table::TextLine line{row.name};
        for (size_t i = 1; i < lines[0].size(); ++i) {
            const auto at = row.losses.find(std::stoll(lines[0][i].text));
            line.push_back(at == row.losses.end() ? "-" : cell(at->first, at->second));
        }
        lines.push_back(line);
    }
    return fmt::format("\n{}", table::text_table(lines, terminal));
}

std::string seeds_text(const decide::MeanInterval& difference) {
    if (difference.count < fewest_seeds) return "-";
    const auto count = [](double deviation) { return decide::seeds_for(seen, deviation); };
    const decide::SpreadInterval within = decide::spread_interval(difference);
    return fmt::format("{} [{}, {}]", count(difference.standard_deviation), count(within.low),
                       count(within.high));
}

}  // namespace

std::string spread_tables(const std::string& title, const std::vector<SpreadRow>& rows,
                          const std::string& baseline, const table::Terminal& terminal) {
    std::vector<SpreadRow> many;
    const SpreadRow* to = nullptr;
    for (const SpreadRow& row : rows) {
        const auto enough = [](const auto& l) { return std::ssize(l.second) >= fewest_seeds; };
        if (std::any_of(row.losses.begin(), row.losses.end(), enough)) many.push_back(row);
        if (row.name == baseline) to = &row;
    }
    if (many.empty()) return "";
    std::string out = by_length(title + ", standard deviation over seeds [95% interval]", many, terminal,
                                [](int64_t, const std::vector<decide::SeedValue>& values) -> std::string {
                                    const decide::MeanInterval m = decide::mean_interval(values);
                                    if (m.count < 2) return "-";
                                    const decide::SpreadInterval within = decide::spread_interval(m);
                                    return fmt::format("{:.4f} [{:.4f}, {:.4f}]", m.standard_deviation,
                                                       within.low, within.high);
                                });
    if (to == nullptr) return out;
    std::erase_if(many, [&](const SpreadRow& row) { return row.name == baseline; });
    if (many.empty()) return out;
    return out +
           by_length(
               fmt::format("seeds whose interval of {} minus {} reaches {} to each side [by the interval of "
                           "the deviation]",
                           title, baseline, seen),
               many, terminal, [&](int64_t length, const std::vector<decide::SeedValue>& values) {
                   const auto at = to->losses.find(length);
                   return at == to->losses.end() ? std::string("-")
                                                 : seeds_text(decide::paired_difference(values, at->second));
               });
}

}  // namespace longreach::report
