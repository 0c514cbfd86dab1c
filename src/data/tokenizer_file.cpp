#include "data/tokenizer_file.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "data/shard_set.h"
#include "tokenizer/formats.h"

namespace longreach::data {

namespace {

constexpr uint64_t largest_file = uint64_t{256} << 20;

std::string read(const std::string& path) {
    return io::read_file(path, largest_file, io::Links::follow);
}

// The merges that belong to a vocabulary of GPT-2's two files; empty if `path` has neither of their names.
std::string merges_beside(const std::string& path) {
    for (const auto& [vocab, merges] : {std::pair{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}})
        if (path.ends_with(vocab))
            return path.substr(0, path.size() - std::string_view(vocab).size()) + merges;
    return {};
}

// The file that a path names, itself or as a directory.
std::string main_file(const std::string& path) {
    if (io::kind_of(path, io::Links::follow) != io::PathKind::directory) return path;
    const std::string json = io::join_path(path, "tokenizer.json"), vocab = io::join_path(path, "vocab.json");
    const bool pair = io::kind_of(json, io::Links::follow) == io::PathKind::missing &&
                      io::kind_of(vocab, io::Links::follow) == io::PathKind::file;
    return pair ? vocab : json;
}

tokenizer::Definition parse(const std::string& path, const std::string& pattern) {
    const std::string content = read(path);
    require(!content.empty(), ExitCode::data, "{} is empty", path);
    const bool json = content.find_first_not_of(" \t\r\n") == content.find('{');
    require(!json || pattern.empty(), ExitCode::usage, "{} is not a rank file, so a pattern has no effect",
            path);
    const std::string merges = merges_beside(path);
    if (json && !merges.empty())
        return tokenizer::parse_vocab_and_merges(content, path, read(merges), merges);
    if (json) return tokenizer::parse_tokenizer_json(content, path);
    // Its first field, a token, is a message of at least one byte.
    if (content.starts_with('\n') && content.find('\0') != std::string::npos)
        throw Error(ExitCode::data,
                    fmt::format("{} seems to be a SentencePiece model, which is not read", path),
                    "the tokenizer.json of the same model is");
    return tokenizer::parse_rank_file(content, path, pattern);
}

std::vector<std::string> special_names(const tokenizer::Tokenizer& tokenizer) {
    std::vector<std::string> names;
    for (const tokenizer::AddedToken& token : tokenizer.definition().added)
        if (token.special && names.size() < 8) names.push_back(token.content);
    return names;
}

int32_t boundary_of(const tokenizer::Tokenizer& tokenizer, const TokenizerOptions& options) {
    const std::string names =
        fmt::format("its special tokens: {}", one_line(join(special_names(tokenizer), ", ")));
    if (!options.boundary.empty()) {
        const std::optional<int32_t> id = tokenizer.find_added(options.boundary);
        if (!id)
            throw Error(ExitCode::usage,
                        fmt::format("{} has no added token {}", options.path, shown(options.boundary)),
                        names);
        return *id;
    }
    const std::optional<int32_t> id = tokenizer.document_boundary();
    if (!id)
        throw Error(ExitCode::usage,
                    fmt::format("{} has none of the usual tokens that begin a document", options.path),
                    "name one with --boundary; " + names);
    return *id;
}

}  // namespace

std::shared_ptr<const tokenizer::Tokenizer> load_tokenizer(const std::string& path,
                                                           const std::string& pattern) {
    return std::make_shared<const tokenizer::Tokenizer>(parse(main_file(path), pattern));
}

std::vector<KeptFile> tokenizer_files(const std::string& path) {
    const std::string file = main_file(path), merges = merges_beside(file);
    std::string content = read(file);
    if (content.find_first_not_of(" \t\r\n") != content.find('{')) return {};
    if (merges.empty()) return {{"tokenizer.json", std::move(content)}};
    return {{"vocab.json", std::move(content)}, {"merges.txt", read(merges)}};
}

bool keep_tokenizer(const std::string& path, const std::string& directory) {
    const std::vector<KeptFile> files = tokenizer_files(path);
    for (const KeptFile& file : files)
        io::write_file_atomically(io::join_path(directory, file.name), file.content);
    return !files.empty();
}

FileTokenizer open_tokenizer(const TokenizerOptions& options) {
    if (options.path.empty()) {
        require(options.pattern.empty() && options.boundary.empty(), ExitCode::usage,
                "--pattern and --boundary have no effect without --tokenizer");
        return {.header = byte_header()};
    }
    FileTokenizer result;
    result.tokenizer = load_tokenizer(options.path, options.pattern);
    const int64_t vocab = result.tokenizer->vocab_size();
    result.header = {.width = vocab <= 65536 ? 2 : 4,
                     .vocab = vocab,
                     .boundary_token = boundary_of(*result.tokenizer, options),
                     .side = BoundarySide::before,
                     .tokenizer = result.tokenizer->fingerprint()};
    const int32_t boundary = static_cast<int32_t>(result.header.boundary_token);
    result.description =
        fmt::format("tokenizer {}: {} tokens, fingerprint {}, {} ({}) before each document", options.path,
                    vocab, format_hash64(result.header.tokenizer),
                    one_line(result.tokenizer->decode(std::span(&boundary, 1), true)), boundary);
    return result;
}

}  // namespace longreach::data
