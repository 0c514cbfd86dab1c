// longreach config: shows, explains and compares configs.
#include "base/terminal.h"
#include "commands/commands.h"
#include "config/diff.h"
#include "config/help.h"
#include "config/schema.h"
#include "io/file.h"
#include "model/attention_angle.h"
#include "model/registry.h"
#include "sweep/sweep_config.h"

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

}  // namespace

void add_config_command(Command& program) {
    auto options = std::make_shared<ConfigOptions>();
    Command config = program.add("config", "Show, explain and compare configs");
    config.require_command();
    const auto on = [](Command& command, std::function<void()> body) {
        command.run([body = std::move(body)] {
            body();
            return ExitCode::ok;
        });
    };

    Command show = config.add("show", "The resolved config: every field");
    show.option("config", options->file, "JSON config file, run or checkpoint directory").required();
    show.option("--set", options->set, "Override a field").repeatable();
    show.flag("--origins", options->origins, "A table of values and where each came from");
    on(show, [options] {
        const auto loaded = load_experiment(config_file(options->file), options->set);
        if (options->origins)
            print_text("{}", config::origins_table(loaded.origins));
        else
            fmt::print("{}", config::write_resolved(loaded.value));
        // On the other stream: the config can be read back as it is printed.
        const model::ModelConfig& model = loaded.value.model;
        for (const int64_t l : model.distinct_layers()) {
            const model::AttentionConfig& attention = model.layer_attention(l);
            const std::string path = model.layout_path(l);
            if (!attention.attends()) {
                print_info(fmt::format("mixer of {}: {}", path, model::mixer_type(attention.mixer).name()));
                continue;
            }
            print_info(
                fmt::format("score of {}: {}", path, model::written_out(model::score_text(attention))));
            print_info(fmt::format("angle of {}: {}", path, model::angle_written_out(attention)));
        }
    });

    Command schema = config.add("schema", "JSON Schema for editors");
    schema.flag("--sweep", options->sweep, "Of sweep files instead of configs");
    on(schema, [options] {
        fmt::print("{}",
                   json::write(options->sweep ? sweep::sweep_schema()
                                              : config::config_schema(config::describe<train::Experiment>(),
                                                                      "longreach experiment"),
                               json::Style::pretty));
    });

    Command explain_command = config.add("explain", "What a field or section means");
    explain_command.option("path", options->path, "Dotted path: model.attention.window");
    on(explain_command, [options] {
        print_text("{}", config::explain(config::describe<train::Experiment>(), options->path));
    });

    Command diff_command = config.add("diff", "Fields in which two configs or runs differ");
    diff_command.option("left", options->file, "JSON config file, run or checkpoint directory").required();
    diff_command.option("right", options->other, "The same").required();
    on(diff_command, [options] {
        print_text("{}", config::diff_table(config::diff(
                             config::describe(load_experiment(config_file(options->file), {}).value),
                             config::describe(load_experiment(config_file(options->other), {}).value))));
    });

    Command reference = config.add("reference", "The reference page of all fields, in Markdown");
    on(reference, [] {
        fmt::print("{}",
                   config::reference_page(config::describe<train::Experiment>(), "Configuration reference"));
    });
}

}  // namespace longreach::commands
