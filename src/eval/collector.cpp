#include "eval/collector.h"

#include <algorithm>

namespace longreach::eval {

void Collector::plan(model::Arena& arena, int rank, int ranks) {
    pieces_ =
        ranks > 1 ? arena.reserve("from_ranks", DType::f64, {rank == 0 ? ranks - 1 : 1, piece}) : Tensor();
}

std::vector<std::vector<double>> Collector::collect(Ops& ops, ranks::Comm& comm, std::vector<double> mine,
                                                    bool& stop) const {
    std::vector<std::vector<double>> all;
    if (comm.ranks() == 1) {
        all.push_back(std::move(mine));
        return all;
    }
    const bool collects = comm.rank() == 0;
    const int64_t others = comm.ranks() - 1;
    check(pieces_.rows() == (collects ? others : 1), "planned for {} ranks, {} are there", pieces_.rows() + 1,
          comm.ranks());
    const auto numbers = [&](int64_t row, int64_t count) {
        return pieces_.row_range(row, 1).col_range(0, count);
    };
    const auto exchange = [&](int64_t most, const std::vector<ranks::Transfer>& sends,
                              const std::vector<ranks::Transfer>& receives) {
        comm.wait(comm.exchange({ranks::CollectiveOp::send, DType::f64, most}, sends, receives));
    };

    // Rank 0 receives the count of every rank, then all ranks receive the maximum.
    // The number sent is twice the count, plus one if the sender wants to stop.
    std::vector<int64_t> counts(static_cast<size_t>(others));
    double head = 2 * static_cast<double>(mine.size()) + (stop ? 1 : 0);
    if (collects) {
        std::vector<ranks::Transfer> heads;
        for (int64_t r = 0; r < others; ++r) heads.push_back({static_cast<int>(r) + 1, numbers(r, 1)});
        exchange(1, {}, heads);
        int64_t most = 0;
        for (int64_t r = 0; r < others; ++r) {
            ops.download(&head, numbers(r, 1));
            const int64_t sent = static_cast<int64_t>(head);
            counts[static_cast<size_t>(r)] = sent / 2;
            most = std::max(most, sent / 2);
            stop = stop || sent % 2 == 1;
        }
        head = static_cast<double>(2 * most + (stop ? 1 : 0));
        for (const ranks::Transfer& t : heads) ops.upload(t.data, &head);
        exchange(1, heads, {});
        all.emplace_back();  // its own, below
        for (const int64_t count : counts) all.emplace_back(static_cast<size_t>(count));
    } else {
        ops.upload(numbers(0, 1), &head);
        exchange(1, {{{0, numbers(0, 1)}}}, {});
        exchange(1, {}, {{{0, numbers(0, 1)}}});
        ops.download(&head, numbers(0, 1));
        stop = static_cast<int64_t>(head) % 2 == 1;
    }

    const int64_t total = static_cast<int64_t>(head) / 2;
    for (int64_t at = 0; at < total; at += piece) {
        const int64_t width = std::min(piece, total - at);
        std::vector<ranks::Transfer> sends, receives;
        if (collects) {
            for (int64_t r = 0; r < others; ++r) {
                const int64_t count = std::min(width, counts[static_cast<size_t>(r)] - at);
                if (count > 0) receives.push_back({static_cast<int>(r) + 1, numbers(r, count)});
            }
        } else if (const int64_t count = std::min(width, static_cast<int64_t>(mine.size()) - at); count > 0) {
            sends.push_back({0, numbers(0, count)});
            ops.upload(sends[0].data, mine.data() + at);
        }
        exchange(width, sends, receives);
        for (const ranks::Transfer& t : receives)
            ops.download(all[static_cast<size_t>(t.peer)].data() + at, t.data);
    }
    if (collects) all.front() = std::move(mine);
    return all;
}

void Collector::share(Ops& ops, ranks::Comm& comm, std::vector<double>& numbers) const {
    if (comm.ranks() == 1) return;
    const int64_t count = static_cast<int64_t>(numbers.size());
    const Tensor room = pieces_.row_range(0, 1).col_range(0, count);
    std::vector<ranks::Transfer> sends, receives;
    if (comm.rank() == 0) {
        ops.upload(room, numbers.data());
        for (int r = 1; r < comm.ranks(); ++r) sends.push_back({r, room});
    } else {
        receives.push_back({0, room});
    }
    comm.wait(comm.exchange({ranks::CollectiveOp::broadcast, DType::f64, count}, sends, receives));
    ops.download(numbers.data(), room);
}

}  // namespace longreach::eval
