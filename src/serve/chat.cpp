#include "serve/chat.h"

#include <algorithm>

#include "base/interruption.h"
#include "base/json.h"
#include "base/text.h"
#include "io/file.h"

namespace longreach::serve {

namespace {

constexpr uint64_t largest_file = uint64_t{16} << 20;

std::optional<json::Value> read_json(const std::string& run, const char* name) {
    const std::string path = io::join_path(run, name);
    if (io::kind_of(path, io::Links::refuse) != io::PathKind::file) return std::nullopt;
    return json::parse(io::read_file(path, largest_file, io::Links::refuse), path,
                       {.max_bytes = largest_file, .code = ExitCode::data});
}

// A text, or the content of an object.
const std::string* text_of(const json::Value& value) {
    const json::Value* content = value.is_object() ? value.find("content") : &value;
    return content == nullptr ? nullptr : content->to_string();
}

void read_names(const json::Value& file, ChatFiles& to) {
    for (const char* name :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
        const json::Value* value = file.find(name);
        const std::string* text = value == nullptr ? nullptr : text_of(*value);
        const bool known =
            std::any_of(to.names.begin(), to.names.end(), [&](const auto& n) { return n.first == name; });
        if (text != nullptr && !known) to.names.emplace_back(name, *text);
    }
}

// A template, or the one among several that is named "default".
const std::string* template_in(const json::Value& file) {
    const json::Value* value = file.find("chat_template");
    if (value == nullptr) return nullptr;
    if (const json::Array* several = value->to_array())
        for (const json::Value& one : *several) {
            const json::Value *name = one.find("name"), *text = one.find("template");
            if (name != nullptr && text != nullptr && name->to_string() != nullptr &&
                name->as_string() == "default")
                return text->to_string();
        }
    return value->to_string();
}

void read_ends(const json::Value& file, ChatFiles& to) {
    const json::Value* value = file.find("eos_token_id");
    if (value == nullptr) return;
    const json::Array one{*value};
    for (const json::Value& id : value->to_array() != nullptr ? value->as_array() : one)
        if (const std::optional<int64_t> number = id.to_int64()) to.ends.push_back(*number);
}

TemplateValue dict_of(const ChatMessage& message) {
    const auto foreign = [](const std::string& text) {
        return TemplateValue::text(MarkedText(text, MarkedText::foreign));
    };
    TemplateDict members = {{"role", foreign(message.role)}, {"content", foreign(message.content)}};
    if (!message.name.empty()) members.emplace_back("name", foreign(message.name));
    return TemplateValue::dict(std::move(members));
}

bool is_blank(std::string_view text) {
    return without_space(text, true, false).first == text.size();
}

}  // namespace

ChatFiles read_chat_files(const std::string& run, const std::string& given) {
    ChatFiles files;
    if (const auto config = read_json(run, "tokenizer_config.json")) {
        read_names(*config, files);
        if (const std::string* text = template_in(*config)) {
            files.source = *text;
            files.file = "tokenizer_config.json";
        }
    }
    if (const auto map = read_json(run, "special_tokens_map.json")) read_names(*map, files);
    if (const auto generation = read_json(run, "generation_config.json")) read_ends(*generation, files);
    const std::string beside = io::join_path(run, "chat_template.jinja");
    if (!given.empty()) {
        files.source = io::read_file(given, largest_file, io::Links::follow);
        files.file = given;
    } else if (io::kind_of(beside, io::Links::refuse) == io::PathKind::file) {
        files.source = io::read_file(beside, largest_file, io::Links::refuse);
        files.file = "chat_template.jinja";
    }
    return files;
}

Chat::Chat(const Vocabulary& vocabulary, const ChatFiles& files)
    : vocabulary_(vocabulary), file_(one_line(files.file)), names_([&] {
          std::vector<std::pair<std::string, std::string>> names = files.names;
          if (names.empty() && !vocabulary.boundary_name().empty())
              for (const char* name : {"bos_token", "eos_token"})
                  names.emplace_back(name, vocabulary.boundary_name());
          return names;
      }()) {
    if (files.source.empty()) {
        problem_ =
            "this model has no chat template: serve it with --chat-template FILE, or continue text by /v1/completions";
        return;
    }
    if (!vocabulary.reads_text()) {
        problem_ = "nothing says which text this model's tokens are";
        return;
    }
    try {
        template_.emplace(files.source);
    } catch (const TemplateError& error) {
        problem_ = located(error);
        return;
    }
    for (const Vocabulary::NamedToken& token : vocabulary.named_tokens())
        if (token.special || (!is_blank(token.name) && files.source.find(token.name) != std::string::npos))
            controls_.insert(token.id);
    find_ends(files);
}

std::string Chat::located(const TemplateError& error) const {
    return error.line() == 0
               ? std::string(error.what())
               : fmt::format("the chat template {}, line {}: {}", file_, error.line(), error.what());
}

void Chat::find_ends(const ChatFiles& files) {
    std::set<int32_t> ends;
    for (const int64_t id : files.ends)
        if (id >= 0 && id < vocabulary_.size()) ends.insert(static_cast<int32_t>(id));
    for (const Vocabulary::NamedToken& token : vocabulary_.named_tokens())
        for (const auto& [name, text] : files.names)
            if (name == "eos_token" && text == token.name) ends.insert(token.id);
    try {
        const MarkedText shown = render({{"user", "?", ""}, {"assistant", "?", ""}}, false);
        const size_t end = shown.marks.rfind(MarkedText::foreign) + 1;  // 0: the template shows no message
        for (const int32_t id : encode(shown.part(end, shown.size())))
            if (end > 0 && controls_.count(id) > 0) {
                ends.insert(id);
                break;
            }
    } catch (const std::runtime_error&) {  // a template for other conversations
    }
    ends_.assign(ends.begin(), ends.end());
}

MarkedText Chat::render(const std::vector<ChatMessage>& messages, bool answer_follows) const {
    TemplateDict variables;
    for (const auto& [name, text] : names_)
        variables.emplace_back(name, TemplateValue::text(MarkedText(text, MarkedText::ours)));
    TemplateList list;
    for (const ChatMessage& message : messages) list.push_back(dict_of(message));
    variables.emplace_back("messages", TemplateValue::list(std::move(list)));
    variables.emplace_back("add_generation_prompt", TemplateValue::boolean(answer_follows));
    variables.emplace_back("tools", TemplateValue());
    variables.emplace_back("documents", TemplateValue());
    return template_->render(variables, std::time(nullptr));
}

std::vector<int32_t> Chat::encode(const MarkedText& text) const {
    const std::string_view marks = text.marks;
    return vocabulary_.encode(text.bytes, [&](int32_t id, size_t begin, size_t end) {
        if (controls_.count(id) == 0) return true;
        return marks.substr(begin, end - begin).find(MarkedText::foreign) == std::string_view::npos;
    });
}

std::vector<int32_t> Chat::prompt(const std::vector<ChatMessage>& messages) const {
    if (!problem_.empty()) throw Refusal(400, problem_);
    try {
        return encode(render(messages, true));
    } catch (const TemplateError& error) {
        throw Refusal(400, located(error), "messages");
    }
}

}  // namespace longreach::serve
