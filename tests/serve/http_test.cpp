// HTTP over loopback, with a handler of its own: what the network can do to the server.
#include "serve/http.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.h"
#include "serve/wire.h"

using namespace longreach;
using namespace longreach::serve;
using longreach::test::Wire;

namespace {

class Echo final : public HttpHandler {
  public:
    HttpAnswer head(const HttpRequest& request) noexcept override {
        if (request.path == "/refused") return {.status = 401, .body = "no"};
        return {};
    }
    HttpAnswer handle(const HttpRequest& request, HttpClient& client) noexcept override {
        ++handled;
        if (request.path == "/stream" || request.path == "/cut")
            return {.type = "text/event-stream", .stream = [all = request.path == "/stream"](HttpClient& to) {
                        for (int i = 0; i < 3; ++i) to.write("part " + std::to_string(i) + ";");
                        return all;
                    }};
        if (request.path == "/begun")
            return {.stream = [](HttpClient& to) {
                to.write("begun");
                for (int i = 0; i < 500 && !to.gone(); ++i)
                    std::this_thread::sleep_for(std::chrono::milliseconds(10));
                return false;
            }};
        if (request.path == "/wait") {
            for (int i = 0; i < 500 && !client.gone(); ++i)
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
            noticed = client.gone();
        }
        return {.body = request.method + " " + request.path + " " + request.body, .type = "text/plain"};
    }
    void refused(const HttpRequest&, int status) noexcept override { refused_with = status; }
    std::atomic<int> handled = 0, refused_with = 0;
    std::atomic<bool> noticed = false;
};

struct Bench {
    explicit Bench(HttpOptions options = {.body = 10000, .bodies = 30000, .connections = 4, .seconds = 1}) {
        server = open_http(options, echo);
    }
    std::string ask_at_once(const std::string& text) {
        Wire wire(server->port());
        wire.send(text);
        return wire.receive();
    }
    // Connections that have just ended may still count; they make room soon.
    std::string ask(const std::string& text) {
        std::string answer;
        for (int i = 0; i < 100; ++i) {
            answer = ask_at_once(text);
            if (!answer.starts_with("HTTP/1.1 503")) break;
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        return answer;
    }
    Echo echo;
    std::unique_ptr<HttpServer> server;
};

std::string post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + headers +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
const std::string end = "Host: x\r\nConnection: close\r\n\r\n";

}  // namespace

TEST_CASE("http: requests are answered, several on one connection") {
    Bench bench;
    CHECK(bench.ask("GET /a HTTP/1.1\r\n" + end).ends_with("GET /a "));
    CHECK(bench.ask(post("/b", "body")).ends_with("POST /b body"));
    CHECK(bench
              .ask("POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\nConnection: "
                   "close\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n")
              .ends_with("POST /c abcd"));
    Wire wire(bench.server->port());
    for (int i = 0; i < 8; ++i) {
        wire.send("POST /k HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n" + std::to_string(i));
        CHECK(wire.receive("POST /k " + std::to_string(i)).starts_with("HTTP/1.1 200"));
    }
}

TEST_CASE("http: HTTP/1.0, HEAD and a client that waits to be told to go on") {
    Bench bench;
    const std::string old = bench.ask("POST /stream HTTP/1.0\r\nContent-Length: 0\r\n\r\n");
    CHECK(old.find("Transfer-Encoding") == std::string::npos);
    CHECK(old.ends_with("\r\n\r\npart 0;part 1;part 2;"));
    const std::string head = bench.ask("HEAD /a HTTP/1.1\r\n" + end);
    CHECK(head.find("Content-Length: 8\r\n") != std::string::npos);
    CHECK(head.ends_with("\r\n\r\n"));
    Wire wire(bench.server->port());
    wire.send("POST /b HTTP/1.1\r\nContent-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n");
    CHECK(wire.receive("\r\n\r\n").starts_with("HTTP/1.1 100 Continue\r\n"));
    wire.send("body");
    CHECK(wire.receive().ends_with("POST /b body"));
    CHECK(bench.ask("POST /b HTTP/1.1\r\nContent-Length: 0\r\nExpect: more\r\n\r\n")
              .starts_with("HTTP/1.1 417"));
}

TEST_CASE("http: requests sent at once are answered in order") {
    Bench bench;
    const std::string all = bench.ask(
        "GET /a HTTP/1.1\r\nHost: x\r\n\r\nPOST /b HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nbc"
        "POST /d HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\ne\r\n0\r\n\r\nGET /f HTTP/1.1\r\n" +
        end);
    size_t at = 0;
    for (const char* answer : {"GET /a ", "POST /b bc", "POST /d e", "GET /f "}) {
        at = all.find(answer, at);
        CHECK_MESSAGE(at != std::string::npos, answer);
    }
}

TEST_CASE("http: a stream arrives in chunks and ends") {
    Bench bench;
    const std::string text = bench.ask(post("/stream", ""));
    CHECK(text.find("Transfer-Encoding: chunked") != std::string::npos);
    CHECK(text.find("part 0;") < text.find("part 2;"));
    CHECK(text.ends_with("0\r\n\r\n"));
}

TEST_CASE("http: a refused request's body is not read") {
    Bench bench;
    Wire wire(bench.server->port());
    wire.send(
        "POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\nGET /second HTTP/1.1\r\n\r\n");
    const std::string text = wire.receive();
    CHECK(text.starts_with("HTTP/1.1 401"));
    CHECK(text.find("second") == std::string::npos);  // the body is no request
    CHECK(bench.echo.handled == 0);
}

TEST_CASE("http: bodies above the limit") {
    Bench bench;
    CHECK(bench.ask("POST /b HTTP/1.1\r\nContent-Length: 10001\r\n\r\n").starts_with("HTTP/1.1 413"));
    CHECK(bench.echo.refused_with == 413);
    CHECK(bench.ask("POST /b HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n")
              .starts_with("HTTP/1.1 413"));
    CHECK(bench.ask("POST /b HTTP/1.1\r\nContent-Length: -1\r\n\r\n").starts_with("HTTP/1.1 413"));
    CHECK(bench.ask("POST /b HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 411"));
    CHECK(bench.ask("POST /b HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
              .starts_with("HTTP/1.1 411"));
    // Chunks without an end.
    Wire wire(bench.server->port());
    wire.send("POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    const std::string chunk = "400\r\n" + std::string(1024, 'a') + "\r\n";
    int sent = 0;
    while (sent < 100000 && wire.send(chunk)) ++sent;
    CHECK(sent < 100000);
    CHECK(bench.ask("POST /b HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na")
              .starts_with("HTTP/1.1 415"));
    CHECK(bench.ask(post("/b", "x", "Content-Type: multipart/form-data; boundary=a\r\n"))
              .starts_with("HTTP/1.1 415"));
    CHECK(bench.echo.handled == 0);
    CHECK(bench.ask(post("/b", std::string(10000, 'a'))).starts_with("HTTP/1.1 200"));
}

TEST_CASE("http: lines and headers without an end are cut off") {
    Bench bench;
    for (const std::string& piece : {std::string(1024, 'a'), "X: " + std::string(1000, 'y') + "\r\n"}) {
        Wire wire(bench.server->port());
        wire.send("GET /a HTTP/1.1\r\n");
        int sent = 0;
        while (sent < 20000 && wire.send(piece)) ++sent;
        CHECK(sent < 20000);  // 20 MB would have been taken
    }
    CHECK(bench.ask("GET /" + std::string(300, 'a') + " HTTP/1.1\r\n" + end).starts_with("HTTP/1.1 404"));
    CHECK(bench.ask("GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n" + end).starts_with("HTTP/1.1 414"));
    CHECK(bench.echo.handled == 0);
}

TEST_CASE("http: half a request is given up, and byte for byte it has no more time") {
    Bench bench;
    const auto begin = std::chrono::steady_clock::now();
    CHECK(bench.ask("POST /b HTTP/1.1\r\nContent-Le").find("timed out") == std::string::npos);
    CHECK(bench.ask("POST /b HTTP/1.1\r\nContent-Length: 5\r\n\r\nab").starts_with("HTTP/1.1 400"));
    Wire wire(bench.server->port());
    const std::string slow = "GET /a HTTP/1.1\r\nX: " + std::string(400, 'a');
    for (size_t i = 0; i < slow.size(); ++i) {
        if (!wire.send(slow.substr(i, 1))) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        CHECK(i < 399);
    }
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
    CHECK(bench.echo.handled == 0);
    CHECK(bench.ask("GET /a HTTP/1.1\r\n" + end).starts_with("HTTP/1.1 200"));
}

TEST_CASE("http: bytes that are no HTTP") {
    Bench bench;
    for (const std::string text :
         {"\r\n\r\n", "hello\r\n\r\n", "GET\r\n\r\n", "GET /a\r\n\r\n", "GET /a HTTP/9.9\r\n\r\n",
          "\x16\x03\x01\x02\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"})
        CHECK(bench.ask(text + "\r\n\r\n").find(" 200 ") == std::string::npos);
    CHECK(bench.ask("GET /%00%ff%2e%2e/ HTTP/1.1\r\n" + end).starts_with("HTTP/1.1 200"));
}

TEST_CASE("http: more connections than allowed are turned away, and those that leave make room") {
    Bench bench;
    std::vector<std::unique_ptr<Wire>> wires;
    for (int i = 0; i < 4; ++i) {
        wires.push_back(std::make_unique<Wire>(bench.server->port()));
        wires.back()->send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
        CHECK(wires.back()->receive("GET /a ").starts_with("HTTP/1.1 200"));
    }
    CHECK(bench.ask_at_once("GET /a HTTP/1.1\r\n" + end).starts_with("HTTP/1.1 503"));
    wires.clear();
    std::string text;
    for (int i = 0; i < 100 && !text.starts_with("HTTP/1.1 200"); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        text = bench.ask("GET /a HTTP/1.1\r\n" + end);
    }
    CHECK(text.starts_with("HTTP/1.1 200"));
}

TEST_CASE("http: many clients at once") {
    Bench bench({.body = 10000, .bodies = 30000, .connections = 64, .seconds = 20});
    std::vector<std::thread> clients;
    std::atomic<int> right = 0;
    for (int i = 0; i < 24; ++i)
        clients.emplace_back([&, i] {
            for (int k = 0; k < 10; ++k) {
                const std::string body = std::to_string(i) + ":" + std::to_string(k);
                right += bench.ask(post("/b", body)).ends_with("POST /b " + body);
            }
        });
    for (std::thread& client : clients) client.join();
    CHECK(right == 240);
}

TEST_CASE("http: the handler learns that a client has left, and the end of the server waits for nobody") {
    auto bench = std::make_unique<Bench>();
    Wire wire(bench->server->port());
    wire.send(post("/wait", ""));
    while (bench->echo.handled == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    wire.close();
    for (int i = 0; i < 400 && !bench->echo.noticed; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(bench->echo.noticed);
    Wire idle(bench->server->port()), waiting(bench->server->port());
    waiting.send(post("/wait", ""));
    while (bench->echo.handled < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto begin = std::chrono::steady_clock::now();
    bench->server.reset();
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));
}

TEST_CASE("http: an address that cannot be had is named") {
    Echo echo;
    CHECK_THROWS_WITH_AS(open_http({.host = "203.0.113.1", .body = 1, .bodies = 1, .connections = 1}, echo),
                         doctest::Contains("cannot listen on 203.0.113.1:0"), Error);
    const auto first = open_http({.body = 1, .bodies = 1, .connections = 1}, echo);
    CHECK_THROWS_AS(open_http({.port = first->port(), .body = 1, .bodies = 1, .connections = 1}, echo),
                    Error);
}

TEST_CASE("http: a Range is refused, so that none multiplies an answer") {
    Bench bench;
    std::string ranges = "Range: bytes=0-";
    for (int i = 0; i < 500; ++i) ranges += ",0-";
    for (const std::string& range :
         {ranges, std::string("Range: bytes=0-3"), std::string("Range: lines=1")}) {
        for (const std::string& text : {"GET /a HTTP/1.1\r\n" + range + "\r\n" + end,
                                        post("/b", std::string(9000, 'a'), range + "\r\n")}) {
            const std::string answer = bench.ask(text);
            CHECK(answer.starts_with("HTTP/1.1 416"));
            CHECK(answer.size() < 1000);
        }
    }
    CHECK(bench.echo.handled == 0);
}

TEST_CASE(
    "http: what says in two ways where a request ends is answered with 400, and nothing after it is read") {
    Bench bench;
    const std::string second = "GET /second HTTP/1.1\r\nHost: x\r\n\r\n";
    const std::string length = "Content-Length: " + std::to_string(second.size()) + "\r\n";
    for (const std::string& head :
         {"GET /a HTTP/1.1\r\nHost: x\r\n" + length, "HEAD /a HTTP/1.1\r\nHost: x\r\n" + length,
          "DELETE /a HTTP/1.1\r\nHost: x\r\n" + length,
          std::string("GET /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"),
          "POST /a HTTP/1.1\r\nHost: x\r\n" + length + length,
          "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n" + length,
          std::string("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length : 1\r\nContent-Length: 0\r\n"),
          std::string("POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n"),
          "POST /a HTTP/1.1\r\nHost: x\r\nHost: y\r\n" + length}) {
        CAPTURE(head);
        Wire wire(bench.server->port());
        wire.send(head + "\r\n" + second + second);
        const std::string answer = wire.receive();
        CHECK(answer.starts_with("HTTP/1.1 400"));
        CHECK(answer.find("HTTP/1.1", 8) == std::string::npos);
        CHECK(answer.find("(timed out)") == std::string::npos);
    }
    CHECK(bench.echo.handled == 0);
    CHECK(bench.ask("GET /a HTTP/1.1\r\nContent-Length: 0\r\n" + end).starts_with("HTTP/1.1 200"));
}

TEST_CASE("http: the bodies of all connections share one memory") {
    Bench bench({.body = 10000, .bodies = 15000, .connections = 8, .seconds = 20});
    Wire first(bench.server->port());
    first.send(post("/wait", std::string(9000, 'a')));
    while (bench.echo.handled == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CHECK(bench.ask_at_once(post("/b", std::string(9000, 'a'))).starts_with("HTTP/1.1 503"));
    CHECK(bench.ask(post("/b", std::string(5000, 'a'))).starts_with("HTTP/1.1 200"));
    first.close();
    std::string text;
    for (int i = 0; i < 400 && !text.starts_with("HTTP/1.1 200"); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        text = bench.ask(post("/b", std::string(9000, 'a')));
    }
    CHECK(text.starts_with("HTTP/1.1 200"));
}

TEST_CASE("http: a request's body is gone when its answer begins") {
    Bench bench({.body = 10000, .bodies = 15000, .connections = 8, .seconds = 20});
    Wire first(bench.server->port());
    first.send(post("/begun", std::string(9000, 'a')));
    CHECK(first.receive("begun").starts_with("HTTP/1.1 200"));
    CHECK(bench.ask_at_once(post("/b", std::string(9000, 'a'))).starts_with("HTTP/1.1 200"));
}

TEST_CASE("http: an answer that is cut off has no end") {
    Bench bench;
    const std::string text = bench.ask(post("/cut", ""));
    CHECK(text.find("part 0;") != std::string::npos);
    CHECK(!text.ends_with("0\r\n\r\n"));
    CHECK(text.find("(timed out)") == std::string::npos);
}
