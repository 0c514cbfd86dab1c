// Normal forms: those of utf8proc, in time that grows with the text.
#include <doctest/doctest.h>
#include <utf8proc.h>

#include <array>
#include <chrono>
#include <cstdlib>

#include "base/interruption.h"
#include "base/rng.h"
#include "tokenizer/unicode.h"

using namespace longreach;
using tokenizer::NormalForm;

namespace {

constexpr std::array forms = {NormalForm::nfc, NormalForm::nfd, NormalForm::nfkc, NormalForm::nfkd};

void append(std::string& text, int32_t point) {
    std::array<utf8proc_uint8_t, 4> bytes{};
    const auto count = utf8proc_encode_char(point, bytes.data());
    text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
}

std::string by_utf8proc(const std::string& text, NormalForm form) {
    const bool composed = form == NormalForm::nfc || form == NormalForm::nfkc;
    int options = UTF8PROC_STABLE | (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
    if (form == NormalForm::nfkc || form == NormalForm::nfkd) options |= UTF8PROC_COMPAT;
    utf8proc_uint8_t* result = nullptr;
    const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &result,
                                               static_cast<utf8proc_option_t>(options));
    REQUIRE(size >= 0);
    std::string normal(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
    std::free(result);
    return normal;
}

double seconds_of(const std::string& text) {
    const auto begin = std::chrono::steady_clock::now();
    tokenizer::normalize(text, NormalForm::nfc);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("normal forms are utf8proc's, for every character and for marks in any order") {
    std::string all;
    for (int32_t point = 1; point < 0x110000; ++point)
        if (utf8proc_codepoint_valid(point)) append(all, point);
    for (const NormalForm form : forms) CHECK(tokenizer::normalize(all, form) == by_utf8proc(all, form));
    // Ranges with marks of many classes, marks that decompose, Hangul, singletons, and ASCII between them.
    constexpr std::array<std::array<int32_t, 2>, 10> ranges = {{{0x300, 0x36F},
                                                                {0x41, 0x7A},
                                                                {0xC0, 0x17F},
                                                                {0x591, 0x5C7},
                                                                {0x64B, 0x65F},
                                                                {0x93C, 0x94D},
                                                                {0x1100, 0x11FF},
                                                                {0xAC00, 0xAC40},
                                                                {0x1E00, 0x1FFF},
                                                                {0x1D15E, 0x1D1AD}}};
    const Rng rng(3, Purpose::test);
    uint64_t draw = 0;
    for (int round = 0; round < 300; ++round) {
        std::string text;
        const uint64_t marks = rng.below(draw++, 10);
        for (int i = 0; i < 200; ++i) {
            const auto& range = ranges[rng.below(draw++, 10) < marks ? 0 : rng.below(draw++, ranges.size())];
            append(text, range[0] + static_cast<int32_t>(
                                        rng.below(draw++, static_cast<uint64_t>(range[1] - range[0] + 1))));
        }
        for (const NormalForm form : forms)
            REQUIRE(tokenizer::normalize(text, form) == by_utf8proc(text, form));
    }
}

TEST_CASE("a text is cut for its normal form where nothing changes") {
    for (const size_t before : {65535, 65536, 65537}) {
        std::string text(before, 'e');
        for (int i = 0; i < 100; ++i) text += i % 2 == 0 ? "\u0301\u0323" : "\u0323\u0301";
        text += "x" + std::string(70000, 'y') + "\u0301";
        CHECK(tokenizer::normalize(text, NormalForm::nfc) == by_utf8proc(text, NormalForm::nfc));
    }
}

TEST_CASE("a run of marks takes time in proportion to its length, and ends when it is unwanted") {
    std::string marks;
    for (int i = 0; i < 400000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
    const double some = seconds_of("a" + marks.substr(0, 80000)), all = seconds_of("a" + marks);
    MESSAGE("80 KB in " << some << " s, 800 KB in " << all << " s");  // the square would take minutes
    CHECK(all < 5);
    const Interruption unwanted([] { return true; });
    CHECK_THROWS_AS(tokenizer::normalize(marks, NormalForm::nfc), Interrupted);
}
