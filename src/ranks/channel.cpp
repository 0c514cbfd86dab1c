#include "ranks/channel.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/process.h"
#include "base/sha256.h"
#include "base/text.h"

namespace longreach::ranks {

namespace {

static_assert(std::endian::native == std::endian::little, "numbers are sent as they are in memory");

constexpr double connect_seconds = 5;     // for one attempt
constexpr double handshake_seconds = 10;  // of one connection
constexpr double goodbye_seconds = 5;

// Milliseconds for poll(), rounded up so that a loop does not spin before its deadline.
int milliseconds_until(double deadline) {
    const double left = deadline - monotonic_seconds();
    return left <= 0 ? 0 : static_cast<int>(std::min(left * 1000 + 1, 1e9));
}

// Whether `fd` is ready before the deadline.
bool wait_for(int fd, short events, double deadline) {
    for (;;) {
        pollfd p{fd, events, 0};
        const int ready = ::poll(&p, 1, milliseconds_until(deadline));
        if (ready > 0) return true;
        if (ready == 0 && monotonic_seconds() >= deadline) return false;
        check(ready >= 0 || errno == EINTR, "poll: {}", std::strerror(errno));
    }
}

// A sockaddr, and its host and port as text and number.
struct Address {
    std::string bytes;
    std::string host;  // "10.0.0.1"; empty if unknown
    int port = 0;

    explicit Address(const void* name = nullptr, size_t size = 0)
        : bytes(static_cast<const char*>(name), size) {
        std::array<char, NI_MAXHOST> host_text{};
        std::array<char, NI_MAXSERV> port_text{};
        if (::getnameinfo(sockaddr_of(), this->size(), host_text.data(), host_text.size(), port_text.data(),
                          port_text.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0)
            return;
        host = host_text.data();
        port = std::atoi(port_text.data());
    }
    const sockaddr* sockaddr_of() const { return reinterpret_cast<const sockaddr*>(bytes.data()); }
    socklen_t size() const { return static_cast<socklen_t>(bytes.size()); }
    bool loopback() const { return host.starts_with("127.") || host == "::1"; }
    bool every_interface() const { return host == "0.0.0.0" || host == "::"; }
};

// Of a socket: `get` is getsockname or getpeername.
Address address_of(const Descriptor& socket, decltype(&::getsockname) get) {
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    const bool known = get(socket.get(), reinterpret_cast<sockaddr*>(&name), &size) == 0;
    return Address(&name, known ? size : 0);
}

std::string endpoint(const std::string& host, int port) {  // "host:port", "[::1]:port"
    return host.find(':') == host.npos ? fmt::format("{}:{}", host, port)
                                       : fmt::format("[{}]:{}", host, port);
}

// Error(usage) naming the host if it cannot be resolved.
std::vector<Address> resolve(const std::string& host, int port) {
    addrinfo wanted{};
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = AI_NUMERICSERV;
    addrinfo* list = nullptr;
    const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &list);
    if (error != 0)
        throw Error(ExitCode::usage,
                    fmt::format("cannot resolve the host {} of rank 0: {}", shown(host),
                                error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error)),
                    "MASTER_ADDR must be a name or an address of the machine on which rank 0 runs");
    std::vector<Address> addresses;
    for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
        Address address(a->ai_addr, a->ai_addrlen);
        if (!address.host.empty()) addresses.push_back(std::move(address));
    }
    ::freeaddrinfo(list);
    require(!addresses.empty(), ExitCode::usage, "the host {} of rank 0 has no address", shown(host));
    return addresses;
}

// A connected socket, or none and the reason.
Descriptor connect_to(const Address& address, double deadline, std::string& reason) {
    Descriptor fd(::socket(address.sockaddr_of()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    require(static_cast<bool>(fd), ExitCode::internal, "cannot make a socket: {}", std::strerror(errno));
    int error = 0;
    if (::connect(fd.get(), address.sockaddr_of(), address.size()) != 0) error = errno;
    if (error == EINPROGRESS) {
        socklen_t size = sizeof error;
        if (!wait_for(fd.get(), POLLOUT, deadline)) {
            error = ETIMEDOUT;
        } else if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
            error = errno;
        }
    }
    // If no process listens on it, a port of the range for outgoing connections can be connected to itself.
    if (error == 0 && address_of(fd, ::getsockname).bytes == address_of(fd, ::getpeername).bytes)
        error = ECONNREFUSED;
    if (error != 0) {
        reason = std::strerror(error);
        return Descriptor();
    }
    set_stream_options(fd);
    return fd;
}

}  // namespace

double monotonic_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string describe_process() {
    return fmt::format("process {} on {}", ::getpid(), host_name().substr(0, 64));
}

BlockedSignals::BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
}

BlockedSignals::~BlockedSignals() {
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::string_view Reader::take(size_t count) {
    require(count <= rest_.size(), ExitCode::peer, "a message of the rendezvous ends early");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
}

std::string Reader::text(size_t limit) {
    const uint32_t size = u32();
    require(size <= limit, ExitCode::peer, "a message of the rendezvous has a text of {} bytes; at most {}",
            size, limit);
    return std::string(take(size));
}

void Reader::end() const {
    require(rest_.empty(), ExitCode::peer, "a message of the rendezvous has bytes after its end");
}

std::string frame(const std::string& message) {
    check(!message.empty() && message.size() <= member_frame_bytes, "a message of {} bytes", message.size());
    return Writer().text(message).str();
}

std::optional<std::string> take_frame(std::string& buffer, size_t limit) {
    if (buffer.size() < sizeof(uint32_t)) return std::nullopt;
    const uint32_t size = Reader(buffer).u32();
    require(size >= 1 && size <= limit, ExitCode::peer, "a message of {} bytes; 1 to {} are allowed", size,
            limit);
    if (buffer.size() - sizeof size < size) return std::nullopt;
    std::string message = buffer.substr(sizeof size, size);
    buffer.erase(0, sizeof size + size);
    return message;
}

std::string Claim::encode() const {
    return Writer()
        .u8(static_cast<uint8_t>(role))
        .u32(static_cast<uint32_t>(rank))
        .u32(static_cast<uint32_t>(ranks))
        .text(who)
        .str();
}

std::string proof_of(std::string_view statement, const std::string& token, const std::string& server_nonce,
                     const std::string& client_nonce) {
    return hmac_sha256(token, Writer()
                                  .text("longreach")
                                  .u32(protocol_version)
                                  .text(statement)
                                  .text(server_nonce)
                                  .text(client_nonce)
                                  .str());
}

Descriptor listen_on(const std::string& host, int port, bool one_node) {
    std::vector<std::string> reasons;
    bool in_use = false;
    for (const Address& address : resolve(host, port)) {
        if (address.loopback() && !one_node)
            throw Error(ExitCode::usage,
                        fmt::format("the host {} of rank 0 is {} here, which the other nodes cannot reach",
                                    shown(host), address.host),
                        "set MASTER_ADDR to the address of rank 0's machine in the network of the nodes");
        require(!address.every_interface(), ExitCode::usage,
                "rank 0 would listen on every interface of its machine; it must be one address");
        Descriptor fd(
            ::socket(address.sockaddr_of()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const int on = 1;
        if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (fd && ::bind(fd.get(), address.sockaddr_of(), address.size()) == 0 &&
            ::listen(fd.get(), 1024) == 0)
            return fd;
        in_use = in_use || errno == EADDRINUSE;
        reasons.push_back(fmt::format("{}: {}", endpoint(address.host, port),
                                      errno == EADDRINUSE ? "another process listens there"
                                      : errno == EADDRNOTAVAIL
                                          ? "this machine, on which rank 0 runs, has no such address"
                                          : std::strerror(errno)));
    }
    throw Error(ExitCode::usage, fmt::format("rank 0 cannot listen on {}", join(reasons, "; ")),
                in_use ? "set MASTER_PORT (LONGREACH_PORT under torchrun) to a free port on all ranks"
                       : "MASTER_ADDR must name the machine of rank 0");
}

int port_of(const Descriptor& listener) {
    return address_of(listener, ::getsockname).port;
}

void set_stream_options(const Descriptor& connection) {
    const int on = 1;
    ::setsockopt(connection.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(connection.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

Channel::Channel(const RankPlace& place, const std::string& token, Role role, double deadline)
    : where_(endpoint(place.host, place.port)) {
    const double start = monotonic_seconds();
    const std::vector<Address> addresses = resolve(place.host, place.port);
    std::string reason = "no attempt was made";
    for (double pause = 0.02;; pause = std::min(pause * 1.5, 0.5)) {
        for (const Address& address : addresses) {
            const double attempt_end = std::min(deadline, monotonic_seconds() + connect_seconds);
            socket_ = connect_to(address, attempt_end, reason);
            if (!socket_) continue;
            in_.clear();
            if (handshake(place, token, role, deadline)) return;
            reason = "it accepts connections but does not answer as rank 0 does";
        }
        if (monotonic_seconds() + pause >= deadline)
            throw Error(
                ExitCode::peer,
                fmt::format("rank {} found no rank 0 at {} within {:.3g} s: {}", place.rank, where_,
                            deadline - start, reason),
                "rank 0 did not start, or the address or port is wrong, or a firewall blocks the port");
        std::this_thread::sleep_for(std::chrono::duration<double>(pause));
    }
}

// A server that closes the connection at once or stays silent may be a rank 0 that is ending or that
// is busy with strangers.
bool Channel::handshake(const RankPlace& place, const std::string& token, Role role, double deadline) {
    const double end = std::min(deadline, monotonic_seconds() + handshake_seconds);
    std::string first;
    try {
        first = receive(end);
    } catch (const Error&) {
        return false;
    }
    const std::string greeting = Writer(Message::challenge).text("longreach").str();
    require(first.starts_with(greeting), ExitCode::peer,
            "what listens at {} is not rank 0 of a run of this program", where_);
    Reader challenge(std::string_view(first).substr(greeting.size()));
    const uint32_t version = challenge.u32();
    require(version == protocol_version, ExitCode::peer,
            "rank 0 at {} uses version {} of the rendezvous, this program version {}: all ranks must run the "
            "same build",
            where_, version, protocol_version);
    const std::string server_nonce = challenge.bytes(nonce_bytes), nonce = random_bytes(nonce_bytes);
    challenge.end();

    const std::string claim = Claim{role, place.rank, place.ranks, describe_process()}.encode();
    std::string answer;
    try {
        send(Writer(Message::prove)
                 .bytes(claim)
                 .bytes(nonce)
                 .bytes(proof_of(claim, token, server_nonce, nonce))
                 .str(),
             end);
        answer = receive(end);
    } catch (const Error&) {
        return false;
    }
    Reader in(answer);
    const Message kind = in.kind();
    if (kind == Message::failed) {
        // Nothing proves that it comes from rank 0.
        fail(ExitCode::peer, "rank 0 at {} refused rank {}: {}", where_, place.rank,
             one_line(in.text().substr(0, 4096)));
    }
    const bool proved = kind == Message::welcome &&
                        same_digest(in.bytes(digest_bytes), proof_of("server", token, server_nonce, nonce));
    require(proved, ExitCode::peer,
            "what listens at {} does not know this run's token: it is rank 0 of another run", where_);
    in.end();
    return true;
}

std::string Channel::local_address() const {
    const std::string host = address_of(socket_, ::getsockname).host;
    require(!host.empty(), ExitCode::peer, "lost the connection to rank 0 at {}", where_);
    return host;
}

void Channel::send(const std::string& message, double deadline) {
    const std::string bytes = frame(message);
    for (size_t at = 0; at < bytes.size();) {
        const ssize_t sent = ::send(socket_.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
        if (sent > 0) {
            at += static_cast<size_t>(sent);
        } else if (errno == EAGAIN) {
            require(wait_for(socket_.get(), POLLOUT, deadline), ExitCode::peer,
                    "rank 0 at {} does not accept messages", where_);
        } else if (errno != EINTR) {
            fail(ExitCode::peer, "lost the connection to rank 0 at {}: {}", where_, std::strerror(errno));
        }
    }
}

std::optional<std::string> Channel::poll(double deadline) {
    for (;;) {
        if (std::optional<std::string> message = take_frame(in_, member_frame_bytes)) return message;
        if (!wait_for(socket_.get(), POLLIN, deadline)) return std::nullopt;
        std::array<char, 4096> bytes;
        const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
        if (got > 0) {
            in_.append(bytes.data(), static_cast<size_t>(got));
        } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            fail(ExitCode::peer, "lost the connection to rank 0 at {}: {}", where_,
                 got == 0 ? "it was closed" : std::strerror(errno));
        }
    }
}

std::optional<std::string> Channel::last_message() {
    std::optional<std::string> last;
    try {
        while (std::optional<std::string> message = poll(0)) last = std::move(message);
    } catch (const Error&) {
        // The end of the connection.
    }
    return last;
}

std::string Channel::receive(double deadline) {
    const double start = monotonic_seconds();
    std::optional<std::string> message = poll(deadline);
    require(message.has_value(), ExitCode::peer, "rank 0 at {} has not answered within {:.3g} s", where_,
            deadline - start);
    return std::move(*message);
}

void Channel::stop_receiving() {
    ::shutdown(socket_.get(), SHUT_RD);
}

void Channel::say_goodbye(ExitCode code, std::string_view reason) {
    try {
        send(Writer(Message::bye).u8(static_cast<uint8_t>(code)).text(reason.substr(0, 4096)).str(),
             monotonic_seconds() + goodbye_seconds);
    } catch (const Error&) {
        // Rank 0 has ended already.
    }
    socket_.reset();
}

}  // namespace longreach::ranks
