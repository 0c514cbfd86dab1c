// Connections: accepted, served by a thread each, bounded in bytes and in time. http_message.h reads what they carry.
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "serve/http.h"
#include "serve/http_message.h"

namespace longreach::serve {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t header_bytes = 32 << 10;  // the request line and all headers
constexpr size_t longest_path = 256;

class Socket {
  public:
    explicit Socket(int fd = -1) : fd_(fd) {}
    ~Socket() {
        if (fd_ >= 0) ::close(fd_);
    }
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;
    int fd() const { return fd_; }
    void reset(int fd) {
        if (fd_ >= 0) ::close(fd_);
        fd_ = fd;
    }

  private:
    int fd_;
};

int milliseconds_until(Clock::time_point end) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 1000000));
}

bool ready(int fd, short what, int milliseconds) {
    pollfd p{fd, what, 0};
    int result;
    do result = ::poll(&p, 1, milliseconds);
    while (result < 0 && errno == EINTR);
    return result > 0;
}

// A connection: what arrives in the time that a request may take, and what is sent.
class Connection final : public HttpBytes, public HttpClient {
  public:
    Connection(int fd, const HttpOptions& options, const std::atomic<bool>& stopping)
        : options_(options), stopping_(stopping), socket_(fd) {
        const int on = 1;
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }

    HttpReader& reader() { return reader_; }
    // Waits for a request; false if none begins.
    bool wait() {
        reader_.allow(header_bytes);
        const bool begun = reader_.has_bytes() || ready(socket_.fd(), POLLIN, options_.seconds * 1000);
        restart();
        return begun && !stopping_;
    }
    // What follows may take as long again.
    void restart() { until_ = Clock::now() + std::chrono::seconds(options_.seconds); }
    // Ends the answer and reads what the client still sends for a moment: an answer to a request that was not read
    // to its end is lost if the connection is closed at once.
    void end() {
        ::shutdown(socket_.fd(), SHUT_WR);
        const Clock::time_point until = Clock::now() + std::chrono::seconds(1);
        for (int i = 0; i < 64 && Clock::now() < until && !stopping_; ++i)
            if (!ready(socket_.fd(), POLLIN, milliseconds_until(until)) ||
                ::recv(socket_.fd(), buffer_, sizeof buffer_, 0) <= 0)
                break;
    }
    void abort() { ::shutdown(socket_.fd(), SHUT_RDWR); }

    std::string_view more() override {
        const int wait = milliseconds_until(until_);
        if (wait == 0 || stopping_ || !ready(socket_.fd(), POLLIN, wait)) return {};
        ssize_t got;
        do got = ::recv(socket_.fd(), buffer_, sizeof buffer_, 0);
        while (got < 0 && errno == EINTR);
        return got > 0 ? std::string_view(buffer_, static_cast<size_t>(got)) : std::string_view();
    }
    bool send(std::initializer_list<std::string_view> parts) noexcept {
        std::array<iovec, 3> pieces{};
        size_t count = 0, left = 0;
        for (const std::string_view part : parts) {
            pieces[count++] = {const_cast<char*>(part.data()), part.size()};
            left += part.size();
        }
        msghdr message{};
        message.msg_iov = pieces.data();
        message.msg_iovlen = count;
        while (left > 0) {
            if (stopping_ || !ready(socket_.fd(), POLLOUT, options_.seconds * 1000)) return false;
            const ssize_t sent = ::sendmsg(socket_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
            if (sent <= 0) return false;
            left -= static_cast<size_t>(sent);
            for (auto over = static_cast<size_t>(sent); over > 0;) {  // what the system took
                const size_t now = std::min(over, message.msg_iov->iov_len);
                message.msg_iov->iov_base = static_cast<char*>(message.msg_iov->iov_base) + now;
                message.msg_iov->iov_len -= now;
                over -= now;
                if (message.msg_iov->iov_len == 0 && message.msg_iovlen > 1)
                    ++message.msg_iov, --message.msg_iovlen;
            }
        }
        return true;
    }

    bool gone() noexcept override {
        pollfd p{socket_.fd(), POLLRDHUP, 0};
        return stopping_ || (::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
    }
    bool write(std::string_view part) noexcept override {
        if (part.empty()) return true;
        if (!in_chunks) return send({part});
        char size[24];
        const int digits = std::snprintf(size, sizeof size, "%zx\r\n", part.size());
        return send({{size, static_cast<size_t>(digits)}, part, "\r\n"});
    }
    bool in_chunks = true;  // how the parts of an answer are sent

  private:
    const HttpOptions& options_;
    const std::atomic<bool>& stopping_;
    Socket socket_;
    char buffer_[16384];
    HttpReader reader_{*this};
    Clock::time_point until_;
};

HttpAnswer plain_error(int status, std::string_view message) {
    std::string body = "{\"error\":{\"message\":\"";
    body += message;
    body += "\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":" + std::to_string(status) + "}}";
    return {.status = status, .body = std::move(body)};
}

// Bytes of bodies that a request holds of those that all may hold together.
class HeldBody {
  public:
    HeldBody(std::atomic<uint64_t>& all, uint64_t most) : all_(all), most_(most) {}
    ~HeldBody() { all_ -= own_; }
    HeldBody(const HeldBody&) = delete;
    HeldBody& operator=(const HeldBody&) = delete;
    // False if the bytes do not fit.
    bool add(uint64_t bytes) {
        own_ += bytes;
        return (all_ += bytes) <= most_;
    }

  private:
    std::atomic<uint64_t>& all_;
    const uint64_t most_;
    uint64_t own_ = 0;
};

// The requests of one connection after the other, and their answers.
class Protocol {
  public:
    Protocol(const HttpOptions& options, HttpHandler& handler) : options_(options), handler_(handler) {}
    // Answers the requests of a connection until it ends.
    void serve(Connection& connection) {
        try {
            while (connection.wait() && answer_one(connection)) {
            }
        } catch (const std::exception&) {  // out of memory: this connection ends, the others go on
        }
        connection.end();
    }

  private:
    // False if no request follows on the connection.
    bool answer_one(Connection& connection) {
        HttpHead head;
        if (const HttpProblem problem = read_head(connection.reader(), head)) {
            if (problem.status > 0) put(connection, head, plain_error(problem.status, problem.message), true);
            return false;
        }
        bool close = head.close;
        return put(connection, head, answer_of(connection, head, close), close) && !close;
    }
    // The request and its body are gone when it returns. close: becomes true if the body was not read to its end, which
    // would be taken for the next request.
    HttpAnswer answer_of(Connection& connection, const HttpHead& head, bool& close) {
        HttpRequest request{head.method,
                            head.path,
                            head.value("host"),
                            head.value("authorization"),
                            head.value("origin"),
                            head.value("sec-fetch-site"),
                            {}};
        HttpBodyEnd end;
        HttpAnswer problem = problem_of(head, request, end);
        if (problem.status < 400) {
            if (HttpAnswer answer = handler_.head(request); answer.status >= 400) {
                close = true;
                return answer;
            }
            problem = problem_of_body(head, end);
        }
        HeldBody held(bodies_, options_.bodies);
        if (problem.status < 400 && head.method == "POST")
            problem = read(connection, head, end, held, request.body);
        if (problem.status < 400) return handler_.handle(request, connection);
        close = true;
        handler_.refused(request, problem.status);
        return problem;
    }
    // Of these three, an answer with a status below 400 says that nothing is wrong.
    HttpAnswer problem_of(const HttpHead& head, const HttpRequest& request, HttpBodyEnd& end) const {
        if (const HttpProblem problem = body_end(head, end); problem)
            return plain_error(problem.status, problem.message);
        if (head.find("range") != nullptr)
            return plain_error(416, "answers are generated and have no ranges: leave out Range");
        if (request.path.size() > longest_path) return plain_error(404, "no such path");
        return {};
    }
    HttpAnswer problem_of_body(const HttpHead& head, const HttpBodyEnd& end) const {
        if (head.method != "POST") return {};
        if (head.find("content-encoding") != nullptr || head.value("content-type").starts_with("multipart/"))
            return plain_error(415, "the body must be plain JSON: application/json");
        if (end.kind == HttpBodyEnd::unknown)
            return plain_error(411, "give Content-Length, or send the body in chunks");
        if (end.length > options_.body) return too_large();
        return {};
    }
    HttpAnswer too_large() const {
        return plain_error(413,
                           "the body is larger than " + std::to_string(options_.body) + " bytes (--body)");
    }
    HttpAnswer read(Connection& connection, const HttpHead& head, const HttpBodyEnd& end, HeldBody& held,
                    std::string& body) {
        connection.restart();
        if (const std::string* expected = head.find("expect"); expected != nullptr && !head.old) {
            if (*expected != "100-continue")
                return plain_error(417, "the one expectation that is met is 100-continue");
            if (!connection.reader().has_bytes()) connection.send({"HTTP/1.1 100 Continue\r\n\r\n"});
        }
        bool large = false, full = false;
        const bool whole = read_body(connection.reader(), end, [&](std::string_view piece) {
            large = body.size() + piece.size() > options_.body;
            full = !large && !held.add(piece.size());
            if (!large && !full) body.append(piece);
            return !large && !full;
        });
        if (large) return too_large();
        if (full) return plain_error(503, "the requests of all clients together are too large: ask again");
        if (!whole) return plain_error(400, "the body did not arrive in time, or is not as long as it says");
        return {};
    }
    // False if the answer was not sent whole.
    static bool put(Connection& connection, const HttpHead& head, HttpAnswer answer, bool close) {
        const bool empty = head.method == "HEAD";
        if (!answer.stream) {
            const std::string text = answer_head(answer.status, answer.type, answer.body.size(), head, close);
            return connection.send({text, empty ? std::string_view() : answer.body});
        }
        close = close || head.old;
        if (!connection.send({answer_head(answer.status, answer.type, std::nullopt, head, close)}))
            return false;
        if (empty) return true;
        connection.in_chunks = !head.old;
        return answer.stream(connection) && (head.old || connection.send({"0\r\n\r\n"})) && !close;
    }

    const HttpOptions& options_;
    HttpHandler& handler_;
    std::atomic<uint64_t> bodies_ = 0;  // bytes held
};

// An address to listen on; `problem` says why there is none.
int listen_on(const HttpOptions& options, std::string& problem) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    const int error =
        ::getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &found);
    if (error != 0) {
        problem = ::gai_strerror(error);
        return -1;
    }
    int fd = -1;
    for (const addrinfo* a = found; a != nullptr && fd < 0; a = a->ai_next) {
        fd = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        const int on = 1;
        if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (fd >= 0 && ::bind(fd, a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd, 128) == 0) break;
        problem = std::strerror(errno);
        if (fd >= 0) ::close(fd);
        fd = -1;
    }
    ::freeaddrinfo(found);
    return fd;
}

class Listener final : public HttpServer {
  public:
    Listener(const HttpOptions& options, HttpHandler& handler, int fd)
        : options_(options), protocol_(options_, handler), listening_(fd), wake_(::eventfd(0, EFD_CLOEXEC)) {
        accepting_ = std::thread([this] { accept_all(); });
    }
    ~Listener() override {
        stopping_ = true;
        const uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = ::write(wake_.fd(), &one, sizeof one);
        accepting_.join();
        {
            const std::lock_guard lock(mutex_);
            for (Served& s : served_) s.connection.abort();
        }
        for (Served& s : served_) s.thread.join();
    }
    int port() const noexcept override {
        sockaddr_storage address{};
        socklen_t size = sizeof address;
        ::getsockname(listening_.fd(), reinterpret_cast<sockaddr*>(&address), &size);
        return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                                   : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
    }

  private:
    struct Served {
        Served(int fd, const HttpOptions& options, const std::atomic<bool>& stopping)
            : connection(fd, options, stopping) {}
        Connection connection;
        std::thread thread;
        std::atomic<bool> over = false;
    };

    void accept_all() {
        while (!stopping_) {
            pollfd p[2] = {{listening_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
            if (::poll(p, 2, 1000) < 0 && errno != EINTR) return;
            collect();
            if (stopping_ || (p[0].revents & POLLIN) == 0) continue;
            const int fd = ::accept4(listening_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
            if (fd < 0) {
                // Out of descriptors: the connection stays in the queue of the system for a moment.
                std::this_thread::sleep_for(std::chrono::milliseconds(50));
                continue;
            }
            if (served_.size() >= static_cast<size_t>(options_.connections)) {
                turn_away(fd);
                continue;
            }
            begin(fd);
        }
    }
    void begin(int fd) {
        const std::lock_guard lock(mutex_);
        Served& s = served_.emplace_back(fd, options_, stopping_);
        try {
            s.thread = std::thread([this, &s] {
                protocol_.serve(s.connection);
                s.over = true;
            });
        } catch (const std::system_error&) {  // no more threads
            served_.pop_back();
        }
    }
    void collect() {
        const std::lock_guard lock(mutex_);
        for (auto s = served_.begin(); s != served_.end();) {
            if (s->over) {
                s->thread.join();
                s = served_.erase(s);
            } else {
                ++s;
            }
        }
    }
    void turn_away(int fd) {
        const Socket socket(fd);
        const HttpAnswer answer = plain_error(503, "too many connections (--connections)");
        const std::string text = answer_head(503, answer.type, answer.body.size(), {}, true) + answer.body;
        [[maybe_unused]] const ssize_t sent =
            ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        ::shutdown(fd, SHUT_WR);
        char bytes[4096];
        [[maybe_unused]] const ssize_t got = ::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    }

    const HttpOptions options_;
    Protocol protocol_;
    std::atomic<bool> stopping_ = false;
    Socket listening_, wake_;
    std::mutex mutex_;  // guards the list, which the accepting thread changes
    std::list<Served> served_;
    std::thread accepting_;
};

}  // namespace

std::unique_ptr<HttpServer> open_http(const HttpOptions& options, HttpHandler& handler) {
    std::string problem;
    const int fd = listen_on(options, problem);
    require(fd >= 0, ExitCode::usage, "cannot listen on {}:{}: {}", options.host, options.port, problem);
    return std::make_unique<Listener>(options, handler, fd);
}

}  // namespace longreach::serve
