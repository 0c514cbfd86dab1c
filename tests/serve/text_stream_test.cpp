// Text that arrives in pieces: characters and stop strings across their borders.
#include "serve/text_stream.h"

#include <doctest/doctest.h>

#include "base/rng.h"
#include "base/text.h"

using namespace longreach;
using serve::TextStream;

namespace {

struct Outcome {
    std::string text;
    bool stopped;
};

// The bytes in pieces of the lengths that `cut` gives.
template <class Cut>
Outcome in_pieces(std::string_view bytes, const std::vector<std::string>& stops, Cut cut) {
    TextStream stream(stops);
    std::string text;
    for (size_t at = 0, i = 0; at < bytes.size(); ++i) {
        const size_t length = std::min<size_t>(cut(i), bytes.size() - at);
        const std::string piece = stream.add(bytes.substr(at, length));
        CHECK(is_utf8(piece));
        text += piece;
        at += length;
    }
    text += stream.finish();
    return {text, stream.stopped()};
}

}  // namespace

TEST_CASE("text stream: a character split over tokens appears whole, at once") {
    TextStream stream;
    CHECK(stream.add("a\xE2") == "a");
    CHECK(stream.add("\x82") == "");
    CHECK(stream.add("\xAC!") == "\xE2\x82\xAC!");
    CHECK(stream.characters() == 3);
    CHECK(stream.finish() == "");
}

TEST_CASE("text stream: bytes that are no character become U+FFFD, one each") {
    CHECK(serve::to_utf8("\xFF") == "\xEF\xBF\xBD");
    CHECK(serve::to_utf8("\xE2\x82") == "\xEF\xBF\xBD\xEF\xBF\xBD");                  // cut off
    CHECK(serve::to_utf8("\xE2\x82z") == "\xEF\xBF\xBD\xEF\xBF\xBDz");                // broken off
    CHECK(serve::to_utf8("\xED\xA0\x80") == "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");  // a surrogate
    CHECK(serve::to_utf8("\xF0\x9F\x98\x80") == "\xF0\x9F\x98\x80");
    TextStream stream;
    CHECK(stream.add("\xED\xA0") == "\xEF\xBF\xBD\xEF\xBF\xBD");  // no third byte makes it a character
    CHECK(stream.add("\xF4\x8F") == "");
}

TEST_CASE("text stream: a stop string is found across pieces, and what may begin one waits") {
    TextStream stream({"END", "\n\n"});
    CHECK(stream.add("one E") == "one ");
    CHECK(stream.add("N") == "");
    CHECK(stream.add("T\n") == "ENT");
    CHECK(!stream.stopped());
    CHECK(stream.add("\nmore") == "");
    CHECK(stream.stopped());
    CHECK(stream.add("x") == "");
    CHECK(stream.finish() == "");
}

TEST_CASE("text stream: the first stop string ends the text, whichever it is") {
    const auto whole = [](size_t) { return size_t{100}; };
    CHECK(in_pieces("a bc b", {"bc", "b"}, whole).text == "a ");
    CHECK(in_pieces("aab", {"ab"}, [](size_t) { return size_t{1}; }).text == "a");
    CHECK(in_pieces("abab", {"abac", "bab"}, [](size_t) { return size_t{1}; }).text == "a");
    CHECK(in_pieces("abc", {"abcd"}, whole).text == "abc");  // what waited comes at the end
    CHECK(!in_pieces("abc", {"abcd"}, whole).stopped);
}

TEST_CASE("text stream: no way to cut the bytes changes the text") {
    const Rng rng(3, Purpose::test);
    const std::vector<std::string> parts = {"a",    "b",    "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                            "\xFF", "\xE2", "ab"};
    uint64_t at = 0;
    size_t stopped = 0;
    for (int round = 0; round < 2000; ++round) {
        std::string bytes;
        for (int i = 0; i < 12; ++i) bytes += parts[rng.below(at++, parts.size())];
        const std::vector<std::string> stops = {"ab\xC3\xA9", "bb",
                                                "\xF0\x9F\x98\x80"
                                                "a"};
        const Outcome expected = in_pieces(bytes, stops, [](size_t) { return size_t{1000}; });
        const Outcome by_byte = in_pieces(bytes, stops, [](size_t) { return size_t{1}; });
        const Outcome random = in_pieces(bytes, stops, [&](size_t) { return 1 + rng.below(at++, 4); });
        CHECK(by_byte.text == expected.text);
        CHECK(random.text == expected.text);
        CHECK(by_byte.stopped == expected.stopped);
        // Independently: the whole text, cut at its first stop string.
        std::string text = serve::to_utf8(bytes);
        size_t first = std::string::npos;
        for (const std::string& stop : stops) first = std::min(first, text.find(stop));
        CHECK(expected.text == text.substr(0, first));
        stopped += expected.stopped;
    }
    CHECK(stopped > 100);
    CHECK(stopped < 1900);
}

TEST_CASE("the stop string that is complete first ends the text, however its bytes are cut") {
    for (const size_t length : {1, 2, 3, 4, 5}) {
        serve::TextStream stream({"aabc", "ab", "abc"});
        std::string text;
        const std::string bytes = "xaabc";
        for (size_t at = 0; at < bytes.size(); at += length) text += stream.add(bytes.substr(at, length));
        CHECK(text + stream.finish() == "xa");
        CHECK(stream.stopped());
    }
}
