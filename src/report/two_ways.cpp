#include "report/two_ways.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "decide/paired.h"
#include "table/readable.h"

namespace longreach::report {

namespace {

const std::vector<LossRow>& losses_of(const RunRecord& run, const std::string& label) {
    const auto found = run.evaluations.find(label);
    return found != run.evaluations.end() && (label != "plain" || !found->second.losses.empty())
               ? found->second.losses
               : run.own.losses;
}

struct Way {
    std::string label;
    Measure measure = {};
    LossesByLength loss = {};
    std::map<int64_t, std::vector<double>> document_error = {};

    void add(const RunRecord& run) {
        each_newest(losses_of(run, label), [&](const LossRow& row) {
            measure = row.measure;
            loss[row.length].push_back({run.seed, row.loss});
            if (!std::isnan(row.standard_error)) document_error[row.length].push_back(row.standard_error);
        });
    }
    std::vector<SeedValue> at(int64_t length) const {
        const auto found = loss.find(length);
        return found == loss.end() ? std::vector<SeedValue>() : found->second;
    }
    std::vector<SeedValue> rise(int64_t from, int64_t to) const {
        return paired_differences(at(to), at(from));
    }
};

// Windows, then suffix.
struct Scored {
    std::string group;
    std::string name;  // of the series
    std::array<Way, 2> ways;
};
constexpr std::array way_names{"windows", "suffix"};

std::string align_of(const RunRecord& run, const std::string& label) {
    const auto found = run.evaluations.find(label);
    if (found != run.evaluations.end() && !found->second.align.empty()) return found->second.align;
    const std::string trained = text_at(run.config, "eval.align");
    return trained.empty() ? "chunk" : trained;
}

const LossRow& newest_row(const std::vector<LossRow>& rows) {
    return *std::max_element(rows.begin(), rows.end(),
                             [](const LossRow& a, const LossRow& b) { return a.step < b.step; });
}

// Whether both are of the same model: of one checkpoint, with the same changes. The run as trained has none.
bool same_model(const RunRecord& run, const std::string& a, const std::string& b) {
    const auto changes = [&](const std::string& label) {
        const auto found = run.evaluations.find(label);
        return label == "plain" || found == run.evaluations.end() ? std::vector<std::string>()
                                                                  : found->second.changes;
    };
    const std::vector<LossRow>& of_a = losses_of(run, a);
    const std::vector<LossRow>& of_b = losses_of(run, b);
    return !of_a.empty() && !of_b.empty() && newest_row(of_a).step == newest_row(of_b).step &&
           changes(a) == changes(b);
}

// By the tokens of both ways, in the order of the groups and labels.
std::map<std::pair<std::string, std::string>, std::vector<Scored>> scored_in_two_ways(
    const Collection& collection) {
    std::map<std::pair<std::string, std::string>, std::vector<Scored>> out;
    for (const std::string& group : collection.groups)
        for (const std::string& label : collection.labels)
            for (const RunRecord& run : collection.runs) {
                if (run.group != group || run.behind) continue;
                const auto first = first_way_of(run, label);
                if (!first) continue;
                std::array<std::string, 2> labels{*first, label};
                if (align_of(run, *first) == "suffix") std::swap(labels[0], labels[1]);
                auto& rows = out[{newest_row(losses_of(run, labels[0])).measure.key(),
                                  newest_row(losses_of(run, labels[1])).measure.key()}];
                const std::string name = series_name(group, *first);
                const auto same = [&](const Scored& s) {
                    return s.name == name && s.ways[0].label == labels[0] && s.ways[1].label == labels[1];
                };
                auto at = std::find_if(rows.begin(), rows.end(), same);
                if (at == rows.end())
                    at = rows.insert(rows.end(), {group, name, {Way{labels[0]}, {labels[1]}}});
                for (Way& way : at->ways) way.add(run);
            }
    return out;
}

// "1.4503 ± 0.0024 / 0.0299": the errors over seeds and over documents.
table::Cell errors_cell(const Way& way, int64_t length) {
    const MeanInterval m = mean_interval(way.at(length));
    if (m.count == 0) return "";
    if (std::isnan(m.mean)) return {"not finite", "nan"};
    table::Cell cell = table::spread_cell(m.mean, m.standard_error, 4);
    const auto documents = way.document_error.find(length);
    if (documents == way.document_error.end()) return cell;
    const double error = mean_of(documents->second);
    const char* seeds = std::isnan(m.standard_error) ? " ± -" : "";
    return {fmt::format("{}{} / {}", cell.text, seeds, table::fixed(error, 4)),
            fmt::format("{}{} / {}", cell.exact, seeds, table::exact(error))};
}

// "+0.4447 [+0.2697, +0.6196]".
table::Cell interval_cell(const std::vector<SeedValue>& values) {
    const MeanInterval m = mean_interval(values);
    if (m.count == 0) return "";
    if (std::isnan(m.mean)) return {"not finite", "nan"};
    const auto text = [&](const auto& number) {
        return m.has_interval() ? fmt::format("{} [{}, {}]", number(m.mean), number(m.low), number(m.high))
                                : std::string(number(m.mean));
    };
    return {text([](double v) { return table::signed_fixed(v, 4); }),
            text([](double v) { return table::exact(v); })};
}

// From the training length, if all runs have the same and it was scored in both ways, else from the shortest.
struct Range {
    int64_t from = 0, to = 0;
};
Range range_of(const Collection& collection, const std::vector<Scored>& rows) {
    std::set<int64_t> lengths;
    for (const auto& scored : rows[0].ways[0].loss) {
        const int64_t length = scored.first;
        if (std::all_of(rows.begin(), rows.end(), [&](const Scored& row) {
                return row.ways[0].loss.contains(length) && row.ways[1].loss.contains(length);
            }))
            lengths.insert(length);
    }
    if (lengths.size() < 2) return {};
    const std::vector<int64_t> contexts = summarize(collection).contexts;
    const bool trained =
        contexts.size() == 1 && lengths.contains(contexts[0]) && contexts[0] < *lengths.rbegin();
    return {trained ? contexts[0] : *lengths.begin(), *lengths.rbegin()};
}

table::DataTable table_of(const Collection& collection, const std::vector<Scored>& rows) {
    table::DataTable table{
        .caption = fmt::format(
            "Loss{} by context length scored in two ways (nats per token): {} in windows, {} as suffixes",
            collection.on_set(), rows[0].ways[0].measure.text(), rows[0].ways[1].measure.text()),
        .header = {"variant", "scored by"}};
    std::set<int64_t> lengths;
    for (const Scored& row : rows)
        for (const Way& way : row.ways)
            for (const auto& [length, values] : way.loss) lengths.insert(length);
    const Range range = range_of(collection, rows);
    const std::string baseline = collection.baseline_name();
    const auto base =
        std::find_if(rows.begin(), rows.end(), [&](const Scored& row) { return row.name == baseline; });
    const bool compared = range.to > 0 && rows.size() > 1 && base != rows.end();
    if (range.to > 0)
        table.header.push_back(fmt::format("rise {} to {}", grouped(range.from), grouped(range.to)));
    if (compared) table.header.push_back("less that of " + baseline);
    for (const int64_t length : lengths) table.header.push_back(grouped(length));
    for (const Scored& row : rows)
        for (size_t i = 0; i < row.ways.size(); ++i) {
            std::vector<table::Cell> cells{table::name_cell(row.name), table::text_cell(way_names[i])};
            const auto rise = [&](const Scored& of) { return of.ways[i].rise(range.from, range.to); };
            if (range.to > 0) cells.push_back(interval_cell(rise(row)));
            if (compared)
                cells.push_back(row.name == baseline
                                    ? table::Cell("")
                                    : interval_cell(paired_differences(rise(row), rise(*base))));
            for (const int64_t length : lengths) cells.push_back(errors_cell(row.ways[i], length));
            table.rows.push_back(cells);
        }
    return table;
}

constexpr const char* explanation =
    "Windows are cut from the stream: a longer one gives its tokens more context, and crosses more ends of "
    "documents. A suffix is the same text at the end of a document after prefixes of each length: only the "
    "context changes. The two score different tokens, so a loss compares within a way. ± is the standard "
    "error over seeds / over documents; brackets are 95% intervals over seeds of differences paired by seed.";

}  // namespace

std::optional<std::string> first_way_of(const RunRecord& run, const std::string& label) {
    if (label == "plain" || !run.evaluations.contains(label)) return {};
    const std::string align = align_of(run, label);
    if (align_of(run, "plain") != align && same_model(run, "plain", label)) return "plain";
    if (align != "suffix") return {};
    for (const auto& [other, results] : run.evaluations)
        if (other != "plain" && align_of(run, other) == "chunk" && same_model(run, other, label))
            return other;
    return {};
}

std::vector<table::DataTable> two_ways_tables(const Collection& collection) {
    std::vector<table::DataTable> tables;
    for (const auto& [measures, rows] : scored_in_two_ways(collection))
        tables.push_back(table_of(collection, rows));
    return tables;
}

std::string two_ways_text(const Collection& collection, const table::Terminal& terminal) {
    constexpr std::string_view minus = "\u2212";  // of the page; the other tables have '-'
    std::string out;
    for (const table::DataTable& table : two_ways_tables(collection))
        out += "\n" + table::text_table(table, terminal);
    for (size_t at; (at = out.find(minus)) != out.npos;) out.replace(at, minus.size(), "-");
    return out;
}

Section two_ways_section(const PageContext& page) {
    Section section{"two-ways" + page.suffix, "Scored in two ways", {}};
    size_t number = 0;
    for (table::DataTable& table : two_ways_tables(page.collection)) {
        table.name =
            fmt::format("two-ways{}{}", page.suffix, number++ == 0 ? "" : fmt::format("-{}", number));
        section.html += table_html(page, table);
    }
    if (!section.html.empty()) section.html = paragraph(explanation) + section.html;
    return section;
}

}  // namespace longreach::report
