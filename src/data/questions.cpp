#include "data/questions.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "io/file.h"

namespace longreach::data {

namespace {

constexpr uint64_t largest_file = uint64_t{1} << 28;
constexpr size_t longest_line = size_t{1} << 24;

bool blank(std::string_view text) {
    return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string text_of(const json::Value& object, const char* field, const std::string& where) {
    const json::Value* value = object.find(field);
    require(value != nullptr, ExitCode::data, "{} has no field {}", where, field);
    require(!value->is_array() && !value->is_object(), ExitCode::data,
            "{}: {} is not a text; paragraphs in a list must be joined to one", where, field);
    const std::string* text = value->to_string();
    require(text != nullptr, ExitCode::data, "{}: {} is not a text", where, field);
    require(!blank(*text), ExitCode::data, "{}: {} is empty", where, field);
    return *text;
}

// "answers": [...], or {"text": [...]} as in SQuAD, or "answer": "...".
std::vector<std::string> answers_of(const json::Value& object, const std::string& where) {
    const json::Value *several = object.find("answers"), *one = object.find("answer");
    require(several == nullptr || one == nullptr, ExitCode::data, "{} has both answers and answer", where);
    if (one != nullptr) return {text_of(object, "answer", where)};
    require(several != nullptr, ExitCode::data, "{} has no field answers", where);
    if (several->is_object()) several = several->find("text");
    const json::Array* list = several ? several->to_array() : nullptr;
    require(list != nullptr, ExitCode::data,
            "{}: answers is neither a list of texts nor an object with such a list as \"text\"", where);
    require(!list->empty(), ExitCode::data,
            "{}: the question has no answer; questions without one cannot be scored", where);
    std::vector<std::string> answers;
    for (const json::Value& value : *list) {
        const std::string* text = value.to_string();
        require(text != nullptr, ExitCode::data, "{}: an answer is not a text", where);
        require(!blank(*text), ExitCode::data, "{}: an answer is empty", where);
        answers.push_back(*text);
    }
    return answers;
}

}  // namespace

std::vector<Question> parse_questions(std::string_view text, const std::string& path) {
    std::vector<Question> out;
    int64_t number = 0;
    while (!text.empty()) {
        ++number;
        const size_t newline = text.find('\n');
        const std::string_view line = text.substr(0, newline);
        text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
        if (blank(line)) continue;
        const std::string where = fmt::format("{} line {}", shown(path), number);
        json::ParseOptions options;
        options.max_bytes = longest_line;
        options.code = ExitCode::data;
        const json::Value object = json::parse(line, where, options);
        require(object.is_object(), ExitCode::data, "{} is not a JSON object", where);
        out.push_back({text_of(object, "context", where), text_of(object, "question", where),
                       answers_of(object, where), number});
    }
    require(!out.empty(), ExitCode::data, "{}: no questions", shown(path));
    return out;
}

std::vector<Question> read_questions(const std::string& path) {
    return parse_questions(io::read_file(path, largest_file, io::Links::follow), path);
}

}  // namespace longreach::data
