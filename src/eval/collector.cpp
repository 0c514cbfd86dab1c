#include "eval/collector.h"

#include <algorithm>

namespace longreach {

void Collector::plan(Arena& arena, int rank, int ranks) {
    pieces_ =
        ranks > 1 ? arena.reserve("from_ranks", DType::f64, {rank == 0 ? ranks - 1 : 1, piece}) : Tensor();
}

std::vector<std::vector<double>> Collector::collect(Ops& ops, Comm& comm, std::vector<double> mine) const {
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
    const auto exchange = [&](int64_t most, const std::vector<Transfer>& sends,
                              const std::vector<Transfer>& receives) {
        comm.wait(comm.exchange({CollectiveOp::send, DType::f64, most}, sends, receives));
    };

    // How many numbers each has: rank 0 learns it of all, and all learn the most.
    std::vector<int64_t> counts(static_cast<size_t>(others));
    double most = static_cast<double>(mine.size());
    if (collects) {
        std::vector<Transfer> heads;
        for (int64_t r = 0; r < others; ++r) heads.push_back({static_cast<int>(r) + 1, numbers(r, 1)});
        exchange(1, {}, heads);
        most = 0;
        for (int64_t r = 0; r < others; ++r) {
            double count = 0;
            ops.download(&count, numbers(r, 1));
            counts[static_cast<size_t>(r)] = static_cast<int64_t>(count);
            most = std::max(most, count);
        }
        for (const Transfer& head : heads) ops.upload(head.data, &most);
        exchange(1, heads, {});
        all.push_back(std::move(mine));
        for (const int64_t count : counts) all.emplace_back(static_cast<size_t>(count));
    } else {
        ops.upload(numbers(0, 1), &most);
        exchange(1, {{{0, numbers(0, 1)}}}, {});
        exchange(1, {}, {{{0, numbers(0, 1)}}});
        ops.download(&most, numbers(0, 1));
    }

    const int64_t total = static_cast<int64_t>(most);
    for (int64_t at = 0; at < total; at += piece) {
        const int64_t width = std::min(piece, total - at);
        std::vector<Transfer> sends, receives;
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
        for (const Transfer& t : receives) ops.download(all[static_cast<size_t>(t.peer)].data() + at, t.data);
    }
    return all;
}

}  // namespace longreach
