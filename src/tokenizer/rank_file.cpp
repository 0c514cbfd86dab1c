#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/byte_text.h"
#include "tokenizer/formats.h"
#include "tokenizer/word_table.h"

namespace longreach::tokenizer {

namespace {

struct KnownPattern {
    const char *name, *regex;
};
constexpr KnownPattern patterns[] = {
    {"gpt2", gpt2_pattern},
    {"cl100k",
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)"},
    {"o200k",
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
     R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

// Files that OpenAI publishes: the pattern and the special token that the file itself does not hold.
struct KnownFile {
    std::string_view name, pattern;
    int32_t end_of_text;
};
constexpr KnownFile files[] = {{"r50k_base.tiktoken", "gpt2", 50256},
                               {"p50k_base.tiktoken", "gpt2", 50256},
                               {"cl100k_base.tiktoken", "cl100k", 100257},
                               {"o200k_base.tiktoken", "o200k", 199999}};

void read_line(std::string_view line, const std::string& file, int64_t number, int64_t most,
               Definition& definition) {
    // A file has 200,000 lines: messages are written for wrong ones alone.
    const auto refuse = [&](const std::string& what) {
        fail(ExitCode::data, "{} line {}: {}", file, number, what);
    };
    const size_t space = line.find(' ');
    if (space == std::string_view::npos) refuse("no \"base64 rank\"");
    std::optional<std::string> bytes = from_base64(line.substr(0, space));
    if (!bytes || bytes->empty()) refuse(quoted(line.substr(0, space)) + " is not base64");
    const std::string_view digits = line.substr(space + 1);
    int64_t rank = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc() || end != digits.data() + digits.size() || rank < 0 || rank > largest_token_id)
        refuse(fmt::format("{} is not a rank from 0 to {}", quoted(digits), largest_token_id));
    if (rank > most) refuse(fmt::format("rank {} in a file that has too few lines for it", rank));
    const size_t at = static_cast<size_t>(rank);
    if (at >= definition.tokens.size()) definition.tokens.resize(at + 1);
    if (definition.tokens[at]) refuse(fmt::format("another token has the rank {}", rank));
    definition.tokens[at] = std::move(*bytes);
}

// A pair merges if its bytes together are a token, whose rank is the merge's: each way to cut a token in two.
void make_merges(Definition& definition) {
    const std::vector<std::optional<std::string>>& tokens = definition.tokens;
    WordTable ids;
    for (size_t id = 0; id < tokens.size(); ++id) {
        if (!tokens[id]) continue;
        const WordTable::Key key = WordTable::key_of(*tokens[id], 0, tokens[id]->size());
        require(ids.find(key).numbers == nullptr, ExitCode::data, "{}: rank {} repeats a token",
                definition.source, id);
        ids.add(key, std::array{static_cast<int32_t>(id)});
    }
    for (size_t id = 0; id < tokens.size(); ++id)
        for (size_t cut = 1; tokens[id] && cut < tokens[id]->size(); ++cut) {
            const WordTable::Found left = ids.find(WordTable::key_of(*tokens[id], 0, cut));
            if (left.numbers == nullptr) continue;
            const WordTable::Found right = ids.find(WordTable::key_of(*tokens[id], cut, tokens[id]->size()));
            if (right.numbers != nullptr)
                definition.merges.push_back(
                    {{*left.numbers, *right.numbers, static_cast<int32_t>(id)}, static_cast<uint32_t>(id)});
        }
    std::sort(definition.merges.begin(), definition.merges.end(), [](const auto& a, const auto& b) {
        return std::pair(a.second, a.first.left) < std::pair(b.second, b.first.left);
    });
    for (int byte = 0; byte < 256; ++byte)
        require(ids.find(std::string(1, static_cast<char>(byte))).numbers != nullptr, ExitCode::data,
                "{}: no token for the single byte {}", definition.source, byte);
}

}  // namespace

Definition parse_rank_file(std::string_view text, const std::string& file, const std::string& pattern) {
    Definition definition;
    definition.source = file;
    definition.byte_level = true;
    definition.ignore_merges = true;
    const KnownFile* known = nullptr;
    for (const KnownFile& candidate : files)
        if (file.ends_with(candidate.name)) known = &candidate;
    std::string regex = pattern.empty() && known != nullptr ? std::string(known->pattern) : pattern;
    if (regex.empty())
        throw Error(ExitCode::usage, fmt::format("{} states no regular expression to split words with", file),
                    "name it: --pattern gpt2, cl100k, o200k or the expression");
    for (const KnownPattern& candidate : patterns)
        if (regex == candidate.name) regex = candidate.regex;
    definition.splits.emplace_back(PatternSplit{Pattern(regex, file)});
    // Ids may be missing, but memory is taken for all of them: most of a vocabulary is there.
    const int64_t most = 2 * std::count(text.begin(), text.end(), '\n') + 1024;
    for (int64_t line = 1; !text.empty(); ++line) {
        std::string_view row = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(row.size() + 1, text.size()));
        if (row.ends_with('\r')) row.remove_suffix(1);
        if (!row.empty()) read_line(row, file, line, most, definition);
    }
    make_merges(definition);
    // Without a known name, the end of text takes the first id that is free.
    const int32_t end =
        known != nullptr ? known->end_of_text : static_cast<int32_t>(definition.tokens.size());
    definition.added.push_back({.id = end, .content = "<|endoftext|>", .special = true});
    return definition;
}

}  // namespace longreach::tokenizer
