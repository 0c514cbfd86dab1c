// When the roles of heads appear: the strongest head of a run at each step that was probed.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "measure/probe_roles.h"
#include "report/page_parts.h"

namespace longreach::report {

namespace {

constexpr double has_role = 0.5;  // weight from which on a head is said to have a role

// The weight of the strongest head by step, for every run of a series.
using StrongestBySteps = std::vector<std::map<int64_t, double>>;

StrongestBySteps strongest_of(const PageContext& page, const Series& series, const char* statistic) {
    StrongestBySteps out;
    for (const RunRecord* run : runs_of(page.collection, series)) {
        std::map<int64_t, double>& steps = out.emplace_back();
        for (const measure::ProbeRow& row : run->own.roles) {
            if (row.statistic != statistic || !std::isfinite(row.value)) continue;
            double& most = steps[row.step];
            most = std::max(most, row.value);
        }
    }
    std::erase_if(out, [](const auto& steps) { return steps.empty(); });
    return out;
}

// The first step at which a head has the role, for each run.
std::string appearance(const StrongestBySteps& runs) {
    std::vector<std::string> steps;
    for (const std::map<int64_t, double>& run : runs) {
        const auto first =
            std::find_if(run.begin(), run.end(), [](const auto& entry) { return entry.second >= has_role; });
        steps.push_back(first == run.end() ? "never" : grouped(first->first));
    }
    return join(steps, ", ");
}

}  // namespace

std::string roles_by_step(const PageContext& page) {
    std::vector<plot::LineChart> charts;
    table::DataTable table{.caption = "First step at which a head has the role, for each seed",
                           .header = {"role", "variant", "step", "weight at the end"}};
    std::set<size_t> used;
    for (const measure::HeadRole& role : measure::head_roles) {
        plot::LineChart chart{.id = fmt::format("steps-{}", role.statistic),
                              .title = role.title,
                              .description = "By step.",
                              .y_low = 0,
                              .y_high = 1};
        std::vector<SeedsByPosition> values(page.summary.series.size());
        std::set<int64_t> steps;
        std::vector<std::vector<table::Cell>> rows;
        for (size_t i = 0; i < values.size(); ++i) {
            const Series& series = page.summary.series[i];
            if (!series.label.empty()) continue;  // of an evaluation after training, which has no steps
            const StrongestBySteps runs = strongest_of(page, series, role.statistic);
            if (runs.empty()) continue;
            std::vector<double> last;
            for (const std::map<int64_t, double>& run : runs) {
                last.push_back(run.rbegin()->second);
                for (const auto& [step, weight] : run) {
                    values[i][step].push_back(weight);
                    steps.insert(step);
                }
            }
            rows.push_back({table::name_cell(role.title), table::name_cell(page.styles()[i].name),
                            table::name_cell(appearance(runs)), table::significant_cell(mean_of(last))});
        }
        if (steps.size() < 2) continue;
        for (const int64_t step : steps)
            chart.places.push_back({static_cast<double>(step), "step " + grouped(step)});
        table::DataTable unused;
        for (size_t i = 0; i < values.size(); ++i) {
            if (values[i].empty()) continue;
            used.insert(i);
            add_means(page, i, values[i], steps, chart, unused).markers = steps.size() <= 30;
        }
        charts.push_back(chart);
        table.rows.insert(table.rows.end(), rows.begin(), rows.end());
    }
    if (charts.empty()) return {};
    return subheading("When roles appear") +
           figure(
               page, "roles-by-step", panels(page, charts, "When roles appear"), {used.begin(), used.end()},
               fmt::format("The weight of the strongest head of the model in each role by training step, "
                           "mean over seeds. The table has the first probed step at which it is {} or more.",
                           has_role),
               table);
}

}  // namespace longreach::report
