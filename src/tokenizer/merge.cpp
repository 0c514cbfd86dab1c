#include "tokenizer/merge.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/interruption.h"

namespace longreach::tokenizer {

namespace {

constexpr size_t short_word = 48;      // symbols up to which scanning all pairs beats a heap
constexpr uint32_t position_bits = 6;  // of a short word
static_assert(MergeTable::none >> (32 - position_bits) == 0 && short_word <= 1U << position_bits);
constexpr int32_t gone = -1;  // a symbol that became part of the one before it

}  // namespace

void MergeTable::add(const Merge& merge, uint32_t rank) {
    check(rank < none && merge.left < symbols && merge.right < symbols, "a merge of {} and {}, rank {}",
          merge.left, merge.right, rank);
    if (rank >= results_.size()) results_.resize(size_t{rank} + 1);
    results_[rank] = merge.result;
    if (2 * (used_ + 1) > slots_.size()) {
        std::vector<uint64_t> old(2 * slots_.size(), free);
        old.swap(slots_);
        used_ = 0;
        for (const uint64_t entry : old)
            if (entry != free) place(entry);
    }
    place(pair_of(merge.left, merge.right) << rank_bits | rank);
}

void MergeTable::place(uint64_t entry) {
    size_t slot = slot_of(entry >> rank_bits);
    while (slots_[slot] != free && slots_[slot] >> rank_bits != entry >> rank_bits)
        slot = (slot + 1) & (slots_.size() - 1);
    if (slots_[slot] == free) ++used_;
    slots_[slot] = entry;
}

void Merger::merge(std::vector<int32_t>& symbols) {
    if (symbols.size() < 2) return;
    check(symbols.size() < UINT32_MAX, "a word of {} symbols", symbols.size());
    if (symbols.size() <= short_word) {
        merge_short(symbols);
    } else {
        merge_long(symbols);
    }
}

void Merger::merge_short(std::vector<int32_t>& symbols) {
    size_t pairs = symbols.size() - 1;
    std::array<uint32_t, short_word + 1> ranks;  // of the pair that begins at a symbol
    for (size_t i = 0; i < pairs; ++i) ranks[i] = table_->rank_of(symbols[i], symbols[i + 1]);
    while (pairs > 0) {
        // Rank and position in one number: the least is found without a branch that cannot be foretold.
        uint32_t best = UINT32_MAX;
        for (size_t i = 0; i < pairs; ++i)
            best = std::min(best, ranks[i] << position_bits | static_cast<uint32_t>(i));
        const uint32_t rank = best >> position_bits;
        const size_t at = best & ((1U << position_bits) - 1);
        if (rank == MergeTable::none) break;
        symbols[at] = table_->result_of(rank);
        --pairs;
        for (size_t i = at + 1; i <= pairs; ++i) symbols[i] = symbols[i + 1];
        for (size_t i = at; i < pairs; ++i) ranks[i] = ranks[i + 1];
        if (at > 0) ranks[at - 1] = table_->rank_of(symbols[at - 1], symbols[at]);
        if (at < pairs) ranks[at] = table_->rank_of(symbols[at], symbols[at + 1]);
    }
    symbols.resize(pairs + 1);
}

namespace {

// The heap's top is the lowest rank, then the lowest position.
constexpr auto worse = [](const auto& a, const auto& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
};

}  // namespace

void Merger::consider(const std::vector<int32_t>& symbols, uint32_t position) {
    const uint32_t after = next_[position];
    if (after >= symbols.size()) return;
    const int32_t left = symbols[position], right = symbols[after];
    const uint32_t rank = table_->rank_of(left, right);
    if (rank == MergeTable::none) return;
    heap_.push_back({rank, position, left, right});
    std::push_heap(heap_.begin(), heap_.end(), worse);
}

void Merger::merge_long(std::vector<int32_t>& symbols) {
    const uint32_t count = static_cast<uint32_t>(symbols.size());
    previous_.resize(count);
    next_.resize(count);
    for (uint32_t i = 0; i < count; ++i) {
        previous_[i] = i - 1;  // of the first: never read
        next_[i] = i + 1;
    }
    heap_.clear();
    for (uint32_t i = 0; i + 1 < count; ++i) consider(symbols, i);
    while (!heap_.empty()) {
        heed_interruption();
        const Candidate best = heap_.front();
        std::pop_heap(heap_.begin(), heap_.end(), worse);
        heap_.pop_back();
        // Either symbol may have merged with another neighbour since.
        const uint32_t i = best.position, after = next_[i];
        if (symbols[i] != best.left || after >= count || symbols[after] != best.right) continue;
        symbols[i] = table_->result_of(best.rank);
        symbols[after] = gone;
        next_[i] = next_[after];
        if (next_[i] < count) previous_[next_[i]] = i;
        if (i > 0) consider(symbols, previous_[i]);
        consider(symbols, i);
    }
    std::erase(symbols, gone);
}

}  // namespace longreach::tokenizer
