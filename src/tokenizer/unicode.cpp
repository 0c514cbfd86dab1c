#include "tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"

namespace longreach::tokenizer {

namespace {

constexpr size_t jit_stack_first = size_t{32} << 10, jit_stack_last = size_t{64} << 20;
constexpr const char* white_space =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// The expression with \s and \S spelled out.
std::string to_pcre2(const std::string& regex, const std::string& where) {
    std::string out;
    bool in_class = false;
    for (size_t i = 0; i < regex.size(); ++i) {
        const char c = regex[i];
        if (c == '\\' && i + 1 < regex.size()) {
            const char escaped = regex[++i];
            require(std::string_view("wWbBhHRXKQECG").find(escaped) == std::string_view::npos &&
                        !(in_class && escaped == 'S'),
                    ExitCode::data, "{}: \\{}{} in the regular expression {} is not supported", where,
                    escaped, in_class ? " inside a class" : "", quoted(regex));
            if (escaped == 's') {
                out += in_class ? white_space : fmt::format("[{}]", white_space);
            } else if (escaped == 'S') {
                out += fmt::format("[^{}]", white_space);
            } else {
                out += {c, escaped};
            }
            continue;
        }
        if (c == '[') {
            require(!in_class, ExitCode::data,
                    "{}: a class inside a class of the regular expression {} is not supported", where,
                    quoted(regex));
            in_class = true;
        } else if (c == ']') {
            in_class = false;
        }
        out += c;
    }
    return out;
}

}  // namespace

struct Pattern::Code {
    pcre2_code* code = nullptr;
    bool compiled = false;  // to machine code
    ~Code() { pcre2_code_free(code); }
};

Pattern::Pattern(const std::string& regex, const std::string& where) : source_(regex) {
    const std::string translated = to_pcre2(regex, where);
    int error = 0;
    size_t offset = 0;
    auto code = std::make_shared<Code>();
    code->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                               PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C, &error,
                               &offset, nullptr);
    if (code->code == nullptr) {
        std::array<PCRE2_UCHAR, 256> message{};
        pcre2_get_error_message(error, message.data(), message.size());
        fail(ExitCode::data, "{}: the regular expression {} is malformed: {}", where, quoted(regex),
             reinterpret_cast<const char*>(message.data()));
    }
    // A system that forbids machine code made at run time gets the interpreter.
    code->compiled = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
    code_ = std::move(code);
}

Pattern Pattern::literal(const std::string& text, const std::string& where) {
    std::string regex;
    for (const char c : text) {
        const bool plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                           static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(c) <= 32;
        if (!plain) regex += '\\';
        regex += c;
    }
    return Pattern(regex, where);
}

struct Matcher::State {
    pcre2_match_data* data = nullptr;
    pcre2_match_context* context = nullptr;
    pcre2_jit_stack* stack = nullptr;
    ~State() {
        pcre2_match_data_free(data);
        pcre2_match_context_free(context);
        pcre2_jit_stack_free(stack);
    }
};

Matcher::Matcher(const Pattern& pattern) : pattern_(pattern), state_(std::make_unique<State>()) {
    state_->data = pcre2_match_data_create_from_pattern(pattern_.code_->code, nullptr);
    state_->context = pcre2_match_context_create(nullptr);
    if (pattern_.code_->compiled)
        state_->stack = pcre2_jit_stack_create(jit_stack_first, jit_stack_last, nullptr);
    check(state_->data != nullptr && state_->context != nullptr, "no memory for a regular expression");
    if (state_->stack != nullptr) pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
}

Matcher::Matcher(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

bool Matcher::find(std::string_view text, size_t at, size_t& begin, size_t& end) {
    const Pattern::Code& code = *pattern_.code_;
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    while (at < text.size()) {
        // Checking the text again at each of its matches would make the time quadratic.
        const int found = code.compiled ? pcre2_jit_match(code.code, subject, text.size(), at, 0,
                                                          state_->data, state_->context)
                                        : pcre2_match(code.code, subject, text.size(), at, PCRE2_NO_UTF_CHECK,
                                                      state_->data, state_->context);
        if (found == PCRE2_ERROR_NOMATCH) return false;
        if (found < 0) {
            std::array<PCRE2_UCHAR, 256> message{};
            pcre2_get_error_message(found, message.data(), message.size());
            fail(ExitCode::data, "the regular expression {} gives up on a text of {} bytes at byte {}: {}",
                 quoted(pattern_.source()), text.size(), at, reinterpret_cast<const char*>(message.data()));
        }
        const size_t* bounds = pcre2_get_ovector_pointer(state_->data);
        begin = bounds[0];
        end = bounds[1];
        if (end > begin) return true;
        at = begin + (begin < text.size() ? utf8_sequence(text.substr(begin)) : 1);
    }
    return false;
}

std::string normalize(std::string_view text, NormalForm form) {
    // Below U+0300 nothing composes, and what is composed there stays so.
    const auto below_300 = [](char c) { return static_cast<unsigned char>(c) < 0xCC; };
    const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    if (form == NormalForm::nfc ? std::all_of(text.begin(), text.end(), below_300)
                                : std::all_of(text.begin(), text.end(), ascii))
        return std::string(text);
    const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
    int options = UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
    if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
    utf8proc_uint8_t* result = nullptr;
    const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &result,
                                               static_cast<utf8proc_option_t>(options));
    require(size >= 0, ExitCode::data, "a text of {} bytes has no normal form: {}", text.size(),
            utf8proc_errmsg(size));
    std::string normal(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
    std::free(result);
    return normal;
}

bool is_word_character(uint32_t code_point) {
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
    return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
           category == UTF8PROC_CATEGORY_PC || code_point == 0x200C || code_point == 0x200D;
}

bool unicode_available() {
    return true;
}

}  // namespace longreach::tokenizer
