// longreach train: starts a run, or resumes it if its directory contains
// a checkpoint. With several ranks, each of them runs this command.
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/build_info.h"
#include "base/hash.h"
#include "base/process.h"
#include "base/text.h"
#include "commands/command_line.h"
#include "commands/commands.h"
#include "ranks/spawn.h"
#include "ranks/team.h"
#include "kernels/cuda_device.h"
#include "train/device.h"
#include "train/run_files.h"
#include "train/trainer.h"

namespace longreach::commands {

namespace {

struct TrainOptions {
    std::string config;
    std::vector<std::string> set;
    int ranks = 0, gpus = 0;  // 0: not given
    bool fresh = false, quiet = false, dry_run = false;
    std::string plan_for;  // the text of the option
    bool plan = false;
};

// The arguments of this process.
std::vector<std::string> own_arguments() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    std::vector<std::string> arguments;
    for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
    check(!arguments.empty(), "/proc/self/cmdline is empty");
    return arguments;
}

// The number of ranks requested on the command line; 0 if none.
int ranks_asked(const TrainOptions& options, const train::SystemConfig& system) {
    if (options.gpus > 0 && system.device == train::Device::cpu)
        throw Error(ExitCode::usage, fmt::format("--gpus {} but system.device is cpu", options.gpus),
                    "use --ranks for several ranks on the CPU");
    return options.gpus > 0 ? options.gpus : options.ranks;
}

// Not called in the process that starts the ranks, because querying GPUs takes memory on them.
void require_gpus(int count) {
    const CudaStatus status = cuda_status();
    require(status.unusable.empty(), ExitCode::device, "--gpus {}: {}", count, status.unusable);
    require(count <= static_cast<int>(status.devices.size()), ExitCode::device,
            "--gpus {}: this machine has {}", count, status.devices.size());
}

// The ranks of one machine share its cores.
void share_cores(train::SystemConfig& system, const ranks::RankPlace& place) {
    cpu_set_t cores;
    if (system.threads > 0 || place.local_ranks <= 1 || ::sched_getaffinity(0, sizeof cores, &cores) != 0)
        return;
    system.threads = std::max(1, CPU_COUNT(&cores) / place.local_ranks);
}

ranks::Fingerprints fingerprints(const train::Experiment& experiment, const train::Trainer& trainer,
                                 const Ops& ops) {
    const BuildInfo build = build_info();
    return {{"build", fmt::format("{}, {}, {}", build.version, build.compiler,
                                  format_hash64(xxh64(build.build_type + " " + build.flags)))},
            {"config", format_hash64(xxh64(config::write_resolved(experiment)))},
            {"device", ops.native_queue().device < 0 ? "CPU" : "GPU"},
            {"data", format_hash64(trainer.data().training)}};
}

// The first path of the training and validation data without a file; empty if all exist.
std::string absent_data(const data::DataConfig& data) {
    std::vector<std::vector<std::string>> lists = data.sources();
    lists.push_back(data.val);
    for (const auto& [name, set] : data.val_sets) lists.push_back(set.paths);
    for (const std::vector<std::string>& list : lists)
        for (const std::string& path : list) {
            if (io::kind_of(path, io::Links::follow) != io::PathKind::missing) continue;
            const bool pattern = path.find_first_of("*?[") != std::string::npos;
            if (!pattern || io::expand_pattern(path).empty()) return path;
        }
    return "";
}

train::Surroundings surroundings_of(const TrainOptions& options, const train::Experiment& experiment,
                                    int local_ranks) {
    train::Surroundings s;
    s.local_ranks = local_ranks;
    s.plan_shown = options.dry_run || options.plan;
    if (!options.dry_run) return s;
    if (!options.plan_for.empty()) s.memory = train::parse_plan_for(options.plan_for).bytes;
    if (const std::string path = absent_data(experiment.data); !path.empty())
        s.no_data = fmt::format("there is no file {}", shown(path, 200));
    return s;
}

// What a start needs, looked at before anything of an earlier run is deleted: a directory that may be written or, with
// --fresh, deleted, and initial weights that fit the model.
void check_places(const TrainOptions& options, const train::RunConfig& run, const train::Trainer& trainer,
                  train::Console& console) {
    const std::string directory = io::join_path(run.dir, run.name);
    if (options.fresh && !train::is_run(directory) && !train::is_blank(directory))
        throw Error(ExitCode::usage,
                    fmt::format("--fresh: {} holds files and is not a run of this program", directory),
                    "give the run another run.name, or start it there without --fresh");
    if (options.dry_run) io::require_writable(directory);
    const bool resumes =
        !options.fresh && !io::checkpoint_steps(io::join_path(directory, "checkpoints")).empty();
    if (run.init_from.empty() || resumes) return;
    require(!options.fresh || !train::is_within(run.init_from, directory), ExitCode::usage,
            "--fresh would delete {}, from which run.init_from is to start", shown(run.init_from, 200));
    trainer.check_initial_weights([&](const std::string& text) { console.line(text); });
}

ExitCode train_as_rank(const TrainOptions& options, const config::LoadedConfig<train::Experiment>& config,
                       ranks::Team& team, int ranks, int local_ranks) {
    train::Experiment experiment = config.value;
    share_cores(experiment.system, team.place());
    train::Console console(options.quiet || !team.first());
    std::string note;
    const std::unique_ptr<Ops> ops =
        options.plan_for.empty() ? train::open_device(experiment.system, note, team.place().local_rank)
                                 : train::open_planned_device(experiment.system, options.plan_for, note);
    console.line(note);
    train::Trainer trainer(experiment, console, *ops, team.rank(), ranks,
                           surroundings_of(options, experiment, local_ranks));
    if (team.first()) check_places(options, experiment.run, trainer, console);
    if (options.dry_run) {
        if (const std::string time = options.plan_for.empty() ? trainer.time_line() : ""; !time.empty())
            console.line(time);
        return ExitCode::ok;
    }
    std::optional<train::RunDirectory> directory;
    const auto open = [&] {
        directory->adopt_config(config::describe(config.value), config.origins, trainer.data());
        console.open_log(directory->file("log.txt"), directory->disk());
    };
    if (team.first()) directory.emplace(experiment.run.dir + "/" + experiment.run.name);
    if (directory && !options.fresh) open();
    team.join(fingerprints(config.value, trainer, *ops));
    const std::unique_ptr<ranks::Comm> comm = team.connect(*ops);
    // Ranks that do not fit together have ended by now: the files of the earlier run outlive them.
    if (directory && options.fresh) {
        const std::vector<std::string> kept = directory->start_over();
        open();
        if (!kept.empty())
            console.line("kept, since this program did not write it: " + one_line(join(kept, ", ")));
    }
    if (team.ranks() > 1) console.line("communication: " + comm->describe());
    try {
        const ExitCode code = trainer.run(directory ? &*directory : nullptr, *comm, team);
        if (code == ExitCode::numerics && options.quiet && team.first()) print_error(console.end_line());
        return code;
    } catch (const Error& error) {
        // If the directory is lost, that is the reason to report.
        if (directory && error.code() == ExitCode::disk) directory->check_in_place();
        throw;
    }
}

ExitCode train(const TrainOptions& options) {
    const config::LoadedConfig<train::Experiment> config = load_experiment(options.config, options.set);
    const ranks::Environment environment = ranks::process_environment();
    const ranks::RankPlace place = ranks::place_from(environment);
    const int ranks = ranks_asked(options, config.value.system);
    if (ranks::must_spawn(place, ranks) && !options.dry_run)
        return static_cast<ExitCode>(
            ranks::spawn_ranks({.ranks = ranks, .arguments = own_arguments(), .block_signals = true}));
    if (options.gpus > 0 && options.plan_for.empty()) require_gpus(options.gpus);
    if (place.ranks == 1 || options.dry_run) {
        ranks::Team team;  // a dry run plans for the first rank
        const int planned = options.dry_run ? std::max({place.ranks, ranks, 1}) : 1;
        // Without a launcher, all ranks run on this machine.
        const int here = place.ranks > 1 ? place.local_ranks : planned;
        return train_as_rank(options, config, team, planned, here);
    }
    const train::RunConfig& run = config.value.run;
    ranks::TeamOptions team_options;
    team_options.watchdog = config.value.parallel.watchdog();
    ranks::Team team(place, ranks::run_token(place, environment), run.dir + "/" + run.name, team_options);
    try {
        const ExitCode code = train_as_rank(options, config, team, place.ranks, place.local_ranks);
        team.leave(code, code == ExitCode::numerics ? "a number is not finite; see its log.txt" : "");
        return code;
    } catch (const Error& error) {
        team.leave(error.code(), error.what());
        throw;
    } catch (const std::bad_alloc&) {
        team.leave(ExitCode::device, "out of memory");
        throw;
    } catch (const std::exception& error) {
        team.leave(ExitCode::internal, error.what());
        throw;
    }
}

}  // namespace

config::LoadedConfig<train::Experiment> load_experiment(const std::string& file,
                                                        const std::vector<std::string>& overrides) {
    auto loaded =
        config::load_config<train::Experiment>({.file = file, .overrides = overrides},
                                               [](train::Experiment& e, config::Problems& p) { e.check(p); });
    // Only one rank prints them.
    if (ranks::place_from(ranks::process_environment()).rank == 0) print_warnings(loaded.warnings);
    return loaded;
}

void add_train_command(Command& program) {
    auto options = std::make_shared<TrainOptions>();
    Command command = program.add("train", "Train from a config; resumes the run if it was started before");
    command.option("config", options->config, "JSON config file").required();
    command.option("--set", options->set, "Override a field: --set model.width=256").repeatable();
    Option ranks =
        command.option("--ranks", options->ranks,
                       "Number of processes to start on this machine, each with its own GPU or CPU threads");
    command.option("--gpus", options->gpus, "The same; fails if the machine has fewer GPUs")
        .in_range(1, 1024)
        .excludes(ranks);
    ranks.in_range(1, 1024);
    command.flag("--fresh", options->fresh,
                 "Start over: delete an earlier run of this name; other files in its directory stay");
    command.flag("--quiet", options->quiet, "Write log.txt only");
    Option dry_run = command.flag(
        "--dry-run", options->dry_run,
        "Check everything, print the memory plan and about how long the run takes, then stop; missing "
        "data files are skipped");
    command.flag("--plan", options->plan, "Print the memory plan before training");
    command
        .option("--plan-for", options->plan_for,
                "With --dry-run: compare the plan with a device with this much memory, which need not be "
                "present: 80GiB, or 80GiB:cuda for a GPU")
        .needs(dry_run);
    command.run([options] { return train(*options); });
}

}  // namespace longreach::commands
