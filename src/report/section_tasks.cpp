// Tasks: accuracy by length, and by the depth of the answer in the context.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "report/page_parts.h"
#include "plot/heat_map.h"

namespace longreach::report {

namespace {

// Means over seeds (and over depths, unless they are separated), weighted by samples.
struct Score {
    double samples = 0, accuracy = 0, margin = 0, margin_samples = 0, loss = 0, loss_samples = 0;
    std::map<int64_t, std::pair<double, double>> by_seed;  // correct answers and samples
    void add(const TaskCell& row, int64_t seed) {
        const double n = row.samples > 0 ? static_cast<double>(row.samples) : 1;
        if (!std::isfinite(row.accuracy)) return;
        samples += n;
        accuracy += n * row.accuracy;
        by_seed[seed].first += n * row.accuracy;
        by_seed[seed].second += n;
        if (row.margin && std::isfinite(*row.margin)) margin += n * *row.margin, margin_samples += n;
        if (std::isfinite(row.loss)) loss += n * row.loss, loss_samples += n;
    }
    double mean_accuracy() const { return samples > 0 ? accuracy / samples : NAN; }
    double mean_margin() const { return margin_samples > 0 ? margin / margin_samples : NAN; }
    double mean_loss() const { return loss_samples > 0 ? loss / loss_samples : NAN; }
    std::vector<SeedValue> seeds() const {
        std::vector<SeedValue> values;
        for (const auto& [seed, sum] : by_seed) values.push_back({seed, sum.first / sum.second});
        return values;
    }
};

struct TaskScores {
    std::set<int64_t> lengths;
    std::set<double> depths;  // percent
    std::vector<std::map<int64_t, Score>> by_length;
    std::vector<std::map<std::pair<double, int64_t>, Score>> by_depth;
};

std::map<std::string, TaskScores> scores_of(const PageContext& page) {
    std::map<std::string, TaskScores> out;
    const bool evaluated = all_evaluated(page.collection, &Results::tasks);
    const size_t count = page.summary.series.size();
    for (size_t i = 0; i < count; ++i)
        for (const RunRecord* run : runs_of(page.collection, page.summary.series[i]))
            for (const TaskCell& row :
                 rows_of(*run, page.summary.series[i].label, &Results::tasks, evaluated)) {
                TaskScores& task = out[row.task];
                task.by_length.resize(count);
                task.by_depth.resize(count);
                task.lengths.insert(row.length);
                task.by_length[i][row.length].add(row, run->seed);
                if (!row.depth) continue;
                task.depths.insert(row.percent());
                task.by_depth[i][{row.percent(), row.length}].add(row, run->seed);
            }
    return out;
}

std::string score_text(const Score& s) {
    std::string text = fmt::format("accuracy {}", table::fixed(s.mean_accuracy(), 3));
    if (std::isfinite(s.mean_margin()))
        text += fmt::format("\nmargin {} nats", table::signed_fixed(s.mean_margin(), 3));
    if (std::isfinite(s.mean_loss())) text += fmt::format("\nloss {}", table::fixed(s.mean_loss(), 3));
    return text + fmt::format("\n{} samples", grouped(static_cast<int64_t>(s.samples)));
}

std::string accuracy_figure(const PageContext& page, const std::string& name, const TaskScores& task,
                            const std::string& id) {
    const std::vector<int64_t> lengths(task.lengths.begin(), task.lengths.end());
    plot::LineChart chart{.id = "task-" + id,
                          .title = fmt::format("Accuracy in {} by context length", name),
                          .description = "Share of right answers by length of the context.",
                          .x_label = "context length in tokens",
                          .y_label = "accuracy",
                          .log_x = true,
                          .x_ticks = length_ticks(lengths),
                          .marks = context_marks(page),
                          .places = length_places(lengths, "context"),
                          .y_low = -0.02,
                          .y_high = 1.02};
    table::DataTable table{.caption = fmt::format("{}: accuracy and margin (nats) by context length", name),
                           .header = {"variant", "context", "samples", "accuracy", "margin", "loss"}};
    for (size_t i = 0; i < task.by_length.size(); ++i) {
        plot::ChartLine line{i};
        for (const auto& [length, score] : task.by_length[i]) {
            plot::ChartPoint p{static_cast<double>(length), score.mean_accuracy()};
            const std::vector<SeedValue> seeds = score.seeds();
            if (seeds.size() > 1)
                for (const SeedValue& seed : seeds) p.seeds.push_back(seed.value);
            p.text = seeds_cell(seeds, 3).text;
            line.points.push_back(p);
            table.rows.push_back({table::name_cell(page.styles()[i].name),
                                  table::count_cell(length),
                                  {grouped(static_cast<int64_t>(score.samples)), table::exact(score.samples)},
                                  seeds_cell(seeds, 3),
                                  table::number_cell(score.mean_margin(), 3),
                                  table::number_cell(score.mean_loss(), 3)});
        }
        if (!line.points.empty()) chart.lines.push_back(line);
    }
    // Accuracies may be 0, which has no logarithm.
    std::vector<View> views = views_of(page, chart, 3);
    std::erase_if(views, [](const View& view) { return view.key == "log"; });
    return line_figure(
        page, "task-" + name, views,
        "Share of right answers over all depths: lines are means over seeds, small dots the single seeds.",
        table);
}

std::string colour_key() {
    std::string shades;
    for (int i = 0; i < 32; ++i)
        shades += fmt::format("<rect x=\"{}\" width=\"5.2\" height=\"10\" fill=\"{}\"/>", 5 * i,
                              plot::heat_colour((i + 0.5) / 32));
    return filled("ramp", {{"shades", shades}});
}

std::string depth_figure(const PageContext& page, const std::string& name, const TaskScores& task,
                         const std::string& id) {
    const std::vector<int64_t> lengths(task.lengths.begin(), task.lengths.end());
    const std::vector<double> depths(task.depths.begin(), task.depths.end());
    table::DataTable table{
        .caption = fmt::format("{}: accuracy and margin (nats) by depth and context length", name),
        .header = {"variant", "depth %", "context", "samples", "accuracy", "margin"}};
    Charts charts{"<div class=\"panels heats\">", {{.title = table.caption}}};
    std::vector<size_t> series;
    for (size_t i = 0; i < task.by_depth.size(); ++i) {
        if (task.by_depth[i].empty()) continue;
        series.push_back(i);
        plot::HeatPanel panel;
        panel.id = fmt::format("depth-{}-{}", id, i);
        panel.title = page.styles()[i].name;
        panel.series = i;
        panel.description =
            fmt::format("Accuracy in {} by depth (rows, percent) and context length (columns).", name);
        panel.x_label = "context";
        for (int64_t length : lengths) panel.columns.push_back(table::short_length(length));
        for (double depth : depths) panel.rows.push_back(table::significant(depth, 3) + "%");
        for (const auto& [place, score] : task.by_depth[i]) {
            const auto [depth, length] = place;
            const double accuracy = score.mean_accuracy();
            if (!std::isfinite(accuracy)) continue;
            plot::HeatCell cell;
            cell.row = static_cast<size_t>(std::find(depths.begin(), depths.end(), depth) - depths.begin());
            cell.column =
                static_cast<size_t>(std::find(lengths.begin(), lengths.end(), length) - lengths.begin());
            cell.share = accuracy;
            cell.label = table::fixed(accuracy, 2);
            cell.text = fmt::format("{}\n{} tokens, depth {}%\n{}", page.styles()[i].name, grouped(length),
                                    table::significant(depth, 3), score_text(score));
            panel.cells.push_back(cell);
            table.rows.push_back({table::name_cell(page.styles()[i].name),
                                  {table::significant(depth, 3), table::exact(depth)},
                                  table::count_cell(length),
                                  {grouped(static_cast<int64_t>(score.samples)), table::exact(score.samples)},
                                  table::number_cell(accuracy, 3),
                                  table::number_cell(score.mean_margin(), 3)});
        }
        charts.pictures[0].charts.push_back(plot::heat_svg(panel));
        charts.html += charts.pictures[0].charts.back();
    }
    if (series.empty()) return {};
    charts.html += "</div>" + colour_key();
    return figure(
        page, "depth-" + name, charts, series,
        "Rows: how far into the context the answer lies; columns: length of the context. Margin in the "
        "read-out: log p(answer) − log p(decoy).",
        table);
}

// The longest of the lengths that most variants have in the evaluations listed in the sweep.
int64_t common_length(const PageContext& page, const TaskScores& task) {
    std::map<int64_t, std::set<std::string>> variants;
    for (size_t i = 0; i < task.by_length.size(); ++i)
        if (page.summary.series[i].own)
            for (const auto& [length, score] : task.by_length[i])
                variants[length].insert(page.summary.series[i].group);
    return longest_shared(variants);
}

// The value of each seed: with few seeds, an interval of shares near 0 or 1 is not meaningful.
std::string seed_list(const std::vector<SeedValue>& values, bool with_sign) {
    std::vector<std::string> out;
    for (const SeedValue& v : values)
        out.push_back(with_sign ? table::signed_fixed(v.value, 3) : table::fixed(v.value, 3));
    return join(out, ", ");
}

std::vector<std::string> headline_of(const PageContext& page, const std::string& name,
                                     const TaskScores& task) {
    struct Candidate {
        std::string name, group;
        const Score* score;
        double mean;  // over seeds
    };
    const int64_t length = common_length(page, task);
    std::vector<Candidate> candidates;
    for (size_t i = 0; i < task.by_length.size(); ++i) {
        const Series& series = page.summary.series[i];
        const auto found = task.by_length[i].find(length);
        if (!series.own || found == task.by_length[i].end() || found->second.samples == 0) continue;
        candidates.push_back(
            {page.styles()[i].name, series.group, &found->second, mean_interval(found->second.seeds()).mean});
    }
    const std::string where = at_length(page.summary, length);
    if (candidates.empty()) return {fmt::format("{} no accuracy in {} is a number.", where, name)};
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& a, const Candidate& b) { return a.mean > b.mean; });
    const Candidate& best = candidates[0];
    const size_t seeds = best.score->by_seed.size();
    std::string value = table::fixed(best.mean, 3) + fmt::format(" ({}", counted(seeds, "seed"));
    if (seeds > 1) value += ": " + seed_list(best.score->seeds(), false);
    value += ")";
    if (candidates.size() == 1)
        return {fmt::format("{}, the accuracy of {} in {} is {}.", where, best.name, name, value)};
    std::vector<std::string> equals;
    for (const Candidate& c : candidates)
        if (c.mean == best.mean) equals.push_back(c.name);
    if (equals.size() > 1)
        return {fmt::format(
            "{}, {} of {} share the highest accuracy in {}, {}: {}.", where, equals.size(),
            counted(candidates.size(),
                    candidates.size() == page.collection.groups.size() ? "variant" : "evaluation"),
            name, table::fixed(best.mean, 3), join(equals, ", "))};
    const Candidate& next = candidates[1];
    const std::vector<SeedValue> gaps = paired_differences(next.score->seeds(), best.score->seeds());
    const double gap = gaps.empty() ? next.mean - best.mean : mean_interval(gaps).mean;
    std::set<std::string> variants;
    for (const Candidate& c : candidates) variants.insert(c.group);
    std::string of = counted(variants.size(), "variant");
    if (candidates.size() > variants.size()) of += fmt::format(" in {} evaluations", candidates.size());
    std::vector<std::string> out{
        fmt::format("{}, {} has the highest accuracy in {} of {}: {}.", where, best.name, name, of, value),
        fmt::format("The next, {}, is {} lower{}.", next.name, table::fixed(-gap, 3),
                    gaps.empty()       ? "; no seed is shared, so the two cannot be paired"
                    : gaps.size() == 1 ? "; one shared seed says nothing about chance"
                                       : "; seed by seed " + seed_list(gaps, true))};
    if (candidates.size() > 2) out.push_back("The highest of many is in part the luckiest.");
    return out;
}

}  // namespace

std::vector<std::string> task_headline(const PageContext& page) {
    std::vector<std::string> out;
    const std::map<std::string, TaskScores> scores = scores_of(page);
    for (const std::string& name : page.summary.tasks)
        if (const auto task = scores.find(name); task != scores.end())
            for (const std::string& sentence : headline_of(page, name, task->second)) out.push_back(sentence);
    if (!out.empty()) return out;
    return {fmt::format("No results in {} yet; training has reached step {}.",
                        fmt::join(page.summary.tasks, ", "), grouped(last_step(page.collection)))};
}

Section tasks_section(const PageContext& page) {
    Section section{"tasks", "Tasks", {}};
    Menu menu{"task", {}};
    std::vector<ChosenPiece> pieces;
    size_t index = 0;
    for (const auto& [name, task] : scores_of(page)) {
        const std::string id = fmt::format("{}", index++);
        menu.choices.push_back({id, name});
        pieces.push_back({{id}, accuracy_figure(page, name, task, id) + depth_figure(page, name, task, id)});
    }
    if (pieces.empty()) return section;
    // A task that the runs train on comes first.
    size_t first = 0;
    while (first < pieces.size() && !page.summary.tasks.contains(menu.choices[first].text)) ++first;
    if (first == pieces.size()) first = 0;
    section.html = chooser("tasks", {menu}, pieces, pieces[first].keys);
    return section;
}

}  // namespace longreach::report
