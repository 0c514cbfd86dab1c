#include "serve/service.h"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "base/interruption.h"
#include "base/sha256.h"
#include "base/text.h"

namespace longreach::serve {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* chat_path = "/v1/chat/completions";
constexpr size_t short_body = 64 << 10;            // bytes
constexpr int64_t whole_bytes = 1 << 20;           // longer answers are sent in pieces
constexpr int64_t token_text = 6;                  // bytes of a token's number and a comma
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

HttpAnswer refused(const Refusal& refusal) {
    return {.status = refusal.status(), .body = compact(error_value(refusal))};
}

// What make() returns, or what it throws as an answer.
template <class Make>
HttpAnswer answer_of(Make make) noexcept {
    try {
        try {
            return make();
        } catch (const Refusal& refusal) {
            return refused(refusal);
        } catch (const Interrupted&) {
            return refused(Refusal(503, "the server is stopping, or the client has gone"));
        } catch (const std::bad_alloc&) {
            return refused(Refusal(503, "there is not enough memory for this request now"));
        } catch (const std::exception& error) {
            return refused(Refusal(500, error.what()));
        }
    } catch (...) {  // not even for the message
        HttpAnswer answer;
        answer.status = 503;
        return answer;
    }
}

json::Value usage_of(const Answer& answer) {
    const int64_t prompt = answer.prompt_tokens, generated = answer.generated_tokens;
    return json::Value::object(
        {{"prompt_tokens", prompt}, {"completion_tokens", generated}, {"total_tokens", prompt + generated}});
}

// A client whose numbers are f64 reads it exactly and can send it again.
int64_t drawn_seed() {
    constexpr uint64_t exact = (uint64_t{1} << 53) - 1;
    uint64_t number = 0;
    std::memcpy(&number, random_bytes(sizeof number).data(), sizeof number);
    return static_cast<int64_t>(number & exact);
}

// The host of "name:port", "[::1]:port" or a name alone.
std::string_view name_of(std::string_view host) {
    if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
    return host.substr(0, host.find(':'));
}

}  // namespace

Service::Service(Engine& engine, const ServiceOptions& options, const Chat* chat, AccessLog* log)
    : engine_(engine), options_(options), chat_(chat), log_(log) {
    limits_.vocabulary = engine.vocabulary().size();
    limits_.text = engine.vocabulary().reads_text();
    limits_.context = engine.size().context;
    limits_.choices = std::min(limits_.choices, engine.size().queue);
    limits_.body = options.body;
}

void Service::check_caller(const HttpRequest& request) const {
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
    // Nor must one that sends requests to this machine's own name.
    const std::string_view origin = request.origin;
    const size_t name = origin.find("://");
    const bool own_page = origin.empty() || (name != origin.npos && origin.substr(name + 3) == request.host);
    const bool own_site =
        request.fetch_site.empty() || request.fetch_site == "same-origin" || request.fetch_site == "none";
    if (!own_page || !own_site) throw Refusal(403, "web pages of other origins are not served");
}

namespace {

bool is_posted(const std::string& path) {
    return path == "/v1/completions" || path == chat_path || path == "/tokenize" || path == "/detokenize";
}

}  // namespace

bool Service::has_path(const std::string& path) const {
    return is_posted(path) || path == "/v1/models" || path == "/v1/models/" + options_.model ||
           path == "/health" || path == "/tokenizer_info";
}

void Service::check_path(const HttpRequest& request) const {
    const bool posted = is_posted(request.path), get = request.method == "GET" || request.method == "HEAD";
    if (!has_path(request.path))
        throw Refusal(404, fmt::format("no such path: {}", longreach::quoted(request.path)));
    if (posted ? request.method != "POST" : !get)
        throw Refusal(405, fmt::format("{} takes {}", request.path, posted ? "POST" : "GET"));
}

std::shared_ptr<LoggedRequest> Service::begin_log(const HttpRequest& request) const {
    if (log_ == nullptr) return nullptr;
    return std::make_shared<LoggedRequest>(*log_, options_.model, request.method,
                                           has_path(request.path) ? request.path : "");
}

HttpAnswer Service::head(const HttpRequest& request) noexcept {
    HttpAnswer answer = answer_of([&]() -> HttpAnswer {
        check_caller(request);
        check_path(request);
        return {};
    });
    if (answer.status >= 400) refused(request, answer.status);
    return answer;
}

void Service::refused(const HttpRequest& request, int status) noexcept {
    answer_of([&]() -> HttpAnswer {
        if (const auto logged = begin_log(request)) logged->status = status;
        return {};
    });
}

HttpAnswer Service::handle(const HttpRequest& request, HttpClient& client) noexcept {
    std::shared_ptr<LoggedRequest> logged;
    HttpAnswer result = answer_of([&] {
        logged = begin_log(request);
        const Interruption interruption([&] { return client.gone(); });
        return answer(request, client, logged);
    });
    if (logged) {
        logged->status = result.status;
        logged->left = client.gone();
    }
    return result;
}

HttpAnswer Service::answer(const HttpRequest& request, HttpClient& client,
                           const std::shared_ptr<LoggedRequest>& logged) {
    if (request.path == "/v1/completions" || request.path == chat_path)
        return complete(request, client, logged);
    if (request.path == "/tokenize") return tokenize(request.body, client);
    json::Value value;
    if (request.path == "/health") {
        value = json::Value::object({{"status", "ok"}, {"waiting", engine_.waiting()}});
    } else if (request.path == "/tokenizer_info") {
        const std::string& name = engine_.vocabulary().boundary_name();
        const json::Value boundary = name.empty() ? json::Value() : json::Value(to_utf8(name));
        value =
            json::Value::object({{"eos_token", boundary}, {"bos_token", boundary}, {"pad_token", nullptr}});
    } else if (request.path == "/detokenize") {
        value = detokenize(request.body, client);
    } else {
        value = model_list();
        if (request.path != "/v1/models") value = json::Value(value.find("data")->as_array()[0]);
    }
    return {.body = compact(value)};
}

json::Value Service::model_list() const {
    json::Value model = json::Value::object({{"id", options_.model},
                                             {"object", "model"},
                                             {"created", options_.created},
                                             {"owned_by", "longreach"},
                                             {"max_model_len", engine_.size().context}});
    return json::Value::object({{"object", "list"}, {"data", json::Value::array({std::move(model)})}});
}

std::unique_lock<std::timed_mutex> Service::read_alone(size_t bytes, HttpClient& client) {
    std::unique_lock lock(bytes > short_body ? reading_long_ : reading_short_, std::defer_lock);
    while (!lock.try_lock_for(look_up))
        if (client.gone()) throw Interrupted();
    return lock;
}

HttpAnswer Service::tokenize(const std::string& body, HttpClient& client) {
    const Vocabulary& vocabulary = engine_.vocabulary();
    const auto memory = engine_.take_memory(static_cast<int64_t>(body.size() * sizeof(int32_t)));
    const auto tokens = std::make_shared<std::vector<int32_t>>();
    {
        const auto alone = read_alone(body.size(), client);
        const TokenizeRequest request = read_tokenize(body, limits_);
        if (!vocabulary.reads_text())
            throw Refusal(400, "nothing says which text this model's tokens are", "prompt");
        *tokens = vocabulary.encode(request.prompt, true);
        if (request.begin_document && vocabulary.boundary())
            tokens->insert(tokens->begin(), *vocabulary.boundary());
    }
    return in_pieces(static_cast<int64_t>(tokens->size()) * token_text,
                     [this, tokens, memory](PieceWriter& to) {
                         to.add("{\"count\":").add_value(tokens->size());
                         to.add(",\"max_model_len\":").add_value(engine_.size().context).add(",\"tokens\":[");
                         for (size_t i = 0; i < tokens->size() && !to.refused(); ++i)
                             to.add(i > 0 ? "," : "").add(std::to_string((*tokens)[i]));
                         to.add("]}");
                     });
}

json::Value Service::detokenize(const std::string& body, HttpClient& client) {
    const auto alone = read_alone(body.size(), client);
    const DetokenizeRequest request = read_detokenize(body, limits_);
    const int64_t most = engine_.size().max_answer / 8;
    int64_t bytes = 0;
    for (const int32_t token : request.tokens) {
        heed_interruption();
        bytes += static_cast<int64_t>(engine_.vocabulary().spelled(token).size());
        if (bytes > most)
            throw Refusal(400,
                          fmt::format("the text has more than {} bytes (an eighth of --max-answer)", most),
                          "tokens");
    }
    return json::Value::object({{"prompt", to_utf8(engine_.vocabulary().decode(request.tokens))}});
}

// --- completions

json::Value Service::envelope(const Asked& asked, const char* object) const {
    return json::Value::object({{"id", fmt::format("{}-{}", asked.chat ? "chatcmpl" : "cmpl", asked.number)},
                                {"object", object},
                                {"created", static_cast<int64_t>(std::time(nullptr))},
                                {"model", options_.model},
                                {"seed", asked.seed ? json::Value(*asked.seed) : json::Value()}});
}

// A chat request as a completion of the tokens that its messages become.
CompletionRequest Service::read_chat_prompt(const std::string& body) const {
    if (chat_ == nullptr) throw Refusal(400, "there are no chat completions here");
    if (!chat_->problem().empty()) throw Refusal(400, chat_->problem());
    ChatRequest chat = read_chat(body, limits_);
    CompletionRequest& wanted = chat.completion;
    std::vector<int32_t> prompt = chat_->prompt(chat.messages);
    const int64_t room = limits_.context - static_cast<int64_t>(prompt.size());
    if (wanted.max_tokens < 0) wanted.max_tokens = std::max<int64_t>(room, 1);
    wanted.ends = chat_->ends();
    wanted.prompts.emplace_back(std::move(prompt));
    return std::move(wanted);
}

HttpAnswer Service::complete(const HttpRequest& request, HttpClient& client,
                             const std::shared_ptr<LoggedRequest>& logged) {
    Asked asked;
    bool streamed = false;
    std::shared_ptr<Answer> answer;
    {
        const auto alone = read_alone(request.body.size(), client);
        const bool chat = request.path == chat_path;
        CompletionRequest wanted =
            chat ? read_chat_prompt(request.body) : read_completion(request.body, limits_);
        if (!wanted.model.empty() && wanted.model != options_.model)
            throw Refusal(404,
                          fmt::format("the model {} is not served here; {} is",
                                      longreach::quoted(wanted.model), longreach::quoted(options_.model)),
                          "model");
        if (wanted.seed < 0) wanted.seed = drawn_seed();
        asked = {wanted.prompts.size() * static_cast<size_t>(wanted.n), wanted.logprobs >= 0,
                 wanted.usage_chunk, chat, ++requests_};
        if (wanted.temperature > 0 && wanted.max_tokens > 0) asked.seed = wanted.seed;
        streamed = wanted.stream;
        answer = engine_.submit(std::move(wanted));
    }
    asked.logged = logged;
    if (logged) logged->answer = answer;
    // Cancels what is left when the answer was written, and when it never will be.
    const std::shared_ptr<void> end(nullptr, [answer](void*) { answer->cancel(); });
    if (!streamed) return whole(asked, answer, client);
    return {.type = "text/event-stream", .stream = [this, asked, answer, end](HttpClient& to) {
                stream(asked, *answer, to);
                if (asked.logged) asked.logged->left = to.gone();
                return true;
            }};
}

HttpAnswer Service::whole(const Asked& asked, const std::shared_ptr<Answer>& answer, HttpClient& client) {
    const auto choices = std::make_shared<std::vector<ChoiceText>>(asked.choices);
    for (size_t left = asked.choices; left > 0;) {
        std::optional<Event> event = answer->next(look_up);
        if (!event) {
            if (client.gone()) throw Interrupted();
            continue;
        }
        left -= event->finish.empty() ? 0 : 1;
        const size_t choice = event->choice;
        (*choices)[choice].add(std::move(*event));
    }
    return in_pieces(answer->bytes(), [this, asked, answer, choices](PieceWriter& to) {
        to.add(opened(envelope(asked, asked.chat ? "chat.completion" : "text_completion")));
        to.add(",\"choices\":[");
        for (size_t i = 0; i < choices->size(); ++i) {
            if (i > 0) to.add(",");
            write_choice(to, i, (*choices)[i], asked.logprobs,
                         asked.chat ? ChoiceForm::message : ChoiceForm::text);
        }
        to.add("],\"usage\":").add_value(usage_of(*answer)).add("}");
        if (asked.logged && to.refused()) asked.logged->left = true;
    });
}

HttpAnswer Service::in_pieces(int64_t bytes, std::function<void(PieceWriter&)> write) const {
    HttpAnswer answer;
    if (bytes <= whole_bytes) {
        PieceWriter to([&](std::string_view piece) { return answer.body.append(piece), true; });
        write(to);
        to.finish();
        return answer;
    }
    answer.stream = [write = std::move(write),
                     until = Clock::now() + engine_.size().time](HttpClient& client) {
        PieceWriter to([&](std::string_view piece) { return Clock::now() < until && client.write(piece); });
        try {
            write(to);
            return to.finish();
        } catch (const std::exception&) {  // out of memory
            return false;
        }
    };
    return answer;
}

void Service::stream(const Asked& asked, Answer& answer, HttpClient& client) const {
    const std::string begin =
        "data: " + opened(envelope(asked, asked.chat ? "chat.completion.chunk" : "text_completion"));
    const auto send = [&](const std::string& rest) { return client.write(begin + rest + "}\n\n"); };
    const auto send_error = [&](const Refusal& refusal) {
        client.write("data: " + compact(error_value(refusal)) + "\n\n");
    };
    const auto send_role = [&](size_t choice) {
        return send(
            fmt::format(",\"choices\":[{{\"index\":{},\"delta\":{{\"role\":\"assistant\",\"content\":\"\"}},"
                        "\"logprobs\":null,\"finish_reason\":null}}]",
                        choice));
    };
    try {
        for (size_t i = 0; asked.chat && i < asked.choices; ++i)
            if (!send_role(i)) return answer.cancel();
        for (size_t left = asked.choices; left > 0;) {
            std::optional<Event> event = answer.next(look_up);
            if (!event) {
                if (client.gone()) return answer.cancel();
                continue;
            }
            left -= event->finish.empty() ? 0 : 1;
            const size_t index = event->choice;
            ChoiceText choice;
            choice.add(std::move(*event));
            std::string text = ",\"choices\":[";
            PieceWriter to([&](std::string_view piece) { return text.append(piece), true; });
            write_choice(to, index, choice, !choice.tokens.empty(),
                         asked.chat ? ChoiceForm::delta : ChoiceForm::text);
            to.finish();
            if (!send(text + "]")) return answer.cancel();
        }
        if (asked.usage_chunk) send(",\"choices\":[],\"usage\":" + compact(usage_of(answer)));
        client.write("data: [DONE]\n\n");
    } catch (const Refusal& refusal) {
        send_error(refusal);
    } catch (const std::exception& error) {
        answer.cancel();
        send_error(Refusal(500, error.what()));
    }
}

}  // namespace longreach::serve
