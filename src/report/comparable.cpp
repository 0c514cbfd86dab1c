#include "report/comparable.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "table/readable.h"
#include "report/summary.h"
#include "report/two_ways.h"

namespace longreach::report {

namespace {

std::string counted_number(double count, const char* noun) {
    return fmt::format("{} {}{}", grouped(std::llround(count)), noun, count == 1 ? "" : "s");
}

// Tasks ask the same samples whichever tokens are scored.
template <class Row>
bool is_second_way(const RunRecord& run, const std::string& label) {
    return !std::is_same_v<Row, TaskCell> && first_way_of(run, label).has_value();
}

// Calls visit(run, label, row) for the rows of each run that enter a comparison.
template <class Collected, class Row, class Visit>
void each_row(Collected& collection, std::vector<Row> Results::*kind, const Visit& visit) {
    const bool evaluated = all_evaluated(collection, kind);
    for (auto& run : collection.runs) {
        for (auto& [name, results] : run.evaluations) {
            const std::string& label = name;  // clang 14 does not capture a structured binding
            if (is_second_way<Row>(run, label)) continue;
            if (label != "plain" || evaluated)
                each_newest(results.*kind, [&](auto& row) { visit(run, label, row); });
        }
        if (!evaluated && !run.behind)
            each_newest(run.own.*kind, [&](auto& row) { visit(run, std::string("plain"), row); });
    }
}

// The measure that most variants share; on a tie, that of the models as trained, then the one with the most tokens.
struct Votes {
    struct Group {
        Measure measure;
        std::set<std::string> voters;
        bool plain = false;
    };
    std::map<std::string, Group> groups;  // by key
    void add(const Measure& measure, const std::string& group, const std::string& label = {}) {
        Group& votes = groups[measure.key()];
        votes.measure = measure;
        votes.voters.insert(group);
        votes.plain = votes.plain || label == "plain";
    }
    Measure winner() const {
        const auto better = [](const Group& a, const Group& b) {
            if (a.voters.size() != b.voters.size()) return a.voters.size() > b.voters.size();
            if (a.plain != b.plain) return a.plain;
            return !(a.measure.count <= b.measure.count);
        };
        const Group* best = nullptr;
        for (const auto& [key, votes] : groups)
            if (!best || better(votes, *best)) best = &votes;
        return best ? best->measure : Measure{};
    }
};

// What was set apart, for the notes: variants and seeds by label and measure.
struct Strangers {
    struct Entry {
        Measure measure;
        std::vector<std::string> variants;
    };
    std::map<std::pair<std::string, std::string>, Entry> entries;  // by what, key of the measure
    void add(const std::string& what, const Measure& measure, const std::string& variant) {
        Entry& entry = entries[{what, measure.key()}];
        entry.measure = measure;
        if (std::find(entry.variants.begin(), entry.variants.end(), variant) == entry.variants.end())
            entry.variants.push_back(variant);
    }
};

template <class Row>
Measure set_rows_apart(Collection& collection, std::vector<Row> Results::*kind, Strangers* strangers) {
    Votes own, all;
    each_row(collection, kind, [&](const RunRecord& run, const std::string& label, const Row& row) {
        all.add(row.measure, run.group, label);
        if (collection.own_labels.contains(label)) own.add(row.measure, run.group, label);
    });
    const Measure chosen = (own.groups.empty() ? all : own).winner();
    const std::string key = chosen.key();
    const auto mark = [&](Row& row) { row.apart = row.measure.key() != key; };
    for (RunRecord& run : collection.runs) {
        each_newest(run.own.*kind, mark);
        for (auto& [name, results] : run.evaluations)
            if (is_second_way<Row>(run, name))
                each_newest(results.*kind, [](Row& row) { row.apart = true; });
            else
                each_newest(results.*kind, mark);
    }
    if (!strangers) return chosen;
    std::set<std::pair<std::string, std::string>> kept;
    each_row(collection, kind, [&](const RunRecord& run, const std::string& label, const Row& row) {
        if (!row.apart) kept.insert({run.group, label});
    });
    each_row(collection, kind, [&](const RunRecord& run, const std::string& label, const Row& row) {
        if (row.apart)
            strangers->add(label, row.measure,
                           kept.contains({run.group, label})
                               ? fmt::format("{} (seed {})", run.group, run.seed)
                               : run.group);
    });
    return chosen;
}

void set_tasks_apart(Collection& collection, Strangers& strangers) {
    using Place = std::tuple<int64_t, std::string, int64_t, double>;
    const auto place = [](const RunRecord& run, const TaskCell& row) {
        return Place(run.seed, row.task, row.length, row.depth.value_or(-1));
    };
    std::map<Place, Votes> own, all;
    each_row(collection, &Results::tasks,
             [&](const RunRecord& run, const std::string& label, const TaskCell& row) {
                 all[place(run, row)].add(row.measure, run.group);
                 if (collection.own_labels.contains(label)) own[place(run, row)].add(row.measure, run.group);
             });
    each_row(collection, &Results::tasks, [&](const RunRecord& run, const std::string& label, TaskCell& row) {
        const auto found = own.find(place(run, row));
        const Votes& votes = found == own.end() ? all[place(run, row)] : found->second;
        row.apart = row.measure.key() != votes.winner().key();
        if (row.apart) strangers.add(fmt::format("{}\n{}", label, row.task), {}, run.group);
    });
}

}  // namespace

std::string Measure::key() const {
    return (identified() ? fingerprint : fmt::format("{} unidentified", count)) + trained_on;
}

std::string Measure::text() const {
    if (std::isnan(count)) return "an unknown number of tokens";
    const std::string tokens = counted_number(count, "token");
    return documents > 0 ? fmt::format("{} of {}", tokens, counted_number(documents, "document")) : tokens;
}

void tell_training_data(Collection& collection) {
    const auto paths = [](const RunRecord& run) {
        std::string key;
        for (const char* field : {"data.train", "data.mixture"})
            if (const json::Value* value = value_at(run.config, field))
                key += json::write(*value, json::Style::compact);
        return key;
    };
    std::map<std::string, std::set<std::string>> found;  // fingerprints by paths
    const auto fingerprint = [](const RunRecord& run) { return text_at(run.build, "data.training"); };
    for (const RunRecord& run : collection.runs)
        if (const std::string text = fingerprint(run); !text.empty()) found[paths(run)].insert(text);
    const auto mark = [](Results& results, const std::string& text) {
        for (LossRow& row : results.losses) row.measure.trained_on = text;
        for (BucketRow& row : results.buckets) row.measure.trained_on = text;
        for (TaskCell& row : results.tasks) row.measure.trained_on = text;
        for (auto& [name, set] : results.sets) {
            for (LossRow& row : set.losses) row.measure.trained_on = text;
            for (BucketRow& row : set.buckets) row.measure.trained_on = text;
        }
    };
    for (RunRecord& run : collection.runs) {
        if (found[paths(run)].size() < 2) continue;
        mark(run.own, fingerprint(run));
        for (auto& [label, results] : run.evaluations) mark(results, fingerprint(run));
    }
}

void set_losses_apart(Collection& collection) {
    Strangers losses;
    collection.measure = set_rows_apart(collection, &Results::losses, &losses);
    set_rows_apart(collection, &Results::buckets, nullptr);
    for (const auto& [what, entry] : losses.entries) {
        if (entry.measure.trained_on != collection.measure.trained_on) {
            collection.notes.push_back(fmt::format(
                "Evaluation {} of {} is of a model trained on other data under the same paths ({}, "
                "not {}) and is shown apart.",
                what.first, join(entry.variants, ", "), entry.measure.trained_on,
                collection.measure.trained_on));
            continue;
        }
        const bool differs = entry.measure.count != collection.measure.count ||
                             entry.measure.identified() == collection.measure.identified();
        collection.notes.push_back(fmt::format(
            "Evaluation {} of {} scored {} ({}) and is shown apart.", what.first, join(entry.variants, ", "),
            differs ? "other tokens" : "tokens that cannot be shown to be the same", entry.measure.text()));
    }
}

void set_apart(Collection& collection) {
    set_losses_apart(collection);
    Strangers tasks;
    set_tasks_apart(collection, tasks);
    for (const auto& [what, entry] : tasks.entries) {
        const size_t cut = what.first.find('\n');
        collection.notes.push_back(fmt::format(
            "Evaluation {} of {} asked other samples of {}, at one length or more; those are shown apart.",
            what.first.substr(0, cut), join(entry.variants, ", "), what.first.substr(cut + 1)));
    }
}

std::vector<ApartLosses> losses_apart(const Collection& collection) {
    std::map<std::string, ApartLosses> tables;
    const auto place = [](const auto& names, const std::string& name) {
        return std::find(names.begin(), names.end(), name) - names.begin();
    };
    std::map<std::string, std::map<std::pair<int64_t, int64_t>, ApartLosses::Row>> rows;
    each_row(collection, &Results::losses,
             [&](const RunRecord& run, const std::string& label, const LossRow& row) {
                 if (!row.apart) return;
                 const std::string key = row.measure.key();
                 tables[key].measure = row.measure;
                 ApartLosses::Row& out =
                     rows[key][{place(collection.groups, run.group), place(collection.labels, label)}];
                 out.group = run.group;
                 out.label = label;
                 out.loss[row.length].push_back({run.seed, row.loss});
             });
    std::vector<ApartLosses> out;
    for (auto& [key, table] : tables) {
        for (auto& [at, row] : rows[key]) table.rows.push_back(std::move(row));
        out.push_back(std::move(table));
    }
    return out;
}

std::vector<ApartTask> tasks_apart(const Collection& collection) {
    std::vector<ApartTask> out;
    each_row(collection, &Results::tasks,
             [&](const RunRecord& run, const std::string& label, const TaskCell& row) {
                 if (row.apart) out.push_back({run.group, label, run.seed, row});
             });
    return out;
}

}  // namespace longreach::report
