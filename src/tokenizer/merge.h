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

// The merges by pair of symbols; a merge's rank is its place among those added.
class MergeTable {
  public:
    struct Entry {
        uint64_t pair = 0;
        uint32_t rank = none;
        int32_t result = 0;
    };
    static constexpr uint32_t none = UINT32_MAX;

    void add(const Merge& merge, uint32_t rank);           // replaces an earlier merge of that pair
    const Entry& find(int32_t left, int32_t right) const;  // rank `none` if the pair does not merge
    size_t size() const { return used_; }

  private:
    size_t slot_of(uint64_t pair) const;
    void grow();
    std::vector<Entry> slots_ = std::vector<Entry>(2);  // a power of two, at most half of them used
    size_t used_ = 0;
};

// Merges one word after the other; keeps its memory between them. A word of n symbols takes O(n log n).
class Merger {
  public:
    explicit Merger(const MergeTable& table) : table_(&table) {}
    void merge(std::vector<int32_t>& symbols);

  private:
    struct Candidate {
        uint32_t rank, position;
        int32_t left, right, result;
    };
    void merge_short(std::vector<int32_t>& symbols);
    void merge_long(std::vector<int32_t>& symbols);
    void consider(const std::vector<int32_t>& symbols, uint32_t position);
    const MergeTable* table_;
    std::vector<uint32_t> ranks_;            // of the pair that begins at a symbol
    std::vector<uint32_t> previous_, next_;  // neighbours in the list of the symbols that are left
    std::vector<Candidate> heap_;
};

}  // namespace longreach::tokenizer
