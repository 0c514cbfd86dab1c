// Byte-pair merging: of all adjacent pairs of symbols that the table holds, the one of lowest rank, leftmost first,
// becomes one symbol, until there is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace longreach::tokenizer {

struct Merge {
    int32_t left = 0, right = 0, result = 0;
};

// The ranks of merges by pair of symbols.
class MergeTable {
  public:
    static constexpr uint32_t none = (uint32_t{1} << 22) - 1;  // every rank is below
    static constexpr int32_t symbols = int32_t{1} << 21;       // every symbol is below

    void add(const Merge& merge, uint32_t rank);  // replaces an earlier merge of that pair
    uint32_t rank_of(int32_t left, int32_t right) const {
        const uint64_t pair = pair_of(left, right);
        size_t slot = slot_of(pair);
        while (slots_[slot] != free && slots_[slot] >> rank_bits != pair)
            slot = (slot + 1) & (slots_.size() - 1);
        return static_cast<uint32_t>(slots_[slot]) & none;
    }
    int32_t result_of(uint32_t rank) const { return results_[rank]; }

  private:
    static constexpr int rank_bits = 22;
    static constexpr uint64_t free = ~uint64_t{0};
    static uint64_t pair_of(int32_t left, int32_t right) {
        return static_cast<uint64_t>(left) << 21 | static_cast<uint64_t>(right);
    }
    size_t slot_of(uint64_t pair) const {
        const uint64_t mixed = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15U;
        return static_cast<size_t>(mixed >> 20) & (slots_.size() - 1);
    }
    void place(uint64_t entry);
    std::vector<uint64_t> slots_ =
        std::vector<uint64_t>(2, free);  // the pair and its rank; at most half are used
    size_t used_ = 0;
    std::vector<int32_t> results_;  // by rank
};

// Merges one word after the other; keeps its memory between them. A word of n symbols takes O(n log n).
class Merger {
  public:
    explicit Merger(const MergeTable& table) : table_(&table) {}
    void merge(std::vector<int32_t>& symbols);

  private:
    struct Candidate {
        uint32_t rank, position;
        int32_t left, right;
    };
    void merge_short(std::vector<int32_t>& symbols);
    void merge_long(std::vector<int32_t>& symbols);
    void consider(const std::vector<int32_t>& symbols, uint32_t position);
    const MergeTable* table_;
    std::vector<uint32_t> previous_, next_;  // neighbours in the list of the symbols that are left
    std::vector<Candidate> heap_;
};

}  // namespace longreach::tokenizer
