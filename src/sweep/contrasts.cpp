#include "sweep/contrasts.h"

#include <algorithm>

#include "base/nearest_path.h"
#include "base/text.h"
#include "sweep/contrast_words.h"

namespace longreach::sweep {

namespace {

// In nats, of losses: at the training length, and beyond it.
constexpr double margin_at_training = 0.02, margin_beyond = 0.05;
constexpr size_t longest_name = 100;

constexpr const char* fields_of_a_contrast[] = {"name",       "arms", "at",    "of",     "margin", "primary",
                                                "evaluation", "task", "depth", "arms.0", "arms.1"};

std::string suggestion(const std::string& name, const std::vector<std::string>& known) {
    const std::vector<std::string> near = nearest(name, known, 2);
    if (known.empty()) return "there is none";
    return near.empty() ? "known are " + join(known, ", ") : "did you mean " + alternatives(near) + "?";
}

// The rules about one contrast and the evaluations.
void check_evaluation_of(const SweepConfig& sweep, SweepContrast& c, const std::string& at,
                         config::Problems& p) {
    const auto evaluation = std::find_if(sweep.evaluations.begin(), sweep.evaluations.end(),
                                         [&](const SweepEvaluation& e) { return e.name == c.evaluation; });
    if (evaluation == sweep.evaluations.end() && c.evaluation != "plain") {
        std::vector<std::string> known{"plain"};
        for (const SweepEvaluation& e : sweep.evaluations) known.push_back(e.name);
        return p.add(at + ".evaluation", fmt::format("there is no evaluation {}: {}", quoted(c.evaluation),
                                                     suggestion(c.evaluation, known)));
    }
    if (c.of != ContrastOf::margin) {
        if (!c.task.empty()) p.add(at + ".task", "has no effect: of is not margin", at + ".of");
        if (c.depth >= 0) p.add(at + ".depth", "has no effect: of is not margin", at + ".of");
        return;
    }
    const std::vector<std::string> tasks =
        evaluation == sweep.evaluations.end() ? std::vector<std::string>{} : evaluation->tasks;
    if (tasks.empty())
        return p.add(at + ".of", fmt::format("the evaluation {} has no tasks", c.evaluation),
                     at + ".evaluation");
    if (c.task.empty() && tasks.size() > 1)
        return p.add(at + ".of", "task: name one of " + join(tasks, ", "));
    if (c.task.empty()) c.task = tasks[0];
    if (std::find(tasks.begin(), tasks.end(), c.task) == tasks.end())
        p.add(at + ".task", fmt::format("the evaluation {} has no task {}: {}", c.evaluation, quoted(c.task),
                                        suggestion(c.task, tasks)));
    const std::vector<int64_t>& depths = evaluation->depths;
    if (c.depth >= 0 && !depths.empty() && std::find(depths.begin(), depths.end(), c.depth) == depths.end())
        p.add(at + ".depth",
              fmt::format("the evaluation {} has the depths {}", c.evaluation, fmt::join(depths, ", ")));
}

// The run of the first seed of a variant; null if there is none.
const PlannedRun* run_of(const SweepPlan& plan, const std::string& variant) {
    const auto found = std::find_if(plan.runs.begin(), plan.runs.end(),
                                    [&](const PlannedRun& run) { return run.variant == variant; });
    return found == plan.runs.end() ? nullptr : &*found;
}

std::string no_variant(const SweepPlan& plan, const std::string& name) {
    std::vector<std::string> known, points;
    for (const PlannedRun& run : plan.runs) {
        if (run.seed != plan.runs[0].seed) continue;
        known.push_back(run.variant);
        if (run.of == name) points.push_back(run.variant);
    }
    return fmt::format("there is no variant {}: {}", quoted(name),
                       points.empty() ? suggestion(name, known) : "choose one of " + join(points, ", "));
}

// The lengths at which a contrast finds results of a run; none if the evaluation is not made of this run.
std::vector<int64_t> lengths_of(const PlannedRun& run, const Contrast& contrast) {
    for (const PlannedEvaluation& e : run.evaluations)
        if (e.label == contrast.evaluation && (e.losses || contrast.of == ContrastOf::margin))
            return e.lengths;
    if (contrast.evaluation == "plain" && contrast.of != ContrastOf::margin)
        return run.experiment.eval.lengths;  // the validation after the last step
    return {};
}

}  // namespace

void SweepContrast::fields(config::Fields& f) {
    f.text("name", name, {"of the contrast, a few words"});
    f.text("claim", claim, {"what is claimed, in one sentence; the report shows it"});
    f.texts("arms", arms, {"two variants, with their points; the difference is the first minus the second"});
    f.integer("at", at, {.min = 0, .max = int64_t{1} << 31, .tokens = true},
              {"context length, in tokens, of those that both are evaluated at"});
    f.choice("of", of, {std::begin(contrast_quantities), std::end(contrast_quantities)},
             {"what the arms are compared in"});
    f.number("margin", margin, {.min = 0},
             {"differences up to it count as none; for losses 0.02 nats up to the training length and 0.05 "
              "beyond, if it is not given"});
    f.flag("primary", primary, {"decided by the sweep, at most six; the others are descriptive"});
    f.text("evaluation", evaluation, {"label of the results; plain: the model as trained"});
    f.text("task", task, {"of the evaluation, for margin; not needed if it has one"});
    f.integer("depth", depth, {.min = -1, .max = 100},
              {"of the task, percent; -1: the mean over all depths"});
    f.choice("expect", expect, {std::begin(expected_signs), std::end(expected_signs)},
             {"the difference that is claimed; the verdict is then holds or fails"});
}

void check_contrasts(SweepConfig& sweep, config::Problems& p) {
    std::set<std::string> names;
    size_t primary = 0;
    for (size_t i = 0; i < sweep.contrasts.size(); ++i) {
        SweepContrast& c = sweep.contrasts[i];
        const std::string at = fmt::format("contrasts.{}", i);
        for (const char* field : fields_of_a_contrast) {
            const config::Origin origin = p.origin(fmt::format("{}.{}", at, field));
            c.origins[field] = origin.kind == config::Origin::Kind::default_value ? p.origin(at) : origin;
        }
        const bool plain = std::none_of(c.name.begin(), c.name.end(),
                                        [](char k) { return static_cast<unsigned char>(k) < ' '; });
        if (c.name.empty() || c.name.size() > longest_name || !plain)
            p.add(c.name.empty() ? at : at + ".name",
                  fmt::format("name: a contrast needs one of at most {} bytes, on one line", longest_name));
        else if (!names.insert(c.name).second)
            p.add(at + ".name", fmt::format("{} is given twice", quoted(c.name)));
        if (c.arms.size() != 2) {
            p.add(c.arms.empty() ? at : at + ".arms", "arms: expected two variants");
        } else {
            c.first = c.arms[0];
            c.second = c.arms[1];
            if (c.first == c.second) p.add(at + ".arms.1", "the arms are the same variant", at + ".arms.0");
        }
        if (c.at == 0) p.add(at, "at: a context length is needed");
        const bool given = p.origin(at + ".margin").kind != config::Origin::Kind::default_value;
        if (given && c.margin <= 0) p.add(at + ".margin", "must be above 0");
        if (!given && c.of == ContrastOf::margin)
            p.add(at + ".of", "margin: log-odds have no margin that is right for every task; name one");
        if (c.primary && ++primary == most_primary_contrasts + 1)
            p.add(at, fmt::format("is the primary contrast number {}; a sweep has at most {}: make it "
                                  "descriptive with \"primary\": false",
                                  primary, most_primary_contrasts));
        check_evaluation_of(sweep, c, at, p);
    }
}

void plan_contrasts(const SweepConfig& sweep, SweepPlan& plan, const std::set<std::string>& refused,
                    const std::function<void(const std::string& at, const std::string& text)>& add) {
    plan.seeds = sweep.seeds;
    for (size_t i = 0; i < sweep.contrasts.size(); ++i) {
        const SweepContrast& asked = sweep.contrasts[i];
        Contrast c = asked;
        const auto problem = [&](const char* field, const std::string& text) {
            add(fmt::format("contrasts.{}.{} ({})", i, field, to_string(asked.origins.at(field))), text);
        };
        std::vector<const PlannedRun*> runs;
        for (const auto& [field, arm] : {std::pair("arms.0", c.first), std::pair("arms.1", c.second)}) {
            const PlannedRun* run = run_of(plan, arm);
            if (asked.left_out || refused.count(arm) > 0) continue;
            if (run == nullptr) {
                problem(field, no_variant(plan, arm));
                continue;
            }
            runs.push_back(run);
            const std::vector<int64_t> lengths = lengths_of(*run, c);
            const auto evaluated = [&](int64_t length) {
                return std::find(lengths.begin(), lengths.end(), length) != lengths.end();
            };
            const int64_t trained = run->experiment.resolved_stages().back().context;
            if (lengths.empty())
                problem("evaluation", fmt::format("{} is not evaluated as {}", arm, c.evaluation));
            else if (!evaluated(c.at))
                problem("at", fmt::format("{} is not evaluated at {}: its lengths are {}", arm, c.at,
                                          fmt::join(lengths, ", ")));
            else if (c.of == ContrastOf::gap && !evaluated(trained))
                problem("of",
                        fmt::format("{} is not evaluated at {}, the length it is trained at", arm, trained));
            else if (c.of == ContrastOf::gap && c.at == trained)
                problem("at", fmt::format("{} is the length that {} is trained at: the gap is always 0", c.at,
                                          arm));
        }
        if (runs.size() == 2) {
            const auto trained = [&](size_t k) {
                return runs[k]->experiment.resolved_stages().back().context;
            };
            if (trained(0) == trained(1))
                c.trained_at = trained(0);
            else if (c.of == ContrastOf::gap)
                problem("of", fmt::format("the arms are trained at different lengths, {} and {}", trained(0),
                                          trained(1)));
            if (c.margin == 0)
                c.margin = c.at <= std::min(trained(0), trained(1)) ? margin_at_training : margin_beyond;
        }
        plan.contrasts.push_back(std::move(c));
    }
}

}  // namespace longreach::sweep
