#include "serve/answer_text.h"

#include <algorithm>
#include <charconv>

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

// Log-probabilities as the lists of a completion.
void write_lists(PieceWriter& to, const ChoiceText& choice) {
    write_list(to, "{\"tokens\":", choice, [&](const TokenReport& token) { to.add_value(token.text); });
    write_list(to, ",\"token_logprobs\":", choice, [&](const TokenReport& token) {
        to.add_value(token.log_probability ? json::Value(*token.log_probability) : json::Value());
    });
    write_list(to, ",\"top_logprobs\":", choice, [&](const TokenReport& token) { write_top(to, token); });
    write_list(to, ",\"text_offset\":", choice,
               [&](const TokenReport& token) { to.add_value(token.offset); });
    to.add("}");
}

// The bytes of a token whose text may be `bytes:\xe2`.
std::string bytes_of_text(const std::string& text) {
    constexpr std::string_view mark = "bytes:";
    const std::string_view digits = std::string_view(text).substr(std::min(mark.size(), text.size()));
    std::string bytes;
    for (size_t at = 0; text.starts_with(mark) && at + 4 <= digits.size(); at += 4) {
        unsigned value = 0;
        if (!digits.substr(at).starts_with("\\x")) return text;
        const auto [end, error] = std::from_chars(digits.data() + at + 2, digits.data() + at + 4, value, 16);
        if (error != std::errc() || end != digits.data() + at + 4) return text;
        bytes += static_cast<char>(value);
    }
    return bytes.empty() || bytes.size() * 4 != digits.size() ? text : bytes;
}

void write_chat_entry(PieceWriter& to, const std::string& text, double log_probability) {
    to.add("{\"token\":").add_value(text).add(",\"logprob\":").add_value(log_probability).add(",\"bytes\":[");
    bool first = true;
    for (const char byte : bytes_of_text(text)) {
        to.add(first ? "" : ",").add(std::to_string(static_cast<unsigned char>(byte)));
        first = false;
    }
    to.add("]");
}

void write_chat_token(PieceWriter& to, const TokenReport& token) {
    write_chat_entry(to, token.text, token.log_probability.value_or(0));
    to.add(",\"top_logprobs\":[");
    for (size_t i = 0; i < token.top.size(); ++i) {
        to.add(i > 0 ? "," : "");
        write_chat_entry(to, token.top[i].first, token.top[i].second);
        to.add("}");
    }
    to.add("]}");
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

void write_choice(PieceWriter& to, size_t index, const ChoiceText& choice, bool logprobs, ChoiceForm form) {
    to.add("{\"index\":").add_value(index);
    if (form == ChoiceForm::text) {
        to.add(",\"text\":");
        to.add_value(choice.prompt ? choice.prompt->text + choice.text : choice.text);
    } else {
        to.add(form == ChoiceForm::message ? ",\"message\":{\"role\":\"assistant\",\"content\":"
                                           : ",\"delta\":{\"content\":");
        to.add_value(choice.text).add("}");
    }
    to.add(",\"logprobs\":");
    if (!logprobs) {
        to.add("null");
    } else if (form == ChoiceForm::text) {
        write_lists(to, choice);
    } else {
        write_list(to, "{\"content\":", choice,
                   [&](const TokenReport& token) { write_chat_token(to, token); });
        to.add("}");
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
