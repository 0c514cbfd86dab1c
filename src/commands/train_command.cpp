// longreach train: starts a run, or resumes it if its directory already holds a checkpoint.
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "train/device.h"
#include "train/trainer.h"

namespace longreach {

namespace {

struct TrainOptions {
    std::string config;
    std::vector<std::string> set;
    bool fresh = false, quiet = false, dry_run = false;
};

ExitCode train(const TrainOptions& options) {
    const LoadedConfig<Experiment> config = load_experiment(options.config, options.set);
    const Experiment& experiment = config.value;
    Console console(options.quiet);
    std::string note;
    const std::unique_ptr<Ops> ops = open_device(experiment.system, note);
    console.line(note);
    Trainer trainer(experiment, console, *ops);
    if (options.dry_run) return ExitCode::ok;
    RunDirectory directory(experiment.run.dir + "/" + experiment.run.name, options.fresh);
    directory.adopt_config(describe(experiment), config.origins);
    console.open_log(directory.file("log.txt"));
    SingleComm comm;
    return trainer.run(&directory, comm);
}

}  // namespace

LoadedConfig<Experiment> load_experiment(const std::string& file, const std::vector<std::string>& overrides) {
    return load_config<Experiment>({.file = file, .overrides = overrides},
                                   [](Experiment& e, Problems& p) { e.check(p); });
}

void add_train_command(CLI::App& app, Action& action) {
    auto options = std::make_shared<TrainOptions>();
    CLI::App* command =
        app.add_subcommand("train", "Train from a config; resumes the run if it was started before");
    command->add_option("config", options->config, "JSON config file")->required();
    command->add_option("--set", options->set, "Override a field: --set model.width=256")
        ->expected(1)
        ->take_all();
    command->add_flag("--fresh", options->fresh, "Start over: delete what an earlier run of this name left");
    command->add_flag("--quiet", options->quiet, "Write log.txt only");
    command->add_flag("--dry-run", options->dry_run, "Check everything and print the memory plan, then stop");
    command->callback([options, &action] { action = [options] { return train(*options); }; });
}

}  // namespace longreach
