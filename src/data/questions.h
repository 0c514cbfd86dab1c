// Questions about texts, as people keep them: a JSON object per line with a context, a question and its answers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longreach::data {

struct Question {
    std::string context, question;
    std::vector<std::string> answers;  // the first is scored; none is empty
    int64_t line = 0;                  // of the file, from 1
};

// data/formats/tasks.md has the fields. `path` is for the messages. Error(ExitCode::data) names the line; blank lines are
// passed over, a file without a question is an error.
std::vector<Question> parse_questions(std::string_view text, const std::string& path);
std::vector<Question> read_questions(const std::string& path);

}  // namespace longreach::data
