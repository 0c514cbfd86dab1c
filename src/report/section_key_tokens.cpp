// Losses on the tokens that a long context helps to predict, and on the others, by context length.
//
// Two models are in one chart only if they were scored on the same key tokens: those of one judge, on the same text.
// A model that judges itself has key tokens of its own, whose number compares with that of others, but not the loss.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/text.h"
#include "measure/key_tokens.h"
#include "report/page_parts.h"

namespace longreach::report {

namespace {

struct PartLosses {
    LossesByLength loss;
    std::map<int64_t, std::vector<double>> document_error;
};

// What the runs have whose key tokens are the same.
struct Selection {
    measure::KeyTokenRow first;               // any of its rows: the judge, and the lengths it compared
    std::map<size_t, PartLosses> key, other;  // by series
    std::set<std::pair<const RunRecord*, size_t>> runs;  // with their series
    std::string self;  // the variant of the run that is the judge; empty if none is
    int64_t self_seed = 0;
    double key_count = 0, count = 0;  // tokens
    // Key tokens of one run alone, by its own choice.
    bool own() const { return runs.size() == 1 && !self.empty(); }
    std::string judge() const {
        return first.judge_name.empty() ? "a judge whose name is not recorded" : first.judge_name;
    }
};

std::vector<Selection> selections_of(const PageContext& page) {
    std::map<std::string, Selection> found;
    const bool evaluated = all_evaluated(page.collection, &Results::key_tokens);
    for (size_t i = 0; i < page.summary.series.size(); ++i) {
        const std::string& label = page.summary.series[i].label;
        for (const RunRecord* run : runs_of(page.collection, page.summary.series[i]))
            for (const measure::KeyTokenRow& row : rows_of(*run, label, &Results::key_tokens, evaluated)) {
                // Rows that do not say which tokens they are about compare with nothing.
                const bool identified = !row.fingerprint.empty() && !row.parts.empty();
                Selection& s = found[identified ? row.fingerprint + " " + row.parts
                                                : fmt::format("{} {}", label, run->path)];
                const bool key = row.part == "key";
                if (s.runs.empty() || s.first.length == row.length) {
                    if (s.runs.empty()) s.first = row;
                    (key ? s.key_count : s.count) = row.scored;
                }
                s.runs.insert({run, i});
                if (row.judge == "self") s.self = page.styles()[i].name, s.self_seed = run->seed;
                PartLosses& losses = (key ? s.key : s.other)[i];
                if (std::isnan(row.loss)) continue;
                losses.loss[row.length].push_back({run->seed, row.loss});
                if (!std::isnan(row.standard_error))
                    losses.document_error[row.length].push_back(row.standard_error);
            }
    }
    std::vector<Selection> out;
    for (auto& [name, selection] : found) {
        selection.count += selection.key_count;
        out.push_back(std::move(selection));
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Selection& a, const Selection& b) { return a.runs.size() > b.runs.size(); });
    return out;
}

std::string tokens_text(const Selection& s) {
    return fmt::format("{} of {} scored tokens ({}%)", grouped(std::llround(s.key_count)),
                       grouped(std::llround(s.count)), table::fixed(100 * s.key_count / s.count, 2));
}

std::string rule_text(const Selection& s) {
    const measure::KeyTokenRule rule;
    return fmt::format("falls by {} nats or more from {} to {} tokens of context, to {} or less", rule.gain,
                       grouped(s.first.from), grouped(s.first.to), rule.loss);
}

// With one seed per variant the bands are errors over documents; otherwise over seeds.
bool several_seeds(const std::map<size_t, PartLosses>& part) {
    for (const auto& [series, losses] : part)
        for (const auto& [length, values] : losses.loss)
            if (values.size() > 1) return true;
    return false;
}

struct Part {
    std::string id;     // of the figure, with what tells selections apart
    std::string words;  // "key tokens"
    const std::map<size_t, PartLosses>& losses;
};

plot::LineChart part_chart(const PageContext& page, const Part& part) {
    std::set<int64_t> all;
    for (const auto& [series, losses] : part.losses)
        for (const auto& [length, values] : losses.loss) all.insert(length);
    const std::vector<int64_t> lengths(all.begin(), all.end());
    plot::LineChart chart{
        .id = part.id,
        .title = fmt::format("Loss on {}{} by context length", part.words, page.collection.on_set()),
        .description = fmt::format("Mean loss of the {} by length of the context.", part.words),
        .x_label = "context length in tokens",
        .y_label = "loss, nats per token",
        .log_x = true,
        .x_ticks = length_ticks(lengths),
        .marks = context_marks(page),
        .places = length_places(lengths, "context")};
    const bool over_seeds = several_seeds(part.losses);
    for (const auto& [series, losses] : part.losses) {
        plot::ChartLine line{series};
        for (const auto& [length, values] : losses.loss) {
            const MeanInterval m = mean_interval(values);
            double error = m.standard_error;
            const auto documents = losses.document_error.find(length);
            if (!over_seeds && documents != losses.document_error.end()) error = mean_of(documents->second);
            plot::ChartPoint p{static_cast<double>(length), m.mean};
            if (std::isfinite(error)) p.low = m.mean - error, p.high = m.mean + error;
            p.text = table::spread_cell(m.mean, error, 4).text;
            line.points.push_back(p);
        }
        if (!line.points.empty()) chart.lines.push_back(line);
    }
    return chart;
}

table::DataTable part_table(const PageContext& page, const Part& part) {
    table::DataTable table{.caption = fmt::format("Loss on {}{} by context length (nats per token)",
                                                  part.words, page.collection.on_set()),
                           .header = {"variant", "context", "seeds", "loss", "error over documents",
                                      "minus " + page.collection.baseline_name(),
                                      std::string(page.collection.descriptive()) + "95% interval from", "to"},
                           .interval = 6};
    const auto baseline = part.losses.find(page.summary.baseline);
    for (const auto& [series, losses] : part.losses)
        for (const auto& [length, values] : losses.loss) {
            const MeanInterval m = mean_interval(values);
            MeanInterval gap = mean_interval(std::vector<double>{});
            if (baseline != part.losses.end() && series != page.summary.baseline)
                if (const auto at = baseline->second.loss.find(length); at != baseline->second.loss.end())
                    gap = paired_difference(values, at->second);
            const auto documents = losses.document_error.find(length);
            const auto cell = [](double v) {
                return std::isnan(v) ? table::Cell("")
                                     : table::Cell(table::signed_fixed(v, 4), table::exact(v));
            };
            table.rows.push_back(
                {table::name_cell(page.styles()[series].name),
                 table::count_cell(length),
                 {fmt::format("{}", values.size())},
                 table::spread_cell(m.mean, m.standard_error, 4),
                 table::number_cell(
                     documents == losses.document_error.end() ? NAN : mean_of(documents->second), 4),
                 cell(gap.mean),
                 cell(gap.low),
                 cell(gap.high)});
        }
    return table;
}

std::string part_figure(const PageContext& page, const Part& part) {
    const plot::LineChart chart = part_chart(page, part);
    if (chart.lines.empty()) return paragraph(fmt::format("There are no {}.", part.words));
    const auto loss_of = [&](size_t series) { return &part.losses.at(series).loss; };
    return line_figure(
        page, part.id, paired_views(page, chart, loss_of),
        fmt::format("Loss on {}. {}", part.words,
                    several_seeds(part.losses)
                        ? "Lines are means over seeds, bands one standard error over seeds to each side."
                        : "One seed per variant; bands are one standard error over documents to each side. "
                          "Differences between variants share most of it."),
        part_table(page, part));
}

std::string selection_html(const PageContext& page, const Selection& s, size_t index) {
    std::string text =
        fmt::format("{} are key tokens: the loss of {} on them {}.", tokens_text(s), s.judge(), rule_text(s));
    if (s.own())
        text +=
            " The model chose them by its own losses, among them those where it was lucky: the loss on them "
            "flatters it.";
    else if (!s.self.empty())
        text += fmt::format(
            " The judge is {} (seed {}) itself, which chose where its own losses are low: its loss on key "
            "tokens is too low compared with those of the others.",
            s.self, s.self_seed);
    const std::string id = fmt::format("{}{}", index == 0 ? "" : fmt::format("-{}", index), page.suffix);
    return paragraph(text) + part_figure(page, {"key-tokens" + id, "key tokens", s.key}) +
           part_figure(page, {"other-tokens" + id, "the other tokens", s.other});
}

// How many key tokens each model has by its own losses, a table per text and pair of lengths.
std::string own_html(const PageContext& page, const std::vector<const Selection*>& own) {
    std::map<std::tuple<std::string, int64_t, int64_t>, table::DataTable> tables;
    for (const Selection* s : own) {
        table::DataTable& table = tables[{s->first.fingerprint, s->first.from, s->first.to}];
        table.caption = fmt::format("Tokens whose loss {}{}", rule_text(*s), page.collection.on_set());
        table.header = {"variant", "seed", "scored tokens", "key tokens", "share in %"};
        table.name = fmt::format("own-key-tokens{}-{}", page.suffix, tables.size());
        table.rows.push_back({table::name_cell(s->self),
                              {fmt::format("{}", s->self_seed)},
                              table::number_cell(s->count, 0),
                              table::number_cell(s->key_count, 0),
                              table::number_cell(100 * s->key_count / s->count, 2)});
    }
    std::string html = paragraph(
        "Each of these models is its own judge, so its key tokens are its own. Their number says how much of "
        "the text the model predicts better by a longer context. The losses on them are losses of different "
        "tokens and are not shown: name the --token-losses of one model to `eval --key-tokens` of all.");
    for (const auto& [measure, table] : tables) html += table_html(page, table);
    return html;
}

}  // namespace

Section key_tokens_section(const PageContext& page) {
    Section section{"key-tokens" + page.suffix, "Key tokens", {}};
    const std::vector<Selection> selections = selections_of(page);
    if (selections.empty()) return section;
    Menu menu{"key tokens of", {}};
    std::vector<ChosenPiece> pieces;
    std::vector<const Selection*> own;
    for (const Selection& s : selections) {
        if (s.own() && selections.size() > 1) {
            own.push_back(&s);
            continue;
        }
        const std::string key = fmt::format("{}", pieces.size());
        menu.choices.push_back({key, fmt::format("{}, {}", s.judge(), counted(s.runs.size(), "run"))});
        pieces.push_back({{key}, selection_html(page, s, pieces.size())});
    }
    if (!own.empty()) {
        menu.choices.push_back({"own", "each model itself"});
        pieces.push_back({{"own"}, own_html(page, own)});
    }
    section.html = chooser(section.id, {menu}, pieces, pieces[0].keys);
    if (pieces.size() > 1)
        section.html =
            paragraph("Losses on key tokens of different judges are not comparable.") + section.html;
    return section;
}

}  // namespace longreach::report
