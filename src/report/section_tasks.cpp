// Tasks: accuracy by length, and by how deep in the context the answer lies.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report/page_parts.h"
#include "theory/heat_map.h"

namespace longreach {

namespace {

// Means over seeds, and over depths where they are not told apart; weighted by samples.
struct Score {
    double samples = 0, accuracy = 0, margin = 0, margin_samples = 0, loss = 0, loss_samples = 0;
    std::map<int64_t, std::pair<double, double>> by_seed;  // correct answers and samples
    void add(const TaskCell& row, int64_t seed) {
        const double n = row.samples > 0 ? row.samples : 1;
        if (!std::isfinite(row.accuracy)) return;
        samples += n;
        accuracy += n * row.accuracy;
        by_seed[seed].first += n * row.accuracy;
        by_seed[seed].second += n;
        if (row.margin && std::isfinite(*row.margin)) margin += n * *row.margin, margin_samples += n;
        if (row.loss && std::isfinite(*row.loss)) loss += n * *row.loss, loss_samples += n;
    }
    double mean_accuracy() const { return samples > 0 ? accuracy / samples : NAN; }
    double mean_margin() const { return margin_samples > 0 ? margin / margin_samples : NAN; }
    double mean_loss() const { return loss_samples > 0 ? loss / loss_samples : NAN; }
    double error_over_seeds() const {
        std::vector<double> values;
        for (const auto& [seed, sum] : by_seed) values.push_back(sum.first / sum.second);
        return mean_interval(values).standard_error;
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
                if (std::isnan(row.depth)) continue;
                task.depths.insert(row.depth);
                task.by_depth[i][{row.depth, row.length}].add(row, run->seed);
            }
    return out;
}

std::string score_text(const Score& s) {
    std::string text = fmt::format("accuracy {}", fixed(s.mean_accuracy(), 3));
    if (std::isfinite(s.mean_margin()))
        text += fmt::format("\nmargin {} nats", signed_fixed(s.mean_margin(), 3));
    if (std::isfinite(s.mean_loss())) text += fmt::format("\nloss {}", fixed(s.mean_loss(), 3));
    return text + fmt::format("\n{} samples", grouped(static_cast<int64_t>(s.samples)));
}

std::string accuracy_figure(const PageContext& page, const std::string& name, const TaskScores& task,
                            const std::string& id) {
    const std::vector<int64_t> lengths(task.lengths.begin(), task.lengths.end());
    LineChart chart;
    chart.id = "task-" + id;
    chart.title = fmt::format("Accuracy in {} by context length", name);
    chart.description = "Share of right answers by length of the context.";
    chart.x_label = "context length in tokens";
    chart.y_label = "accuracy";
    chart.log_x = true;
    chart.y_low = -0.02;
    chart.y_high = 1.02;
    chart.x_ticks = length_ticks(lengths);
    chart.places = length_places(lengths, "context");
    chart.marks = context_marks(page);
    DataTable table;
    table.caption = fmt::format("{}: accuracy and margin (nats) by context length", name);
    table.header = {"variant", "context", "samples", "accuracy", "margin", "loss"};
    for (size_t i = 0; i < task.by_length.size(); ++i) {
        ChartLine line;
        line.series = i;
        for (const auto& [length, score] : task.by_length[i]) {
            const double mean = score.mean_accuracy(), error = score.error_over_seeds();
            ChartPoint p{static_cast<double>(length), mean};
            if (std::isfinite(error)) {
                p.low = std::max(0.0, mean - error);
                p.high = std::min(1.0, mean + error);
            }
            p.text = fixed(mean, 3);
            line.points.push_back(p);
            table.rows.push_back({name_cell(page.styles()[i].name),
                                  {full_length(length), fmt::format("{}", length)},
                                  {grouped(static_cast<int64_t>(score.samples)), exact(score.samples)},
                                  spread_cell(mean, error, 3),
                                  number_cell(score.mean_margin(), 3),
                                  number_cell(score.mean_loss(), 3)});
        }
        if (!line.points.empty()) chart.lines.push_back(line);
    }
    return line_figure(
        page, "task-" + name, chart,
        "Share of right answers, over seeds and all depths; bands are one standard error over seeds.", table);
}

std::string colour_key() {
    std::string out =
        "<p class=\"ramp\" aria-hidden=\"true\"><span>0</span><svg viewBox=\"0 0 160 10\" width=\"160\" "
        "height=\"10\">";
    for (int i = 0; i < 32; ++i)
        out += fmt::format("<rect x=\"{}\" width=\"5.2\" height=\"10\" fill=\"{}\"/>", 5 * i,
                           heat_colour((i + 0.5) / 32));
    return out + "</svg><span>1 accuracy</span></p>";
}

std::string depth_figure(const PageContext& page, const std::string& name, const TaskScores& task,
                         const std::string& id) {
    const std::vector<int64_t> lengths(task.lengths.begin(), task.lengths.end());
    const std::vector<double> depths(task.depths.begin(), task.depths.end());
    DataTable table;
    table.caption = fmt::format("{}: accuracy and margin (nats) by depth and context length", name);
    table.header = {"variant", "depth %", "context", "samples", "accuracy", "margin"};
    std::string charts = "<div class=\"panels heats\">";
    std::vector<size_t> series;
    for (size_t i = 0; i < task.by_depth.size(); ++i) {
        if (task.by_depth[i].empty()) continue;
        series.push_back(i);
        HeatPanel panel;
        panel.id = fmt::format("depth-{}-{}", id, i);
        panel.title = page.styles()[i].name;
        panel.series = i;
        panel.description =
            fmt::format("Accuracy in {} by depth (rows, percent) and context length (columns).", name);
        panel.x_label = "context";
        for (int64_t length : lengths) panel.columns.push_back(short_length(length));
        for (double depth : depths) panel.rows.push_back(significant(depth, 3) + "%");
        for (const auto& [place, score] : task.by_depth[i]) {
            const auto [depth, length] = place;
            const double accuracy = score.mean_accuracy();
            if (!std::isfinite(accuracy)) continue;
            HeatCell cell;
            cell.row = static_cast<size_t>(std::find(depths.begin(), depths.end(), depth) - depths.begin());
            cell.column =
                static_cast<size_t>(std::find(lengths.begin(), lengths.end(), length) - lengths.begin());
            cell.share = accuracy;
            cell.label = fixed(accuracy, 2);
            cell.text = fmt::format("{}\n{} tokens, depth {}%\n{}", page.styles()[i].name,
                                    full_length(length), significant(depth, 3), score_text(score));
            panel.cells.push_back(cell);
            table.rows.push_back({name_cell(page.styles()[i].name),
                                  {significant(depth, 3), exact(depth)},
                                  {full_length(length), fmt::format("{}", length)},
                                  {grouped(static_cast<int64_t>(score.samples)), exact(score.samples)},
                                  number_cell(accuracy, 3),
                                  number_cell(score.mean_margin(), 3)});
        }
        charts += heat_svg(panel);
    }
    if (series.empty()) return {};
    return figure(
        "depth-" + name, charts + "</div>" + colour_key(), legend(page.styles(), series),
        "Rows: how far into the context the answer lies; columns: length of the context. Margin in the "
        "read-out: log p(answer) − log p(decoy).",
        table);
}

}  // namespace

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
    if (!pieces.empty()) section.html = chooser("tasks", {menu}, pieces, pieces[0].keys);
    return section;
}

}  // namespace longreach
