#include "data/tokenize.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "base/units.h"
#include "data/encode_ahead.h"
#include "data/text_bytes.h"

namespace longreach::data {

namespace {

class Splitter final : public DocumentSink {
  public:
    Splitter(const TokenizeOptions& options, const FileTokenizer& tokenizer, const Unfinished& progress)
        : options_(options),
          train_(options.output, "train", options.max_shard_tokens, tokenizer.header),
          val_(options.output, "val", options.max_shard_tokens, tokenizer.header),
          progress_(progress) {
        train_.resume(progress.train.shards);
        val_.resume(progress.val.shards);
        if (tokenizer.tokenizer)
            encoder_.emplace(tokenizer.tokenizer, std::max(1, options.threads),
                             [this](const EncodedDocument& document) { write(document); });
    }

    bool begin(const std::string& name, uint64_t bytes) override {
        if (options_.max_bytes > 0 && (bytes_ >= options_.max_bytes || bytes > options_.max_bytes - bytes_))
            return false;
        document_ = {{}, documents_, is_validation(name), {}};
        ++documents_;
        done_before_ = document_.number < progress_of(document_).next_document;
        if (!done_before_ && !encoder_) set_of(document_).begin_document();
        return true;
    }

    void text(std::string_view piece) override {
        bytes_ += piece.size();
        if (done_before_) return;
        if (encoder_) {
            document_.text += piece;  // a word may continue in the next piece
        } else {
            set_of(document_).append_bytes(piece);
        }
    }

    void end() override {
        if (done_before_) return;
        if (encoder_) {
            encoder_->add(std::move(document_));
        } else {
            end_document(document_);
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
        if (encoder_) encoder_->finish();
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
    ShardSet& set_of(const EncodedDocument& document) { return document.validation ? val_ : train_; }
    SplitProgress& progress_of(const EncodedDocument& document) {
        return document.validation ? progress_.val : progress_.train;
    }

    void write(const EncodedDocument& document) {
        ShardSet& set = set_of(document);
        set.begin_document();
        set.append_tokens(document.ids, document.text.size());
        end_document(document);
    }

    void end_document(const EncodedDocument& document) {
        if (!set_of(document).end_document()) return;
        progress_of(document) = {set_of(document).complete(), document.number + 1};
        progress_.write(options_.output);
    }

    const TokenizeOptions& options_;
    ShardSet train_, val_;
    Unfinished progress_;
    std::optional<EncodeAhead> encoder_;  // empty: bytes are the tokens
    EncodedDocument document_;            // as far as it has come
    bool done_before_ = false;            // it is in a shard of an earlier call
    uint64_t documents_ = 0, bytes_ = 0;
    uint64_t files_before_ = 0, total_ = 0;  // bytes
};

// Marks the output as unfinished while it exists.
class Marker {
  public:
    Marker(const std::string& directory, const Unfinished& progress) : directory_(directory) {
        progress.write(directory);
    }
    ~Marker() { io::Disk::system().unlink(Unfinished::path_in(directory_).c_str()); }
    Marker(const Marker&) = delete;
    Marker& operator=(const Marker&) = delete;

  private:
    std::string directory_;
};

// Equal for calls that write the same shards, judged by names and sizes of the files; 0 if a text cannot be read again.
uint64_t request_of(const TokenizeOptions& options, const std::vector<SourceFile>& sources,
                    const ShardHeader& header) {
    std::string text =
        fmt::format("{} {} {} {} {} {} {} {} {} {}", header.tokenizer, header.boundary_token, header.width,
                    options.val_every, options.val_fraction, options.max_shard_tokens, options.max_bytes,
                    options.source.lines, options.source.strip_licence, options.source.text_field);
    for (const SourceFile& source : sources) {
        if (source.path == standard_input) return 0;
        text += fmt::format("\n{} {}", source.bytes, source.name);
    }
    return std::max<uint64_t>(1, xxh64(text));
}

// Removes what an earlier call left of shards that it did not complete.
void remove_incomplete(const std::string& directory, const Unfinished& progress) {
    for (const std::string& name : io::list_directory(directory))
        for (const auto& [split, shards] :
             {std::pair("train", progress.train.shards), {"val", progress.val.shards}})
            if (name.starts_with(fmt::format("{}_", split)) && name.find(".bin") != std::string::npos &&
                (!name.ends_with(".bin") || name >= fmt::format("{}_{:06}.bin", split, shards)))
                io::remove_file(io::join_path(directory, name));
}

void check_options(const TokenizeOptions& options) {
    require(!options.source.inputs.empty(), ExitCode::usage, "no text is named");
    require(options.val_every >= 0 && options.val_every != 1, ExitCode::usage,
            "every {} documents for validation leaves none for training", options.val_every);
    require(options.val_fraction >= 0 && options.val_fraction < 1, ExitCode::usage,
            "the validation fraction {} is not in [0, 1)", options.val_fraction);
    require(options.val_every == 0 || options.val_fraction == 0, ExitCode::usage,
            "choose validation documents by number or by fraction, not both");
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
    const FileTokenizer tokenizer = open_tokenizer(options.tokenizer);
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

    Unfinished progress{request_of(options, sources, tokenizer.header), {}, {}};
    const std::optional<Unfinished> earlier = Unfinished::read(options.output);
    if (earlier && !options.replace) {
        if (earlier->request != progress.request || earlier->request == 0)
            throw Error(
                ExitCode::usage,
                fmt::format("{} holds the unfinished shards of other texts or options", options.output),
                "repeat that call to complete them, or allow replacing");
        progress = *earlier;
        result.resumed_shards = progress.train.shards + progress.val.shards;
        remove_incomplete(options.output, progress);
    } else {
        prepare_output(options.output, options.replace, needed);
    }
    const Marker marker(options.output, progress);
    if (tokenizer.tokenizer) keep_tokenizer(options.tokenizer.path, options.output);

    Splitter splitter(options, tokenizer, progress);
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
    require(result.train.documents + result.val.documents > 0, ExitCode::data, "the inputs hold no text");
    return result;
}

std::string to_text(const TokenizeResult& result) {
    std::string text = fmt::format("{} files read", result.files);
    if (result.binary_files > 0) text += fmt::format(", {} binary files skipped", result.binary_files);
    if (result.limited) text += ", the rest left out (limit of bytes)";
    text += "\n";
    if (result.resumed_shards > 0)
        text += fmt::format("continued behind {} complete shards\n", result.resumed_shards);
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
