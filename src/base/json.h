// A strict JSON value that remembers where it was written, its parser and its writer.
//
// Strict: RFC 8259 and nothing else, except what ParseOptions::relaxed allows. Refused, each
// with its own message: byte order mark, NUL, bad UTF-8, lone surrogates, raw control characters in strings,
// leading zeros, trailing commas, NaN, numbers that overflow or vanish, text after the document, duplicate
// keys, too much depth, too many bytes.
//
// Integers and reals are different kinds as written: 1 is an integer; 1.0, 1e0 and -0 (which no integer can
// hold) are reals. Nothing converts silently: to_int64() of 1.0, of true or of "1" is empty.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"

namespace longreach::json {

struct Position {
    int line = 0;    // 1-based; 0 for a value that was not read from text
    int column = 0;  // 1-based, in characters (code points, not bytes)
    int source = 0;  // ParseOptions::source: which of several texts
};

enum class Kind : uint8_t { null, boolean, integer, real, string, array, object };

class Value;
struct Member;
using Array = std::vector<Value>;
using Object = std::vector<Member>;  // in the order written

class Value {
  public:
    // The constructors and the destructor are defined below Member, which data_ may hold.
    Value();  // null
    Value(std::nullptr_t);
    Value(const Value& other);
    Value(Value&& other) noexcept;
    Value& operator=(const Value& other);
    Value& operator=(Value&& other) noexcept;
    ~Value();
    template <std::same_as<bool> B>
    Value(B value);
    template <std::integral I>
    requires(!std::same_as<I, bool>) Value(I value);
    template <std::floating_point F>
    Value(F value);
    Value(std::string value);
    Value(std::string_view value);
    Value(const char* value);
    Value(Array value);
    Value(Object value);
    static Value array(std::initializer_list<Value> elements = {});
    static Value object(std::initializer_list<Member> members = {});

    Kind kind() const;
    bool is_null() const { return kind() == Kind::null; }
    bool is_object() const { return kind() == Kind::object; }
    bool is_array() const { return kind() == Kind::array; }
    bool is_string() const { return kind() == Kind::string; }

    // For text from outside: empty (or null) if the value is of another kind or does not fit. No kind
    // converts to another, except that a number may be written as an integer.
    std::optional<bool> to_bool() const;
    std::optional<int64_t> to_int64() const;
    std::optional<uint64_t> to_uint64() const;
    std::optional<double> to_number() const;
    const std::string* to_string() const;
    const Array* to_array() const;
    const Object* to_object() const;

    // For values whose kind is known: another kind is a bug and throws ExitCode::internal.
    bool as_bool() const;
    int64_t as_int64() const;
    uint64_t as_uint64() const;
    double as_number() const;
    const std::string& as_string() const;
    const Array& as_array() const;
    Array& as_array();
    const Object& as_object() const;
    Object& as_object();

    // The member of that name, or null if it is missing or this is not an object. Linear in the number of
    // members: to visit many of them, walk as_object().
    const Value* find(std::string_view key) const;
    Value* find(std::string_view key);

    // Building. set() replaces a member of that name or adds one at the end (null becomes an object first);
    // push() adds an element (null becomes an array first). Both return *this, so that calls can be chained.
    Value& set(std::string_view key, Value value);
    Value& push(Value value);

    // Where the value was written; for values not read from text, line 0.
    const Position& at() const { return at_; }
    void set_position(const Position& at) { at_ = at; }

    // Same kind, same content, members in the same order; positions do not matter.
    friend bool operator==(const Value& a, const Value& b);

  private:
    // uint64_t only above the range of int64_t, so that every integer has one form.
    using Data = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object>;

    Data data_;
    Position at_;
};

struct Member {
    std::string key;
    Value value;
    Position at = {};  // of the key
};

bool operator==(const Member& a, const Member& b);

inline Value::Value() = default;
inline Value::Value(std::nullptr_t) {}
inline Value::Value(const Value& other) = default;
inline Value::Value(Value&& other) noexcept = default;
inline Value& Value::operator=(const Value& other) = default;
inline Value& Value::operator=(Value&& other) noexcept = default;
inline Value::~Value() = default;
template <std::same_as<bool> B>
Value::Value(B value) : data_(value) {}
template <std::integral I>
requires(!std::same_as<I, bool>) Value::Value(I value) {
    if (std::in_range<int64_t>(value)) {
        data_.emplace<int64_t>(static_cast<int64_t>(value));
    } else {
        data_.emplace<uint64_t>(static_cast<uint64_t>(value));
    }
}
template <std::floating_point F>
Value::Value(F value) : data_(static_cast<double>(value)) {}
inline Value::Value(std::string value) : data_(std::move(value)) {}
inline Value::Value(std::string_view value) : data_(std::string(value)) {}
inline Value::Value(const char* value) : data_(std::string(value)) {}

struct ParseOptions {
    // `//` to the end of the line counts as white space, and a comma may follow the last element.
    bool relaxed = false;
    size_t max_bytes = 1 << 20;
    int max_depth = 64;               // nested arrays and objects; also bounds the recursion
    bool keep_duplicates = false;     // leave repeated keys in the object for the caller to report
    int source = 0;                   // copied to every Position
    ExitCode code = ExitCode::usage;  // of the Error thrown
};

// Throws Error(options.code) whose message is "file:line:column: what is wrong".
Value parse(std::string_view text, std::string_view file, const ParseOptions& options = {});

// Refuses a file of this program whose member `format` is not the number that this version writes. Files without it
// have the first format, 1.
void require_format(const Value& root, int64_t known, const std::string& path, ExitCode code);

// Indices (first, later) of the members that repeat a key, in the order of the later one.
std::vector<std::pair<size_t, size_t>> duplicates(const Object& object);

// pretty: two spaces per level, a list of plain values on one line where it fits, a newline at the end.
// compact: one line without spaces and without a newline at the end.
enum class Style { pretty, compact };

// Members in the order held. Reals in the shortest form that reads back to the same bits (1.0 becomes 1).
// A number that is not finite or a string that is not UTF-8 has no JSON form: writing one is a
// bug and throws ExitCode::internal.
std::string write(const Value& value, Style style);

}  // namespace longreach::json
