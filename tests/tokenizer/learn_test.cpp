#include "tokenizer/learn.h"

#include <doctest/doctest.h>

#include "io/temp_dir.h"
#include "tokenizer/tiny_vocabulary.h"

using namespace longreach;
using namespace longreach::test;
using namespace longreach::tokenizer;

namespace {

using Texts = std::vector<std::string>;

// The tokens learned after the first 257.
Texts learned_from(const Texts& documents, int64_t more, int64_t min_count = 1) {
    WordCounter counter;
    for (const std::string& document : documents) counter.add(document);
    const Learned learned = counter.learn({.vocab = learned_first_tokens + more, .min_count = min_count});
    return {learned.tokens.begin() + learned_first_tokens, learned.tokens.end()};
}

}  // namespace

TEST_CASE("the most frequent pair is learned first, of equal ones that of smaller ids") {
    // ab 3, bc 2, cd 2: after ab, the pairs (b, c) of "bc" and (c, d) of "cd" are equally frequent.
    CHECK(learned_from({"ab", "ab", "ab", "bc", "bc", "cd", "cd"}, 3) == Texts{"ab", "bc", "cd"});
    CHECK(learned_from({"cd", "bc", "ab", "cd", "bc", "ab", "ab"}, 3) == Texts{"ab", "bc", "cd"});
}

TEST_CASE("counts follow the merges, in runs of one letter as well") {
    // aaaa: (a, a) 3 times; then (aa, aa) once.
    CHECK(learned_from({"aaaa", "aaa"}, 3) == Texts{"aa", "aaa", "aaaa"});
    CHECK(learned_from({"abcabc", "abc"}, 2) == Texts{"ab", "abc"});
}

TEST_CASE("rare pairs are no tokens, and words do not join") {
    CHECK(learned_from({"ab", "ab", "cd"}, 10, 2) == Texts{"ab"});
    CHECK(learned_from({"a b", "a b"}, 10, 2) == Texts{" b"});
    CHECK(learned_from({"\xFF\xFE", "\xFF\xFE"}, 10, 2) == Texts{"\xFF\xFE"});
    CHECK(
        contains(error_of([] { learned_from({"a"}, -1); }), "2: a vocabulary of 256 tokens; 257 are needed"));
}

TEST_CASE("what is learned is a tokenizer.json that encodes the text in few tokens") {
    WordCounter counter;
    counter.add("the cat and the other cat");
    const json::Value file = to_json(counter.learn({.vocab = 300, .min_count = 2}));
    const auto tokenizer = make(file);
    CHECK(tokenizer->document_boundary() == 0);
    CHECK(tokenizer->decode(ids_of(tokenizer, "the cat\xFF")) == "the cat\xFF");
    CHECK(ids_of(tokenizer, " cat").size() == 1);
}
