#include "base/text.h"

#include <doctest/doctest.h>

#include <string>

using namespace longreach;

TEST_CASE("utf8: lengths of well-formed sequences, zero for all others") {
    CHECK(utf8_sequence("a") == 1);
    CHECK(utf8_sequence("\u00e9!") == 2);
    CHECK(utf8_sequence("\u20ac") == 3);
    CHECK(utf8_sequence("\U0001F600") == 4);
    CHECK(utf8_sequence("\xF4\x8F\xBF\xBF") == 4);  // U+10FFFF
    for (const char* bad : {"", "\x80", "\xC0\xAF", "\xC1\xBF", "\xE0\x80\xAF", "\xED\xA0\x80",
                            "\xED\xBF\xBF", "\xF0\x80\x80\xAF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80",
                            "\xFF", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xC3(", "\xE2(\xA1"}) {
        CAPTURE(quoted(bad));
        CHECK(utf8_sequence(bad) == 0);
    }
    CHECK(is_utf8("caf\u00e9"));
    CHECK_FALSE(is_utf8("caf\xe9"));
    CHECK(utf8_length("caf\u00e9 \U0001F600") == 6);
}

TEST_CASE("quoted and shown keep a message on one line") {
    CHECK(quoted("a\"b\\c\n\t\x1b\x7f") == R"("a\"b\\c\n\t\u001b\u007f")");
    CHECK(quoted("\xff!") == R"("\xff!")");
    CHECK(quoted("\u00e9\u00e9\u00e9", 2) == "\"\u00e9\u00e9...\"");
    CHECK(one_line("a \"b\"\n\x1b\u00e9\xff") == "a \"b\"\\n\\u001b\u00e9\\xff");
    CHECK(shown("runs/a-1_b.json") == "runs/a-1_b.json");
    CHECK(shown("a b") == "\"a b\"");
    CHECK(shown("") == "\"\"");
}

TEST_CASE("joining and counting") {
    CHECK(join({}, ", ").empty());
    CHECK(join({"a", "b"}, ", ") == "a, b");
    CHECK(alternatives({}).empty());
    CHECK(alternatives({"a"}) == "a");
    CHECK(alternatives({"a", "b", "c"}) == "a, b or c");
    CHECK(counted(1, "problem") == "1 problem");
    CHECK(counted(0, "problem") == "0 problems");
}

TEST_CASE("edit distance counts inserts, deletes, replacements and swaps of neighbours") {
    CHECK(edit_distance("width", "width", 2) == 0);
    CHECK(edit_distance("widht", "width", 2) == 1);
    CHECK(edit_distance("wdth", "width", 2) == 1);
    CHECK(edit_distance("wiidth", "width", 2) == 1);
    CHECK(edit_distance("wodth", "width", 2) == 1);
    CHECK(edit_distance("headDim", "head_dim", 2) == 2);
    CHECK(edit_distance("", "ab", 2) == 2);
    CHECK(edit_distance("kitten", "sitting", 5) == 3);
    CHECK(edit_distance("kitten", "sitting", 2) == 3);  // limit + 1
    CHECK(edit_distance(std::string(1 << 20, 'a'), "a", 2) == 3);
}

TEST_CASE("nearest: few edits first, then prefixes, never the unrelated") {
    const std::vector<std::string> keys = {"width", "window", "heads", "head_dim", "tau"};
    CHECK(nearest("widht", keys, 3) == std::vector<std::string>{"width"});
    CHECK(nearest("head", keys, 3) == std::vector<std::string>{"heads", "head_dim"});
    CHECK(nearest("head", keys, 1) == std::vector<std::string>{"heads"});
    CHECK(nearest("win", keys, 3) == std::vector<std::string>{"window"});
    CHECK(nearest("xy", keys, 3).empty());
    CHECK(nearest("", keys, 3).empty());
}
