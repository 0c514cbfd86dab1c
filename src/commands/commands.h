// The subcommands. Each registers its options and, if chosen, leaves in `action` what is to be done.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/loader.h"
#include "train/experiment.h"

namespace CLI {
class App;
}

namespace longreach::commands {

using Action = std::function<ExitCode()>;

void add_train_command(CLI::App& app, Action& action);
void add_ranks_command(CLI::App& app, Action& action);
void add_eval_command(CLI::App& app, Action& action);
void add_probe_command(CLI::App& app, Action& action);
void add_generate_command(CLI::App& app, Action& action);
void add_report_command(CLI::App& app, Action& action);
void add_runs_command(CLI::App& app, Action& action);
void add_config_command(CLI::App& app, Action& action);
void add_data_command(CLI::App& app, Action& action);
void add_bench_command(CLI::App& app, Action& action);
void add_bench_attention_command(CLI::App& app, Action& action);
void add_doctor_command(CLI::App& app, Action& action);
void add_theory_command(CLI::App& app, Action& action);
void add_sweep_command(CLI::App& app, Action& action);

// An experiment from a file and --set overrides, checked.
config::LoadedConfig<train::Experiment> load_experiment(const std::string& file,
                                                        const std::vector<std::string>& overrides);

}  // namespace longreach::commands
