// A service with a small random model that runs while an object exists, and a client of it.
#pragma once

#include "serve/bench.h"
#include "serve/service.h"

namespace longreach::test {

// A client that keeps what is written to it, and may leave.
class Listener final : public serve::HttpClient {
  public:
    bool gone() noexcept override { return left; }
    bool write(std::string_view part) noexcept override {
        if (left) return false;
        text += part;
        ++parts;
        left = parts >= leaves_after;
        return true;
    }
    std::string text;
    int parts = 0, leaves_after = 1 << 30;
    bool left = false;
};

struct ServiceBench {
    explicit ServiceBench(serve::ServiceOptions options = {.model = "m"},
                          const serve::EngineSize& size = {.context = 96}, const serve::ChatFiles& files = {},
                          serve::AccessLog* log = nullptr)
        : engine(size), chat(engine.engine.vocabulary(), files), service(engine.engine, options, &chat, log) {
        engine.start();
    }
    serve::HttpAnswer ask(const std::string& method, const std::string& path, const std::string& body = "") {
        serve::HttpRequest request{method, path, host, authorization, origin, fetch_site, {}};
        if (serve::HttpAnswer refused = service.head(request); refused.status >= 400) return refused;
        request.body = body;
        return service.handle(request, client);
    }
    json::Value post(const std::string& path, const std::string& body, int status = 200) {
        const serve::HttpAnswer answer = ask("POST", path, body);
        CHECK(answer.status == status);
        return json::parse(answer.body, "answer");
    }
    json::Value get(const std::string& path, int status = 200) {
        const serve::HttpAnswer answer = ask("GET", path);
        CHECK(answer.status == status);
        return json::parse(answer.body, "answer");
    }
    EngineBench engine;
    serve::Chat chat;
    serve::Service service;
    Listener client;
    std::string host = "localhost:80", authorization, origin, fetch_site;
};

}  // namespace longreach::test
