// Renders chat templates, for the comparison with jinja2 (chat_peer.py): each line of standard input is an object with
// `template` and `variables`; each line of standard output has `text`, or `error` and its `line`.
#include <iostream>

#include "base/json.h"
#include "serve/chat_template.h"

using namespace longreach;
using namespace longreach::serve;

namespace {

TemplateValue value_of(const json::Value& value) {
    if (const std::string* text = value.to_string())
        return TemplateValue::text(MarkedText(*text, MarkedText::foreign));
    if (const std::optional<bool> flag = value.to_bool()) return TemplateValue::boolean(*flag);
    if (const std::optional<int64_t> number = value.to_int64()) return TemplateValue::integer(*number);
    if (value.is_null()) return {};
    if (const json::Array* array = value.to_array()) {
        TemplateList list;
        for (const json::Value& element : *array) list.push_back(value_of(element));
        return TemplateValue::list(std::move(list));
    }
    TemplateDict dict;
    for (const json::Member& member : value.as_object())
        dict.emplace_back(member.key, value_of(member.value));
    return TemplateValue::dict(std::move(dict));
}

json::Value rendered(const json::Value& asked) {
    TemplateDict variables;
    for (const json::Member& member : asked.find("variables")->as_object())
        variables.emplace_back(member.key, value_of(member.value));
    try {
        const ChatTemplate chat(asked.find("template")->as_string());
        return json::Value::object({{"text", chat.render(variables, 0).bytes}});
    } catch (const TemplateError& error) {
        return json::Value::object({{"error", error.what()}, {"line", error.line()}});
    }
}

}  // namespace

int main() {
    for (std::string line; std::getline(std::cin, line);)
        std::cout << json::write(rendered(json::parse(line, "stdin")), json::Style::compact) << "\n";
}
