// Messages over TCP between rank 0's server and the other processes of a run: bytes, limits, deadlines and
// the handshake in which both sides prove that they know the run's token.
//
// A frame is a 32-bit length (little-endian, like all numbers here) and that many bytes, the first of which
// is the kind. Every length is checked against a limit before memory is allocated for it.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ranks/launch.h"

namespace longreach::ranks {

constexpr uint32_t protocol_version = 3;
constexpr size_t stranger_frame_bytes = 512;    // before a connection has proved itself
constexpr size_t member_frame_bytes = 1 << 16;  // after
constexpr size_t nonce_bytes = 32;

enum class Message : uint8_t {
    // to the server
    prove = 1,
    set = 3,
    wait = 5,
    meet = 6,
    beat = 7,
    bye = 8,
    // from the server
    challenge = 65,
    welcome = 66,
    done = 67,
    value = 68,
    failed = 70,
    heard = 71,
    end = 72,
};

// The purpose of a connection: requests to the store, or heartbeats.
enum class Role : uint8_t { store = 1, control = 2 };

double monotonic_seconds();      // unaffected by changes of the wall clock
std::string describe_process();  // "process 123 on host"

// Threads started during its lifetime receive no signals: only the main thread handles them.
class BlockedSignals {
  public:
    BlockedSignals();
    ~BlockedSignals();
    BlockedSignals(const BlockedSignals&) = delete;
    BlockedSignals& operator=(const BlockedSignals&) = delete;

  private:
    sigset_t before_;
};

class Descriptor {  // owns a file descriptor
  public:
    explicit Descriptor(int fd = -1) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void reset() { *this = Descriptor(); }

  private:
    int fd_;
};

class Writer {
  public:
    Writer() = default;
    explicit Writer(Message kind) { u8(static_cast<uint8_t>(kind)); }
    Writer& u8(uint8_t value) { return raw(&value, sizeof value); }
    Writer& u32(uint32_t value) { return raw(&value, sizeof value); }
    Writer& u64(uint64_t value) { return raw(&value, sizeof value); }
    Writer& i64(int64_t value) { return raw(&value, sizeof value); }
    Writer& text(std::string_view value) { return u32(static_cast<uint32_t>(value.size())).bytes(value); }
    Writer& bytes(std::string_view value) { return raw(value.data(), value.size()); }
    const std::string& str() const { return out_; }

  private:
    Writer& raw(const void* data, size_t size) {
        out_.append(static_cast<const char*>(data), size);
        return *this;
    }
    std::string out_;
};

// Error(peer) if a message is too short, has bytes after its end or a text above its limit.
class Reader {
  public:
    explicit Reader(std::string_view message) : rest_(message) {}
    uint8_t u8() { return number<uint8_t>(); }
    uint32_t u32() { return number<uint32_t>(); }
    uint64_t u64() { return number<uint64_t>(); }
    int64_t i64() { return number<int64_t>(); }
    Message kind() { return static_cast<Message>(u8()); }
    std::string text(size_t limit = member_frame_bytes);
    std::string bytes(size_t count) { return std::string(take(count)); }
    void end() const;

  private:
    template <class Number>
    Number number() {
        Number value;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    std::string_view take(size_t count);
    std::string_view rest_;
};

std::string frame(const std::string& message);  // with its length in front

// Removes the first complete frame from `buffer`; empty if there is none yet. Error(peer) if its length is 0
// or above `limit`, as soon as the four bytes of the length are there.
std::optional<std::string> take_frame(std::string& buffer, size_t limit);

// What a client claims to be.
struct Claim {
    Role role = Role::store;
    int rank = 0, ranks = 1;
    std::string who;  // describe_process()
    std::string encode() const;
};
// The keyed hash that each side of the handshake sends: the client's statement is its claim, the server's is
// "server". The server's hash proves to the client that it is not a stranger on the port.
std::string proof_of(std::string_view statement, const std::string& token, const std::string& server_nonce,
                     const std::string& client_nonce);

// Listens on the address that `host` has on this machine, and on no other; port 0 takes a free port.
// Error(usage) names what is wrong with host or port.
Descriptor listen_on(const std::string& host, int port, bool one_node);
int port_of(const Descriptor& listener);
void set_stream_options(const Descriptor& connection);

// The client's end of a connection; blocking, every wait with a deadline in monotonic_seconds().
class Channel {
  public:
    // Retries until rank 0 listens and accepts this process. Error(peer) if the deadline passes or the server
    // refuses; Error(usage) if the host cannot be resolved.
    Channel(const RankPlace& place, const std::string& token, Role role, double deadline);

    void send(const std::string& message, double deadline);
    std::string receive(double deadline);              // one message
    std::optional<std::string> poll(double deadline);  // empty at the deadline
    std::optional<std::string> last_message();         // of those that have arrived
    // Ends receiving: poll() in another thread throws. Sending remains possible.
    void stop_receiving();
    // Closes the connection. It is not an error if rank 0 has ended already.
    void say_goodbye(ExitCode code, std::string_view reason);
    const std::string& where() const { return where_; }
    // The address of this end, by which this machine reaches rank 0.
    std::string local_address() const;

  private:
    // False: worth another attempt.
    bool handshake(const RankPlace& place, const std::string& token, Role role, double deadline);
    Descriptor socket_;
    std::string in_, where_;
};

}  // namespace longreach::ranks
