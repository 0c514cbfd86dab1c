// A client's end of a connection to this machine: bytes as they are.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace longreach::test {

class Wire {
  public:
    explicit Wire(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_port = htons(static_cast<uint16_t>(port));
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        REQUIRE(::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0);
    }
    ~Wire() { close(); }
    Wire(const Wire&) = delete;
    Wire& operator=(const Wire&) = delete;
    void close() {
        if (fd_ >= 0) ::close(fd_);
        fd_ = -1;
    }
    // False once the server has closed the connection.
    bool send(std::string_view text) {
        while (!text.empty()) {
            const ssize_t sent = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
            if (sent <= 0) return false;
            text.remove_prefix(static_cast<size_t>(sent));
        }
        return true;
    }
    // What arrives until the connection ends, or `until` has arrived.
    std::string receive(const std::string& until = "", int seconds = 20) {
        std::string text;
        char bytes[4096];
        while (until.empty() || text.find(until) == std::string::npos) {
            pollfd p{fd_, POLLIN, 0};
            if (::poll(&p, 1, seconds * 1000) <= 0) return text + "(timed out)";
            const ssize_t got = ::recv(fd_, bytes, sizeof bytes, 0);
            if (got <= 0) break;
            text.append(bytes, static_cast<size_t>(got));
        }
        return text;
    }

  private:
    int fd_;
};

}  // namespace longreach::test
