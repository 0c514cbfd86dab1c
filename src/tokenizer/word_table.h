// The words of texts and some numbers for each: a hash table that lays out a word and its numbers side by side.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

namespace longreach::tokenizer {

class WordTable {
  public:
    // What is compared first: 16 bytes of the word, zeros where it has fewer, and a hash of all.
    struct Key {
        std::string_view word;
        std::array<uint64_t, 2> front{};
        uint64_t hash = 0;
    };
    // Of bytes [begin, end) of a text; the bytes after them may be read.
    static Key key_of(std::string_view text, size_t begin, size_t end);

    static constexpr size_t readable = 4;  // numbers of a word that can be read, even if it has fewer
    struct Found {
        const int32_t* numbers = nullptr;  // until the next word is added; null: the word is not there
        size_t count = 0;
    };

    // A word that needs more probes is neither found nor added: bounds what chosen words cost.
    explicit WordTable(size_t most_probes = std::numeric_limits<size_t>::max());

    Found find(const Key& key) const;
    // Ask for the memory that find() will read: first of the slot, then of the record.
    void expect_slot(const Key& key) const { __builtin_prefetch(&slots_[home_of(key)]); }
    void expect_record(const Key& key) const { __builtin_prefetch(&records_[slots_[home_of(key)] >> 32]); }
    Found find(std::string_view word) const { return find(key_of(word, 0, word.size())); }
    void add(const Key& key, std::span<const int32_t> numbers);  // a word that find() does not find
    void clear();

    size_t size() const { return used_; }
    size_t bytes() const { return sizeof(int32_t) * records_.size(); }  // of the words and their numbers

    template <class See>
    void for_each(See see) const {  // see(word, numbers)
        for (size_t place = 1; place < end_; place += size_of(place))
            see(word_at(place), &records_[place + size_of(place) - count_at(place)]);
    }

  private:
    static constexpr size_t head = 2;  // of a record: bytes of the word, count of its numbers
    static size_t padded(size_t bytes) { return bytes <= 16 ? 4 : (bytes + 3) / 4; }
    static uint64_t mix(uint64_t bits) {
        bits *= 0x9E3779B97F4A7C15U;
        return bits ^ bits >> 32;
    }
    static uint64_t hash_after(uint64_t hash, std::string_view rest);
    std::string_view word_at(size_t place) const {
        return {reinterpret_cast<const char*>(&records_[place + head]), static_cast<size_t>(records_[place])};
    }
    size_t count_at(size_t place) const { return static_cast<size_t>(records_[place + 1]); }
    size_t size_of(size_t place) const { return head + padded(word_at(place).size()) + count_at(place); }
    size_t home_of(const Key& key) const { return static_cast<size_t>(key.hash >> 32) & (slots_.size() - 1); }
    void grow();

    // By hash: the place of the record in the upper half, 0 where there is none, bits of the hash in the lower half.
    std::vector<uint64_t> slots_;
    std::vector<int32_t> records_;  // head, the word and zeros up to padded() numbers, its numbers
    size_t end_ = 1, used_ = 0, most_probes_;
};

// Bytes of which the first n are 255, by n.
inline constexpr std::array<std::array<unsigned char, 16>, 17> word_masks = [] {
    std::array<std::array<unsigned char, 16>, 17> masks{};
    for (size_t n = 0; n < masks.size(); ++n)
        for (size_t i = 0; i < n; ++i) masks[n][i] = 255;
    return masks;
}();

inline WordTable::Key WordTable::key_of(std::string_view text, size_t begin, size_t end) {
    const size_t size = end - begin;
    Key key{text.substr(begin, size)};
    constexpr size_t front = sizeof key.front;
    if (text.size() - begin >= front) {
        std::array<uint64_t, 2> mask;
        std::memcpy(key.front.data(), text.data() + begin, front);
        std::memcpy(mask.data(), word_masks[size < front ? size : front].data(), front);
        key.front = {key.front[0] & mask[0], key.front[1] & mask[1]};
    } else {
        std::memcpy(key.front.data(), key.word.data(), size);
    }
    key.hash = mix(mix(mix(key.front[0] ^ size << 56) ^ key.front[1]));
    if (size > front) key.hash = hash_after(key.hash, key.word.substr(front));
    return key;
}

inline WordTable::Found WordTable::find(const Key& key) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = home_of(key);
    for (size_t probe = 0; slots_[slot] != 0 && probe < most_probes_; ++probe, slot = (slot + 1) & mask) {
        if (static_cast<uint32_t>(slots_[slot]) != static_cast<uint32_t>(key.hash)) continue;
        const size_t place = slots_[slot] >> 32, size = key.word.size();
        const std::string_view word = word_at(place);
        std::array<uint64_t, 2> front;
        std::memcpy(front.data(), word.data(), sizeof front);
        if (word.size() == size && front[0] == key.front[0] && front[1] == key.front[1] &&
            (size <= sizeof front || word == key.word))
            return {&records_[place + head + padded(size)], count_at(place)};
    }
    return {};
}

}  // namespace longreach::tokenizer
