// Whether numbers are finite, at memory speed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace longreach {

struct NonFinite {
    int64_t count = 0;
    int64_t first = -1;  // index of the first
};
NonFinite find_non_finite(std::span<const float> values);

}  // namespace longreach
