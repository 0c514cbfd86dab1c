// Tensors between ranks.
//
// One primitive carries everything: an exchange, in which every rank names what it sends to whom and
// what it receives from whom. Sums are made by those who receive, in an order of their own choosing;
// so nothing here rounds, and results depend on no library's order. Pieces are Tensors: their counts
// are elements, never bytes.
//
// Implementations: SingleComm (one rank), GlooComm (CPU ranks over TCP), NcclComm (GPUs).
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "ranks/collective_log.h"
#include "kernels/ops.h"

namespace longreach::ranks {

// A contiguous piece of memory of the ranks' device that goes to a peer, or that a peer's piece is put into.
struct Transfer {
    int peer = 0;  // another rank
    Tensor data;
};

// What a collective is, in the same words on every rank: the watchdog compares them. `count` is the whole's
// size (of a segment that is being reduced, of a vector that is gathered), whatever this rank's part is.
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

    // Begins a collective and returns at once. All ranks begin the same ones in the same order. Between two
    // ranks the k-th piece one sends meets the k-th piece the other receives, of equal type and count; pieces
    // of no elements are left out on both sides. What the device was told to do before is done before
    // anything is sent; until wait(), nobody may write to what is sent or touch what is received.
    Ticket exchange(const Collective& what, std::span<const Transfer> sends,
                    std::span<const Transfer> receives);
    // data = its sum over all ranks, f32, in the library's own order: the bits depend on the number of ranks.
    Ticket all_reduce(Tensor data);
    // Whatever the device is told to do from now on finds the received data; sent memory may be written
    // again. Every ticket is waited for once, in any order. Error(peer) if a peer is lost.
    void wait(Ticket ticket);

    // By this rank so far. An all_reduce counts as a ring does: 2 (R - 1) / R of its bytes.
    int64_t bytes_sent() const { return bytes_sent_; }
    int64_t collectives() const { return collectives_; }

  protected:
    virtual void post(Ticket ticket, std::span<const Transfer> sends, std::span<const Transfer> receives) = 0;
    virtual void post_all_reduce(Ticket ticket, Tensor data) = 0;
    virtual void finish(Ticket ticket) = 0;
    // An implementation whose collectives end later than wait() returns (a GPU's) calls this itself.
    virtual bool finishes_in_wait() const { return true; }
    void log_finish(Ticket ticket) {
        if (log_ != nullptr) log_->finish(ticket);
    }

  private:
    Ticket begin(const Collective& what);
    int rank_, ranks_;
    CollectiveLog* log_;
    uint64_t sequence_ = 0;  // without a log
    int64_t bytes_sent_ = 0, collectives_ = 0;
};

// Rank 0 tells the others a text; every rank returns it. room: i32 memory of the device, enough for the
// text and one number.
std::string tell(Ops& ops, Comm& comm, Tensor room, const std::string& text);

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
