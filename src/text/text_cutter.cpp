#include "text/text_cutter.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "tokenizer/byte_text.h"
#include "tokenizer/split.h"

namespace longreach::text {

namespace {

using tokenizer::NormalForm;
using tokenizer::SplitBehaviour;

constexpr size_t part_bytes = size_t{1} << 20;  // a part is at least this long

// Of the patterns of GPT-2, cl100k, o200k, Llama 3 and Qwen 2, and of the digits that a step of its own splits off.
constexpr std::string_view known_alternatives[] = {
    "'s",
    "'t",
    "'re",
    "'ve",
    "'m",
    "'ll",
    "'d",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    "'(?i:[sdmt]|ll|ve|re)",
    R"( ?\p{L}+)",
    R"([^\r\n\p{L}\p{N}]?\p{L}+)",
    R"([^\r\n\p{L}\p{N}]?+\p{L}++)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)",
    R"( ?\p{N}+)",
    R"(\p{N})",
    R"(\p{N}+)",
    R"(\p{N}{1,3})",
    R"(\p{N}{1,3}+)",
    R"( ?[^\s\p{L}\p{N}]+)",
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*)",
    R"( ?[^\s\p{L}\p{N}]++[\r\n]*+)",
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*)",
    R"(\s*[\r\n]+)",
    R"(\s*[\r\n])",
    R"(\s++$)",
    R"(\s+(?!\S))",
    R"(\s+)",
    R"(\s)"};

// The alternatives of a regular expression at its outermost level.
std::vector<std::string_view> alternatives_of(std::string_view regex) {
    std::vector<std::string_view> parts;
    size_t begin = 0;
    int depth = 0;
    bool in_class = false;
    for (size_t i = 0; i < regex.size(); ++i) {
        const char c = regex[i];
        if (c == '\\') {
            ++i;
        } else if (c == '[' || c == ']') {
            in_class = c == '[';
        } else if (!in_class && (c == '(' || c == ')')) {
            depth += c == '(' ? 1 : -1;
        } else if (!in_class && depth == 0 && c == '|') {
            parts.push_back(regex.substr(begin, i - begin));
            begin = i + 1;
        }
    }
    parts.push_back(regex.substr(begin));
    return parts;
}

bool is_ascii_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_white(char c) {
    return c == ' ' || c == '\n';
}

// Letters of every version of Unicode: Greek, Cyrillic, Hebrew, Arabic, kana, ideographs, Hangul.
bool is_known_letter(uint32_t c) {
    constexpr std::array<std::pair<uint32_t, uint32_t>, 9> ranges{{{0x3B1, 0x3C9},
                                                                   {0x410, 0x44F},
                                                                   {0x5D0, 0x5EA},
                                                                   {0x621, 0x63A},
                                                                   {0x641, 0x64A},
                                                                   {0x3041, 0x3096},
                                                                   {0x30A1, 0x30FA},
                                                                   {0x4E00, 0x9FA5},
                                                                   {0xAC00, 0xD7A3}}};
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const auto& range) { return c >= range.first && c <= range.second; });
}

// Whether the text ends in a letter or digit that is known to be one.
bool ends_in_word(std::string_view text) {
    const char last = text.back();
    if (static_cast<unsigned char>(last) < 0x80) return is_ascii_letter(last) || (last >= '0' && last <= '9');
    for (const size_t size : {size_t{2}, size_t{3}}) {
        if (text.size() < size) return false;
        const std::string_view letter = text.substr(text.size() - size);
        if (tokenizer::well_formed_prefix(letter) == size && static_cast<unsigned char>(letter[0]) >= 0xC0)
            return is_known_letter(tokenizer::code_point_at(letter));
    }
    return false;
}

// Whether an added token reaches across no place of a cut.
bool stays_on_one_side(std::string_view content) {
    for (size_t at = 1; at < content.size(); ++at)
        if (is_white(content[at]) && ends_in_word(content.substr(0, at))) return false;
    return true;
}

struct Effect {
    bool proven = false, ends_words = false, marks_fronts = false;
};

Effect effect_of(const tokenizer::SplitStep& step) {
    if (std::holds_alternative<tokenizer::PrefixSpace>(step)) return {true, false, true};
    if (const auto* metaspace = std::get_if<tokenizer::Metaspace>(&step))
        return {metaspace->split && metaspace->replacement == "\u2581", metaspace->split, true};
    const auto& split = std::get<tokenizer::PatternSplit>(step);
    const bool pieces_are_matches = split.behaviour == SplitBehaviour::isolated ||
                                    (split.behaviour == SplitBehaviour::removed && split.invert);
    const std::vector<std::string_view> parts = alternatives_of(split.pattern.source());
    const auto is_known = [](std::string_view part) {
        return std::find(std::begin(known_alternatives), std::end(known_alternatives), part) !=
               std::end(known_alternatives);
    };
    const bool matches_white = std::any_of(parts.begin(), parts.end(), [](std::string_view part) {
        return part == R"(\s+)" || part == R"(\s)";
    });
    return {pieces_are_matches && std::all_of(parts.begin(), parts.end(), is_known), matches_white, false};
}

}  // namespace

Cuts cuts_of(const tokenizer::Definition& definition) {
    bool ends_words = false, spaces_only = false;
    for (const auto& step : definition.normalizer) {
        const auto* form = std::get_if<tokenizer::NormalForm>(&step);
        if (form == nullptr) return Cuts::nowhere;
        // A letter may become a letter and a mark, and some patterns match a newline with a mark before it.
        spaces_only = spaces_only || *form == NormalForm::nfd || *form == NormalForm::nfkd;
    }
    tokenizer::Rewriter rewriter(definition.normalizer);
    for (const tokenizer::AddedToken& token : definition.added) {
        std::string scratch;
        const bool takes_neighbours = token.single_word || token.strip_left || token.strip_right;
        if ((takes_neighbours && !token.special) || !stays_on_one_side(token.content) ||
            !stays_on_one_side(rewriter.rewrite(token.content, scratch)))
            return Cuts::nowhere;
    }
    for (const tokenizer::SplitStep& step : definition.splits) {
        const Effect effect = effect_of(step);
        if (!effect.proven) return Cuts::nowhere;
        ends_words = ends_words || effect.ends_words;
        spaces_only = spaces_only || effect.marks_fronts;  // a piece that begins with a space gets no other
    }
    if (!ends_words) return Cuts::nowhere;
    return spaces_only ? Cuts::before_spaces : Cuts::before_spaces_and_newlines;
}

bool may_cut(Cuts cuts, std::string_view text, size_t at) {
    if (cuts == Cuts::nowhere || at == 0 || at >= text.size()) return false;
    const bool kind = text[at] == ' ' || (text[at] == '\n' && cuts == Cuts::before_spaces_and_newlines);
    return kind && ends_in_word(text.substr(0, at));
}

void TextCutter::add(std::string_view text, const std::function<void(std::string)>& send) {
    while (!text.empty()) {
        const size_t taken = std::min(text.size(), part_bytes);
        text_ += text.substr(0, taken);
        text.remove_prefix(taken);
        if (cuts_ == Cuts::nowhere || text_.size() < part_bytes) continue;
        const size_t cut = last_cut();
        searched_ = text_.size() - cut;
        if (cut == 0) continue;
        std::string rest = text_.substr(cut);
        text_.resize(cut);
        send(std::exchange(text_, std::move(rest)));
    }
}

size_t TextCutter::last_cut() const {
    for (size_t at = text_.size() - 1; at >= searched_; --at)
        if (may_cut(cuts_, text_, at)) return at;
    return 0;
}

std::string TextCutter::take_rest() {
    searched_ = 1;
    return std::exchange(text_, {});
}

}  // namespace longreach::text
