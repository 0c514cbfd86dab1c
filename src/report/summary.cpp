#include "report/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/text.h"
#include "table/readable.h"

namespace longreach::report {

namespace {

bool has_rows(const Results& r) {
    const auto filled = [](const auto& set) {
        return !set.second.losses.empty() || !set.second.buckets.empty() || !set.second.key_tokens.empty();
    };
    return !r.losses.empty() || !r.buckets.empty() || !r.key_tokens.empty() || !r.probes.empty() ||
           !r.tasks.empty() || std::any_of(r.sets.begin(), r.sets.end(), filled);
}

void add_series(const Collection& collection, Summary& out) {
    for (size_t g = 0; g < collection.groups.size(); ++g) {
        const std::string& group = collection.groups[g];
        if (group == collection.baseline) out.baseline = out.series.size();
        out.series.push_back({group, "", {}, {}, {}, {}});
        out.styles.push_back(plot::series_style(group, g));
        size_t evaluation = 0;
        for (const std::string& label : collection.labels) {
            const auto evaluated = [&](const RunRecord& run) {
                const auto found = run.evaluations.find(label);
                return run.group == group && found != run.evaluations.end() && has_rows(found->second);
            };
            if (label == "plain" || std::none_of(collection.runs.begin(), collection.runs.end(), evaluated))
                continue;
            if (group == collection.baseline && label == collection.baseline_label)
                out.baseline = out.series.size();
            out.series.push_back({group, label, {}, {}, {}, {}, collection.own_labels.contains(label)});
            out.styles.push_back(plot::series_style(series_name(group, label), g, ++evaluation));
        }
    }
}

void add_losses(const Collection& collection, Summary& out) {
    out.final_losses = all_evaluated(collection, &Results::losses);
    for (Series& s : out.series)
        for (const RunRecord* run : runs_of(collection, s))
            for (const LossRow& row : rows_of(*run, s.label, &Results::losses, out.final_losses)) {
                s.loss[row.length].push_back({run->seed, row.loss});
                if (!std::isnan(row.standard_error))
                    s.document_error[row.length].push_back(row.standard_error);
                if (!std::isnan(row.top1)) s.top1[row.length].push_back({run->seed, row.top1});
                if (!std::isnan(row.top1_error)) s.top1_error[row.length].push_back(row.top1_error);
            }
    std::map<int64_t, std::set<std::string>> variants;
    for (const Series& s : out.series)
        for (const auto& [length, values] : s.loss) {
            std::set<std::string>& groups = variants[length];
            if (s.own) groups.insert(s.group);
        }
    for (const auto& [length, groups] : variants) out.lengths.push_back(length);
    out.longest = longest_shared(variants);
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
        const std::string kind = text_at(run.config, "data.task.kind");
        if (kind.empty() || kind == "none") {
            out.tasks.clear();
            break;
        }
        out.tasks.insert(kind);
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

int64_t last_step(const Collection& collection) {
    int64_t step = 0;
    for (const RunRecord& run : collection.runs)
        if (!run.training.empty()) step = std::max(step, run.training.back().step);
    return step;
}

std::string at_length(const Summary& summary, int64_t length) {
    std::string out = fmt::format("At {} tokens of context", grouped(length));
    if (summary.contexts.size() == 1 && length > summary.contexts[0] && length % summary.contexts[0] == 0)
        out += fmt::format(", {} times the training length", length / summary.contexts[0]);
    return out;
}

std::string gap_text(const Collection& collection, const MeanInterval& gap, int decimals) {
    if (gap.has_interval())
        return fmt::format(
            "; the {}95% interval of the difference over {} shared seeds, [{}, {}], {}",
            collection.descriptive(), gap.count, table::signed_fixed(gap.low, decimals),
            table::signed_fixed(gap.high, decimals),
            gap.excludes_zero() ? "excludes zero" : "includes zero: these seeds do not separate the two");
    return gap.count == 1 ? "; one shared seed gives no interval, so nothing here says how much of that is "
                            "chance"
                          : "; no seed is shared, so the two cannot be paired";
}

std::string measured_on(const Collection& collection) {
    const Measure& m = collection.measure;
    if (std::isnan(m.count)) return "how many tokens were scored is not recorded";
    return m.identified() ? "the same " + m.text() + " for all"
                          : m.text() + " each (files of an earlier version do not record which)";
}

std::vector<std::string> headline(const Collection& collection, const Summary& summary) {
    std::vector<std::string> out;
    if (summary.longest == 0)
        return {fmt::format("No losses by length{} yet; training has reached step {}.", collection.on_set(),
                            grouped(last_step(collection)))};
    const int64_t length = summary.longest;
    std::vector<Candidate> candidates;
    std::vector<std::string> broken;
    std::set<std::string> variants;
    for (size_t i = 0; i < summary.series.size(); ++i) {
        if (!summary.series[i].own) continue;
        const auto found = summary.series[i].loss.find(length);
        if (found == summary.series[i].loss.end()) continue;
        const MeanInterval loss = mean_interval(found->second);
        if (std::isfinite(loss.mean)) {
            candidates.push_back({i, loss});
            variants.insert(summary.series[i].group);
        } else {
            broken.push_back(summary.styles[i].name);
        }
    }
    std::sort(candidates.begin(), candidates.end(),
              [](const Candidate& a, const Candidate& b) { return a.loss.mean < b.loss.mean; });
    const std::string where = at_length(summary, length);
    if (candidates.empty()) return {where + " no loss is finite."};

    const Candidate& best = candidates[0];
    const std::string& name = summary.styles[best.series].name;
    const std::string value =
        table::fixed(best.loss.mean, 4) +
        (best.loss.has_interval() ? " ± " + table::fixed(best.loss.standard_error, 4) : "") +
        " nats per token";
    if (candidates.size() == 1) {
        out.push_back(fmt::format("{}, the loss of {}{} is {} ({}).", where, name, collection.on_set(), value,
                                  seeds_text(best.loss.count)));
    } else {
        std::string of = counted(variants.size(), "variant");
        if (variants.size() == 1)
            of = fmt::format("{} evaluations", candidates.size());
        else if (candidates.size() > variants.size())
            of += fmt::format(" in {} evaluations", candidates.size());
        out.push_back(fmt::format("{}, {} has the lowest loss{} of {}: {} ({}).", where, name,
                                  collection.on_set(), of, value, seeds_text(best.loss.count)));
        const auto against = [&](const Candidate& other, const std::string& who) {
            const MeanInterval gap = paired_difference(summary.series[other.series].loss.at(length),
                                                       summary.series[best.series].loss.at(length));
            const double higher = gap.count > 0 ? gap.mean : other.loss.mean - best.loss.mean;
            return fmt::format("{} is {} higher{}.", who, table::fixed(higher, 4),
                               gap_text(collection, gap, 4));
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

}  // namespace longreach::report
