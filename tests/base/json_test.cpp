#include "base/json.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <string>

#include "base/text.h"
#include "dice.h"

using namespace longreach;
using json::Kind;
using json::Value;

namespace {

// Most time of a core that reading 10 MB may take. 0.1 s in a Release build on one quiet core; the rest
// is room for slow machines. Under QEMU (tools/test --arm) it took 12 s on a busy core.
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
const double header_seconds = std::getenv("LONGREACH_TEST_EMULATED") != nullptr ? 60 : 2;
#else
constexpr double header_seconds = 30;
#endif

// Of a core: a busy machine's clock runs on while this process waits.
double seconds_since(std::clock_t start) {
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

const std::string nul(1, '\0');

// The message of the error, or the compact form of what was accepted.
std::string outcome(const std::string& text, const json::ParseOptions& options = {}) {
    try {
        return json::write(json::parse(text, "f", options), json::Style::compact);
    } catch (const Error& error) {
        CHECK(error.code() == options.code);
        return error.what();
    }
}

}  // namespace

TEST_CASE("json: kinds are those written") {
    const Value v = json::parse(
        R"({"n":null,"t":true,"f":false,"i":1,"r":1.0,"e":1e3,"z":-0,"s":"x","a":[],"o":{}})", "f");
    auto kind = [&](const char* key) { return v.find(key)->kind(); };
    CHECK(kind("n") == Kind::null);
    CHECK(kind("t") == Kind::boolean);
    CHECK(kind("i") == Kind::integer);
    CHECK(kind("r") == Kind::real);
    CHECK(kind("e") == Kind::real);
    CHECK(kind("z") == Kind::real);
    CHECK(std::signbit(v.find("z")->as_number()));
    CHECK(kind("s") == Kind::string);
    CHECK(kind("a") == Kind::array);
    CHECK(kind("o") == Kind::object);
    CHECK(v.find("absent") == nullptr);
    CHECK(v.find("i")->find("x") == nullptr);
    CHECK(v.as_object().front().key == "n");
    CHECK(v.as_object().back().key == "o");
}

TEST_CASE("json: nothing converts to another kind") {
    CHECK_FALSE(Value(1.0).to_int64());
    CHECK_FALSE(Value(true).to_int64());
    CHECK_FALSE(Value("1").to_int64());
    CHECK_FALSE(Value(-1).to_uint64());
    CHECK_FALSE(Value(1).to_bool());
    CHECK_FALSE(Value("1").to_number());
    CHECK(Value(1).to_string() == nullptr);
    CHECK(Value(1).to_number() == 1.0);
    CHECK_THROWS_AS(Value(1).as_string(), Error);
    CHECK_THROWS_AS(Value("x").as_array(), Error);
    CHECK_THROWS_AS(Value(1.5).as_int64(), Error);
}

TEST_CASE("json: integers are exact over the whole range of 64 bits") {
    CHECK(json::parse("9223372036854775807", "f").as_int64() == std::numeric_limits<int64_t>::max());
    CHECK(json::parse("-9223372036854775808", "f").as_int64() == std::numeric_limits<int64_t>::min());
    const Value big = json::parse("18446744073709551615", "f");
    CHECK(big.as_uint64() == std::numeric_limits<uint64_t>::max());
    CHECK_FALSE(big.to_int64());
    CHECK(big == Value(std::numeric_limits<uint64_t>::max()));
    CHECK(json::write(big, json::Style::compact) == "18446744073709551615");
    CHECK(Value(uint64_t{5}) == Value(5));
    CHECK(Value(5) != Value(5.0));
}

TEST_CASE("json: every value knows its line and column, counted in characters") {
    const Value v =
        json::parse("{\n  \"\u00e9\u20ac\": [1, \"\U0001F600\", 2],\r\n\t\"b\": {}}", "f", {.source = 7});
    const json::Member& first = v.as_object()[0];
    CHECK(first.at.line == 2);
    CHECK(first.at.column == 3);
    CHECK(first.value.at().column == 9);
    CHECK(first.value.as_array()[1].at().column == 13);
    CHECK(first.value.as_array()[2].at().column == 18);
    CHECK(first.value.as_array()[2].at().source == 7);
    const json::Member& second = v.as_object()[1];
    CHECK(second.at.line == 3);
    CHECK(second.at.column == 2);
    CHECK(second.value.at().column == 7);
}

TEST_CASE("json: strictness, each refusal with its place and its own words") {
    const std::pair<std::string, std::string> cases[] = {
        {"", "f:1:1: expected a value, found the end of the text"},
        {"  \n ", "f:2:2: expected a value, found the end of the text"},
        {"\xEF\xBB\xBF{}", "f:1:1: byte order mark at the start: save the file as UTF-8 without it"},
        {"{}" + nul, "f:1:3: text after the end of the document: found a NUL byte"},
        {nul + "{}", "f:1:1: expected a value, found a NUL byte"},
        {"{} x", "f:1:4: text after the end of the document: found 'x'"},
        {"1 2", "f:1:3: text after the end of the document: found '2'"},
        {"[1,]", "f:1:4: comma before the closing ']'"},
        {"{\"a\":1,}", "f:1:8: comma before the closing '}'"},
        {"[,1]", "f:1:2: expected a value, found ','"},
        {"[1 2]", "f:1:4: expected ',' or ']' in a list, found '2'"},
        {"[1", "f:1:3: expected ',' or ']' in a list, found the end of the text"},
        {"[", "f:1:2: expected a value, found the end of the text"},
        {"]", "f:1:1: expected a value, found ']' (is there a comma too many?)"},
        {"{\"a\":}", "f:1:6: expected a value, found '}' (is there a comma too many?)"},
        {"{\"a\" 1}", "f:1:6: expected ':' after the key \"a\", found '1'"},
        {"{a:1}", "f:1:2: expected a key in double quotes, found 'a'"},
        {"{1:1}", "f:1:2: expected a key in double quotes, found '1'"},
        {"{\"a\":1 \"b\":2}", "f:1:8: expected ',' or '}' in an object, found '\"'"},
        {"{\"a\":1,\n \"a\":2}", "f:2:2: the key \"a\" is already given at f:1:2"},
        {"{\"a\":1, \"\\u0061\":2}", "f:1:9: the key \"a\" is already given at f:1:2"},
        {"'a'", "f:1:1: strings are written in double quotes"},
        {"\"a", "f:1:1: this string has no closing quote on its line"},
        {"\"a\nb\"", "f:1:1: this string has no closing quote on its line"},
        {"\"a\tb\"", "f:1:3: found control character 0x09 in a string: write it as an escape"},
        {"\"a" + nul + "b\"", "f:1:3: found a NUL byte in a string: write it as an escape"},
        {"\"\\x41\"", "f:1:2: unknown escape (known: \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX)"},
        {"\"\\", "f:1:3: unfinished escape"},
        {"\"\\u12G4\"", "f:1:2: expected four hexadecimal digits after \\u"},
        {"\"\\u12", "f:1:2: expected four hexadecimal digits after \\u"},
        {"\"\\ud800\"", "f:1:2: lone surrogate \\ud800"},
        {"\"\\udc00\"", "f:1:2: lone surrogate \\udc00"},
        {"\"\\ud800\\ud800\"", "f:1:2: lone surrogate \\ud800"},
        {"\"\\ud800x\"", "f:1:2: lone surrogate \\ud800"},
        {"\"\xff\"", "f:1:2: found byte 0xff, which is not UTF-8"},
        {"\"\xed\xa0\x80\"", "f:1:2: found byte 0xed, which is not UTF-8"},
        {"\"\xc0\x80\"", "f:1:2: found byte 0xc0, which is not UTF-8"},
        {"\xff", "f:1:1: expected a value, found byte 0xff, which is not UTF-8"},
        {"\u20ac", "f:1:1: expected a value, found '\u20ac'"},
        {"\x01", "f:1:1: expected a value, found control character 0x01"},
        {"\f1", "f:1:1: expected a value, found control character 0x0c"},
        {"01", "f:1:1: a number must not begin with 0"},
        {"-01", "f:1:1: a number must not begin with 0"},
        {"-", "f:1:2: expected a digit after '-', found the end of the text"},
        {"+1", "f:1:1: a number begins with a digit or '-', found '+'"},
        {".5", "f:1:1: a number begins with a digit or '-', found '.'"},
        {"5.", "f:1:3: expected a digit after the decimal point, found the end of the text"},
        {"1e", "f:1:3: expected a digit in the exponent, found the end of the text"},
        {"1e+x", "f:1:4: expected a digit in the exponent, found 'x'"},
        {"0x10", "f:1:2: text after the end of the document: found 'x'"},
        {"1_000", "f:1:2: text after the end of the document: found '_'"},
        {"NaN", "f:1:1: NaN is not a number JSON can hold"},
        {"Infinity", "f:1:1: Infinity is not a number JSON can hold"},
        {"-Infinity", "f:1:1: -Infinity is not a number JSON can hold"},
        {"-NaN", "f:1:1: -NaN is not a number JSON can hold"},
        {"True", "f:1:1: expected a value, found the word True (strings are written in double quotes)"},
        {"nullx", "f:1:1: expected a value, found the word nullx (strings are written in double quotes)"},
        {"1e999", "f:1:1: the number 1e999 does not fit a 64-bit real"},
        {"-1e999", "f:1:1: the number -1e999 does not fit a 64-bit real"},
        {"1e-999", "f:1:1: the number 1e-999 does not fit a 64-bit real"},
        {"18446744073709551616", "f:1:1: the integer 18446744073709551616 does not fit 64 bits"},
        {"-9223372036854775809", "f:1:1: the integer -9223372036854775809 does not fit 64 bits"},
        {"1 // one", "f:1:3: comments are not allowed here"},
    };
    for (const auto& [json, message] : cases) {
        const std::string& text = json;  // clang 14 lets no lambda of CAPTURE name a structured binding
        CAPTURE(quoted(text));
        CHECK(outcome(text) == message);
    }
}

TEST_CASE("json: what is accepted") {
    const std::pair<std::string, std::string> cases[] = {
        {" \t\r\n{ } ", "{}"},
        {"[ ]", "[]"},
        {"\"\\ud83d\\ude00\"", "\"\U0001F600\""},
        {"\"\\u00e9\\u20AC\\/\"", "\"\u00e9\u20ac/\""},
        {"\"\\u0000\"", "\"\\u0000\""},
        {"\"\\b\\f\\n\\r\\t\\\"\\\\\"", "\"\\b\\f\\n\\r\\t\\\"\\\\\""},
        {"\"\x7f\"", "\"\x7f\""},
        {"-0", "-0"},
        {"0", "0"},
        {"1.0", "1"},
        {"1E+2", "100"},
        {"5e-324", "5e-324"},
        {"0e999", "0"},
        {"1.7976931348623157e308", "1.7976931348623157e+308"},
        {"null", "null"},
    };
    for (const auto& [json, written] : cases) {
        const std::string& text = json;
        CAPTURE(text);
        CHECK(outcome(text) == written);
    }
}

TEST_CASE("json: a comma after the last element only where allowed") {
    const json::ParseOptions with{.relaxed = true};
    CHECK(json::parse("[1, {\"a\": [2,], } ,// ]\n\t]", "f", with) == json::parse(R"([1, {"a": [2]}])", "f"));
    CHECK(json::parse(R"({"a\",]": "b,]",})", "f", with).find("a\",]")->as_string() == "b,]");
    const struct {
        const char *text, *message;
    } cases[] = {
        {"[,]", "f:1:2: expected a value, found ','"},
        {"[1,,]", "f:1:4: expected a value, found ','"},
        {"{,}", "f:1:2:"},
        {"{\"a\":,}", "f:1:6: expected a value, found ','"},
        {"[1,\n", "f:2:1: expected a value, found the end of the text"},
        {"[1],", "f:1:4:"},
        {"[1,/* ]", "f:1:4: a comment begins with //"},
        {"[\"a\\", "f:1:"},
    };
    for (const auto& c : cases) {
        CAPTURE(c.text);
        CHECK_THROWS_WITH_AS(json::parse(c.text, "f", with), doctest::Contains(c.message), Error);
    }
    CHECK_THROWS_WITH_AS(json::parse("[1,]", "f"), doctest::Contains("comma before the closing ']'"), Error);
}

TEST_CASE("json: comments only where allowed, and still checked") {
    const json::ParseOptions with{.relaxed = true};
    CHECK(outcome("// a\n{ // b\n\"k\" // \u00e9\t\n: // c\n1 // d\n, \"l\": [ // e\n] }// f", with) ==
          R"({"k":1,"l":[]})");
    CHECK(outcome("{\"u\": \"http://x\"}", with) == R"({"u":"http://x"})");
    CHECK(outcome("1 /* x */", with) == "f:1:3: a comment begins with // and ends with the line");
    CHECK(outcome("1 /", with) == "f:1:3: a comment begins with // and ends with the line");
    CHECK(outcome("1 // \xff", with) == "f:1:6: found byte 0xff, which is not UTF-8");
    CHECK(outcome("1 // " + nul, with) == "f:1:6: found a NUL byte in a comment");
    CHECK(outcome("// only", with) == "f:1:8: expected a value, found the end of the text");
    const Value v = json::parse("// \u00e9\u00e9\n 1", "f", with);
    CHECK(v.at().line == 2);
    CHECK(v.at().column == 2);
}

TEST_CASE("json: limits of depth and size, and the exit code, are the caller's") {
    const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
    CHECK(outcome(nested(64)) == nested(64));
    CHECK(outcome(nested(65)) == "f:1:65: nesting deeper than 64");
    CHECK(outcome(nested(4), {.max_depth = 3}) == "f:1:4: nesting deeper than 3");
    CHECK(outcome(std::string(500000, '[')) == "f:1:65: nesting deeper than 64");
    CHECK(outcome("[1,2]", {.max_bytes = 5}) == "[1,2]");
    CHECK(outcome("[1,2] ", {.max_bytes = 5}) == "f:1:1: the text is larger than 5 bytes");
    CHECK(outcome("x", {.code = ExitCode::checkpoint}).starts_with("f:1:1: expected a value"));
}

TEST_CASE("json: repeated keys can be kept for the caller") {
    const Value v = json::parse(R"({"a":1,"b":2,"a":3,"b":4,"a":5})", "f", {.keep_duplicates = true});
    using Pairs = std::vector<std::pair<size_t, size_t>>;
    CHECK(json::duplicates(v.as_object()) == Pairs{{0, 2}, {1, 3}, {0, 4}});
    json::Object many;
    for (int i = 0; i < 100; ++i) many.push_back({std::to_string(i % 98), i});
    CHECK(json::duplicates(many) == Pairs{{0, 98}, {1, 99}});
}

TEST_CASE("json: building") {
    Value v;
    v.set("b", 1).set("a", "x").set("b", Value::array({1, 2.5, true, nullptr}));
    v.find("b")->push("end");
    CHECK(json::write(v, json::Style::compact) == R"({"b":[1,2.5,true,null,"end"],"a":"x"})");
    CHECK(v == json::parse(R"( {"b": [1, 2.5, true, null, "end"], "a": "x"} )", "f"));
    CHECK(v != Value::object({{"a", "x"}}));
    CHECK_THROWS_AS(Value(1).set("a", 1), Error);
    CHECK_THROWS_AS(Value(1).push(1), Error);
}

TEST_CASE("json: pretty form") {
    const Value v = Value::object({{"empty", Value::object()},
                                   {"none", Value::array()},
                                   {"numbers", Value::array({1, 2, 3})},
                                   {"objects", Value::array({Value::object({{"a", 1}}), Value::object()})},
                                   {"nested", Value::array({Value::array({1}), Value::array({2})})}});
    CHECK(json::write(v, json::Style::pretty) == R"({
  "empty": {},
  "none": [],
  "numbers": [1, 2, 3],
  "objects": [
    {
      "a": 1
    },
    {}
  ],
  "nested": [
    [1],
    [2]
  ]
}
)");
    Value longer;
    for (int i = 0; i < 40; ++i) longer.push(1000 + i);
    CHECK(json::write(longer, json::Style::pretty).starts_with("[\n  1000,\n  1001,"));
    CHECK(json::parse(json::write(longer, json::Style::pretty), "f") == longer);
}

TEST_CASE("json: what has no JSON form is refused by the writer") {
    CHECK_THROWS_AS(json::write(Value(std::nan("")), json::Style::compact), Error);
    CHECK_THROWS_AS(json::write(Value(INFINITY), json::Style::pretty), Error);
    CHECK_THROWS_AS(json::write(Value("\xff"), json::Style::compact), Error);
    CHECK_THROWS_AS(json::write(Value::object({{"\xff", 1}}), json::Style::compact), Error);
}

TEST_CASE("json: doubles come back bit for bit") {
    Dice dice(1);
    for (int i = 0; i < 20000; ++i) {
        const double d = std::bit_cast<double>(dice.bits());
        if (!std::isfinite(d)) continue;
        const double back = json::parse(json::write(Value(d), json::Style::compact), "f").as_number();
        REQUIRE(std::bit_cast<uint64_t>(back) == std::bit_cast<uint64_t>(d));
    }
}

TEST_CASE("json: a file of a format that this version does not know is refused") {
    const auto problem = [](const char* text) -> std::string {
        try {
            json::require_format(json::parse(text, "f"), 2, "dir/f.json", ExitCode::data);
        } catch (const Error& e) {
            CHECK(e.code() == ExitCode::data);
            return e.what();
        }
        return "";
    };
    CHECK(problem(R"({"format": 2})").empty());
    CHECK(problem("{}") == "dir/f.json: this version reads format 2 of this file, not 1");
    CHECK(problem(R"({"format": 3})") == "dir/f.json: this version reads format 2 of this file, not 3");
    for (const char* text : {R"({"format": "2"})", R"({"format": 2.0})", R"({"format": null})"})
        CHECK(problem(text) == "dir/f.json: this version reads format 2 of this file, not another");
}

TEST_CASE("json: mutated texts never crash, and whatever is accepted survives writing") {
    const std::string seeds[] = {
        R"({"model":{"width":768,"norm":{"kind":"rms","eps":1e-06}},"stages":[{"steps":800},{"steps":-1}]})",
        "{ // comment\n \"a\\u00e9\\ud83d\\ude00\": [true, false, null, -0, 1.5E+10, "
        "18446744073709551615],\n\"\u20ac\":{}}",
        R"({"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}})",
        "[[[[[[[[[[[[]]]]]]]]]]]]",
    };
    Dice dice(2);
    const std::clock_t start = std::clock();
    size_t accepted = 0;
    for (int i = 0; i < 20000; ++i) {
        const std::string text =
            dice.mutate(seeds[dice.below(std::size(seeds))], 6, "{}[]\",:/\\u0e-.\n\t1n");
        Value value;
        try {
            value = json::parse(text, "f", {.relaxed = true});
        } catch (const Error& error) {
            REQUIRE(std::string_view(error.what()).starts_with("f:"));
            REQUIRE(is_utf8(error.what()));
            REQUIRE(std::string_view(error.what()).find_first_of("\n\0", 0, 2) == std::string_view::npos);
            continue;
        }
        ++accepted;
        const std::string compact = json::write(value, json::Style::compact);
        const std::string pretty = json::write(value, json::Style::pretty);
        REQUIRE(json::write(json::parse(compact, "f"), json::Style::compact) == compact);
        REQUIRE(json::write(json::parse(pretty, "f"), json::Style::pretty) == pretty);
    }
    CHECK(accepted > 500);
    CHECK(seconds_since(start) < 30);
}

TEST_CASE("json: a text cut at every byte is refused with a place") {
    const std::string whole = R"({"a": [1, 2.5e3, "x\u00e9\ud83d\ude00", true], "b": {"c": null}})";
    for (size_t n = 0; n < whole.size(); ++n) {
        CAPTURE(n);
        CHECK(outcome(whole.substr(0, n)).starts_with("f:1:"));
    }
}

TEST_CASE("json: a header of 10 MB is read in well under a second, many equal keys included") {
    std::string header = "{";
    for (int i = 0; header.size() < 10'000'000; ++i)
        header +=
            fmt::format(R"({}"layers.{}.weight":{{"dtype":"BF16","shape":[768,768],"data_offsets":[{},{}]}})",
                        i > 0 ? "," : "", i, i * 1000, i * 1000 + 1000);
    header += "}";
    const std::clock_t start = std::clock();
    const Value value = json::parse(header, "f", {.max_bytes = 100'000'000});
    CHECK(seconds_since(start) < header_seconds);
    CHECK(json::write(value, json::Style::compact) == header);

    std::string equal = "{";
    while (equal.size() < 1'000'000) equal += "\"k\":0,";
    equal.back() = '}';
    CHECK(outcome(equal) == "f:1:8: the key \"k\" is already given at f:1:2");
}
