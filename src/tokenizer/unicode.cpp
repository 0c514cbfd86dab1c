#include "tokenizer/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/interruption.h"
#include "base/text.h"
#include "tokenizer/automaton.h"
#include "tokenizer/byte_text.h"

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

constexpr size_t normalized_at_once = size_t{1} << 16;  // bytes, and what follows up to an ASCII character

class Normalizer {
  public:
    explicit Normalizer(NormalForm form) {
        const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
        int options = UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
        if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
        options_ = static_cast<utf8proc_option_t>(options);
    }
    void append(std::string_view text, std::string& to);

  private:
    static constexpr size_t classes = 256, longest_decomposition = 32;  // Unicode's longest has 18
    static size_t class_of(utf8proc_int32_t point) {
        return static_cast<size_t>(utf8proc_get_property(point)->combining_class);
    }
    void decompose(std::string_view text);
    void sort_marks(size_t begin);

    utf8proc_option_t options_;
    std::vector<utf8proc_int32_t> points_, marks_;
};

}  // namespace

struct Pattern::Code {
    pcre2_code* code = nullptr;
    bool compiled = false;  // to machine code
    std::optional<Automaton> automaton;
    ~Code() { pcre2_code_free(code); }

    static std::shared_ptr<const Code> of(const std::string& regex, const std::string& where);
};

// An expression that somebody uses is not compiled again: that takes milliseconds.
Pattern::Pattern(const std::string& regex, const std::string& where) : source_(regex) {
    static std::mutex mutex;
    static std::map<std::string, std::weak_ptr<const Code>> in_use;
    const std::lock_guard lock(mutex);
    std::erase_if(in_use, [](const auto& entry) { return entry.second.expired(); });
    code_ = in_use[regex].lock();
    if (code_ == nullptr) in_use[regex] = code_ = Code::of(regex, where);
}

std::shared_ptr<const Pattern::Code> Pattern::Code::of(const std::string& regex, const std::string& where) {
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
    code->automaton = Automaton::of(regex);
    return code;
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

bool Pattern::has_automaton() const {
    return code_->automaton.has_value();
}

struct Symbols::Categories {
    pcre2_code* code = nullptr;
    pcre2_match_data* data = nullptr;
    ~Categories() {
        pcre2_match_data_free(data);
        pcre2_code_free(code);
    }
};

Symbols::Symbols() : blocks_(0x110000 / block_size), known_(block_size) {}
Symbols::Symbols(Symbols&&) noexcept = default;
Symbols::~Symbols() = default;

// The categories are PCRE2's own: a table and an expression for it agree, whatever its version of Unicode.
size_t Symbols::learn(uint32_t code_point) {
    if (!categories_) {
        std::string regex;
        for (const std::string_view name : general_categories) regex += fmt::format("|(\\p{{{}}})", name);
        int error = 0;
        size_t offset = 0;
        categories_ = std::make_unique<Categories>();
        categories_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data() + 1), regex.size() - 1,
                                          PCRE2_UTF, &error, &offset, nullptr);
        check(categories_->code != nullptr, "an expression for {} categories", general_categories.size());
        categories_->data = pcre2_match_data_create_from_pattern(categories_->code, nullptr);
        check(categories_->data != nullptr, "no memory for a regular expression");
    }
    const uint32_t block = code_point / block_size;
    blocks_[block] = static_cast<uint16_t>(known_.size() / block_size);
    for (uint32_t point = block * block_size; point < (block + 1) * block_size; ++point) {
        std::string text;
        append_utf8(text, point);
        const int group = is_utf8(text)
                              ? pcre2_match(categories_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                            text.size(), 0, 0, categories_->data, nullptr)
                              : 2;  // a surrogate, which no text holds
        check(group >= 2, "U+{:04X} has no category", point);
        const size_t symbol =
            first_category + 2 * static_cast<size_t>(group - 2) + (is_white_space(point) ? 1 : 0);
        known_.push_back(static_cast<uint8_t>(point == 0x17F ? long_s : symbol));
    }
    return known_[blocks_[block] * block_size + code_point % block_size];
}

struct Matcher::State {
    pcre2_match_data* data = nullptr;
    pcre2_match_context* context = nullptr;
    pcre2_jit_stack* stack = nullptr;
    Symbols symbols;  // for the automaton
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
    for (; code.automaton && at < text.size(); at += utf8_sequence(text.substr(at))) {
        end = code.automaton->match(text, at, state_->symbols);
        begin = at;
        if (end > begin) return true;
    }
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

// Marks in order of their class, those of one class as they came: in time linear in the marks, where utf8proc's own
// order takes their square.
void Normalizer::sort_marks(size_t begin) {
    const auto by_class = [](auto a, auto b) { return class_of(a) < class_of(b); };
    const auto from = points_.begin() + static_cast<std::ptrdiff_t>(std::min(begin, points_.size()));
    if (std::is_sorted(from, points_.end(), by_class)) return;
    std::array<size_t, classes + 1> place{};
    for (size_t i = begin; i < points_.size(); ++i) ++place[class_of(points_[i]) + 1];
    std::partial_sum(place.begin(), place.end(), place.begin());
    marks_.resize(points_.size() - begin);
    for (size_t i = begin; i < points_.size(); ++i) marks_[place[class_of(points_[i])]++] = points_[i];
    std::copy(marks_.begin(), marks_.end(), from);
}

void Normalizer::decompose(std::string_view text) {
    points_.clear();
    size_t marks = 0;  // where the run of marks at the end begins
    for (size_t at = 0; at < text.size(); at += utf8_sequence(text.substr(at))) {
        heed_interruption();
        std::array<utf8proc_int32_t, longest_decomposition> parts{};
        const utf8proc_ssize_t count = utf8proc_decompose_char(
            static_cast<utf8proc_int32_t>(code_point_at(text.substr(at))), parts.data(),
            static_cast<utf8proc_ssize_t>(parts.size()), options_, nullptr);
        require(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()), ExitCode::data,
                "a text of {} bytes has no normal form: {}", text.size(), utf8proc_errmsg(count));
        for (utf8proc_ssize_t i = 0; i < count; ++i) {
            const utf8proc_int32_t point = parts[static_cast<size_t>(i)];
            if (class_of(point) == 0) {
                sort_marks(marks);
                marks = points_.size() + 1;
            }
            points_.push_back(point);
        }
    }
    sort_marks(marks);
}

void Normalizer::append(std::string_view text, std::string& to) {
    decompose(text);
    const utf8proc_ssize_t count =
        utf8proc_normalize_utf32(points_.data(), static_cast<utf8proc_ssize_t>(points_.size()), options_);
    require(count >= 0, ExitCode::data, "a text of {} bytes has no normal form: {}", text.size(),
            utf8proc_errmsg(count));
    std::array<utf8proc_uint8_t, 4> bytes{};
    for (utf8proc_ssize_t i = 0; i < count; ++i)
        to.append(reinterpret_cast<const char*>(bytes.data()),
                  static_cast<size_t>(utf8proc_encode_char(points_[static_cast<size_t>(i)], bytes.data())));
}

std::string normalize(std::string_view text, NormalForm form) {
    // Below U+0300 nothing composes, and what is composed there stays so.
    const auto below_300 = [](char c) { return static_cast<unsigned char>(c) < 0xCC; };
    const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
    if (form == NormalForm::nfc ? std::all_of(text.begin(), text.end(), below_300)
                                : std::all_of(text.begin(), text.end(), ascii))
        return std::string(text);
    Normalizer normalizer(form);
    std::string normal;
    while (!text.empty()) {
        // Nothing composes or changes its place across the front of an ASCII character.
        size_t end = std::min(text.size(), normalized_at_once);
        while (end < text.size() && !ascii(text[end])) ++end;
        normalizer.append(text.substr(0, end), normal);
        text.remove_prefix(end);
    }
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
