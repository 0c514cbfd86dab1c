// The sections of the report page, and the pieces they are built from.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "plot/chart.h"
#include "plot/markup.h"
#include "report/extracts.h"
#include "report/summary.h"
#include "table/data_table.h"
#include "table/readable.h"

namespace longreach::report {

struct PageContext {
    const Collection& collection;
    const Summary& summary;
    Extracts* extracts = nullptr;  // where to put what the page shows; null: nowhere
    std::string suffix = {};       // of the ids of what is there for every validation set; empty for data.val
    const std::vector<plot::SeriesStyle>& styles() const { return summary.styles; }
};

struct Section {
    std::string id, title;
    std::string html;  // empty: the section has no data and is omitted
};

Section contrasts_section(const PageContext& page);
Section overview_section(const PageContext& page);
Section lengths_section(const PageContext& page);
Section differences_section(const PageContext& page);
Section apart_section(const PageContext& page);
Section run_section(const PageContext& page);  // of a single run
Section training_section(const PageContext& page);
Section positions_section(const PageContext& page);
Section key_tokens_section(const PageContext& page);
Section diagnostics_section(const PageContext& page);
Section tasks_section(const PageContext& page);
Section setup_section(const PageContext& page);
Section methods_section(const PageContext& page);
// Every chart and table of losses on the set that the collection is a view of.
Section set_section(const PageContext& page);
// Of the overview and of training; empty without losses.
std::string loss_figure(const PageContext& page);
std::string validation_figures(const PageContext& page);
// Of diagnostics: when the roles of heads appear; empty without probes at two steps.
std::string roles_by_step(const PageContext& page);

// Sentences about the tasks that the runs train on, the most important first.
std::vector<std::string> task_headline(const PageContext& page);

// Loss by context length, the first chart of the report; without data it has no lines.
plot::LineChart length_chart(const PageContext& page);

// --- pieces ---

// A piece of page.html with its places {{name}} filled in. The values are HTML: escape any text first.
struct Place {
    std::string_view name, html;
};
std::string filled(std::string_view piece, std::initializer_list<Place> places);

// The table in a box that scrolls sideways, with buttons that copy it.
std::string table_html(const PageContext& page, const table::DataTable& table);
// The same, folded under a summary.
std::string folded(const PageContext& page, std::string_view summary, const table::DataTable& table);

std::string paragraph(const std::string& text);  // escaped here
std::string subheading(const std::string& text);

std::vector<size_t> series_of(const plot::LineChart& chart);

// Charts as they stand on the page, and as pictures whose names go on from that of their figure.
struct Charts {
    std::string html;
    std::vector<Picture> pictures;
};
// A chart with buttons that show and hide its series on the whole page, caption and data. The name identifies
// it in links, tests and files.
std::string figure(const PageContext& page, const std::string& name, const Charts& charts,
                   const std::vector<size_t>& series, const std::string& caption, table::DataTable table);
// Views of one chart, shown one at a time and selected with buttons.
struct View {
    std::string key, text;
    plot::LineChart chart;
};
// The chart, the chart on logarithmic axes and, with several series, the difference to the
// baseline. Charts over steps get a logarithmic x axis; charts over lengths already have one.
std::vector<View> views_of(const PageContext& page, const plot::LineChart& chart, int digits);
// Views of losses by length; the differences and their errors are paired by seed. loss_of: of a series in the chart.
using LossesByLength = std::map<int64_t, std::vector<SeedValue>>;
std::vector<View> paired_views(const PageContext& page, const plot::LineChart& chart,
                               const std::function<const LossesByLength*(size_t series)>& loss_of);
// The view to begin with: the first, or where one line takes more than half of its axis the one that leaves the others most.
size_t readable_view(const std::vector<View>& views);
// shown: the view that the page begins with.
std::string line_figure(const PageContext& page, const std::string& name, const std::vector<View>& views,
                        const std::string& caption, const table::DataTable& table, size_t shown = 0);
// Small charts side by side.
Charts panels(const PageContext& page, const std::vector<plot::LineChart>& charts, const std::string& title);

// Pieces of HTML, shown one at a time and selected from menus.
struct Choice {
    std::string key, text;
};
struct Menu {
    std::string label;
    std::vector<Choice> choices;
};
struct ChosenPiece {
    std::vector<std::string> keys;  // one per menu
    std::string html;
};
std::string chooser(const std::string& id, const std::vector<Menu>& menus,
                    const std::vector<ChosenPiece>& pieces, const std::vector<std::string>& first);

// Vertical lines at the training lengths.
std::vector<plot::Position> context_marks(const PageContext& page);

// Lengths as ticks, and as the names of places in the read-out.
std::vector<plot::Tick> length_ticks(const std::vector<int64_t>& lengths);
std::vector<plot::Position> length_places(const std::vector<int64_t>& lengths, const char* what);

// The mean followed by the value of each seed, for shares: over few seeds their spread is far from normal.
table::Cell seeds_cell(const std::vector<SeedValue>& values, int decimals);

// The mean of values and, with two or more, their standard error in `error`.
double mean_of(const std::vector<double>& values, double* error = nullptr);

// Adds a series to a chart and its table: at each x the mean over seeds, with its standard error.
using SeedsByPosition = std::map<int64_t, std::vector<double>>;
plot::ChartLine& add_means(const PageContext& page, size_t series, const SeedsByPosition& values,
                           const std::set<int64_t>& positions, plot::LineChart& chart,
                           table::DataTable& table);

}  // namespace longreach::report
