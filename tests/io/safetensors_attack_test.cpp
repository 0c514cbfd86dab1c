// Hostile safetensors files. Each row breaks one rule and states the message it must meet; the rows of the
// last table are odd but legal.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "io/safetensors.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::string u64(uint64_t value) {
    std::string bytes(8, '\0');
    for (char& b : bytes) {
        b = static_cast<char>(value);
        value >>= 8;
    }
    return bytes;
}

std::string file_of(const std::string& header, size_t data_bytes) {
    return u64(header.size()) + header + std::string(data_bytes, 'd');
}

std::string outcome_of(const TempDir& dir, const std::string& bytes) {
    put(dir / "x", bytes);
    return anonymous(error_of([&] { io::SafetensorsFile::open(dir / "x"); }), dir / "x");
}

struct Attack {
    std::string what;
    std::string header;
    size_t data_bytes;
    std::string message;  // part of it
};

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"t":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
}

const std::string open = "{";

std::string u8_entry(const std::string& name, int begin, int end) {
    return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name, end - begin,
                       begin, end);
}

}  // namespace

TEST_CASE("safetensors attacks: the length of the header") {
    const TempDir dir;
    CHECK(outcome_of(dir, "") == "4: x: 0 bytes are too few for a safetensors file");
    CHECK(outcome_of(dir, "1234567") == "4: x: 7 bytes are too few for a safetensors file");
    CHECK(contains(outcome_of(dir, u64(0)), "4: x (header):1:1:"));
    CHECK(outcome_of(dir, u64(3) + "{}") == "4: x: a header of 3 bytes does not fit into a file of 10");
    CHECK(outcome_of(dir, u64(100'000'001) + "{}") ==
          "4: x: a header of 100000001 bytes is too large (limit 100000000)");
    CHECK(outcome_of(dir, u64(100'000'000) + "{}") ==
          "4: x: a header of 100000000 bytes does not fit into a file of 10");
    CHECK(contains(outcome_of(dir, u64(~uint64_t{0}) + "{}"), "is too large"));
    CHECK(contains(outcome_of(dir, u64(~uint64_t{0} - 7) + "{}"), "is too large"));
    // Exactly the limit is legal, and read without trouble.
    CHECK(outcome_of(dir, u64(100'000'000) + "{}" + std::string(99'999'998, ' ')) == "no error");
    CHECK(contains(error_of([&] { io::SafetensorsFile::open(dir / "missing"); }), "4: cannot open"));
    std::filesystem::create_symlink(dir / "x", dir / "link");
    CHECK(contains(error_of([&] { io::SafetensorsFile::open(dir / "link", io::Links::refuse); }),
                   "it is a symbolic link"));
    CHECK(contains(error_of([&] { io::SafetensorsFile::open(dir.path()); }), "is not a regular file"));
}

TEST_CASE("safetensors attacks: everything else") {
    const TempDir dir;
    const std::string max = "18446744073709551615";
    const std::vector<Attack> attacks{
        // Not the JSON the format allows.
        {"bad UTF-8", "{\"\xff\":1}", 0, "x (header):1:"},
        {"overlong UTF-8", "{\"\xc0\xaf\":1}", 0, "x (header):1:"},
        {"byte order mark", "\xef\xbb\xbf{}", 0, "x (header):1:1"},
        {"NUL after the object", std::string("{}\0", 3), 0, "x (header):1:3"},
        {"text after the object", "{} {}", 0, "x (header):1:4"},
        {"comment", "{}//", 0, "x (header):1:3"},
        {"trailing comma", open + u8_entry("a", 0, 1) + ",}", 1, "x (header):1:"},
        {"unterminated", "{", 0, "x (header):1:2"},
        {"array", "[]", 0, "the header is not a JSON object"},
        {"null", "null", 0, "the header is not a JSON object"},
        {"deep nesting", "{\"a\":" + std::string(5'000'000, '['), 0, "x (header):1:"},
        {"lone surrogate", R"({"\ud800":1})", 0, "x (header):1:"},
        {"raw control character", "{\"a\nb\":1}", 0, "x (header):1:"},
        {"NaN", entry(R"("U8")", "[NaN]", "[0,1]"), 1, "x (header):1:"},
        // Two readings of one file.
        {"duplicate name", open + u8_entry("a", 0, 1) + "," + u8_entry("a", 0, 1) + "}", 1, "\"a\""},
        {"duplicate name, spelt with an escape",
         open + u8_entry("a", 0, 1) + "," + u8_entry("\\u0061", 0, 1) + "}", 1, "\"a\""},
        {"two __metadata__", R"({"__metadata__":{},"__metadata__":{}})", 0, "__metadata__"},
        {"duplicate key in __metadata__", R"({"__metadata__":{"k":"1","k":"2"}})", 0, "\"k\""},
        {"duplicate dtype", R"({"t":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
         "\"dtype\""},
        {"duplicate data_offsets",
         R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"data_offsets":[0,1]}})", 1,
         "\"data_offsets\""},
        {"entry as an array", R"({"t":["U8",[1],[0,1]]})", 1, "tensor t: the entry is not an object"},
        {"entry null", R"({"t":null})", 0, "tensor t: the entry is not an object"},
        {"dtype as an object", entry(R"({"U8":null})", "[1]", "[0,1]"), 1, "tensor t: dtype is not a string"},
        {"extra field", R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}})", 1,
         "tensor t: unknown field x"},
        // Missing and mistyped fields.
        {"no dtype", R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1, "tensor t: no dtype"},
        {"no shape", R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", 1, "tensor t: no shape"},
        {"no data_offsets", R"({"t":{"dtype":"U8","shape":[1]}})", 1, "tensor t: no data_offsets"},
        {"unknown dtype", entry(R"("F128")", "[1]", "[0,16]"), 16, "tensor t: unknown dtype F128"},
        {"lower-case dtype", entry(R"("u8")", "[1]", "[0,1]"), 1, "tensor t: unknown dtype u8"},
        {"metadata not an object", R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
        {"metadata value not a string", R"({"__metadata__":{"k":1}})", 0, "__metadata__.k is not a string"},
        {"metadata value null", R"({"__metadata__":{"k":null}})", 0, "__metadata__.k is not a string"},
        {"shape not an array", entry(R"("U8")", "1", "[0,1]"), 1, "tensor t: shape is not an array"},
        {"offsets not an array", entry(R"("U8")", "[1]", "1"), 1, "tensor t: data_offsets is not a pair"},
        {"one offset", entry(R"("U8")", "[1]", "[1]"), 1, "tensor t: data_offsets is not a pair"},
        {"three offsets", entry(R"("U8")", "[1]", "[0,1,1]"), 1, "tensor t: data_offsets is not a pair"},
        // Numbers that are none.
        {"negative dim", entry(R"("U8")", "[-1]", "[0,1]"), 1, "shape[0] is not an integer"},
        {"minus zero dim", entry(R"("U8")", "[-0]", "[0,0]"), 0, "shape[0] is not an integer"},
        {"fractional dim", entry(R"("U8")", "[1.0]", "[0,1]"), 1, "shape[0] is not an integer"},
        {"exponent dim", entry(R"("U8")", "[1,1e0]", "[0,1]"), 1, "shape[1] is not an integer"},
        {"leading zero dim", entry(R"("U8")", "[01]", "[0,1]"), 1, "x (header):1:"},
        {"true dim", entry(R"("U8")", "[true]", "[0,1]"), 1, "shape[0] is not an integer"},
        {"string dim", entry(R"("U8")", R"(["1"])", "[0,1]"), 1, "shape[0] is not an integer"},
        {"dim 2^63", entry(R"("U8")", "[9223372036854775808]", "[0,1]"), 1, "shape[0] is not an integer"},
        {"dim 2^64", entry(R"("U8")", "[18446744073709551616]", "[0,1]"), 1, "does not fit 64 bits"},
        {"negative offset", entry(R"("U8")", "[1]", "[-1,0]"), 1, "data_offsets are not integers"},
        {"fractional offset", entry(R"("U8")", "[1]", "[0,1.0]"), 1, "data_offsets are not integers"},
        {"true offset", entry(R"("U8")", "[1]", "[0,true]"), 1, "data_offsets are not integers"},
        {"offset 2^64", entry(R"("U8")", "[1]", "[0,18446744073709551616]"), 1, "does not fit 64 bits"},
        // Layout.
        {"overlap", open + u8_entry("a", 0, 4) + "," + u8_entry("b", 2, 6) + "}", 6,
         "tensor b: its data begin at 2, inside the tensor before it, which ends at 4"},
        {"same range twice", open + u8_entry("a", 0, 4) + "," + u8_entry("b", 0, 4) + "}", 4,
         "tensor b: its data begin at 0, inside the tensor before it"},
        {"hole", open + u8_entry("a", 0, 1) + "," + u8_entry("b", 2, 3) + "}", 3,
         "tensor b: its data begin at 2, which leaves a hole after 1"},
        {"hole at the start", open + u8_entry("a", 1, 2) + "}", 2, "which leaves a hole after 0"},
        {"end before begin", entry(R"("U8")", "[1]", "[1,0]"), 1,
         "its data end at 0, before they begin at 1"},
        {"begin beyond the file", entry(R"("U8")", "[1]", "[1000,1001]"), 1, "leaves a hole"},
        {"end beyond the file", entry(R"("U8")", "[9]", "[0,9]"), 8,
         "the tensors need 9 bytes, but only 8 follow"},
        {"end at 2^64 - 1", entry(R"("U8")", "[1]", "[0," + max + "]"), 1,
         "its shape needs 1 bytes, but its data have"},
        {"begin at 2^64 - 1", entry(R"("U8")", "[0]", "[" + max + "," + max + "]"), 0, "leaves a hole"},
        {"trailing bytes", open + u8_entry("a", 0, 1) + "}", 2, "1 bytes follow the last tensor"},
        {"no tensors but data", "{}", 1, "1 bytes follow the last tensor"},
        {"shape too small", entry(R"("F32")", "[1]", "[0,8]"), 8,
         "its shape needs 4 bytes, but its data have 8"},
        {"shape too large", entry(R"("F32")", "[3]", "[0,8]"), 8,
         "its shape needs 12 bytes, but its data have 8"},
        {"scalar of the wrong size", entry(R"("F64")", "[]", "[0,4]"), 4,
         "its shape needs 8 bytes, but its data have 4"},
        {"product overflows", entry(R"("U8")", "[1099511627776,1099511627776,0]", "[0,0]"), 0,
         "overflows 64 bits"},
        {"bits overflow", entry(R"("F64")", "[4611686018427387904]", "[0,0]"), 0, "overflows 64 bits"},
        {"product wraps to a legal size", entry(R"("U8")", "[4294967296,4294967296,4294967296]", "[0,0]"), 0,
         "overflows 64 bits"},
        {"2^48 elements", entry(R"("U8")", "[281474976710656]", "[0,281474976710656]"), 8,
         "the tensors need 281474976710656 bytes, but only 8 follow"},
        {"odd count of 4-bit elements", entry(R"("F4")", "[3]", "[0,1]"), 1,
         "its 12 bits are not whole bytes"},
        {"6-bit elements", entry(R"("F6_E2M3")", "[5]", "[0,3]"), 3, "its 30 bits are not whole bytes"},
        // Names somebody could make a path or a C string of.
        {"empty name", open + u8_entry("", 0, 1) + "}", 1, "a tensor has an empty name"},
        {"NUL in a name", open + u8_entry("a\\u0000b", 0, 1) + "}", 1, "name holds a control character"},
        {"newline in a name", open + u8_entry("a\\nb", 0, 1) + "}", 1, "name holds a control character"},
        {"DEL in a name", open + u8_entry("a\x7f", 0, 1) + "}", 1, "name holds a control character"},
        {"climbing name", open + u8_entry("../../x", 0, 1) + "}", 1, "looks like a path out of a directory"},
        {"climbing name inside", open + u8_entry("a/../../x", 0, 1) + "}", 1,
         "looks like a path out of a directory"},
        {"absolute name", open + u8_entry("/etc/passwd", 0, 1) + "}", 1,
         "looks like a path out of a directory"},
    };
    CHECK(attacks.size() >= 60);
    for (const Attack& attack : attacks) {
        const std::string outcome = outcome_of(dir, file_of(attack.header, attack.data_bytes));
        INFO(attack.what, ": ", outcome);
        CHECK(outcome.starts_with("4: "));
        CHECK(contains(outcome, attack.message));
    }
}

TEST_CASE("safetensors attacks: a header of many entries is read in bounded time and memory") {
    const TempDir dir;
    std::string header = "{";
    for (int i = 0; i < 100'000; ++i) {
        header += i > 0 ? "," : "";
        header += fmt::format(R"("t{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i);
    }
    CHECK(outcome_of(dir, file_of(header + "}", 0)) == "no error");
    CHECK(io::SafetensorsFile::open(dir / "x").tensors().size() == 100'000);
}

TEST_CASE("safetensors: odd but legal files are accepted") {
    const TempDir dir;
    const std::vector<Attack> legal{
        {"nothing", "{}", 0, ""},
        {"white space around", " \n{}\t ", 0, ""},
        {"metadata null", R"({"__metadata__":null})", 0, ""},
        {"scalar", entry(R"("F32")", "[]", "[0,4]"), 4, ""},
        {"no elements", entry(R"("F32")", "[0]", "[0,0]"), 0, ""},
        {"no elements, zero before huge dims", entry(R"("U8")", "[0,1099511627776,1099511627776]", "[0,0]"),
         0, ""},
        {"several empty tensors in one place",
         open + u8_entry("a", 0, 0) + "," + u8_entry("b", 0, 0) + "," + u8_entry("c", 0, 1) + "}", 1, ""},
        {"listed backwards", open + u8_entry("b", 1, 3) + "," + u8_entry("a", 0, 1) + "}", 3, ""},
        {"fields in another order", R"({"t":{"data_offsets":[0,1],"shape":[1],"dtype":"U8"}})", 1, ""},
        {"an even count of 4-bit elements", entry(R"("F4")", "[4]", "[0,2]"), 2, ""},
        {"a slash in a name", open + u8_entry("layer/0..1/w", 0, 1) + "}", 1, ""},
    };
    for (const Attack& file : legal) {
        const std::string outcome = outcome_of(dir, file_of(file.header, file.data_bytes));
        INFO(file.what, ": ", outcome);
        CHECK(outcome == "no error");
    }
}
