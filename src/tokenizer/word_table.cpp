#include "tokenizer/word_table.h"

#include <algorithm>

#include "base/error.h"

namespace longreach::tokenizer {

namespace {

constexpr size_t first_slots = size_t{1} << 12;  // a power of two; at most half of them are used

}  // namespace

WordTable::WordTable(size_t most_probes) : most_probes_(most_probes) {
    clear();
}

void WordTable::clear() {
    slots_.assign(first_slots, 0);
    records_.assign(1 + readable, 0);
    end_ = 1;
    used_ = 0;
}

uint64_t WordTable::hash_after(uint64_t hash, std::string_view rest) {
    for (; !rest.empty(); rest.remove_prefix(std::min(rest.size(), sizeof hash))) {
        uint64_t eight = 0;
        std::memcpy(&eight, rest.data(), std::min(rest.size(), sizeof eight));
        hash = mix(hash ^ eight);
    }
    return hash;
}

void WordTable::add(const Key& key, std::span<const int32_t> numbers) {
    if (2 * (used_ + 1) > slots_.size()) grow();
    const size_t mask = slots_.size() - 1;
    size_t slot = home_of(key);
    for (size_t probe = 0; slots_[slot] != 0; ++probe, slot = (slot + 1) & mask)
        if (probe + 1 >= most_probes_) return;
    const size_t size = key.word.size(), place = end_;
    end_ += head + padded(size) + numbers.size();
    check(end_ <= UINT32_MAX && size <= INT32_MAX, "words of {} bytes", end_ * sizeof(int32_t));
    records_.resize(end_ + readable);
    records_[place] = static_cast<int32_t>(size);
    records_[place + 1] = static_cast<int32_t>(numbers.size());
    std::memcpy(&records_[place + head], key.word.data(), size);
    std::copy(numbers.begin(), numbers.end(),
              records_.begin() + static_cast<std::ptrdiff_t>(place + head + padded(size)));
    slots_[slot] = uint64_t{place} << 32 | static_cast<uint32_t>(key.hash);
    ++used_;
}

// Places the words again, in the order in which they came: those that many probes would reach are forgotten.
void WordTable::grow() {
    slots_.assign(2 * slots_.size(), 0);
    used_ = 0;
    const size_t mask = slots_.size() - 1;
    for (size_t place = 1; place < end_; place += size_of(place)) {
        const std::string_view word = word_at(place);
        const Key key = key_of(word, 0, word.size());
        size_t slot = home_of(key), probe = 0;
        for (; slots_[slot] != 0 && probe < most_probes_; ++probe) slot = (slot + 1) & mask;
        if (probe == most_probes_) continue;
        slots_[slot] = uint64_t{place} << 32 | static_cast<uint32_t>(key.hash);
        ++used_;
    }
}

}  // namespace longreach::tokenizer
