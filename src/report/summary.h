// A collection summarised: one series per group and evaluation, losses
// by length over seeds, and the sentences that open the report.
#pragma once

#include <set>

#include "plot/chart.h"
#include "report/collect.h"

namespace longreach::report {

// A group as trained ("rope"), or under an evaluation that changes it ("rope + ntk").
struct Series {
    std::string group, label;                              // label: empty for the group as trained
    std::map<int64_t, std::vector<SeedValue>> loss, top1;  // by length; seeds rise
    std::map<int64_t, std::vector<double>> document_error, top1_error;  // of both, by resampling documents
    bool own = true;  // listed in the sweep rather than evaluated by hand
};

struct Summary {
    std::vector<Series> series;             // in the order of the groups, each followed by its evaluations
    std::vector<plot::SeriesStyle> styles;  // of the series
    size_t baseline = 0;                    // index of a series
    std::vector<int64_t> lengths;           // of any series
    int64_t longest = 0;                    // the longest that most variants have; 0 without losses
    std::vector<int64_t> contexts;          // the distinct longest training contexts of the runs
    bool final_losses = false;              // losses come from eval/plain, not from the newest validation
    // The tasks that the runs train on, if all of them do; their loss on text then means little.
    std::set<std::string> tasks;
};

Summary summarize(const Collection& collection);

// The longest of the lengths with the most owners; 0 if there are none.
template <class Owners>
int64_t longest_shared(const std::map<int64_t, Owners>& owners_by_length) {
    int64_t longest = 0;
    size_t most = 1;
    for (const auto& [length, owners] : owners_by_length)
        if (owners.size() >= most) most = owners.size(), longest = length;
    return longest;
}

// The last step that any run has logged.
int64_t last_step(const Collection& collection);

// The rows of a kind for a run under a label, without those set apart. As
// trained (label ""), they come from eval/plain if every run that has such
// rows has them there, and otherwise from the validations during training.
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
    std::vector<Row> rows;
    if (label.empty() && !evaluated) {
        if (!run.behind) rows = newest(run.own.*kind);
    } else if (const auto found = run.evaluations.find(label.empty() ? "plain" : label);
               found != run.evaluations.end()) {
        rows = newest(found->second.*kind);
    }
    if constexpr (requires(const Row& r) { r.apart; })
        std::erase_if(rows, [](const Row& r) { return r.apart; });
    return rows;
}

// The runs of a series, seeds rising.
std::vector<const RunRecord*> runs_of(const Collection& collection, const Series& series);

// "At 4,096 tokens of context, 16 times the training
// length"; without the multiple if training lengths differ.
std::string at_length(const Summary& summary, int64_t length);

// The end of a sentence about a difference, with its confidence: "; the 95% interval of ...".
std::string gap_text(const Collection& collection, const MeanInterval& gap, int decimals);

// "the same 65,536 tokens of 6 documents for all", or what is known instead.
std::string measured_on(const Collection& collection);

// Sentences about the losses on text, the most important first.
std::vector<std::string> headline(const Collection& collection, const Summary& summary);

}  // namespace longreach::report
