#include "base/finite.h"

#include <algorithm>
#include <bit>

namespace longreach {

namespace {

constexpr uint32_t exponent = 0x7f800000;  // all ones in infinities and NaN

bool is_finite(float value) {
    return (std::bit_cast<uint32_t>(value) & exponent) != exponent;
}

}  // namespace

NonFinite find_non_finite(std::span<const float> values) {
    NonFinite found;
    constexpr size_t block = 4096;
    for (size_t begin = 0; begin < values.size(); begin += block) {
        const std::span<const float> part = values.subspan(begin, std::min(block, values.size() - begin));
        int count = 0;
        for (const float value : part) count += is_finite(value) ? 0 : 1;  // without a branch: vectorised
        if (count == 0) continue;
        if (found.count == 0) {
            const auto first = std::find_if(part.begin(), part.end(), [](float v) { return !is_finite(v); });
            found.first = static_cast<int64_t>(begin) + (first - part.begin());
        }
        found.count += count;
    }
    return found;
}

}  // namespace longreach
