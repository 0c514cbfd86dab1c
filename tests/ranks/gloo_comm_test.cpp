// Tensors between real processes over loopback.
#include "ranks/gloo_comm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <thread>

#include "ranks/processes.h"
#include "ranks/rendezvous_server.h"

using namespace longreach;
using namespace longreach::test;

namespace {

const std::string token = "the token of the tests";

// Runs `body` on this many ranks, each a process, rank 0's with the server; what each returned or threw.
std::vector<std::string> run_ranks(int ranks, const std::function<std::string(ranks::Comm&)>& body) {
    const TempDir directory;
    std::vector<Child> children;
    for (int rank = 0; rank < ranks; ++rank)
        children.emplace_back([&, rank] {
            std::unique_ptr<ranks::RendezvousServer> server;
            const std::string port_file = directory / "port";
            if (rank == 0) {
                server = std::make_unique<ranks::RendezvousServer>(place_of(0, ranks, 0), token);
                io::write_file_atomically(port_file, std::to_string(server->port()));
            }
            wait_until([&] { return ::access(port_file.c_str(), F_OK) == 0; });
            const ranks::RankPlace place = place_of(rank, ranks, std::stoi(get(port_file)));
            ranks::Rendezvous rendezvous(place, token, patience);
            rendezvous.join({});
            std::string outcome;
            {
                const auto comm = ranks::make_gloo_comm(rendezvous, place, nullptr, "gloo/");
                const std::string error = error_of([&] { outcome = body(*comm); });
                if (error != "no error") outcome = error;
            }
            rendezvous.leave(ExitCode::ok, "");
            return outcome;
        });
    std::vector<std::string> outcomes;
    for (Child& child : children) outcomes.push_back(child.outcome());
    return outcomes;
}

void check_all(const std::vector<std::string>& outcomes, const std::string& expected) {
    for (const std::string& outcome : outcomes) CHECK(outcome == expected);
}

// A tensor with memory of its own.
struct Owned {
    std::vector<std::byte> bytes;
    Tensor tensor;
    Owned(DType dtype, int64_t count, std::byte fill = {})
        : bytes(static_cast<size_t>(count * size_of(dtype)), fill), tensor(bytes.data(), dtype, {count}) {}
};

// Bytes that say where they come from and go to; never those of a buffer nobody wrote to.
std::byte expected_byte(int from, int to, int64_t piece, size_t i) {
    return static_cast<std::byte>((static_cast<size_t>(from * 64 + to * 16 + piece) * 31 + i * 7) % 251);
}
constexpr std::byte untouched{255};

// Every ordered pair of ranks passes as many pieces as `counts` has, in the element types in turn.
class Exchange {
  public:
    Exchange(ranks::Comm& comm, const std::function<int64_t(int from, int to, int64_t piece)>& count,
             int64_t pieces)
        : comm_(comm) {
        const DType dtypes[] = {DType::f32, DType::bf16, DType::f64, DType::i32};
        for (int peer = 0; peer < comm.ranks(); ++peer)
            for (int64_t p = 0; p < pieces && peer != comm.rank(); ++p) {
                const DType dtype = dtypes[p % 4];
                Owned& out = sent_.emplace_back(dtype, count(comm.rank(), peer, p));
                for (size_t i = 0; i < out.bytes.size(); ++i)
                    out.bytes[i] = expected_byte(comm.rank(), peer, p, i);
                sends_.push_back({peer, out.tensor});
                Owned& in = received_.emplace_back(dtype, count(peer, comm.rank(), p), untouched);
                receives_.push_back({peer, in.tensor});
                pieces_.push_back(p);
            }
    }
    void begin() {
        ticket_ = comm_.exchange({ranks::CollectiveOp::all_to_all, DType::f32, 1}, sends_, receives_);
    }
    void wait() { comm_.wait(ticket_); }
    bool arrived() const {
        for (size_t k = 0; k < receives_.size(); ++k)
            for (size_t i = 0; i < received_[k].bytes.size(); ++i)
                if (received_[k].bytes[i] != expected_byte(receives_[k].peer, comm_.rank(), pieces_[k], i))
                    return false;
        return true;
    }
    // Without asking the communicator: the last piece's last byte.
    bool last_has_come() const {
        const volatile std::byte* last = &received_.back().bytes.back();
        return *last != untouched;
    }
    int64_t bytes() const {
        return std::accumulate(sends_.begin(), sends_.end(), int64_t{0},
                               [](int64_t sum, const ranks::Transfer& t) { return sum + t.data.bytes(); });
    }

  private:
    ranks::Comm& comm_;
    std::deque<Owned> sent_, received_;
    std::vector<ranks::Transfer> sends_, receives_;
    std::vector<int64_t> pieces_;
    ranks::Comm::Ticket ticket_ = 0;
};

}  // namespace

TEST_CASE("pieces of uneven sizes and all types, empty ones too, arrive where they belong") {
    for (const int ranks : {2, 4})
        check_all(run_ranks(ranks,
                            [](ranks::Comm& comm) {
                                // From nothing to more than a socket takes at once.
                                Exchange exchange(
                                    comm,
                                    [](int from, int to, int64_t piece) {
                                        const int64_t k = (from * 7 + to * 3 + piece * 5) % 8;
                                        return k == 7 ? 700'001 : k * k * 13;
                                    },
                                    9);
                                exchange.begin();
                                exchange.wait();
                                check(exchange.arrived(), "other bytes arrived");
                                check(comm.bytes_sent() == exchange.bytes(), "{} bytes counted, {} sent",
                                      comm.bytes_sent(), exchange.bytes());
                                return comm.describe();
                            }),
                  "gloo over 127.0.0.1");
}

TEST_CASE("many collectives are under way at once and waited for in another order on every rank") {
    check_all(run_ranks(4,
                        [](ranks::Comm& comm) {
                            std::deque<Exchange> exchanges;
                            for (int64_t i = 0; i < 60; ++i)
                                exchanges.emplace_back(
                                    comm,
                                    [&](int from, int to, int64_t piece) {
                                        return i % 20 == 19 ? 200'000
                                                            : 1 + (from + to * i + piece * 40) % 300;
                                    },
                                    3);
                            for (Exchange& e : exchanges) e.begin();
                            std::vector<size_t> order(exchanges.size());
                            std::iota(order.begin(), order.end(), 0);
                            if (comm.rank() == 1) std::reverse(order.begin(), order.end());
                            if (comm.rank() > 1)
                                std::rotate(order.begin(), order.begin() + 13 * comm.rank(), order.end());
                            for (const size_t i : order) {
                                exchanges[i].wait();
                                check(exchanges[i].arrived(), "other bytes arrived in exchange {}", i);
                            }
                            return "ok";
                        }),
              "ok");
}

TEST_CASE("bytes move while the ranks are busy with something else") {
    check_all(run_ranks(2,
                        [](ranks::Comm& comm) {
                            Exchange exchange(
                                comm, [](int, int, int64_t) { return 5'000'000; }, 1);
                            exchange.begin();
                            const bool came = wait_until([&] { return exchange.last_has_come(); });
                            exchange.wait();
                            return came && exchange.arrived() ? "ok" : "nothing came before wait()";
                        }),
              "ok");
}

TEST_CASE("an all_reduce is the sum over all ranks, of any length and between exchanges") {
    for (const int ranks : {2, 4})
        check_all(run_ranks(ranks,
                            [](ranks::Comm& comm) {
                                int64_t expected_bytes = 0;
                                for (const int64_t count : {1, 3, 0, 1000, 700'001}) {
                                    Exchange before(
                                        comm, [](int, int, int64_t) { return 1000; }, 1);
                                    before.begin();
                                    std::vector<float> data(static_cast<size_t>(count) + 1);
                                    for (size_t i = 0; i < data.size(); ++i)
                                        data[i] = static_cast<float>(comm.rank() * 1000 +
                                                                     static_cast<int>(i % 1000));
                                    const float after = data.back();
                                    comm.wait(comm.all_reduce(Tensor(data.data(), DType::f32, {count})));
                                    before.wait();
                                    check(before.arrived(), "other bytes arrived");
                                    const int n = comm.ranks();
                                    for (size_t i = 0; i + 1 < data.size(); ++i)
                                        check(data[i] == static_cast<float>(1000 * n * (n - 1) / 2 +
                                                                            n * static_cast<int>(i % 1000)),
                                              "element {} of {} is {}", i, count, data[i]);
                                    check(data.back() == after, "written beyond the end");
                                    expected_bytes += before.bytes() + 2 * (n - 1) * count * 4 / n;
                                }
                                check(comm.bytes_sent() == expected_bytes, "{} bytes counted, {} expected",
                                      comm.bytes_sent(), expected_bytes);
                                return "ok";
                            }),
                  "ok");
}

TEST_CASE("a rank that is lost is named, whether it is sent to or received from") {
    const auto outcomes = run_ranks(3, [](ranks::Comm& comm) -> std::string {
        float one = 1;  // its sum is complete when every rank has connected
        comm.wait(comm.all_reduce(Tensor(&one, DType::f32, {1})));
        if (comm.rank() == 2) return "gone";
        Owned piece(DType::f32, 1'000'000);
        const ranks::Transfer with_2{2, piece.tensor};
        const ranks::Collective what{ranks::CollectiveOp::send, DType::f32, 1'000'000};
        const bool sends = comm.rank() == 0;
        comm.wait(comm.exchange(what, std::span(&with_2, sends ? 1 : 0), std::span(&with_2, sends ? 0 : 1)));
        return "not noticed";
    });
    for (const size_t rank : {0u, 1u}) {
        MESSAGE(outcomes[rank]);
        CHECK(outcomes[rank].starts_with("8: lost rank 2: "));
    }
    CHECK(outcomes[2] == "gone");
}

TEST_CASE("sizes that differ overwrite nothing and abort nobody: the ranks wait for each other") {
    for (const bool reduce : {false, true}) {
        const auto outcomes = run_ranks(2, [&](ranks::Comm& comm) -> std::string {
            if (comm.rank() == 1) {
                // Ends while both still wait.
                std::thread([] {
                    sleep_for(0.5);
                    ::_exit(3);
                }).detach();
                Owned large(DType::f32, 2000);
                const ranks::Transfer out{0, large.tensor};
                comm.wait(reduce ? comm.all_reduce(large.tensor) : comm.exchange({}, std::span(&out, 1), {}));
                return "passed";
            }
            Owned small(DType::f32, 1000, untouched);
            const ranks::Transfer in{1, small.tensor};
            const std::string error = error_of([&] {
                comm.wait(reduce ? comm.all_reduce(small.tensor) : comm.exchange({}, {}, std::span(&in, 1)));
            });
            for (const std::byte b : small.bytes) check(b == untouched, "something arrived");
            return error;
        });
        MESSAGE(outcomes[0]);
        CHECK(outcomes[0].starts_with(reduce ? "8: lost a rank in an all_reduce: " : "8: lost rank 1: "));
        CHECK(outcomes[1] == "ended with 3");
    }
}

TEST_CASE("a ticket is waited for once") {
    check_all(run_ranks(2,
                        [](ranks::Comm& comm) {
                            Exchange exchange(
                                comm, [](int, int, int64_t) { return 10; }, 1);
                            exchange.begin();
                            exchange.wait();
                            const std::string error = error_of([&] { exchange.wait(); });
                            return contains(error, "waited for twice") ? "ok" : error;
                        }),
              "ok");
}
