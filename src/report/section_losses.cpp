// Losses by length: the overview, the tables, differences between variants, losses by position.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "report/comparable.h"
#include "report/page_parts.h"
#include "report/two_ways.h"

namespace longreach::report {

namespace {

std::string with_error(const MeanInterval& m, int decimals) {
    return table::fixed(m.mean, decimals) +
           (m.has_interval() ? " ± " + table::fixed(m.standard_error, decimals) : std::string());
}

// NaN is a loss that is not finite: there is no cell for a length that was not measured.
table::Cell loss_cell(const std::vector<SeedValue>& values) {
    const MeanInterval m = mean_interval(values);
    return std::isnan(m.mean) ? table::Cell{"not finite", "nan"}
                              : table::spread_cell(m.mean, m.standard_error, 4);
}

std::string loss_caption(const PageContext& page) {
    return fmt::format("Loss{} by context length (nats per token)", page.collection.on_set());
}

table::DataTable by_length(const PageContext& page, const std::string& caption, LossesByLength Series::*what,
                           bool low_is_good) {
    table::DataTable table{.name = (low_is_good ? "losses" : "top1") + page.suffix,
                           .caption = caption,
                           .header = {"variant", "seeds"}};
    std::set<int64_t> lengths;
    for (const Series& s : page.summary.series)
        for (const auto& [length, values] : s.*what) lengths.insert(length);
    std::map<int64_t, double> best;
    for (int64_t length : lengths) {
        table.header.push_back(grouped(length));
        for (const Series& s : page.summary.series) {
            const auto found = (s.*what).find(length);
            if (found == (s.*what).end()) continue;
            const double mean = mean_interval(found->second).mean;
            if (!std::isfinite(mean)) continue;
            const auto [at, fresh] = best.emplace(length, mean);
            if (!fresh && (low_is_good ? mean < at->second : mean > at->second)) at->second = mean;
        }
    }
    for (size_t i = 0; i < page.summary.series.size(); ++i) {
        const LossesByLength& values = page.summary.series[i].*what;
        if (values.empty()) continue;
        size_t seeds = 0;
        for (const auto& [length, v] : values) seeds = std::max(seeds, v.size());
        std::vector<table::Cell> row{table::name_cell(page.styles()[i].name), {fmt::format("{}", seeds)}};
        for (int64_t length : lengths) {
            const auto found = values.find(length);
            if (found == values.end()) {
                row.push_back("");
                continue;
            }
            const double mean = mean_interval(found->second).mean;
            const bool spread = low_is_good || page.summary.series[i].top1_error.contains(length);
            row.push_back(spread || std::isnan(mean) ? loss_cell(found->second)
                                                     : seeds_cell(found->second, 4));
            if (best.contains(length) && mean == best[length]) row.back().tone = "best";
        }
        table.rows.push_back(row);
    }
    return table;
}

using ErrorsByLength = std::map<int64_t, std::vector<double>>;

// Without rows if no error is known.
table::DataTable error_table(const PageContext& page, const char* name, const char* of,
                             ErrorsByLength Series::*errors) {
    table::DataTable table{.name = name + page.suffix,
                           .caption = fmt::format("Standard error{} over documents, mean over seeds ({})",
                                                  page.collection.on_set(), of),
                           .header = {"variant"}};
    for (int64_t length : page.summary.lengths) table.header.push_back(grouped(length));
    for (size_t i = 0; i < page.summary.series.size(); ++i) {
        const ErrorsByLength& known = page.summary.series[i].*errors;
        if (known.empty()) continue;
        std::vector<table::Cell> row{table::name_cell(page.styles()[i].name)};
        for (int64_t length : page.summary.lengths) {
            const auto found = known.find(length);
            row.push_back(table::number_cell(found == known.end() ? NAN : mean_of(found->second), 4));
        }
        table.rows.push_back(row);
    }
    return table;
}

// The errors over documents, that is over another choice of them; empty if they are unknown.
std::string document_errors(const PageContext& page) {
    const table::DataTable loss =
        error_table(page, "document-errors", "nats per token", &Series::document_error);
    const table::DataTable top1 = error_table(page, "top1-errors", "share of tokens", &Series::top1_error);
    if (loss.rows.empty()) return {};
    const double documents = page.collection.measure.documents;
    return subheading("Error over documents") +
           paragraph(fmt::format(
               "The losses come from {}. All seeds read the same text, so this error does not shrink with "
               "their number; differences between variants share most of it.",
               std::isnan(documents) ? std::string("an unknown number of documents")
                                     : counted(static_cast<size_t>(documents), "document"))) +
           table_html(page, loss) + (top1.rows.empty() ? std::string() : table_html(page, top1));
}

}  // namespace

std::string loss_figure(const PageContext& page) {
    const plot::LineChart chart = length_chart(page);
    if (chart.lines.empty()) return {};
    bool bands = false;
    for (const plot::ChartLine& line : chart.lines)
        for (const plot::ChartPoint& p : line.points) bands |= std::isfinite(p.low);
    const std::vector<View> views =
        paired_views(page, chart, [&](size_t series) { return &page.summary.series[series].loss; });
    const size_t shown = readable_view(views);
    return line_figure(
        page, "loss-by-length" + page.suffix, views,
        fmt::format("{}{}: {}.{}{}",
                    page.collection.measure.identified()
                        ? "Loss of the same text read with different lengths of context"
                        : "Loss by length of context",
                    page.summary.final_losses ? "" : ", from the newest validation of each run",
                    measured_on(page.collection),
                    bands ? " Lines are means over seeds, bands one standard error to each side." : "",
                    shown == 0 ? std::string()
                               : fmt::format(" One line takes more than half of a linear axis, so the "
                                             "chart begins as: {}.",
                                             views[shown].text)),
        by_length(page, loss_caption(page), &Series::loss, true), shown);
}

plot::LineChart length_chart(const PageContext& page) {
    const bool on_task = !page.summary.tasks.empty();
    plot::LineChart chart{.id = "by-length" + page.suffix,
                          .title = !page.collection.set.empty()
                                       ? "Loss" + page.collection.on_set() + " by context length"
                                   : on_task ? "Loss on text by context length"
                                             : "Loss by context length",
                          .x_label = "context length in tokens",
                          .y_label = "loss, nats per token",
                          .log_x = true,
                          .x_ticks = length_ticks(page.summary.lengths),
                          .marks = context_marks(page),
                          .places = length_places(page.summary.lengths, "context")};
    for (size_t i = 0; i < page.summary.series.size(); ++i) {
        plot::ChartLine line{i};
        for (const auto& [length, values] : page.summary.series[i].loss) {
            const MeanInterval m = mean_interval(values);
            plot::ChartPoint p{static_cast<double>(length), m.mean};
            if (m.has_interval()) {
                p.low = m.mean - m.standard_error;
                p.high = m.mean + m.standard_error;
            }
            p.text = with_error(m, 4);
            line.points.push_back(p);
        }
        if (!line.points.empty()) chart.lines.push_back(line);
    }
    const auto sentences = headline(page.collection, page.summary);
    chart.description = on_task             ? "The runs train on a task; text is not what they learn."
                        : sentences.empty() ? ""
                                            : sentences[0];
    return chart;
}

Section overview_section(const PageContext& page) {
    Section section{"overview", "Overview", {}};
    const bool on_task = !page.summary.tasks.empty();
    const std::vector<std::string> sentences = on_task && page.collection.set.empty()
                                                   ? task_headline(page)
                                                   : headline(page.collection, page.summary);
    section.html = "<p class=\"lead\">" + plot::escaped(sentences[0]) + "</p>\n";
    std::vector<std::string> rest(sentences.begin() + 1, sentences.end());
    if (!rest.empty()) section.html += paragraph(join(rest, " "));
    if (!page.collection.notes.empty()) {
        section.html += "<ul class=\"notes\">";
        for (const std::string& note : page.collection.notes)
            section.html += "<li>" + plot::escaped(note) + "</li>";
        section.html += "</ul>\n";
    }
    // The figures of the task are right below.
    if (!on_task) section.html += loss_figure(page);
    return section;
}

Section lengths_section(const PageContext& page) {
    Section section{"lengths", "Loss by length", {}};
    if (page.summary.longest == 0) return section;
    if (!page.summary.tasks.empty())
        section.html += paragraph(
                            "These runs train on samples of a task. What they lose on text, here and below, "
                            "says little about what they can do.") +
                        loss_figure(page);
    section.html += paragraph(
        "Mean over seeds ± its standard error over seeds; without ± there is one seed. The lowest mean of "
        "each column is bold.");
    section.html += table_html(page, by_length(page, loss_caption(page), &Series::loss, true));
    const table::DataTable top1 = by_length(
        page, "Share of tokens whose most likely next token is the right one" + page.collection.on_set(),
        &Series::top1, false);
    const bool errors = std::any_of(page.summary.series.begin(), page.summary.series.end(),
                                    [](const Series& s) { return !s.top1_error.empty(); });
    if (!top1.rows.empty())
        section.html +=
            subheading("Top-1 accuracy") +
            paragraph(errors ? "Mean over seeds ± its standard error over seeds; with the value of "
                               "each seed where the error over documents is unknown."
                             : "Mean over seeds, with the value of each seed.") +
            table_html(page, top1);
    section.html += document_errors(page);
    return section;
}

Section apart_section(const PageContext& page) {
    Section section{"apart", "Shown apart", {}};
    size_t number = 0;
    for (const ApartLosses& apart : losses_apart(page.collection)) {
        table::DataTable table{
            .name = fmt::format("apart{}-{}", page.suffix, ++number),
            .caption = fmt::format("Loss{} by context length on {} (nats per token)",
                                   page.collection.set.empty() ? "" : " of " + page.collection.set,
                                   apart.measure.text()),
            .header = {"variant"}};
        std::set<int64_t> lengths;
        for (const ApartLosses::Row& row : apart.rows)
            for (const auto& [length, values] : row.loss) lengths.insert(length);
        for (int64_t length : lengths) table.header.push_back(grouped(length));
        for (const ApartLosses::Row& row : apart.rows) {
            std::vector<table::Cell> cells{table::name_cell(series_name(row.group, row.label))};
            for (int64_t length : lengths) {
                const auto found = row.loss.find(length);
                cells.push_back(found == row.loss.end() ? table::Cell("") : loss_cell(found->second));
            }
            table.rows.push_back(cells);
        }
        section.html += table_html(page, table);
    }
    table::DataTable tasks{
        .name = "tasks-apart",
        .caption = "Tasks on other samples",
        .header = {"variant", "seed", "task", "context", "depth %", "samples", "accuracy"}};
    for (const ApartTask& t : tasks_apart(page.collection))
        tasks.rows.push_back({table::name_cell(series_name(t.group, t.label)),
                              {fmt::format("{}", t.seed)},
                              {t.cell.task, {}, false},
                              table::count_cell(t.cell.length),
                              table::significant_cell(t.cell.percent()),
                              table::number_cell(static_cast<double>(t.cell.samples), 0),
                              table::number_cell(t.cell.accuracy, 3)});
    if (!tasks.rows.empty()) section.html += table_html(page, tasks);
    if (!section.html.empty())
        section.html =
            paragraph(
                "Measured on other tokens or samples than the results above, or on tokens that cannot be "
                "shown to be the same: these numbers compare with those of their own table only.") +
            section.html;
    return section;
}

namespace {

// One row per variant that shares a seed with the baseline at this
// length, from best to worst; values that are not finite come last.
std::vector<plot::IntervalRow> difference_rows(const PageContext& page, int64_t length) {
    const std::vector<SeedValue>& base = page.summary.series[page.summary.baseline].loss.at(length);
    std::vector<plot::IntervalRow> rows;
    for (size_t i = 0; i < page.summary.series.size(); ++i) {
        const auto found = page.summary.series[i].loss.find(length);
        if (i == page.summary.baseline || found == page.summary.series[i].loss.end()) continue;
        const std::vector<SeedValue> differences = paired_differences(found->second, base);
        if (differences.empty()) continue;
        const MeanInterval m = mean_interval(differences);
        plot::IntervalRow row{i, m.mean, m.low, m.high, {}, table::signed_fixed(m.mean, 4)};
        for (const SeedValue& d : differences) row.values.push_back(d.value);
        if (m.has_interval())
            row.text += fmt::format(", {}95% interval {} to {}", page.collection.descriptive(),
                                    table::signed_fixed(m.low, 4), table::signed_fixed(m.high, 4));
        row.text += fmt::format(" ({})", counted(differences.size(), "shared seed"));
        rows.push_back(row);
    }
    std::stable_sort(rows.begin(), rows.end(), [](const plot::IntervalRow& a, const plot::IntervalRow& b) {
        if (std::isnan(a.mean) || std::isnan(b.mean)) return !std::isnan(a.mean) && std::isnan(b.mean);
        return a.mean < b.mean;
    });
    return rows;
}

table::DataTable difference_table(const PageContext& page, int64_t length,
                                  const std::vector<plot::IntervalRow>& rows) {
    table::DataTable table{
        .caption = fmt::format("Difference of loss{} to {}, paired by seed (nats per token)",
                               page.collection.on_set(), page.collection.baseline_name()),
        .header = {"variant", "context", "shared seeds", "difference",
                   std::string(page.collection.descriptive()) + "95% interval from", "to"},
        .interval = 4};
    const auto cell = [](double v) {
        return std::isnan(v) ? table::Cell("") : table::Cell(table::signed_fixed(v, 4), table::exact(v));
    };
    for (const plot::IntervalRow& row : rows)
        table.rows.push_back({table::name_cell(page.styles()[row.series].name),
                              table::count_cell(length),
                              {fmt::format("{}", row.values.size())},
                              std::isnan(row.mean) ? table::Cell("not finite", "nan") : cell(row.mean),
                              cell(row.low),
                              cell(row.high)});
    return table;
}

std::string difference_figure(const PageContext& page, int64_t length,
                              const std::vector<plot::IntervalRow>& rows) {
    size_t settled = 0, intervals = 0;
    std::vector<size_t> series;
    for (const plot::IntervalRow& row : rows) {
        const bool known = std::isfinite(row.low) && std::isfinite(row.high);
        intervals += known;
        settled += known && (row.low > 0 || row.high < 0);
        series.push_back(row.series);
    }
    std::sort(series.begin(), series.end());
    plot::IntervalChart chart;
    chart.id = fmt::format("difference-{}{}", length, page.suffix);
    chart.title = fmt::format("Difference of loss{} to {} at a context of {}", page.collection.on_set(),
                              page.collection.baseline_name(), grouped(length));
    chart.description = fmt::format("{} of {} intervals exclude zero.", settled, intervals);
    chart.x_label = "difference of loss in nats (left of 0 is better)";
    chart.rows = rows;
    const std::string caption =
        intervals > 0
            ? fmt::format(
                  "At a context of {}: mean difference with its {}95% t-interval; small dots are single "
                  "seeds. {} of {} intervals exclude zero; each is on its own, without correction for "
                  "their number.",
                  grouped(length), page.collection.descriptive(), settled, intervals)
            : fmt::format(
                  "At a context of {}. An interval needs two shared seeds with finite losses; without "
                  "one, a difference cannot be told from seed noise.",
                  grouped(length));
    const std::string wide = plot::interval_svg(chart, page.styles(), plot::ChartSize::wide);
    return figure(page, fmt::format("differences-{}{}", length, page.suffix),
                  {wide + plot::interval_svg(chart, page.styles(), plot::ChartSize::narrow),
                   {{.title = chart.title, .charts = {wide}}}},
                  series, caption, difference_table(page, length, rows));
}

}  // namespace

Section differences_section(const PageContext& page) {
    Section section{"differences", "Differences to " + page.collection.baseline_name(), {}};
    Menu menu{"context length", {}};
    std::vector<ChosenPiece> pieces;
    for (const auto& [length, base] : page.summary.series[page.summary.baseline].loss) {
        const std::vector<plot::IntervalRow> rows = difference_rows(page, length);
        if (rows.empty()) continue;
        const std::string key = fmt::format("{}", length);
        menu.choices.push_back({key, grouped(length)});
        pieces.push_back({{key}, difference_figure(page, length, rows)});
    }
    if (pieces.empty()) return section;
    section.html = paragraph(
        "Runs with the same seed share their initial weights and the order of their data where shapes allow "
        "it, so the difference seed by seed is known better than either mean.");
    section.html += chooser("differences" + page.suffix, {menu}, pieces, pieces.back().keys);
    return section;
}

Section positions_section(const PageContext& page) {
    Section section{"positions", "Loss by position", {}};
    const bool evaluated = all_evaluated(page.collection, &Results::buckets);
    std::map<int64_t, std::set<size_t>> measured;  // series by length
    for (size_t i = 0; i < page.summary.series.size(); ++i)
        for (const RunRecord* run : runs_of(page.collection, page.summary.series[i]))
            for (const BucketRow& row :
                 rows_of(*run, page.summary.series[i].label, &Results::buckets, evaluated))
                measured[row.length].insert(i);
    const int64_t length = longest_shared(measured);
    if (length == 0) return section;
    Menu menu{"position counted in", {}};
    std::vector<ChosenPiece> pieces;
    for (const bool by_document : {false, true}) {
        const std::string key = by_document ? "document" : "sequence";
        plot::LineChart chart{
            .id = fmt::format("by-{}-position{}", key, page.suffix),
            .title = fmt::format("Loss{} by position in the {} at a context of {}", page.collection.on_set(),
                                 key, grouped(length)),
            .description = "Each point is the mean loss of the tokens in a bucket of positions.",
            .x_label = "position in the " + key,
            .y_label = "loss, nats per token",
            .log_x = true,
            .marks = context_marks(page)};
        std::set<int64_t> buckets;
        std::vector<SeedsByPosition> values(page.summary.series.size());
        for (size_t i = 0; i < page.summary.series.size(); ++i)
            for (const RunRecord* run : runs_of(page.collection, page.summary.series[i]))
                for (const BucketRow& row :
                     rows_of(*run, page.summary.series[i].label, &Results::buckets, evaluated))
                    if (row.length == length && row.by_document() == by_document) {
                        values[i][row.bucket].push_back(row.loss);
                        buckets.insert(row.bucket);
                    }
        if (buckets.empty()) continue;
        table::DataTable table{.caption = chart.title + " (nats per token)", .header = {"variant"}};
        for (int64_t bucket : buckets) {
            table.header.push_back(grouped(bucket));
            chart.places.push_back({static_cast<double>(bucket),
                                    fmt::format("{} to {}", grouped(bucket), grouped(2 * bucket - 1))});
        }
        for (size_t i = 0; i < values.size(); ++i)
            if (!values[i].empty()) add_means(page, i, values[i], buckets, chart, table);
        menu.choices.push_back({key, "the " + key});
        pieces.push_back(
            {{key},
             line_figure(page, "positions-" + key + page.suffix, views_of(page, chart, 4),
                         fmt::format("Sequences of {} tokens; each point averages the tokens whose "
                                     "position lies between it and twice that.",
                                     grouped(length)),
                         table)});
    }
    if (pieces.empty()) return section;
    section.html = chooser("positions" + page.suffix, {menu}, pieces, pieces[0].keys);
    return section;
}

Section set_section(const PageContext& page) {
    Section section{"losses" + page.suffix, "Losses: " + page.collection.set, {}};
    section.html = overview_section(page).html;
    if (page.summary.longest == 0) return section;
    section.html += lengths_section(page).html;
    for (const Section& part : {two_ways_section(page), differences_section(page), positions_section(page),
                                key_tokens_section(page), apart_section(page)})
        if (!part.html.empty()) section.html += subheading(part.title) + part.html;
    section.html += validation_figures(page);
    return section;
}

}  // namespace longreach::report
