#include "serve/template_lexer.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/text.h"
#include "serve/template_value.h"

namespace longreach::serve {

namespace {

using Word = TemplateToken::Kind;

constexpr int64_t largest_number = int64_t{1} << 53;

bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

void append_utf8(std::string& to, uint32_t c) {
    const auto add = [&](uint32_t byte) { to += static_cast<char>(byte); };
    if (c < 0x80) return add(c);
    if (c < 0x800) {
        add(0xC0 | c >> 6);
    } else {
        add(0xE0 | c >> 12);
        add(0x80 | (c >> 6 & 0x3F));
    }
    add(0x80 | (c & 0x3F));
}

class Lexer {
  public:
    explicit Lexer(std::string_view source) {
        // Jinja reads every line end as one character and drops that of the last line.
        for (size_t i = 0; i < source.size(); ++i) {
            const bool pair = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
            if (!pair) text_ += source[i] == '\r' ? '\n' : source[i];
        }
        if (text_.ends_with('\n')) text_.pop_back();
    }

    std::vector<TemplateToken> run() {
        while (at_ < text_.size()) {
            const size_t open = next_opening();
            const bool open_here = open < text_.size();
            const char what = open_here ? text_[open + 1] : ' ';
            const char sign = open_here && open + 2 < text_.size() ? text_[open + 2] : ' ';
            put_data(open, what, sign);
            move_to(open);
            if (!open_here) break;
            move_to(open + (sign == '-' || sign == '+' ? 3 : 2));
            if (what == '#') {
                skip_comment();
            } else {
                read_code(what == '{');
            }
        }
        add(Word::end, "");
        return std::move(tokens_);
    }

  private:
    [[noreturn]] void fail(const std::string& message) const { throw TemplateError(line_, message); }
    void add(Word kind, std::string text, int64_t number = 0) {
        tokens_.push_back({kind, std::move(text), number, line_});
    }
    void move_to(size_t to) {
        line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                             text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
        at_ = to;
    }
    bool follows(std::string_view what) const {
        return std::string_view(text_).substr(at_).starts_with(what);
    }

    size_t next_opening() const {
        for (size_t i = at_; i + 1 < text_.size(); ++i)
            if (text_[i] == '{' && (text_[i + 1] == '{' || text_[i + 1] == '%' || text_[i + 1] == '#'))
                return i;
        return text_.size();
    }

    // The text up to `open`, without the white space that what follows takes away.
    void put_data(size_t open, char what, char sign) {
        std::string_view data = std::string_view(text_).substr(at_, open - at_);
        if (open < text_.size() && sign == '-') {
            data = data.substr(0, without_space(data, false, true).second);
        } else if (open < text_.size() && sign != '+' && what != '{') {
            const size_t line = data.rfind('\n') + 1;  // 0 without one
            const std::string_view before = data.substr(line);
            const bool blank = without_space(before, false, true).second == 0;
            if ((line > 0 || line_starting_) && blank) data = data.substr(0, line);
        }
        if (!data.empty()) add(Word::data, std::string(data));
    }

    // Moves past a closing mark and the blanks that it strips; `removes_line`: and past the line break after it.
    void close(size_t length, bool strip, bool removes_line) {
        size_t end = at_ + length;
        if (strip) {
            end += without_space(std::string_view(text_).substr(end), true, false).first;
        } else if (removes_line && end < text_.size() && text_[end] == '\n') {
            ++end;
        }
        line_starting_ = text_[end - 1] == '\n';
        move_to(end);
    }

    void skip_comment() {
        const size_t end = text_.find("#}", at_);
        if (end == std::string::npos) fail("a comment has no end");
        const char sign = end > at_ ? text_[end - 1] : ' ';
        move_to(end);
        close(2, sign == '-', sign != '+');
    }

    // Up to the closing mark of an expression or a statement.
    void read_code(bool prints) {
        add(prints ? Word::print_begin : Word::block_begin, "");
        const std::string closing = prints ? "}}" : "%}";
        std::string open;  // brackets
        while (true) {
            move_to(at_ + without_space(std::string_view(text_).substr(at_), true, false).first);
            if (at_ >= text_.size()) fail(fmt::format("'{}' is missing", closing));
            if (open.empty()) {
                const bool strip = follows("-" + closing), keep = !prints && follows("+" + closing);
                if (strip || keep || follows(closing)) {
                    add(prints ? Word::print_end : Word::block_end, closing);
                    return close(strip || keep ? 3 : 2, strip, !prints && !keep);
                }
            }
            read_word(open);
        }
    }

    void read_word(std::string& open) {
        const char c = text_[at_];
        size_t end = at_ + 1;
        if (is_letter(c)) {
            while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
            add(Word::name, text_.substr(at_, end - at_));
        } else if (is_digit(c)) {
            int64_t number = c - '0';
            for (; end < text_.size() && is_digit(text_[end]); ++end)
                if ((number = number * 10 + (text_[end] - '0')) > largest_number)
                    fail("a number is too large");
            const char next = end < text_.size() ? text_[end] : ' ';
            const bool fraction = next == '.' && end + 1 < text_.size() && is_digit(text_[end + 1]);
            if (fraction || is_letter(next) || (c == '0' && end - at_ > 1))
                fail("numbers other than plain integers are not understood");
            add(Word::integer, text_.substr(at_, end - at_), number);
        } else if (c == '\'' || c == '"') {
            const int line = line_;
            std::string value = read_string(c, end);
            add(Word::string, std::move(value));
            tokens_.back().line = line;
        } else {
            end = at_ + read_symbol(open);
        }
        move_to(end);
    }

    size_t read_symbol(std::string& open) {
        for (const std::string_view two : {"==", "!=", ">=", "<=", "//", "**"})
            if (follows(two)) return add(Word::symbol, std::string(two)), 2;
        const char c = text_[at_];
        constexpr std::string_view openings = "([{", closings = ")]}";
        if (openings.find(c) != openings.npos) {
            open += c;
        } else if (const size_t which = closings.find(c); which != closings.npos) {
            if (open.empty() || open.back() != openings[which]) fail(fmt::format("'{}' closes nothing", c));
            open.pop_back();
        } else if (std::string_view("+-/*%~<>=.:|,").find(c) == std::string_view::npos) {
            const std::string_view rest = std::string_view(text_).substr(at_);
            fail(fmt::format("{} is not understood",
                             quoted(rest.substr(0, std::max<size_t>(utf8_sequence(rest), 1)))));
        }
        add(Word::symbol, std::string(1, c));
        return 1;
    }

    // The value of the string that begins here; end: the place after it.
    std::string read_string(char quote, size_t& end) const {
        std::string value;
        for (size_t i = at_ + 1; i < text_.size(); ++i) {
            if (text_[i] == quote) return end = i + 1, value;
            if (text_[i] != '\\') {
                value += text_[i];
            } else {
                ++i;
                append_escape(value, i);
            }
        }
        fail("a string has no end");
    }

    // The escape whose letter is at i, which moves to its last character.
    void append_escape(std::string& value, size_t& i) const {
        const char c = i < text_.size() ? text_[i] : ' ';
        constexpr std::string_view plain = "\\'\"", letters = "abfnrtv", values = "\a\b\f\n\r\t\v";
        if (plain.find(c) != plain.npos) return void(value += c);
        if (const size_t at = letters.find(c); at != letters.npos) return void(value += values[at]);
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 0;
        uint32_t code = 0;
        size_t read = 0;
        for (; read < digits && i + 1 + read < text_.size(); ++read) {
            const char digit = text_[i + 1 + read];
            const size_t v = std::string_view("0123456789abcdef")
                                 .find(is_letter(digit) ? static_cast<char>(digit | 32) : digit);
            if (v == std::string_view::npos) break;
            code = code * 16 + static_cast<uint32_t>(v);
        }
        if (digits == 0 || read < digits || (code >= 0xD800 && code < 0xE000))
            fail(fmt::format("the escape \\{} in a string is not understood", one_line(std::string(1, c))));
        append_utf8(value, code);
        i += digits;
    }

    std::string text_;
    size_t at_ = 0;
    int line_ = 1;
    bool line_starting_ = true;
    std::vector<TemplateToken> tokens_;
};

}  // namespace

std::vector<TemplateToken> template_tokens(std::string_view source) {
    if (!is_utf8(source)) throw TemplateError(1, "the template is not UTF-8");
    return Lexer(source).run();
}

}  // namespace longreach::serve
