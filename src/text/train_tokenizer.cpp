#include "text/train_tokenizer.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"
#include "text/text_cutter.h"
#include "text/work_ahead.h"
#include "tokenizer/formats.h"
#include "tokenizer/tokenizer.h"

namespace longreach::text {

namespace {

// Where words end whatever follows.
Cuts word_cuts() {
    tokenizer::Definition definition;
    definition.splits.push_back(tokenizer::PatternSplit{tokenizer::Pattern(tokenizer::gpt2_pattern, {})});
    return cuts_of(definition);
}

class Counter final : public DocumentSink {
  public:
    Counter(const TrainTokenizerOptions& options, TrainTokenizerResult& result)
        : max_bytes_(options.max_bytes),
          split_(options.split),
          result_(result),
          words_(static_cast<size_t>(std::max(1, options.threads))),
          ahead_(
              std::max(1, options.threads),
              [this](size_t thread, TextPart& part) { words_[thread].add(part.text); },
              [](const TextPart&) {}) {}

    bool begin(const std::string& name, uint64_t bytes) override {
        if (room() == 0 || bytes > room()) return false;
        skips_ = split_.is_validation(name, result_.documents + result_.left_for_validation);
        ++(skips_ ? result_.left_for_validation : result_.documents);
        return true;
    }
    uint64_t room() const override {
        if (max_bytes_ == 0) return DocumentSink::room();
        return max_bytes_ - std::min(max_bytes_, bytes_);
    }
    void text(std::string_view piece) override {
        bytes_ += piece.size();
        if (skips_) return;
        cutter_.add(piece, [this](std::string part) { ahead_.add({.text = std::move(part)}); });
        result_.bytes += piece.size();
    }
    void end() override {
        if (!skips_) ahead_.add({.text = cutter_.take_rest()});
    }

    // The words of all documents.
    const tokenizer::WordCounter& finish() {
        ahead_.finish();
        for (size_t i = 1; i < words_.size(); ++i) words_[0].add(words_[i]);
        return words_[0];
    }

  private:
    uint64_t max_bytes_, bytes_ = 0;
    const Split& split_;
    bool skips_ = false;  // the document
    TrainTokenizerResult& result_;
    TextCutter cutter_{word_cuts()};
    std::vector<tokenizer::WordCounter> words_;  // of each thread
    WorkAhead ahead_;
};

}  // namespace

TrainTokenizerResult train_tokenizer(const TrainTokenizerOptions& options) {
    require(!options.source.inputs.empty(), ExitCode::usage, "no text is named");
    require(!options.output.empty(), ExitCode::usage, "no output file is named");
    require(options.learn.vocab >= tokenizer::learned_first_tokens, ExitCode::usage,
            "--vocab {}: {} tokens are needed for the bytes and {}", options.learn.vocab,
            tokenizer::learned_first_tokens, tokenizer::boundary_name);
    options.split.check();
    if (!options.replace && io::kind_of(options.output, io::Links::follow) != io::PathKind::missing)
        throw Error(ExitCode::usage, fmt::format("{} exists", options.output),
                    "name another file, or allow replacing");
    io::make_directories(io::parent_path(options.output));  // before the minutes that reading may take
    TrainTokenizerResult result;
    result.wanted = options.learn.vocab;
    Excluded excluded;
    Counter counter(options, result);
    for (const SourceFile& source : find_sources(options.source, excluded)) {
        const SourceOutcome outcome = read_source(source, options.source, counter);
        ++(outcome == SourceOutcome::binary ? result.binary_files : result.files);
        if (outcome == SourceOutcome::stopped) break;
    }
    require(result.documents > 0, ExitCode::data, "the inputs hold no text");
    const tokenizer::WordCounter& words = counter.finish();
    result.words = words.words();
    const tokenizer::Learned learned = words.learn(options.learn);
    result.tokens = static_cast<int64_t>(learned.tokens.size());
    const std::string file = json::write(tokenizer::to_json(learned), json::Style::pretty);
    result.fingerprint =
        tokenizer::Tokenizer(tokenizer::parse_tokenizer_json(file, options.output)).fingerprint();
    io::write_file_atomically(options.output, file);
    return result;
}

std::string to_text(const TrainTokenizerResult& result) {
    std::string text = fmt::format("{} files read", result.files);
    if (result.binary_files > 0) text += fmt::format(", {} binary files skipped", result.binary_files);
    text += fmt::format(": {} documents, {} of text, {} words\n", result.documents,
                        human_bytes(static_cast<int64_t>(result.bytes)),
                        human_count(static_cast<double>(result.words)));
    if (result.left_for_validation > 0)
        text += fmt::format("{} documents left for validation\n", result.left_for_validation);
    text += fmt::format("{} tokens, fingerprint {}\n", result.tokens, format_hash64(result.fingerprint));
    if (result.tokens < result.wanted)
        text += fmt::format("warning: {} tokens were wanted; no further pair of tokens occurs often enough\n",
                            result.wanted);
    return text;
}

}  // namespace longreach::text
