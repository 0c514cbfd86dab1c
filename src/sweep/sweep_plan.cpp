#include "sweep/sweep_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "base/units.h"
#include "config/diff.h"
#include "config/loader.h"
#include "io/checkpoint_dir.h"
#include "model/transformer.h"
#include "optim/optimizer.h"
#include "train/run_directory.h"
#include "train/schedule.h"
#include "sweep/contrasts.h"
#include "sweep/found_data.h"
#include "sweep/packing.h"
#include "train/validated.h"
#include "train/validation_set.h"

namespace longreach::sweep {

namespace {

// One choice of values for the axes and the list.
struct Point {
    std::string name;  // "" for the only one
    Settings settings;
};

std::string value_label(const json::Value& value) {
    const std::string* text = value.to_string();
    std::string plain;
    for (const char c : text != nullptr ? *text : json::write(value, json::Style::compact)) {
        if (config::is_plain_name(std::string_view(&c, 1)) || c == '.') {
            plain += c;
        } else if (!plain.empty() && plain.back() != '_') {
            plain += '_';
        }
    }
    while (!plain.empty() && plain.back() == '_') plain.pop_back();
    return plain.empty() ? "none" : plain;
}

void extend(Point& point, const SweepAxis& axis, size_t i) {
    std::string label = axis.label;
    std::replace(label.begin(), label.end(), '.', '_');
    point.name +=
        fmt::format("{}{}-{}", point.name.empty() ? "" : ".", label, value_label(axis.values[i].value));
    point.settings.push_back(axis.values[i]);
}

std::vector<Point> points_of(const SweepConfig& sweep) {
    std::vector<Point> points(1);
    const auto multiply = [&](size_t count, auto&& extend_by) {
        std::vector<Point> longer;
        for (const Point& point : points)
            for (size_t i = 0; i < count; ++i) {
                longer.push_back(point);
                extend_by(longer.back(), i);
            }
        points = std::move(longer);
    };
    for (const SweepAxis& axis : sweep.grid_axes)
        multiply(axis.values.size(), [&](Point& point, size_t i) { extend(point, axis, i); });
    if (!sweep.zip_axes.empty())
        multiply(sweep.zip_axes[0].values.size(), [&](Point& point, size_t i) {
            for (const SweepAxis& axis : sweep.zip_axes) extend(point, axis, i);
        });
    if (!sweep.list.empty())
        multiply(sweep.list.size(), [&](Point& point, size_t i) {
            point.name += (point.name.empty() ? "" : ".") + sweep.list[i].name;
            point.settings.insert(point.settings.end(), sweep.list[i].settings.begin(),
                                  sweep.list[i].settings.end());
        });
    return points;
}

std::string replaced(std::string text, std::string_view mark, const std::string& by) {
    for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += by.size())
        text.replace(at, mark.size(), by);
    return text;
}

// Replaces {seed}, {variant} and {sweep}, the directory of the sweep, in all strings.
json::Value filled_in(const json::Value& value, const PlannedRun& run) {
    if (const std::string* text = value.to_string())
        return replaced(
            replaced(replaced(*text, "{seed}", std::to_string(run.seed)), "{variant}", run.variant),
            "{sweep}", io::parent_path(run.directory));
    if (const json::Array* array = value.to_array()) {
        json::Value out = json::Value::array();
        for (const json::Value& element : *array) out.push(filled_in(element, run));
        return out;
    }
    return value;
}

void append(Settings& into, const Settings& from, const PlannedRun& run) {
    for (const config::PlacedValue& v : from)
        into.push_back({v.path, filled_in(v.value, run), v.origin, v.unset});
}

// The problems of all runs, each reported once with the runs that have it.
class RunProblems {
  public:
    void add(const std::string& run, const std::string& line) {
        const auto it = std::find_if(lines_.begin(), lines_.end(), [&](auto& l) { return l.text == line; });
        Line& entry = it == lines_.end() ? lines_.emplace_back(Line{line, {}}) : *it;
        if (std::find(entry.runs.begin(), entry.runs.end(), run) == entry.runs.end())
            entry.runs.push_back(run);
    }
    void add(const std::string& run, const config::ConfigError& error, const std::string& lead = "") {
        for (const std::string& line : error.lines()) add(run, lead + line);
    }
    // One line per problem. runs: the number of all runs.
    std::vector<std::string> lines(size_t runs) const {
        std::vector<std::string> out;
        for (const Line& line : lines_) {
            std::string who = line.runs[0];
            if (line.runs.size() > 1) who += fmt::format(" and {} more", line.runs.size() - 1);
            if (line.runs.size() == runs && runs > 1) who = "every run";
            out.push_back(fmt::format("{}: {}", who, line.text));
        }
        return out;
    }
    void finish(size_t runs, ExitCode code) const {
        if (lines_.empty()) return;
        const std::string message = join(lines(runs), "\n") + "\n";
        throw Error(code, message + counted(lines_.size(), "problem") + "; nothing was started",
                    code == ExitCode::usage ? "longreach config explain describes every field" : "");
    }

  private:
    struct Line {
        std::string text;
        std::vector<std::string> runs;
    };
    std::vector<Line> lines_;
};

// The config files and settings of a run merged into one document; later ones win.
config::LoadedConfig<train::Experiment> resolve(const SweepConfig& sweep, const SweepVariant& variant,
                                                const Point& point, const PlannedRun& run, int64_t threads) {
    json::Value base = json::Value::array();
    for (const std::string& file : variant.files) base.push(file);
    for (const std::string& file : sweep.over_files) base.push(file);
    json::Value text = json::Value::object();
    text.set("base", base);
    Settings settings;
    append(settings, sweep.settings, run);
    append(settings, variant.settings, run);
    append(settings, point.settings, run);
    append(settings, sweep.overrides, run);
    const auto own = [&](const char* path, json::Value value) {
        settings.push_back({path, std::move(value), {.kind = config::Origin::Kind::derived}});
    };
    const bool chosen = std::any_of(settings.begin(), settings.end(),
                                    [](auto& v) { return v.path == "checkpoint.keep_optimizer"; });
    if (!chosen) own("checkpoint.keep_optimizer", false);
    own("run.name", run.name);
    own("run.dir", sweep.directory());
    own("run.seed", run.seed);
    own("system.threads", threads);
    return config::load_config<train::Experiment>(
        {.file = "", .text = json::write(text, json::Style::compact), .values = std::move(settings)},
        [](train::Experiment& e, config::Problems& p) { e.check(p); });
}

// Checks an evaluation as the eval command will.
PlannedEvaluation planned_evaluation(const PlannedRun& run, const SweepEvaluation& e,
                                     const Settings& settings) {
    PlannedEvaluation out;
    const auto loaded =
        config::load_config<train::Experiment>({.file = run.name, .text = run.resolved, .values = settings},
                                               [&](train::Experiment& x, config::Problems& p) {
                                                   x.eval.take_lengths(e.lengths, e.tokens);
                                                   x.check(p);
                                               });
    out.label = e.name;
    out.lengths = loaded.value.eval.lengths;
    out.losses = e.tasks.empty() || e.tokens > 0 || e.repeat;
    out.arguments = {"eval", run.directory, "--label", e.name};
    const auto option = [&](bool given, const char* name, const std::string& value) {
        if (given) out.arguments.insert(out.arguments.end(), {name, value});
    };
    for (const config::PlacedValue& v : settings)
        option(true, "--set", v.path + "=" + json::write(v.value, json::Style::compact));
    option(!e.lengths.empty(), "--lengths", fmt::format("{}", fmt::join(e.lengths, ",")));
    if (e.probe) {
        out.probe_arguments = out.arguments;
        out.probe_arguments[0] = "probe";
    }
    option(e.tokens > 0, "--tokens", std::to_string(e.tokens));
    option(!e.tasks.empty(), "--tasks", join(e.tasks, ","));
    option(!e.depths.empty(), "--depths", fmt::format("{}", fmt::join(e.depths, ",")));
    option(e.samples > 0, "--samples", std::to_string(e.samples));
    if (e.repeat) out.arguments.push_back("--repeat");
    return out;
}

// FLOPs of an evaluation's losses; those of tasks and probes, which score far fewer tokens, are left out.
double evaluation_flops(const PlannedRun& run, const SweepEvaluation& evaluation,
                        const model::Transformer& model) {
    if (!evaluation.tasks.empty() && evaluation.tokens == 0) return 0;
    const eval::EvalConfig& eval = run.experiment.eval;
    double flops = 0;
    for (const int64_t length : evaluation.lengths.empty() ? eval.lengths : evaluation.lengths)
        flops += model.evaluation_flops_per_token(length) *
                 static_cast<double>(evaluation.tokens > 0 ? evaluation.tokens : eval.final_tokens);
    return flops;
}

// FLOPs, and bytes of checkpoints: those that stay, and the most on disk at once.
void estimate_costs(PlannedRun& run, const std::vector<const SweepEvaluation*>& evaluations) {
    const train::Experiment& e = run.experiment;
    const model::Transformer model(e.model, e.table_rows(), e.eval.rope);
    const std::vector<train::ValidationSet> no_sets;
    const train::EvaluationList own = evaluations_of(e);
    const train::Schedule schedule(e, model, no_sets, own);
    run.flops = schedule.flops() - schedule.training_flops(0) + schedule.training_flops(run.step);
    for (const SweepEvaluation* evaluation : evaluations)
        run.flops += evaluation_flops(run, *evaluation, model);
    const int64_t weights = model.params().count() * 4;
    const int64_t whole = weights + optim::Optimizer(e.optimizer, model.params()).state_bytes();
    const int64_t pinned = e.checkpoint.at_start ? whole : 0;
    const int64_t saves = e.checkpoint.every > 0 ? e.total_steps() / e.checkpoint.every : 0;
    const int64_t kept = std::min(e.checkpoint.keep, saves + 1);
    // While one is written, its predecessors still exist;
    // an interruption may save a complete one at any time.
    run.peak_bytes = pinned + (std::min(e.checkpoint.keep, saves) + 1) * whole;
    run.kept_bytes = pinned + (e.checkpoint.keep_optimizer ? kept * whole : weights);
    if (!e.checkpoint.keep_optimizer)
        run.peak_bytes = std::max(run.peak_bytes, pinned + kept * whole + weights);
}

void check_data(const std::vector<PlannedRun>& runs, DataOfRuns& data, RunProblems& problems) {
    for (const PlannedRun& run : runs) {
        if (run.state == RunState::trained) continue;
        if (const std::string& problem = data.of(run.experiment).problem; !problem.empty())
            problems.add(run.name, problem);
    }
}

// Compares the data of runs that have begun with what they read then. Missing data counts as unchanged: a trained
// run may outlive its data.
void check_unchanged(std::vector<PlannedRun>& runs, DataOfRuns& data, ChangedData changed,
                     RunProblems& problems) {
    for (PlannedRun& run : runs) {
        if (run.state == RunState::fresh) continue;
        const std::string what =
            train::changed_data(data_of_run(run.directory, run.step), data.of(run.experiment).identity);
        if (what.empty()) continue;
        if (changed == ChangedData::refused) {
            problems.add(run.name, what + " changed since it was trained: --retrain trains it again");
            continue;
        }
        run.starts_over = true;
        run.state = RunState::fresh;
        run.step = 0;
    }
}

// A seed must fix the order of the data for all variants; otherwise differences between them are not paired.
void check_seeds(const SweepConfig& sweep, SweepPlan& plan, RunProblems& problems) {
    std::map<int64_t, const PlannedRun*> first;
    for (const PlannedRun& run : plan.runs) {
        const PlannedRun& other = *first.try_emplace(run.seed, &run).first->second;
        check(run.experiment.run.seed == run.seed, "{} has seed {}", run.name, run.experiment.run.seed);
        if (run.experiment.data_seed() != other.experiment.data_seed())
            problems.add(run.name,
                         fmt::format("seed.data is {} here and {} in {}: variants of a seed would not "
                                     "see the same data order, and their differences would not be "
                                     "paired",
                                     run.experiment.data_seed(), other.experiment.data_seed(), other.name));
    }
    std::map<std::string, std::vector<std::string>> orders;  // the other settings that decide it -> variants
    for (const PlannedRun& run : plan.runs) {
        if (run.seed != sweep.seeds[0]) continue;
        const train::Experiment& e = run.experiment;
        const json::Value data = config::to_json(config::describe(e.data));
        json::Array phases;
        for (const data::Phase& phase : e.phases()) {
            json::Array values{static_cast<int64_t>(phase.first_token)};
            for (const double weight : phase.weights) values.emplace_back(weight);
            phases.emplace_back(std::move(values));
        }
        json::Value key = json::Value::object({{"train", *data.find("train")},
                                               {"mixture", *data.find("mixture")},
                                               {"phases", std::move(phases)},
                                               {"shuffle", *data.find("shuffle")},
                                               {"blocks", *data.find("blocks")},
                                               {"block", e.block_tokens()}});
        orders[json::write(key, json::Style::compact)].push_back(run.variant);
    }
    if (orders.size() > 1) {
        std::vector<std::string> groups;
        for (const auto& [key, variants] : orders) groups.push_back(join(variants, " "));
        plan.notes.push_back(
            "the variants read " + std::to_string(orders.size()) +
            " different streams or orders of data; differences across them are paired by their "
            "weights' seed only: " +
            join(groups, " | "));
    }
}

// variants: all valid names; refused: variants whose problems have been reported.
void check_names(const SweepConfig& sweep, const SweepPlan& plan, const std::set<std::string>& variants,
                 const std::set<std::string>& refused, RunProblems& problems) {
    const std::vector<std::string> known(variants.begin(), variants.end());
    const auto suggestion = [&](const std::string& name) {
        const std::vector<std::string> near = nearest(name, known, 2);
        return near.empty() ? "known are " + join(known, ", ") : "did you mean " + alternatives(near) + "?";
    };
    const bool expanded = std::any_of(plan.runs.begin(), plan.runs.end(),
                                      [&](const PlannedRun& r) { return r.variant == sweep.baseline; });
    if (!sweep.baseline.empty() && !expanded && !refused.count(sweep.baseline)) {
        std::vector<std::string> names;
        for (const PlannedRun& run : plan.runs)
            if (run.of == sweep.baseline && run.seed == sweep.seeds[0]) names.push_back(run.variant);
        problems.add("baseline", fmt::format("there is no variant {}: {}", quoted(sweep.baseline),
                                             names.empty() ? suggestion(sweep.baseline)
                                                           : "choose one of " + join(names, ", ")));
    }
    for (size_t i = 0; i < sweep.evaluations.size(); ++i)
        for (const std::string& name : sweep.evaluations[i].variants)
            if (!variants.count(name))
                problems.add(fmt::format("evaluations.{}", i),
                             fmt::format("there is no variant {}: {}", quoted(name), suggestion(name)));
}

// run.init_from names a checkpoint, or a run of this sweep that is planned before this one.
void check_init_from(PlannedRun& run, const SweepPlan& plan, RunProblems& problems) {
    const std::string& from = run.experiment.run.init_from;
    if (from.empty() || run.state == RunState::trained) return;
    const PlannedRun* own = &run;
    for (const PlannedRun& other : plan.runs) {
        if (other.directory == from && &other < own) {
            run.after = other.directory;
            return;
        }
        if (other.directory == from)
            return problems.add(run.name, fmt::format("run.init_from: {} is trained later in this sweep: "
                                                      "list its variant before this one",
                                                      from));
    }
    const bool checkpoint =
        io::kind_of(io::join_path(from, "manifest.json"), io::Links::follow) == io::PathKind::file;
    if (!checkpoint && io::checkpoint_steps(io::join_path(from, "checkpoints")).empty())
        problems.add(run.name, fmt::format("run.init_from: {} holds no checkpoint", from));
}

}  // namespace

RunFound look_at_run(const std::string& directory, const train::Experiment& experiment) {
    RunFound found;
    const std::string file = io::join_path(directory, "config.json");
    if (io::kind_of(file, io::Links::refuse) != io::PathKind::file) return found;
    const auto earlier = config::load_config<train::Experiment>({.file = file}).value;
    for (const config::Difference& d :
         config::diff(config::describe(earlier), config::describe(experiment))) {
        const auto value = [](const std::optional<json::Value>& v) {
            return v ? json::write(*v, json::Style::compact) : "absent";
        };
        const std::string line =
            fmt::format("{}: {} is {}, here {}", directory, d.path, value(d.left), value(d.right));
        if (!d.resumable) found.problems.push_back(line + "; it was started with another config");
        if (d.resumable && d.path.starts_with("eval.")) found.notes.push_back(line);
    }
    const std::vector<int64_t> steps = io::checkpoint_steps(io::join_path(directory, "checkpoints"));
    if (steps.empty()) {
        found.notes.clear();
        return found;
    }
    found.step = steps[0];
    const int64_t total = experiment.total_steps();
    const std::string state_file =
        io::join_path(directory, "checkpoints/" + io::checkpoint_name(found.step) + "/state.json");
    const bool trained = found.step == total &&
                         !train::awaits_evaluation(directory, state_file,
                                                   train::due_after(evaluations_of(earlier), total, total));
    found.state = trained ? RunState::trained : RunState::begun;
    if (found.state != RunState::trained) found.notes.clear();  // future validations follow the new config
    if (found.step > total)
        found.problems.push_back(fmt::format("{} holds a checkpoint of step {}; this sweep trains {} steps",
                                             directory, found.step, total));
    return found;
}

namespace {

constexpr double most_runs = 10000;

// Before anything is made for each run.
void check_size(const SweepConfig& sweep) {
    double points = 1;
    for (const SweepAxis& axis : sweep.grid_axes) points *= static_cast<double>(axis.values.size());
    if (!sweep.zip_axes.empty()) points *= static_cast<double>(sweep.zip_axes[0].values.size());
    if (!sweep.list.empty()) points *= static_cast<double>(sweep.list.size());
    const double runs =
        points * static_cast<double>(sweep.variants.size()) * static_cast<double>(sweep.seeds.size());
    require(runs <= most_runs, ExitCode::usage,
            "{} x {} (grid, zip and list) x {} are {:.10g} runs; a sweep may have {}",
            counted(sweep.variants.size(), "variant"), fmt::format("{:.10g} points", points),
            counted(sweep.seeds.size(), "seed"), runs, most_runs);
}

}  // namespace

SweepPlan plan_sweep(const SweepConfig& sweep, SweepData data, ChangedData changed) {
    check_size(sweep);
    SweepPlan plan;
    plan.name = sweep.name;
    plan.directory = sweep.directory();
    plan.baseline = sweep.baseline;
    const std::vector<Point> points = points_of(sweep);
    RunProblems problems, warnings, missing;
    std::set<std::string> names, directories, refused;
    size_t asked = 0;
    for (const int64_t seed : sweep.seeds)
        for (const SweepVariant& variant : sweep.variants)
            for (const Point& point : points) {
                ++asked;
                PlannedRun run;
                run.of = variant.name;
                run.point = point.name;
                run.variant = variant.name + (point.name.empty() ? "" : "." + point.name);
                run.seed = seed;
                run.name = fmt::format("{}.seed{}", run.variant, seed);
                run.directory = io::join_path(plan.directory, run.name);
                names.insert(variant.name);
                names.insert(run.variant);
                if (!directories.insert(run.name).second) {
                    problems.add(run.name, "two points have this name; name them with list");
                    continue;
                }
                try {
                    auto loaded = resolve(sweep, variant, point, run, std::max<int64_t>(1, sweep.threads));
                    run.experiment = std::move(loaded.value);
                    for (const std::string& line : loaded.warnings) warnings.add(run.name, line);
                    run.resolved = config::write_resolved(run.experiment);
                    run.origins = train::origins_text(loaded.origins);
                    plan.runs.push_back(std::move(run));
                } catch (const config::ConfigError& e) {
                    if (sweep.skip_contradictory && e.contradiction() && !point.name.empty()) {
                        if (seed == sweep.seeds[0])
                            plan.skipped.push_back(run.variant + ": " + join(e.lines(), "; "));
                    } else {
                        problems.add(run.name, e);
                        refused.insert(run.variant);
                    }
                }
            }
    for (const std::string& line : warnings.lines(asked)) plan.notes.push_back(line);
    check_names(sweep, plan, names, refused, problems);
    check_seeds(sweep, plan, problems);
    std::vector<std::vector<const SweepEvaluation*>> evaluations_of;  // by run
    for (PlannedRun& run : plan.runs) {
        std::vector<const SweepEvaluation*> evaluations;
        for (size_t i = 0; i < sweep.evaluations.size(); ++i) {
            const SweepEvaluation& e = sweep.evaluations[i];
            const auto named = [&](const std::string& name) {
                return std::find(e.variants.begin(), e.variants.end(), name) != e.variants.end();
            };
            if (!e.variants.empty() && !named(run.of) && !named(run.variant)) continue;
            Settings settings;
            append(settings, e.settings, run);
            try {
                run.evaluations.push_back(planned_evaluation(run, e, settings));
                evaluations.push_back(&e);
            } catch (const config::ConfigError& error) {
                problems.add(run.name, error, fmt::format("evaluations.{} ({}): ", i, e.name));
            }
        }
        const RunFound found = look_at_run(run.directory, run.experiment);
        run.state = found.state;
        run.step = found.step;
        for (const std::string& line : found.problems) problems.add(run.name, line);
        for (const std::string& line : found.notes)
            plan.notes.push_back(line +
                                 " (it is trained and stays as it is; an evaluation can measure more)");
        evaluations_of.push_back(std::move(evaluations));
    }
    plan_contrasts(sweep, plan, refused, [&](auto& at, auto& text) { problems.add(at, text); });
    problems.finish(asked, ExitCode::usage);
    DataOfRuns data_of_runs;
    check_unchanged(plan.runs, data_of_runs, changed, problems);
    problems.finish(asked, ExitCode::data);
    for (size_t i = 0; i < plan.runs.size(); ++i) {
        check_init_from(plan.runs[i], plan, data == SweepData::required ? problems : missing);
        estimate_costs(plan.runs[i], evaluations_of[i]);
    }
    problems.finish(asked, ExitCode::usage);
    check_data(plan.runs, data_of_runs, missing);
    if (data == SweepData::required) missing.finish(asked, ExitCode::data);
    for (const std::string& line : missing.lines(asked)) plan.notes.push_back("not looked at: " + line);
    if (plan.runs.empty()) throw Error(ExitCode::usage, "every point contradicts itself; no run is left");
    pack_runs(plan, sweep);
    return plan;
}

int64_t SweepPlan::tokens_to_train() const {
    int64_t tokens = 0;
    for (const PlannedRun& run : runs) {
        if (run.state == RunState::trained) continue;
        const std::vector<train::Stage> stages = run.experiment.resolved_stages();
        tokens += stages.back().tokens_before(run.experiment.total_steps()) -
                  run.experiment.stage_at(run.step).tokens_before(run.step);
    }
    return tokens;
}

double SweepPlan::flops() const {
    double flops = 0;
    for (const PlannedRun& run : runs)
        if (run.state != RunState::trained) flops += run.flops;
    return flops;
}

int64_t SweepPlan::disk_bytes() const {
    int64_t bytes = 0;
    std::vector<int64_t> extra;
    for (const PlannedRun& run : runs) {
        if (run.state == RunState::trained) continue;
        bytes += run.kept_bytes;
        extra.push_back(run.peak_bytes - run.kept_bytes);
    }
    std::sort(extra.rbegin(), extra.rend());
    for (size_t i = 0; i < extra.size() && i < static_cast<size_t>(jobs); ++i) bytes += extra[i];
    return bytes;
}

std::string SweepPlan::text() const {
    std::set<std::string> variants;
    std::set<int64_t> of_runs;
    std::map<std::string, size_t> labels;
    size_t trained = 0, begun = 0, evaluations = 0;
    for (const PlannedRun& run : runs) {
        variants.insert(run.variant);
        of_runs.insert(run.seed);
        trained += run.state == RunState::trained;
        begun += run.state == RunState::begun;
        evaluations += run.evaluations.size();
        for (const PlannedEvaluation& e : run.evaluations) ++labels[e.label];
    }
    const bool all = variants.size() * of_runs.size() == runs.size();
    std::string out = fmt::format("sweep {}: {} x {}{} {} in {}", name, counted(variants.size(), "variant"),
                                  counted(of_runs.size(), "seed"), all ? " =" : " at most,",
                                  counted(runs.size(), "run"), directory);
    if (trained > 0) out += fmt::format(", {} trained already", trained);
    if (begun > 0) out += fmt::format(", {} begun", begun);
    out += fmt::format("\n  to train: {} tokens in {}, {} at a time with {}; with validations {:.2e} FLOP",
                       human_count(static_cast<double>(tokens_to_train())),
                       counted(runs.size() - trained, "run"), jobs,
                       counted(static_cast<size_t>(threads), "thread"), flops());
    if (evaluations > 0) {
        std::vector<std::string> each;
        for (const auto& [label, count] : labels) each.push_back(fmt::format("{} of {}", label, count));
        out += fmt::format("\n  to evaluate: {}", join(each, ", "));
    }
    std::string parent = directory;
    while (io::kind_of(parent, io::Links::follow) != io::PathKind::directory)
        parent = io::parent_path(parent);
    out += fmt::format("\n  disk: {} for checkpoints, {} free", human_bytes(disk_bytes()),
                       human_bytes(static_cast<int64_t>(io::free_bytes(parent))));
    for (const std::string& line : skipped) out += "\n  skipped " + line;
    for (const std::string& line : notes) out += "\n  note: " + line;
    return out;
}

std::string sweep_json(const SweepPlan& plan) {
    json::Value runs = json::Value::array();
    for (const PlannedRun& run : plan.runs) {
        json::Value labels = json::Value::array();
        for (const PlannedEvaluation& e : run.evaluations) labels.push(e.label);
        runs.push(json::Value::object({{"variant", run.variant},
                                       {"seed", run.seed},
                                       {"directory", run.name},
                                       {"evaluations", labels}}));
    }
    json::Value out = json::Value::object(
        {{"format", sweep_list_format}, {"name", plan.name}, {"runs", runs}, {"baseline", plan.baseline}});
    if (!plan.contrasts.empty()) {
        out.set("seeds", json::Value(json::Array(plan.seeds.begin(), plan.seeds.end())));
        out.set("contrasts", contrasts_json(plan.contrasts));
    }
    return json::write(out, json::Style::pretty);
}

}  // namespace longreach::sweep
