#include "ranks/rendezvous_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "ranks/channel.h"
#include "ranks/control.h"
#include "ranks/rendezvous.h"
#include "ranks/token.h"

namespace longreach::ranks {

namespace {

constexpr size_t most_unsent_bytes = 4 << 20;  // to one member that does not read
constexpr size_t most_keys = 1 << 16;
constexpr size_t most_store_bytes = 64 << 20;
constexpr double tick_seconds = 0.05;
constexpr double farewell_seconds = 1;  // for the other ranks to read the end before rank 0 itself does
constexpr double linger_seconds = 10;   // for the other ranks to say goodbye before the server closes

void must_not_mean_everything(const sockaddr_storage& address) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    const bool any = (address.ss_family == AF_INET && v4.sin_addr.s_addr == htonl(INADDR_ANY)) ||
                     (address.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr));
    require(!any, ExitCode::usage,
            "rank 0 would listen on every interface of its machine; it must be one address");
}

Descriptor listen_at(const RankPlace& place) {
    std::string reasons;
    bool in_use = false;
    for (const Address& address : resolve(place.host, place.port)) {
        if (address.loopback && !place.one_node())
            throw Error(ExitCode::usage,
                        fmt::format("the host {} of rank 0 is {} here, which the other nodes cannot reach",
                                    shown(place.host), address.text),
                        "set MASTER_ADDR to the address of rank 0's machine in the network of the nodes");
        sockaddr_storage name{};
        std::memcpy(&name, address.bytes.data(), std::min(address.bytes.size(), sizeof name));
        must_not_mean_everything(name);
        Descriptor fd(::socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        const int on = 1;
        if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (fd &&
            ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name),
                   static_cast<socklen_t>(address.bytes.size())) == 0 &&
            ::listen(fd.get(), 1024) == 0)
            return fd;
        in_use = in_use || errno == EADDRINUSE;
        reasons +=
            fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", endpoint(address.text, place.port),
                        errno == EADDRINUSE      ? "another process listens there"
                        : errno == EADDRNOTAVAIL ? "this machine, on which rank 0 runs, has no such address"
                                                 : std::strerror(errno));
    }
    throw Error(ExitCode::usage, fmt::format("rank 0 cannot listen on {}", reasons),
                in_use ? "set MASTER_PORT (LONGREACH_PORT under torchrun) to a free port on all ranks"
                       : "MASTER_ADDR must name the machine of rank 0");
}

Descriptor adopt(int fd) {
    Descriptor owned(fd);
    sockaddr_storage name{};
    socklen_t size = sizeof name;
    int listening = 0;
    socklen_t listening_size = sizeof listening;
    const bool good = ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0 &&
                      ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &listening_size) == 0 &&
                      listening == 1 && ::fcntl(fd, F_SETFL, O_NONBLOCK) == 0 &&
                      ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
    require(good, ExitCode::usage, "descriptor {} in LONGREACH_LISTENING is no listening socket", fd);
    must_not_mean_everything(name);
    return owned;
}

}  // namespace

class RendezvousServer::Loop {
  public:
    Loop(const RankPlace& place, std::string token, const ServerOptions& options)
        : options_(options),
          token_(std::move(token)),
          ranks_(place.ranks),
          listener_(place.listening >= 0 ? adopt(place.listening) : listen_at(place)),
          wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
          members_(static_cast<size_t>(place.ranks)),
          watchdog_(place.ranks, options.watchdog) {
        const SignalsElsewhere guard;
        thread_ = std::thread([this] { run(); });
    }
    ~Loop() {
        const uint64_t one = 1;
        stop_ = true;
        const ssize_t ignored = ::write(wake_.get(), &one, sizeof one);
        static_cast<void>(ignored);
        thread_.join();
    }
    int port() const {
        sockaddr_storage name{};
        socklen_t size = sizeof name;
        ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&name), &size);
        return ntohs(name.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(name).sin_port
                                               : reinterpret_cast<sockaddr_in6&>(name).sin6_port);
    }
    size_t most_connections() const { return most_connections_; }

  private:
    enum class Waiting { nothing, join, key, barrier };
    struct Connection {
        Descriptor socket;
        std::string in, out, nonce;
        bool member = false, closing = false;  // closing: once `out` is sent
        Claim claim;
        double since = 0;  // when it was opened, or the message that is incomplete began
        Waiting waiting = Waiting::nothing;
        bool told = false;  // why every request fails
        std::string key;
        double deadline = 0, waiting_since = 0;
    };
    struct Member {
        std::optional<std::vector<Fingerprint>> fingerprints;
        std::string who;
        bool left = false;
    };

    void run();
    bool may_stop();
    void accept_some();
    void read_from(Connection& c);
    void write_to(Connection& c);
    void handle_stranger(Connection& c, const std::string& message);
    void handle_member(Connection& c, const std::string& message);
    void handle_store(Connection& c, Message kind, Reader& in);
    void handle_join(Connection& c, Reader& in);
    void handle_control(Connection& c, Message kind, Reader& in);
    void send(Connection& c, const std::string& message);
    void refuse(Connection& c, const std::string& text);
    void reply_failed(Connection& c, ExitCode code, const std::string& text);
    void lose(Connection& c);
    void fail_all(const std::string& text);
    void finish_barrier(const std::string& name);
    std::string missing_from(const std::string& barrier, bool only_left) const;
    void check_deadlines();
    void check_watchdog();
    Connection* find(Role role, int rank);
    std::string named(int rank) const {
        return fmt::format("rank {} ({})", rank, members_[static_cast<size_t>(rank)].who);
    }

    const ServerOptions options_;
    const std::string token_;
    const int ranks_;
    Descriptor listener_, wake_;
    std::list<Connection> connections_;  // in the order they were opened
    std::vector<Member> members_;        // by rank
    std::map<std::string, std::string> store_;
    size_t store_bytes_ = 0;
    bool all_joined_ = false;
    std::string fatal_;    // why every request fails from now on
    std::string verdict_;  // why every rank has been told to end
    double rank0_at_ = 0;  // when rank 0 is told so too
    bool rank0_told_ = false;
    Watchdog watchdog_;
    double now_ = 0;  // seconds this thread was awake: time in which the process was stopped does not count
    double accept_again_ = 0, stopping_since_ = -1;
    std::atomic<bool> stop_ = false;
    std::atomic<size_t> most_connections_ = 0;
    std::thread thread_;
};

void RendezvousServer::Loop::run() {
    double last = monotonic_seconds();
    while (!stop_ || !may_stop()) {
        std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0},
                                      {now_ >= accept_again_ ? listener_.get() : -1, POLLIN, 0}};
        std::vector<Connection*> order;
        for (Connection& c : connections_) {
            polled.push_back(
                {c.socket.get(), static_cast<short>(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
            order.push_back(&c);
        }
        ::poll(polled.data(), polled.size(), static_cast<int>(tick_seconds * 1000));
        uint64_t woken;
        const ssize_t ignored = ::read(wake_.get(), &woken, sizeof woken);
        static_cast<void>(ignored);
        const double now = monotonic_seconds();
        now_ += std::min(now - last, 1.0);
        last = now;
        for (size_t i = 0; i < order.size(); ++i) {
            Connection& c = *order[i];
            const short events = polled[i + 2].revents;
            if (c.socket && (events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(c);
            if (c.socket && !c.out.empty()) write_to(c);
        }
        // After reading: a new connection may push out the oldest stranger, which must have had its turn.
        if ((polled[1].revents & POLLIN) != 0) accept_some();
        check_deadlines();
        check_watchdog();
        connections_.remove_if([](const Connection& c) { return !c.socket; });
    }
}

// The others say goodbye first, or hear why they must end. A connection cut under them would look like a
// crash of rank 0.
bool RendezvousServer::Loop::may_stop() {
    if (stopping_since_ < 0) stopping_since_ = now_;
    const bool failed = !fatal_.empty() || !verdict_.empty();
    if (now_ - stopping_since_ > (failed ? farewell_seconds : linger_seconds)) return true;
    return std::none_of(connections_.begin(), connections_.end(), [&](const Connection& c) {
        return c.socket && c.member && (!failed || !c.out.empty());
    });
}

void RendezvousServer::Loop::accept_some() {
    for (int i = 0; i < 64; ++i) {
        const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            // Out of descriptors: the connection stays in the queue; do not spin on it.
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                accept_again_ = now_ + 0.2;
            return;
        }
        Connection& c = connections_.emplace_back();
        c.socket = Descriptor(fd);
        c.since = now_;
        const int on = 1;
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        c.nonce = random_bytes(nonce_bytes);
        send(c, Writer(Message::challenge).text("longreach").u32(protocol_version).bytes(c.nonce).str());
        const auto open = [](const Connection& o) { return static_cast<bool>(o.socket); };
        const auto strange = [&](const Connection& o) { return open(o) && !o.member; };
        const auto strangers = std::count_if(connections_.begin(), connections_.end(), strange);
        if (static_cast<size_t>(strangers) > options_.strangers)
            std::find_if(connections_.begin(), connections_.end(), strange)->socket.reset();
        const auto all = std::count_if(connections_.begin(), connections_.end(), open);
        most_connections_ = std::max<size_t>(most_connections_, static_cast<size_t>(all));
    }
}

void RendezvousServer::Loop::read_from(Connection& c) {
    std::array<char, 16384> bytes;
    const ssize_t got =
        ::recv(c.socket.get(), bytes.data(), c.member ? bytes.size() : stranger_frame_bytes, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) return lose(c);
    if (c.closing) return;  // whatever a refused connection still says
    if (c.in.empty()) c.since = c.member ? now_ : c.since;
    c.in.append(bytes.data(), static_cast<size_t>(got));
    try {
        while (c.socket && !c.closing) {
            const std::optional<std::string> message =
                take_frame(c.in, c.member ? member_frame_bytes : stranger_frame_bytes);
            if (!message) break;
            if (c.member) {
                handle_member(c, *message);
            } else {
                handle_stranger(c, *message);
            }
            c.since = c.member ? now_ : c.since;
        }
    } catch (const Error&) {
        lose(c);  // not our protocol
    }
}

void RendezvousServer::Loop::write_to(Connection& c) {
    const ssize_t sent = ::send(c.socket.get(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent < 0) return lose(c);
    c.out.erase(0, static_cast<size_t>(sent));
    if (c.out.empty() && c.closing) c.socket.reset();
}

void RendezvousServer::Loop::send(Connection& c, const std::string& message) {
    if (!c.socket) return;
    c.out += frame(message);
    if (c.out.size() > most_unsent_bytes) lose(c);
}

void RendezvousServer::Loop::refuse(Connection& c, const std::string& text) {
    send(c, Writer(Message::failed)
                .u8(static_cast<uint8_t>(ExitCode::peer))
                .text(std::string_view(text).substr(0, 4096))
                .str());
    c.closing = true;
}

void RendezvousServer::Loop::reply_failed(Connection& c, ExitCode code, const std::string& text) {
    c.waiting = Waiting::nothing;
    send(c, Writer(Message::failed)
                .u8(static_cast<uint8_t>(code))
                .text(std::string_view(text).substr(0, member_frame_bytes / 2))
                .str());
}

RendezvousServer::Loop::Connection* RendezvousServer::Loop::find(Role role, int rank) {
    for (Connection& c : connections_)
        if (c.socket && c.member && c.claim.role == role && c.claim.rank == rank) return &c;
    return nullptr;
}

void RendezvousServer::Loop::handle_stranger(Connection& c, const std::string& message) {
    Reader in(message);
    require(in.u8() == static_cast<uint8_t>(Message::prove), ExitCode::peer, "no proof");
    Claim claim;
    const uint8_t role = in.u8();
    const uint32_t rank = in.u32(), ranks = in.u32();
    claim.who = in.text(200);
    const std::string client_nonce = in.bytes(nonce_bytes), proof = in.bytes(sizeof(Digest));
    in.end();
    require(role == 1 || role == 2, ExitCode::peer, "no role");
    require(rank < (1u << 24) && ranks < (1u << 24), ExitCode::peer, "no rank");
    claim.role = static_cast<Role>(role);
    claim.rank = static_cast<int>(rank);
    claim.ranks = static_cast<int>(ranks);
    if (!same_digest(proof, client_proof(token_, c.nonce, client_nonce, claim)))
        return refuse(
            c,
            "it does not know this run's token: it belongs to another run, or LONGREACH_SECRET differs "
            "between the nodes");
    claim.who = one_line(claim.who);
    if (claim.ranks != ranks_)
        return refuse(c, fmt::format("{} was started as one of {} ranks, rank 0 as one of {}", claim.who,
                                     claim.ranks, ranks_));
    if (claim.rank >= ranks_) return refuse(c, fmt::format("there is no rank {} of {}", claim.rank, ranks_));
    if (!verdict_.empty()) return refuse(c, verdict_);
    if (!fatal_.empty()) return refuse(c, fatal_);
    if (const Connection* first = find(claim.role, claim.rank)) {
        const std::string text =
            fmt::format("two processes claim rank {}: {} and {}", claim.rank, first->claim.who, claim.who);
        refuse(c, text);
        if (!all_joined_) fail_all(text);
        return;
    }
    c.claim = claim;
    c.member = true;
    members_[rank].who = claim.who;
    if (claim.role == Role::control) watchdog_.arrived(claim.rank, claim.who, now_);
    send(c, Writer(Message::welcome).bytes(server_proof(token_, c.nonce, client_nonce)).str());
}

void RendezvousServer::Loop::handle_member(Connection& c, const std::string& message) {
    Reader in(message);
    const auto kind = static_cast<Message>(in.u8());
    if (c.claim.role == Role::control) {
        handle_control(c, kind, in);
    } else {
        require(c.waiting == Waiting::nothing, ExitCode::peer, "a request before the answer to the last");
        handle_store(c, kind, in);
    }
    in.end();
}

void RendezvousServer::Loop::handle_control(Connection& c, Message kind, Reader& in) {
    if (kind == Message::beat) {
        const CollectiveState state = decode_beat(in.text(member_frame_bytes));
        if (verdict_.empty()) watchdog_.beat(c.claim.rank, state, now_);
        send(c, Writer(Message::heard).str());
        return;
    }
    require(kind == Message::bye, ExitCode::peer, "unknown message");
    const uint8_t code = in.u8();
    watchdog_.left(c.claim.rank, code, one_line(in.text(4096)));
    c.closing = true;
    if (c.out.empty()) c.socket.reset();
}

void RendezvousServer::Loop::handle_store(Connection& c, Message kind, Reader& in) {
    if (kind == Message::bye) {
        const uint8_t code = in.u8();
        const std::string reason = one_line(in.text(4096));
        members_[static_cast<size_t>(c.claim.rank)].left = true;
        const bool in_order =
            code == static_cast<uint8_t>(ExitCode::ok) || code == static_cast<uint8_t>(ExitCode::stopped);
        c.socket.reset();
        if (!in_order || !all_joined_)
            return fail_all(
                fmt::format("{} failed with exit code {}: {}", named(c.claim.rank), code, reason));
        // Barriers that wait for it will never fill.
        std::vector<std::string> names;
        for (const Connection& o : connections_)
            if (o.socket && o.waiting == Waiting::barrier) names.push_back(o.key);
        for (const std::string& name : names) finish_barrier(name);
        return;
    }
    if (kind == Message::join) return handle_join(c, in);
    const std::string key = in.text(most_key_bytes);
    const std::string value = kind == Message::set ? in.text(most_value_bytes) : std::string();
    const double seconds = kind == Message::wait || kind == Message::barrier ? in.u32() * 1e-3 : 0;
    if (!fatal_.empty()) return reply_failed(c, ExitCode::peer, fatal_);
    const auto found = store_.find(key);
    c.key = key;
    c.deadline = now_ + seconds;
    c.waiting_since = now_;
    switch (kind) {
        case Message::set: {
            const size_t old = found == store_.end() ? 0 : key.size() + found->second.size();
            const size_t bytes = store_bytes_ - old + key.size() + value.size();
            if (bytes > most_store_bytes || (found == store_.end() && store_.size() >= most_keys))
                return reply_failed(c, ExitCode::internal, "the store of the rendezvous is full");
            store_bytes_ = bytes;
            store_[key] = value;
            send(c, Writer(Message::done).str());
            for (Connection& o : connections_) {
                if (o.waiting != Waiting::key || o.key != key) continue;
                o.waiting = Waiting::nothing;
                send(o, Writer(Message::value).text(value).str());
            }
            return;
        }
        case Message::wait:
            if (found != store_.end()) return send(c, Writer(Message::value).text(found->second).str());
            c.waiting = Waiting::key;
            return;
        case Message::barrier:
            c.waiting = Waiting::barrier;
            return finish_barrier(key);
        default:
            fail(ExitCode::peer, "unknown message");
    }
}

void RendezvousServer::Loop::handle_join(Connection& c, Reader& in) {
    const uint32_t count = in.u32();
    require(count <= most_fingerprints, ExitCode::peer, "{} fingerprints", count);
    std::vector<Fingerprint> fingerprints;
    for (uint32_t i = 0; i < count; ++i) {
        std::string name = in.text(most_key_bytes);
        fingerprints.push_back({std::move(name), in.text(most_key_bytes)});
    }
    if (!fatal_.empty()) return reply_failed(c, ExitCode::peer, fatal_);
    Member& member = members_[static_cast<size_t>(c.claim.rank)];
    require(!member.fingerprints, ExitCode::peer, "joined twice");
    member.fingerprints = std::move(fingerprints);
    c.waiting = Waiting::join;
    const auto& reference = members_[0].fingerprints;
    if (!reference) return;
    for (int rank = c.claim.rank == 0 ? 1 : c.claim.rank;
         rank < (c.claim.rank == 0 ? ranks_ : c.claim.rank + 1); ++rank) {
        const auto& theirs = members_[static_cast<size_t>(rank)].fingerprints;
        if (!theirs) continue;
        std::map<std::string, std::pair<std::string, std::string>> fields;
        for (const Fingerprint& f : *reference) fields[f.name].first = quoted(f.value);
        for (const Fingerprint& f : *theirs) fields[f.name].second = quoted(f.value);
        std::vector<std::string> differences;
        for (const auto& [name, values] : fields) {
            const auto& [ours, other] = values;
            if (ours != other)
                differences.push_back(fmt::format("{} is {} there but {} on rank 0", one_line(name),
                                                  other.empty() ? "absent" : other,
                                                  ours.empty() ? "absent" : ours));
        }
        if (!differences.empty())
            return fail_all(fmt::format("{} differs from rank 0: {}", named(rank), join(differences, ", ")));
    }
    all_joined_ = std::all_of(members_.begin(), members_.end(),
                              [](const Member& m) { return m.fingerprints.has_value(); });
    if (!all_joined_) return;
    for (Connection& o : connections_) {
        if (o.waiting != Waiting::join) continue;
        o.waiting = Waiting::nothing;
        send(o, Writer(Message::done).str());
    }
}

// A connection that ended on its own account.
void RendezvousServer::Loop::lose(Connection& c) {
    c.socket.reset();
    if (!c.member) return;
    if (c.claim.role == Role::control) return watchdog_.lost(c.claim.rank);
    fail_all(fmt::format("{} is gone: its connection closed without a goodbye", named(c.claim.rank)));
}

void RendezvousServer::Loop::fail_all(const std::string& text) {
    if (fatal_.empty()) fatal_ = text;
    // Those that ask for nothing now find it when they do, even if this process has ended by then.
    for (Connection& c : connections_) {
        if (!c.socket || !c.member || c.claim.role != Role::store ||
            (c.told && c.waiting == Waiting::nothing))
            continue;
        c.told = true;
        reply_failed(c, ExitCode::peer, fatal_);
    }
}

std::string RendezvousServer::Loop::missing_from(const std::string& barrier, bool only_left) const {
    std::vector<bool> in(static_cast<size_t>(ranks_), false);
    for (const Connection& c : connections_)
        if (c.socket && c.waiting == Waiting::barrier && c.key == barrier)
            in[static_cast<size_t>(c.claim.rank)] = true;
    std::vector<int> missing;
    for (int rank = 0; rank < ranks_; ++rank) {
        const auto i = static_cast<size_t>(rank);
        if (!in[i] && (!only_left || members_[i].left)) missing.push_back(rank);
    }
    return missing.empty() ? std::string() : rank_list(missing);
}

void RendezvousServer::Loop::finish_barrier(const std::string& name) {
    const bool full = missing_from(name, false).empty();
    const std::string left = missing_from(name, true);
    if (!full && left.empty()) return;
    for (Connection& c : connections_) {
        if (!c.socket || c.waiting != Waiting::barrier || c.key != name) continue;
        if (full) {
            c.waiting = Waiting::nothing;
            send(c, Writer(Message::done).str());
        } else {
            reply_failed(c, ExitCode::peer,
                         fmt::format("the barrier {} can never fill: {} ended before it", shown(name), left));
        }
    }
}

void RendezvousServer::Loop::check_deadlines() {
    for (Connection& c : connections_) {
        if (!c.socket) continue;
        // Slow strangers, members in the middle of a message, refusals nobody reads.
        const bool unfinished = !c.member || c.closing || !c.in.empty();
        if (unfinished && now_ - c.since > options_.handshake_timeout) {
            lose(c);
            continue;
        }
        const double waited = now_ - c.waiting_since;
        if (c.waiting == Waiting::key && now_ >= c.deadline) {
            reply_failed(c, ExitCode::peer,
                         fmt::format("nobody has set {} within {:.2g} s", shown(c.key), waited));
        } else if (c.waiting == Waiting::barrier && now_ >= c.deadline) {
            const std::string missing = missing_from(c.key, false);
            reply_failed(c, ExitCode::peer,
                         fmt::format("{} did not reach the barrier {} within {:.2g} s", missing, shown(c.key),
                                     waited));
        }
    }
    if (!all_joined_ && fatal_.empty() && now_ > options_.join_timeout) {
        std::vector<int> missing;
        for (int rank = 0; rank < ranks_; ++rank)
            if (!members_[static_cast<size_t>(rank)].fingerprints) missing.push_back(rank);
        fail_all(fmt::format("{} of {} did not arrive within {:.3g} s", rank_list(missing), ranks_,
                             options_.join_timeout));
    }
}

// Rank 0's process ends when it hears the verdict, and this thread with it: the others hear it first.
void RendezvousServer::Loop::check_watchdog() {
    if (verdict_.empty()) {
        const std::optional<std::string> verdict = watchdog_.verdict(now_);
        if (!verdict) return;
        verdict_ = *verdict;
        fail_all(verdict_);
        for (Connection& c : connections_)
            if (c.member && c.claim.role == Role::control && c.claim.rank != 0)
                send(c, Writer(Message::end).text(std::string_view(verdict_).substr(0, 32768)).str());
        rank0_at_ = now_ + farewell_seconds;
    }
    if (rank0_told_) return;
    const bool unsent = std::any_of(connections_.begin(), connections_.end(), [](const Connection& c) {
        return c.socket && c.member && !c.out.empty() && c.claim.rank != 0;
    });
    if (unsent && now_ < rank0_at_) return;
    rank0_told_ = true;
    if (Connection* c = find(Role::control, 0))
        send(*c, Writer(Message::end).text(std::string_view(verdict_).substr(0, 32768)).str());
}

RendezvousServer::RendezvousServer(const RankPlace& place, std::string token, const ServerOptions& options)
    : loop_(std::make_unique<Loop>(place, std::move(token), options)) {}
RendezvousServer::~RendezvousServer() = default;
int RendezvousServer::port() const {
    return loop_->port();
}
size_t RendezvousServer::most_connections() const {
    return loop_->most_connections();
}

}  // namespace longreach::ranks
