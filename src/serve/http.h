// A server of HTTP: what a request is to the program, and what an answer. http_server.cpp has the connections,
// http_message.h what they carry.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace longreach::serve {

struct HttpRequest {
    std::string method, path;
    std::string host, authorization, origin, fetch_site;  // headers
    std::string body;
};

// The other end of a connection.
class HttpClient {
  public:
    virtual ~HttpClient() = default;
    virtual bool gone() noexcept = 0;  // it has closed the connection, or the server stops
    // A part of an answer with `stream`; false if the client is gone.
    virtual bool write(std::string_view part) noexcept = 0;
};

struct HttpAnswer {
    int status = 200;
    std::string body = {};
    std::string_view type = "application/json";  // a literal
    // Writes the body in place of `body`; false if it is cut off. Must not throw.
    std::function<bool(HttpClient&)> stream = {};
};

class HttpHandler {
  public:
    virtual ~HttpHandler() = default;
    // Before the body is read: an answer with a status from 400 on refuses the request.
    virtual HttpAnswer head(const HttpRequest& request) noexcept = 0;
    virtual HttpAnswer handle(const HttpRequest& request, HttpClient& client) noexcept = 0;
    // A request that was refused for how it was sent, without handle().
    virtual void refused(const HttpRequest& request, int status) noexcept = 0;
};

struct HttpOptions {
    std::string host = "127.0.0.1";
    int port = 0;       // 0: any free one
    uint64_t body = 0;  // bytes of a request
    uint64_t bodies =
        0;  // of all requests together, until they are answered or their answers begin; at least body
    int connections = 0;  // at once
    int seconds = 30;     // for a request to arrive, and for a client to take what is written
};

class HttpServer {
  public:
    virtual ~HttpServer() = default;  // ends all connections and their threads
    virtual int port() const noexcept = 0;
};

// Listens from its return on. Throws an Error if the address cannot be had.
std::unique_ptr<HttpServer> open_http(const HttpOptions& options, HttpHandler& handler);

}  // namespace longreach::serve
