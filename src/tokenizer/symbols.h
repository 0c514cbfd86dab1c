// Characters by what splitting expressions tell apart.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace longreach::tokenizer {

inline constexpr std::array<std::string_view, 30> general_categories = {
    "Cc", "Cf", "Cn", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl",
    "No", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"};

// Numbers characters: one of ASCII is its own symbol, U+017F, an s to expressions that ignore case, has one, and the
// others have one for each category and for white space of it. Belongs to one thread.
class Symbols {
  public:
    static constexpr size_t first_category = 128, long_s = first_category + 2 * general_categories.size(),
                            end_of_text = long_s + 1, count = end_of_text + 1;

    Symbols();
    ~Symbols();
    Symbols(Symbols&&) noexcept;
    Symbols& operator=(Symbols&&) = delete;

    size_t of(uint32_t code_point) {
        const uint16_t block = blocks_[code_point / block_size];
        return block > 0 ? known_[block * block_size + code_point % block_size] : learn(code_point);
    }

  private:
    static constexpr size_t block_size = 64;
    size_t learn(uint32_t code_point);
    std::vector<uint16_t> blocks_;  // by code point: the place of its block in known_, 0: not there
    std::vector<uint8_t> known_;
    struct Categories;  // a matcher of PCRE2
    std::unique_ptr<Categories> categories_;
};

}  // namespace longreach::tokenizer
