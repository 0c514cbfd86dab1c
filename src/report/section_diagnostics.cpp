// Inside attention: the statistics of probe.csv by layer and position or distance, quantiles
// of the logits against the normal distribution, learned scalars by layer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

#include "measure/probe_roles.h"
#include "report/page_parts.h"

namespace longreach::report {

namespace {

constexpr size_t most_layers = 12, most_lengths = 3;

struct Known {
    const char *name, *title, *meaning;
    bool logarithmic = false;
    bool strongest = false;  // a layer shows its head with the largest value instead of the mean
};
// In the order of the menu; statistics that are not listed follow under their own names.
constexpr std::array known{
    Known{"inverse_top_weight", "1 / largest weight",
          "One over the largest attention weight of a query, on a logarithmic axis.", true},
    Known{"entropy", "Entropy of attention",
          "Entropy of the attention weights, in nats; log n for uniform ones."},
    Known{"entropy_1", "Entropy, distances 1 to 10", "Entropy of the weights on keys less than 10 back."},
    Known{"entropy_10", "Entropy, distances 10 to 100", "Entropy of the weights on keys 10 to 100 back."},
    Known{"entropy_100", "Entropy, distances 100 to 1,000",
          "Entropy of the weights on keys 100 to 1,000 back."},
    Known{"entropy_1000", "Entropy, distances 1,000 to 10,000",
          "Entropy of the weights on keys 1,000 to 10,000 back."},
    Known{"entropy_10000", "Entropy, distances from 10,000",
          "Entropy of the weights on keys 10,000 and more back."},
    Known{"participation", "Participation",
          "One over the sum of squared weights: about how many keys take part."},
    Known{"support", "Keys with a weight",
          "Number of keys that entmax gives a weight above 0, on a logarithmic axis.", true},
    Known{"mass_100", "Weight on the nearest 100", "Share of the attention on the 100 nearest keys."},
    Known{"decade_mass_0", "Weight on the own position",
          "Share of the attention on the query's own position."},
    Known{"sink_mass", "Weight on the first token",
          "Share of the attention on the first token of the sequence."},
    Known{"learned_sink_mass", "Weight on the learned sink", "Share of the attention on the learned sink."},
    Known{"log_top_ratio", "Largest weight over the second largest",
          "Logarithm of the ratio of a query's two largest weights; for independent normal scores times "
          "r √(2 log n) its mean tends to r."},
    Known{"previous_mass", "Weight on the previous token",
          "Share of the attention on the token before the query: near 1 in a previous-token head.", false,
          true},
    Known{"induction_mass", "Weight on the token that followed earlier",
          "Share of the attention on the token that followed the last earlier occurrence of the query's "
          "token: near 1 in an induction head.",
          false, true},
    Known{"key_norm_mean", "Length of keys",
          "Mean length of the keys. The leftmost point is the first token, the others are tokens that see "
          "that many positions."},
    Known{"key_norm_sd", "Spread of the lengths of keys",
          "Standard deviation of the lengths of keys: 0 if they are normed."},
    Known{"value_norm_mean", "Length of values",
          "Mean length of the values. The leftmost point is the first token: small where it serves as a "
          "sink."},
    Known{"value_norm_sd", "Spread of the lengths of values", "Standard deviation of the lengths of values."},
    Known{"output_norm", "Norm of attention's output", "Norm of a head's output before gate and norm."},
    Known{"projected_norm", "Norm after the output projection", "Norm of what attention adds to the stream."},
    Known{"max_score", "Largest score", "Largest product of query and key."},
    Known{"max_logit", "Largest logit", "Largest argument of the softmax."},
    Known{"logit_mean", "Mean of the logits", "Mean of a query's logits."},
    Known{"logit_sd", "Spread of the logits", "Standard deviation of a query's logits."},
    Known{"logit_skew", "Skewness of the logits", "0 for a normal distribution."},
    Known{"logit_kurtosis", "Kurtosis of the logits",
          "Fourth standardised moment or its excess over the normal's, as measured."},
    Known{"state_norm", "Norm of the state",
          "Length of the states of the delta rule, after as many positions of a document."},
    Known{"state_rank", "Rank of the state",
          "Number of directions that a state of the delta rule holds: (Σ s²)² / Σ s⁴ over its singular "
          "values."},
    Known{"half_life", "Half-life of the state",
          "Positions in which a state of the delta rule keeps half of what it holds, on a logarithmic axis.",
          true},
    Known{"longest_half_life", "Half-life of the slowest channel",
          "The same for the channel of each head that forgets most slowly.", true},
    Known{"pair_cosine", "Cosine between positions",
          "Cosine of two positions' residual streams after the block."},
    Known{"angle_ratio", "Angle ratio", "How far attention moves the angle between streams."},
    Known{"gate_mean", "Mean of the gate", "Mean of the output gate."},
    Known{"gate_below_0.1", "Gates below 0.1", "Share of the gate's values below 0.1."},
};

// Statistics that make one figure over distances: PREFIX_0 is of the own position, PREFIX_10 of 10 to 99.
struct ByDistance {
    const char *prefix, *title, *meaning;
};
constexpr std::array by_distance{
    ByDistance{
        "decade_mass", "Weight by distance",
        "Share of the attention on the own position and on each decade of distances, over all queries. "
        "Equal heights are equal attention to every scale."},
    ByDistance{"cosine_mean", "Cosine of query and key by distance",
               "Mean cosine of the angle between a query and a key, which their lengths do not change; from "
               "sampled pairs."},
    ByDistance{"cosine_sd", "Spread of the cosines by distance",
               "Standard deviation of the cosine between queries and keys, from sampled pairs."},
};

// The smallest distance that a statistic of such a figure is about; -1: it is of no such figure.
int64_t distance_of(const std::string& name, const ByDistance& figure) {
    const std::string prefix = fmt::format("{}_", figure.prefix);
    int64_t distance = 0;
    if (!name.starts_with(prefix)) return -1;
    const char* end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, distance);
    return error == std::errc() && rest == end && distance >= 0 ? distance : -1;
}

struct Quantile {
    const char* name;
    double normal;  // the standard normal's quantile
};
constexpr std::array quantiles{Quantile{"logit_q01", -2.3263}, Quantile{"logit_q05", -1.6449},
                               Quantile{"logit_q25", -0.6745}, Quantile{"logit_q50", 0},
                               Quantile{"logit_q75", 0.6745},  Quantile{"logit_q95", 1.6449},
                               Quantile{"logit_q99", 2.3263}};

struct Place {
    int64_t length, layer, bin;
    auto operator<=>(const Place&) const = default;
};
// The mean over heads, or their largest, and then the mean over seeds, by place, for every series.
using Field = std::vector<std::map<Place, double>>;

std::map<std::string, Field> fields_of(const PageContext& page) {
    struct Sum {
        double value = 0, weight = 0;
        bool whole = false;  // from the row of all heads together, which replaces theirs
        void add(double x, double times, bool strongest) {
            if (strongest) {
                value = weight > 0 ? std::max(value, x) : x;
                weight = 1;
                return;
            }
            value += times * x;
            weight += times;
        }
    };
    const auto strongest = [](const std::string& name) {
        return std::any_of(known.begin(), known.end(),
                           [&](const Known& k) { return k.strongest && name == k.name; }) ||
               measure::is_role(name);
    };
    std::map<std::string, std::vector<std::map<Place, std::vector<double>>>> seeds;
    const bool evaluated = all_evaluated(page.collection, &Results::probes);
    const size_t count = page.summary.series.size();
    for (size_t i = 0; i < count; ++i)
        for (const RunRecord* run : runs_of(page.collection, page.summary.series[i])) {
            std::map<std::string, std::map<Place, Sum>> heads;
            for (const measure::ProbeRow& row :
                 rows_of(*run, page.summary.series[i].label, &Results::probes, evaluated)) {
                if (!std::isfinite(row.value)) continue;
                const bool scalar = row.statistic.starts_with("scalar.");
                Sum& sum = heads[row.statistic][{scalar ? 0 : row.length, row.layer, row.bin}];
                if (sum.whole) continue;
                if (row.head < 0) sum = {0, 0, true};
                sum.add(row.value, row.count > 0 ? static_cast<double>(row.count) : 1,
                        strongest(row.statistic));
            }
            for (const auto& [statistic, places] : heads) {
                auto& series = seeds[statistic];
                series.resize(count);
                for (const auto& [place, sum] : places) series[i][place].push_back(sum.value / sum.weight);
            }
        }
    std::map<std::string, Field> out;
    for (const auto& [statistic, series] : seeds) {
        Field& field = out[statistic];
        field.resize(count);
        for (size_t i = 0; i < count; ++i)
            for (const auto& [place, values] : series[i]) field[i][place] = mean_of(values);
    }
    return out;
}

template <class T>
std::vector<T> spread_out(const std::set<T>& all, size_t most) {
    const std::vector<T> values(all.begin(), all.end());
    if (values.size() <= most) return values;
    std::vector<T> out;
    for (size_t i = 0; i < most; ++i) out.push_back(values[i * (values.size() - 1) / (most - 1)]);
    return out;
}

std::string layer_text(int64_t layer) {
    return layer < 0 ? "all" : fmt::format("{}", layer);
}

std::string layer_name(int64_t layer) {
    return layer < 0 ? std::string("whole model") : fmt::format("layer {}", layer);
}

std::set<int64_t> layers_of(const Field& field, int64_t length) {
    std::set<int64_t> out;
    for (const auto& series : field)
        for (const auto& [place, value] : series)
            if (place.length == length) out.insert(place.layer);
    return out;
}

// The table of a field at a length: one row per layer and bin, one column per series that has values.
table::DataTable field_table(const PageContext& page, const Field& field, int64_t length,
                             const std::string& caption) {
    table::DataTable table{.caption = caption, .header = {"layer", "position from"}};
    std::set<std::pair<int64_t, int64_t>> rows;
    std::vector<size_t> series;
    for (size_t i = 0; i < field.size(); ++i) {
        bool any = false;
        for (const auto& [place, value] : field[i])
            if (place.length == length) rows.insert({place.layer, place.bin}), any = true;
        if (!any) continue;
        series.push_back(i);
        table.header.push_back(page.styles()[i].name);
    }
    for (const auto& [layer, bin] : rows) {
        std::vector<table::Cell> row{table::name_cell(layer_text(layer)),
                                     bin == 0 ? table::Cell("all", "all") : table::count_cell(bin)};
        for (size_t i : series) {
            const auto found = field[i].find({length, layer, bin});
            row.push_back(found == field[i].end() ? table::Cell{""} : table::significant_cell(found->second));
        }
        table.rows.push_back(row);
    }
    return table;
}

std::vector<size_t> series_with(const Field& field, int64_t length) {
    std::vector<size_t> out;
    for (size_t i = 0; i < field.size(); ++i)
        if (std::any_of(field[i].begin(), field[i].end(),
                        [&](const auto& entry) { return entry.first.length == length; }))
            out.push_back(i);
    return out;
}

// Gives all panels of one figure the same axis, so that layers can be compared.
void share_axis(std::vector<plot::LineChart>& charts) {
    double low = INFINITY, high = -INFINITY;
    for (const plot::LineChart& chart : charts)
        for (const plot::ChartLine& line : chart.lines)
            for (const plot::ChartPoint& p : line.points)
                if (std::isfinite(p.y) && (p.y > 0 || !chart.log_y))
                    low = std::min(low, p.y), high = std::max(high, p.y);
    if (!(high > low)) return;
    for (plot::LineChart& chart : charts) {
        const double margin = chart.log_y ? std::pow(high / low, 0.04) : 0.04 * (high - low);
        chart.y_low = chart.log_y ? low / margin : low - margin;
        chart.y_high = chart.log_y ? high * margin : high + margin;
    }
}

// Adds a line per series through the values of the chosen places; returns their positions on the x axis.
template <class Chosen>
std::set<int64_t> add_lines(plot::LineChart& chart, const Field& field, int64_t Place::*x,
                            const Chosen& chosen) {
    std::set<int64_t> positions;
    for (size_t i = 0; i < field.size(); ++i) {
        plot::ChartLine line{i};
        for (const auto& [place, value] : field[i]) {
            if (!chosen(place)) continue;
            positions.insert(place.*x);
            line.points.push_back(
                {static_cast<double>(place.*x), value, NAN, NAN, table::significant(value)});
        }
        if (!line.points.empty()) chart.lines.push_back(line);
    }
    return positions;
}

// Lines over layers, for values without bins.
plot::LineChart layer_chart(const Field& field, int64_t length, const std::string& id,
                            const std::string& title) {
    plot::LineChart chart{.id = id, .title = title, .description = "By layer."};
    for (int64_t layer : add_lines(chart, field, &Place::layer, [&](const Place& place) {
             return place.length == length && place.bin == 0;
         })) {
        chart.x_ticks.push_back({static_cast<double>(layer), layer_text(layer)});
        chart.places.push_back({static_cast<double>(layer), layer_name(layer)});
    }
    return chart;
}

std::string statistic_figure(const PageContext& page, const Known& statistic, const Field& field,
                             int64_t length) {
    const std::string name = statistic.name, title = statistic.title;
    std::vector<plot::LineChart> charts;
    const std::set<int64_t> layers = layers_of(field, length);
    if (layers.empty()) return {};
    bool binned = false;
    for (int64_t layer : spread_out(layers, most_layers)) {
        plot::LineChart chart{.id = fmt::format("probe-{}-{}-{}", name, length, layer),
                              .title = layer_name(layer),
                              .description = fmt::format("{} by position.", title),
                              .log_x = true,
                              .marks = context_marks(page)};
        // A mark widens the axis, so there is none beyond the end of a sequence.
        if (!chart.marks.empty() && chart.marks.back().x > static_cast<double>(length)) chart.marks.clear();
        for (int64_t bin : add_lines(chart, field, &Place::bin, [&, layer](const Place& place) {
                 return place.length == length && place.layer == layer && place.bin != 0;
             }))
            chart.places.push_back(
                {static_cast<double>(bin), fmt::format("{}, position {} to {}", layer_name(layer),
                                                       grouped(bin), grouped(2 * bin - 1))});
        if (chart.lines.empty()) continue;
        binned = true;
        charts.push_back(chart);
    }
    if (!binned)
        charts = {layer_chart(field, length, fmt::format("probe-{}-{}", name, length), title + " by layer")};
    for (plot::LineChart& chart : charts) chart.log_y = statistic.logarithmic;
    share_axis(charts);
    std::string caption = fmt::format("At a context of {}. {}", grouped(length), statistic.meaning);
    caption += statistic.strongest ? " The largest value of a layer's heads, mean over seeds,"
                                   : " Means over heads and seeds,";
    caption += binned ? " by the number of visible positions; one panel per layer, with the same axis."
                      : " by layer.";
    if (layers.size() > most_layers)
        caption += fmt::format(" {} of {} layers are drawn.", most_layers, layers.size());
    return figure(
        page, fmt::format("probe-{}-{}", name, length), panels(page, charts, title),
        series_with(field, length), caption,
        field_table(page, field, length, fmt::format("{} at a context of {}", title, grouped(length))));
}

std::string distance_figure(const PageContext& page, const ByDistance& of,
                            const std::map<std::string, Field>& fields, int64_t length) {
    std::map<int64_t, const Field*> classes;  // by their smallest distance
    std::set<int64_t> layers;
    for (const auto& [name, field] : fields) {
        const int64_t distance = distance_of(name, of);
        if (distance < 0) continue;
        classes[distance] = &field;
        layers.merge(layers_of(field, length));
    }
    const std::vector<int64_t> some = spread_out(layers, most_layers);
    const std::set<int64_t> drawn(some.begin(), some.end());
    const auto text = [](int64_t nearest) {
        return nearest == 0 ? std::string("own position")
                            : fmt::format("distances {} to {}", grouped(nearest), grouped(10 * nearest - 1));
    };
    std::set<size_t> used;
    for (const auto& [nearest, field] : classes)
        for (const size_t i : series_with(*field, length)) used.insert(i);
    table::DataTable table{.caption = fmt::format("{} at a context of {}", of.title, grouped(length)),
                           .header = {"layer", "distance"}};
    for (const size_t i : used) table.header.push_back(page.styles()[i].name);
    std::vector<plot::LineChart> charts;
    for (const int64_t layer : layers) {
        plot::LineChart chart{.id = fmt::format("{}-{}-{}", of.prefix, length, layer),
                              .title = layer_name(layer),
                              .description = fmt::format("{}.", of.title)};
        std::map<size_t, plot::ChartLine> lines;
        for (const auto& [nearest, field] : classes) {
            // Every class is as wide as the next: its place is the number of digits of its distances.
            const double x = nearest == 0 ? 0 : 1 + std::round(std::log10(static_cast<double>(nearest)));
            std::vector<table::Cell> row{table::name_cell(layer_text(layer)), table::Cell(text(nearest))};
            bool any = false;
            for (const size_t i : used) {
                const auto found = (*field)[i].find({length, layer, 0});
                const bool known_here = found != (*field)[i].end();
                row.push_back(known_here ? table::significant_cell(found->second) : table::Cell{""});
                if (!known_here) continue;
                any = true;
                plot::ChartLine& line = lines.try_emplace(i, plot::ChartLine{i}).first->second;
                line.points.push_back({x, found->second, NAN, NAN, table::significant(found->second)});
            }
            if (!any) continue;
            table.rows.push_back(row);
            chart.x_ticks.push_back(
                {x, nearest == 0 ? "own" : fmt::format("{}+", table::short_length(nearest))});
            chart.places.push_back({x, fmt::format("{}, {}", layer_name(layer), text(nearest))});
        }
        for (auto& [i, line] : lines) chart.lines.push_back(std::move(line));
        if (drawn.contains(layer) && !chart.lines.empty()) charts.push_back(chart);
    }
    if (charts.empty()) return {};
    share_axis(charts);
    std::string caption = fmt::format(
        "At a context of {}. {} Means over heads and seeds, by distance; one panel per layer, with the same "
        "axis.",
        grouped(length), of.meaning);
    if (layers.size() > most_layers)
        caption += fmt::format(" {} of {} layers are drawn.", most_layers, layers.size());
    return figure(page, fmt::format("{}-{}", of.prefix, length), panels(page, charts, of.title),
                  {used.begin(), used.end()}, caption, table);
}

std::string quantile_figure(const PageContext& page, const std::map<std::string, Field>& fields,
                            int64_t length) {
    std::vector<plot::LineChart> charts;
    std::set<int64_t> layers;
    for (const Quantile& q : quantiles)
        if (const auto field = fields.find(q.name); field != fields.end())
            layers.merge(layers_of(field->second, length));
    table::DataTable table{
        .caption = fmt::format("Quantiles of the standardised logits at a context of {}", grouped(length)),
        .header = {"variant", "layer"}};
    for (const Quantile& q : quantiles)
        table.header.push_back(fmt::format("normal {}", table::fixed(q.normal, 2)));
    std::set<size_t> used;
    for (int64_t layer : spread_out(layers, most_layers)) {
        plot::LineChart chart{
            .id = fmt::format("quantiles-{}-{}", length, layer),
            .title = layer_name(layer),
            .description = "Quantiles of the logits against those of the normal distribution.",
            .diagonal = true};
        for (const Quantile& q : quantiles)
            chart.places.push_back(
                {q.normal, fmt::format("{}, normal {}", layer_name(layer), table::fixed(q.normal, 2))});
        for (size_t i = 0; i < page.summary.series.size(); ++i) {
            plot::ChartLine line{i};
            std::vector<table::Cell> row{table::name_cell(page.styles()[i].name), {layer_text(layer)}};
            for (const Quantile& q : quantiles) {
                const auto field = fields.find(q.name);
                double value = NAN;
                if (field != fields.end()) {
                    const auto found = field->second[i].find({length, layer, 0});
                    if (found != field->second[i].end()) value = found->second;
                }
                row.push_back(table::number_cell(value, 3));
                if (std::isfinite(value))
                    line.points.push_back({q.normal, value, NAN, NAN, table::fixed(value, 3)});
            }
            if (line.points.empty()) continue;
            used.insert(i);
            chart.lines.push_back(line);
            table.rows.push_back(row);
        }
        if (!chart.lines.empty()) charts.push_back(chart);
    }
    if (charts.empty()) return {};
    share_axis(charts);
    return figure(
        page, fmt::format("quantiles-{}", length), panels(page, charts, "Quantiles of the logits"),
        {used.begin(), used.end()},
        fmt::format("At a context of {}: quantiles of (logit − mean) / spread, upwards, against those of the "
                    "normal distribution, to the right; normal logits lie on the dashed diagonal.",
                    grouped(length)),
        table);
}

std::string role_figure(const PageContext& page, const std::map<std::string, Field>& fields) {
    std::vector<plot::LineChart> charts;
    table::DataTable table{.caption = "Roles of heads, the strongest of each layer, means over seeds",
                           .header = {"role", "variant", "layer", "weight"}};
    std::set<size_t> used;
    for (const measure::HeadRole& role : measure::head_roles) {
        const auto found = fields.find(role.statistic);
        if (found == fields.end()) continue;
        charts.push_back(layer_chart(found->second, 0, fmt::format("role-{}", role.statistic), role.title));
        for (size_t i = 0; i < found->second.size(); ++i)
            for (const auto& [place, value] : found->second[i]) {
                used.insert(i);
                table.rows.push_back({table::name_cell(role.title),
                                      table::name_cell(page.styles()[i].name),
                                      {layer_text(place.layer)},
                                      table::significant_cell(value)});
            }
    }
    if (charts.empty()) return {};
    share_axis(charts);
    return subheading("Roles of heads") +
           figure(page, "roles", panels(page, charts, "Roles of heads"), {used.begin(), used.end()},
                  "Measured on random tokens that are repeated once: the weight on the token before the "
                  "query, and the weight in the second copy on the token that followed the query's token in "
                  "the first; on texts with a needle: the weight on the token of the needle that the answer "
                  "repeats next. Each layer shows its strongest head, mean over seeds; 1 is a head that does "
                  "nothing else.",
                  table);
}

std::string scalar_figure(const PageContext& page, const std::map<std::string, Field>& fields) {
    std::vector<plot::LineChart> charts;
    table::DataTable table{.caption = "Learned scalars, means over heads and seeds",
                           .header = {"scalar", "variant", "layer", "value"}};
    std::set<size_t> used;
    for (const auto& [name, field] : fields) {
        if (!name.starts_with("scalar.")) continue;
        const std::string scalar = name.substr(7);
        charts.push_back(layer_chart(field, 0, "scalar-" + scalar, scalar + " by layer"));
        for (size_t i = 0; i < field.size(); ++i)
            for (const auto& [place, value] : field[i]) {
                used.insert(i);
                table.rows.push_back({table::name_cell(scalar),
                                      table::name_cell(page.styles()[i].name),
                                      {layer_text(place.layer)},
                                      table::significant_cell(value)});
            }
    }
    if (charts.empty()) return {};
    return subheading("Learned scalars") + figure(page, "scalars", panels(page, charts, "Learned scalars"),
                                                  {used.begin(), used.end()},
                                                  "What the model learned for each scalar; means over heads "
                                                  "and seeds. “all” is one value for the "
                                                  "whole model.",
                                                  table);
}

}  // namespace

Section diagnostics_section(const PageContext& page) {
    Section section{"diagnostics", "Inside attention", {}};
    const std::map<std::string, Field> fields = fields_of(page);
    if (fields.empty()) return section;
    std::set<int64_t> all_lengths;
    for (const auto& [name, field] : fields)
        if (!name.starts_with("scalar."))
            for (const auto& series : field)
                for (const auto& [place, value] : series)
                    if (place.length > 0) all_lengths.insert(place.length);
    const std::vector<int64_t> lengths = spread_out(all_lengths, most_lengths);

    std::vector<Known> statistics(known.begin(), known.end());
    const auto in_a_figure = [](const std::string& name) {
        return std::any_of(quantiles.begin(), quantiles.end(),
                           [&](const Quantile& q) { return name == q.name; }) ||
               measure::is_role(name) ||
               std::any_of(by_distance.begin(), by_distance.end(),
                           [&](const ByDistance& figure) { return distance_of(name, figure) >= 0; });
    };
    for (const auto& [name, field] : fields)
        if (!name.starts_with("scalar.") && !in_a_figure(name) &&
            std::none_of(known.begin(), known.end(),
                         [&word = name](const Known& k) { return word == k.name; }))
            statistics.push_back({name.c_str(), name.c_str(), "", false});

    Menu which{"statistic", {}}, length_menu{"context length", {}};
    for (int64_t length : lengths)
        length_menu.choices.push_back({fmt::format("{}", length), grouped(length)});
    std::vector<ChosenPiece> pieces;
    const auto add = [&](const std::string& key, const std::string& title, auto make) {
        bool any = false;
        for (int64_t length : lengths) {
            const std::string html = make(length);
            if (html.empty()) continue;
            pieces.push_back({{key, fmt::format("{}", length)}, html});
            any = true;
        }
        if (any) which.choices.push_back({key, title});
    };
    for (const Known& k : statistics)
        if (const auto found = fields.find(k.name); found != fields.end())
            add(k.name, k.title,
                [&](int64_t length) { return statistic_figure(page, k, found->second, length); });
    for (const ByDistance& of : by_distance)
        add(of.prefix, of.title, [&](int64_t length) { return distance_figure(page, of, fields, length); });
    add("quantiles", "Quantiles of the logits",
        [&](int64_t length) { return quantile_figure(page, fields, length); });
    if (!pieces.empty()) {
        const std::string longest = length_menu.choices.back().key, first = which.choices[0].key;
        section.html += chooser("diagnostics", {which, length_menu}, pieces, {first, longest});
    }
    section.html += role_figure(page, fields) + roles_by_step(page);
    section.html += scalar_figure(page, fields);
    return section;
}

}  // namespace longreach::report
