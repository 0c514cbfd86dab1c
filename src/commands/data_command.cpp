// longreach data: makes, shows and verifies token shards.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "base/messages.h"
#include "base/terminal.h"
#include "base/units.h"
#include "commands/commands.h"
#include "text/inspect.h"
#include "text/synth.h"
#include "text/tokenize.h"
#include "text/train_tokenizer.h"

namespace longreach::commands {

namespace {

constexpr const char* inputs_help = "Files, directories, *.jsonl, also packed (.gz, .zst); -: standard input";

// A line on the terminal, redrawn twice a second: "tokenizing  34%  310 MiB of 1.2 GiB  21 MiB/s".
class TerminalProgress {
  public:
    explicit TerminalProgress(const char* what) : what_(what) {}
    void operator()(uint64_t done, uint64_t of) {
        const double now = std::chrono::duration<double>(Clock::now() - begin_).count();
        const bool last = of > 0 && done >= of;
        if ((now < shown_ + 0.5 && !last) || printed_from() != MessageLevel::info) return;
        shown_ = now;
        const auto bytes = [](double count) { return human_bytes(static_cast<int64_t>(count)); };
        const double read = static_cast<double>(done);
        const std::string share =
            of > 0 ? fmt::format("{:3.0f}%  {} of {}", 100 * read / static_cast<double>(of), bytes(read),
                                 bytes(static_cast<double>(of)))
                   : bytes(read);
        fmt::print(stderr, "\r\x1b[K{}  {}  {}/s{}", what_, share, bytes(now > 0 ? read / now : 0),
                   last ? "\r\x1b[K" : "");
        std::fflush(stderr);
    }

  private:
    using Clock = std::chrono::steady_clock;
    const char* what_;
    Clock::time_point begin_ = Clock::now();
    double shown_ = 0;
};

struct StreamArguments {
    std::vector<std::string> paths;
    int64_t width = 0, boundary = -1, vocab = 0;
    bool marker_after = false;
};

void add_stream_arguments(Command& command, StreamArguments& a) {
    command.option("shards", a.paths, "Shards, directories of shards or patterns").required();
    command.option("--raw-width", a.width,
                   "The files are raw tokens of this many bytes (2 or 4), without a header");
    command.option("--boundary", a.boundary,
                   "Token that marks a document boundary, if the shards do not define one");
    command.flag("--boundary-after", a.marker_after, "The marker ends a document instead of starting one");
    command.option("--vocab", a.vocab, "All tokens must be below this number");
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

void add_split(Command& command, text::Split& split) {
    command.option("--val-every", split.every, "Every n-th document is for validation");
    command.option("--val-fraction", split.fraction, "Share of documents for validation, by hashed name");
}

int cores() {
    return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

void add_tokenize(Command& data) {
    auto options = std::make_shared<text::TokenizeOptions>();
    Command command = data.add("tokenize", "Convert text files, directories and JSONL to shards");
    command.option("inputs", options->source.inputs, inputs_help).required();
    command.option("--out", options->output, "Directory for train_*.bin and val_*.bin").required();
    command.flag("--replace", options->replace,
                 "Replace the shards of an earlier call once the new ones are complete");
    command.option(
        "--tokenizer", options->tokenizer.path,
        "tokenizer.json, *.tiktoken, or vocab.json with merges.txt next to it (default: each byte is a token)");
    command.option("--pattern", options->tokenizer.pattern,
                   "Of *.tiktoken: gpt2, cl100k, o200k or the regular expression that splits words");
    command.option("--boundary", options->tokenizer.boundary,
                   "The special token before each document, by name (default: <|endoftext|>, <s>, ...)");
    command.option("--ext", options->source.extensions, "Inside directories: only names with these endings")
        .comma_list();
    command.option("--exclude", options->source.exclude, "Inside directories: patterns of names to skip")
        .comma_list();
    command.flag("--jsonl", options->source.lines, "Every input is JSONL, whatever its name");
    command.option("--text-field", options->source.text_field, "JSONL: the member that contains the text");
    command.flag("--strip-licence", options->source.strip_licence,
                 "Drop licence comments at the top of files");
    add_split(command, options->split);
    command.option("--shard-tokens", options->max_shard_tokens, "Maximum tokens per shard");
    command.option("--max-bytes", options->max_bytes,
                   "Maximum bytes of text: further documents are left out, standard input is cut");
    command.option("--threads", options->threads, "Threads that encode with --tokenizer (default: all cores)")
        .in_range(1, 1024);
    command.run([options] {
        if (options->threads == 0) options->threads = cores();
        if (::isatty(STDERR_FILENO) == 1) options->progress = TerminalProgress("tokenizing");
        print_text("{}", text::to_text(text::tokenize(*options)));
        return ExitCode::ok;
    });
}

void add_train_tokenizer(Command& data) {
    auto options = std::make_shared<text::TrainTokenizerOptions>();
    Command command = data.add("train-tokenizer", "Learn a byte-level BPE vocabulary from text");
    command.option("inputs", options->source.inputs, inputs_help).required();
    command.option("--out", options->output, "tokenizer.json to write").required();
    command.flag("--replace", options->replace, "Replace the file");
    command.option("--vocab", options->learn.vocab, "Tokens, 257 of them for bytes and <|endoftext|>");
    command.option("--min-count", options->learn.min_count, "Pairs that occur less often become no token");
    command.option("--ext", options->source.extensions, "Inside directories: only names with these endings")
        .comma_list();
    command.option("--exclude", options->source.exclude, "Inside directories: patterns of names to skip")
        .comma_list();
    command.flag("--jsonl", options->source.lines, "Every input is JSONL, whatever its name");
    command.option("--text-field", options->source.text_field, "JSONL: the member that contains the text");
    command.flag("--strip-licence", options->source.strip_licence,
                 "Drop licence comments at the top of files");
    command.option("--max-bytes", options->max_bytes,
                   "Maximum bytes of text: further documents are left out, standard input is cut");
    add_split(command, options->split);
    command.option("--threads", options->threads, "Threads that count words (default: all cores)")
        .in_range(1, 1024);
    command.run([options] {
        if (options->threads == 0) options->threads = cores();
        print_text("{}", text::to_text(text::train_tokenizer(*options)));
        return ExitCode::ok;
    });
}

void add_synth(Command& data) {
    auto options = std::make_shared<text::SynthOptions>();
    Command command = data.add("synth", "Make a synthetic corpus that rewards long context");
    command.option("--out", options->output, "Directory for train_*.bin and val_*.bin").required();
    command.flag("--replace", options->replace,
                 "Replace the shards of an earlier call once the new ones are complete");
    command.option("--seed", options->seed, "Same seed, same bytes");
    command.option("--train-bytes", options->train_bytes, "Bytes of training text");
    command.option("--val-bytes", options->val_bytes, "Bytes of validation text");
    command.option("--min-document", options->min_document, "Shortest document, bytes");
    command.option("--max-document", options->max_document, "Longest document, bytes");
    command.option("--min-distance", options->min_distance, "Shortest distance of a recall, bytes");
    command.option("--max-distance", options->max_distance, "Longest distance of a recall, bytes");
    command.option("--fact-every", options->fact_every, "Mean bytes between facts");
    command.run([options] {
        print_text("{}", text::to_text(text::synthesize(*options)));
        return ExitCode::ok;
    });
}

void add_inspect(Command& data) {
    auto arguments = std::make_shared<StreamArguments>();
    Command command = data.add("inspect", "Show the contents of shards: headers, documents, first tokens");
    add_stream_arguments(command, *arguments);
    command.run([arguments] {
        text::InspectOptions options;
        options.stream = stream_options(*arguments);
        print_text("{}", text::to_text(text::inspect(arguments->paths, options)));
        return ExitCode::ok;
    });
}

void add_verify(Command& data) {
    auto arguments = std::make_shared<StreamArguments>();
    Command command = data.add("verify", "Read every byte: checksums, token range, document table");
    add_stream_arguments(command, *arguments);
    command.run([arguments] {
        const text::Verification result = text::verify(arguments->paths, stream_options(*arguments));
        print_text("{}", text::to_text(result));
        return result.problems.empty() ? ExitCode::ok : ExitCode::data;
    });
}

}  // namespace

void add_data_command(Command& program) {
    Command data = program.add("data", "Make, show and check token shards");
    data.require_command();
    add_tokenize(data);
    add_train_tokenizer(data);
    add_synth(data);
    add_inspect(data);
    add_verify(data);
}

}  // namespace longreach::commands
