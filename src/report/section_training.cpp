// Training: its loss, raw and smoothed, and the validations during it.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report/page_parts.h"

namespace longreach::report {

namespace {

constexpr size_t most_line_points = 400;  // of a drawn line: more than a screen shows

// Means of neighbouring rows, so that at most `most_line_points` remain.
std::vector<train::MetricsRow> thinned(const std::vector<train::MetricsRow>& rows) {
    const size_t width = (rows.size() + most_line_points - 1) / most_line_points;
    if (width < 2) return rows;
    std::vector<train::MetricsRow> out;
    for (size_t begin = 0; begin < rows.size(); begin += width) {
        const size_t end = std::min(rows.size(), begin + width);
        train::MetricsRow mean = rows[end - 1];
        mean.loss = 0;
        for (size_t i = begin; i < end; ++i) mean.loss += rows[i].loss / static_cast<double>(end - begin);
        out.push_back(mean);
    }
    return out;
}

// The mean over a window around each row, a fortieth of the run wide and at least
// five rows, and shorter at the ends. Values that are not finite are ignored.
std::vector<std::pair<double, double>> smoothed(const std::vector<std::pair<double, double>>& rows) {
    const size_t half = std::max<size_t>(2, rows.size() / 80);
    std::vector<std::pair<double, double>> out;
    for (size_t i = 0; i < rows.size(); ++i) {
        // Symmetric, so that the ends are not shifted.
        const size_t reach = std::min({half, i, rows.size() - 1 - i});
        double sum = 0, count = 0;
        for (size_t j = i - reach; j <= i + reach; ++j)
            if (std::isfinite(rows[j].second)) sum += rows[j].second, ++count;
        out.emplace_back(rows[i].first, count > 0 ? sum / count : NAN);
    }
    return out;
}

// The steps at which a stage of any run begins, except the first.
std::vector<plot::Position> stage_marks(const Collection& collection) {
    std::map<int64_t, std::set<int64_t>> contexts;  // by first step
    for (const RunRecord& run : collection.runs) {
        const json::Value* stages = run.config.find("stages");
        bool counted = stages && stages->is_array();
        std::map<int64_t, int64_t> begins;
        int64_t first = 0;
        for (size_t i = 0; counted && i < stages->as_array().size(); ++i) {
            const json::Value& stage = stages->as_array()[i];
            const json::Value *steps = stage.find("steps"), *context = stage.find("context");
            if (i > 0) begins[first] = context ? context->to_int64().value_or(0) : 0;
            const int64_t length = steps ? steps->to_int64().value_or(0) : 0;
            counted = length > 0;
            first += length;
        }
        if (!counted) {
            // Stages given in tokens begin where the logged context changes.
            begins.clear();
            for (size_t i = 1; i < run.training.size(); ++i)
                if (run.training[i].context != run.training[i - 1].context)
                    begins[run.training[i - 1].step] = run.training[i].context;
        }
        for (const auto& [step, context] : begins) contexts[step].insert(context);
    }
    std::vector<plot::Position> out;
    for (const auto& [step, to] : contexts) {
        std::string text = "context";
        for (int64_t context : to) text += fmt::format(" {}", table::short_length(context));
        out.push_back({static_cast<double>(step), text});
    }
    return out;
}

void frame(plot::LineChart& chart, double low, double high) {
    if (!(high > low)) return;
    chart.y_low = low - 0.06 * (high - low);
    chart.y_high = high + 0.06 * (high - low);
}

// Sets the bounds of the y axis from the points at `from` and later.
void frame_late(plot::LineChart& chart, double from) {
    double low = INFINITY, high = -INFINITY;
    for (const plot::ChartLine& line : chart.lines)
        for (const plot::ChartPoint& p : line.points)
            if (p.x >= from && std::isfinite(p.y)) low = std::min(low, p.y), high = std::max(high, p.y);
    frame(chart, low, high);
}

// A loss of every logged step.
struct TrainingLoss {
    const char *id, *title, *label, *description, *unit;
    std::optional<double> (*of)(const train::MetricsRow& row);
};
constexpr TrainingLoss model_loss{
    "training",       "Training loss",
    "training loss",  "Loss of the training batches over steps.",
    "nats per token", [](const train::MetricsRow& row) { return std::optional(row.loss); }};
constexpr TrainingLoss index_loss{
    "index",
    "Loss of the index of keys",
    "loss of the index",
    "Divergence of what the indexes of keys expect from the mean weights of the heads, over steps.",
    "nats per token and layer",
    [](const train::MetricsRow& row) { return row.index_loss; }};

std::string training_figure(const PageContext& page, const TrainingLoss& what) {
    plot::LineChart chart{.id = what.id,
                          .title = what.title,
                          .description = what.description,
                          .x_label = "step",
                          .y_label = fmt::format("{}, {}", what.label, what.unit),
                          .marks = stage_marks(page.collection)};
    table::DataTable table{.caption = fmt::format("{}, mean over seeds ({})", what.title, what.unit),
                           .header = {"step"}};
    std::map<int64_t, std::map<size_t, double>> by_step;
    std::vector<size_t> columns;  // series of the table
    const int64_t last = last_step(page.collection);
    double low = INFINITY, high = -INFINITY;
    std::set<double> steps;
    for (size_t i = 0; i < page.summary.series.size(); ++i) {
        const Series& s = page.summary.series[i];
        if (!s.label.empty()) continue;
        std::map<int64_t, std::vector<double>> at_step;
        for (const RunRecord* run : runs_of(page.collection, s)) {
            plot::ChartLine raw{.series = i, .faint = true};
            for (const train::MetricsRow& row : thinned(run->training)) {
                const std::optional<double> loss = what.of(row);
                if (!loss) continue;
                raw.points.push_back({static_cast<double>(row.step), *loss});
                at_step[row.step].push_back(*loss);
            }
            chart.lines.push_back(raw);
        }
        if (at_step.empty()) continue;
        std::vector<std::pair<double, double>> means;
        for (const auto& [step, values] : at_step) {
            means.emplace_back(static_cast<double>(step), mean_of(values));
            by_step[step][i] = means.back().second;
        }
        plot::ChartLine line{.series = i, .markers = false};
        for (const auto& [step, loss] : smoothed(means)) {
            line.points.push_back({step, loss, NAN, NAN, table::fixed(loss, 4)});
            steps.insert(step);
            if (!std::isfinite(loss)) continue;
            low = std::min(low, loss);
            // The steep fall of the first steps would compress the rest.
            if (step >= 0.12 * static_cast<double>(last)) high = std::max(high, loss);
        }
        chart.lines.push_back(line);
        table.header.push_back(page.styles()[i].name);
        columns.push_back(i);
    }
    if (by_step.empty()) return {};
    frame(chart, low, high);
    for (double step : steps) chart.places.push_back({step, "step " + grouped(static_cast<int64_t>(step))});
    const size_t stride = std::max<size_t>(1, by_step.size() / 200);
    size_t index = 0;
    for (const auto& [step, values] : by_step) {
        if (index++ % stride != 0 && step != last) continue;
        std::vector<table::Cell> row{table::count_cell(step)};
        for (size_t i : columns)
            row.push_back(values.contains(i) ? table::number_cell(values.at(i), 4) : table::Cell{""});
        table.rows.push_back(row);
    }
    std::vector<View> views = views_of(page, chart, 4);
    if (views.back().key == "difference") frame_late(views.back().chart, 0.12 * static_cast<double>(last));
    return line_figure(
        page, fmt::format("{}-loss", what.id), views,
        "Strong lines are running means over a fortieth of the run and over seeds, faint lines the "
        "single runs as logged. The first steps may lie above the frame of the linear axes.",
        table);
}

std::string index_figure(const PageContext& page) {
    const std::string figure = training_figure(page, index_loss);
    return figure.empty() ? figure : subheading("Index of keys") + figure;
}

// Gradient norms by layer, means over the last tenth of the logged steps.
std::string gradient_figure(const PageContext& page) {
    plot::LineChart chart{.id = "gradient-norms",
                          .title = "Gradient norm by layer",
                          .description = "Norms of the gradients of the layers' parameters.",
                          .x_label = "layer",
                          .y_label = "gradient norm"};
    table::DataTable table{.caption = "Gradient norm by layer", .header = {"variant"}};
    std::vector<SeedsByPosition> values(page.summary.series.size());
    std::set<int64_t> layers;
    for (size_t i = 0; i < values.size(); ++i) {
        if (!page.summary.series[i].label.empty()) continue;
        for (const RunRecord* run : runs_of(page.collection, page.summary.series[i])) {
            const std::vector<train::MetricsRow>& rows = run->training;
            std::map<int64_t, std::vector<double>> norms;
            for (size_t k = rows.size() - (rows.size() + 9) / 10; k < rows.size(); ++k)
                for (size_t l = 0; l < rows[k].layer_grad_norms.size(); ++l)
                    if (std::isfinite(rows[k].layer_grad_norms[l]))
                        norms[static_cast<int64_t>(l)].push_back(rows[k].layer_grad_norms[l]);
            for (const auto& [layer, of_steps] : norms) {
                values[i][layer].push_back(mean_of(of_steps));
                layers.insert(layer);
            }
        }
    }
    if (layers.empty()) return {};
    for (const int64_t layer : layers) {
        const std::string name = fmt::format("layer {}", layer);
        table.header.push_back(name);
        chart.x_ticks.push_back({static_cast<double>(layer), fmt::format("{}", layer)});
        chart.places.push_back({static_cast<double>(layer), name});
    }
    for (size_t i = 0; i < values.size(); ++i)
        if (!values[i].empty()) add_means(page, i, values[i], layers, chart, table);
    std::vector<View> views = views_of(page, chart, 4);
    std::erase_if(views, [](const View& view) { return view.key == "log"; });  // layer 0 has no logarithm
    return subheading("Gradients") +
           line_figure(page, "gradient-norms", views,
                       "Norm of the gradient of each layer's own parameters, before clipping: mean over the "
                       "last tenth of the logged steps, and over seeds.",
                       table);
}

// How many tokens the validations of each step scored.
std::vector<table::Cell> scored_row(const std::set<int64_t>& steps,
                                    const std::map<int64_t, std::map<std::string, Measure>>& measures) {
    std::vector<table::Cell> row{table::name_cell("tokens scored")};
    for (int64_t step : steps) {
        std::set<double> counts;
        for (const auto& [key, measure] : measures.at(step)) counts.insert(measure.count);
        row.push_back(counts.size() == 1 ? table::number_cell(*counts.begin(), 0) : table::Cell{"several"});
    }
    return row;
}

}  // namespace

std::string validation_figures(const PageContext& page) {
    Menu menu{"context length", {}};
    std::vector<ChosenPiece> pieces;
    std::set<int64_t> lengths;
    for (const RunRecord& run : page.collection.runs)
        for (const LossRow& row : run.own.losses) lengths.insert(row.length);
    for (int64_t length : lengths) {
        plot::LineChart chart{.id = fmt::format("validation-{}{}", length, page.suffix),
                              .title = fmt::format("Validation loss{} at a context of {} during training",
                                                   page.collection.on_set(), grouped(length)),
                              .description = "Validation losses over training steps.",
                              .x_label = "step",
                              .y_label = fmt::format("loss at {}, nats per token", grouped(length)),
                              .marks = stage_marks(page.collection)};
        table::DataTable table{.caption = chart.title + " (nats per token)", .header = {"variant"}};
        std::set<int64_t> steps;
        std::vector<SeedsByPosition> values(page.summary.series.size());
        std::vector<std::map<int64_t, std::set<std::string>>> keys(values.size());  // what was scored
        std::map<int64_t, std::map<std::string, Measure>> measures;                 // by step and key
        for (size_t i = 0; i < page.summary.series.size(); ++i) {
            if (!page.summary.series[i].label.empty()) continue;
            for (const RunRecord* run : runs_of(page.collection, page.summary.series[i]))
                for (const LossRow& row : run->own.losses)
                    if (row.length == length) {
                        values[i][row.step].push_back(row.loss);
                        keys[i][row.step].insert(row.measure.key());
                        measures[row.step].emplace(row.measure.key(), row.measure);
                        steps.insert(row.step);
                    }
        }
        if (steps.size() < 2) continue;
        bool broken = false;
        for (int64_t step : steps) {
            table.header.push_back(fmt::format("step {}", grouped(step)));
            chart.places.push_back({static_cast<double>(step), "step " + grouped(step)});
        }
        for (size_t i = 0; i < values.size(); ++i) {
            if (values[i].empty()) continue;
            plot::ChartLine& line = add_means(page, i, values[i], steps, chart, table);
            line.markers = steps.size() <= 30;
            for (size_t k = 1; k < line.points.size(); ++k) {
                plot::ChartPoint& p = line.points[k];
                const auto scored = [&](double step) { return keys[i].at(static_cast<int64_t>(step)); };
                p.joined = scored(line.points[k - 1].x) == scored(p.x);
                broken |= !p.joined;
            }
        }
        table.rows.push_back(scored_row(steps, measures));
        const std::string key = fmt::format("{}", length);
        menu.choices.push_back({key, grouped(length)});
        pieces.push_back(
            {{key},
             line_figure(page, "validation-" + key + page.suffix, views_of(page, chart, 4),
                         broken ? "Validations while training. Points that scored other tokens than those "
                                  "before them are not joined with them: their losses do not compare."
                                : "Validations while training, all on the same number of tokens.",
                         table)});
    }
    if (pieces.empty()) return {};
    return subheading(page.summary.tasks.empty() || !page.collection.set.empty()
                          ? "Validation on the way"
                          : "Text: validation on the way") +
           chooser("validation" + page.suffix, {menu}, pieces, pieces.back().keys);
}

Section training_section(const PageContext& page) {
    return {"training", "Training",
            training_figure(page, model_loss) + validation_figures(page) + index_figure(page) +
                gradient_figure(page)};
}

}  // namespace longreach::report
