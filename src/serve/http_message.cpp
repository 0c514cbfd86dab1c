#include "serve/http_message.h"

#include <algorithm>
#include <array>

namespace longreach::serve {

namespace {

constexpr size_t longest_line = 8192;
constexpr size_t most_headers = 100;
constexpr size_t longest_chunk_line = 256;
constexpr int64_t chunk_lines_bytes = 64 << 10;  // sizes of chunks, and what follows the last

constexpr HttpProblem gone{-1, ""};
constexpr HttpProblem not_http{400, "the request is not HTTP/1.1"};

struct Status {
    int code;
    std::string_view reason;
};
constexpr std::array<Status, 17> statuses{{{200, "OK"},
                                           {400, "Bad Request"},
                                           {401, "Unauthorized"},
                                           {403, "Forbidden"},
                                           {404, "Not Found"},
                                           {405, "Method Not Allowed"},
                                           {408, "Request Timeout"},
                                           {411, "Length Required"},
                                           {413, "Content Too Large"},
                                           {414, "URI Too Long"},
                                           {415, "Unsupported Media Type"},
                                           {416, "Range Not Satisfiable"},
                                           {417, "Expectation Failed"},
                                           {431, "Request Header Fields Too Large"},
                                           {500, "Internal Server Error"},
                                           {503, "Service Unavailable"},
                                           {505, "HTTP Version Not Supported"}}};

bool is_letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}
// RFC 9110, section 5.6.2.
bool is_token(std::string_view text) {
    constexpr std::string_view others = "!#$%&'*+-.^_`|~";
    return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
        return is_letter_or_digit(c) || others.find(c) != std::string_view::npos;
    });
}
int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}
std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
}
std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
    while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
    return text;
}
// Whether a list between commas holds the word, in letters of any case.
bool lists(std::string_view list, std::string_view word) {
    while (!list.empty()) {
        const size_t comma = std::min(list.find(','), list.size());
        if (lower(trimmed(list.substr(0, comma))) == word) return true;
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return false;
}

// The path of a request's target; false if it has none that can be decoded.
bool decode_path(std::string_view target, std::string& path) {
    target = target.substr(0, target.find_first_of("?#"));
    for (size_t i = 0; i < target.size(); ++i) {
        if (target[i] != '%') {
            path += target[i];
            continue;
        }
        if (i + 2 >= target.size()) return false;
        const int high = hex_value(target[i + 1]), low = hex_value(target[i + 2]);
        if (high < 0 || low < 0) return false;
        path += static_cast<char>(high * 16 + low);
        i += 2;
    }
    return true;
}

// METHOD TARGET HTTP/1.x. A target may be a whole address, whose authority then is the host.
HttpProblem read_request_line(std::string_view line, HttpHead& head, std::string& host) {
    const size_t first = line.find(' '), last = line.rfind(' ');
    if (first == std::string_view::npos || first == last) return not_http;
    const std::string_view method = line.substr(0, first), version = line.substr(last + 1);
    std::string_view target = line.substr(first + 1, last - first - 1);
    if (!is_token(method) || version.size() != 8 || !version.starts_with("HTTP/")) return not_http;
    if (version != "HTTP/1.1" && version != "HTTP/1.0") return {505, "this server speaks HTTP/1.1"};
    constexpr std::string_view scheme = "http://";
    if (lower(target.substr(0, scheme.size())) == scheme) {
        target.remove_prefix(scheme.size());
        const size_t slash = std::min(target.find('/'), target.size());
        host = target.substr(0, slash);
        target.remove_prefix(slash);
        if (target.empty()) target = "/";
    }
    const bool asterisk = target == "*" && method == "OPTIONS";
    if (!asterisk && (!target.starts_with('/') || target.find(' ') != std::string_view::npos))
        return not_http;
    head.method = method;
    head.old = version == "HTTP/1.0";
    return decode_path(target, head.path) ? HttpProblem{} : not_http;
}

HttpProblem read_header(std::string_view line, HttpHead& head) {
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
        return {400, "a header without a name, or with white space in its name"};
    if (head.headers.size() == most_headers) return {431, "too many headers"};
    head.headers.emplace_back(lower(line.substr(0, colon)), trimmed(line.substr(colon + 1)));
    return {};
}

// A chunk's size in hexadecimal digits; what follows a semicolon is not read.
std::optional<uint64_t> chunk_size(std::string_view line) {
    const std::string_view digits = trimmed(line.substr(0, line.find(';')));
    if (digits.empty() || digits.size() > 15) return std::nullopt;
    uint64_t size = 0;
    for (const char c : digits) {
        if (hex_value(c) < 0) return std::nullopt;
        size = size * 16 + static_cast<uint64_t>(hex_value(c));
    }
    return size;
}

}  // namespace

bool HttpReader::fill() {
    if (rest_.empty()) rest_ = bytes_.more();
    return !rest_.empty();
}

std::string_view HttpReader::some(uint64_t most) {
    if (allowed_ <= 0 || !fill()) return {};
    const size_t count = static_cast<size_t>(std::min<uint64_t>(most, rest_.size()));
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    allowed_ -= static_cast<int64_t>(count);
    return bytes;
}

HttpLine HttpReader::line(std::string& into, size_t most) {
    into.clear();
    while (true) {
        std::string_view byte = some(1);
        if (byte.empty()) return allowed_ <= 0 ? HttpLine::too_long : HttpLine::cut;
        const char c = byte[0];
        if (c == '\r') {
            byte = some(1);
            if (byte.empty()) return HttpLine::cut;
            return byte[0] == '\n' ? HttpLine::whole : HttpLine::malformed;
        }
        if ((c >= 0 && c < ' ' && c != '\t') || c == 127) return HttpLine::malformed;
        if (into.size() == most) return HttpLine::too_long;
        into += c;
    }
}

const std::string* HttpHead::find(std::string_view name) const {
    for (const auto& [key, text] : headers)
        if (key == name) return &text;
    return nullptr;
}
std::string HttpHead::value(std::string_view name) const {
    const std::string* text = find(name);
    return text != nullptr ? *text : std::string();
}
size_t HttpHead::count(std::string_view name) const {
    return static_cast<size_t>(
        std::count_if(headers.begin(), headers.end(), [&](const auto& h) { return h.first == name; }));
}

HttpProblem read_head(HttpReader& reader, HttpHead& head) {
    head = {};
    std::string line, host;
    const auto read = [&](int status_of_too_long) -> HttpProblem {
        switch (reader.line(line, longest_line)) {
            case HttpLine::whole:
                return {};
            case HttpLine::cut:
                return gone;
            case HttpLine::too_long:
                return {status_of_too_long, "a line of the request or its headers are too long"};
            default:
                return not_http;
        }
    };
    if (const HttpProblem problem = read(414)) return problem;
    if (line.empty())  // an empty line after the body of the request before
        if (const HttpProblem problem = read(414)) return problem;
    if (const HttpProblem problem = read_request_line(line, head, host)) return problem;
    while (true) {
        if (const HttpProblem problem = read(431)) return problem;
        if (line.empty()) break;
        if (const HttpProblem problem = read_header(line, head)) return problem;
    }
    for (const char* once : {"content-length", "transfer-encoding", "host", "content-type", "authorization"})
        if (head.count(once) > 1) return {400, "a header that may stand once stands twice"};
    if (!host.empty()) {
        std::erase_if(head.headers, [](const auto& h) { return h.first == "host"; });
        head.headers.emplace_back("host", host);
    }
    bool keep = false;
    for (const auto& [name, value] : head.headers) {
        if (name != "connection") continue;
        head.close = head.close || lists(value, "close");
        keep = keep || lists(value, "keep-alive");
    }
    if (head.old && !keep) head.close = true;
    return {};
}

HttpProblem body_end(const HttpHead& head, HttpBodyEnd& end) {
    end = {};
    const std::string* length = head.find("content-length");
    const std::string* coding = head.find("transfer-encoding");
    if (coding != nullptr && (head.old || lower(*coding) != "chunked"))
        return {400, "the one Transfer-Encoding that is read is chunked"};
    if (head.method != "POST") {
        if (coding != nullptr || (length != nullptr && length->find_first_not_of('0') != std::string::npos))
            return {400, "a request of this method has no body"};
        return {};
    }
    if ((coding != nullptr) == (length != nullptr)) {
        end.kind = HttpBodyEnd::unknown;
    } else if (coding != nullptr) {
        end.kind = HttpBodyEnd::chunked;
    } else {
        const bool digits = !length->empty() && length->find_first_not_of("0123456789") == std::string::npos;
        end.length = digits && length->size() < 16 ? std::stoull(*length) : UINT64_MAX;
    }
    return {};
}

bool read_body(HttpReader& reader, const HttpBodyEnd& end,
               const std::function<bool(std::string_view)>& take) {
    const auto run = [&](uint64_t size) {
        while (size > 0) {
            reader.allow(INT64_MAX);
            const std::string_view piece = reader.some(size);
            if (piece.empty() || !take(piece)) return false;
            size -= piece.size();
        }
        return true;
    };
    if (end.kind != HttpBodyEnd::chunked) return run(end.length);
    int64_t lines = chunk_lines_bytes;  // left for what is not of the body
    std::string line;
    const auto next_line = [&] {
        reader.allow(lines);
        if (reader.line(line, longest_chunk_line) != HttpLine::whole) return false;
        lines -= static_cast<int64_t>(line.size()) + 2;
        return true;
    };
    while (true) {
        if (!next_line()) return false;
        const std::optional<uint64_t> size = chunk_size(line);
        if (!size) return false;
        if (*size == 0) break;
        if (!run(*size) || !next_line() || !line.empty()) return false;
    }
    do  // headers after the body, which nothing here needs
        if (!next_line()) return false;
    while (!line.empty());
    return true;
}

std::string answer_head(int status, std::string_view type, std::optional<uint64_t> length,
                        const HttpHead& request, bool close) {
    const auto* known =
        std::find_if(statuses.begin(), statuses.end(), [&](const Status& s) { return s.code == status; });
    std::string text = "HTTP/1.1 " + std::to_string(status) + " ";
    text += known != statuses.end() ? known->reason : "Error";
    text += "\r\nContent-Type: ";
    text += type;
    if (length) text += "\r\nContent-Length: " + std::to_string(*length);
    if (!length && !request.old) text += "\r\nTransfer-Encoding: chunked";
    if (close) text += "\r\nConnection: close";
    if (!close && request.old) text += "\r\nConnection: keep-alive";
    return text + "\r\n\r\n";
}

}  // namespace longreach::serve
