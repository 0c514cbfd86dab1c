#include "report/collect.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>

#include "base/nearest_path.h"
#include "base/text.h"
#include "config/field_info.h"
#include "io/file.h"
#include "measure/probe_roles.h"
#include "report/comparable.h"
#include "sweep/unlisted_runs.h"
#include "train/run_directory.h"

namespace longreach::report {

namespace {

constexpr uint64_t largest_json = uint64_t{1} << 24;

json::Value read_json(const std::string& path) {
    if (io::kind_of(path, io::Links::follow) == io::PathKind::missing) return {};
    json::ParseOptions options;
    options.max_bytes = largest_json;
    options.code = ExitCode::data;
    return json::parse(io::read_file(path, largest_json, io::Links::follow), path, options);
}

SetLosses read_losses(const std::string& path) {
    SetLosses out;
    for (const eval::LossRow& line : eval::val_file.read(path)) {
        LossRow row{line, {line.fingerprint, line.scored, line.documents}};
        // Earlier versions wrote 0 where a single document gives no error.
        if (row.documents < 2) row.standard_error = NAN;
        out.losses.push_back(row);
    }
    std::map<std::tuple<int64_t, int64_t, bool>, double> counts;
    for (const eval::BucketRow& line : eval::positions_file.read(path)) {
        out.buckets.push_back({line, {line.fingerprint}});
        counts[{line.step, line.length, out.buckets.back().by_document()}] += line.scored;
    }
    out.key_tokens = measure::key_tokens_file.read(path);
    for (BucketRow& row : out.buckets) row.measure.count = counts[{row.step, row.length, row.by_document()}];
    return out;
}

Results read_directory(const std::string& path) {
    Results out;
    SetLosses own = read_losses(path);
    out.losses = std::move(own.losses);
    out.buckets = std::move(own.buckets);
    out.key_tokens = std::move(own.key_tokens);
    const std::string sets = io::join_path(path, "sets");
    if (io::kind_of(sets, io::Links::refuse) == io::PathKind::directory)
        for (const std::string& name : io::list_directory(sets)) {
            const std::string at = io::join_path(sets, name);
            if (!config::is_plain_name(name) || io::kind_of(at, io::Links::refuse) != io::PathKind::directory)
                continue;
            if (SetLosses losses = read_losses(at); !losses.losses.empty())
                out.sets.emplace(name, std::move(losses));
        }
    const std::vector<measure::ProbeRow> probes = measure::probe_file.read(path);
    out.probes = newest(probes);
    std::copy_if(probes.begin(), probes.end(), std::back_inserter(out.roles),
                 [](const measure::ProbeRow& row) { return measure::is_role(row.statistic); });
    for (const measure::TaskRow& line : newest(measure::tasks_file.read(path)))
        out.tasks.push_back({line, {line.fingerprint, static_cast<double>(line.samples)}});
    return out;
}

// Whether an override of a config ("eval.align=\"suffix\"") leaves the model as it is.
bool chooses_tokens(const std::string& change) {
    constexpr std::array fields{
        "eval.align=", "eval.suffix_tokens=", "eval.min_document=", "eval.pick=",   "eval.batch_tokens=",
        "eval.piece=", "eval.lengths=",       "eval.final_tokens=", "eval.tokens=", "system."};
    return std::any_of(fields.begin(), fields.end(), [&](auto* field) { return change.starts_with(field); });
}

Results read_evaluation(const std::string& path) {
    Results out = read_directory(path);
    const json::Value request = read_json(io::join_path(path, "request.json"));
    out.align = text_at(request, "align");
    if (const json::Value* set = value_at(request, "set"); set && set->is_array())
        for (const json::Value& change : set->as_array())
            if (const std::string* text = change.to_string(); text && !chooses_tokens(*text))
                out.changes.push_back(*text);
    std::sort(out.changes.begin(), out.changes.end());
    return out;
}

double median(std::vector<double> values) {
    if (values.empty()) return NAN;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// Where ".seed" or "-seed" and digits end a name, and the number; npos for `at` if they do not.
struct SeedSuffix {
    size_t at = std::string::npos;
    int64_t seed = 0;
};
SeedSuffix seed_suffix(const std::string& name) {
    const size_t at = std::max(name.rfind(".seed") + 1, name.rfind("-seed") + 1);  // npos + 1 is 0
    if (at < 2) return {};
    const std::string digits = name.substr(at + 4);
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos)
        return {};
    return {at - 1, std::stoll(digits)};
}

// The lines of the log that report a problem.
void read_warnings(const std::string& path, RunRecord& run) {
    run.has_log = io::kind_of(path, io::Links::follow) == io::PathKind::file;
    if (!run.has_log) return;
    std::istringstream log(io::read_file(path, uint64_t{1} << 30, io::Links::follow));
    constexpr std::array words{"warning", "error", "giving up", "not finite", "non-finite", "damaged"};
    for (std::string line; std::getline(log, line) && !log.eof();)
        if (std::any_of(words.begin(), words.end(), [&](auto* word) { return line.find(word) != line.npos; }))
            run.warnings.push_back(line);
}

void read_sample(const std::string& directory, const std::string& label, RunRecord& run) {
    constexpr uint64_t shown_bytes = 4096;
    const std::string path = io::join_path(directory, "sample.txt");
    if (io::kind_of(path, io::Links::refuse) != io::PathKind::file) return;
    const io::File file = io::File::open(path, io::Links::refuse);
    std::string text(static_cast<size_t>(std::min(file.size(), shown_bytes)), '\0');
    file.read_at(text.data(), text.size(), 0);
    run.samples.emplace(label, text + (file.size() > shown_bytes ? " ..." : ""));
}

RunRecord read_run(const std::string& path) {
    require(io::kind_of(path, io::Links::follow) == io::PathKind::directory, ExitCode::data,
            "{} is not a directory{}", path, path_suggestion(path));
    RunRecord run;
    run.path = path;
    run.name = io::base_name(path);
    run.config = read_json(io::join_path(path, "config.json"));
    run.build = read_json(io::join_path(path, "build.json"));
    if (const json::Value origins = read_json(io::join_path(path, "origins.json")); origins.is_object())
        for (const json::Member& member : origins.as_object())
            if (const std::string* text = member.value.to_string()) run.origins.emplace(member.key, *text);
    read_warnings(io::join_path(path, "log.txt"), run);
    run.own = read_directory(path);
    const std::string evaluations = io::join_path(path, "eval");
    if (io::kind_of(evaluations, io::Links::refuse) == io::PathKind::directory)
        for (const std::string& label : io::list_directory(evaluations))
            if (train::is_label(label) && io::kind_of(io::join_path(evaluations, label), io::Links::refuse) ==
                                              io::PathKind::directory) {
                run.evaluations.emplace(label, read_evaluation(io::join_path(evaluations, label)));
                read_sample(io::join_path(evaluations, label), label, run);
            }
    run.training = train::metrics_file.read(path);
    run.timing = train::timing_file.read(path);
    std::vector<double> speeds;
    for (const train::TimingRow& row : run.timing)
        if (std::isfinite(row.tokens_per_second)) speeds.push_back(row.tokens_per_second);
    run.tokens_per_second = median(speeds);
    run.group = group_of(run.name);
    const json::Value* seed = value_at(run.config, "run.seed");
    run.seed = seed ? seed->to_int64().value_or(0) : seed_suffix(run.name).seed;
    return run;
}

bool has_results(const RunRecord& run) {
    return !run.training.empty() || !run.own.losses.empty() || !run.own.probes.empty() ||
           !run.own.tasks.empty() || !run.evaluations.empty();
}

std::string trimmed(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

void add_unique(const std::string& name, std::vector<std::string>& names) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
}

void collect_sweep(const std::string& path, Collection& out) {
    const std::string file = io::join_path(path, "sweep.json");
    const json::Value sweep = read_json(file);
    json::require_format(sweep, sweep::sweep_list_format, file, ExitCode::data);
    out.title = text_at(sweep, "name");
    if (out.title.empty()) out.title = io::base_name(path);
    out.sweep = true;
    out.own_labels = {"plain"};
    out.baseline = text_at(sweep, "baseline");
    out.contrasts = sweep::read_contrasts(sweep, file);
    if (const json::Value* seeds = sweep.find("seeds"); seeds && seeds->is_array())
        for (const json::Value& seed : seeds->as_array())
            if (const auto number = seed.to_int64()) out.seeds.push_back(*number);
    const json::Value* runs = sweep.find("runs");
    require(runs && runs->is_array(), ExitCode::data, "{}/sweep.json has no list \"runs\"", path);
    std::set<std::string> listed;
    for (const json::Value& entry : runs->as_array()) {
        ++out.planned;
        if (const json::Value* labels = entry.find("evaluations"); labels && labels->is_array())
            for (const json::Value& label : labels->as_array())
                if (const auto text = label.to_string()) {
                    add_unique(*text, out.labels);
                    out.own_labels.insert(*text);
                }
        const std::string variant = text_at(entry, "variant"), directory = text_at(entry, "directory");
        require(!variant.empty() && !directory.empty(), ExitCode::data,
                "{}/sweep.json:{}: a run without \"variant\" or \"directory\"", path, entry.at().line);
        // Only the last component: the sweep may have been moved, and nothing outside it is opened.
        const std::string last = io::base_name(directory);
        const std::string where = io::join_path(path, last);
        listed.insert(last);
        if (last.empty() || last == "." || last == ".." ||
            io::kind_of(where, io::Links::follow) != io::PathKind::directory) {
            out.notes.push_back(fmt::format("{} has not begun.", last));
            continue;
        }
        RunRecord run = read_run(where);
        run.group = variant;
        if (const json::Value* seed = entry.find("seed")) run.seed = seed->to_int64().value_or(run.seed);
        out.runs.push_back(std::move(run));
    }
    if (const std::string note = sweep::unlisted_note(path, listed); !note.empty())
        out.notes.push_back(note + ".");
}

void collect_loose(const std::vector<std::string>& paths, Collection& out) {
    std::set<std::string> seen;
    for (const std::string& given : paths) {
        const std::string path = trimmed(given);
        if (seen.insert(path).second) out.runs.push_back(read_run(path));
    }
    out.planned = out.runs.size();
    // Runs of the same name in different directories are different experiments.
    std::map<std::string, std::set<std::string>> parents;
    for (const RunRecord& run : out.runs) parents[run.group].insert(io::parent_path(run.path));
    for (RunRecord& run : out.runs)
        if (parents[run.group].size() > 1)
            run.group = fmt::format("{}/{}", io::base_name(io::parent_path(run.path)), run.group);
}

void drop_repeated_seeds(Collection& out) {
    std::set<std::pair<std::string, int64_t>> seen;
    std::vector<RunRecord> kept;
    for (RunRecord& run : out.runs) {
        if (seen.insert({run.group, run.seed}).second)
            kept.push_back(std::move(run));
        else
            out.notes.push_back(fmt::format("{} is left out: {} already has a run with seed {}.", run.path,
                                            run.group, run.seed));
    }
    out.runs = std::move(kept);
}

// Marks the runs that have fewer validations than their group, and notes the progress of the groups.
// concerns: whether a run has such losses at all, or will have them.
void note_progress(Collection& out, const std::function<bool(const RunRecord&)>& concerns) {
    std::map<std::string, int64_t> newest_of;
    for (RunRecord& run : out.runs) {
        run.validated = 0;
        for (const LossRow& row : run.own.losses) run.validated = std::max(run.validated, row.step);
        newest_of[run.group] = std::max(newest_of[run.group], run.validated);
    }
    std::vector<std::string> behind;
    for (RunRecord& run : out.runs) {
        if (!concerns(run)) continue;
        run.behind = run.validated < newest_of[run.group];
        if (run.behind)
            behind.push_back(run.validated == 0 ? fmt::format("{} (no validation yet)", run.name)
                                                : fmt::format("{} (step {} of {})", run.name, run.validated,
                                                              newest_of[run.group]));
    }
    if (!behind.empty())
        out.notes.push_back(
            fmt::format("Still behind the other seeds of their variant, and left out of the "
                        "losses after training: {}.",
                        join(behind, ", ")));
    std::map<int64_t, std::vector<std::string>> by_step;
    for (const auto& [group, step] : newest_of)
        if (step > 0) by_step[step].push_back(group);
    if (by_step.size() < 2) return;
    std::vector<std::string> parts;
    for (const auto& [step, groups] : by_step)
        parts.push_back(fmt::format("{} at step {}", join(groups, ", "), step));
    out.notes.push_back(fmt::format(
        "Variants were validated last at different steps: {}. Their losses compare runs of different "
        "lengths.",
        join(parts, "; ")));
}

// asked: a group or "group + evaluation"; empty: the baseline of the sweep, or else the first group.
void choose_baseline(const std::string& asked, Collection& out) {
    std::vector<std::string> known = out.groups;
    for (const std::string& group : out.groups)
        for (const std::string& label : out.labels) {
            const auto evaluated = [&](const RunRecord& run) {
                return run.group == group && run.evaluations.contains(label);
            };
            if (label == "plain" || std::none_of(out.runs.begin(), out.runs.end(), evaluated)) continue;
            known.push_back(series_name(group, label));
            if (asked != known.back() && asked != group + "+" + label) continue;
            out.baseline = group;
            out.baseline_label = label;
            return;
        }
    const auto is_group = [&](const std::string& name) {
        return std::find(out.groups.begin(), out.groups.end(), name) != out.groups.end();
    };
    if (is_group(asked)) {
        out.baseline = asked;
    } else if (!asked.empty()) {
        throw Error(ExitCode::usage, fmt::format("--baseline {}: there is no such variant", shown(asked)),
                    fmt::format("the variants and their evaluations are {}", one_line(join(known, ", "))));
    } else if (!is_group(out.baseline)) {
        if (!out.baseline.empty())
            out.notes.push_back(fmt::format("The baseline {} has no results yet; differences are to {}.",
                                            out.baseline, out.groups[0]));
        out.baseline = out.groups[0];
    }
}

}  // namespace

Collection set_view(const Collection& collection, const std::string& set) {
    Collection view = collection;
    view.set = set;
    view.notes.clear();
    std::set<const RunRecord*> having;
    // The losses on data.val take the place of the set's: what has results keeps having them, and so the
    // series of the view are those of the collection.
    for (RunRecord& run : view.runs) {
        const auto exchange = [&](Results& results) {
            const auto found = results.sets.find(set);
            if (found != results.sets.end()) having.insert(&run);
            SetLosses main{std::move(results.losses), std::move(results.buckets),
                           std::move(results.key_tokens)};
            SetLosses own = found == results.sets.end() ? SetLosses() : std::move(found->second);
            results.losses = std::move(own.losses);
            results.buckets = std::move(own.buckets);
            results.key_tokens = std::move(own.key_tokens);
            if (found != results.sets.end()) results.sets.erase(found);
            results.sets.emplace("", std::move(main));
            for (TaskCell& cell : results.tasks) cell.apart = false;  // shown with data.val
        };
        exchange(run.own);
        for (auto& [label, results] : run.evaluations) exchange(results);
        run.behind = false;
    }
    std::vector<std::string> without;
    for (const RunRecord& run : view.runs)
        if (!having.contains(&run)) without.push_back(run.name);
    if (!without.empty())
        view.notes.push_back(fmt::format("No loss on {} was measured for {}.", set, join(without, ", ")));
    note_progress(view, [&](const RunRecord& run) { return having.contains(&run); });
    set_losses_apart(view);
    return view;
}

std::string series_name(const std::string& group, const std::string& label) {
    return label.empty() || label == "plain" ? group : group + " + " + label;
}

std::string Collection::baseline_name() const {
    return series_name(baseline, baseline_label);
}

std::string group_of(const std::string& run_name) {
    return run_name.substr(0, seed_suffix(run_name).at);
}

const json::Value* value_at(const json::Value& config, std::string_view path) {
    const json::Value* at = &config;
    while (at) {
        const size_t dot = path.find('.');
        at = at->find(path.substr(0, dot));
        if (dot == std::string_view::npos) return at;
        path.remove_prefix(dot + 1);
    }
    return nullptr;
}

std::string text_at(const json::Value& config, std::string_view path) {
    const json::Value* value = value_at(config, path);
    return value && value->to_string() ? *value->to_string() : "";
}

Collection collect(const std::vector<std::string>& paths, const std::string& baseline) {
    check(!paths.empty(), "nothing to collect");
    Collection out;
    out.labels = {"plain"};
    const auto is_sweep = [](const std::string& path) {
        return io::kind_of(io::join_path(path, "sweep.json"), io::Links::follow) == io::PathKind::file;
    };
    if (paths.size() == 1 && is_sweep(paths[0])) {
        collect_sweep(trimmed(paths[0]), out);
    } else {
        for (const std::string& path : paths)
            require(!is_sweep(path), ExitCode::usage, "{} is a sweep; a report shows one sweep, or runs",
                    path);
        collect_loose(paths, out);
    }
    drop_repeated_seeds(out);
    std::vector<RunRecord> begun;
    for (RunRecord& run : out.runs) {
        if (has_results(run))
            begun.push_back(std::move(run));
        else
            out.notes.push_back(fmt::format("{} has no results yet.", run.name));
    }
    out.runs = std::move(begun);
    if (out.runs.empty()) return out;
    std::set<std::string> labels;
    for (const RunRecord& run : out.runs) {
        add_unique(run.group, out.groups);
        for (const auto& [label, results] : run.evaluations) labels.insert(label);
    }
    for (const std::string& label : labels) add_unique(label, out.labels);
    if (!out.sweep) out.own_labels = {out.labels.begin(), out.labels.end()};
    note_progress(out, [](const RunRecord&) { return true; });
    tell_training_data(out);
    set_apart(out);
    std::set<std::string> sets;
    for (const RunRecord& run : out.runs) {
        for (const auto& [name, losses] : run.own.sets) sets.insert(name);
        for (const auto& [label, results] : run.evaluations)
            for (const auto& [name, losses] : results.sets) sets.insert(name);
    }
    out.sets = {sets.begin(), sets.end()};
    if (!out.sweep) {
        std::set<std::string> parents;
        for (const RunRecord& run : out.runs) parents.insert(io::base_name(io::parent_path(run.path)));
        if (out.runs.size() == 1)
            out.title = out.runs[0].name;
        else if (out.groups.size() == 1)
            out.title = out.groups[0];
        else if (out.groups.size() == 2)
            out.title = fmt::format("{} and {}", out.groups[0], out.groups[1]);
        else if (parents.size() == 1 && *parents.begin() != ".")
            out.title = *parents.begin();
        else
            out.title = counted(out.groups.size(), "variant");
    }
    choose_baseline(baseline, out);
    return out;
}

}  // namespace longreach::report
