// Requests read from bytes, without sockets (http_test.cpp has those).
#include "serve/http_message.h"

#include <doctest/doctest.h>

#include "serve/http_pieces.h"

using namespace longreach::serve;

namespace {

HttpProblem head_of(std::string_view text, HttpHead& head, int64_t allowed = 32 << 10) {
    longreach::test::Pieces bytes(text, 7);
    HttpReader reader(bytes);
    reader.allow(allowed);
    return read_head(reader, head);
}
int status_of(const std::string& text) {
    HttpHead head;
    return head_of(text, head).status;
}

struct Body {
    bool whole = false;
    std::string text, rest;
};
Body body_of(const std::string& text, HttpBodyEnd end) {
    longreach::test::Pieces bytes(text, 3);
    HttpReader reader(bytes);
    Body body;
    body.whole = read_body(reader, end, [&](std::string_view piece) {
        body.text += piece;
        return true;
    });
    reader.allow(1000);
    for (std::string_view piece; !(piece = reader.some(10)).empty();) body.rest += piece;
    return body;
}
Body chunked(const std::string& text) {
    return body_of(text, {HttpBodyEnd::chunked, 0});
}

}  // namespace

TEST_CASE("http_message: the head of a request") {
    HttpHead head;
    REQUIRE(!head_of(
        "POST /v1/models/a%20b%2Fc?x=1#y HTTP/1.1\r\nHost: h:1\r\nX-Empty:\r\nX-Two:\t a \t b \r\n\r\n",
        head));
    CHECK(head.method == "POST");
    CHECK(head.path == "/v1/models/a b/c");
    CHECK(head.value("host") == "h:1");
    CHECK(head.value("x-empty").empty());
    CHECK(head.find("x-empty") != nullptr);
    CHECK(head.find("x-none") == nullptr);
    CHECK(head.value("x-two") == "a \t b");
    CHECK(!head.old);
    CHECK(!head.close);
    REQUIRE(!head_of("\r\nGET http://other:2/p HTTP/1.1\r\nHost: h\r\nConnection: Keep-Alive, Close\r\n\r\n",
                     head));
    CHECK(head.path == "/p");
    CHECK(head.value("host") == "other:2");
    CHECK(head.close);
    REQUIRE(!head_of("GET / HTTP/1.0\r\n\r\n", head));
    CHECK(head.old);
    CHECK(head.close);
    REQUIRE(!head_of("GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", head));
    CHECK(!head.close);
}

TEST_CASE(
    "http_message: heads that break the grammar or that two programs may read differently are refused") {
    const std::string end = "\r\n\r\n";
    for (const char* line :
         {"GET", "GET /a", "GET  HTTP/1.1", "GET a HTTP/1.1", "GET /a b HTTP/1.1", "G(T /a HTTP/1.1",
          "GET /a http/1.1", "GET /a HTTP/1.11", "GET * HTTP/1.1", "GET /%4 HTTP/1.1", "GET /%zz HTTP/1.1",
          "GET https://h/a HTTP/1.1", "GET\t/a\tHTTP/1.1"})
        CHECK_MESSAGE(status_of(line + end) == 400, line);
    CHECK(status_of("GET /a HTTP/2.0" + end) == 505);
    const std::string first = "GET /a HTTP/1.1\r\n";
    for (const char* line : {"no colon", ": no name", "a b: c", "a : c", " a: folded", "a: b\n", "a: b\rc",
                             "a: b\x01", "a\x80: b", "a: b\x7f"})
        CHECK_MESSAGE(status_of(first + line + end) == 400, line);
    CHECK(status_of(first + std::string("a: b\0c", 6) + end) == 400);
    CHECK(status_of(first + "a: \xc3\xa9" + end) == 0);
    for (const char* name : {"Content-Length", "Transfer-Encoding", "Host", "Authorization"})
        CHECK(status_of(first + name + ": 1\r\n" + name + ": 1" + end) == 400);
    CHECK(status_of("\n" + first + "\r\n") == 400);
    CHECK(status_of("GET /a HTTP/1.1\nHost: x\n\n") == 400);
}

TEST_CASE("http_message: lines, headers and heads have a limit; a head that is cut off has no answer") {
    CHECK(status_of("GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n") == 414);
    CHECK(status_of("GET / HTTP/1.1\r\na: " + std::string(9000, 'a') + "\r\n\r\n") == 431);
    std::string many = "GET / HTTP/1.1\r\n";
    for (int i = 0; i < 101; ++i) many += "a: b\r\n";
    CHECK(status_of(many + "\r\n") == 431);
    HttpHead head;
    CHECK(head_of("GET / HTTP/1.1\r\na: b\r\n\r\n", head, 20).status == 431);
    for (const char* text : {"", "G", "GET / HTTP/1.1", "GET / HTTP/1.1\r", "GET / HTTP/1.1\r\n",
                             "GET / HTTP/1.1\r\na: b\r\n\r"})
        CHECK(status_of(text) == -1);
}

TEST_CASE("http_message: where a body ends") {
    const auto end_of = [](const std::string& method, const std::string& headers, int status = 0) {
        HttpHead head;
        HttpBodyEnd end;
        REQUIRE(!head_of(method + " / HTTP/1.1\r\n" + headers + "\r\n", head));
        CHECK(body_end(head, end).status == status);
        return end;
    };
    CHECK(end_of("POST", "Content-Length: 12\r\n").length == 12);
    CHECK(end_of("POST", "Content-Length: 00\r\n").length == 0);
    for (const char* wrong : {"-1", "+1", "1x", "", "0x1", "99999999999999999999", "1, 1"})
        CHECK(end_of("POST", std::string("Content-Length: ") + wrong + "\r\n").length == UINT64_MAX);
    CHECK(end_of("POST", "Transfer-Encoding: Chunked\r\n").kind == HttpBodyEnd::chunked);
    CHECK(end_of("POST", "").kind == HttpBodyEnd::unknown);
    CHECK(end_of("POST", "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n").kind == HttpBodyEnd::unknown);
    end_of("POST", "Transfer-Encoding: gzip, chunked\r\n", 400);
    end_of("GET", "Content-Length: 1\r\n", 400);
    end_of("GET", "Transfer-Encoding: chunked\r\n", 400);
    CHECK(end_of("GET", "Content-Length: 0\r\n").length == 0);
    HttpHead head;
    HttpBodyEnd end;
    REQUIRE(!head_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", head));
    CHECK(body_end(head, end).status == 400);
}

TEST_CASE("http_message: bodies with a length and in chunks") {
    Body body = body_of("abcdefgh", {HttpBodyEnd::after_length, 5});
    CHECK(body.whole);
    CHECK(body.text == "abcde");
    CHECK(body.rest == "fgh");
    CHECK(!body_of("abc", {HttpBodyEnd::after_length, 5}).whole);
    body = chunked("3\r\nabc\r\n00A ; name=\"x\"\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nrest");
    CHECK(body.whole);
    CHECK(body.text == "abc0123456789");
    CHECK(body.rest == "rest");
    for (const char* wrong :
         {"", "\r\n", "3\r\nab", "3\r\nabcd\r\n0\r\n\r\n", "3\nabc\r\n0\r\n\r\n", "x\r\n", "-1\r\na", "0\r\n",
          "0\r\na: b\r\n", "1000000000000000\r\na", "3;\x01\r\nabc\r\n0\r\n\r\n"})
        CHECK_MESSAGE(!chunked(wrong).whole, wrong);
    CHECK(!chunked("3;" + std::string(300, 'a') + "\r\nabc\r\n0\r\n\r\n").whole);
    std::string slow;  // bytes that carry nothing are bounded
    for (int i = 0; i < 1000; ++i) slow += "1;" + std::string(200, 'a') + "\r\na\r\n";
    CHECK(!chunked(slow + "0\r\n\r\n").whole);
    std::string trailers = "0\r\n";
    for (int i = 0; i < 1000; ++i) trailers += "a: " + std::string(200, 'a') + "\r\n";
    CHECK(!chunked(trailers + "\r\n").whole);
}

TEST_CASE("http_message: the head of an answer") {
    HttpHead now, old;
    old.old = true;
    CHECK(answer_head(200, "text/plain", 3, now, false) ==
          "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\n");
    CHECK(answer_head(404, "a/b", 0, now, true) ==
          "HTTP/1.1 404 Not Found\r\nContent-Type: a/b\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    CHECK(answer_head(200, "a/b", std::nullopt, now, false).find("Transfer-Encoding: chunked\r\n") !=
          std::string::npos);
    CHECK(answer_head(200, "a/b", std::nullopt, old, true).find("Transfer-Encoding") == std::string::npos);
    CHECK(answer_head(200, "a/b", 1, old, false).find("Connection: keep-alive\r\n") != std::string::npos);
}
