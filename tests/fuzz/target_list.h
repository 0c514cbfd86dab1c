// The targets that replay.cpp runs; CMakeLists.txt holds the list.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace longreach::fuzz {

struct FuzzTarget {
    const char* name;
    int (*run)(const uint8_t* data, size_t size);
    int slowness;  // gets fewer mutations by this factor
};
const std::vector<FuzzTarget>& fuzz_targets();

}  // namespace longreach::fuzz
