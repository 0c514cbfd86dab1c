#include "ranks/comm.h"

#include <cstring>
#include <vector>

namespace longreach::ranks {

namespace {

ElementType element_of(DType dtype) {
    constexpr ElementType types[] = {ElementType::f32, ElementType::bf16, ElementType::f64, ElementType::i32};
    return types[static_cast<size_t>(dtype)];  // in the order of DType
}

void check_pieces(std::span<const Transfer> pieces, int rank, int ranks) {
    for (const Transfer& t : pieces) {
        // One rank alone sends to itself, where a machine with one GPU shows what NCCL does (tests/cuda/nccl_test.cpp).
        check(t.peer >= 0 && t.peer < ranks && (t.peer != rank || ranks == 1),
              "rank {} of {} exchanges with {}", rank, ranks, t.peer);
        check(t.data.contiguous(), "a piece with gaps between its rows");
    }
}

}  // namespace

Comm::Ticket Comm::begin(const Collective& what) {
    if (log_ == nullptr) return ++sequence_;
    return log_->begin(what.op, element_of(what.element), static_cast<uint64_t>(what.count));
}

Comm::Ticket Comm::exchange(const Collective& what, std::span<const Transfer> sends,
                            std::span<const Transfer> receives) {
    check_pieces(sends, rank_, ranks_);
    check_pieces(receives, rank_, ranks_);
    const Ticket ticket = begin(what);
    for (const Transfer& t : sends) bytes_sent_ += t.data.bytes();
    post(ticket, sends, receives);
    return ticket;
}

Comm::Ticket Comm::all_reduce(Tensor data) {
    check(data.dtype == DType::f32 && data.contiguous(), "all_reduce of {}", name_of(data.dtype));
    const Ticket ticket = begin({CollectiveOp::all_reduce, data.dtype, data.count()});
    bytes_sent_ += 2 * (ranks_ - 1) * data.bytes() / ranks_;
    post_all_reduce(ticket, data);
    return ticket;
}

void Comm::wait(Ticket ticket) {
    finish(ticket);
    if (finishes_in_wait()) log_finish(ticket);
}

std::string broadcast(Ops& ops, Comm& comm, Tensor room, const std::string& text) {
    if (comm.ranks() == 1) return text;
    // All of `room` is sent, because only rank 0 knows the length.
    std::vector<int32_t> words(static_cast<size_t>(room.count()));
    const auto capacity = (words.size() - 1) * sizeof(int32_t);
    std::vector<Transfer> sends, receives;
    if (comm.rank() == 0) {
        check(text.size() <= capacity, "{} bytes in a message of {}", text.size(), capacity);
        words[0] = static_cast<int32_t>(text.size());
        std::memcpy(words.data() + 1, text.data(), text.size());
        ops.upload(room, words.data());
        for (int r = 1; r < comm.ranks(); ++r) sends.push_back({r, room});
    } else {
        receives.push_back({0, room});
    }
    comm.wait(comm.exchange({CollectiveOp::broadcast, DType::i32, room.count()}, sends, receives));
    ops.download(words.data(), room);
    const auto size = static_cast<size_t>(words[0]);
    require(size <= capacity, ExitCode::peer, "rank 0 sent a text of {} bytes in a message of {}", size,
            capacity);
    return std::string(reinterpret_cast<const char*>(words.data() + 1), size);
}

}  // namespace longreach::ranks
