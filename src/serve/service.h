// The server without HTTP: a path and a body in, a status and JSON out.
#pragma once

#include <mutex>

#include "base/json.h"
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
    Service(Engine& engine, const ServiceOptions& options);
    HttpAnswer head(const HttpRequest& request) noexcept override;
    HttpAnswer handle(const HttpRequest& request, HttpClient& client) noexcept override;

  private:
    HttpAnswer complete(const HttpRequest& request, HttpClient& client);
    HttpAnswer whole(const CompletionRequest& request, const std::shared_ptr<Answer>& answer,
                     HttpClient& client, int64_t number);
    void stream(const CompletionRequest& request, Answer& answer, HttpClient& client, int64_t number);
    json::Value tokenize(const std::string& body);
    json::Value detokenize(const std::string& body);
    json::Value model_list() const;
    json::Value envelope(int64_t number) const;

    Engine& engine_;
    const ServiceOptions options_;
    Limits limits_;
    std::mutex reading_;  // one request is parsed at a time: its tree takes many times its bytes
    std::atomic<int64_t> requests_ = 0;
};

}  // namespace longreach::serve
