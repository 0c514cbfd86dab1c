// What the numbers of a collection say: one series per group and evaluation, losses by length over seeds, and
// the sentences that open the report.
#pragma once

#include <set>

#include "report/chart.h"
#include "report/collect.h"
#include "report/paired.h"

namespace longreach {

// A group as trained ("rope"), or under an evaluation that changes it ("rope + ntk").
struct Series {
    std::string group, label;                              // label: empty for the group as trained
    std::map<int64_t, std::vector<SeedValue>> loss, top1;  // by length; seeds rise
};

struct Summary {
    std::vector<Series> series;       // in the order of the groups, the evaluations of each behind it
    std::vector<SeriesStyle> styles;  // of the series
    size_t baseline = 0;              // index of a series
    std::vector<int64_t> lengths;     // that any series has
    int64_t longest = 0;              // the longest that the most series have; 0 without losses
    std::vector<int64_t> contexts;    // longest context of each run's training, without repetition
    bool final_losses = false;        // losses come from eval/plain, not from the newest validation
    // That the runs train on, if all of them do; their loss on text says little then.
    std::set<std::string> tasks;
};

Summary summarize(const Collection& collection);

// The rows of a kind for a run under a label. As trained (label ""): from eval/plain if every run that has
// such rows has them there, else what training itself wrote; one source for all, or the runs would have been
// scored on different tokens.
template <class Row>
bool all_evaluated(const Collection& collection, std::vector<Row> Results::*kind) {
    bool any = false;
    for (const RunRecord& run : collection.runs) {
        const auto plain = run.evaluations.find("plain");
        const bool evaluated = plain != run.evaluations.end() && !(plain->second.*kind).empty();
        if (!evaluated && !(run.own.*kind).empty()) return false;
        any |= evaluated;
    }
    return any;
}
template <class Row>
std::vector<Row> rows_of(const RunRecord& run, const std::string& label, std::vector<Row> Results::*kind,
                         bool evaluated) {
    if (label.empty() && !evaluated) return run.behind ? std::vector<Row>{} : newest(run.own.*kind);
    const auto found = run.evaluations.find(label.empty() ? "plain" : label);
    return found == run.evaluations.end() ? std::vector<Row>{} : newest(found->second.*kind);
}

// The runs of a series, seeds rising.
std::vector<const RunRecord*> runs_of(const Collection& collection, const Series& series);

// "At 4,096 tokens of context, 16 times the training length"; the multiple where all trained at one length.
std::string at_length(const Summary& summary, int64_t length);

// How far the pairs bear out a difference, to go on behind it: "; the 95% interval of ...".
std::string gap_text(const MeanInterval& gap, int decimals);

// Plain sentences about the losses on text, the most important first.
std::vector<std::string> headline(const Collection& collection, const Summary& summary);

}  // namespace longreach
