// A sequence of reproducible random choices for property tests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/rng.h"

namespace longreach {

class Dice {
  public:
    explicit Dice(uint64_t seed) : rng_(seed, Purpose::test) {}
    uint64_t bits() { return rng_.bits(next_++); }
    uint64_t below(uint64_t n) { return rng_.below(next_++, n); }
    bool flip() { return below(2) == 1; }

    // `text` with up to `edits` bytes or pieces changed, removed, doubled or added.
    std::string mutate(std::string text, uint64_t edits, std::string_view alphabet) {
        for (uint64_t i = 0, n = 1 + below(edits); i < n; ++i) {
            const size_t at = below(text.size() + 1);
            const size_t length = below(text.size() - at + 1);
            switch (below(6)) {
                case 0:
                    text.insert(at, 1, static_cast<char>(below(256)));
                    break;
                case 1:
                    text.insert(at, 1, alphabet[below(alphabet.size())]);
                    break;
                case 2:
                    text.erase(at, length > 8 ? 1 : length);
                    break;
                case 3:
                    text.insert(below(text.size() + 1), text.substr(at, length));
                    break;
                case 4:
                    text.resize(at);
                    break;
                default:
                    if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
            }
        }
        return text;
    }

  private:
    Rng rng_;
    uint64_t next_ = 0;
};

}  // namespace longreach
