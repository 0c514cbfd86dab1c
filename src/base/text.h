// Small text helpers: UTF-8, quoting for messages, and the "did you mean" search.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace longreach {

// Length in bytes (1 to 4) of the well-formed UTF-8 sequence at the front of `text`; 0 if there is none.
// Overlong forms, surrogates and code points above U+10FFFF are not well formed.
size_t utf8_sequence(std::string_view text);

// True if all of `text` is well-formed UTF-8.
bool is_utf8(std::string_view text);

// Number of code points in well-formed UTF-8.
size_t utf8_length(std::string_view text);

// `text` in double quotes with JSON escapes, so that a message stays on one line and a terminal sees
// no control bytes. Cut after `max_chars` code points, marked with "..."; bytes that are not UTF-8
// are shown as \xNN.
std::string quoted(std::string_view text, size_t max_chars = 60);

// `text` without quotes, control characters and bytes that are not UTF-8 escaped as in quoted().
std::string one_line(std::string_view text);

// As quoted(), but a plain word (letters, digits, '_', '-', '.', '/') stays as it is.
std::string shown(std::string_view text, size_t max_chars = 60);

std::string join(const std::vector<std::string>& parts, std::string_view separator);

// "a", "a or b", "a, b or c".
std::string alternatives(const std::vector<std::string>& parts);

// "1 problem", "3 problems".
std::string counted(size_t count, std::string_view noun);

// Edits (insert, delete, replace a byte, swap two neighbours) that turn `a` into `b`;
// `limit + 1` if more than `limit`.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit);

// The candidates that may have been meant by `word`, best first, at most `count`: at most two
// edits away (fewer than the letters of the word), or one being a prefix of the other with at
// least three letters in common.
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& candidates,
                                 size_t count);

}  // namespace longreach
