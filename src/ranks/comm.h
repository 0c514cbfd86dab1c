// Tensors between ranks.
//
// There is one primitive: an exchange, in which every rank lists what it sends to which peer and what it
// receives from which peer. The receivers add, in an order they choose; so nothing here rounds, and results
// do not depend on a library's order. Pieces are Tensors: counts are elements, never bytes.
//
// Implementations: SingleComm (one rank), GlooComm (CPU ranks over TCP), NcclComm (GPUs).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ranks/collective_log.h"
#include "kernels/ops.h"

namespace longreach::ranks {

// A contiguous piece of device memory that is sent to a peer or receives a peer's piece.
struct Transfer {
    int peer = 0;  // another rank
    Tensor data;
};

// Describes a collective in the same terms on every rank: the watchdog compares them. `count` is the size of
// the whole (of the segment that is reduced, of the vector that is gathered), not of this rank's part.
struct Collective {
    CollectiveOp op = CollectiveOp::all_to_all;
    DType element = DType::f32;
    int64_t count = 0;
};

class Comm {
  public:
    using Ticket = uint64_t;  // the sequence number of the collective in the log

    // log: may be null; must outlive the communicator.
    Comm(int rank, int ranks, CollectiveLog* log) : rank_(rank), ranks_(ranks), log_(log) {}
    virtual ~Comm() = default;
    Comm(const Comm&) = delete;
    Comm& operator=(const Comm&) = delete;

    int rank() const { return rank_; }
    int ranks() const { return ranks_; }
    virtual std::string describe() const = 0;  // "gloo over 127.0.0.1"

    // Begins a collective and returns immediately. All ranks begin the same collectives in the same order.
    // The k-th piece that one rank sends to another meets the k-th piece that the other receives from it, of
    // equal type and count; both sides skip empty pieces. Work queued on the device earlier completes before
    // anything is sent. Until wait(), do not write to what is sent and do not access what is received.
    Ticket exchange(const Collective& what, std::span<const Transfer> sends,
                    std::span<const Transfer> receives);
    // data = its sum over all ranks, f32, in the library's order: the bits depend on the number of ranks.
    Ticket all_reduce(Tensor data);
    // Work queued on the device from now on sees the received data; sent memory may be written again. Wait
    // for every ticket once, in any order. Error(peer) if a peer is lost.
    void wait(Ticket ticket);

    // By this rank. An all_reduce counts as a ring does: 2 (R - 1) / R of its bytes.
    int64_t bytes_sent() const { return bytes_sent_; }

  protected:
    virtual void post(Ticket ticket, std::span<const Transfer> sends, std::span<const Transfer> receives) = 0;
    virtual void post_all_reduce(Ticket ticket, Tensor data) = 0;
    virtual void finish(Ticket ticket) = 0;
    // False if collectives end after wait() returns (GPU): the implementation then calls log_finish() itself.
    virtual bool finishes_in_wait() const { return true; }
    void log_finish(Ticket ticket) {
        if (log_ != nullptr) log_->finish(ticket);
    }

  private:
    Ticket begin(const Collective& what);
    int rank_, ranks_;
    CollectiveLog* log_;
    uint64_t sequence_ = 0;  // without a log
    int64_t bytes_sent_ = 0;
};

// Sends rank 0's text to the others; every rank returns it. room: i32 device memory for the
// text and one number.
std::string broadcast(Ops& ops, Comm& comm, Tensor room, const std::string& text);

class SingleComm final : public Comm {
  public:
    SingleComm() : Comm(0, 1, nullptr) {}
    std::string describe() const override { return "one rank"; }

  protected:
    void post(Ticket, std::span<const Transfer>, std::span<const Transfer>) override {}
    void post_all_reduce(Ticket, Tensor) override {}
    void finish(Ticket) override {}
};

}  // namespace longreach::ranks
