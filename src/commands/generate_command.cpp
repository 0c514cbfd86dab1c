// longreach generate: continues a text with a trained model.
#include <charconv>
#include <cstdio>
#include <optional>

#include "base/rng.h"
#include "base/text.h"
#include "commands/opened_model.h"
#include "eval/decoder.h"
#include "io/file.h"
#include "serve/vocabulary.h"
#include "tokenizer/byte_text.h"

namespace longreach::commands {

namespace {

constexpr uint64_t largest_prompt = uint64_t{1} << 30;

struct GenerateOptions {
    ModelOptions model;
    std::string prompt, prompt_file;
    int64_t tokens = 128, top = 0, seed = 1;
    double temperature = 0;
    bool ids = false;
};

std::vector<int32_t> parse_ids(std::string_view text, int64_t vocabulary) {
    std::vector<int32_t> ids;
    const auto separates = [](char c) { return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
    for (size_t at = 0; at < text.size();) {
        if (separates(text[at])) {
            ++at;
            continue;
        }
        int32_t id = -1;
        const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), id);
        const bool whole = end == text.data() + text.size() || separates(*end);
        require(error == std::errc() && whole && id >= 0 && id < vocabulary, ExitCode::usage,
                "the prompt's token {} is not a number from 0 to {}", ids.size() + 1, vocabulary - 1);
        ids.push_back(id);
        at = static_cast<size_t>(end - text.data());
    }
    return ids;
}

std::vector<int32_t> prompt_tokens(const GenerateOptions& options, const serve::Vocabulary& vocabulary) {
    require(options.prompt.empty() || options.prompt_file.empty(), ExitCode::usage,
            "--prompt and --prompt-file exclude each other");
    const std::string text = options.prompt_file.empty()
                                 ? options.prompt
                                 : io::read_file(options.prompt_file, largest_prompt, io::Links::follow);
    if (options.ids) {
        std::vector<int32_t> ids = parse_ids(text, vocabulary.size());
        require(!ids.empty(), ExitCode::usage, "--ids needs a prompt of at least one token");
        return ids;
    }
    require(
        vocabulary.reads_text(), ExitCode::usage,
        "the model's vocabulary is not that of bytes ({} tokens instead of {}) and the run directory has no "
        "tokenizer, so the prompt must be token numbers: --ids",
        vocabulary.size(), tokenizer::byte_vocabulary);
    std::vector<int32_t> ids;
    if (vocabulary.boundary()) ids.push_back(*vocabulary.boundary());
    const std::vector<int32_t> rest = vocabulary.encode(text, false);
    ids.insert(ids.end(), rest.begin(), rest.end());
    require(!ids.empty(), ExitCode::usage, "the prompt has no token");
    return ids;
}

void print(const std::string& text) {
    require(std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0,
            ExitCode::disk, "cannot write to standard output");
}

ExitCode generate(const GenerateOptions& options) {
    require(options.temperature > 0 || options.top == 0, ExitCode::usage,
            "--top has no effect without --temperature");
    OpenedModel opened(options.model, true,
                       [](train::Experiment&) {});  // standard output contains only the text
    const train::Experiment& experiment = opened.experiment;
    const serve::Vocabulary vocabulary(experiment.model.vocab_size,
                                       options.ids ? nullptr : run_tokenizer(opened.checkpoint));
    const std::vector<int32_t> text = prompt_tokens(options, vocabulary);
    const int64_t prompt = static_cast<int64_t>(text.size()), room = prompt + options.tokens;
    opened.build(room);
    Ops& ops = *opened.ops;
    std::optional<eval::Decoder> decoder;
    const auto plan = [&](model::Arena& arena, int64_t length) {
        decoder.emplace(*opened.model, eval::DecoderSize{1, std::min(prompt, length), length});
        decoder->plan(arena, ops);
    };
    opened.load(plan, room, true);
    const model::FlatParams& weights = opened.weights;

    const Rng rng(static_cast<uint64_t>(options.seed), Purpose::sampling);
    std::string sample;  // what was printed
    const auto add = [&](const std::string& piece) {
        print(piece);
        sample += piece;
    };
    if (!options.ids) add(options.prompt_file.empty() ? options.prompt : std::string());
    serve::TokenText shown(vocabulary);
    shown.follow(text);
    int32_t next = decoder->prefill(ops, weights, text, 1)[0];
    for (int64_t i = 0; i < options.tokens; ++i) {
        if (options.temperature > 0)
            next =
                eval::sample_token(decoder->logits(ops).data(), experiment.model.vocab_size,
                                   options.temperature, options.top, rng.uniform(static_cast<uint64_t>(i)));
        if (options.ids) {
            add(fmt::format("{}{}", i > 0 ? " " : "", next));
        } else {
            if (vocabulary.boundary() == next) break;  // end of the document
            add(shown.next(next));
        }
        if (i + 1 < options.tokens) next = decoder->step(ops, weights, {next})[0];
    }
    add("\n");
    if (!opened.directory.empty()) {
        io::make_directories(opened.directory);
        io::write_file_atomically(io::join_path(opened.directory, "sample.txt"), sample);
    }
    return ExitCode::ok;
}

}  // namespace

void add_generate_command(Command& program) {
    auto options = std::make_shared<GenerateOptions>();
    Command command = program.add(
        "generate", "Continue a text: the most likely token each time, or sampled with --temperature");
    add_model_options(command, options->model, ", for texts of the prompt's length plus --tokens");
    command.option("--prompt", options->prompt, "The text to continue; printed before its continuation");
    command.option("--prompt-file", options->prompt_file, "The same from a file, but not printed");
    command
        .option("--tokens", options->tokens,
                "Maximum number of tokens to add; text also ends at the end of its document")
        .in_range(int64_t{1}, int64_t{1} << 31);
    command.flag(
        "--ids", options->ids,
        "Read and print token numbers, separated by spaces or commas, instead of text: for "
        "vocabularies other than that of data tokenize, or that of a tokenizer in the run directory");
    command
        .option("--temperature", options->temperature,
                "Draw from the model's probabilities at this temperature; 0: take the most likely")
        .not_negative();
    command.option("--top", options->top, "Draw from this number of most likely tokens; 0: from all")
        .not_negative();
    command.option("--seed", options->seed, "Seed of the draws").not_negative();
    add_label_option(command, options->model,
                     "Also write the text to eval/LABEL/sample.txt of the run directory, for the run's page");
    command.run([options] { return generate(*options); });
}

}  // namespace longreach::commands
