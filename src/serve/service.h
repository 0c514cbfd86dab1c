// The server without HTTP: a path and a body in, a status and JSON out.
#pragma once

#include <mutex>

#include "serve/access_log.h"
#include "serve/answer_text.h"
#include "serve/chat.h"
#include "serve/engine.h"
#include "serve/http.h"

namespace longreach::serve {

struct ServiceOptions {
    std::string model = {};               // its name in /v1/models
    std::string key = {};                 // empty: none is asked for
    std::vector<std::string> hosts = {};  // names of this server that requests may give; empty: any
    uint64_t body = 4 << 20;              // bytes of a request
    int64_t created = 0;                  // seconds since 1970, of the checkpoint
};

class Service final : public HttpHandler {
  public:
    // chat: null means that there are no chat completions. log: null means none.
    Service(Engine& engine, const ServiceOptions& options, const Chat* chat = nullptr,
            AccessLog* log = nullptr);
    HttpAnswer head(const HttpRequest& request) noexcept override;
    HttpAnswer handle(const HttpRequest& request, HttpClient& client) noexcept override;
    void refused(const HttpRequest& request, int status) noexcept override;

  private:
    // What of a request its answer needs once the engine has it.
    struct Asked {
        size_t choices = 0;
        bool logprobs = false, usage_chunk = false, chat = false;
        int64_t number = 0;
        std::optional<int64_t> seed = {};  // none: nothing is drawn
        std::shared_ptr<LoggedRequest> logged = {};
    };
    void check_caller(const HttpRequest& request) const;
    void check_path(const HttpRequest& request) const;
    std::unique_lock<std::timed_mutex> read_alone(size_t bytes, HttpClient& client);
    bool has_path(const std::string& path) const;
    std::shared_ptr<LoggedRequest> begin_log(const HttpRequest& request) const;  // null without a log
    HttpAnswer answer(const HttpRequest& request, HttpClient& client,
                      const std::shared_ptr<LoggedRequest>& logged);
    HttpAnswer complete(const HttpRequest& request, HttpClient& client,
                        const std::shared_ptr<LoggedRequest>& logged);
    CompletionRequest read_chat_prompt(const std::string& body) const;
    HttpAnswer whole(const Asked& asked, const std::shared_ptr<Answer>& answer, HttpClient& client);
    void stream(const Asked& asked, Answer& answer, HttpClient& client) const;
    HttpAnswer tokenize(const std::string& body, HttpClient& client);
    json::Value detokenize(const std::string& body, HttpClient& client);
    // An answer of about this many bytes: whole, or in pieces if it is long.
    HttpAnswer in_pieces(int64_t bytes, std::function<void(PieceWriter&)> write) const;
    json::Value model_list() const;
    json::Value envelope(const Asked& asked, const char* object) const;

    Engine& engine_;
    const ServiceOptions options_;
    const Chat* const chat_;
    AccessLog* const log_;
    Limits limits_;
    // One request is read at a time: its tree takes many times its bytes. Short ones do not wait for long ones.
    std::timed_mutex reading_short_, reading_long_;
    std::atomic<int64_t> requests_ = 0;
};

}  // namespace longreach::serve
