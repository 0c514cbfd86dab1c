#include "data/batch_plan.h"

#include <algorithm>

#include "base/error.h"
#include "base/rng.h"

namespace longreach::data {

BatchPlan::BatchPlan(uint64_t stream_tokens, int64_t block, uint64_t seed, ShuffleKind shuffle)
    : block_(block), blocks_(0), seed_(seed), shuffle_(shuffle) {
    check(block >= 1, "blocks of {} tokens", block);
    const uint64_t needed = static_cast<uint64_t>(block) + 1;
    if (stream_tokens < needed)
        throw Error(ExitCode::data,
                    fmt::format("the data has {} tokens, but a context of {} needs at least {}",
                                stream_tokens, block, needed),
                    "use more data or a shorter context");
    blocks_ = (stream_tokens - 1) / static_cast<uint64_t>(block);
}

uint64_t BatchPlan::stream_position(uint64_t consumed) const {
    const uint64_t block = static_cast<uint64_t>(block_);
    const uint64_t epoch = consumed / epoch_tokens(), within = consumed % epoch_tokens();
    const uint64_t index = within / block, offset = within % block;
    if (shuffle_ == ShuffleKind::none) return index * block + offset;
    // The stream number of an epoch has 32 bits; epochs beyond that repeat the orders.
    return Permutation(blocks_, seed_, static_cast<uint32_t>(epoch))(index) * block + offset;
}

void BatchPlan::locate(uint64_t consumed, int64_t length, std::vector<Piece>& pieces) const {
    pieces.clear();
    while (length > 0) {
        const uint64_t begin = stream_position(consumed);
        const int64_t left_in_block = block_ - static_cast<int64_t>(begin % static_cast<uint64_t>(block_));
        const int64_t part = std::min(length, left_in_block);
        const bool continues =
            !pieces.empty() && pieces.back().begin + static_cast<uint64_t>(pieces.back().length) == begin;
        if (continues) {
            pieces.back().length += part;
        } else {
            pieces.push_back({begin, part});
        }
        consumed += static_cast<uint64_t>(part);
        length -= part;
    }
}

double BatchPlan::epochs(uint64_t consumed) const {
    return static_cast<double>(consumed) / static_cast<double>(epoch_tokens());
}

}  // namespace longreach::data
