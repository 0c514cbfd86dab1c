// Messages over TCP between rank 0's server and the other processes of a run: bytes, limits, deadlines and
// the handshake in which both sides prove that they know the run's token.
//
// A frame is a 32-bit length (little-endian, like all numbers here) and that many bytes, the first of which
// is the kind. Every length is checked against a limit before memory is allocated for it.
#pragma once

#include <signal.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ranks/launch.h"

namespace longreach::ranks {

constexpr uint32_t protocol_version = 2;
constexpr size_t stranger_frame_bytes = 512;    // before a connection has proved itself
constexpr size_t member_frame_bytes = 1 << 16;  // after
constexpr size_t nonce_bytes = 32;

enum class Message : uint8_t {
    // to the server
    prove = 1,
    join = 2,
    set = 3,
    wait = 5,
    barrier = 6,
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

// What a connection is for: requests to the store, or heartbeats.
enum class Role : uint8_t { store = 1, control = 2 };

double monotonic_seconds();      // unaffected by changes of the wall clock
std::string describe_process();  // "process 123 on host"

// Threads started during its lifetime receive no signals: only the main thread handles them.
class SignalsElsewhere {
  public:
    SignalsElsewhere();
    ~SignalsElsewhere();
    SignalsElsewhere(const SignalsElsewhere&) = delete;
    SignalsElsewhere& operator=(const SignalsElsewhere&) = delete;

  private:
    sigset_t before_;
};

class Descriptor {  // owns a file descriptor
  public:
    Descriptor() = default;
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
    Descriptor& operator=(Descriptor&& other) noexcept;
    ~Descriptor() { reset(); }
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    int release();
    void reset();

  private:
    int fd_ = -1;
};

class Writer {
  public:
    Writer() = default;
    explicit Writer(Message kind) { u8(static_cast<uint8_t>(kind)); }
    Writer& u8(uint8_t value) { return raw(&value, sizeof value); }
    Writer& u32(uint32_t value) { return raw(&value, sizeof value); }
    Writer& u64(uint64_t value) { return raw(&value, sizeof value); }
    Writer& i64(int64_t value) { return raw(&value, sizeof value); }
    Writer& text(std::string_view value) {
        u32(static_cast<uint32_t>(value.size()));
        return raw(value.data(), value.size());
    }
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
    uint8_t u8();
    uint32_t u32();
    uint64_t u64();
    int64_t i64() { return static_cast<int64_t>(u64()); }
    std::string text(size_t limit);
    std::string bytes(size_t count) { return std::string(take(count)); }
    void end() const;

  private:
    std::string_view take(size_t count);
    std::string_view rest_;
};

std::string frame(const std::string& message);  // with its length in front

// Removes the first complete frame from `buffer`; empty if there is none yet. Error(peer) if its length is 0
// or above `limit`, as soon as the four bytes of the length are there.
std::optional<std::string> take_frame(std::string& buffer, size_t limit);

// What a client claims, and the keyed hashes that both sides send. The server's hash proves to the client
// that it is not talking to a stranger on the port.
struct Claim {
    Role role = Role::store;
    int rank = 0, ranks = 1;
    std::string who;  // describe_process()
};
std::string client_proof(const std::string& token, const std::string& server_nonce,
                         const std::string& client_nonce, const Claim& claim);
std::string server_proof(const std::string& token, const std::string& server_nonce,
                         const std::string& client_nonce);

struct Address {
    std::string bytes;  // a sockaddr
    std::string text;   // "10.0.0.1"
    bool loopback = false;
};
// Error(usage) naming the host if it cannot be resolved.
std::vector<Address> resolve(const std::string& host, int port);
std::string endpoint(const std::string& host, int port);  // "host:port", "[::1]:port"

// The client's end of a connection; blocking, every wait with a deadline in monotonic_seconds().
class Channel {
  public:
    // Retries until rank 0 listens and accepts this process. Error(peer) if the deadline passes or the server
    // refuses; Error(usage) if the host cannot be resolved.
    Channel(const RankPlace& place, const std::string& token, Role role, double deadline);

    void send(const std::string& message, double deadline);
    std::string receive(double deadline);                           // one message
    std::optional<std::string> poll(double deadline, int wake_fd);  // empty at the deadline or if woken
    std::optional<std::string> last_message() noexcept;             // of those that have arrived
    void close() { socket_.reset(); }
    const std::string& where() const { return where_; }
    // The address of this end, by which this machine reaches rank 0.
    std::string local_address() const;

  private:
    enum class Attempt { let_in, again };
    Attempt handshake(const RankPlace& place, const std::string& token, Role role, double deadline);
    Descriptor socket_;
    std::string in_, where_;
};

}  // namespace longreach::ranks
