#include "report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"

namespace longreach {

namespace {

bool has_rows(const Results& r) {
    return !r.losses.empty() || !r.buckets.empty() || !r.probes.empty() || !r.tasks.empty();
}

void add_series(const Collection& collection, Summary& out) {
    for (size_t g = 0; g < collection.groups.size(); ++g) {
        const std::string& group = collection.groups[g];
        if (group == collection.baseline) out.baseline = out.series.size();
        out.series.push_back({group, "", {}, {}});
        // A group's hue stays with it; every eighth group has it again, with other dashes and another marker.
        SeriesStyle style{group, g % colour_count, g / colour_count, g % marker_count, false};
        out.styles.push_back(style);
        for (const std::string& label : collection.labels) {
            const auto evaluated = [&](const RunRecord& run) {
                const auto found = run.evaluations.find(label);
                return run.group == group && found != run.evaluations.end() && has_rows(found->second);
            };
            if (label == "plain" || std::none_of(collection.runs.begin(), collection.runs.end(), evaluated))
                continue;
            out.series.push_back({group, label, {}, {}});
            ++style.dash;
            style.name = group + " + " + label;
            style.hollow = true;
            out.styles.push_back(style);
        }
    }
}

void add_losses(const Collection& collection, Summary& out) {
    out.final_losses = all_evaluated(collection, &Results::losses);
    for (Series& s : out.series)
        for (const RunRecord* run : runs_of(collection, s))
            for (const LossRow& row : rows_of(*run, s.label, &Results::losses, out.final_losses)) {
                s.loss[row.length].push_back({run->seed, row.loss});
                if (!std::isnan(row.top1)) s.top1[row.length].push_back({run->seed, row.top1});
            }
    std::map<int64_t, size_t> series_at;
    for (const Series& s : out.series)
        for (const auto& [length, values] : s.loss) ++series_at[length];
    size_t most = 0;
    for (const auto& [length, count] : series_at) {
        out.lengths.push_back(length);
        if (count >= most) {
            most = count;
            out.longest = length;
        }
    }
}

std::string seeds_text(int64_t count) {
    return counted(static_cast<size_t>(count), "seed");
}

struct Candidate {
    size_t series;
    MeanInterval loss;
};

}  // namespace

std::vector<const RunRecord*> runs_of(const Collection& collection, const Series& series) {
    std::vector<const RunRecord*> out;
    for (const RunRecord& run : collection.runs)
        if (run.group == series.group) out.push_back(&run);
    std::sort(out.begin(), out.end(),
              [](const RunRecord* a, const RunRecord* b) { return a->seed < b->seed; });
    return out;
}

Summary summarize(const Collection& collection) {
    Summary out;
    add_series(collection, out);
    add_losses(collection, out);
    for (const RunRecord& run : collection.runs) {
        const json::Value* kind = value_at(run.config, "data.task.kind");
        if (!kind || !kind->to_string() || *kind->to_string() == "none") {
            out.tasks.clear();
            break;
        }
        out.tasks.insert(*kind->to_string());
    }
    std::set<int64_t> contexts;
    for (const RunRecord& run : collection.runs) {
        int64_t longest = 0;
        if (const json::Value* stages = run.config.find("stages"); stages && stages->is_array())
            for (const json::Value& stage : stages->as_array())
                if (const json::Value* context = stage.find("context"))
                    longest = std::max(longest, context->to_int64().value_or(0));
        if (longest > 0) contexts.insert(longest);
    }
    out.contexts = {contexts.begin(), contexts.end()};
    return out;
}

std::string at_length(const Summary& summary, int64_t length) {
    std::string out = fmt::format("At {} tokens of context", full_length(length));
    if (summary.contexts.size() == 1 && length > summary.contexts[0] && length % summary.contexts[0] == 0)
        out += fmt::format(", {} times the training length", length / summary.contexts[0]);
    return out;
}

std::string gap_text(const MeanInterval& gap, int decimals) {
    if (gap.has_interval())
        return fmt::format(
            "; the 95% interval of the difference over {} shared seeds, [{}, {}], {}", gap.count,
            signed_fixed(gap.low, decimals), signed_fixed(gap.high, decimals),
            gap.excludes_zero() ? "excludes zero" : "includes zero: these seeds do not separate the two");
    return gap.count == 1 ? "; one shared seed gives no interval, so nothing here says how much of that is "
                            "chance"
                          : "; no seed is shared, so the two cannot be paired";
}

std::vector<std::string> headline(const Collection& collection, const Summary& summary) {
    std::vector<std::string> out;
    if (summary.longest == 0) {
        int64_t step = 0;
        for (const RunRecord& run : collection.runs)
            if (!run.training.empty()) step = std::max(step, run.training.back().step);
        return {fmt::format("No losses by length yet; training has reached step {}.", grouped(step))};
    }
    const int64_t length = summary.longest;
    std::vector<Candidate> candidates;
    std::vector<std::string> broken;
    for (size_t i = 0; i < summary.series.size(); ++i) {
        const auto found = summary.series[i].loss.find(length);
        if (found == summary.series[i].loss.end()) continue;
        const MeanInterval loss = mean_interval(found->second);
        if (std::isfinite(loss.mean))
            candidates.push_back({i, loss});
        else
            broken.push_back(summary.styles[i].name);
    }
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.loss.mean < b.loss.mean; });
    const std::string where = at_length(summary, length);
    if (candidates.empty()) return {where + " no loss is finite."};

    const Candidate& best = candidates[0];
    const std::string& name = summary.styles[best.series].name;
    const std::string value = fixed(best.loss.mean, 4) +
                              (best.loss.has_interval() ? " ± " + fixed(best.loss.standard_error, 4) : "") +
                              " nats per token";
    if (candidates.size() == 1) {
        out.push_back(
            fmt::format("{}, the loss of {} is {} ({}).", where, name, value, seeds_text(best.loss.count)));
    } else {
        out.push_back(fmt::format("{}, {} has the lowest loss of {}: {} ({}).", where, name,
                                  counted(candidates.size(), "variant"), value, seeds_text(best.loss.count)));
        const auto against = [&](const Candidate& other, const std::string& who) {
            const MeanInterval gap = paired_difference(summary.series[other.series].loss.at(length),
                                                       summary.series[best.series].loss.at(length));
            const double higher = gap.count > 0 ? gap.mean : other.loss.mean - best.loss.mean;
            return fmt::format("{} is {} higher{}.", who, fixed(higher, 4), gap_text(gap, 4));
        };
        out.push_back(against(candidates[1], "The next, " + summary.styles[candidates[1].series].name + ","));
        for (size_t i = 2; i < candidates.size(); ++i)
            if (candidates[i].series == summary.baseline)
                out.push_back(
                    against(candidates[i], "The baseline " + summary.styles[summary.baseline].name));
        if (candidates.size() > 2)
            out.push_back(
                "The lowest of many is in part the luckiest: intervals are not corrected for having chosen "
                "it.");
    }
    if (!broken.empty()) out.push_back(fmt::format("Not finite there: {}.", fmt::join(broken, ", ")));
    return out;
}

}  // namespace longreach
