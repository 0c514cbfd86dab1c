#include "serve/answer_text.h"

namespace longreach::serve {

namespace {

constexpr size_t piece_bytes = 64 << 10;

// A list of what write(to, token) writes for each token of the choice.
template <class Write>
void write_list(PieceWriter& to, const char* name, const ChoiceText& choice, Write write) {
    to.add(name).add("[");
    bool first = true;
    const auto each = [&](const std::vector<TokenReport>& tokens) {
        for (const TokenReport& token : tokens) {
            if (to.refused()) return;
            if (!first) to.add(",");
            first = false;
            write(token);
        }
    };
    if (choice.prompt) each(choice.prompt->tokens);
    each(choice.tokens);
    to.add("]");
}

void write_top(PieceWriter& to, const TokenReport& token) {
    if (!token.log_probability) return void(to.add("null"));
    json::Value top = json::Value::object();
    for (const auto& [text, value] : token.top)  // of tokens that look alike, the most likely
        if (top.find(text) == nullptr) top.set(text, value);
    to.add_value(top);
}

}  // namespace

PieceWriter& PieceWriter::add(std::string_view text) {
    if (refused_) return *this;
    piece_ += text;
    if (piece_.size() >= piece_bytes) give();
    return *this;
}

PieceWriter& PieceWriter::add_value(const json::Value& value) {
    return add(compact(value));
}

void PieceWriter::give() {
    refused_ = refused_ || !sink_(piece_);
    piece_.clear();
}

bool PieceWriter::finish() {
    if (!piece_.empty()) give();
    return !refused_;
}

void ChoiceText::add(Event&& event) {
    if (event.prompt) prompt = std::move(event.prompt);
    text += event.text;
    for (TokenReport& token : event.tokens) tokens.push_back(std::move(token));
    finish = std::move(event.finish);
}

void write_choice(PieceWriter& to, size_t index, const ChoiceText& choice, bool logprobs) {
    to.add("{\"index\":").add_value(index).add(",\"text\":");
    to.add_value(choice.prompt ? choice.prompt->text + choice.text : choice.text);
    to.add(",\"logprobs\":");
    if (logprobs) {
        write_list(to, "{\"tokens\":", choice, [&](const TokenReport& token) { to.add_value(token.text); });
        write_list(to, ",\"token_logprobs\":", choice, [&](const TokenReport& token) {
            to.add_value(token.log_probability ? json::Value(*token.log_probability) : json::Value());
        });
        write_list(to, ",\"top_logprobs\":", choice, [&](const TokenReport& token) { write_top(to, token); });
        write_list(to, ",\"text_offset\":", choice,
                   [&](const TokenReport& token) { to.add_value(token.offset); });
        to.add("}");
    } else {
        to.add("null");
    }
    to.add(",\"finish_reason\":");
    to.add_value(choice.finish.empty() ? json::Value() : json::Value(choice.finish)).add("}");
}

std::string compact(const json::Value& value) {
    return json::write(value, json::Style::compact);
}

std::string opened(const json::Value& object) {
    std::string text = compact(object);
    text.pop_back();
    return text;
}

}  // namespace longreach::serve
