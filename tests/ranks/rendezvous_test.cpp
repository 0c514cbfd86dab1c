#include "ranks/rendezvous.h"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>

#include "dice.h"
#include "ranks/processes.h"
#include "ranks/rendezvous_server.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const std::string token = "the token of the tests";

// The server lives in this process; each rank, rank 0 too, is a child with `action`.
std::vector<std::string> outcomes(ranks::RendezvousServer& server, const std::vector<int>& ranks_started,
                                  int ranks,
                                  const std::function<std::string(ranks::Rendezvous&, int)>& action) {
    std::vector<Child> children;
    const int port = server.port();
    for (const int rank : ranks_started)
        children.emplace_back([&, rank] {
            ranks::Rendezvous rendezvous(place_of(rank, ranks, port), token, patience);
            return action(rendezvous, rank);
        });
    std::vector<std::string> all;
    for (Child& child : children) all.push_back(child.outcome());
    return all;
}

ranks::Descriptor raw_connection(int port) {
    ranks::Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    name.sin_port = htons(static_cast<uint16_t>(port));
    REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0);
    return fd;
}

// Everything the other side sends until it closes; empty text and `closed` false if it does not in time.
std::string read_to_end(int fd, double seconds, bool& closed) {
    const timeval limit{static_cast<time_t>(seconds), 0};
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    std::string all;
    std::array<char, 4096> bytes;
    for (;;) {
        const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
        closed = got == 0 || (got < 0 && errno != EAGAIN);
        if (got <= 0) return all;
        all.append(bytes.data(), static_cast<size_t>(got));
    }
}

// Gets in by the protocol and then leaves the caller a bare socket.
ranks::Descriptor raw_member(int port, ranks::Role role, int rank, int ranks) {
    ranks::Descriptor fd = raw_connection(port);
    std::string in;
    std::array<char, 4096> bytes;
    std::optional<std::string> challenge;
    while (!(challenge = ranks::take_frame(in, ranks::member_frame_bytes))) {
        const ssize_t got = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
        REQUIRE(got > 0);
        in.append(bytes.data(), static_cast<size_t>(got));
    }
    ranks::Reader reader(*challenge);
    reader.u8(), reader.text(16), reader.u32();
    const std::string server_nonce = reader.bytes(ranks::nonce_bytes), nonce(ranks::nonce_bytes, 'n');
    const ranks::Claim claim{role, rank, ranks, "a test"};
    ranks::Writer proof(ranks::Message::prove);
    proof.bytes(claim.encode()).bytes(nonce);
    proof.bytes(ranks::proof_of(claim.encode(), token, server_nonce, nonce));
    const std::string out = ranks::frame(proof.str());
    REQUIRE(::send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(out.size()));
    REQUIRE(::recv(fd.get(), bytes.data(), 4, MSG_PEEK) > 0);
    return fd;
}

}  // namespace

TEST_CASE("ranks join, exchange values and meet at barriers") {
    ranks::RendezvousServer server(place_of(0, 3, 0), token);
    const auto all = outcomes(server, {2, 0, 1}, 3, [](ranks::Rendezvous& r, int rank) {
        r.join({{"build", "1"}, {"config", "abc"}}, patience);
        if (rank == 0) {
            sleep_for(0.1);
            r.set("id", std::string("\0binary", 7));
        }
        if (r.wait("id", patience) != std::string("\0binary", 7)) return std::string("another value");
        for (int i = 0; i < 20; ++i) {
            r.barrier("again", patience);
            r.set("count." + std::to_string(rank), std::to_string(i));
            r.barrier("again", patience);
            for (int other = 0; other < 3; ++other)
                if (r.wait("count." + std::to_string(other), patience) != std::to_string(i))
                    return std::string("out of step");
            r.barrier("read", patience);
        }
        r.leave(ExitCode::ok, "");
        return std::string("done");
    });
    CHECK(all == std::vector<std::string>(3, "done"));
}

TEST_CASE("a rank that never arrives is named on all that did") {
    ranks::RendezvousServer server(place_of(0, 4, 0), token);
    const auto all = outcomes(server, {0, 3}, 4, [](ranks::Rendezvous& r, int) {
        r.join({}, 2.5);
        return std::string("joined");
    });
    CHECK(all == std::vector<std::string>(2, "8: ranks 1 and 2 of 4 did not arrive within 2.5 s"));
}

TEST_CASE("a rank with another build, config or data is named with the field, on every rank") {
    ranks::RendezvousServer server(place_of(0, 3, 0), token);
    const auto all = outcomes(server, {0, 1, 2}, 3, [](ranks::Rendezvous& r, int rank) {
        ranks::Fingerprints prints = {{"build", "0.1.0"}, {"config", rank == 2 ? "ff00" : "ff01"}};
        if (rank == 2) prints["data"] = "1\n2";
        r.join(prints, patience);
        return std::string("joined");
    });
    for (const std::string& outcome : all) {
        // A rank that comes after the failure is told the same when it knocks.
        CHECK(contains(outcome, "rank 2 (process "));
        CHECK(contains(
            outcome,
            "differs from rank 0: config is \"ff00\" there but \"ff01\" on rank 0, data is \"1\\n2\" there "
            "but absent on rank 0"));
        CHECK(outcome.starts_with("8: "));
    }
}

TEST_CASE("two processes claiming one rank are both named") {
    ranks::RendezvousServer server(place_of(0, 3, 0), token);
    const auto all = outcomes(server, {0, 1, 1}, 3, [](ranks::Rendezvous& r, int) {
        r.join({}, patience);
        return std::string("joined");
    });
    for (const std::string& outcome : all) {
        CHECK(contains(outcome, "two processes claim rank 1: process "));
        CHECK(contains(outcome, " and process "));
    }
}

TEST_CASE("a wrong token, another number of ranks and a rank that is none are refused with the reason") {
    ranks::RendezvousServer server(place_of(0, 2, 0), token);
    const int port = server.port();
    const auto refusal = [&](const ranks::RankPlace& place, const std::string& with_token) {
        return error_of([&] { ranks::Rendezvous(place, with_token, patience); });
    };
    CHECK(refusal(place_of(1, 2, port), "another token") ==
          fmt::format(
              "8: rank 0 at 127.0.0.1:{} refused rank 1: it does not know this run's token: it belongs to "
              "another run, or LONGREACH_SECRET differs between the nodes",
              port));
    CHECK(
        contains(refusal(place_of(3, 4, port), token), "was started as one of 4 ranks, rank 0 as one of 2"));
    CHECK(contains(refusal(place_of(5, 2, port), token), "there is no rank 5 of 2"));
    CHECK(refusal(place_of(1, 2, port), token) == "no error");
}

TEST_CASE("a server that does not know the token is not believed") {
    // A stranger on the port that speaks the protocol but cannot know the token.
    ranks::Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof name;
    REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&name), sizeof name) == 0);
    REQUIRE(::listen(listener.get(), 8) == 0);
    REQUIRE(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&name), &size) == 0);
    const int port = ntohs(name.sin_port);
    const auto against = [&](const std::string& greeting, const std::string& answer, double seconds) {
        Child client([&] {
            ranks::Rendezvous(place_of(1, 2, port), token, seconds);
            return std::string("let in");
        });
        const ranks::Descriptor fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        for (const std::string& part : {greeting, answer})
            if (!part.empty() && ::send(fd.get(), part.data(), part.size(), MSG_NOSIGNAL) < 0) break;
        return client.outcome();
    };
    const std::string challenge = ranks::frame(ranks::Writer(ranks::Message::challenge)
                                                   .text("longreach")
                                                   .u32(ranks::protocol_version)
                                                   .bytes(std::string(32, 'x'))
                                                   .str());
    const std::string where = fmt::format("127.0.0.1:{}", port);
    CHECK(against(challenge,
                  ranks::frame(ranks::Writer(ranks::Message::welcome).bytes(std::string(32, 'y')).str()),
                  patience) ==
          "8: what listens at " + where + " does not know this run's token: it is rank 0 of another run");
    CHECK(against(ranks::frame("SSH"), "", patience) ==
          "8: what listens at " + where + " is not rank 0 of a run of this program");
    const std::string newer = ranks::frame(ranks::Writer(ranks::Message::challenge)
                                               .text("longreach")
                                               .u32(ranks::protocol_version + 1)
                                               .bytes(std::string(32, 'x'))
                                               .str());
    CHECK(contains(against(newer, "", patience), "all ranks must run the same build"));
    CHECK(contains(against("HTTP/1.1 400 Bad Request\r\n", "", 1),
                   "it accepts connections but does not answer as rank 0 does"));
}

TEST_CASE("a port in use, a host that is elsewhere, unresolvable or everything, and nobody listening") {
    ranks::RendezvousServer server(place_of(0, 2, 0), token);
    const auto listening = [](const ranks::RankPlace& place) {
        return error_of([&] { ranks::RendezvousServer second(place, token); });
    };
    CHECK(
        listening(place_of(0, 2, server.port())) ==
        fmt::format("2: rank 0 cannot listen on 127.0.0.1:{}: another process listens there", server.port()));
    ranks::RankPlace place = place_of(0, 2, 0);
    place.host = "192.0.2.1";  // reserved for documentation: no machine has it
    CHECK(listening(place) ==
          "2: rank 0 cannot listen on 192.0.2.1:0: this machine, on which rank 0 runs, has no such address");
    for (const char* everything : {"0.0.0.0", "0", "::"}) {
        place.host = everything;
        CHECK(contains(listening(place), "every interface"));
    }
    place.host = "no-such-host.invalid";
    CHECK(contains(listening(place), "2: cannot resolve the host no-such-host.invalid of rank 0: "));
    place.host = "127.0.0.1";
    place.local_ranks = 1;  // on several nodes
    CHECK(listening(place) ==
          "2: the host 127.0.0.1 of rank 0 is 127.0.0.1 here, which the other nodes cannot reach");

    int unused = 0;
    {
        const ranks::RendezvousServer gone(place_of(0, 2, 0), token);
        unused = gone.port();
    }
    CHECK(error_of([&] { ranks::Rendezvous(place_of(1, 2, unused), token, 0.3); }) ==
          fmt::format("8: rank 1 found no rank 0 at 127.0.0.1:{} within 0.3 s: Connection refused", unused));
}

TEST_CASE("a dead rank fails everybody's waiting at once, one that ended fails only the barriers it misses") {
    ranks::RendezvousServer server(place_of(0, 3, 0), token);
    const auto all = outcomes(server, {0, 1, 2}, 3, [](ranks::Rendezvous& r, int rank) {
        r.join({}, patience);
        if (rank == 2) ::raise(SIGKILL);
        if (rank == 1) r.wait("never", patience);
        r.barrier("all", patience);
        return std::string("passed");
    });
    CHECK(all[2] == "ended with -9");
    for (const int rank : {0, 1}) {
        CHECK(all[static_cast<size_t>(rank)].starts_with("8: rank 2 (process "));
        CHECK(contains(all[static_cast<size_t>(rank)], "is gone: its connection closed without a goodbye"));
    }
    ranks::RendezvousServer second(place_of(0, 2, 0), token);
    const auto rest = outcomes(second, {0, 1}, 2, [](ranks::Rendezvous& r, int rank) {
        r.join({}, patience);
        if (rank == 1) r.leave(ExitCode::ok, "");
        if (rank == 1) return std::string("left");
        const std::string error = error_of([&] { r.barrier("all", patience); });
        r.set("still", "works");
        r.leave(ExitCode::ok, "");
        return error;
    });
    CHECK(rest[0] == "8: the barrier all can never fill: rank 1 ended before it");
    ranks::RendezvousServer third(place_of(0, 2, 0), token);
    const auto failed = outcomes(third, {0, 1}, 2, [](ranks::Rendezvous& r, int rank) {
        r.join({}, patience);
        if (rank == 1) r.leave(ExitCode::disk, "disk full\n");
        r.barrier("all", patience);
        return std::string("passed");
    });
    CHECK(contains(failed[0], "failed with exit code 5: disk full\\n"));
}

TEST_CASE("deadlines name what was waited for") {
    ranks::RendezvousServer server(place_of(0, 2, 0), token);
    const auto all = outcomes(server, {0, 1}, 2, [](ranks::Rendezvous& r, int rank) {
        r.join({}, patience);
        std::string errors = "none";
        if (rank == 0) {
            errors = error_of([&] { r.barrier("start", 0.3); }) + "\n" + error_of([&] { r.wait("id", 0.2); });
            r.set("go", "");
        } else {
            r.wait("go", patience);
        }
        r.leave(ExitCode::ok, "");
        return errors;
    });
    CHECK(all[0].starts_with("8: rank 1 of 2 did not reach the barrier start within 0.3 s"));
    CHECK(contains(all[0], "\n8: nobody has set id within 0.2 s"));
    CHECK(all[1] == "none");
}

TEST_CASE("strangers with garbage, lies about lengths and silence disturb nobody and stay few") {
    ranks::ServerOptions options;
    options.handshake_timeout = 1;
    options.strangers = 8;
    ranks::RendezvousServer server(place_of(0, 2, 0), token, options);
    const int port = server.port();
    Dice dice(1);
    std::vector<ranks::Descriptor> silent;
    // More at once than are let in: the oldest are closed.
    for (int i = 0; i < 40; ++i) silent.push_back(raw_connection(port));
    for (int i = 0; i < 200; ++i) {
        const ranks::Descriptor fd = raw_connection(port);
        std::string bytes;
        for (uint64_t k = 0, n = 1 + dice.below(700); k < n; ++k) bytes += static_cast<char>(dice.bits());
        // Half of them with a length that is allowed, so that the rest is looked at.
        if (i % 2 == 0) {
            const std::string head = ranks::Writer().u32(static_cast<uint32_t>(bytes.size() % 512 + 1)).str();
            bytes = head + '\x01' + bytes;
        }
        // The server may close while we send.
        static_cast<void>(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
    }
    // A slow one whose message is allowed, 511 bytes, but would take half a minute.
    const ranks::Descriptor slow = raw_connection(port);
    const std::string head = ranks::Writer().u32(511).str();
    const double start = ranks::monotonic_seconds();
    bool closed = false;
    for (size_t at = 0; !closed && ranks::monotonic_seconds() < start + patience; ++at) {
        const char byte = at < head.size() ? head[at] : 1;
        closed = ::send(slow.get(), &byte, 1, MSG_NOSIGNAL) < 0;
        sleep_for(0.05);
    }
    CHECK(ranks::monotonic_seconds() - start > 0.9);
    CHECK(closed);
    for (const ranks::Descriptor& fd : silent) {
        bool gone = false;
        read_to_end(fd.get(), patience, gone);
        CHECK(gone);
    }
    CHECK(server.most_connections() <= options.strangers + 1);
    const auto all = outcomes(server, {0, 1}, 2, [](ranks::Rendezvous& r, int) {
        r.join({}, patience);
        r.barrier("all", patience);
        r.leave(ExitCode::ok, "");
        return std::string("done");
    });
    CHECK(all == std::vector<std::string>(2, "done"));
}

TEST_CASE("a member that sends nonsense loses its connection and nothing else happens") {
    Dice dice(2);
    for (int i = 0; i < 60; ++i) {
        ranks::RendezvousServer server(place_of(0, 2, 0), token);
        const ranks::Role role = i % 2 == 0 ? ranks::Role::store : ranks::Role::control;
        ranks::Descriptor fd = raw_member(server.port(), role, 1, 2);
        std::string body;
        body += static_cast<char>(1 + dice.below(9));
        for (uint64_t k = 0, n = dice.below(400); k < n; ++k)
            body += static_cast<char>(dice.below(4) == 0 ? dice.bits() : 0);
        const std::string bytes = ranks::frame(body) + ranks::Writer().u32(0xffffffff).str();
        static_cast<void>(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
        bool closed = false;
        read_to_end(fd.get(), patience, closed);
        CHECK(closed);
    }
}

TEST_CASE("readers of messages accept exactly what was written") {
    const std::string message =
        ranks::Writer(ranks::Message::set).u32(7).u64(1ull << 60).i64(-3).text("abc").str();
    for (size_t size = 0; size <= message.size(); ++size) {
        std::string read;
        const std::string error = error_of([&] {
            ranks::Reader in(std::string_view(message).substr(0, size));
            const int a = in.u8();
            const uint32_t b = in.u32();
            const uint64_t c = in.u64();
            const int64_t d = in.i64();
            read = fmt::format("{} {} {} {} {}", a, b, c, d, in.text(3));
            in.end();
        });
        CHECK(read == std::string(size == message.size() ? "3 7 1152921504606846976 -3 abc" : ""));
        CHECK(error ==
              std::string(size == message.size() ? "no error" : "8: a message of the rendezvous ends early"));
    }
    CHECK(contains(error_of([] { ranks::Reader(ranks::Writer().text("abcd").str()).text(3); }),
                   "a text of 4 bytes; at most 3"));
    CHECK(contains(error_of([] { ranks::Reader("a").end(); }), "has bytes after its end"));
    std::string buffer = ranks::frame("one") + ranks::frame("two");
    const std::string whole = buffer;
    CHECK(ranks::take_frame(buffer, 3) == "one");
    CHECK(ranks::take_frame(buffer, 3) == "two");
    CHECK(buffer.empty());
    for (size_t size = 0; size < 7; ++size) {
        std::string part = whole.substr(0, size);
        CHECK_FALSE(ranks::take_frame(part, 3).has_value());
        CHECK(part.size() == size);
    }
    std::string lie = ranks::Writer().u32(4).str();
    CHECK(contains(error_of([&] { ranks::take_frame(lie, 3); }), "a message of 4 bytes; 1 to 3 are allowed"));
    std::string nothing = ranks::Writer().u32(0).str();
    CHECK(contains(error_of([&] { ranks::take_frame(nothing, 3); }), "a message of 0 bytes"));
}
