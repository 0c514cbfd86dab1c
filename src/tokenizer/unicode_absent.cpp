// A program without PCRE2 and utf8proc.
#include "base/error.h"
#include "tokenizer/symbols.h"
#include "tokenizer/unicode.h"

namespace longreach::tokenizer {

namespace {

[[noreturn]] void refuse() {
    throw Error(ExitCode::usage, "this program was built without PCRE2 and utf8proc, which tokenizers need",
                "install libpcre2-dev and libutf8proc-dev (tools/setup), configure again and build");
}

}  // namespace

struct Pattern::Code {};
struct Matcher::State {};

Pattern::Pattern(const std::string&, const std::string&) {
    refuse();
}

Pattern Pattern::literal(const std::string&, const std::string&) {
    refuse();
}

bool Pattern::has_automaton() const {
    refuse();
}

struct Symbols::Categories {};

Symbols::Symbols() = default;
Symbols::Symbols(Symbols&&) noexcept = default;
Symbols::~Symbols() = default;

size_t Symbols::learn(uint32_t) {
    refuse();
}

Matcher::Matcher(const Pattern& pattern) : pattern_(pattern) {
    refuse();
}

Matcher::Matcher(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

bool Matcher::find(std::string_view, size_t, size_t&, size_t&) {
    refuse();
}

std::string normalize(std::string_view, NormalForm) {
    refuse();
}

bool is_word_character(uint32_t) {
    refuse();
}

bool unicode_available() {
    return false;
}

}  // namespace longreach::tokenizer
