// Rank 0's server, over real connections. The input is a list of actions: a byte for the connection (2
// strangers, 2 members of the store, 2 of the heartbeats), two bytes of length, then a message.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "ranks/channel.h"
#include "ranks/rendezvous_server.h"
#include "fuzz/target.h"

using namespace longreach;
using namespace longreach::fuzz;

namespace {

constexpr const char* token = "0123456789abcdef";
constexpr int team = 2;

class Client {
  public:
    explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in name{};
        name.sin_family = AF_INET;
        name.sin_port = htons(static_cast<uint16_t>(port));
        name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        // Closing must not leave the port waiting: thousands of connections follow.
        const linger at_once{1, 0};
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        holds(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0,
              "the server does not listen");
    }
    void send(std::string_view bytes) const {
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    // What has arrived within 20 ms, at least `size` bytes if they come.
    std::string receive(size_t size) const {
        std::string got;
        std::array<char, 4096> bytes;
        for (pollfd p{socket_.get(), POLLIN, 0}; got.size() < size && ::poll(&p, 1, 20) > 0;) {
            const ssize_t n = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
            if (n <= 0) break;
            got.append(bytes.data(), static_cast<size_t>(n));
        }
        return got;
    }
    // Answers the server's challenge as a rank does.
    void prove(ranks::Role role, int rank) const {
        constexpr size_t fixed = 4 + 1 + 4 + 9 + 4;  // length, kind, "longreach", version
        const std::string challenge = receive(fixed + ranks::nonce_bytes);
        if (challenge.size() < fixed + ranks::nonce_bytes) return;
        const ranks::Claim claim{role, rank, team, "a process"};
        const std::string nonce = challenge.substr(fixed, ranks::nonce_bytes), own(ranks::nonce_bytes, 'n');
        const std::string proof = ranks::proof_of(claim.encode(), token, nonce, own);
        ranks::Writer message(ranks::Message::prove);
        send(ranks::frame(message.bytes(claim.encode()).bytes(own).bytes(proof).str()));
        receive(5);
    }

  private:
    ranks::Descriptor socket_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    ranks::RankPlace place;
    place.ranks = place.local_ranks = team;
    ranks::RendezvousServer server(place, token);
    std::array<std::optional<Client>, 6> clients;
    for (int actions = 0; size >= 3 && actions < 16; ++actions) {
        const size_t which = data[0] % clients.size();
        const size_t count = std::min<size_t>(data[1] + 256 * size_t{data[2]}, size - 3);
        if (!clients[which]) {
            clients[which].emplace(server.port());
            if (which >= 2)
                clients[which]->prove(which < 4 ? ranks::Role::store : ranks::Role::control,
                                      static_cast<int>(which % 2));
        }
        const std::string message(text_of(data + 3, count));
        const bool framed = which >= 2 && !message.empty() && message.size() <= ranks::member_frame_bytes;
        clients[which]->send(framed ? ranks::frame(message) : message);
        data += 3 + count;
        size -= 3 + count;
    }
    return 0;
}
