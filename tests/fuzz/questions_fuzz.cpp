// A file of questions. What is accepted has a context, a question and answers on every line, none of them empty.
#include "data/questions.h"
#include "fuzz/target.h"

using namespace longreach;
using namespace longreach::fuzz;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text = text_of(data, size);
    accepts([&] {
        int64_t line = 0;
        for (const data::Question& q : data::parse_questions(text, "questions.jsonl")) {
            holds(q.line > line, "lines do not rise");
            line = q.line;
            holds(!q.context.empty() && !q.question.empty() && !q.answers.empty(), "a part is missing");
            for (const std::string& answer : q.answers) holds(!answer.empty(), "an empty answer");
            holds(is_utf8(q.context) && is_utf8(q.question), "a text that is not UTF-8");
        }
    });
    return 0;
}
