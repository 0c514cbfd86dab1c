#include "serve/service.h"

#include <algorithm>
#include <ctime>

#include "base/sha256.h"
#include "base/text.h"

namespace longreach::serve {

namespace {

constexpr std::chrono::milliseconds look_up(100);  // how often to ask whether the client is still there

const char* kind_of(int status) {
    switch (status) {
        case 401:
            return "authentication_error";
        case 404:
            return "not_found_error";
        case 429:
            return "rate_limit_error";
        default:
            return status < 500 ? "invalid_request_error" : "server_error";
    }
}

json::Value error_value(const Refusal& refusal) {
    json::Value error = json::Value::object({{"message", to_utf8(refusal.what())},
                                             {"type", kind_of(refusal.status())},
                                             {"param", nullptr},
                                             {"code", refusal.status()}});
    if (!refusal.field().empty()) error.set("param", to_utf8(refusal.field()));
    return json::Value::object({{"error", std::move(error)}});
}

std::string compact(const json::Value& value) {
    return json::write(value, json::Style::compact);
}

HttpAnswer answer_of(const Refusal& refusal) {
    return {.status = refusal.status(), .body = compact(error_value(refusal))};
}

// The log-probabilities of a choice, in the lists of OpenAI's completions.
class LogProbabilityLists {
  public:
    void add(const TokenReport& token) {
        tokens_.push_back(token.text);
        offsets_.push_back(token.offset);
        if (!token.log_probability) {
            values_.push_back(nullptr);
            tops_.push_back(nullptr);
            return;
        }
        values_.push_back(*token.log_probability);
        json::Value top = json::Value::object();
        for (const auto& [text, value] : token.top)  // of tokens that look alike, the most likely
            if (top.find(text) == nullptr) top.set(text, value);
        tops_.push_back(std::move(top));
    }
    json::Value take() {
        return json::Value::object({{"tokens", std::move(tokens_)},
                                    {"token_logprobs", std::move(values_)},
                                    {"top_logprobs", std::move(tops_)},
                                    {"text_offset", std::move(offsets_)}});
    }

  private:
    json::Array tokens_, values_, tops_, offsets_;
};

json::Value choice_value(size_t index, std::string text, json::Value logprobs, const std::string& finish) {
    return json::Value::object({{"index", index},
                                {"text", std::move(text)},
                                {"logprobs", std::move(logprobs)},
                                {"finish_reason", finish.empty() ? json::Value() : json::Value(finish)}});
}

json::Value usage_of(const Answer& answer) {
    const int64_t prompt = answer.prompt_tokens, generated = answer.generated_tokens;
    return json::Value::object(
        {{"prompt_tokens", prompt}, {"completion_tokens", generated}, {"total_tokens", prompt + generated}});
}

size_t choices_of(const CompletionRequest& request) {
    return request.prompts.size() * static_cast<size_t>(request.n);
}

// The host of "name:port", "[::1]:port" or a name alone.
std::string_view name_of(std::string_view host) {
    if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
    return host.substr(0, host.find(':'));
}

}  // namespace

Service::Service(Engine& engine, const ServiceOptions& options) : engine_(engine), options_(options) {
    limits_.vocabulary = engine.vocabulary().size();
    limits_.text = engine.vocabulary().reads_text();
    limits_.context = engine.size().context;
    limits_.choices = std::min(limits_.choices, engine.size().queue);
    limits_.body = options.body;
}

HttpAnswer Service::head(const HttpRequest& request) noexcept {
    try {
        constexpr std::string_view scheme = "Bearer ";
        const std::string_view given = request.authorization;
        if (!options_.key.empty() && request.path != "/health" &&
            !(given.starts_with(scheme) &&
              same_digest(sha256(given.substr(scheme.size())), sha256(options_.key))))
            throw Refusal(401, "this server asks for its key: Authorization: Bearer KEY");
        // A web page whose name was pointed at this address must not be served to.
        if (!options_.hosts.empty() && std::find(options_.hosts.begin(), options_.hosts.end(),
                                                 name_of(request.host)) == options_.hosts.end())
            throw Refusal(403, fmt::format("requests without a key must name {} as their host",
                                           alternatives(options_.hosts)));
        const bool posted =
            request.path == "/v1/completions" || request.path == "/tokenize" || request.path == "/detokenize";
        const bool got = request.path == "/v1/models" || request.path == "/v1/models/" + options_.model ||
                         request.path == "/health" || request.path == "/tokenizer_info";
        if (!posted && !got)
            throw Refusal(404, fmt::format("no such path: {}", longreach::quoted(request.path)));
        const bool get = request.method == "GET" || request.method == "HEAD";
        if (posted ? request.method != "POST" : !get)
            throw Refusal(405, fmt::format("{} takes {}", request.path, posted ? "POST" : "GET"));
        return {};
    } catch (const Refusal& refusal) {
        return answer_of(refusal);
    } catch (const std::exception& error) {
        return answer_of(Refusal(500, error.what()));
    }
}

HttpAnswer Service::handle(const HttpRequest& request, HttpClient& client) noexcept {
    try {
        if (request.path == "/v1/completions") return complete(request, client);
        json::Value value;
        if (request.path == "/health") {
            value = json::Value::object({{"status", "ok"}, {"waiting", engine_.waiting()}});
        } else if (request.path == "/tokenizer_info") {
            const std::string& name = engine_.vocabulary().boundary_name();
            const json::Value boundary = name.empty() ? json::Value() : json::Value(to_utf8(name));
            value = json::Value::object(
                {{"eos_token", boundary}, {"bos_token", boundary}, {"pad_token", nullptr}});
        } else if (request.path == "/tokenize") {
            value = tokenize(request.body);
        } else if (request.path == "/detokenize") {
            value = detokenize(request.body);
        } else {
            value = model_list();
            if (request.path != "/v1/models") value = json::Value(value.find("data")->as_array()[0]);
        }
        return {.body = compact(value)};
    } catch (const Refusal& refusal) {
        return answer_of(refusal);
    } catch (const std::exception& error) {
        return answer_of(Refusal(500, error.what()));
    }
}

json::Value Service::model_list() const {
    json::Value model = json::Value::object({{"id", options_.model},
                                             {"object", "model"},
                                             {"created", options_.created},
                                             {"owned_by", "longreach"},
                                             {"max_model_len", engine_.size().context}});
    return json::Value::object({{"object", "list"}, {"data", json::Value::array({std::move(model)})}});
}

json::Value Service::tokenize(const std::string& body) {
    TokenizeRequest request;
    {
        const std::lock_guard lock(reading_);
        request = read_tokenize(body, limits_);
    }
    const Vocabulary& vocabulary = engine_.vocabulary();
    if (!vocabulary.reads_text())
        throw Refusal(400, "nothing says which text this model's tokens are", "prompt");
    json::Array tokens;
    if (request.begin_document && vocabulary.boundary()) tokens.push_back(*vocabulary.boundary());
    for (const int32_t token : vocabulary.encode(request.prompt, true)) tokens.push_back(token);
    const size_t count = tokens.size();
    return json::Value::object(
        {{"count", count}, {"max_model_len", engine_.size().context}, {"tokens", std::move(tokens)}});
}

json::Value Service::detokenize(const std::string& body) {
    DetokenizeRequest request;
    {
        const std::lock_guard lock(reading_);
        request = read_detokenize(body, limits_);
    }
    return json::Value::object({{"prompt", to_utf8(engine_.vocabulary().decode(request.tokens))}});
}

// --- completions

json::Value Service::envelope(int64_t number) const {
    return json::Value::object({{"id", fmt::format("cmpl-{}", number)},
                                {"object", "text_completion"},
                                {"created", static_cast<int64_t>(std::time(nullptr))},
                                {"model", options_.model}});
}

HttpAnswer Service::complete(const HttpRequest& request, HttpClient& client) {
    const auto wanted = std::make_shared<CompletionRequest>();
    {
        const std::lock_guard lock(reading_);
        *wanted = read_completion(request.body, limits_);
    }
    if (!wanted->model.empty() && wanted->model != options_.model)
        throw Refusal(404,
                      fmt::format("the model {} is not served here; {} is", longreach::quoted(wanted->model),
                                  longreach::quoted(options_.model)),
                      "model");
    const std::shared_ptr<Answer> answer = engine_.submit(*wanted);
    const int64_t number = ++requests_;
    if (!wanted->stream) return whole(*wanted, answer, client, number);
    // Cancels what is left when the answer was written, and when it never will be.
    const std::shared_ptr<void> end(nullptr, [answer](void*) { answer->cancel(); });
    return {.type = "text/event-stream", .stream = [this, wanted, answer, number, end](HttpClient& to) {
                stream(*wanted, *answer, to, number);
            }};
}

HttpAnswer Service::whole(const CompletionRequest& request, const std::shared_ptr<Answer>& answer,
                          HttpClient& client, int64_t number) {
    const size_t count = choices_of(request);
    std::vector<std::string> texts(count), ends(count);
    std::vector<LogProbabilityLists> lists(count);
    for (size_t left = count; left > 0;) {
        std::optional<Event> event = answer->next(look_up);
        if (!event) {
            if (client.gone()) {
                answer->cancel();
                return answer_of(Refusal(499, "the client has gone"));
            }
            continue;
        }
        texts[event->choice] += event->text;
        for (const TokenReport& token : event->tokens) lists[event->choice].add(token);
        if (event->finish.empty()) continue;
        ends[event->choice] = event->finish;
        --left;
    }
    json::Array choices;
    for (size_t i = 0; i < count; ++i)
        choices.push_back(choice_value(i, std::move(texts[i]),
                                       request.logprobs >= 0 ? lists[i].take() : json::Value(), ends[i]));
    json::Value value = envelope(number);
    value.set("choices", std::move(choices)).set("usage", usage_of(*answer));
    return {.body = compact(value)};
}

void Service::stream(const CompletionRequest& request, Answer& answer, HttpClient& client, int64_t number) {
    const auto send = [&](const json::Value& value) {
        return client.write("data: " + compact(value) + "\n\n");
    };
    try {
        for (size_t left = choices_of(request); left > 0;) {
            const std::optional<Event> event = answer.next(look_up);
            if (!event) {
                if (client.gone()) return answer.cancel();
                continue;
            }
            LogProbabilityLists lists;
            for (const TokenReport& token : event->tokens) lists.add(token);
            json::Value value = envelope(number);
            value.set("choices", json::Value::array({choice_value(
                                     event->choice, event->text,
                                     event->tokens.empty() ? json::Value() : lists.take(), event->finish)}));
            if (!send(value)) return answer.cancel();
            if (!event->finish.empty()) --left;
        }
        if (request.usage_chunk) {
            json::Value value = envelope(number);
            value.set("choices", json::Value::array()).set("usage", usage_of(answer));
            send(value);
        }
        client.write("data: [DONE]\n\n");
    } catch (const Refusal& refusal) {
        send(error_value(refusal));
    } catch (const std::exception& error) {
        answer.cancel();
        send(error_value(Refusal(500, error.what())));
    }
}

}  // namespace longreach::serve
