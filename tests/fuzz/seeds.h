// Where fuzzing starts: for each target a few valid inputs, made by the program's own writers.
// seeds_core.cpp and seeds_runs.cpp serve one of the two replay programs each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace longreach::fuzz {

struct Seed {
    std::string name, bytes;
};
std::vector<Seed> seeds_of(std::string_view target);  // never empty

// Words worth putting in, in libFuzzer's form; "" if the target needs none.
std::string dictionary_of(std::string_view target);

}  // namespace longreach::fuzz
