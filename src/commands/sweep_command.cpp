// longreach sweep: trains and evaluates the runs of an experiment in a queue.
#include "commands/commands.h"
#include "commands/decided_sweep.h"
#include "config/help.h"
#include "report/sweep_results.h"
#include "sweep/sweep_queue.h"
#include "sweep/unlisted_runs.h"

namespace longreach::commands {

namespace {

struct SweepArguments {
    std::string file;
    std::vector<std::string> set, over, only;
    bool dry_run = false, retrain = false, decide = false;
    std::string jobs;
};

ExitCode sweep(const SweepArguments& options) {
    std::vector<std::string> overrides = options.set;
    if (!options.jobs.empty()) overrides.push_back("jobs=" + (options.jobs == "auto" ? "0" : options.jobs));
    sweep::SweepConfig config = sweep::load_sweep(options.file, overrides, options.over);
    if (!options.only.empty()) sweep::keep_variants(config, options.only);
    const auto planned = [&](const sweep::SweepConfig& runs) {
        return sweep::plan_sweep(
            runs, options.dry_run ? sweep::SweepData::may_be_missing : sweep::SweepData::required,
            options.retrain ? sweep::ChangedData::retrained : sweep::ChangedData::refused);
    };
    std::optional<DecidedSweep> decided;
    std::optional<sweep::SweepPlan> plan;
    if (options.decide) {
        decided.emplace(config, planned);
    } else {
        plan = planned(config);
    }
    train::Console console;
    console.line(decided ? decided->text() : plan->text());
    std::set<std::string> listed;
    for (const sweep::PlannedRun& run : decided ? decided->all().runs : plan->runs) listed.insert(run.name);
    if (const std::string note = sweep::unlisted_note(config.directory(), listed); !note.empty())
        console.line("  note: " + note);
    if (options.dry_run) return ExitCode::ok;
    console.accompany();
    const std::string directory = config.directory();
    sweep::SweepOptions sweep_options;
    sweep_options.on_progress = [&] { report::write_sweep_csv(directory); };
    const sweep::SweepOutcome outcome =
        decided ? decided->run(sweep_options, console) : sweep::run_sweep(*plan, sweep_options, console);
    report::write_sweep_csv(directory);
    std::string text = fmt::format("{} done", outcome.done);
    if (outcome.failed > 0) text += fmt::format(", {} failed", outcome.failed);
    if (outcome.left > 0) text += fmt::format(", {} left", outcome.left);
    if (outcome.stopped) text += "; the same command continues it";
    console.line(text + "; longreach report " + directory);
    if (outcome.stopped) return ExitCode::stopped;
    return outcome.failed > 0 ? ExitCode::runs : ExitCode::ok;
}

}  // namespace

void add_sweep_command(Command& program) {
    auto options = std::make_shared<SweepArguments>();
    Command command = program.add(
        "sweep",
        "Train and evaluate many runs: variants, grids and seeds; continues a sweep that was stopped");
    command.option("file", options->file, "JSON sweep file").required();
    command
        .option(
            "--set", options->set,
            "Override a field of the sweep (seeds=[1]) or, for every run, of the configs (model.width=64)")
        .repeatable();
    command
        .option("--over", options->over,
                "Config file to apply on top of every run, such as configs/cpu.json; may be repeated. It "
                "also extends the sweep's name: <name>-cpu")
        .repeatable();
    command.option("--only", options->only, "Variants to train and evaluate, of those in the file: rope,si")
        .comma_list();
    command.option("--jobs", options->jobs, "Runs at the same time; auto: as the field says of 0");
    command.flag("--retrain", options->retrain,
                 "Train runs again whose data changed since they were trained");
    command.flag("--decide", options->decide,
                 "Add seeds until the primary contrasts are decided: looks at 4, 8, 14 and 20 seeds, more "
                 "only for the arms of those that are open");
    command.flag("--dry-run", options->dry_run,
                 "Check every run and print the plan, then stop; missing data files are skipped");
    command.footer("Fields of the sweep file\n" +
                   config::explain(config::describe<sweep::SweepConfig>(), ""));
    command.run([options] { return sweep(*options); });
}

}  // namespace longreach::commands
