// A single run: its facts, learning rate, gradient norm and speed by step, samples, errors and config.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/text.h"
#include "base/units.h"
#include "config/loader.h"
#include "io/file.h"
#include "model/transformer.h"
#include "report/flat_config.h"
#include "report/page_parts.h"
#include "train/experiment.h"

namespace longreach::report {

namespace {

constexpr size_t most_points = 1000, most_warnings = 50;

struct Plan {
    int64_t steps = 0;
    std::string parameters;
};
// From config.json; empty if that is missing or of a version that no longer loads.
Plan plan_of(const RunRecord& run) {
    const std::string path = io::join_path(run.path, "config.json");
    if (io::kind_of(path, io::Links::follow) != io::PathKind::file) return {};
    try {
        const train::Experiment experiment = config::load_config<train::Experiment>({.file = path}).value;
        const model::Transformer model(experiment.model, 1);
        std::map<std::string, int64_t> groups;
        for (const model::Param& p : model.params().params()) groups[model::name_of(p.group)] += p.count();
        std::string parts;
        for (const auto& [group, count] : groups)
            parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", group, grouped(count));
        return {experiment.total_steps(), fmt::format("{} ({})", grouped(model.params().count()), parts)};
    } catch (const Error&) {
        return {};
    }
}

// The total over all processes that trained the run: each counts its seconds from 0.
double training_seconds(const std::vector<train::TimingRow>& timing) {
    double total = 0, before = 0;
    for (const train::TimingRow& row : timing) {
        if (!std::isfinite(row.seconds)) continue;
        if (row.seconds < before) total += before;
        before = row.seconds;
    }
    return total + before;
}

std::string facts(const PageContext& page, const RunRecord& run) {
    table::DataTable table{.name = "run-facts", .caption = "What was run", .header = {"", "value"}};
    const auto add = [&](const char* name, const std::string& value) {
        if (!value.empty()) table.rows.push_back({table::name_cell(name), table::text_cell(value)});
    };
    const auto field = [&](const char* path) {
        const json::Value* value = value_at(run.config, path);
        if (!value) return std::string();
        return value->to_string() ? *value->to_string() : json::write(*value, json::Style::compact);
    };
    const Plan plan = plan_of(run);
    add("parameters", plan.parameters);
    add("layers", field("model.layers"));
    add("width", field("model.width"));
    add("vocabulary", field("model.vocab_size"));
    add("tokens per step", field("batch.tokens"));
    if (!run.training.empty()) {
        const train::MetricsRow& last = run.training.back();
        add("steps", plan.steps > 0 ? fmt::format("{} of {}", grouped(last.step), grouped(plan.steps))
                                    : grouped(last.step));
        add("tokens", grouped(last.tokens));
        add("last training loss", table::fixed(last.loss, 4));
    }
    if (!run.timing.empty()) {
        int64_t memory = 0;
        for (const train::TimingRow& row : run.timing) memory = std::max(memory, row.memory_bytes);
        add("time", human_duration(training_seconds(run.timing)));
        add("tokens per second", std::isnan(run.tokens_per_second)
                                     ? std::string()
                                     : grouped(std::llround(run.tokens_per_second)) + " (median)");
        if (std::isfinite(run.timing.back().mfu))
            add("MFU", fmt::format("{}%", table::fixed(100 * run.timing.back().mfu, 1)));
        if (memory > 0) add("memory", human_bytes(memory) + " resident at most");
    }
    add("directory", run.path);
    return table.rows.empty() ? std::string() : table_html(page, table);
}

struct Quantity {
    const char *key, *title, *label;
    bool logarithmic;
    std::vector<std::pair<int64_t, double>> values;
};

std::string quantity_figure(const PageContext& page, const Quantity& quantity) {
    plot::LineChart chart{.id = fmt::format("run-{}", quantity.key),
                          .title = quantity.title,
                          .description = fmt::format("{} over steps.", quantity.title),
                          .x_label = "step",
                          .y_label = quantity.label,
                          .log_y = quantity.logarithmic};
    table::DataTable table{.caption = quantity.title, .header = {"step", quantity.label}};
    plot::ChartLine line{.markers = false};
    const size_t stride = std::max<size_t>(1, quantity.values.size() / most_points);
    for (size_t i = 0; i < quantity.values.size(); i += stride) {
        const auto& [step, value] = quantity.values[i];
        line.points.push_back({static_cast<double>(step), value, NAN, NAN, table::significant(value)});
        chart.places.push_back({static_cast<double>(step), "step " + grouped(step)});
        table.rows.push_back({table::count_cell(step), table::significant_cell(value)});
    }
    chart.lines.push_back(line);
    return line_figure(
        page, std::string("run-") + quantity.key, views_of(page, chart, 4),
        stride > 1 ? fmt::format("As logged; every {}th record is drawn.", stride) : "As logged.", table);
}

std::string quantities(const PageContext& page, const RunRecord& run) {
    std::vector<Quantity> all{{"lr", "Learning rate", "multiplier of every learning rate", false, {}},
                              {"norm", "Gradient norm", "norm before clipping", true, {}},
                              {"speed", "Speed", "tokens per second", false, {}}};
    for (const train::MetricsRow& row : run.training) {
        all[0].values.emplace_back(row.step, row.lr);
        all[1].values.emplace_back(row.step, row.grad_norm);
    }
    for (const train::TimingRow& row : run.timing)
        all[2].values.emplace_back(row.step, row.tokens_per_second);
    Menu menu{"quantity", {}};
    std::vector<ChosenPiece> pieces;
    for (const Quantity& quantity : all) {
        const auto finite = [](const auto& v) { return std::isfinite(v.second); };
        if (std::none_of(quantity.values.begin(), quantity.values.end(), finite)) continue;
        menu.choices.push_back({quantity.key, quantity.title});
        pieces.push_back({{quantity.key}, quantity_figure(page, quantity)});
    }
    return pieces.empty() ? std::string()
                          : subheading("By step") + chooser("run", {menu}, pieces, pieces[0].keys);
}

std::string errors(const RunRecord& run) {
    int64_t skipped = 0;
    std::vector<std::string> at;
    for (const train::MetricsRow& row : run.training) {
        if (std::isnan(row.loss) || row.skipped > skipped) at.push_back(grouped(row.step));
        skipped = std::max(skipped, row.skipped);
    }
    std::string out = subheading("Errors");
    if (!run.training.empty())
        out +=
            paragraph(skipped == 0 && at.empty()
                          ? "No step was skipped, and every logged loss is finite."
                          : fmt::format("{} skipped because a loss or gradient was not finite. Logged at "
                                        "or after: step {}{}.",
                                        counted(static_cast<size_t>(std::max<int64_t>(skipped, 0)), "step"),
                                        join({at.begin(), at.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                           at.size(), most_warnings))},
                                             ", "),
                                        at.size() > most_warnings ? ", ..." : ""));
    if (run.warnings.empty())
        return out + paragraph(run.has_log ? "The log holds no warning." : "There is no log.");
    out += "<ul class=\"notes\">";
    for (size_t i = 0; i < std::min(run.warnings.size(), most_warnings); ++i)
        out += "<li>" + plot::escaped(run.warnings[i]) + "</li>";
    out += "</ul>\n";
    if (run.warnings.size() > most_warnings)
        out += paragraph(fmt::format("{} more in log.txt.", run.warnings.size() - most_warnings));
    return out;
}

std::string samples(const RunRecord& run) {
    std::string out = run.samples.empty() ? std::string() : subheading("Samples");
    for (const auto& [label, text] : run.samples) {
        out += paragraph(label + ":") + "<pre>";
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);) out += plot::escaped(one_line(line)) + "\n";
        out += "</pre>\n";
    }
    return out;
}

std::string config(const PageContext& page, const RunRecord& run) {
    if (!run.config.is_object()) return {};
    table::DataTable chosen{.name = "config-set",
                            .caption = "Fields of the config that were set",
                            .header = {"field", "value", "set by"}};
    table::DataTable all{
        .name = "config-all", .caption = "All fields of the config", .header = {"field", "value"}};
    for (const auto& [key, value] : flat_config(run.config)) {
        all.rows.push_back({table::name_cell(key), table::text_cell(value)});
        const auto origin = run.origins.find(key);
        if (origin != run.origins.end() && origin->second != "default" && origin->second != "derived")
            chosen.rows.push_back(
                {table::name_cell(key), table::text_cell(value), table::text_cell(origin->second)});
    }
    return subheading("Config") + (chosen.rows.empty() ? "" : table_html(page, chosen)) +
           folded(page, "All fields", all);
}

}  // namespace

Section run_section(const PageContext& page) {
    Section section{"run", "The run", {}};
    if (page.collection.runs.size() != 1) return section;
    const RunRecord& run = page.collection.runs[0];
    section.html = facts(page, run) + quantities(page, run) + samples(run) + errors(run) + config(page, run);
    return section;
}

}  // namespace longreach::report
