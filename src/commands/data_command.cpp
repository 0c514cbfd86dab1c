// longreach data: makes, shows and checks token shards.
#include <CLI/CLI.hpp>

#include "commands/commands.h"
#include "data/inspect.h"
#include "data/synth.h"
#include "data/tokenize.h"

namespace longreach::commands {

namespace {

struct StreamArguments {
    std::vector<std::string> paths;
    int64_t width = 0, boundary = -1, vocab = 0;
    bool marker_after = false;
};

void add_stream_arguments(CLI::App* command, StreamArguments& a) {
    command->add_option("shards", a.paths, "Shards, directories of shards or patterns")->required();
    command->add_option("--raw-width", a.width,
                        "The files are raw tokens of this many bytes (2 or 4), without a header");
    command->add_option("--boundary", a.boundary,
                        "Token that marks a document border, if the shards do not say");
    command->add_flag("--boundary-after", a.marker_after,
                      "The marker ends a document instead of beginning one");
    command->add_option("--vocab", a.vocab, "Tokens must be below this");
}

data::StreamOptions stream_options(const StreamArguments& a) {
    data::DataConfig config;
    if (a.width > 0) {
        config.format = data::DataFormat::raw;
        config.width = a.width;
    }
    config.document_mask = false;
    config.boundary.token = a.boundary;
    config.boundary.side = a.marker_after ? data::BoundarySide::after : data::BoundarySide::before;
    return config.stream_options(a.vocab);
}

void add_tokenize(CLI::App* data, Action& action) {
    auto options = std::make_shared<data::TokenizeOptions>();
    CLI::App* command =
        data->add_subcommand("tokenize", "Text files, directories and JSONL to byte-level shards");
    command->add_option("inputs", options->source.inputs, "Files, directories, *.jsonl")->required();
    command->add_option("--out", options->output, "Directory for train_*.bin and val_*.bin")->required();
    command->add_flag("--replace", options->replace, "Remove the shards an earlier call left there");
    command->add_option("--ext", options->source.extensions, "Inside directories: only names that end so")
        ->delimiter(',');
    command->add_option("--exclude", options->source.exclude, "Inside directories: patterns left out")
        ->delimiter(',');
    command->add_option("--text-field", options->source.text_field, "JSONL: the member that holds the text");
    command->add_flag("--strip-licence", options->source.strip_licence,
                      "Drop licence comments at the top of files");
    command->add_option("--val-every", options->val_every, "Every n-th document is for validation");
    command->add_option("--val-fraction", options->val_fraction,
                        "Share of documents for validation, by hashed name");
    command->add_option("--shard-tokens", options->max_shard_tokens, "Tokens per shard at most");
    command->add_option("--max-bytes", options->max_bytes, "Text used at most");
    command->callback([options, &action] {
        action = [options] {
            fmt::print("{}", data::to_text(data::tokenize(*options)));
            return ExitCode::ok;
        };
    });
}

void add_synth(CLI::App* data, Action& action) {
    auto options = std::make_shared<data::SynthOptions>();
    CLI::App* command = data->add_subcommand("synth", "A synthetic corpus in which long context pays");
    command->add_option("--out", options->output, "Directory for train_*.bin and val_*.bin")->required();
    command->add_flag("--replace", options->replace, "Remove the shards an earlier call left there");
    command->add_option("--seed", options->seed, "Same seed, same bytes");
    command->add_option("--train-bytes", options->train_bytes, "Bytes of training text");
    command->add_option("--val-bytes", options->val_bytes, "Bytes of validation text");
    command->add_option("--min-document", options->min_document, "Shortest document, bytes");
    command->add_option("--max-document", options->max_document, "Longest document, bytes");
    command->add_option("--min-distance", options->min_distance, "Shortest distance of a recall, bytes");
    command->add_option("--max-distance", options->max_distance, "Longest distance of a recall, bytes");
    command->add_option("--fact-every", options->fact_every, "Mean bytes between facts");
    command->callback([options, &action] {
        action = [options] {
            fmt::print("{}", data::to_text(data::synthesize(*options)));
            return ExitCode::ok;
        };
    });
}

void add_inspect(CLI::App* data, Action& action) {
    auto arguments = std::make_shared<StreamArguments>();
    CLI::App* command = data->add_subcommand("inspect", "What shards hold: headers, documents, first tokens");
    add_stream_arguments(command, *arguments);
    command->callback([arguments, &action] {
        action = [arguments] {
            data::InspectOptions options;
            options.stream = stream_options(*arguments);
            fmt::print("{}", data::to_text(data::inspect(arguments->paths, options)));
            return ExitCode::ok;
        };
    });
}

void add_verify(CLI::App* data, Action& action) {
    auto arguments = std::make_shared<StreamArguments>();
    CLI::App* command =
        data->add_subcommand("verify", "Read every byte: checksums, token range, document table");
    add_stream_arguments(command, *arguments);
    command->callback([arguments, &action] {
        action = [arguments] {
            const data::Verification result = data::verify(arguments->paths, stream_options(*arguments));
            fmt::print("{}", data::to_text(result));
            return result.problems.empty() ? ExitCode::ok : ExitCode::data;
        };
    });
}

}  // namespace

void add_data_command(CLI::App& app, Action& action) {
    CLI::App* data = app.add_subcommand("data", "Make, show and check token shards");
    data->require_subcommand(1);
    add_tokenize(data, action);
    add_synth(data, action);
    add_inspect(data, action);
    add_verify(data, action);
}

}  // namespace longreach::commands
