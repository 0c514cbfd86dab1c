#include "ranks/channel.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "ranks/token.h"

namespace longreach::ranks {

namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

constexpr double connect_seconds = 5;     // for one attempt
constexpr double handshake_seconds = 10;  // of one connection

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

// A connection that a port of our own range can have made to itself while nobody listened there.
bool connected_to_itself(int fd) {
    sockaddr_storage here{}, there{};
    socklen_t here_size = sizeof here, there_size = sizeof there;
    return ::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) == 0 &&
           ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) == 0 &&
           here_size == there_size && std::memcmp(&here, &there, here_size) == 0;
}

// A connected socket, or none and the reason.
Descriptor connect_to(const Address& address, double deadline, std::string& reason) {
    const auto* name = reinterpret_cast<const sockaddr*>(address.bytes.data());
    Descriptor fd(::socket(name->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    require(static_cast<bool>(fd), ExitCode::internal, "cannot make a socket: {}", std::strerror(errno));
    int error = 0;
    if (::connect(fd.get(), name, static_cast<socklen_t>(address.bytes.size())) != 0) error = errno;
    if (error == EINPROGRESS) {
        socklen_t size = sizeof error;
        if (!wait_for(fd.get(), POLLOUT, deadline)) {
            error = ETIMEDOUT;
        } else if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
            error = errno;
        }
    }
    if (error == 0 && connected_to_itself(fd.get())) error = ECONNREFUSED;
    if (error != 0) {
        reason = std::strerror(error);
        return {};
    }
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    return fd;
}

std::string mac(const std::string& token, const Writer& what) {
    return std::string(bytes_of(hmac_sha256(token, what.str())));
}

}  // namespace

double monotonic_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string describe_process() {
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) return fmt::format("process {}", ::getpid());
    return fmt::format("process {} on {}", ::getpid(), std::string(host.data()).substr(0, 64));
}

SignalsElsewhere::SignalsElsewhere() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
}

SignalsElsewhere::~SignalsElsewhere() {
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    if (this != &other) {
        reset();
        fd_ = other.release();
    }
    return *this;
}

int Descriptor::release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
}

void Descriptor::reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

std::string_view Reader::take(size_t count) {
    require(count <= rest_.size(), ExitCode::peer, "a message of the rendezvous ends early");
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
}

uint8_t Reader::u8() {
    return static_cast<uint8_t>(take(1)[0]);
}

uint32_t Reader::u32() {
    uint32_t value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
}

uint64_t Reader::u64() {
    uint64_t value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
}

std::string Reader::text(size_t limit) {
    const uint32_t size = u32();
    require(size <= limit, ExitCode::peer, "a message of the rendezvous has a text of {} bytes; at most {}",
            size, limit);
    return std::string(take(size));
}

void Reader::end() const {
    require(rest_.empty(), ExitCode::peer, "a message of the rendezvous goes on after its end");
}

std::string frame(const std::string& message) {
    check(!message.empty() && message.size() <= member_frame_bytes, "a message of {} bytes", message.size());
    return Writer().u32(static_cast<uint32_t>(message.size())).bytes(message).str();
}

std::optional<std::string> take_frame(std::string& buffer, size_t limit) {
    uint32_t size;
    if (buffer.size() < sizeof size) return std::nullopt;
    std::memcpy(&size, buffer.data(), sizeof size);
    require(size >= 1 && size <= limit, ExitCode::peer, "a message of {} bytes; 1 to {} are allowed", size,
            limit);
    if (buffer.size() - sizeof size < size) return std::nullopt;
    std::string message = buffer.substr(sizeof size, size);
    buffer.erase(0, sizeof size + size);
    return message;
}

std::string client_proof(const std::string& token, const std::string& server_nonce,
                         const std::string& client_nonce, const Claim& claim) {
    Writer what;
    what.text("longreach client").u32(protocol_version).text(server_nonce).text(client_nonce);
    what.u8(static_cast<uint8_t>(claim.role)).u32(static_cast<uint32_t>(claim.rank));
    what.u32(static_cast<uint32_t>(claim.ranks)).text(claim.who);
    return mac(token, what);
}

std::string server_proof(const std::string& token, const std::string& server_nonce,
                         const std::string& client_nonce) {
    Writer what;
    what.text("longreach server").u32(protocol_version).text(server_nonce).text(client_nonce);
    return mac(token, what);
}

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
        std::array<char, NI_MAXHOST> text{};
        if (::getnameinfo(a->ai_addr, a->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) !=
            0)
            continue;
        Address address{std::string(reinterpret_cast<const char*>(a->ai_addr), a->ai_addrlen), text.data(),
                        false};
        address.loopback = address.text.starts_with("127.") || address.text == "::1";
        addresses.push_back(std::move(address));
    }
    ::freeaddrinfo(list);
    require(!addresses.empty(), ExitCode::usage, "the host {} of rank 0 has no address", shown(host));
    return addresses;
}

std::string endpoint(const std::string& host, int port) {
    const bool brackets = host.find(':') != std::string::npos;
    return fmt::format("{}{}{}:{}", brackets ? "[" : "", host, brackets ? "]" : "", port);
}

Channel::Channel(const RankPlace& place, const std::string& token, Role role, double deadline)
    : where_(endpoint(place.host, place.port)) {
    const double start = monotonic_seconds();
    const std::vector<Address> addresses = resolve(place.host, place.port);
    std::string reason = "no attempt was made";
    double pause = 0.02;
    for (;;) {
        for (const Address& address : addresses) {
            const double attempt_end = std::min(deadline, monotonic_seconds() + connect_seconds);
            socket_ = connect_to(address, attempt_end, reason);
            if (!socket_) continue;
            in_.clear();
            if (handshake(place, token, role, deadline) == Attempt::let_in) return;
            reason = "it accepts connections but does not answer as rank 0 does";
        }
        if (monotonic_seconds() + pause >= deadline)
            throw Error(
                ExitCode::peer,
                fmt::format("rank {} found no rank 0 at {} within {:.3g} s: {}", place.rank, where_,
                            deadline - start, reason),
                "rank 0 did not start, or another address or port is meant, or a firewall is between");
        std::this_thread::sleep_for(std::chrono::duration<double>(pause));
        pause = std::min(pause * 1.5, 0.5);
    }
}

// Closed before a word, or silent: rank 0 may be ending, or busy with strangers. Worth another attempt.
Channel::Attempt Channel::handshake(const RankPlace& place, const std::string& token, Role role,
                                    double deadline) {
    const double end = std::min(deadline, monotonic_seconds() + handshake_seconds);
    std::optional<std::string> first;
    try {
        first = poll(end, -1);
    } catch (const Error&) {
        return Attempt::again;
    }
    if (!first) return Attempt::again;
    std::string server_nonce;
    bool ours = false;
    try {
        Reader in(*first);
        ours = in.u8() == static_cast<uint8_t>(Message::challenge) && in.text(16) == "longreach";
        if (ours) {
            const uint32_t version = in.u32();
            require(version == protocol_version, ExitCode::peer,
                    "rank 0 at {} speaks version {} of the rendezvous, this program version {}: all ranks "
                    "must run "
                    "the same build",
                    where_, version, protocol_version);
            server_nonce = in.bytes(nonce_bytes);
            in.end();
        }
    } catch (const Error&) {
        if (ours) throw;
    }
    require(ours, ExitCode::peer, "what listens at {} is not rank 0 of a run of this program", where_);

    const Claim claim{role, place.rank, place.ranks, describe_process()};
    const std::string nonce = random_bytes(nonce_bytes);
    Writer proof(Message::prove);
    proof.u8(static_cast<uint8_t>(role)).u32(static_cast<uint32_t>(place.rank));
    proof.u32(static_cast<uint32_t>(place.ranks)).text(claim.who).bytes(nonce);
    proof.bytes(client_proof(token, server_nonce, nonce, claim));
    std::string answer;
    try {
        send(proof.str(), end);
        answer = receive(end);
    } catch (const Error&) {
        return Attempt::again;
    }
    Reader in(answer);
    const auto kind = static_cast<Message>(in.u8());
    if (kind == Message::failed) {
        // Not proved to come from rank 0, so nothing but its text is used.
        in.u8();
        fail(ExitCode::peer, "rank 0 at {} refused rank {}: {}", where_, place.rank, one_line(in.text(4096)));
    }
    const bool proved = kind == Message::welcome &&
                        same_digest(in.bytes(sizeof(Digest)), server_proof(token, server_nonce, nonce));
    require(proved, ExitCode::peer,
            "what listens at {} does not know this run's token: it is rank 0 of another run", where_);
    in.end();
    return Attempt::let_in;
}

std::string Channel::local_address() const {
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    std::array<char, NI_MAXHOST> text{};
    const bool ok = ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&name), &size) == 0 &&
                    ::getnameinfo(reinterpret_cast<const sockaddr*>(&name), size, text.data(), text.size(),
                                  nullptr, 0, NI_NUMERICHOST) == 0;
    require(ok, ExitCode::peer, "lost the connection to rank 0 at {}", where_);
    return text.data();
}

void Channel::send(const std::string& message, double deadline) {
    const std::string bytes = frame(message);
    for (size_t at = 0; at < bytes.size();) {
        const ssize_t sent = ::send(socket_.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
        if (sent > 0) {
            at += static_cast<size_t>(sent);
        } else if (errno == EAGAIN) {
            require(wait_for(socket_.get(), POLLOUT, deadline), ExitCode::peer,
                    "rank 0 at {} takes no messages", where_);
        } else if (errno != EINTR) {
            fail(ExitCode::peer, "lost the connection to rank 0 at {}: {}", where_, std::strerror(errno));
        }
    }
}

std::optional<std::string> Channel::poll(double deadline, int wake_fd) {
    for (;;) {
        if (std::optional<std::string> message = take_frame(in_, member_frame_bytes)) return message;
        pollfd p[2] = {{socket_.get(), POLLIN, 0}, {wake_fd, POLLIN, 0}};
        const int ready = ::poll(p, wake_fd >= 0 ? 2 : 1, milliseconds_until(deadline));
        if (ready == 0 && monotonic_seconds() >= deadline) return std::nullopt;
        if (ready <= 0) continue;
        if (wake_fd >= 0 && p[1].revents != 0) return std::nullopt;
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

std::optional<std::string> Channel::last_message() noexcept {
    std::optional<std::string> last;
    try {
        while (std::optional<std::string> message = poll(0, -1)) last = std::move(message);
    } catch (const Error&) {
        // The end of the connection.
    }
    return last;
}

std::string Channel::receive(double deadline) {
    const double start = monotonic_seconds();
    std::optional<std::string> message = poll(deadline, -1);
    require(message.has_value(), ExitCode::peer, "rank 0 at {} has not answered within {:.3g} s", where_,
            deadline - start);
    return std::move(*message);
}

}  // namespace longreach::ranks
