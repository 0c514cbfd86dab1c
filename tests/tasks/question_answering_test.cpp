// Questions on a text of the user: the passage with the answer lies where it should, among passages without it.
#include "tasks/question_answering.h"

#include <doctest/doctest.h>

#include <set>

#include "base/error.h"
#include "tasks/oracle.h"

using namespace longreach;
using namespace longreach::test;

namespace {

tasks::TokenList bytes(std::string_view text) {
    tasks::TokenList out;
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
}

// Forty passages of 80 to 119 bytes, question i asks for the word of passage i. Passage 39 also holds the word of 38.
std::vector<data::Question> questions() {
    std::vector<data::Question> out;
    for (int i = 0; i < 40; ++i) {
        const std::string word = fmt::format("word{:02}x", i);
        std::string context = fmt::format("The word of place {:02} is {}.", i, word);
        if (i == 39) context += " It is not word38x.";
        context += std::string(static_cast<size_t>(80 + i) - context.size(), '.');
        out.push_back({context, fmt::format("Which word has place {:02}?", i), {word, "other"}, i + 1});
    }
    return out;
}

tasks::QuestionSamples samples_of(uint64_t seed = 1, int64_t shortest = 256) {
    return {questions(), "q.jsonl", bytes, shortest, seed};
}

constexpr uint64_t first = tasks::first_evaluation_sample;

std::string refusal(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& e) {
        CHECK(e.code() == ExitCode::data);
        return e.what();
    }
    return "";
}

}  // namespace

TEST_CASE("qa: a reader of the prompt finds the answer, in one passage only, at every length") {
    const tasks::QuestionSamples source = samples_of();
    for (const int64_t length : {256, 257, 1000, 2048, 3000}) {
        std::set<std::string> answers;
        for (uint64_t i = 0; i < 40; ++i) {
            const tasks::Sample s = source.make(length, first + i, -1);
            REQUIRE(static_cast<int64_t>(s.tokens.size()) == length);
            const std::string context = as_text(s, 0, s.context),
                              tail = as_text(s, s.context, s.answer_begin),
                              answer = as_text(s, s.answer_begin, length);
            CHECK(tail.starts_with("Question: Which word has place "));
            CHECK(tail.ends_with("?\nAnswer:"));
            const std::string place = text_after(tail, "place ", "?");
            CHECK(" " + text_after(context, "The word of place " + place + " is ", ".") == answer);
            CHECK(all_text_after(context, answer.substr(1), "\n").size() == 1);
            CHECK(s.reference_ends == std::vector<int64_t>{s.answer_tokens()});
            CHECK(s.decoy.empty());
            answers.insert(answer);
            // Whole passages but for the first, none twice.
            std::vector<std::string> passages = split(context, "\n\n");
            REQUIRE(passages.back().empty());
            passages.pop_back();
            CHECK(std::set<std::string>(passages.begin(), passages.end()).size() == passages.size());
            for (size_t p = 1; p < passages.size(); ++p)
                CHECK(passages[p].starts_with("Passage: The word of place "));
        }
        CHECK(answers.size() == 40);  // each question once
    }
    CHECK(source.samples(100) == 40);
    CHECK(source.samples(7) == 7);
}

TEST_CASE("qa: a depth moves the passage among the others, which stay as they are") {
    const tasks::QuestionSamples source = samples_of();
    for (uint64_t i = 0; i < 10; ++i) {
        std::vector<std::string> others;
        for (const double depth : {0.0, 25.0, 50.0, 100.0}) {
            const tasks::Sample s = source.make(2000, first + i, depth);
            // 2,000 bytes hold 13 to 21 other passages; half a passage is less than 4 percent.
            CHECK(std::abs(s.depth - depth) < 4);
            std::string context = as_text(s, 0, s.context);
            const std::string place = text_after(as_text(s, s.context, s.answer_begin), "place ", "?");
            const size_t at = context.find("Passage: The word of place " + place);
            REQUIRE(at != std::string::npos);
            CHECK(std::abs(static_cast<double>(at) / static_cast<double>(s.context) * 100 - depth) < 10);
            context.erase(at, context.find("\n\n", at) + 2 - at);
            others.push_back(context);
        }
        for (const std::string& text : others) CHECK(text == others[0]);
        // A longer context ends with the same passages, and has more before them.
        const tasks::Sample longer = source.make(2500, first + i, 100.0);
        std::string context = as_text(longer, 0, longer.context);
        context.erase(context.rfind("Passage: "));
        CHECK(context.ends_with(others[0].substr(others[0].find("Passage: "))));
    }
}

TEST_CASE("qa: samples depend on seed, length, index and depth alone") {
    const tasks::Sample s = samples_of().make(1500, first + 3, 50);
    CHECK(samples_of().make(1500, first + 3, 50).tokens == s.tokens);
    CHECK(samples_of(2).make(1500, first + 3, 50).tokens != s.tokens);
    CHECK(samples_of().make(1500, first + 4, 50).tokens != s.tokens);
    CHECK(samples_of().make(1500, first + 3, 100).tokens != s.tokens);
}

TEST_CASE("qa: questions that do not fit the shortest length are left out at all of them") {
    std::vector<int64_t> sizes;  // each a byte more than the one before
    for (const data::Question& q : questions())
        sizes.push_back(static_cast<int64_t>(
            ("Passage: " + q.context + "\n\nQuestion: " + q.question + "\nAnswer: " + q.answers[0]).size()));
    const tasks::QuestionSamples source = samples_of(1, sizes[9]);
    CHECK(source.left_out() == 30);
    CHECK(source.samples(100) == 10);
    CHECK(source.make(sizes[9], first, -1).tokens.size() == static_cast<size_t>(sizes[9]));
    const std::string none = refusal([&] { samples_of(1, sizes[0] - 1); });
    CHECK(none ==
          fmt::format(
              "q.jsonl: no question fits a context of {} tokens with its passage; the shortest takes {}",
              sizes[0] - 1, sizes[0]));
}

TEST_CASE("qa: too few other passages are an error that names the question and what is missing") {
    const tasks::QuestionSamples source = samples_of();
    source.check(4000, 40);
    const std::string message = refusal([&] { source.check(6000, 40); });
    CHECK(message.starts_with("q.jsonl line "));
    CHECK(message.find("a context of 6,000 tokens needs ") != std::string::npos);
    // Passages that hold an answer do not count: here all but the question's own.
    std::vector<data::Question> same = questions();
    for (data::Question& q : same) q.answers = {"The word"};
    const tasks::QuestionSamples nothing(same, "q.jsonl", bytes, 256, 1);
    CHECK(refusal([&] { nothing.check(1000, 1); }).find("without an answer to its question") !=
          std::string::npos);
}

TEST_CASE("qa: the answer's tokens are those of the text that goes on, where merges cross into it") {
    // Tokens of two bytes each from the front: the question's tail ends inside a token.
    const auto pairs = [](std::string_view text) {
        tasks::TokenList out;
        for (size_t i = 0; i < text.size(); i += 2)
            out.push_back((text[i] << 8) | (i + 1 < text.size() ? text[i + 1] : 0));
        return out;
    };
    const std::vector<data::Question> one{{"context", "q", {"answer"}, 1}};
    const std::string whole = "Question: q\nAnswer: answer";
    const int64_t length = static_cast<int64_t>(pairs("Passage: context\n\n").size() + pairs(whole).size());
    const tasks::Sample s = tasks::QuestionSamples(one, "q.jsonl", pairs, length, 1).make(length, first, 50);
    const tasks::TokenList expected = pairs(whole);
    CHECK(tasks::TokenList(s.tokens.begin() + s.context, s.tokens.end()) == expected);
    CHECK(s.answer_begin - s.context == static_cast<int64_t>(pairs("Question: q\nAnswer:").size()));
    CHECK(s.depth == 0);
}
