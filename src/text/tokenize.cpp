#include "text/tokenize.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"
#include "text/shard_output.h"
#include "text/text_cutter.h"
#include "text/work_ahead.h"

namespace longreach::text {

namespace {

constexpr uint64_t long_part = uint64_t{64} << 20;  // bytes; a longer one is worth a warning

class Splitter final : public DocumentSink {
  public:
    Splitter(const TokenizeOptions& options, const data::FileTokenizer& file, ShardOutput& output)
        : options_(options),
          output_(output),
          train_(output.place(), "train", options.max_shard_tokens, file.header, *options.disk),
          val_(output.place(), "val", options.max_shard_tokens, file.header, *options.disk),
          done_before_{output.progress()},
          cutter_(file.tokenizer ? cuts_of(file.tokenizer->definition()) : Cuts::nowhere) {
        train_.resume(done_before_.train.shards);
        val_.resume(done_before_.val.shards);
        if (!file.tokenizer) return;
        const int threads = std::max(1, options.threads);
        for (int i = 0; i < threads; ++i)
            encoders_.push_back(std::make_unique<tokenizer::Encoder>(file.tokenizer));
        ahead_.emplace(
            threads,
            [this](size_t thread, TextPart& part) {
                encoders_[thread]->encode(part.text, tokenizer::SpecialTokens::as_text, part.ids);
            },
            [this](const TextPart& part) { write(part); });
    }

    bool begin(const std::string& name, uint64_t bytes) override {
        if (room() == 0 || bytes > room()) return false;
        part_ = {.document = documents_, .validation = options_.split.is_validation(name, documents_)};
        ++documents_;
        skips_ = part_.document < (part_.validation ? done_before_.val : done_before_.train).next_document;
        if (!skips_ && !ahead_) set_of(part_).begin_document();
        return true;
    }

    uint64_t room() const override {
        if (options_.max_bytes == 0) return DocumentSink::room();
        return options_.max_bytes - std::min(options_.max_bytes, bytes_);
    }

    void text(std::string_view piece) override {
        bytes_ += piece.size();
        if (skips_) return;
        if (ahead_) {
            cutter_.add(piece, [this](std::string part) { encode(std::move(part), false); });
        } else {
            set_of(part_).append_bytes(piece);
        }
    }

    void end() override {
        if (skips_) return;
        if (ahead_) {
            encode(cutter_.take_rest(), true);
        } else {
            end_document(part_);
        }
    }

    void at(uint64_t bytes) override {
        if (options_.progress) options_.progress(files_before_ + bytes, total_);
    }
    void begin_file(uint64_t files_before, uint64_t total) {
        files_before_ = files_before;
        total_ = total;
    }

    void finish(TokenizeResult& result) {
        if (ahead_) ahead_->finish();
        result.train = train_.finish();
        result.val = val_.finish();
        result.longest_part = longest_part_;
        output_.record("train", {result.train.shards.size(), documents_});
        output_.record("val", {result.val.shards.size(), documents_});
    }

  private:
    data::ShardSet& set_of(const TextPart& part) { return part.validation ? val_ : train_; }

    void encode(std::string text, bool is_last) {
        longest_part_ = std::max<uint64_t>(longest_part_, text.size());
        TextPart part = part_;
        part.text = std::move(text);
        part.is_last = is_last;
        part_.is_first = false;
        ahead_->add(std::move(part));
    }

    void write(const TextPart& part) {
        data::ShardSet& set = set_of(part);
        if (part.is_first) set.begin_document();
        set.append_tokens(part.ids, part.text.size());
        if (part.is_last) end_document(part);
    }

    void end_document(const TextPart& part) {
        if (set_of(part).end_document())
            output_.record(part.validation ? "val" : "train", {set_of(part).complete(), part.document + 1});
    }

    const TokenizeOptions& options_;
    ShardOutput& output_;
    data::ShardSet train_, val_;
    const data::Unfinished done_before_;                         // by an earlier call
    std::vector<std::unique_ptr<tokenizer::Encoder>> encoders_;  // one for each thread
    std::optional<WorkAhead> ahead_;                             // empty: bytes are the tokens
    TextCutter cutter_;
    TextPart part_;       // of the document at hand, the next part without its text
    bool skips_ = false;  // the document is in a shard of an earlier call
    uint64_t documents_ = 0, bytes_ = 0, longest_part_ = 0;
    uint64_t files_before_ = 0, total_ = 0;  // bytes
};

// Equal for calls that write the same shards.
TextRequest request_of(const TokenizeOptions& options, const std::vector<SourceFile>& sources,
                       const data::ShardHeader& header) {
    return TextRequest::of(
        fmt::format("{} {} {} {} {} {} {} {} {} {}", header.tokenizer, header.boundary_token, header.width,
                    options.split.every, options.split.fraction, options.max_shard_tokens, options.max_bytes,
                    options.source.lines, options.source.strip_licence, options.source.text_field),
        sources);
}

void check_options(const TokenizeOptions& options) {
    require(!options.source.inputs.empty(), ExitCode::usage, "no text is named");
    options.split.check();
    require(options.max_shard_tokens >= 1, ExitCode::usage, "shards of no tokens");
}

// Bytes of all files: as they are, and as text, for which an archive counts four times.
std::pair<uint64_t, uint64_t> size_of(const std::vector<SourceFile>& sources) {
    uint64_t bytes = 0, text = 0;
    for (const SourceFile& source : sources) {
        bytes += source.bytes;
        text += source.packed ? 4 * source.bytes : source.bytes;
    }
    return {bytes, text};
}

}  // namespace

TokenizeResult tokenize(const TokenizeOptions& options) {
    check_options(options);
    TokenizeResult result;
    const data::FileTokenizer tokenizer = data::open_tokenizer(options.tokenizer);
    result.tokenizer = tokenizer.description;
    const std::vector<SourceFile> sources = find_sources(options.source, result.excluded);
    require(!sources.empty(), ExitCode::data, "the inputs hold no file to read{}",
            result.excluded.files > 0 ? fmt::format(" ({} files are excluded)", result.excluded.files) : "");
    for (size_t i = 0; i < options.source.exclude.size(); ++i)
        if (result.excluded.matches[i] == 0) result.unmatched.push_back(options.source.exclude[i]);
    const auto [bytes, text_bytes] = size_of(sources);
    const uint64_t total = options.max_bytes > 0 ? std::min(text_bytes, options.max_bytes) : text_bytes;
    // A token of a tokenizer file stands for 2 bytes of text at least, as a rule; tables and checksums come on top.
    const uint64_t tokens = tokenizer.tokenizer ? total / 2 : total;
    const uint64_t needed = tokens * static_cast<uint64_t>(tokenizer.header.width) + total / 64;

    ShardOutput output({.directory = options.output,
                        .replace = options.replace,
                        .bytes = needed,
                        .request = request_of(options, sources, tokenizer.header),
                        .kept = tokenizer.tokenizer ? data::tokenizer_files(options.tokenizer.path)
                                                    : std::vector<data::KeptFile>{},
                        .disk = options.disk});
    result.resumed_shards = output.progress().train.shards + output.progress().val.shards;
    Splitter splitter(options, tokenizer, output);
    uint64_t before = 0;
    for (const SourceFile& source : sources) {
        splitter.begin_file(before, bytes);
        const SourceOutcome outcome = read_source(source, options.source, splitter);
        ++(outcome == SourceOutcome::binary ? result.binary_files : result.files);
        result.limited = outcome == SourceOutcome::stopped;
        if (result.limited) break;
        before += source.bytes;
    }
    splitter.finish(result);
    require(result.train.documents + result.val.documents > 0, ExitCode::data, "the inputs hold no text{}",
            result.limited ? ": the first document has more bytes than --max-bytes" : "");
    result.others = output.finish(result.train, result.val);
    return result;
}

std::string to_text(const TokenizeResult& result) {
    std::string text = fmt::format("{} files read", result.files);
    if (result.binary_files > 0) text += fmt::format(", {} binary files skipped", result.binary_files);
    if (result.limited) text += ", the rest left out (limit of bytes)";
    text += "\n";
    if (result.resumed_shards > 0)
        text += fmt::format("continued after {} complete shards\n", result.resumed_shards);
    if (!result.tokenizer.empty()) text += result.tokenizer + "\n";
    if (result.excluded.files > 0)
        text += fmt::format("{} files excluded, {} of text\n", result.excluded.files,
                            human_bytes(static_cast<int64_t>(result.excluded.bytes)));
    if (result.longest_part >= long_part)
        text += fmt::format(
            "warning: {} of one document were held in memory: no earlier place is known at which this "
            "tokenizer's text may be cut\n",
            human_bytes(static_cast<int64_t>(result.longest_part)));
    for (const std::string& pattern : result.unmatched)
        text += fmt::format(
            "warning: --exclude {} matches no file (patterns are compared with the path below the input "
            "directory)\n",
            shown(pattern));
    const auto line = [&](const char* name, const data::SplitResult& split) {
        if (split.shards.empty()) return;
        text += fmt::format("{:<6} {} tokens in {} documents, {} of text, {} shards, fingerprint {}\n", name,
                            human_count(static_cast<double>(split.tokens)), split.documents,
                            human_bytes(static_cast<int64_t>(split.source_bytes)), split.shards.size(),
                            format_hash64(split.fingerprint));
    };
    line("train", result.train);
    line("val", result.val);
    return text + name_others(result.others);
}

}  // namespace longreach::text
