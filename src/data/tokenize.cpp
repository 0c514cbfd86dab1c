#include "data/tokenize.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"

namespace longreach::data {

namespace {

class Splitter final : public DocumentSink {
  public:
    Splitter(const TokenizeOptions& options, const FileTokenizer& tokenizer)
        : options_(options),
          train_(options.output, "train", options.max_shard_tokens, tokenizer.header),
          val_(options.output, "val", options.max_shard_tokens, tokenizer.header) {
        if (tokenizer.tokenizer) encoder_.emplace(tokenizer.tokenizer);
    }

    bool begin(const std::string& name, uint64_t bytes) override {
        if (options_.max_bytes > 0 && bytes > options_.max_bytes - bytes_) return false;
        current_ = is_validation(name) ? &val_ : &train_;
        ++documents_;
        current_->begin_document();
        return true;
    }

    void text(std::string_view piece) override {
        bytes_ += piece.size();
        if (encoder_) {
            document_ += piece;  // a word may continue in the next piece
        } else {
            current_->append_bytes(piece);
        }
    }

    void end() override {
        if (encoder_) {
            ids_.clear();
            encoder_->encode(document_, tokenizer::SpecialTokens::as_text, ids_);
            current_->append_tokens(ids_, document_.size());
            document_.clear();
        }
        current_->end_document();
    }

    void finish(TokenizeResult& result) {
        result.train = train_.finish();
        result.val = val_.finish();
    }

  private:
    bool is_validation(const std::string& name) const {
        if (options_.val_every > 0)
            return documents_ % static_cast<uint64_t>(options_.val_every) ==
                   static_cast<uint64_t>(options_.val_every) - 1;
        // The top 53 bits of the hash as a number in [0, 1).
        return static_cast<double>(xxh64(name) >> 11) * 0x1p-53 < options_.val_fraction;
    }

    const TokenizeOptions& options_;
    ShardSet train_, val_;
    ShardSet* current_ = nullptr;
    std::optional<tokenizer::Encoder> encoder_;  // empty: bytes are the tokens
    std::string document_;                       // as far as it has come
    std::vector<int32_t> ids_;
    uint64_t documents_ = 0, bytes_ = 0;
};

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
    require(!options.source.inputs.empty(), ExitCode::usage, "no text is named");
    require(options.val_every >= 0 && options.val_every != 1, ExitCode::usage,
            "every {} documents for validation leaves none for training", options.val_every);
    require(options.val_fraction >= 0 && options.val_fraction < 1, ExitCode::usage,
            "the validation fraction {} is not in [0, 1)", options.val_fraction);
    require(options.val_every == 0 || options.val_fraction == 0, ExitCode::usage,
            "choose validation documents by number or by fraction, not both");
    require(options.max_shard_tokens >= 1, ExitCode::usage, "shards of no tokens");
    TokenizeResult result;
    const FileTokenizer tokenizer = open_tokenizer(options.tokenizer);
    result.tokenizer = tokenizer.description;
    const std::vector<SourceFile> sources = find_sources(options.source, result.excluded);
    require(!sources.empty(), ExitCode::data, "the inputs hold no file to read{}",
            result.excluded.files > 0 ? fmt::format(" ({} files are excluded)", result.excluded.files) : "");
    for (size_t i = 0; i < options.source.exclude.size(); ++i)
        if (result.excluded.matches[i] == 0) result.unmatched.push_back(options.source.exclude[i]);
    uint64_t total = 0;
    for (const SourceFile& source : sources) total += source.bytes;
    if (options.max_bytes > 0) total = std::min(total, options.max_bytes);
    // A token of a tokenizer file stands for 2 bytes of text at least, as a rule; tables and checksums come on top.
    const uint64_t tokens = tokenizer.tokenizer ? total / 2 : total;
    prepare_output(options.output, options.replace,
                   tokens * static_cast<uint64_t>(tokenizer.header.width) + total / 64);
    if (tokenizer.tokenizer) keep_tokenizer(options.tokenizer.path, options.output);

    Splitter splitter(options, tokenizer);
    for (const SourceFile& source : sources) {
        const SourceOutcome outcome = read_source(source, options.source, splitter);
        ++(outcome == SourceOutcome::binary ? result.binary_files : result.files);
        result.limited = outcome == SourceOutcome::stopped;
        if (result.limited) break;
    }
    splitter.finish(result);
    require(result.train.documents + result.val.documents > 0, ExitCode::data, "the inputs hold no text");
    return result;
}

std::string to_text(const TokenizeResult& result) {
    std::string text = fmt::format("{} files read", result.files);
    if (result.binary_files > 0) text += fmt::format(", {} binary files skipped", result.binary_files);
    if (result.limited) text += ", the rest left out (limit of bytes)";
    text += "\n";
    if (!result.tokenizer.empty()) text += result.tokenizer + "\n";
    if (result.excluded.files > 0)
        text += fmt::format("{} files excluded, {} of text\n", result.excluded.files,
                            human_bytes(static_cast<int64_t>(result.excluded.bytes)));
    for (const std::string& pattern : result.unmatched)
        text += fmt::format(
            "warning: --exclude {} matches no file (patterns are compared with the path below the input "
            "directory)\n",
            shown(pattern));
    const auto line = [&](const char* name, const SplitResult& split) {
        if (split.shards.empty()) return;
        text += fmt::format("{:<6} {} tokens in {} documents, {} of text, {} shards, fingerprint {}\n", name,
                            human_count(static_cast<double>(split.tokens)), split.documents,
                            human_bytes(static_cast<int64_t>(split.source_bytes)), split.shards.size(),
                            format_hash64(split.fingerprint));
    };
    line("train", result.train);
    line("val", result.val);
    return text;
}

}  // namespace longreach::data
