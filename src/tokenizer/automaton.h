// Splitting expressions as tables: a row for what has been read of a match, a column for each kind of character.
//
// Only these forms are taken: alternatives, groups, classes of ASCII characters, general categories and \s, \S, greedy and
// possessive counts, (?i:...), (?!\S), $. The match is that of a backtracking matcher, of the first alternative that can,
// and is found without going back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/symbols.h"

namespace longreach::tokenizer {

class Automaton {
  public:
    // Empty for an expression of another form, and for one that matches nothing somewhere or whose failing to match
    // cannot be seen after a few characters.
    static std::optional<Automaton> of(std::string_view regex);

    // The end of the match at `at` in well-formed UTF-8; `at` if there is none.
    size_t match(std::string_view text, size_t at, Symbols& symbols) const;

  private:
    friend class AutomatonBuilder;
    static constexpr size_t width = 64;  // kinds of characters
    static constexpr uint16_t matched = 1;
    std::array<uint8_t, Symbols::count> kinds_{};  // by symbol
    // By row and kind: `width` times the next row, 0 if there is none; `matched` is added if a match ends before this
    // character. Row 1 is the first.
    std::vector<uint16_t> next_;
};

}  // namespace longreach::tokenizer
