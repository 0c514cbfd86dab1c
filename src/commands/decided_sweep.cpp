#include "commands/decided_sweep.h"

#include <algorithm>

#include "base/text.h"
#include "io/file.h"
#include "report/sweep_results.h"

namespace longreach::commands {

using decide::seeds_at_look;

namespace {

sweep::SweepPlan reduced(sweep::SweepPlan plan, const sweep::NeededSeeds& needed) {
    sweep::keep_needed(plan, needed);
    return plan;
}

}  // namespace

DecidedSweep::DecidedSweep(sweep::SweepConfig config, Planner planner)
    : config_(std::move(config)), planner_(std::move(planner)) {
    const bool any = std::any_of(config_.contrasts.begin(), config_.contrasts.end(),
                                 [](const sweep::SweepContrast& c) { return c.primary && !c.left_out; });
    require(any, ExitCode::usage,
            "--decide: the sweep has no primary contrasts between the variants it trains");
    config_.seeds = sweep::seeds_of_looks(config_.seeds);
    all_ = planner_(config_);
}

DecidedSweep::State DecidedSweep::at_first() const {
    State state{sweep::NeededSeeds(config_.contrasts.size(), seeds_at_look[0]), {}};
    for (const sweep::SweepContrast& c : config_.contrasts) state.open.push_back(c.primary && !c.left_out);
    return state;
}

DecidedSweep::State DecidedSweep::after(const std::vector<report::ContrastResult>& results) const {
    State state = at_first();
    for (size_t i = 0; i < results.size(); ++i) {
        if (!state.open[i]) continue;
        const decide::Answer& answer = results[i].answer;
        state.open[i] = answer.open() && answer.look < seeds_at_look.size();
        const size_t next = state.open[i] ? answer.look : answer.look - 1;
        state.needed[i] = seeds_at_look[next];
    }
    return state;
}

DecidedSweep::State DecidedSweep::now() const {
    const bool stale = std::any_of(all_.runs.begin(), all_.runs.end(),
                                   [](const sweep::PlannedRun& run) { return run.starts_over; });
    const std::string listed = io::join_path(directory(), "sweep.json");
    if (stale || io::kind_of(listed, io::Links::follow) != io::PathKind::file) return at_first();
    report::Collection results = report::collect({directory()});
    results.contrasts = all_.contrasts;
    results.seeds = all_.seeds;
    return after(report::contrast_results(results));
}

std::string DecidedSweep::text() const {
    const State state = now();
    sweep::NeededSeeds most = state.needed;
    for (size_t i = 0; i < most.size(); ++i)
        if (state.open[i]) most[i] = seeds_at_look.back();
    const sweep::SweepPlan longest = reduced(all_, most);
    return fmt::format("{}\n  to decide: at least {}, at most {}, with looks at {} seeds", longest.text(),
                       counted(reduced(all_, state.needed).runs.size(), "run"), longest.runs.size(),
                       fmt::join(seeds_at_look, ", "));
}

sweep::SweepOutcome DecidedSweep::run(sweep::SweepOptions options, train::Console& console) {
    sweep::SweepOutcome outcome;
    for (sweep::NeededSeeds needed = at_first().needed;;) {
        sweep::SweepConfig config = config_;
        config.seeds.resize(*std::max_element(needed.begin(), needed.end()));
        const sweep::SweepPlan plan = reduced(planner_(config), needed);
        outcome = sweep::run_sweep(plan, options, console);
        report::write_sweep_csv(plan.directory);
        if (outcome.stopped) return outcome;
        const report::Collection results = report::collect({plan.directory});
        console.line(report::contrasts_text(results));
        const sweep::NeededSeeds next = after(report::contrast_results(results)).needed;
        if (next == needed) return outcome;
        needed = next;
        options.goes_on = true;
    }
}

}  // namespace longreach::commands
