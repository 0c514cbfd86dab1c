#include "report/probe_tables.h"

#include <fmt/format.h>

#include <cmath>

#include "decide/paired.h"
#include "report/summary.h"

namespace longreach::report {

namespace {

// The seeds of a statistic of one series, by length.
using ProbedSeeds = std::map<int64_t, std::vector<SeedValue>>;
// By the name of the statistic and the index of the series.
using ProbedRows = std::map<std::pair<std::string, size_t>, ProbedSeeds>;

struct ProbedMean {
    double sum = 0;
    int64_t count = 0;
};

std::string probed_name(const measure::ProbeRow& row) {
    if (row.length > 0) return row.statistic;
    return row.layer < 0 ? row.statistic + ", model" : fmt::format("{}, layer {}", row.statistic, row.layer);
}

ProbedRows probed(const Collection& collection, const Summary& summary) {
    ProbedRows out;
    const bool evaluated = all_evaluated(collection, &Results::probes);
    for (size_t i = 0; i < summary.series.size(); ++i)
        for (const RunRecord* run : runs_of(collection, summary.series[i])) {
            std::map<std::pair<std::string, int64_t>, ProbedMean> means;  // by name and length
            for (const measure::ProbeRow& row :
                 rows_of(*run, summary.series[i].label, &Results::probes, evaluated)) {
                if (row.bin != 0) continue;
                ProbedMean& mean = means[{probed_name(row), row.length}];
                mean.sum += row.value;
                ++mean.count;
            }
            for (const auto& [at, mean] : means)
                out[{at.first, i}][at.second].push_back(
                    {run->seed, mean.sum / static_cast<double>(mean.count)});
        }
    return out;
}

std::string probed_text(const std::vector<SeedValue>& values) {
    const MeanInterval m = mean_interval(values);
    if (m.count == 0) return "-";
    return m.has_interval() ? fmt::format("{:.4f} [{:.4f}, {:.4f}]", m.mean, m.low, m.high)
                            : fmt::format("{:.4f}", m.mean);
}

std::vector<SeedValue> rise_by_log(const ProbedSeeds& seeds, int64_t from, int64_t to) {
    if (!seeds.contains(from) || !seeds.contains(to)) return {};
    std::vector<SeedValue> rises = paired_differences(seeds.at(to), seeds.at(from));
    for (SeedValue& rise : rises) rise.value /= std::log(static_cast<double>(to) / static_cast<double>(from));
    return rises;
}

}  // namespace

std::string probe_tables(const Collection& collection, const table::Terminal& terminal) {
    const Summary summary = summarize(collection);
    const ProbedRows rows = probed(collection, summary);
    std::set<int64_t> lengths;
    for (const auto& [at, seeds] : rows)
        for (const auto& [length, values] : seeds) lengths.insert(length);
    lengths.erase(0);
    std::vector<table::TextLine> by_length{{"inside attention, mean over heads [95% interval over seeds]"}};
    std::vector<table::TextLine> by_layer{
        {"of any length, mean over heads [95% interval over seeds]", "value"}};
    for (const int64_t length : lengths) by_length[0].push_back(std::to_string(length));
    if (lengths.size() > 1) by_length[0].push_back("per unit of log n");
    for (const auto& [at, seeds] : rows) {
        const std::string name = fmt::format("{}: {}", at.first, summary.styles[at.second].name);
        if (seeds.contains(0)) {
            by_layer.push_back({name, probed_text(seeds.at(0))});
            continue;
        }
        table::TextLine line{name};
        for (const int64_t length : lengths)
            line.push_back(seeds.contains(length) ? probed_text(seeds.at(length)) : "-");
        if (lengths.size() > 1)
            line.push_back(probed_text(rise_by_log(seeds, *lengths.begin(), *lengths.rbegin())));
        by_length.push_back(line);
    }
    std::string out;
    for (const std::vector<table::TextLine>& table : {by_length, by_layer})
        if (table.size() > 1) out += "\n" + table::text_table(table, terminal);
    return out;
}

}  // namespace longreach::report
