// Files of questions: which forms are read, and what is refused with which line.
#include <doctest/doctest.h>

#include "base/error.h"
#include "data/questions.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;

namespace {

std::string refusal(const std::string& text) {
    try {
        data::parse_questions(text, "q.jsonl");
    } catch (const Error& e) {
        CHECK(e.code() == ExitCode::data);
        return e.what();
    }
    return "";
}

}  // namespace

TEST_CASE("questions: a list of answers, SQuAD's object and a single answer; other fields are passed over") {
    const TempDir dir;
    put(dir / "q.jsonl",
        "{\"id\": 1, \"context\": \"c 1\", \"question\": \"q 1\", \"answers\": [\"a\", \"b\"]}\n"
        "\n"
        "{\"title\": \"t\", \"context\": \"c 2\", \"question\": \"q 2\", "
        "\"answers\": {\"text\": [\"d\"], \"answer_start\": [0]}}\r\n"
        "{\"context\": \"c 3\", \"question\": \"q 3\", \"answer\": \"e\"}");
    const std::vector<data::Question> questions = data::read_questions(dir / "q.jsonl");
    REQUIRE(questions.size() == 3);
    CHECK(questions[0].context == "c 1");
    CHECK(questions[0].question == "q 1");
    CHECK(questions[0].answers == std::vector<std::string>{"a", "b"});
    CHECK(questions[1].answers == std::vector<std::string>{"d"});
    CHECK(questions[1].line == 3);
    CHECK(questions[2].answers == std::vector<std::string>{"e"});
    CHECK(questions[2].line == 4);
}

TEST_CASE("questions: what is malformed is refused with its line") {
    const std::string good = "{\"context\": \"c\", \"question\": \"q\", \"answers\": [\"a\"]}\n";
    const auto second = [&](const std::string& line) { return refusal(good + line); };
    CHECK(refusal("") == "q.jsonl: no questions");
    CHECK(refusal("\n \n") == "q.jsonl: no questions");
    CHECK(second("[1]") == "q.jsonl line 2 is not a JSON object");
    CHECK(second("{\"context\": ").starts_with("q.jsonl line 2:1:13: "));
    CHECK(second("{\"question\": \"q\", \"answers\": [\"a\"]}") == "q.jsonl line 2 has no field context");
    CHECK(second("{\"context\": \"c\", \"answers\": [\"a\"]}") == "q.jsonl line 2 has no field question");
    CHECK(second("{\"context\": \"c\", \"question\": \"q\"}") == "q.jsonl line 2 has no field answers");
    CHECK(second("{\"context\": {\"title\": []}, \"question\": \"q\", \"answer\": \"a\"}") ==
          "q.jsonl line 2: context is not a text; paragraphs in a list must be joined to one");
    CHECK(second("{\"context\": \"c\", \"question\": 3, \"answer\": \"a\"}") ==
          "q.jsonl line 2: question is not a text");
    CHECK(second("{\"context\": \" \", \"question\": \"q\", \"answer\": \"a\"}") ==
          "q.jsonl line 2: context is empty");
    CHECK(second("{\"context\": \"c\", \"question\": \"q\", \"answer\": \"a\", \"answers\": [\"a\"]}") ==
          "q.jsonl line 2 has both answers and answer");
    CHECK(second("{\"context\": \"c\", \"question\": \"q\", \"answers\": \"a\"}") ==
          "q.jsonl line 2: answers is neither a list of texts nor an object with such a list as \"text\"");
    for (const char* none : {"[]", "{\"text\": []}"})
        CHECK(second(fmt::format("{{\"context\": \"c\", \"question\": \"q\", \"answers\": {}}}", none)) ==
              "q.jsonl line 2: the question has no answer; questions without one cannot be scored");
    CHECK(second("{\"context\": \"c\", \"question\": \"q\", \"answers\": [\"\"]}") ==
          "q.jsonl line 2: an answer is empty");
    CHECK(second("{\"context\": \"c\", \"question\": \"q\", \"answers\": [1]}") ==
          "q.jsonl line 2: an answer is not a text");
}
