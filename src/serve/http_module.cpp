// Compiled into longreach_http.so alone: the one place that knows cpp-httplib.
//
// The library reads requests and writes answers; listening, threads and every limit are here, because the library
// bounds neither the length of a line, nor the number of headers, nor the time in which a request arrives.
#include <httplib.h>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <mutex>
#include <thread>

#include "serve/http.h"

namespace longreach::serve {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t header_bytes = 32 << 10;  // the request line and all headers
constexpr int64_t chunk_bytes = 64 << 10;   // for the sizes of chunks around a body
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

// A connection as the library reads and writes it: no more bytes than the request may have, in the time it may take.
class Connection final : public httplib::Stream, public HttpClient {
  public:
    Connection(int fd, const HttpOptions& options, const std::atomic<bool>& stopping)
        : options_(options), stopping_(stopping), socket_(fd) {
        const int on = 1;
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }

    // Waits for a request; false if none begins.
    bool wait() {
        budget_ = header_bytes;
        if (begin_ < end_) return start();
        return ready(socket_.fd(), POLLIN, options_.seconds * 1000) && !stopping_ && start();
    }
    void admit_body() {
        budget_ = static_cast<int64_t>(options_.body) + chunk_bytes;
        until_ = Clock::now() + std::chrono::seconds(options_.seconds);
    }
    void close_after() { last_ = true; }
    bool is_last() const { return last_; }
    // Ends the answer and reads what the client still sends for a moment: an answer to a request that was not read
    // to its end is lost if the connection is closed at once.
    void end() {
        ::shutdown(socket_.fd(), SHUT_WR);
        const Clock::time_point until = Clock::now() + std::chrono::seconds(1);
        char bytes[4096];
        for (int i = 0; i < 64 && Clock::now() < until && !stopping_; ++i)
            if (!ready(socket_.fd(), POLLIN, milliseconds_until(until)) ||
                ::recv(socket_.fd(), bytes, sizeof bytes, 0) <= 0)
                break;
    }
    void abort() { ::shutdown(socket_.fd(), SHUT_RDWR); }

    using Stream::write;
    bool is_readable() const override { return begin_ < end_ || ready(socket_.fd(), POLLIN, 0); }
    bool is_writable() const override {
        return !stopping_ && ready(socket_.fd(), POLLOUT, options_.seconds * 1000);
    }
    ssize_t read(char* to, size_t size) override {
        if (budget_ <= 0) return fail();
        if (begin_ == end_) {
            const int wait = milliseconds_until(until_);
            if (wait == 0 || stopping_ || !ready(socket_.fd(), POLLIN, wait)) return fail();
            ssize_t got;
            do got = ::recv(socket_.fd(), buffer_, sizeof buffer_, 0);
            while (got < 0 && errno == EINTR);
            if (got <= 0) return fail();
            begin_ = 0;
            end_ = static_cast<size_t>(got);
        }
        const size_t count = std::min({size, end_ - begin_, static_cast<size_t>(budget_)});
        std::memcpy(to, buffer_ + begin_, count);
        begin_ += count;
        budget_ -= static_cast<int64_t>(count);
        return static_cast<ssize_t>(count);
    }
    ssize_t write(const char* from, size_t size) override {
        size_t sent = 0;
        while (sent < size) {
            if (!is_writable()) return fail();
            const ssize_t now = ::send(socket_.fd(), from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (now < 0 && (errno == EAGAIN || errno == EINTR)) continue;
            if (now <= 0) return fail();
            sent += static_cast<size_t>(now);
        }
        return static_cast<ssize_t>(size);
    }
    void get_remote_ip_and_port(std::string&, int&) const override {}
    void get_local_ip_and_port(std::string&, int&) const override {}
    socket_t socket() const override { return 0; }  // the library only compares it with FD_SETSIZE

    bool gone() noexcept override {
        pollfd p{socket_.fd(), POLLRDHUP, 0};
        return stopping_ || (::poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0);
    }
    bool write(std::string_view part) noexcept override { return sink && sink(part); }

    std::function<bool(std::string_view)> sink;  // while an answer is streamed

  private:
    bool start() {
        until_ = Clock::now() + std::chrono::seconds(options_.seconds);
        return true;
    }
    ssize_t fail() {
        last_ = true;
        return -1;
    }

    const HttpOptions& options_;
    const std::atomic<bool>& stopping_;
    Socket socket_;
    char buffer_[16384];
    size_t begin_ = 0, end_ = 0;
    int64_t budget_ = 0;  // bytes that may still be read
    Clock::time_point until_;
    bool last_ = false;
};

// Whose request a handler answers. Handlers of the library see requests and answers alone.
thread_local Connection* current = nullptr;

HttpRequest request_of(const httplib::Request& r) {
    return {r.method,
            r.path,
            r.get_header_value("Host"),
            r.get_header_value("Authorization"),
            r.get_header_value("Origin"),
            r.get_header_value("Sec-Fetch-Site"),
            {}};
}

void put(httplib::Response& res, HttpAnswer&& answer) {
    res.status = answer.status;
    const std::string type(answer.type);
    if (!answer.stream) {
        res.body = std::move(answer.body);
        return res.set_header("Content-Type", type);
    }
    res.set_chunked_content_provider(
        type, [write = std::move(answer.stream), connection = current](size_t, httplib::DataSink& sink) {
            connection->sink = [&](std::string_view part) { return sink.write(part.data(), part.size()); };
            const bool all = write(*connection);
            connection->sink = nullptr;
            if (all) sink.done();
            if (!all) connection->close_after();
            return all;
        });
}

// An answer to a request whose body is not read: what follows on the connection would be taken for a request.
void refuse(httplib::Response& res, HttpAnswer&& answer) {
    put(res, std::move(answer));
    res.set_header("Connection", "close");
    current->close_after();
}

HttpAnswer plain_error(int status, const std::string& message) {
    return {.status = status,
            .body = "{\"error\":{\"message\":\"" + message +
                    "\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":" +
                    std::to_string(status) + "}}"};
}

// What is wrong with how a request says where it ends; null: nothing. Where two programs may read that differently, one
// takes the body of a request for the next request.
const char* unclear_end(const httplib::Request& r) {
    for (const char* once : {"Content-Length", "Transfer-Encoding", "Host"})
        if (r.get_header_value_count(once) > 1) return "a header that may stand once stands twice";
    const std::string length = r.get_header_value("Content-Length"),
                      coding = r.get_header_value("Transfer-Encoding");
    const bool coded = r.has_header("Transfer-Encoding");
    for (const auto& [name, value] : r.headers)
        if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return c <= ' ' || c == 127; }))
            return "the name of a header holds white space";
    if (coded && ::strcasecmp(coding.c_str(), "chunked") != 0)
        return "the one Transfer-Encoding that is read is chunked";
    const bool body = coded || length.find_first_not_of('0') != std::string::npos;
    if (r.method != "POST" && body) return "a request of this method has no body";
    return nullptr;
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

// The library's parser and writer, run on connections of our own.
class Protocol final : public httplib::Server {
  public:
    Protocol(const HttpOptions& options, HttpHandler& handler) : options_(options), handler_(handler) {
        set_pre_routing_handler([this](const httplib::Request& req, httplib::Response& res) {
            return route(req, res) ? HandlerResponse::Handled : HandlerResponse::Unhandled;
        });
        Post(".*", [this](const httplib::Request& req, httplib::Response& res,
                          const httplib::ContentReader& read) { post(req, res, read); });
        // The library's own: what follows such a request is none.
        set_error_handler([](const httplib::Request&, httplib::Response& res) {
            if (res.body.empty())
                refuse(res, plain_error(res.status, "the request is no HTTP that this server reads"));
        });
        svr_sock_ = 0;  // of a server that listens: the library stops streaming without one
    }
    // Answers the requests of a connection until it ends.
    void serve(Connection& connection) {
        current = &connection;
        bool closed = false;
        try {
            while (!closed && !connection.is_last() && connection.wait())
                if (!process_request(connection, false, closed, [&](httplib::Request& request) {
                        request.ranges.clear();  // the library would answer each with a copy of the answer
                        connection.admit_body();
                    }))
                    break;
        } catch (const std::exception&) {  // out of memory: this connection ends, the others go on
        }
        current = nullptr;
        connection.end();
    }

  private:
    // Refuses a request for how it was sent.
    void refuse_sent(const HttpRequest& request, httplib::Response& res, HttpAnswer&& answer) {
        handler_.refused(request, answer.status);
        refuse(res, std::move(answer));
    }
    // True if the request is answered without its body.
    bool route(const httplib::Request& req, httplib::Response& res) {
        HttpRequest request = request_of(req);
        const auto refused = [&](HttpAnswer&& answer) {
            return refuse_sent(request, res, std::move(answer)), true;
        };
        if (const char* problem = unclear_end(req)) return refused(plain_error(400, problem));
        if (req.has_header("Range"))
            return refused(plain_error(416, "answers are made anew and have no ranges: leave out Range"));
        if (request.path.size() > longest_path) return refused(plain_error(404, "no such path"));
        if (HttpAnswer answer = handler_.head(request); answer.status >= 400)
            return refuse(res, std::move(answer)), true;
        if (req.method != "POST") return put(res, handler_.handle(request, *current)), true;
        const std::string type = req.get_header_value("Content-Type");
        if (req.is_multipart_form_data() || req.has_header("Content-Encoding"))
            return refused(plain_error(415, "the body must be plain JSON: application/json"));
        const bool chunked = req.has_header("Transfer-Encoding");
        if (chunked == req.has_header("Content-Length"))
            return refused(plain_error(411, "give Content-Length, or send the body in chunks"));
        if (!chunked && !fits(req.get_header_value("Content-Length"))) return refused(too_large());
        return false;
    }
    bool fits(const std::string& length) const {
        const bool digits = !length.empty() && length.find_first_not_of("0123456789") == std::string::npos;
        return digits && length.size() < 16 && std::stoull(length) <= options_.body;
    }
    HttpAnswer too_large() const {
        return plain_error(413,
                           "the body is larger than " + std::to_string(options_.body) + " bytes (--body)");
    }
    void post(const httplib::Request& req, httplib::Response& res, const httplib::ContentReader& read) {
        HttpRequest request = request_of(req);
        HeldBody held(bodies_, options_.bodies);
        bool large = false, full = false;
        const bool whole = read([&](const char* data, size_t size) {
            large = request.body.size() + size > options_.body;
            full = !large && !held.add(size);
            if (!large && !full) request.body.append(data, size);
            return !large && !full;
        });
        if (large) return refuse_sent(request, res, too_large());
        if (full)
            return refuse_sent(
                request, res,
                plain_error(503, "the requests of all clients together are too large: ask again"));
        if (!whole)
            return refuse_sent(
                request, res, plain_error(400, "the body did not arrive in time, or is longer than it says"));
        HttpAnswer answer = handler_.handle(request, *current);
        put(res, std::move(answer));
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
        const std::string body = plain_error(503, "too many connections (--connections)").body;
        const std::string text =
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nConnection: "
            "close\r\nContent-Length: " +
            std::to_string(body.size()) + "\r\n\r\n" + body;
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

extern "C" [[gnu::visibility("default")]] void longreach_open_http(const HttpOptions& options,
                                                                   HttpHandler& handler,
                                                                   std::unique_ptr<HttpServer>& server,
                                                                   std::string& problem) noexcept;
void longreach_open_http(const HttpOptions& options, HttpHandler& handler,
                         std::unique_ptr<HttpServer>& server, std::string& problem) noexcept {
    try {
        const int fd = listen_on(options, problem);
        if (fd >= 0) server = std::make_unique<Listener>(options, handler, fd);
    } catch (const std::exception& error) {
        problem = error.what();
    }
}

}  // namespace longreach::serve
