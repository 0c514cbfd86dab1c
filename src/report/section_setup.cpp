// The setup: differences between configs, and builds, seeds, steps and tokens of the runs.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "config/field_info.h"
#include "model/attention_config.h"
#include "report/flat_config.h"
#include "report/page_parts.h"

namespace longreach::report {

namespace {

void flatten(const json::Value& value, const std::string& path, FlatConfig& out) {
    const auto* list = value.to_array();
    const bool nested = list && std::any_of(list->begin(), list->end(), [](const json::Value& v) {
                            return v.is_object() || v.is_array();
                        });
    const std::string dot = path.empty() ? "" : path + ".";
    if (const auto* object = value.to_object()) {
        for (const json::Member& member : *object) flatten(member.value, dot + member.key, out);
    } else if (nested) {
        for (size_t i = 0; i < list->size(); ++i) flatten((*list)[i], dot + fmt::format("{}", i), out);
    } else {
        const std::string* text = value.to_string();
        out[path] = text ? *text : json::write(value, json::Style::compact);
    }
}

// Names, seeds and machine settings differ between repetitions of one experiment.
bool incidental(const std::string& key) {
    for (const char* name :
         {"run.name", "run.dir", "run.seed", "run.events", "run.log_every", "system.threads"})
        if (key == name) return true;
    return key.starts_with("seed.") || key.starts_with("checkpoint.") || key == "resolved";
}

// A parameter that a variant does not name has these values.
bool default_of_parameter(const std::string& key, const std::string& value) {
    static const FlatConfig defaults =
        flat_config(config::to_json(config::describe(model::ScoreParameterConfig())));
    const size_t params = key.find(".params."), dot = key.rfind('.');
    if (params == key.npos || dot <= params + std::string_view(".params").size()) return false;
    const auto known = defaults.find(key.substr(dot + 1));
    return known != defaults.end() && known->second == value;
}

FlatConfig experiment_config(const json::Value& config) {
    FlatConfig out;
    for (const auto& [key, value] : flat_config(config))
        if (!incidental(key) && !default_of_parameter(key, value)) out.emplace(key, value);
    return out;
}

std::set<std::string> differing(const std::vector<FlatConfig>& configs) {
    std::set<std::string> keys, out;
    for (const FlatConfig& config : configs)
        for (const auto& [key, value] : config) keys.insert(key);
    for (const std::string& key : keys)
        for (const FlatConfig& config : configs) {
            const auto a = configs[0].find(key), b = config.find(key);
            if ((a == configs[0].end()) != (b == config.end()) ||
                (b != config.end() && a->second != b->second))
                out.insert(key);
        }
    return out;
}

std::string differences(const PageContext& page) {
    std::vector<FlatConfig> firsts;
    std::vector<std::string> names;
    std::string out;
    for (const std::string& group : page.collection.groups) {
        std::vector<FlatConfig> configs;
        for (const RunRecord& run : page.collection.runs)
            if (run.group == group && run.config.is_object())
                configs.push_back(experiment_config(run.config));
        if (configs.empty()) continue;
        const std::set<std::string> inside = differing(configs);
        if (!inside.empty())
            out += "<p class=\"notes\">" +
                   plot::escaped(fmt::format("The runs of {} differ in more than their seed: {}.", group,
                                             fmt::join(inside, ", "))) +
                   "</p>\n";
        firsts.push_back(configs[0]);
        names.push_back(group);
    }
    if (firsts.size() < 2) return out;
    const std::set<std::string> keys = differing(firsts);
    if (keys.empty()) return out + paragraph("The configs of the variants do not differ.");
    const auto base = std::find(names.begin(), names.end(), page.collection.baseline);
    table::DataTable table{.name = "config-differences",
                           .caption = "Fields of the config in which the variants differ",
                           .header = {"variant"}};
    for (const std::string& key : keys) table.header.push_back(key);
    for (size_t i = 0; i < firsts.size(); ++i) {
        std::vector<table::Cell> row{table::name_cell(names[i])};
        for (const std::string& key : keys) {
            const auto found = firsts[i].find(key);
            table::Cell cell = table::text_cell(found == firsts[i].end() ? "" : found->second);
            if (base != names.end() && names[i] != *base) {
                const FlatConfig& reference = firsts[static_cast<size_t>(base - names.begin())];
                const auto there = reference.find(key);
                if ((there == reference.end() ? "" : there->second) == cell.text) cell.tone = "same";
            }
            row.push_back(cell);
        }
        table.rows.push_back(row);
    }
    return out + paragraph("Values like those of " + page.collection.baseline + " are pale.") +
           table_html(page, table);
}

// The files whose values a run has: those of the places "file:line:column" in its origins, each once.
std::string config_files(const RunRecord& run) {
    std::set<std::string> files;
    for (const auto& [path, origin] : run.origins) {
        const size_t column = origin.rfind(':'), line = column == 0 ? column : origin.rfind(':', column - 1);
        if (column != origin.npos && line != origin.npos) files.insert(origin.substr(0, line));
    }
    return fmt::format("{}", fmt::join(files, ", "));
}

std::string runs_table(const PageContext& page) {
    table::DataTable table{.name = "runs",
                           .caption = "Runs and what made them",
                           .header = {"run", "variant", "seed", "steps", "tokens", "tokens/s", "version",
                                      "commit", "CPU", "training data", "configs", "compiler", "system"}};
    for (const RunRecord& run : page.collection.runs) {
        int64_t step = 0, tokens = 0;
        for (const LossRow& row : run.own.losses)
            if (row.step >= step) step = row.step, tokens = row.tokens;
        for (const train::MetricsRow& row : run.training)
            if (row.step >= step) step = row.step, tokens = std::max(tokens, row.tokens);
        table.rows.push_back({table::name_cell(run.name),
                              table::text_cell(run.group),
                              {fmt::format("{}", run.seed)},
                              table::count_cell(step),
                              table::count_cell(tokens),
                              std::isnan(run.tokens_per_second)
                                  ? table::Cell{""}
                                  : table::Cell{grouped(std::llround(run.tokens_per_second)),
                                                table::exact(run.tokens_per_second)},
                              table::text_cell(text_at(run.build, "version")),
                              table::text_cell(text_at(run.build, "commit")),
                              table::text_cell(text_at(run.build, "cpu")),
                              table::text_cell(text_at(run.build, "data.training")),
                              table::text_cell(config_files(run)),
                              table::text_cell(text_at(run.build, "compiler")),
                              table::text_cell(text_at(run.build, "system"))});
    }
    return subheading("Runs") + table_html(page, table);
}

}  // namespace

FlatConfig flat_config(const json::Value& config) {
    FlatConfig out;
    flatten(config, "", out);
    return out;
}

Section setup_section(const PageContext& page) {
    const std::string configs = differences(page);
    return {"setup", "Setup", (configs.empty() ? "" : subheading("Config") + configs) + runs_table(page)};
}

}  // namespace longreach::report
