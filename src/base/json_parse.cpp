// Text to tree. nlohmann's parser decodes the text and checks its grammar. It reports values without
// their place, so this file follows its events through the text; where it stops, Scanner states what is
// wrong in our own words.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>

#include "base/json.h"
#include "base/text.h"

namespace longreach::json {
namespace {

// A place that moves forward through the text. The functions that move over a token refuse a malformed one.
class Scanner {
  public:
    Scanner(std::string_view text, std::string_view file, const ParseOptions& options)
        : file_(file), options_(options), next_(text.data()), end_(next_ + text.size()) {}

    template <class... Args>
    [[noreturn]] void refuse_at(Position at, fmt::format_string<Args...> format, Args&&... args) const {
        throw Error(options_.code, fmt::format("{}:{}:{}: {}", file_, at.line, at.column,
                                               fmt::format(format, std::forward<Args>(args)...)));
    }
    template <class... Args>
    [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
        refuse_at(here(), format, std::forward<Args>(args)...);
    }

    Position here() const { return {line_, column_, options_.source}; }
    bool done() const { return next_ == end_; }
    bool sees(char c) const { return next_ != end_ && *next_ == c; }
    bool sees_number() const { return next_ != end_ && (*next_ == '-' || (*next_ >= '0' && *next_ <= '9')); }
    std::string_view file() const { return file_; }

    // The next character or byte, in words.
    std::string found() const {
        if (done()) return "found the end of the text";
        if (*next_ == '\0') return "found a NUL byte";
        const size_t length = utf8_sequence(rest());
        if (length == 0)
            return fmt::format("found byte 0x{:02x}, which is not UTF-8", static_cast<unsigned char>(*next_));
        if (length == 1 && (*next_ < 0x20 || *next_ == 0x7F))
            return fmt::format("found control character 0x{:02x}", static_cast<int>(*next_));
        return fmt::format("found '{}'", rest().substr(0, length));
    }

    void skip(size_t bytes = 1) {
        for (const char* to = next_ + bytes; next_ != to; ++next_) {
            if (*next_ == '\n') {
                ++line_;
                column_ = 1;
            } else if ((*next_ & 0xC0) != 0x80) {  // the first byte of a character
                ++column_;
            }
        }
    }

    void skip_space() {
        while (!done()) {
            if (*next_ == '/') {
                skip_comment();
            } else if (*next_ == ' ' || *next_ == '\t' || *next_ == '\r' || *next_ == '\n') {
                skip();
            } else {
                return;
            }
        }
    }

    // One string that the parser has accepted.
    void skip_string() {
        const char* last = next_ + 1;
        while (*last != '"') last += *last == '\\' ? 2 : 1;
        skip(static_cast<size_t>(last + 1 - next_));
    }

    std::string_view number() {
        const char* start = next_;
        const Position at = here();
        if (sees('-')) skip();
        for (const std::string_view name : {"NaN", "Infinity"})
            if (rest().starts_with(name)) refuse_at(at, "-{} is not a number JSON can hold", name);
        const bool zero = sees('0');
        const size_t whole = digits("after '-'");
        if (zero && whole > 1) refuse_at(at, "a number must not begin with 0");
        if (sees('.')) {
            skip();
            digits("after the decimal point");
        }
        if (sees('e') || sees('E')) {
            skip();
            if (sees('+') || sees('-')) skip();
            digits("in the exponent");
        }
        return {start, static_cast<size_t>(next_ - start)};
    }

    [[noreturn]] void refuse_number(std::string_view text, Position at) const {
        const std::string shown =
            text.size() <= 40 ? std::string(text) : fmt::format("{}...", text.substr(0, 40));
        if (text.find_first_of(".eE") != text.npos)
            refuse_at(at, "the number {} does not fit a 64-bit real", shown);
        refuse_at(at, "the integer {} does not fit 64 bits", shown);
    }

    void word() {
        size_t length = 0;
        const std::string_view text = rest();
        auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
        while (length < text.size() && is_letter(text[length])) ++length;
        const std::string_view name = text.substr(0, length);
        if (name == "NaN" || name == "Infinity") refuse("{} is not a number JSON can hold", name);
        if (name == "null" || name == "true" || name == "false") return skip(length);
        if (!name.empty())
            refuse("expected a value, found the word {} (strings are written in double quotes)", shown(name));
        if (sees('\'')) refuse("strings are written in double quotes");
        if (sees(']') || sees('}')) refuse("expected a value, {} (is there a comma too many?)", found());
        if (sees('+') || sees('.')) refuse("a number begins with a digit or '-', {}", found());
        refuse("expected a value, {}", found());
    }

    [[noreturn]] void refuse_string() {
        const Position start = here();
        skip();
        while (!done() && *next_ != '\n' && *next_ != '"') {
            if (*next_ == '\\') {
                skip_escape();
            } else if (static_cast<unsigned char>(*next_) < 0x20) {
                refuse("{} in a string: write it as an escape", found());
            } else {
                skip_character();
            }
        }
        refuse_at(start, "this string has no closing quote on its line");
    }

  private:
    std::string_view rest() const { return {next_, static_cast<size_t>(end_ - next_)}; }

    void skip_character() {
        const size_t length = utf8_sequence(rest());
        if (length == 0) refuse("{}", found());
        skip(length);
    }

    void skip_comment() {
        if (!options_.relaxed) refuse("comments are not allowed here");
        if (!rest().starts_with("//")) refuse("a comment begins with // and ends with the line");
        while (!done() && *next_ != '\n') {
            const unsigned char c = *next_;
            // The parser takes a carriage return for the end of a comment.
            const bool ends = c == '\r' && (rest().size() == 1 || next_[1] == '\n');
            if (c < 0x20 && c != '\t' && !ends) refuse("{} in a comment", found());
            skip_character();
        }
    }

    size_t digits(std::string_view where) {
        size_t count = 0;
        for (; next_ != end_ && *next_ >= '0' && *next_ <= '9'; ++count) skip();
        if (count == 0) refuse("expected a digit {}, {}", where, found());
        return count;
    }

    void skip_escape() {
        const Position start = here();
        skip();
        if (done()) refuse("unfinished escape");
        if (std::string_view("\"\\/bfnrtu").find(*next_) == std::string_view::npos)
            refuse_at(start, "unknown escape (known: \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX)");
        const bool code_unit = sees('u');
        skip();
        if (!code_unit) return;
        const unsigned code = hex4(start);
        if (code < 0xD800 || code > 0xDFFF) return;
        const bool pair = code < 0xDC00 && rest().starts_with("\\u");
        if (pair) skip(2);
        const unsigned low = pair ? hex4(start) : 0;
        if (low < 0xDC00 || low > 0xDFFF) refuse_at(start, "lone surrogate \\u{:04x}", code);
    }

    unsigned hex4(Position start) {
        unsigned code = 0;
        const std::string_view text = rest().substr(0, 4);
        const auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
        if (error != std::errc() || last != text.data() + 4)
            refuse_at(start, "expected four hexadecimal digits after \\u");
        skip(4);
        return code;
    }

    std::string_view file_;
    const ParseOptions& options_;
    const char* next_;
    const char* end_;
    int line_ = 1, column_ = 1;
};

// Receives the parser's events (the interface nlohmann::json_sax) and builds the tree.
class Builder {
  public:
    Builder(std::string_view text, std::string_view file, const ParseOptions& options)
        : scan_(text, file, options), options_(options) {
        if (text.size() > options.max_bytes)
            scan_.refuse("the text is larger than {} bytes", options.max_bytes);
        if (text.starts_with("\xEF\xBB\xBF"))
            scan_.refuse("byte order mark at the start: save the file as UTF-8 without it");
    }

    Value finish() {
        scan_.skip_space();
        if (!scan_.done()) scan_.refuse("text after the end of the document: {}", scan_.found());
        return std::move(root_);
    }

    bool null() { return word(nullptr); }
    bool boolean(bool value) { return word(value); }
    bool number_integer(int64_t value) {
        const Position at = token();
        const bool minus_zero = scan_.number() == "-0";  // keeps its sign only as a real
        return add(minus_zero ? Value(-0.0) : Value(value), at);
    }
    bool number_unsigned(uint64_t value) {
        const Position at = token();
        scan_.number();
        return add(value, at);
    }
    bool number_float(double value, const std::string&) {
        const Position at = token();
        const std::string_view text = scan_.number();
        const bool integer = text.find_first_of(".eE") == text.npos;
        const std::string_view mantissa = text.substr(0, text.find_first_of("eE"));
        const bool vanished = value == 0 && mantissa.find_first_of("123456789") != text.npos;
        if (integer || vanished) scan_.refuse_number(text, at);
        return add(value, at);
    }
    bool string(std::string& value) {
        const Position at = token();
        scan_.skip_string();
        return add(std::move(value), at);
    }
    bool binary(std::vector<uint8_t>&) { return false; }  // no part of text
    bool key(std::string& name) {
        open_.back().key_at = token();
        open_.back().key = std::move(name);
        scan_.skip_string();
        last_ = Last::key;
        return true;
    }
    bool start_array(size_t) { return start(Array()); }
    bool start_object(size_t) { return start(Object()); }
    bool end_array() { return end(); }
    bool end_object() {
        if (!options_.keep_duplicates) refuse_duplicates(open_.back().value.as_object());
        return end();
    }

    // The token after the last event was not the one due, or is malformed.
    bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
        scan_.skip_space();
        const bool object = !open_.empty() && open_.back().value.is_object();
        const char close = object ? '}' : ']';
        if (last_ == Last::key) {
            if (!scan_.sees(':'))
                scan_.refuse("expected ':' after the key {}, {}", longreach::quoted(open_.back().key),
                             scan_.found());
            token();
        } else if (last_ == Last::value) {
            if (!scan_.sees(','))
                scan_.refuse("expected ',' or '{}' in {}, {}", close, object ? "an object" : "a list",
                             scan_.found());
            token();
            if (scan_.sees(close)) scan_.refuse("comma before the closing '{}'", close);
        }
        if (scan_.sees('"')) scan_.refuse_string();
        if (object && last_ != Last::key) scan_.refuse("expected a key in double quotes, {}", scan_.found());
        if (scan_.done()) scan_.refuse("expected a value, found the end of the text");
        const Position at = scan_.here();
        if (scan_.sees_number()) scan_.refuse_number(scan_.number(), at);
        scan_.word();
        scan_.refuse_at(at, "{}", error.what());
    }

  private:
    enum class Last { open, key, value };
    struct Open {
        Value value;  // the array or object
        std::string key;
        Position key_at;
    };

    // Moves to the token of this event, over the comma or colon before it.
    Position token() {
        scan_.skip_space();
        if (scan_.sees(',') || scan_.sees(':')) {
            scan_.skip();
            scan_.skip_space();
        }
        return scan_.here();
    }

    bool word(Value value) {
        const Position at = token();
        scan_.word();
        return add(std::move(value), at);
    }

    bool start(Value container) {
        container.set_position(token());
        if (open_.size() >= static_cast<size_t>(options_.max_depth))
            scan_.refuse("nesting deeper than {}", options_.max_depth);
        scan_.skip();
        open_.push_back({std::move(container), {}, {}});
        last_ = Last::open;
        return true;
    }

    bool end() {
        scan_.skip_space();
        scan_.skip();
        Value container = std::move(open_.back().value);
        open_.pop_back();
        const Position at = container.at();
        return add(std::move(container), at);
    }

    bool add(Value value, Position at) {
        value.set_position(at);
        last_ = Last::value;
        if (open_.empty()) {
            root_ = std::move(value);
        } else if (Open& in = open_.back(); in.value.is_array()) {
            in.value.as_array().push_back(std::move(value));
        } else {
            in.value.as_object().push_back({std::move(in.key), std::move(value), in.key_at});
        }
        return true;
    }

    void refuse_duplicates(const Object& object) const {
        const auto pairs = duplicates(object);
        if (pairs.empty()) return;
        const Member& first = object[pairs[0].first];
        const Member& later = object[pairs[0].second];
        scan_.refuse_at(later.at, "the key {} is already given at {}:{}:{}", longreach::quoted(later.key),
                        scan_.file(), first.at.line, first.at.column);
    }

    Scanner scan_;
    const ParseOptions& options_;
    Value root_;
    std::vector<Open> open_;
    Last last_ = Last::open;
};

// The text with a space in place of each comma between a value and a closing bracket. Other places stay as they are, so
// that what is wrong with them is found where it is.
std::string without_last_commas(std::string_view text) {
    std::string out(text);
    size_t comma = text.npos;  // the last one, as long as only white space and comments follow it
    char before = '[';         // the last character outside of white space, comments and strings
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (c == ' ' || c == '\t' || c == '\r' || c == '\n') continue;
        if (text.substr(i, 2) == "//") {
            i = std::min(text.find('\n', i), text.size());
            continue;
        }
        if (c == '"')
            for (++i; i < text.size() && text[i] != '"'; ++i)
                if (text[i] == '\\') ++i;
        if ((c == ']' || c == '}') && comma != text.npos) out[comma] = ' ';
        comma = c == ',' && before != ',' && before != '[' && before != '{' && before != ':' ? i : text.npos;
        before = c;
    }
    return out;
}

}  // namespace

Value parse(std::string_view text, std::string_view file, const ParseOptions& options) {
    std::string changed;
    if (options.relaxed) text = changed = without_last_commas(text);
    Builder builder(text, file, options);
    nlohmann::json::sax_parse(text, &builder, nlohmann::json::input_format_t::json, /*strict=*/false,
                              options.relaxed);
    return builder.finish();
}

}  // namespace longreach::json
