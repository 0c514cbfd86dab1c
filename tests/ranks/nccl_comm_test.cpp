// NcclComm's own code on fake_nccl and fake_cuda: order between streams, element counts, and what is noticed
// when a rank, the network or the device fails.
#include "ranks/nccl_comm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <thread>

#include "ranks/fake_nccl.h"
#include "ranks/thread_comm.h"
#include "ranks/watchdog.h"
#include "io/temp_dir.h"

using namespace longreach;
using namespace longreach::test;
using fake_nccl::Fault;

namespace {

using Bytes = std::vector<std::byte>;

bool eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 4000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
}

void write(Tensor to, int seed) {
    for (int64_t i = 0; i < to.bytes(); ++i)
        to.as<unsigned char>()[i] = static_cast<unsigned char>(31 * seed + 7 * i);
}

// What the exchanges below need of a device: a fake GPU here, the host for ThreadComm.
class Device {
  public:
    explicit Device(cudaStream_t compute = nullptr) : compute_(compute) {}
    Tensor memory(DType type, int64_t count) {
        memory_.push_back(std::make_unique<fake_cuda::Memory>(count * size_of(type)));
        return {memory_.back()->data(), type, {count}};
    }
    // A kernel that takes its time.
    void run(const std::string& name, std::vector<fake_cuda::Range> reads,
             std::vector<fake_cuda::Range> writes, const std::function<void()>& work) {
        if (!compute_) return work();
        fake_cuda::enqueue(compute_, {name, std::move(reads), std::move(writes), [work] {
                                          std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                          work();
                                      }});
    }
    void fill(Tensor to, int seed) {
        run("a kernel before", {}, {to}, [to, seed] { write(to, seed); });
    }
    Bytes read(const Tensor& from) {
        Bytes bytes(static_cast<size_t>(from.bytes()));
        run("a kernel after", {from}, {},
            [&bytes, from] { std::copy_n(from.as<std::byte>(), bytes.size(), bytes.begin()); });
        if (compute_) fake_cuda::synchronize(compute_);
        return bytes;
    }

  private:
    std::vector<std::unique_ptr<fake_cuda::Memory>> memory_;
    cudaStream_t compute_;
};

struct Rank {
    ranks::Comm& comm;
    Device& device;
    ranks::CollectiveLog& log;
    int64_t finished() const { return static_cast<int64_t>(log.state().finished); }
};

// Ranks as threads, each with a GPU of its own.
class Job {
  public:
    explicit Job(int ranks) : states(static_cast<size_t>(ranks)), errors_(states.size()) {
        for (int r = 0; r < ranks; ++r)
            logs_.push_back(
                std::make_unique<ranks::CollectiveLog>(directory_ / fmt::format("rank_{}.log", r), r, ranks));
        for (auto& log : logs_) log->set_step(1);
    }
    ~Job() {
        fake_nccl::forget_plans();
        fake_cuda::repair();
    }
    // Rethrows what the lowest rank threw; `absent` is a rank that never comes.
    void run(const std::function<void(Rank& rank)>& body, int absent = -1, double connect_seconds = 30) {
        std::vector<std::exception_ptr> thrown(states.size());
        std::vector<std::thread> threads;
        for (int r = 0; r < std::ssize(states); ++r)
            if (r != absent)
                threads.emplace_back([&, r] {
                    try {
                        run_rank(r, body, connect_seconds);
                    } catch (...) {
                        thrown[static_cast<size_t>(r)] = std::current_exception();
                    }
                });
        for (std::thread& t : threads) t.join();
        CHECK(fake_nccl::living() == 0);
        for (const std::exception_ptr& e : thrown)
            if (e) std::rethrow_exception(e);
    }
    std::string error(int rank) {
        const std::lock_guard lock(mutex_);
        return errors_[static_cast<size_t>(rank)];
    }
    // The watchdog's after 12 s in which nothing changed.
    std::string verdict(int lost = -1) const {
        const int ranks = static_cast<int>(states.size());
        ranks::Watchdog dog(ranks, {30, 10, 3, 2});
        for (int r = 0; r < ranks; ++r) dog.arrived(r, fmt::format("process {}", r), 0);
        for (int now = 1; now <= 12; ++now)
            for (int r = 0; r < ranks; ++r)
                if (r != lost || now == 1) dog.beat(r, states[static_cast<size_t>(r)], now);
        if (lost >= 0) dog.lost(lost);
        return dog.verdict(12).value_or("none");
    }

    std::vector<ranks::CollectiveState> states;  // of the logs, when the rank's body ended

  private:
    void run_rank(int r, const std::function<void(Rank& rank)>& body, double connect_seconds) {
        const auto k = static_cast<size_t>(r);
        std::unique_ptr<Device> device;
        const fake_cuda::Stream compute(r);
        device = std::make_unique<Device>(compute.handle);
        const auto on_error = [this, k](const std::string& reason) {
            const std::lock_guard lock(mutex_);
            CHECK(errors_[k].empty());
            errors_[k] = reason;
        };
        const std::unique_ptr<ranks::Comm> comm =
            ranks::make_nccl_comm(r, static_cast<int>(states.size()), logs_[k].get(), {r, compute.handle},
                                  id_, on_error, connect_seconds, &fake_nccl::api());
        Rank rank{*comm, *device, *logs_[k]};
        body(rank);
        states[k] = logs_[k]->state();
    }

    const ranks::NcclId id_ = fake_nccl::new_id();
    TempDir directory_;
    std::vector<std::unique_ptr<ranks::CollectiveLog>> logs_;
    std::mutex mutex_;
    std::vector<std::string> errors_;
};

// `count` elements from everybody to everybody.
struct Swap {
    std::vector<ranks::Transfer> sends, receives;
    Swap(Rank& rank, int64_t count) {
        for (int peer = 0; peer < rank.comm.ranks(); ++peer) {
            if (peer == rank.comm.rank()) continue;
            sends.push_back({peer, rank.device.memory(DType::f32, count)});
            receives.push_back({peer, rank.device.memory(DType::f32, count)});
            rank.device.fill(sends.back().data, 10 * rank.comm.rank() + peer);
        }
    }
};
ranks::Comm::Ticket swap(Rank& rank, int64_t count) {
    const Swap pieces(rank, count);
    return rank.comm.exchange({ranks::CollectiveOp::all_to_all, DType::f32, count}, pieces.sends,
                              pieces.receives);
}

// Five exchanges at once of uneven pieces, some empty, of all types, waited for in another order; and two
// sums. Returns everything that was received.
Bytes exchanges(ranks::Comm& comm, Device& device) {
    constexpr DType types[] = {DType::f32, DType::bf16, DType::f64, DType::i32};
    std::vector<std::vector<ranks::Transfer>> received(5), sent(5);
    std::vector<ranks::Comm::Ticket> tickets;
    for (int k = 0; k < 5; ++k) {
        auto &sends = sent[static_cast<size_t>(k)], &receives = received[static_cast<size_t>(k)];
        const auto piece = [&](int from, int to) {
            const int64_t count = 37 * ((7 * from + 3 * to + 5 * k) % 6);
            return device.memory(types[(from + to + k) % 4], count);
        };
        for (int peer = 0; peer < comm.ranks(); ++peer) {
            if (peer == comm.rank()) continue;
            sends.push_back({peer, piece(comm.rank(), peer)});
            receives.push_back({peer, piece(peer, comm.rank())});
            device.fill(sends.back().data, 100 * k + 10 * comm.rank() + peer);
        }
        tickets.push_back(
            comm.exchange({ranks::CollectiveOp::all_to_all, types[k % 4], 1000 + k}, sends, receives));
    }
    Bytes all;
    const auto keep = [&](const Bytes& bytes) { all.insert(all.end(), bytes.begin(), bytes.end()); };
    for (const size_t k : {4u, 0u, 2u, 1u, 3u}) {
        comm.wait(tickets[k]);
        for (const ranks::Transfer& t : received[k]) keep(device.read(t.data));
        for (const ranks::Transfer& t : sent[k]) device.fill(t.data, 1);
    }
    for (const int64_t count : {5, 1000}) {
        const Tensor data = device.memory(DType::f32, count);
        device.run("a kernel before", {}, {data}, [data, rank = comm.rank()] {
            for (int64_t i = 0; i < data.count(); ++i)
                data.f32()[i] = static_cast<float>((rank + 1) * (i % 50));
        });
        comm.wait(comm.all_reduce(data));
        keep(device.read(data));
    }
    return all;
}

}  // namespace

TEST_CASE("uneven pieces of every type arrive among 2, 4 and 8 ranks as they do among threads") {
    for (const int ranks : {2, 4, 8}) {
        std::vector<Bytes> expected(static_cast<size_t>(ranks)), received = expected;
        run_ranks(ranks, [&](ranks::Comm& comm) {
            Device host;
            expected[static_cast<size_t>(comm.rank())] = exchanges(comm, host);
        });
        Job job(ranks);
        job.run([&](Rank& rank) {
            received[static_cast<size_t>(rank.comm.rank())] = exchanges(rank.comm, rank.device);
            CHECK(eventually([&] { return rank.finished() == 7; }));
            CHECK(rank.comm.describe() == fmt::format("nccl 2.14.0 on device {}", rank.comm.rank()));
        });
        CHECK(received == expected);
        CHECK(expected[0].size() > 4000);
        CHECK(fake_cuda::take_reports() == std::vector<std::string>{});
        for (int r = 0; r < ranks; ++r) CHECK(job.error(r).empty());
    }
}

TEST_CASE("all ranks get the same bits of a sum that depends on its order") {
    std::vector<Bytes> sums(4);
    Job job(4);
    job.run([&](Rank& rank) {
        const Tensor data = rank.device.memory(DType::f32, 101);
        rank.device.run("a kernel before", {}, {data}, [data, seed = rank.comm.rank()] {
            for (int i = 0; i < 101; ++i) data.f32()[i] = 1.0f / static_cast<float>(3 + seed * 101 + i);
        });
        rank.comm.wait(rank.comm.all_reduce(data));
        sums[static_cast<size_t>(rank.comm.rank())] = rank.device.read(data);
    });
    for (const Bytes& sum : sums) CHECK(sum == sums[0]);
    CHECK(fake_cuda::take_reports().empty());
}

TEST_CASE("a ticket is waited for once") {
    Job job(2);
    job.run([&](Rank& rank) {
        const ranks::Comm::Ticket ticket = swap(rank, 10);
        rank.comm.wait(ticket);
        CHECK_THROWS_WITH(rank.comm.wait(ticket),
                          doctest::Contains("is waited for twice, or was never given"));
        CHECK_THROWS_WITH(rank.comm.wait(ticket + 1), doctest::Contains("was never given"));
        CHECK(eventually([&] { return rank.finished() == 1; }));
        CHECK_THROWS_WITH(rank.comm.wait(ticket),
                          doctest::Contains("is waited for twice, or was never given"));
    });
    CHECK(fake_cuda::take_reports().empty());
}

TEST_CASE("a communication stream that does not wait for the computation is caught") {
    fake_cuda::make_deaf(fake_cuda::Deaf::communication);
    Job(2).run([&](Rank& rank) { exchanges(rank.comm, rank.device); });
    const std::vector<std::string> reports = fake_cuda::take_reports();
    REQUIRE(!reports.empty());
    CHECK(reports[0] == "collective 1 of NCCL reads what a kernel before writes, and does not wait for it");
}

TEST_CASE("a computation that does not wait for what it needs is caught") {
    fake_cuda::make_deaf(fake_cuda::Deaf::computation);
    Job(2).run([&](Rank& rank) { exchanges(rank.comm, rank.device); });
    const std::vector<std::string> reports = fake_cuda::take_reports();
    const auto reported = [&](const char* text) {
        return std::find(reports.begin(), reports.end(), text) != reports.end();
    };
    CHECK(reported("a kernel after reads what collective 5 of NCCL writes, and does not wait for it"));
    CHECK(reported("a kernel before writes what collective 5 of NCCL reads, and does not wait for it"));
}

TEST_CASE("counts of bytes in the place of elements are caught") {
    Job(2).run([&](Rank& rank) {
        const Tensor data = rank.device.memory(DType::bf16, 8);
        Tensor bytes = data;  // what a count of bytes would be
        bytes.shape[0] = data.bytes();
        bytes.row_stride = data.bytes();
        const ranks::Transfer whole{1 - rank.comm.rank(), bytes};
        CHECK_THROWS_WITH(rank.comm.exchange({}, {&whole, 1}, {}),
                          doctest::Contains("NCCL: invalid argument"));
    });
    const std::vector<std::string> reports = fake_cuda::take_reports();
    REQUIRE(reports.size() == 2);
    CHECK(reports[0] == "16 elements of 2 bytes go past their memory");
}

TEST_CASE("the watcher keeps out of NCCL while a collective is being posted") {
    fake_nccl::plan(0, 1, Fault::slow);
    fake_nccl::make_calls_slow(12);
    Job job(2);
    job.run([&](Rank& rank) {
        for (int k = 0; k < 6; ++k) rank.comm.wait(swap(rank, 3));
        CHECK(eventually([&] { return rank.finished() == 6; }));
    });
    CHECK(fake_cuda::take_reports() == std::vector<std::string>{});
}

TEST_CASE("a slow rank is no failure") {
    fake_nccl::plan(1, 2, Fault::slow);
    Job job(3);
    job.run([&](Rank& rank) {
        for (int k = 0; k < 3; ++k) rank.comm.wait(swap(rank, 300));
        CHECK(eventually([&] { return rank.finished() == 3; }));
    });
    CHECK(job.verdict() == "none");
    for (int r = 0; r < 3; ++r) CHECK(job.error(r).empty());
    CHECK(fake_cuda::take_reports().empty());
}

TEST_CASE("the loss of a rank ends the others with NCCL's words and the collective they wait in") {
    fake_nccl::plan(1, 2, Fault::kill);
    std::barrier others_wait(3);
    Job job(3);
    job.run([&](Rank& rank) {
        const int r = rank.comm.rank();
        rank.comm.wait(swap(rank, 300));
        CHECK(eventually([&] { return rank.finished() == 1; }));
        if (r == 1) others_wait.arrive_and_wait();
        const ranks::Comm::Ticket ticket = swap(rank, 300);
        if (r != 1) others_wait.arrive_and_wait();
        CHECK(eventually([&] { return !job.error(0).empty() && !job.error(2).empty(); }));
        if (r == 1) return;
        CHECK(
            job.error(r) ==
            fmt::format("rank {} of 3: NCCL: remote process exited or there was a network error; the oldest "
                        "unfinished is collective 2 (all_to_all of 300 f32, step 1)",
                        r));
        try {
            rank.comm.wait(ticket);
            FAIL("a lost ticket was waited for");
        } catch (const Error& e) {
            CHECK(e.code() == ExitCode::peer);
            CHECK(e.what() == job.error(r));
        }
    });
    CHECK(contains(job.verdict(1), "rank 1 (process 1) is gone"));
    CHECK(
        contains(job.verdict(1), "its newest is collective 2 (all_to_all of 300 f32, step 1), not finished"));
    CHECK(fake_cuda::take_reports().empty());
}

TEST_CASE("an asynchronous error of NCCL ends its rank, and a later collective is refused") {
    fake_nccl::plan(0, 1, Fault::async_error);
    Job job(2);
    job.run([&](Rank& rank) {
        swap(rank, 20);
        if (rank.comm.rank() == 0) {
            CHECK(eventually([&] { return !job.error(0).empty(); }));
            CHECK_THROWS_WITH(swap(rank, 20), doctest::Contains("unhandled system error"));
        }
    });
    CHECK(job.error(0) ==
          "rank 0 of 2: NCCL: unhandled system error; the oldest unfinished is collective 1 (all_to_all of "
          "20 f32, step 1)");
    CHECK(fake_cuda::take_reports().empty());
}

TEST_CASE("a failing device ends its rank") {
    fake_nccl::plan(0, 2, Fault::hang);
    Job job(2);
    job.run([&](Rank& rank) {
        swap(rank, 20);
        CHECK(eventually([&] { return rank.finished() == 1; }));
        swap(rank, 21);
        fake_cuda::break_device(rank.comm.rank());
        CHECK(eventually([&] { return !job.error(rank.comm.rank()).empty(); }));
    });
    CHECK(job.error(1) ==
          "rank 1 of 2: CUDA: unspecified launch failure; the oldest unfinished is collective 2 (all_to_all "
          "of 21 f32, step 1)");
    CHECK(fake_cuda::take_reports().empty());
}

TEST_CASE("a collective that hangs without an error stays unfinished, and the watchdog names it") {
    fake_nccl::plan(1, 2, Fault::hang);
    Job job(3);
    job.run([&](Rank& rank) {
        for (int k = 0; k < 3; ++k) rank.comm.wait(swap(rank, 300 + k));
        CHECK(eventually([&] { return rank.finished() == 1; }));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        CHECK(rank.finished() == 1);
    });
    for (int r = 0; r < 3; ++r) CHECK(job.error(r).empty());
    CHECK(job.verdict() ==
          "no progress for 11 s: ranks 0, 1 and 2 wait in collective 2 (all_to_all of 301 f32, step 1), "
          "which all ranks have begun and none has finished: the network or a device hangs");
    CHECK(fake_cuda::take_reports().empty());
}

TEST_CASE("ranks that call for different counts wait for good, and the watchdog tells the odd one") {
    Job job(3);
    job.run([&](Rank& rank) {
        swap(rank, 300);
        swap(rank, rank.comm.rank() == 1 ? 301 : 300);
        CHECK(eventually([&] { return rank.finished() == 1; }));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        CHECK(rank.finished() == 1);
    });
    CHECK(job.verdict() ==
          "the ranks differ on collective 2: ranks 0 and 2 call all_to_all of 300 f32 (step 1), rank 1 calls "
          "all_to_all of 301 f32 (step 1)");
    CHECK(fake_cuda::take_reports().empty());
}

TEST_CASE("a rank that never comes is a failure when the time for connecting is over") {
    Job job(3);
    CHECK_THROWS_WITH(job.run([](Rank&) { FAIL("connected"); }, 2, 0.1),
                      "rank 0 of 3: NCCL has not connected all ranks within 0.1 s");
}

TEST_CASE("whether the library can be used is told without an exception") {
    const std::string why = ranks::nccl_unusable();
    CHECK((why.empty() || contains(why, "libnccl.so.2")));
}
