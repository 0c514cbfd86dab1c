// The commands. Each function adds one to the program, with its options and action.
#pragma once

#include <string>
#include <vector>

#include "commands/command_line.h"
#include "config/loader.h"
#include "train/experiment.h"

namespace longreach::commands {

void add_train_command(Command& program);
void add_ranks_command(Command& program);
void add_eval_command(Command& program);
void add_probe_command(Command& program);
void add_generate_command(Command& program);
void add_serve_command(Command& program);
void add_report_command(Command& program);
void add_runs_command(Command& program);
void add_export_command(Command& program);
void add_import_command(Command& program);
void add_config_command(Command& program);
void add_data_command(Command& program);
void add_bench_command(Command& program);
void add_bench_attention_command(Command& program);
void add_doctor_command(Command& program);
void add_laws_command(Command& program);
void add_theory_command(Command& program);
void add_sweep_command(Command& program);
void add_completion_command(Command& program);
void add_man_command(Command& program);

// An experiment from a file and --set overrides, checked.
config::LoadedConfig<train::Experiment> load_experiment(const std::string& file,
                                                        const std::vector<std::string>& overrides);

}  // namespace longreach::commands
