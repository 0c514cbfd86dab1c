#include "serve/request.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "base/json.h"
#include "base/text.h"

namespace longreach::serve {

namespace {

constexpr int64_t largest = std::numeric_limits<int64_t>::max();

// Reads the members of one object; a member that nobody reads is a mistake.
class Fields {
  public:
    Fields(std::string_view body, const Limits& limits) {
        try {
            value_ = json::parse(body, "request", {.max_bytes = limits.body});
        } catch (const Error& error) {
            throw Refusal(400, error.what());
        }
        if (!value_.is_object()) throw Refusal(400, "the request is not a JSON object");
    }

    // Calls read(value) if the member is there and not null.
    template <class Read>
    bool take(const std::string& name, Read read) {
        known_.push_back(name);
        const json::Value* value = value_.find(name);
        if (value == nullptr || value->is_null()) return false;
        read(*value);
        return true;
    }
    void mistake(const std::string& field, const std::string& text) {
        if (problems_.empty()) first_ = field;
        problems_.push_back(text);
    }
    void integer(const std::string& name, int64_t& to, int64_t least, int64_t most) {
        take(name, [&](const json::Value& value) {
            const std::optional<int64_t> number = value.to_int64();
            if (number && *number >= least && *number <= most) {
                to = *number;
            } else if (most == largest) {
                mistake(name, fmt::format("'{}' must be an integer of at least {}", name, least));
            } else {
                mistake(name, fmt::format("'{}' must be an integer from {} to {}", name, least, most));
            }
        });
    }
    void number(const std::string& name, double& to, const char* rule,
                const std::function<bool(double)>& holds) {
        take(name, [&](const json::Value& value) {
            const std::optional<double> x = value.to_number();
            x&& holds(*x) ? void(to = *x) : mistake(name, fmt::format("'{}' must be {}", name, rule));
        });
    }
    void flag(const std::string& name, bool& to) {
        take(name, [&](const json::Value& value) {
            const std::optional<bool> given = value.to_bool();
            given ? void(to = *given) : mistake(name, fmt::format("'{}' must be true or false", name));
        });
    }
    void string(const std::string& name, std::string& to) {
        take(name, [&](const json::Value& value) {
            value.is_string() ? void(to = *value.to_string())
                              : mistake(name, fmt::format("'{}' must be a string", name));
        });
    }
    // Fields of OpenAI's that this server can obey only at the value that changes nothing.
    void only(const std::string& name, const json::Value& neutral) {
        take(name, [&](const json::Value& value) {
            const bool same = value == neutral || (value.to_number() && neutral.to_number() &&
                                                   *value.to_number() == *neutral.to_number());
            if (!same)
                mistake(name, fmt::format("'{}' is not supported: leave it out, or give {}", name,
                                          json::write(neutral, json::Style::compact)));
        });
    }
    void finish() {
        for (const json::Member& member : value_.as_object()) {
            if (std::find(known_.begin(), known_.end(), member.key) != known_.end()) continue;
            const std::vector<std::string> meant = nearest(member.key, known_, 1);
            mistake(member.key,
                    fmt::format("unknown field {}{}", longreach::quoted(member.key),
                                meant.empty() ? "" : fmt::format(" (did you mean '{}'?)", meant[0])));
        }
        if (problems_.empty()) return;
        constexpr size_t most = 20;
        const size_t left = problems_.size() > most ? problems_.size() - most : 0;
        if (left > 0) problems_.resize(most);
        throw Refusal(400, join(problems_, "; ") + (left > 0 ? fmt::format("; and {} more", left) : ""),
                      first_);
    }

  private:
    json::Value value_;
    std::vector<std::string> known_, problems_;
    std::string first_;
};

// The tokens of an array; a mistake ends the reading.
std::vector<int32_t> tokens_of(Fields& fields, const std::string& name, const json::Array& array,
                               const Limits& limits) {
    std::vector<int32_t> tokens;
    tokens.reserve(array.size());
    for (const json::Value& value : array) {
        const std::optional<int64_t> token = value.to_int64();
        if (!token || *token < 0 || *token >= limits.vocabulary) {
            fields.mistake(name, fmt::format("element {} of '{}' is not a token number from 0 to {}",
                                             tokens.size() + 1, name, limits.vocabulary - 1));
            return {};
        }
        tokens.push_back(static_cast<int32_t>(*token));
    }
    return tokens;
}

// A string, a list of strings, a list of tokens, or a list of lists of tokens.
void read_prompts(Fields& fields, const json::Value& value, const Limits& limits,
                  std::vector<Prompt>& prompts) {
    constexpr const char* name = "prompt";
    const auto add_text = [&](const json::Value& text) {
        if (limits.text) return prompts.emplace_back(*text.to_string()), true;
        fields.mistake(name,
                       "'prompt' must be token numbers: nothing says which text this model's tokens are");
        return false;
    };
    if (value.is_string()) return void(add_text(value));
    const json::Array* list = value.to_array();
    if (list == nullptr || list->empty())
        return fields.mistake(name,
                              "'prompt' must be a string, a list of strings, a list of token numbers or a "
                              "list of such lists, and not empty");
    const bool tokens = list->front().to_int64().has_value();
    if (tokens) return void(prompts.emplace_back(tokens_of(fields, name, *list, limits)));
    for (const json::Value& entry : *list) {
        const bool ids = entry.is_array();
        if (entry.kind() != list->front().kind() || (!ids && !entry.is_string()))
            return fields.mistake(
                name,
                "'prompt' mixes kinds: give strings alone, token numbers alone, or lists of "
                "token numbers alone");
        if (ids) {
            prompts.emplace_back(tokens_of(fields, name, entry.as_array(), limits));
        } else if (!add_text(entry)) {
            return;
        }
    }
}

void read_stops(Fields& fields, const json::Value& value, const Limits& limits,
                std::vector<std::string>& stops) {
    const json::Array* list = value.to_array();
    json::Array one;
    if (list == nullptr) one.push_back(value);
    for (const json::Value& entry : list ? *list : one) {
        const std::string* text = entry.to_string();
        if (text == nullptr || static_cast<int64_t>(text->size()) > limits.stop)
            return fields.mistake("stop",
                                  fmt::format("'stop' must be a string or a list of strings, of at most {} "
                                              "bytes each",
                                              limits.stop));
        if (!text->empty()) stops.push_back(*text);  // clients send "" for a model without an end
    }
    if (static_cast<int64_t>(stops.size()) > limits.stops)
        fields.mistake("stop", fmt::format("'stop' has {} strings; at most {}", stops.size(), limits.stops));
}

void read_stream_options(Fields& fields, CompletionRequest& r) {
    fields.flag("stream", r.stream);
    fields.take("stream_options", [&](const json::Value& v) {
        const json::Value* usage = v.find("include_usage");
        const std::optional<bool> on = usage ? usage->to_bool() : std::nullopt;
        if (!on || v.as_object().size() != 1)
            return fields.mistake("stream_options",
                                  "'stream_options' must be {\"include_usage\": true or false}");
        r.usage_chunk = *on;
    });
}

// How tokens are drawn, and what every request may say.
void read_draws(Fields& fields, const Limits& limits, CompletionRequest& r) {
    fields.integer("n", r.n, 1, limits.choices);
    fields.number("temperature", r.temperature, "a number from 0 to 100",
                  [](double x) { return x >= 0 && x <= 100; });
    fields.number("top_p", r.top_p, "a number above 0 and at most 1",
                  [](double x) { return x > 0 && x <= 1; });
    fields.integer("top_k", r.top_k, -1, largest);
    r.top_k = std::clamp<int64_t>(r.top_k, 0, limits.vocabulary);  // vLLM's -1 is all, too
    fields.integer("seed", r.seed, 0, largest);
    fields.take("stop", [&](const json::Value& v) { read_stops(fields, v, limits, r.stop); });
    read_stream_options(fields, r);
    std::string user;
    fields.string("user", user);
    fields.only("presence_penalty", 0);
    fields.only("frequency_penalty", 0);
    fields.only("logit_bias", json::Value::object());
}

// The content of a message: a text, or parts that are texts, a line each.
bool read_content(const json::Value& value, std::string& to) {
    const json::Array* parts = value.to_array();
    if (parts == nullptr) return value.is_string() && (to = *value.to_string(), true);
    for (size_t i = 0; i < parts->size(); ++i) {
        const json::Value *type = (*parts)[i].find("type"), *text = (*parts)[i].find("text");
        const bool is_text = type != nullptr && type->to_string() != nullptr && type->as_string() == "text";
        if (!is_text || text == nullptr || !text->is_string() || (*parts)[i].as_object().size() != 2)
            return false;
        to += (i > 0 ? "\n" : "") + *text->to_string();
    }
    return !parts->empty();
}

void read_message(Fields& fields, const json::Value& value, size_t number, ChatMessage& to) {
    const auto mistake = [&](const std::string& text) {
        fields.mistake("messages", fmt::format("message {} {}", number, text));
    };
    if (!value.is_object()) return mistake("is not an object");
    bool role = false, content = false;
    for (const json::Member& member : value.as_object()) {
        if (member.value.is_null()) continue;
        if (member.key == "role") {
            role = member.value.is_string() && !member.value.to_string()->empty();
            if (role) to.role = *member.value.to_string();
        } else if (member.key == "content") {
            content = read_content(member.value, to.content);
        } else if (member.key == "name" && member.value.is_string()) {
            to.name = *member.value.to_string();
        } else {
            mistake(fmt::format("has the field {}, which is not supported", longreach::quoted(member.key)));
        }
    }
    if (!role) mistake("has no 'role' that is a string");
    if (!content)
        mistake("has no 'content' that is a string, or a list of {\"type\": \"text\", \"text\": \"...\"}");
}

void read_messages(Fields& fields, const json::Value& value, std::vector<ChatMessage>& messages) {
    const json::Array* list = value.to_array();
    if (list == nullptr || list->empty())
        return fields.mistake("messages", "'messages' must be a list of messages, and not empty");
    messages.resize(list->size());
    for (size_t i = 0; i < list->size(); ++i) read_message(fields, (*list)[i], i + 1, messages[i]);
}

}  // namespace

CompletionRequest read_completion(std::string_view body, const Limits& limits) {
    Fields fields(body, limits);
    CompletionRequest r;
    fields.string("model", r.model);
    if (!fields.take("prompt", [&](const json::Value& v) { read_prompts(fields, v, limits, r.prompts); }))
        fields.mistake("prompt", "'prompt' is missing");
    fields.integer("max_tokens", r.max_tokens, 0, limits.context);
    read_draws(fields, limits, r);
    fields.integer("logprobs", r.logprobs, 0, limits.top);
    fields.flag("echo", r.echo);
    fields.flag("add_special_tokens", r.begin_document);
    int64_t best_of = r.n;
    fields.integer("best_of", best_of, r.n, r.n);
    fields.only("suffix", "");
    if (static_cast<int64_t>(r.prompts.size()) > limits.choices / r.n)
        fields.mistake("prompt", fmt::format("{} prompts with n = {}: at most {} choices", r.prompts.size(),
                                             r.n, limits.choices));
    if (r.echo && r.stream && r.logprobs >= 0)
        fields.mistake("stream", "'echo' with 'logprobs' is answered as a whole: leave out 'stream'");
    fields.finish();
    return r;
}

ChatRequest read_chat(std::string_view body, const Limits& limits) {
    Fields fields(body, limits);
    ChatRequest chat;
    CompletionRequest& r = chat.completion;
    fields.string("model", r.model);
    if (!fields.take("messages", [&](const json::Value& v) { read_messages(fields, v, chat.messages); }))
        fields.mistake("messages", "'messages' is missing");
    int64_t old_name = -1;
    r.max_tokens = -1;
    fields.integer("max_tokens", old_name, 1, limits.context);
    fields.integer("max_completion_tokens", r.max_tokens, 1, limits.context);
    if (old_name > 0 && r.max_tokens > 0 && old_name != r.max_tokens)
        fields.mistake("max_tokens", "'max_tokens' and 'max_completion_tokens' are two names of one number");
    r.max_tokens = std::max(r.max_tokens, old_name);
    read_draws(fields, limits, r);
    bool logprobs = false;
    int64_t top = 0;
    fields.flag("logprobs", logprobs);
    fields.integer("top_logprobs", top, 0, limits.top);
    if (logprobs) r.logprobs = top;
    if (top > 0 && !logprobs) fields.mistake("top_logprobs", "'top_logprobs' needs 'logprobs': true");
    fields.only("tools", json::Value::array());
    fields.only("tool_choice", "none");
    fields.only("response_format", json::Value::object({{"type", "text"}}));
    fields.finish();
    return chat;
}

TokenizeRequest read_tokenize(std::string_view body, const Limits& limits) {
    Fields fields(body, limits);
    TokenizeRequest r;
    std::string model;
    fields.string("model", model);
    if (!fields.take("prompt", [](const json::Value&) {})) fields.mistake("prompt", "'prompt' is missing");
    fields.string("prompt", r.prompt);
    fields.flag("add_special_tokens", r.begin_document);
    fields.finish();
    return r;
}

DetokenizeRequest read_detokenize(std::string_view body, const Limits& limits) {
    Fields fields(body, limits);
    DetokenizeRequest r;
    std::string model;
    fields.string("model", model);
    const bool given = fields.take("tokens", [&](const json::Value& v) {
        v.is_array() ? void(r.tokens = tokens_of(fields, "tokens", v.as_array(), limits))
                     : fields.mistake("tokens", "'tokens' must be a list of token numbers");
    });
    if (!given) fields.mistake("tokens", "'tokens' is missing");
    fields.finish();
    return r;
}

}  // namespace longreach::serve
