// HTTP/1.1 as far as a server of JSON needs it: reads the head and the body of a request from bytes, and writes the head
// of an answer. What two programs could read in two ways is refused. Sockets, threads and time are in http_server.cpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longreach::serve {

// What arrives on a connection, in order.
class HttpBytes {
  public:
    virtual ~HttpBytes() = default;
    // The next bytes, valid until the next call. None: no more arrive, or not in time.
    virtual std::string_view more() = 0;
};

// How a line ended: before its CR LF, too late, or with a control character in it.
enum class HttpLine { whole, cut, too_long, malformed };

// Reads lines and runs of bytes, no more than it is allowed at any time.
class HttpReader {
  public:
    explicit HttpReader(HttpBytes& bytes) : bytes_(bytes) {}
    void allow(int64_t bytes) { allowed_ = bytes; }
    bool has_bytes() const { return !rest_.empty(); }  // that have arrived and are not read
    HttpLine line(std::string& into, size_t most);
    // Up to `most` bytes; none: no more arrive.
    std::string_view some(uint64_t most);

  private:
    bool fill();

    HttpBytes& bytes_;
    std::string_view rest_;
    int64_t allowed_ = 0;
};

// Why a request is refused. Status 0: it is accepted.
struct HttpProblem {
    int status = 0;
    const char* message = "";
    explicit operator bool() const { return status != 0; }
};

struct HttpHead {
    std::string method;
    std::string path;                                          // decoded, without a query
    bool old = false;                                          // HTTP/1.0, which has no chunks
    bool close = false;                                        // no request follows on this connection
    std::vector<std::pair<std::string, std::string>> headers;  // names in lower case

    const std::string* find(std::string_view name) const;
    std::string value(std::string_view name) const;  // empty without the header
    size_t count(std::string_view name) const;
};

// A problem of status -1: the connection ended before a request began, or within its head.
HttpProblem read_head(HttpReader& reader, HttpHead& head);

// How the head says where the body ends.
struct HttpBodyEnd {
    enum Kind { unknown, after_length, chunked } kind = after_length;
    uint64_t length = 0;  // of one with a length
};
HttpProblem body_end(const HttpHead& head, HttpBodyEnd& end);

// Gives the body to `take` in pieces. False: `take` did, the bytes end before it does, or its chunks are malformed.
bool read_body(HttpReader& reader, const HttpBodyEnd& end, const std::function<bool(std::string_view)>& take);

// The head of an answer, with the empty line at its end. No length: the body follows in chunks, or to the end of the
// connection if the client speaks HTTP/1.0.
std::string answer_head(int status, std::string_view type, std::optional<uint64_t> length,
                        const HttpHead& request, bool close);

}  // namespace longreach::serve
