// longreach config: what a config says, means and allows.
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "config/diff.h"
#include "config/help.h"
#include "config/schema.h"
#include "io/file.h"
#include "train/sweep_config.h"

namespace longreach::commands {

namespace {

struct ConfigOptions {
    std::string file, other, path;
    std::vector<std::string> set;
    bool origins = false, sweep = false;
};

// A config file, or that of a run or checkpoint directory.
std::string config_file(const std::string& target) {
    const bool directory = io::kind_of(target, io::Links::follow) == io::PathKind::directory;
    return directory ? io::join_path(target, "config.json") : target;
}

void print(const std::string& text) {
    fmt::print("{}", text);
}

}  // namespace

void add_config_command(CLI::App& app, Action& action) {
    auto options = std::make_shared<ConfigOptions>();
    CLI::App* config = app.add_subcommand("config", "Show, explain and compare configs");
    config->require_subcommand(1);
    const auto on = [&action](CLI::App* command, std::function<void()> body) {
        command->callback([&action, body] {
            action = [body] {
                body();
                return ExitCode::ok;
            };
        });
    };

    CLI::App* show = config->add_subcommand("show", "The resolved config: every field");
    show->add_option("config", options->file, "JSON config file, run or checkpoint directory")->required();
    show->add_option("--set", options->set, "Override a field")->expected(1)->take_all();
    show->add_flag("--origins", options->origins, "A table of values and where each came from");
    on(show, [options] {
        const auto loaded = load_experiment(config_file(options->file), options->set);
        print(options->origins ? config::origins_table(loaded.origins)
                               : config::write_resolved(loaded.value));
    });

    CLI::App* schema = config->add_subcommand("schema", "JSON Schema for editors");
    schema->add_flag("--sweep", options->sweep, "Of sweep files instead of configs");
    on(schema, [options] {
        print(json::write(options->sweep ? train::sweep_schema()
                                         : config::config_schema(config::describe<train::Experiment>(),
                                                                 "longreach experiment"),
                          json::Style::pretty));
    });

    CLI::App* explain_command = config->add_subcommand("explain", "What a field or section means");
    explain_command->add_option("path", options->path, "Dotted path: model.attention.window");
    on(explain_command,
       [options] { print(config::explain(config::describe<train::Experiment>(), options->path)); });

    CLI::App* diff_command = config->add_subcommand("diff", "Fields in which two configs or runs differ");
    diff_command->add_option("left", options->file, "JSON config file, run or checkpoint directory")
        ->required();
    diff_command->add_option("right", options->other, "The same")->required();
    on(diff_command, [options] {
        print(config::diff_table(
            config::diff(config::describe(load_experiment(config_file(options->file), {}).value),
                         config::describe(load_experiment(config_file(options->other), {}).value))));
    });

    CLI::App* reference =
        config->add_subcommand("reference", "The reference page of all fields, in Markdown");
    on(reference, [] {
        print(config::reference_page(config::describe<train::Experiment>(), "Configuration reference"));
    });
}

}  // namespace longreach::commands
