// Compiled into longreach_gloo.so alone.
#include "ranks/gloo_module.h"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <signal.h>

#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "base/hash.h"

namespace longreach::ranks {

namespace {

constexpr std::chrono::hours no_limit{24};
// Delays the error of a broken connection. Meanwhile the watchdog detects the death that broke it and ends
// this process with the better message: "rank 2 died", not "connection reset".
constexpr std::chrono::seconds error_delay{3};

// Gloo's view of the run's store.
class StoreAdapter final : public gloo::rendezvous::Store {
  public:
    StoreAdapter(const GlooStore& store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}
    void set(const std::string& key, const std::vector<char>& value) override {
        store_.set(*store_.rendezvous, prefix_ + key, {value.begin(), value.end()}).rethrow();
    }
    std::vector<char> get(const std::string& key) override {
        std::string value;
        store_.wait(*store_.rendezvous, prefix_ + key, value).rethrow();
        return {value.begin(), value.end()};
    }
    void wait(const std::vector<std::string>& keys) override {
        for (const std::string& key : keys) get(key);
    }
    void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

  private:
    const GlooStore store_;
    const std::string prefix_;
};

// Removes the position in Gloo's source: "[/build/gloo/pair.cc:598] Connection closed by peer".
std::string message_of(const std::exception& error) {
    const std::string text = error.what();
    const size_t end = text.find("] ");
    return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

// The name of a piece includes its size: Gloo aborts the process if a piece is larger than its buffer. Gloo's
// own collectives do not use the top bit.
constexpr uint64_t most_in_flight = 1 << 15, most_pieces = 1 << 16;
uint64_t slot_of(uint64_t ticket, uint64_t piece, int64_t bytes) {
    check(piece < most_pieces, "{} pieces for one rank", piece);
    return uint64_t{1} << 63 | (ticket % most_in_flight) << 48 | piece << 32 |
           (static_cast<uint64_t>(bytes) & 0xffffffff);
}

class Port final : public GlooPort {
  public:
    Port(const GlooStore& store, const GlooPlace& place) : ranks_(place.ranks) {
        // Gloo writes to connections that the other side may have closed, and handles the error itself.
        ::signal(SIGPIPE, SIG_IGN);
        guarded("a rank while connecting", [&] {
            StoreAdapter adapter(store, place.prefix);
            auto device =
                gloo::transport::tcp::CreateDevice(gloo::transport::tcp::attr(place.address.c_str()));
            context_ = std::make_shared<gloo::rendezvous::Context>(place.rank, place.ranks);
            context_->setTimeout(no_limit);
            context_->connectFullMesh(adapter, device);
        });
    }
    GlooFailure post(Comm::Ticket ticket, std::span<const Transfer> sends,
                     std::span<const Transfer> receives) noexcept override {
        return GlooFailure::of([&] {
            check(pending_.empty() || ticket - pending_.begin()->first < most_in_flight,
                  "collective {} begins while {} is not waited for", ticket, pending_.begin()->first);
            Pending& pending = pending_[ticket];
            start(pending.receives, ticket, receives, false);
            start(pending.sends, ticket, sends, true);
        });
    }
    GlooFailure post_all_reduce(Comm::Ticket ticket, Tensor data) noexcept override {
        return GlooFailure::of([&] {
            pending_[ticket] = {};
            if (data.count() == 0) return;
            gloo::AllreduceOptions options(context_);
            options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
            options.setOutput(data.f32(), static_cast<size_t>(data.count()));
            void (*const sum)(void*, const void*, const void*, size_t) = &gloo::sum<float>;
            options.setReduceFunction(sum);
            // The name includes the size here too.
            const uint64_t name[2] = {ticket, static_cast<uint64_t>(data.count())};
            options.setTag(static_cast<uint32_t>(xxh64(name, sizeof name)));
            guarded("a rank in an all_reduce", [&] { gloo::allreduce(options); });
        });
    }
    GlooFailure finish(Comm::Ticket ticket) noexcept override {
        return GlooFailure::of([&] {
            const auto found = pending_.find(ticket);
            check(found != pending_.end(), "ticket {} is waited for twice, or was never given", ticket);
            for (const Piece& p : found->second.receives)
                guarded(rank_name(p.peer), [&] { p.buffer->waitRecv(); });
            for (const Piece& p : found->second.sends)
                guarded(rank_name(p.peer), [&] { p.buffer->waitSend(); });
            pending_.erase(found);
        });
    }

  private:
    struct Piece {
        int peer;
        std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    };
    struct Pending {
        std::vector<Piece> receives, sends;
    };

    void start(std::vector<Piece>& pieces, Comm::Ticket ticket, std::span<const Transfer> transfers,
               bool send) {
        std::vector<uint64_t> next(static_cast<size_t>(ranks_));  // piece, by peer
        for (const Transfer& t : transfers) {
            if (t.data.count() == 0) continue;
            const uint64_t slot = slot_of(ticket, next[static_cast<size_t>(t.peer)]++, t.data.bytes());
            guarded(rank_name(t.peer), [&] {
                const auto bytes = static_cast<size_t>(t.data.bytes());
                pieces.push_back({t.peer, context_->createUnboundBuffer(t.data.data(), bytes)});
                gloo::transport::UnboundBuffer& buffer = *pieces.back().buffer;
                send ? buffer.send(t.peer, slot) : buffer.recv(t.peer, slot);
            });
        }
    }
    static std::string rank_name(int rank) { return fmt::format("rank {}", rank); }
    template <class Action>
    void guarded(const std::string& who, Action action) {
        try {
            action();
        } catch (const Error&) {
            throw;
        } catch (const std::exception& error) {
            std::this_thread::sleep_for(error_delay);
            fail(ExitCode::peer, "lost {}: {}", who, message_of(error));
        }
    }

    const int ranks_;
    std::shared_ptr<gloo::rendezvous::Context> context_;
    std::map<Comm::Ticket, Pending> pending_;
};

}  // namespace

extern "C" [[gnu::visibility("default")]] void longreach_open_gloo(const GlooStore& store,
                                                                   const GlooPlace& place,
                                                                   std::unique_ptr<GlooPort>& port,
                                                                   GlooFailure& failure) noexcept;
void longreach_open_gloo(const GlooStore& store, const GlooPlace& place, std::unique_ptr<GlooPort>& port,
                         GlooFailure& failure) noexcept {
    failure = GlooFailure::of([&] { port = std::make_unique<Port>(store, place); });
}

}  // namespace longreach::ranks
