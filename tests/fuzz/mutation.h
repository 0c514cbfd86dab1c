// Inputs near others: the same sequence for the same seed, on every machine.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "dice.h"

namespace longreach::fuzz {

class Mutator {
  public:
    explicit Mutator(uint64_t seed) : dice_(seed) {}

    // inputs[which] after a few changes; pieces of the other inputs may come in.
    std::string mutate(const std::vector<std::string>& inputs, size_t which) {
        constexpr std::string_view alphabet = "{}[]:,\"\\-.e019 \n=<&\x1b\x7f\xff";
        std::string text = inputs[which];
        if (dice_.flip()) splice(text, inputs[dice_.below(inputs.size())]);
        if (dice_.flip()) put_number(text, dice_.below(text.size() + 1));
        if (dice_.below(4) != 0) text = dice_.mutate(std::move(text), 3, alphabet);
        if (text.size() > longest) text.resize(longest);
        return text;
    }

  private:
    static constexpr size_t longest = 1 << 16;

    void splice(std::string& text, const std::string& other) {
        const size_t from = dice_.below(other.size() + 1);
        text.insert(dice_.below(text.size() + 1), other.substr(from, dice_.below(256)));
    }

    // A number at the edge of some type, in decimal in place of digits or as up to eight bytes.
    void put_number(std::string& text, size_t at) {
        constexpr uint64_t edges[] = {0,          1,          127,        128,        255,        256,
                                      32767,      65535,      0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
                                      1ull << 53, 1ull << 62, 1ull << 63, ~0ull};
        const uint64_t value = edges[dice_.below(std::size(edges))];
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos && dice_.flip()) {
            const size_t end = std::min(text.find_first_not_of("0123456789", digit), text.size());
            text.replace(digit, end - digit, fmt::format("{}{}", dice_.below(4) == 0 ? "-" : "", value));
            return;
        }
        for (size_t i = 0, bytes = size_t{1} << dice_.below(4); i < bytes && at + i < text.size(); ++i)
            text[at + i] = static_cast<char>(value >> (8 * i));
    }

    Dice dice_;
};

}  // namespace longreach::fuzz
