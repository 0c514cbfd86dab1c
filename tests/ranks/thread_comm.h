// Ranks as threads of one process: a communicator that copies, for tests of what is built on communicators.
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "ranks/comm.h"

namespace longreach::test {

// What has been sent and not yet received, between every pair of ranks, of every collective in order.
class Mailbox {
  public:
    void put(int from, int to, ranks::Comm::Ticket collective, const Tensor& data) {
        const auto* bytes = static_cast<const std::byte*>(data.data());
        const std::lock_guard lock(mutex_);
        letters_[{from, to, collective}].push_back({data.dtype, {bytes, bytes + data.bytes()}});
        arrived_.notify_all();
    }
    void take(int from, int to, ranks::Comm::Ticket collective, Tensor data) {
        std::unique_lock lock(mutex_);
        std::deque<Letter>& waiting = letters_[{from, to, collective}];
        arrived_.wait(lock, [&] { return !waiting.empty() || failed_; });
        require(!waiting.empty(), ExitCode::peer, "rank {} is lost", from);
        const Letter letter = std::move(waiting.front());
        waiting.pop_front();
        if (waiting.empty()) letters_.erase({from, to, collective});
        check(letter.dtype == data.dtype && static_cast<int64_t>(letter.bytes.size()) == data.bytes(),
              "rank {} sends {} bytes, rank {} receives {}", from, letter.bytes.size(), to, data.bytes());
        std::memcpy(data.data(), letter.bytes.data(), letter.bytes.size());
    }
    void fail() {
        const std::lock_guard lock(mutex_);
        failed_ = true;
        arrived_.notify_all();
    }

  private:
    struct Letter {
        DType dtype;
        std::vector<std::byte> bytes;
    };
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::map<std::tuple<int, int, ranks::Comm::Ticket>, std::deque<Letter>> letters_;
    bool failed_ = false;
};

class ThreadComm final : public ranks::Comm {
  public:
    ThreadComm(Mailbox& mailbox, int rank, int ranks, ranks::CollectiveLog* log = nullptr)
        : ranks::Comm(rank, ranks, log), mailbox_(mailbox) {}
    std::string describe() const override { return "threads"; }

  protected:
    void post(Ticket ticket, std::span<const ranks::Transfer> sends,
              std::span<const ranks::Transfer> receives) override {
        for (const ranks::Transfer& t : sends)
            if (t.data.count() > 0) mailbox_.put(rank(), t.peer, ticket, t.data);
        pending_[ticket].assign(receives.begin(), receives.end());
    }
    // Rank after rank: another order than the tree's.
    void post_all_reduce(Ticket ticket, Tensor data) override {
        std::vector<float> sum(static_cast<size_t>(data.count())), other(sum.size());
        for (int r = 0; r < ranks(); ++r)
            if (r != rank()) mailbox_.put(rank(), r, ticket, data);
        for (int r = 0; r < ranks(); ++r) {
            if (r == rank())
                std::memcpy(other.data(), data.data(), other.size() * sizeof(float));
            else
                mailbox_.take(r, rank(), ticket, Tensor(other.data(), DType::f32, {data.count()}));
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
        }
        std::memcpy(data.data(), sum.data(), sum.size() * sizeof(float));
        pending_[ticket] = {};
    }
    void finish(Ticket ticket) override {
        const auto found = pending_.find(ticket);
        check(found != pending_.end(), "ticket {} is waited for twice, or was never given", ticket);
        for (const ranks::Transfer& t : found->second)
            if (t.data.count() > 0) mailbox_.take(t.peer, rank(), ticket, t.data);
        pending_.erase(found);
    }

  private:
    Mailbox& mailbox_;
    std::map<Ticket, std::vector<ranks::Transfer>> pending_;
};

// Runs `body` on `ranks` threads at once; rethrows what the lowest failed rank threw first.
inline void run_ranks(int ranks, const std::function<void(ranks::Comm& comm)>& body) {
    Mailbox mailbox;
    std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
        threads.emplace_back([&, r] {
            try {
                if (ranks == 1) {
                    ranks::SingleComm comm;
                    return body(comm);
                }
                ThreadComm comm(mailbox, r, ranks);
                body(comm);
            } catch (...) {
                errors[static_cast<size_t>(r)] = std::current_exception();
                mailbox.fail();
            }
        });
    for (std::thread& t : threads) t.join();
    for (const std::exception_ptr& e : errors)
        if (e) std::rethrow_exception(e);
}

}  // namespace longreach::test
