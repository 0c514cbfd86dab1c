#include "text/synth.h"

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <map>

#include "text/inspect.h"
#include "data/shard_fixtures.h"
#include "data/token_stream.h"

using namespace longreach;
using namespace longreach::test;

namespace {

bool is_digits(const std::string& text) {
    return text.size() == 5 && text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

TEST_CASE("every question repeats its fact, at the distance it states") {
    const text::SynthOptions options;
    size_t recalls = 0;
    for (uint32_t index = 0; index < 40; ++index) {
        const text::SynthDocument document = text::synth_document(options, index);
        CHECK(document.text.size() >= options.min_document);
        CHECK(document.text.size() <= options.max_document);
        for (const text::Recall& recall : document.recalls) {
            const std::string digits = document.text.substr(recall.position, 5);
            REQUIRE(is_digits(digits));
            REQUIRE(document.text.substr(recall.position - recall.distance, 5) == digits);
            REQUIRE(recall.distance >= options.min_distance);
            const std::string question =
                document.text.substr(recall.position - 16, 16);  // "What is Karumi? "
            REQUIRE(question.starts_with("What is "));
            const std::string fact = document.text.substr(recall.position - recall.distance - 10, 10);
            REQUIRE(fact == question.substr(8, 6) + " is ");
            // Stated exactly once, so the nearest way to the digits is the distance.
            REQUIRE(document.text.find(question.substr(8, 6) + " is ") ==
                    recall.position - recall.distance - 10);
            ++recalls;
        }
    }
    CHECK(recalls > 1000);
}

TEST_CASE("distances are uniform over octaves where the document is long enough") {
    text::SynthOptions options;
    options.min_document = options.max_document = 1 << 18;
    options.max_distance = (1 << 14) - 1;
    std::map<int, int> octaves;
    int total = 0;
    for (uint32_t index = 0; index < 40; ++index)
        for (const text::Recall& recall : text::synth_document(options, index).recalls) {
            ++octaves[std::bit_width(recall.distance) - 1];
            ++total;
        }
    // Octaves 6 to 13, one eighth each; a question waits for the end of a sentence, which moves
    // the shortest ones up.
    for (int octave = 8; octave <= 13; ++octave) {
        INFO("octave ", octave, ": ", octaves[octave], " of ", total);
        CHECK(octaves[octave] > total / 8 * 85 / 100);
        CHECK(octaves[octave] < total / 8 * 125 / 100);
    }
}

TEST_CASE("a seed gives one corpus, other seeds and documents give others") {
    const TempDir dir;
    text::SynthOptions options{.output = dir / "a", .seed = 3, .train_bytes = 300'000, .val_bytes = 50'000};
    const text::SynthResult first = text::synthesize(options);
    options.output = dir / "b";
    const text::SynthResult second = text::synthesize(options);
    CHECK(first.train.fingerprint == second.train.fingerprint);
    CHECK(first.val.fingerprint == second.val.fingerprint);
    CHECK(first.train.fingerprint != first.val.fingerprint);
    CHECK(first.train.source_bytes >= 300'000);
    CHECK(first.recalls == second.recalls);
    options.seed = 4;
    options.replace = true;
    CHECK(text::synthesize(options).train.fingerprint != first.train.fingerprint);
    CHECK(text::synth_document(options, 0).text != text::synth_document(options, 1).text);

    // An on-disk fact: published results name the seed.
    const text::SynthOptions published;
    CHECK(format_hash64(xxh64(text::synth_document(published, 0).text)) == "ce538015e60078b6");

    const data::TokenStream stream =
        data::TokenStream::open(first.train.shards, {.vocab = 257, .need_documents = true});
    CHECK(stream.source_bytes() == first.train.source_bytes);
    CHECK(text::verify({dir / "a"}, {.vocab = 257}).problems.empty());
}

TEST_CASE("the filler is a language of few words with a structure to learn") {
    text::SynthOptions options;
    options.min_document = options.max_document = 1 << 20;
    const std::string text = text::synth_document(options, 0).text;
    std::map<std::string, std::map<std::string, int>> next;
    std::string word, previous;
    for (const char c : text) {
        if (c >= 'a' && c <= 'z') {
            word += c;
        } else {
            if (!word.empty() && !previous.empty() && c == ' ') ++next[previous][word];
            previous = c == ' ' ? word : "";
            word.clear();
        }
    }
    int common = 0, dominated = 0;  // words seen often; those with one successor at least 40% of the time
    for (const auto& [first, followers] : next) {
        int total = 0, most = 0;
        for (const auto& [second, count] : followers) {
            total += count;
            most = std::max(most, count);
        }
        if (total <= 200) continue;
        ++common;
        if (most > total * 2 / 5) ++dominated;
    }
    CHECK(common > 100);
    CHECK(common <= 256);
    CHECK(dominated > common * 9 / 10);
}

TEST_CASE("options that make no sense are refused") {
    const TempDir dir;
    const auto outcome = [&](auto change) {
        text::SynthOptions options{.output = dir / "x", .train_bytes = 1000, .val_bytes = 0};
        change(options);
        return error_of([&] { text::synthesize(options); });
    };
    CHECK(contains(outcome([](text::SynthOptions& o) { o.min_document = 10; }), "2: documents of 10 to"));
    CHECK(contains(outcome([](text::SynthOptions& o) { o.max_document = 100; }),
                   "2: documents of 4096 to 100"));
    CHECK(contains(outcome([](text::SynthOptions& o) { o.min_distance = 1; }), "2: distances of 1"));
    CHECK(contains(outcome([](text::SynthOptions& o) { o.max_distance = 20; }), "2: distances of 64 to 20"));
    CHECK(contains(outcome([](text::SynthOptions& o) { o.fact_every = 3; }), "2: a fact every 3"));
    CHECK(contains(outcome([](text::SynthOptions& o) { o.train_bytes = 0; }), "2: 0 bytes"));
    CHECK(contains(outcome([](text::SynthOptions& o) { o.output = ""; }), "2: no output directory"));
    CHECK(outcome([](text::SynthOptions&) {}) == "no error");
}
