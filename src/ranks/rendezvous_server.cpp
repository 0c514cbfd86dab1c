#include "ranks/rendezvous_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <list>
#include <map>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"
#include "ranks/channel.h"
#include "ranks/control.h"
#include "ranks/rendezvous.h"

namespace longreach::ranks {

namespace {

constexpr size_t most_unsent_bytes = 4 << 20;  // to one member that does not read
constexpr double tick_seconds = 0.05;
constexpr double farewell_seconds = 1;  // for the other ranks to read why they must end, before rank 0 does
constexpr double linger_seconds = 10;   // for the other ranks to say goodbye before the server closes
constexpr size_t most_reason_bytes = 32768;

// A socket that our spawn made with listen_on().
Descriptor adopt(int fd) {
    int listening = 0;
    socklen_t size = sizeof listening;
    const bool good = ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening == 1 &&
                      ::fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
    require(good, ExitCode::usage, "descriptor {} in LONGREACH_LISTENING is not a listening socket", fd);
    return Descriptor(fd);
}

std::string differences(const Fingerprints& ours, const Fingerprints& theirs) {
    Fingerprints all = ours;
    all.insert(theirs.begin(), theirs.end());
    std::vector<std::string> parts;
    for (const auto& [name, value] : all) {
        const auto own = ours.find(name), other = theirs.find(name);
        if (own != ours.end() && other != theirs.end() && own->second == other->second) continue;
        parts.push_back(fmt::format("{} is {} there but {} on rank 0", one_line(name),
                                    other == theirs.end() ? "absent" : quoted(other->second, 200),
                                    own == ours.end() ? "absent" : quoted(own->second, 200)));
    }
    return join(parts, ", ");
}

}  // namespace

class RendezvousServer::Loop {
  public:
    Loop(const RankPlace& place, std::string token, const ServerOptions& options)
        : options_(options),
          token_(std::move(token)),
          ranks_(place.ranks),
          listener_(place.listening >= 0 ? adopt(place.listening)
                                         : listen_on(place.host, place.port, place.one_node())),
          members_(static_cast<size_t>(place.ranks)),
          watchdog_(place.ranks, options.watchdog) {
        const BlockedSignals guard;
        thread_ = std::thread([this] { run(); });
    }
    ~Loop() {
        stop_ = true;
        thread_.join();
    }
    int port() const { return port_of(listener_); }
    size_t most_connections() const { return most_connections_; }

  private:
    enum class Waiting { nothing, key, barrier };
    struct Connection {
        Descriptor socket;
        std::string in, out, nonce;
        bool member = false, closing = false;  // closing: once `out` is sent
        Claim claim;
        double since = 0;  // when it was opened, or the message that is incomplete began
        Waiting waiting = Waiting::nothing;
        bool told = false;          // the reason why every request fails
        std::string key;            // what it waits for
        Fingerprints fingerprints;  // with which it waits in a barrier
        double seconds = 0, deadline = 0;
    };
    struct Member {
        std::string who;
        bool left = false;
    };

    void run() {
        double last = monotonic_seconds();
        while (!stop_ || !may_stop()) {
            std::vector<pollfd> polled = {{now_ >= accept_again_ ? listener_.get() : -1, POLLIN, 0}};
            std::vector<Connection*> order;
            for (Connection& c : connections_) {
                polled.push_back(
                    {c.socket.get(), static_cast<short>(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
                order.push_back(&c);
            }
            ::poll(polled.data(), polled.size(), static_cast<int>(tick_seconds * 1000));
            const double now = monotonic_seconds();
            now_ += std::min(now - last, 1.0);
            last = now;
            for (size_t i = 0; i < order.size(); ++i) {
                Connection& c = *order[i];
                const short events = polled[i + 1].revents;
                if (c.socket && (events & (POLLIN | POLLHUP | POLLERR)) != 0) read_from(c);
                if (c.socket && !c.out.empty()) write_to(c);
            }
            // After reading: a new connection may replace the oldest stranger, which must have had its turn.
            if ((polled[0].revents & POLLIN) != 0) accept_some();
            check_deadlines();
            check_watchdog();
            connections_.remove_if([](const Connection& c) { return !c.socket; });
        }
    }
    // Waits until the others have said goodbye or have been sent the reason why they must end. If their
    // connections closed earlier, it would look to them like a crash of rank 0.
    bool may_stop() {
        if (stopping_since_ < 0) stopping_since_ = now_;
        const bool failed = !fatal_.empty();
        if (now_ - stopping_since_ > (failed ? farewell_seconds : linger_seconds)) return true;
        return std::none_of(connections_.begin(), connections_.end(), [&](const Connection& c) {
            return c.socket && c.member && (!failed || !c.out.empty());
        });
    }
    void accept_some() {
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
            set_stream_options(c.socket);
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
    void read_from(Connection& c) {
        std::array<char, 16384> bytes;
        const ssize_t got =
            ::recv(c.socket.get(), bytes.data(), c.member ? bytes.size() : stranger_frame_bytes, 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (got <= 0) return lose(c);
        if (c.closing) return;  // input from a refused connection is ignored
        if (c.in.empty() && c.member) c.since = now_;
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
                if (c.member) c.since = now_;
            }
        } catch (const Error&) {
            lose(c);  // not our protocol
        }
    }
    void write_to(Connection& c) {
        const ssize_t sent = ::send(c.socket.get(), c.out.data(), c.out.size(), MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (sent < 0) return lose(c);
        c.out.erase(0, static_cast<size_t>(sent));
        if (c.out.empty() && c.closing) c.socket.reset();
    }
    void send(Connection& c, const std::string& message) {
        if (!c.socket) return;
        c.out += frame(message);
        if (c.out.size() > most_unsent_bytes) lose(c);
    }
    void answer(Connection& c, const Writer& message) {
        c.waiting = Waiting::nothing;
        send(c, message.str());
    }
    void answer_failed(Connection& c, const std::string& text) {
        answer(c, Writer(Message::failed).text(std::string_view(text).substr(0, most_reason_bytes)));
    }
    void refuse(Connection& c, const std::string& text) {
        answer_failed(c, text);
        c.closing = true;
    }
    Connection* find(Role role, int rank) {
        for (Connection& c : connections_)
            if (c.socket && c.member && c.claim.role == role && c.claim.rank == rank) return &c;
        return nullptr;
    }
    void handle_stranger(Connection& c, const std::string& message) {
        Reader in(message);
        require(in.kind() == Message::prove, ExitCode::peer, "no proof");
        Claim claim;
        const uint8_t role = in.u8();
        const uint32_t rank = in.u32(), ranks = in.u32();
        claim.who = in.text(200);
        const std::string client_nonce = in.bytes(nonce_bytes), proof = in.bytes(digest_bytes);
        in.end();
        require((role == 1 || role == 2) && rank < (1u << 24) && ranks < (1u << 24), ExitCode::peer,
                "an impossible claim");
        claim.role = static_cast<Role>(role);
        claim.rank = static_cast<int>(rank);
        claim.ranks = static_cast<int>(ranks);
        if (!same_digest(proof, proof_of(claim.encode(), token_, c.nonce, client_nonce)))
            return refuse(
                c,
                "it does not know this run's token: it belongs to another run, or LONGREACH_SECRET differs "
                "between the nodes");
        claim.who = one_line(claim.who);
        if (claim.ranks != ranks_)
            return refuse(c, fmt::format("{} was started as one of {} ranks, rank 0 as one of {}", claim.who,
                                         claim.ranks, ranks_));
        if (claim.rank >= ranks_)
            return refuse(c, fmt::format("there is no rank {} of {}", claim.rank, ranks_));
        if (!fatal_.empty()) return refuse(c, fatal_);
        if (const Connection* first = find(claim.role, claim.rank)) {
            const std::string text = fmt::format("two processes claim rank {}: {} and {}", claim.rank,
                                                 first->claim.who, claim.who);
            refuse(c, text);
            if (!joined_) fail_all(text);
            return;
        }
        c.claim = claim;
        c.member = true;
        members_[rank].who = claim.who;
        if (claim.role == Role::control) watchdog_.arrived(claim.rank, claim.who, now_);
        answer(c, Writer(Message::welcome).bytes(proof_of("server", token_, c.nonce, client_nonce)));
    }
    void handle_member(Connection& c, const std::string& message) {
        Reader in(message);
        const Message kind = in.kind();
        require(c.waiting == Waiting::nothing, ExitCode::peer, "a request before the answer to the last");
        if (kind == Message::bye) {
            const uint8_t code = in.u8();
            const std::string reason = one_line(in.text(4096));
            in.end();
            return handle_bye(c, code, reason);
        }
        require((kind == Message::beat) == (c.claim.role == Role::control), ExitCode::peer,
                "another role's message");
        if (kind == Message::beat) {
            const CollectiveState state = decode_beat(in.text());
            in.end();
            if (verdict_.empty()) watchdog_.beat(c.claim.rank, state, now_);
            return send(c, Writer(Message::heard).str());
        }
        const std::string key = in.text();
        if (kind == Message::set) {
            const std::string value = in.text(most_value_bytes);
            in.end();
            if (!fatal_.empty()) return answer_failed(c, fatal_);
            store_[key] = value;
            for (Connection& o : connections_)
                if (o.waiting == Waiting::key && o.key == key) answer(o, Writer(Message::value).text(value));
            return answer(c, Writer(Message::done));
        }
        require(kind == Message::wait || kind == Message::meet, ExitCode::peer, "unknown message");
        c.key = key;
        c.seconds = in.u32() * 1e-3;
        c.deadline = now_ + c.seconds;
        c.fingerprints.clear();
        for (uint32_t i = 0, count = kind == Message::meet ? in.u32() : 0; i < count; ++i) {
            const std::string name = in.text();
            c.fingerprints[name] = in.text();
        }
        in.end();
        if (!fatal_.empty()) return answer_failed(c, fatal_);
        c.waiting = kind == Message::wait ? Waiting::key : Waiting::barrier;
        if (kind == Message::meet) return finish_barrier(key);
        if (const auto found = store_.find(key); found != store_.end())
            answer(c, Writer(Message::value).text(found->second));
    }
    void handle_bye(Connection& c, int code, const std::string& reason) {
        c.socket.reset();
        if (c.claim.role == Role::control) return watchdog_.left(c.claim.rank, code, reason);
        members_[static_cast<size_t>(c.claim.rank)].left = true;
        if (!ended_in_order(code) || !joined_)
            return fail_all(
                fmt::format("{} failed with exit code {}: {}", named(c.claim.rank), code, reason));
        // The barriers that others wait in can no longer fill.
        std::set<std::string> barriers;
        for (const Connection& o : connections_)
            if (o.socket && o.waiting == Waiting::barrier) barriers.insert(o.key);
        for (const std::string& name : barriers) finish_barrier(name);
    }
    // A connection that was closed without a goodbye.
    void lose(Connection& c) {
        c.socket.reset();
        if (!c.member) return;
        if (c.claim.role == Role::control) return watchdog_.lost(c.claim.rank);
        fail_all(fmt::format("{} is gone: its connection closed without a goodbye", named(c.claim.rank)));
    }
    void fail_all(const std::string& text) {
        if (fatal_.empty()) fatal_ = text;
        // A member without a request reads the answer when it makes one, even after the end of this process.
        for (Connection& c : connections_) {
            if (!c.socket || !c.member || c.claim.role != Role::store ||
                (c.told && c.waiting == Waiting::nothing))
                continue;
            c.told = true;
            answer_failed(c, fatal_);
        }
    }
    // By rank; null for the ranks that are not in the barrier.
    std::vector<Connection*> waiting_in(const std::string& barrier) {
        std::vector<Connection*> waiting(static_cast<size_t>(ranks_), nullptr);
        for (Connection& c : connections_)
            if (c.socket && c.waiting == Waiting::barrier && c.key == barrier)
                waiting[static_cast<size_t>(c.claim.rank)] = &c;
        return waiting;
    }
    std::vector<int> missing_from(const std::string& barrier) {
        std::vector<int> missing;
        for (int rank = 0; const Connection* c : waiting_in(barrier)) {
            if (c == nullptr) missing.push_back(rank);
            ++rank;
        }
        return missing;
    }
    void finish_barrier(const std::string& name) {
        const std::vector<Connection*> waiting = waiting_in(name);
        for (const Connection* c : waiting) {
            if (c == nullptr || waiting[0] == nullptr || c->fingerprints == waiting[0]->fingerprints)
                continue;
            return fail_all(fmt::format("{} differs from rank 0: {}", named(c->claim.rank),
                                        differences(waiting[0]->fingerprints, c->fingerprints)));
        }
        std::vector<int> left = missing_from(name);
        const bool full = left.empty();
        std::erase_if(left, [&](int rank) { return !members_[static_cast<size_t>(rank)].left; });
        if (!full && left.empty()) return;
        joined_ = joined_ || (full && name == join_barrier);
        for (Connection* c : waiting) {
            if (full) {
                answer(*c, Writer(Message::done));
            } else if (c != nullptr) {
                answer_failed(*c, fmt::format("the barrier {} can never fill: {} ended before it",
                                              shown(name), rank_list(left)));
            }
        }
    }
    void check_deadlines() {
        for (Connection& c : connections_) {
            if (!c.socket) continue;
            // Slow strangers, members in the middle of a message, refusals that are not read.
            const bool unfinished = !c.member || c.closing || !c.in.empty();
            if (unfinished && now_ - c.since > options_.handshake_timeout) {
                lose(c);
                continue;
            }
            if (c.waiting == Waiting::nothing || now_ < c.deadline) continue;
            std::string problem = fmt::format("nobody has set {}", shown(c.key));
            if (c.waiting == Waiting::barrier)
                problem = fmt::format("{} of {} did not {}", rank_list(missing_from(c.key)), ranks_,
                                      joined_ ? "reach the barrier " + shown(c.key) : "arrive");
            problem += fmt::format(" within {:.3g} s", c.seconds);
            if (!joined_) return fail_all(problem);
            answer_failed(c, problem);
        }
    }
    // The others are sent the verdict first: rank 0's process ends when it gets it, and this thread with it.
    void check_watchdog() {
        if (verdict_.empty()) {
            const std::optional<std::string> verdict = watchdog_.verdict(now_);
            if (!verdict) return;
            verdict_ = *verdict;
            fail_all(verdict_);
            for (int rank = 1; rank < ranks_; ++rank) send_end(rank);
            rank0_due_ = now_ + farewell_seconds;
        }
        if (rank0_sent_) return;
        const bool unsent = std::any_of(connections_.begin(), connections_.end(), [](const Connection& c) {
            return c.socket && c.member && !c.out.empty() && c.claim.rank != 0;
        });
        if (unsent && now_ < rank0_due_) return;
        rank0_sent_ = true;
        send_end(0);
    }
    void send_end(int rank) {
        if (Connection* c = find(Role::control, rank))
            send(*c,
                 Writer(Message::end).text(std::string_view(verdict_).substr(0, most_reason_bytes)).str());
    }
    std::string named(int rank) const {
        return fmt::format("rank {} ({})", rank, members_[static_cast<size_t>(rank)].who);
    }

    const ServerOptions options_;
    const std::string token_;
    const int ranks_;
    Descriptor listener_;
    std::list<Connection> connections_;  // in the order they were opened
    std::vector<Member> members_;        // by rank
    std::map<std::string, std::string> store_;
    bool joined_ = false;
    std::string fatal_;     // why every request fails from now on
    std::string verdict_;   // why every rank must end
    double rank0_due_ = 0;  // when the verdict is sent to rank 0 at the latest
    bool rank0_sent_ = false;
    Watchdog watchdog_;
    double now_ = 0;  // seconds this thread was awake: time in which the process was stopped does not count
    double accept_again_ = 0, stopping_since_ = -1;
    std::atomic<bool> stop_ = false;
    std::atomic<size_t> most_connections_ = 0;
    std::thread thread_;
};

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
