// What tokenizers need of Unicode and regular expressions: the only door to PCRE2 and utf8proc. In a program built
// without them everything here throws Error(ExitCode::usage).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace longreach::tokenizer {

// A regular expression as tokenizer files write them, for PCRE2 with UTF and Unicode classes. `\s` is White_Space
// (PCRE2's own has one character more) and `$` the very end. Shared by threads.
class Pattern {
  public:
    // `where` begins the message of an expression that is refused: it is malformed, or holds an escape whose meaning
    // differs between the libraries that tokenizers use (\w, \b, \h and their negations).
    Pattern(const std::string& regex, const std::string& where);
    static Pattern literal(const std::string& text, const std::string& where);

    const std::string& source() const { return source_; }
    bool has_automaton() const;  // the matches are found without PCRE2

  private:
    friend class Matcher;
    Pattern() = default;
    struct Code;
    std::string source_;
    std::shared_ptr<const Code> code_;
};

// Finds matches of one pattern; belongs to one thread.
class Matcher {
  public:
    explicit Matcher(const Pattern& pattern);
    Matcher(Matcher&&) noexcept;
    Matcher& operator=(Matcher&&) = delete;
    ~Matcher();

    // The next match that is not empty at or after `at` in well-formed UTF-8; false if there is none.
    bool find(std::string_view text, size_t at, size_t& begin, size_t& end);

  private:
    struct State;
    Pattern pattern_;
    std::unique_ptr<State> state_;
};

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// Well-formed UTF-8 in a normal form.
std::string normalize(std::string_view text, NormalForm form);

// Letters, marks, digits, connecting punctuation and joiners: what a "word" consists of.
bool is_word_character(uint32_t code_point);

bool unicode_available();

}  // namespace longreach::tokenizer
