// What a tokenizer file defines, in whatever format it is written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/merge.h"
#include "tokenizer/unicode.h"

namespace longreach::tokenizer {

inline constexpr int64_t largest_token_id =
    (int64_t{1} << 21) - 1;  // bounds what a damaged file can allocate

// A token with a text of its own, found before words are made.
struct AddedToken {
    int32_t id = 0;
    std::string content;
    bool single_word = false;                      // only where no word character is next to it
    bool strip_left = false, strip_right = false;  // takes the white space next to it
    bool normalized = false;                       // found in the normalised text, not in the original
    bool special = false;                          // controls the model, stands for no text
};

struct Prepend {
    std::string text;
};
struct Replace {
    Pattern pattern;
    std::string content;
};
using NormalizerStep = std::variant<NormalForm, Prepend, Replace>;

// What becomes of the matches of a splitting pattern.
enum class SplitBehaviour { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct PatternSplit {
    Pattern pattern;
    SplitBehaviour behaviour = SplitBehaviour::isolated;
    bool invert = false;  // the text between the matches counts as the matches
};
struct PrefixSpace {};  // a space before each piece that does not begin with one
enum class PrependScheme { always, first, never };
struct Metaspace {
    std::string replacement;  // of each space
    PrependScheme prepend = PrependScheme::always;
    bool split = true;  // before each replacement
};
using SplitStep = std::variant<PatternSplit, PrefixSpace, Metaspace>;

struct DecodeRules {
    std::vector<std::pair<std::string, std::string>> replacements = {};  // in each token
    bool byte_fallback = false;                                          // <0x41> is byte 0x41
    std::string strip = {};  // removed from the front of a text, up to strip_count times
    int64_t strip_count = 0;
};

// Everything a tokenizer file defines.
struct Definition {
    std::string source = {};  // the file, for messages
    std::vector<NormalizerStep> normalizer = {};
    std::vector<SplitStep> splits = {};
    bool byte_level = false;  // words are sequences of bytes, otherwise of characters

    // By id: the bytes of a byte-level token, the text of any other. An id without a token has none.
    std::vector<std::optional<std::string>> tokens = {};
    // Tokens of a byte-level vocabulary that are not spelled in its alphabet, by id: no word becomes one.
    std::vector<std::pair<int32_t, std::string>> names = {};
    std::vector<std::pair<Merge, uint32_t>> merges = {};  // with their ranks
    bool ignore_merges = false;                           // a word that is a token is that token
    bool byte_fallback = false;                           // a character that is no token becomes <0xNN>...
    std::optional<int32_t> unknown = {};                  // ...or this token
    bool fuse_unknown = false;                            // one for several in a row
    std::vector<AddedToken> added = {};
    DecodeRules decode = {};
};

}  // namespace longreach::tokenizer
