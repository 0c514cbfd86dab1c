#include <charconv>
#include <cstring>

#include "base/json.h"
#include "base/text.h"

namespace longreach::json {
namespace {

class Parser {
  public:
    Parser(std::string_view text, std::string_view file, const ParseOptions& options)
        : file_(file), options_(options), next_(text.data()), end_(next_ + text.size()), line_start_(next_) {}

    Value document() {
        const std::string_view text(next_, end_ - next_);
        if (text.size() > options_.max_bytes) refuse("the text is larger than {} bytes", options_.max_bytes);
        if (text.starts_with("\xEF\xBB\xBF"))
            refuse("byte order mark at the start: save the file as UTF-8 without it");
        skip_space();
        Value root = value(0);
        skip_space();
        if (next_ != end_) refuse("text after the end of the document: {}", found());
        return root;
    }

  private:
    template <class... Args>
    [[noreturn]] void refuse_at(Position at, fmt::format_string<Args...> format, Args&&... args) const {
        throw Error(options_.code, fmt::format("{}:{}:{}: {}", file_, at.line, at.column,
                                               fmt::format(format, std::forward<Args>(args)...)));
    }

    template <class... Args>
    [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
        refuse_at(here(), format, std::forward<Args>(args)...);
    }

    Position here() const { return at(next_); }
    // Of a place on the current line, with no character of several bytes between it and next_.
    Position at(const char* place) const {
        return {line_, static_cast<int>(place - line_start_ - extra_bytes_) + 1, options_.source};
    }

    bool done() const { return next_ == end_; }
    bool sees(char c) const { return next_ != end_ && *next_ == c; }
    bool sees(std::string_view word) const { return std::string_view(next_, end_ - next_).starts_with(word); }
    bool sees_digit() const { return next_ != end_ && *next_ >= '0' && *next_ <= '9'; }

    // Describes the text at next_.
    std::string found() const {
        if (done()) return "found the end of the text";
        if (*next_ == '\0') return "found a NUL byte";
        const std::string_view rest(next_, end_ - next_);
        const size_t length = utf8_sequence(rest);
        if (length == 0)
            return fmt::format("found byte 0x{:02x}, which is not UTF-8", static_cast<unsigned char>(*next_));
        if (length == 1 && (*next_ < 0x20 || *next_ == 0x7F))
            return fmt::format("found control character 0x{:02x}", static_cast<int>(*next_));
        return fmt::format("found '{}'", rest.substr(0, length));
    }

    void new_line() {
        ++next_;
        ++line_;
        line_start_ = next_;
        extra_bytes_ = 0;
    }

    // Steps over one character of several bytes.
    void wide_character() {
        const size_t length = utf8_sequence({next_, static_cast<size_t>(end_ - next_)});
        if (length == 0) refuse("{}", found());
        next_ += length;
        extra_bytes_ += static_cast<ptrdiff_t>(length) - 1;
    }

    void skip_space() {
        while (!done()) {
            if (*next_ == '\n') {
                new_line();
            } else if (*next_ == ' ' || *next_ == '\t' || *next_ == '\r') {
                ++next_;
            } else if (*next_ == '/') {
                comment();
            } else {
                return;
            }
        }
    }

    void comment() {
        if (!options_.comments) refuse("comments are not allowed here");
        if (!sees("//")) refuse("a comment begins with // and ends with the line");
        while (!done() && *next_ != '\n') {
            const unsigned char c = *next_;
            if (c >= 0x80) {
                wide_character();
            } else if (c < 0x20 && c != '\t' && c != '\r') {
                refuse("{} in a comment", found());
            } else {
                ++next_;
            }
        }
    }

    Value value(int depth) {
        const Position start = here();
        Value out;
        if (done()) refuse("expected a value, found the end of the text");
        switch (*next_) {
            case '{':
                out = object(depth + 1);
                break;
            case '[':
                out = array(depth + 1);
                break;
            case '"':
                out = Value(string());
                break;
            case '-':
            case '0':
            case '1':
            case '2':
            case '3':
            case '4':
            case '5':
            case '6':
            case '7':
            case '8':
            case '9':
                out = number();
                break;
            default:
                out = word();
        }
        out.set_position(start);
        return out;
    }

    Value word() {
        const char* last = next_;
        auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
        while (last != end_ && is_letter(*last)) ++last;
        const std::string_view name(next_, last - next_);
        if (name.empty()) {
            if (sees('\'')) refuse("strings are written in double quotes");
            if (sees(']') || sees('}')) refuse("expected a value, {} (is there a comma too many?)", found());
            if (sees('+') || sees('.')) refuse("a number begins with a digit or '-', {}", found());
            refuse("expected a value, {}", found());
        }
        const Value out = name == "true" ? Value(true) : name == "false" ? Value(false) : Value();
        if (out.is_null() && name != "null") {
            if (name == "NaN" || name == "Infinity") refuse("{} is not a number JSON can hold", name);
            refuse("expected a value, found the word {} (strings are written in double quotes)", shown(name));
        }
        next_ = last;
        return out;
    }

    Value number() {
        const char* start = next_;
        bool real = false;
        if (sees('-')) ++next_;
        if (sees("NaN") || sees("Infinity"))
            refuse_at(at(start), "-{} is not a number JSON can hold", sees('N') ? "NaN" : "Infinity");
        if (!sees_digit()) refuse("expected a digit after '-', {}", found());
        if (sees('0')) {
            ++next_;
            if (sees_digit()) refuse_at(at(start), "a number must not begin with 0");
        }
        digits();
        if (sees('.')) {
            real = true;
            ++next_;
            if (!sees_digit()) refuse("expected a digit after the decimal point, {}", found());
            digits();
        }
        if (sees('e') || sees('E')) {
            real = true;
            ++next_;
            if (sees('+') || sees('-')) ++next_;
            if (!sees_digit()) refuse("expected a digit in the exponent, {}", found());
            digits();
        }
        const std::string_view text(start, next_ - start);
        if (!real && text != "-0") {  // -0 keeps its sign only as a real
            int64_t i = 0;
            if (std::from_chars(start, next_, i).ec == std::errc()) return i;
            uint64_t u = 0;
            if (*start != '-' && std::from_chars(start, next_, u).ec == std::errc()) return u;
            refuse_at(at(start), "the integer {} does not fit 64 bits", cut(text));
        }
        double d = 0;
        if (std::from_chars(start, next_, d).ec != std::errc())
            refuse_at(at(start), "the number {} does not fit a 64-bit real", cut(text));
        return d;
    }

    void digits() {
        while (sees_digit()) ++next_;
    }

    static std::string cut(std::string_view number) {
        return number.size() <= 40 ? std::string(number) : fmt::format("{}...", number.substr(0, 40));
    }

    std::string string() {
        const Position start = here();
        ++next_;
        std::string out;
        while (true) {
            const char* run = next_;
            while (next_ != end_ && *next_ != '"' && *next_ != '\\' &&
                   static_cast<unsigned char>(*next_) >= 0x20) {
                if (static_cast<unsigned char>(*next_) < 0x80) {
                    ++next_;
                } else {
                    wide_character();
                }
            }
            out.append(run, next_);
            if (done() || *next_ == '\n') refuse_at(start, "this string has no closing quote on its line");
            if (*next_ == '"') {
                ++next_;
                return out;
            }
            if (*next_ != '\\') refuse("{} in a string: write it as an escape", found());
            escape(out);
        }
    }

    void escape(std::string& out) {
        const char* start = next_;
        ++next_;
        if (done()) refuse("unfinished escape");
        switch (*next_++) {
            case '"':
                out += '"';
                return;
            case '\\':
                out += '\\';
                return;
            case '/':
                out += '/';
                return;
            case 'b':
                out += '\b';
                return;
            case 'f':
                out += '\f';
                return;
            case 'n':
                out += '\n';
                return;
            case 'r':
                out += '\r';
                return;
            case 't':
                out += '\t';
                return;
            case 'u':
                break;
            default:
                refuse_at(at(start), "unknown escape (known: \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX)");
        }
        uint32_t code = hex4(start);
        if (code >= 0xDC00 && code <= 0xDFFF) refuse_at(at(start), "lone surrogate \\u{:04x}", code);
        if (code >= 0xD800 && code <= 0xDBFF) {
            if (!sees("\\u")) refuse_at(at(start), "lone surrogate \\u{:04x}", code);
            next_ += 2;
            const uint32_t low = hex4(start);
            if (low < 0xDC00 || low > 0xDFFF) refuse_at(at(start), "lone surrogate \\u{:04x}", code);
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        append_utf8(code, out);
    }

    uint32_t hex4(const char* start) {
        uint32_t code = 0;
        for (int i = 0; i < 4; ++i, ++next_) {
            const char c = done() ? '\0' : *next_;
            const int digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) refuse_at(at(start), "expected four hexadecimal digits after \\u");
            code = code * 16 + static_cast<uint32_t>(digit);
        }
        return code;
    }

    static void append_utf8(uint32_t code, std::string& out) {
        auto tail = [&](int shift) { out += static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
        if (code < 0x80) {
            out += static_cast<char>(code);
        } else if (code < 0x800) {
            out += static_cast<char>(0xC0 | (code >> 6));
            tail(0);
        } else if (code < 0x10000) {
            out += static_cast<char>(0xE0 | (code >> 12));
            tail(6);
            tail(0);
        } else {
            out += static_cast<char>(0xF0 | (code >> 18));
            tail(12);
            tail(6);
            tail(0);
        }
    }

    // Steps over the opening bracket.
    void open(int depth) {
        if (depth > options_.max_depth) refuse("nesting deeper than {}", options_.max_depth);
        ++next_;
        skip_space();
    }

    // After an element: true at a comma, false at `close`.
    bool more(char close, std::string_view name) {
        skip_space();
        if (sees(close)) {
            ++next_;
            return false;
        }
        if (!sees(',')) refuse("expected ',' or '{}' in {}, {}", close, name, found());
        ++next_;
        skip_space();
        if (sees(close)) refuse("comma before the closing '{}'", close);
        return true;
    }

    Value array(int depth) {
        open(depth);
        Array out;
        if (sees(']')) {
            ++next_;
            return out;
        }
        do {
            out.push_back(value(depth));
        } while (more(']', "a list"));
        return out;
    }

    Value object(int depth) {
        open(depth);
        Object out;
        if (sees('}')) {
            ++next_;
            return out;
        }
        do {
            const Position key_at = here();
            if (!sees('"')) refuse("expected a key in double quotes, {}", found());
            std::string key = string();
            skip_space();
            if (!sees(':')) refuse("expected ':' after the key {}, {}", quoted(key), found());
            ++next_;
            skip_space();
            Value member = value(depth);
            out.push_back({std::move(key), std::move(member), key_at});
        } while (more('}', "an object"));
        if (!options_.keep_duplicates) refuse_duplicates(out);
        return out;
    }

    void refuse_duplicates(const Object& object) const {
        const auto pairs = duplicates(object);
        if (pairs.empty()) return;
        const Member& first = object[pairs[0].first];
        const Member& later = object[pairs[0].second];
        refuse_at(later.at, "the key {} is already given at {}:{}:{}", quoted(later.key), file_,
                  first.at.line, first.at.column);
    }

    std::string_view file_;
    const ParseOptions& options_;
    const char* next_;
    const char* end_;
    const char* line_start_;
    ptrdiff_t extra_bytes_ = 0;  // bytes on this line beyond one per character
    int line_ = 1;
};

}  // namespace

Value parse(std::string_view text, std::string_view file, const ParseOptions& options) {
    return Parser(text, file, options).document();
}

}  // namespace longreach::json
