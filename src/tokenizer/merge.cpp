#include "tokenizer/merge.h"

#include <algorithm>

#include "base/error.h"
#include "base/interruption.h"

namespace longreach::tokenizer {

namespace {

constexpr size_t short_word = 48;  // symbols up to which scanning all pairs beats a heap
constexpr int32_t gone = -1;       // a symbol that became part of the one before it

uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

size_t MergeTable::slot_of(uint64_t pair) const {
    const size_t mask = slots_.size() - 1;
    const uint64_t mixed = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15U;
    size_t slot = static_cast<size_t>(mixed >> 20) & mask;
    while (slots_[slot].rank != none && slots_[slot].pair != pair) slot = (slot + 1) & mask;
    return slot;
}

void MergeTable::add(const Merge& merge, uint32_t rank) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    Entry& entry = slots_[slot_of(pair_of(merge.left, merge.right))];
    if (entry.rank == none) ++used_;
    entry = {pair_of(merge.left, merge.right), rank, merge.result};
}

void MergeTable::grow() {
    std::vector<Entry> old(2 * slots_.size());
    old.swap(slots_);
    for (const Entry& entry : old)
        if (entry.rank != none) slots_[slot_of(entry.pair)] = entry;
}

const MergeTable::Entry& MergeTable::find(int32_t left, int32_t right) const {
    return slots_[slot_of(pair_of(left, right))];
}

void Merger::merge(std::vector<int32_t>& symbols) {
    if (symbols.size() < 2) return;
    check(symbols.size() < MergeTable::none, "a word of {} symbols", symbols.size());
    if (symbols.size() <= short_word) {
        merge_short(symbols);
    } else {
        merge_long(symbols);
    }
}

void Merger::merge_short(std::vector<int32_t>& symbols) {
    ranks_.resize(symbols.size() - 1);
    for (size_t i = 0; i + 1 < symbols.size(); ++i) ranks_[i] = table_->find(symbols[i], symbols[i + 1]).rank;
    while (!ranks_.empty()) {
        const auto best = std::min_element(ranks_.begin(), ranks_.end());
        if (*best == MergeTable::none) return;
        const size_t i = static_cast<size_t>(best - ranks_.begin());
        symbols[i] = table_->find(symbols[i], symbols[i + 1]).result;
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        ranks_.erase(best);
        if (i > 0) ranks_[i - 1] = table_->find(symbols[i - 1], symbols[i]).rank;
        if (i + 1 < symbols.size()) ranks_[i] = table_->find(symbols[i], symbols[i + 1]).rank;
    }
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
    const MergeTable::Entry& entry = table_->find(left, right);
    if (entry.rank == MergeTable::none) return;
    heap_.push_back({entry.rank, position, left, right, entry.result});
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
        symbols[i] = best.result;
        symbols[after] = gone;
        next_[i] = next_[after];
        if (next_[i] < count) previous_[next_[i]] = i;
        if (i > 0) consider(symbols, previous_[i]);
        consider(symbols, i);
    }
    std::erase(symbols, gone);
}

}  // namespace longreach::tokenizer
