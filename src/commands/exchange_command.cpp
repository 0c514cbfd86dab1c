// longreach import and longreach export: models of other programs.
#include <algorithm>
#include <memory>

#include "base/terminal.h"
#include "commands/commands.h"
#include "exchange/export.h"
#include "exchange/import.h"

namespace longreach::commands {

void add_import_command(Command& program) {
    auto options = std::make_shared<exchange::ImportOptions>();
    Command command = program.add(
        "import", "Make a run of a model in Hugging Face's layout (safetensors) or in a GGUF file");
    command
        .option("model", options->directory, "Directory with config.json and model.safetensors, or FILE.gguf")
        .required();
    command.option("-o,--out", options->output,
                   "Run directory to write (default: runs/NAME of the directory or the file)");
    command
        .option("--set", options->set, "Set a field of the run's config: --set 'data.val=[\"tokens/val_*\"]'")
        .repeatable();
    command.flag("--replace", options->replace,
                 "Replace an earlier run of this name; other files in its directory stay");
    command.run([options] {
        const exchange::ImportResult result = exchange::import_model(*options, print_info);
        print_text("{}", exchange::to_text(result));
        return ExitCode::ok;
    });
}

void add_export_command(Command& program) {
    struct Arguments {
        exchange::ExportOptions options;
        std::string type = "f32";
        double shard_gigabytes = 5;
    };
    auto arguments = std::make_shared<Arguments>();
    exchange::ExportOptions& options = arguments->options;
    Command command = program.add("export", "Write a checkpoint in Hugging Face's layout (safetensors)");
    command.option("target", options.target, "Run directory (its newest checkpoint) or checkpoint directory")
        .required();
    command
        .option("--hf", options.directory, "Directory to write: config.json, weights, tokenizer, model card")
        .required();
    command.option(
        "--tokenizer", options.tokenizer,
        "tokenizer.json of the model, or a directory with one (default: that of the run directory)");
    command.option("--dtype", arguments->type, "Type of the weights").one_of({"f32", "bf16"}).show_default();
    command.option("--shard-gigabytes", arguments->shard_gigabytes, "Largest file of weights")
        .positive()
        .show_default();
    command.flag("--replace", options.replace,
                 "Replace an earlier export; other files in its directory stay");
    command.run([arguments] {
        exchange::ExportOptions chosen = arguments->options;
        chosen.type = arguments->type == "f32" ? exchange::ExportType::f32 : exchange::ExportType::bf16;
        chosen.shard_bytes = static_cast<uint64_t>(std::min(arguments->shard_gigabytes, 1e6) * 1e9);
        const exchange::ExportResult result = exchange::export_model(chosen, print_info);
        print_text("{}", exchange::to_text(result));
        return ExitCode::ok;
    });
}

}  // namespace longreach::commands
